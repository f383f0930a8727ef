//! The parts for code that connects a model service: providers, wire formats and backends.
//!
//! - A service whose API is a known wire format needs no code: `provider::http::Endpoint` takes one of the wire formats
//!   below, with switches for the service's deviations.
//! - A service with another wire format needs a [`Dialect`].
//! - A service with another transport needs a [`Provider`](super::Provider). It gets a [`RequestContext`] and returns a
//!   stream of [`Delta`]s. The parts of its content are [`BlockStart`] and [`Part`]. A [`MessageDelta`] carries the stop
//!   reason, the usage and the other data of the message.
//! - A service that owns the conversation itself, such as a coding agent that runs as a program, needs a [`Backend`].
//!
//! # Wire formats
//!
//! A wire format translates a [`Request`](super::Request) into a JSON body, and the events of the streamed response into
//! [`Delta`]s. The translation is pure: it does no I/O and needs neither an address nor a key. The address and the key
//! belong to an endpoint (`provider::http::Endpoint`), because many services share a few wire formats.
//!
//! The types of a wire format are:
//!
//! - [`Dialect`] is a wire format. It encodes requests, determines the path and the headers, creates decoders, and
//!   interprets error responses.
//! - [`Encoded`] is an encoded request: the JSON body, and a warning for each option that could not be honoured.
//! - [`Framing`] determines how the bytes of a response are divided into events.
//! - [`Frame`] is one event of a response, borrowed from the bytes of the response.
//! - [`Decoder`] turns the frames of one response into [`Delta`]s. Each response has its own decoder.
//!
//! For each attempt, an endpoint calls [`Dialect::encode`] and sends the body to [`Dialect::path`] with
//! [`Dialect::headers`]. If the service refuses the request, [`Dialect::error`] interprets the service's reply.
//! Otherwise, the endpoint divides the body of the response into frames. It passes each frame to the [`Decoder`], until
//! the decoder is done or the body ends.
//!
//! The wire formats of this crate are [`AnthropicMessages`], [`ChatCompletions`], [`OpenAiResponses`], [`GoogleGemini`]
//! and [`OllamaChat`].
//!
//! This example is a small custom wire format. `Endpoint::custom("my-service", "https://llm.example.com", Lines)`
//! creates a provider that uses it.
//!
//! ```
//! use omni_agent::provider::{
//!     ProviderError, ProviderErrorKind, Request, StopReason,
//!     custom::{BlockStart, Decoder, Delta, Dialect, Encoded, Frame, Framing, Part},
//! };
//! use serde_json::Value;
//!
//! /// One JSON object per line: `{"text": "…"}` extends the response, `{"done": true}` ends it.
//! struct Lines;
//!
//! impl Dialect for Lines {
//!     fn name(&self) -> &'static str {
//!         "lines"
//!     }
//!
//!     fn path(&self, _request: &Request) -> String {
//!         "/generate".to_owned()
//!     }
//!
//!     fn framing(&self) -> Framing {
//!         Framing::NdJson
//!     }
//!
//!     fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
//!         let prompt = request.history.last().map(|message| message.text()).unwrap_or_default();
//!         let mut encoded = Encoded::default();
//!         encoded.body.insert("model".to_owned(), Value::from(&*request.model));
//!         encoded.body.insert("prompt".to_owned(), Value::from(prompt));
//!         if request.options.top_p().is_some() {
//!             encoded.warnings.push("`top_p` is ignored: the service does not support it".to_owned());
//!         }
//!         Ok(encoded)
//!     }
//!
//!     fn decoder(&self, _request: &Request) -> Box<dyn Decoder> {
//!         Box::new(LinesDecoder { started: false, done: false })
//!     }
//!
//!     fn error(&self, status: u16, body: &str) -> ProviderError {
//!         let kind = match status {
//!             401 | 403 => ProviderErrorKind::Auth,
//!             429 => ProviderErrorKind::RateLimit,
//!             500.. => ProviderErrorKind::Service,
//!             _ => ProviderErrorKind::InvalidRequest,
//!         };
//!         ProviderError::new(kind, body).with_status(status).with_body(body)
//!     }
//! }
//!
//! struct LinesDecoder {
//!     started: bool,
//!     done: bool,
//! }
//!
//! impl Decoder for LinesDecoder {
//!     fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
//!         let line: Value = serde_json::from_str(frame.data).map_err(|error| {
//!             let message = "a line of the response is not JSON";
//!             ProviderError::new(ProviderErrorKind::Decoding, message).with_source(error).with_body(frame.data)
//!         })?;
//!         if let Some(text) = line["text"].as_str() {
//!             if !self.started {
//!                 self.started = true;
//!                 deltas.push(Delta::Start { index: 0, block: BlockStart::Text });
//!             }
//!             deltas.push(Delta::Extend { index: 0, part: Part::Text(text.to_owned()) });
//!         }
//!         if line["done"] == true {
//!             self.done = true;
//!             deltas.push(Delta::stop(StopReason::Stop));
//!         }
//!         Ok(())
//!     }
//!
//!     fn is_done(&self) -> bool {
//!         self.done
//!     }
//!
//!     fn end(&mut self, _deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
//!         match self.done {
//!             true => Ok(()),
//!             false => Err(ProviderError::new(ProviderErrorKind::Truncated, "the stream ended before its last line")),
//!         }
//!     }
//! }
//!
//! let request = Request::prompt("Hello");
//! assert_eq!(Lines.encode(&request)?.body["prompt"], "Hello");
//!
//! let mut decoder = Lines.decoder(&request);
//! let mut deltas = Vec::new();
//! decoder.decode(Frame::new("", r#"{"text": "Hi."}"#), &mut deltas)?;
//! decoder.decode(Frame::new("", r#"{"done": true}"#), &mut deltas)?;
//! assert!(decoder.is_done());
//! assert_eq!(deltas.last(), Some(&Delta::stop(StopReason::Stop)));
//! # Ok::<(), ProviderError>(())
//! ```

#[cfg(feature = "test-util")]
pub use super::backend::conformance;
#[cfg(feature = "http")]
pub use super::http::framing::Framer;
pub use super::{
    backend::{
        Backend, BackendError, BackendEvent, BackendSession, Breach, Capabilities, EventStream,
        PermissionAnswer, PermissionKind, PermissionOption, PermissionRequest, SessionId, SessionOptions,
        SessionPosition, TurnPrompt, TurnResult,
    },
    context::RequestContext,
    delta::{BlockStart, Delta, MessageDelta, Part},
    dialect::{
        AnthropicMessages, CacheField, ChatCompletions, Decoder, Dialect, EffortWords, Encoded, Files, Frame,
        Framing, GoogleGemini, OllamaChat, OpenAiResponses, OutputSupport, ReasoningItems, ReasoningReturn,
        ThinkingField, ToolChoices, placeholder,
    },
};

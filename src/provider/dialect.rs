//! Wire formats: the JSON shapes and the stream framing of one API family.
//!
//! A wire format translates a [`Request`] into a JSON body, and the events of the streamed response into [`Delta`]s.
//! The translation is pure: it does no I/O and needs neither an address nor a key. The address and the key belong to an
//! endpoint (`provider::http::Endpoint`), because many services share a few wire formats.
//!
//! # Types
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
//! # Example
//!
//! This example is a small custom wire format. `Endpoint::custom("my-service", "https://llm.example.com", Lines)`
//! creates a provider that uses it.
//!
//! ```
//! use omni_agent::provider::{
//!     BlockStart, Delta, ProviderErrorKind, Part, ProviderError, Request, StopReason,
//!     dialect::{Decoder, Dialect, Encoded, Frame, Framing},
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

mod anthropic;
mod chat;
mod decoding;
mod encoding;
mod error;
mod gemini;
mod lenient;
mod names;
mod ollama;
mod output;
mod responses;
mod strict;
mod tool_schema;

pub use anthropic::AnthropicMessages;
pub use chat::{
    CacheField, ChatCompletions, Files, OutputSupport, ReasoningReturn, ThinkingField, ToolChoices,
};
#[cfg(feature = "http")]
pub(in crate::provider) use encoding::default_limit;
pub(in crate::provider) use encoding::mention;
pub use encoding::{EffortWords, placeholder};
#[cfg(feature = "http")]
pub(crate) use error::{is_error, with_wait};
pub use gemini::GoogleGemini;
pub use ollama::OllamaChat;
pub use responses::{OpenAiResponses, ReasoningItems};
use serde_json::{Map, Value};

use super::{Delta, ProviderError, Request};
use crate::setters::setters;

/// A wire format, which encodes requests and creates decoders for their responses.
pub trait Dialect: Send + Sync + 'static {
    /// Returns the name of the wire format. This name is the key of the wire format's entry in
    /// [`Message::provider_data`](crate::message::Message).
    fn name(&self) -> &'static str;

    /// Returns the path of the request, relative to the endpoint's base URL and version.
    fn path(&self, request: &Request) -> String;

    /// Returns the HTTP headers that the wire format requires with this body. The names of the headers are in lower
    /// case.
    ///
    /// If the user sets a header of the same name, the user's header replaces the wire format's header.
    /// `anthropic-beta` is an exception: this header is a list, so the wire format's value is added to the user's
    /// value.
    fn headers(&self, body: &Map<String, Value>) -> Vec<(&'static str, &'static str)> {
        let _ = body;
        Vec::new()
    }

    /// Returns how the events of a response are framed.
    fn framing(&self) -> Framing;

    /// Encodes the request as a JSON body. The same request always results in the same bytes.
    ///
    /// # Errors
    ///
    /// Returns an error if the request needs something that the wire format cannot express and that must not be
    /// ignored.
    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError>;

    /// Returns a decoder for the response to `request`.
    fn decoder(&self, request: &Request) -> Box<dyn Decoder>;

    /// Returns the error for an HTTP response with this status and body.
    fn error(&self, status: u16, body: &str) -> ProviderError;
}

/// How the bytes of a response are divided into events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON value per line.
    NdJson,
}

/// An encoded request: its JSON body, and warnings.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Encoded {
    /// The JSON body.
    pub body: Map<String, Value>,
    /// The texts of the warnings, one for each option that could not be honoured.
    pub warnings: Vec<String>,
}

impl Encoded {
    /// Creates an encoded request without warnings.
    pub fn new(body: Map<String, Value>) -> Self {
        Self { body, warnings: Vec::new() }
    }

    /// Sets a member of the body.
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.body.insert(key.to_owned(), value.into());
    }

    /// Adds a warning.
    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

setters!(Encoded: with_warnings(warnings: Vec<String>));

/// One event of a response, without its framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame<'a> {
    /// The name of the event. The name is empty if the framing has no names or the service sends no name.
    pub event: &'a str,
    /// The data of the event.
    pub data: &'a str,
}

impl<'a> Frame<'a> {
    /// Creates an event with this name and this data. The name may be empty.
    pub const fn new(event: &'a str, data: &'a str) -> Self {
        Self { event, data }
    }

    /// Returns the name that the service gave the event, or an empty string if the service gave no name. Server-sent
    /// events without a name are called `message`, and some services send this name explicitly. An event named
    /// `message` is therefore treated as an event without a name.
    pub fn name(&self) -> &'a str {
        if self.event == "message" { "" } else { self.event }
    }
}

/// Decodes one response, event by event.
pub trait Decoder: Send {
    /// Decodes `frame` and appends the resulting deltas to `deltas`.
    ///
    /// # Errors
    ///
    /// Returns an error if the frame violates the wire format or reports an error. In both cases, the response ends.
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError>;

    /// Returns whether the terminal event of the wire format was decoded. Nothing after the terminal event is read.
    fn is_done(&self) -> bool;

    /// Returns whether the response may end here, without a terminal event. If so, the endpoint waits only a few
    /// seconds for the rest of the body, such as usage, and then calls [`end`](Decoder::end). The default
    /// implementation always returns `false`.
    fn is_complete(&self) -> bool {
        false
    }

    /// Ends the response and appends its last deltas. Called when the body ends, or when the wait after a complete
    /// response ends.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Truncated`] if the terminal event of the wire format was not decoded and
    /// [`is_complete`](Decoder::is_complete) returns `false`.
    fn end(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError>;
}

//! Wire formats: the JSON shapes and the stream framing of one API family. The page for their authors is
//! [`custom`](super::custom).

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
pub(crate) use encoding::room;
pub use encoding::{EffortWords, placeholder};
#[cfg(feature = "http")]
pub(crate) use error::{is_error, is_unverified, with_wait};
pub use gemini::GoogleGemini;
pub use ollama::OllamaChat;
pub(in crate::provider) use responses::is_commentary;
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

    /// Returns whether the response probably ends here, without a terminal event. If so, the endpoint waits only a few
    /// seconds for the rest of the body, such as usage, and then calls [`end`](Decoder::end). If not, the endpoint waits
    /// for the limit between two chunks. The default implementation always returns `false`.
    fn is_complete(&self) -> bool {
        false
    }

    /// Ends the response and appends its last deltas. Called when the body ends, or when the wait for more of it ends.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Truncated`](super::ProviderErrorKind::Truncated) if the response is not complete.
    fn end(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError>;
}

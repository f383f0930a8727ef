//! Wire formats: pure translation between [`Request`]s and JSON bodies, and between wire events and
//! [`Delta`]s. A format knows nothing of addresses, keys and sockets; that is an endpoint's part, since many
//! services speak few formats.

mod alternatives;
mod anthropic;
mod blocks;
mod chat;
mod counts;
mod effort;
mod error;
mod gemini;
mod ids;
mod lenient;
mod names;
mod ollama;
mod openai;
mod output;
mod output_tool;
mod responses;
mod strays;
mod strict;
mod tame;
mod texts;
mod tool_schema;
mod unions;
mod words;
mod wrapping;

pub use anthropic::AnthropicMessages;
pub use chat::{
    CacheField, ChatCompletions, Files, MaxTokensField, ModelRules, OutputSupport, ReasoningReturn,
    SystemRole, ThinkingField, ToolChoices,
};
pub use effort::EffortWords;
#[cfg(feature = "http")]
pub(crate) use error::is_error;
pub use gemini::GoogleGemini;
pub use ollama::OllamaChat;
pub use responses::{OpenAiResponses, ReasoningItems};
use serde_json::{Map, Value};

use super::{Delta, ErrorKind, ProviderError, Request, UnsupportedAttachment};
use crate::message::Attachment;

/// A wire format.
pub trait Dialect: Send + Sync + 'static {
    /// The format's name, which keys what it keeps in [`Message::provider_data`](crate::message::Message).
    fn name(&self) -> &'static str;

    /// The path of the request, below the endpoint's base URL and version.
    fn path(&self, request: &Request) -> String;

    /// The HTTP headers that the format demands with this body, in lower case. One of the same name that the user sets
    /// takes the place of such a header; an `anthropic-beta` of the user's, which is a list, gets it added.
    fn headers(&self, body: &Map<String, Value>) -> Vec<(&'static str, &'static str)> {
        let _ = body;
        Vec::new()
    }

    /// How the answer's events are framed.
    fn framing(&self) -> Framing;

    /// The request's JSON body. The same request gives the same bytes.
    ///
    /// # Errors
    ///
    /// The request asks for what the format can't say, and that is not to be overlooked.
    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError>;

    /// A decoder for the answer to `request`.
    fn decoder(&self, request: &Request) -> Box<dyn Decoder>;

    /// The error that an answer with this status and body means.
    fn error(&self, status: u16, body: &str) -> ProviderError;
}

/// How the events of an answer are told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Server-sent events.
    Sse,
    /// One JSON value a line.
    NdJson,
}

/// A request's JSON body.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Encoded {
    /// The body.
    pub body: Map<String, Value>,
    /// What was asked for and could not be honoured, in words.
    pub warnings: Vec<String>,
}

/// One event of an answer, unframed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The event's name; empty where the framing has none or the service gives none.
    pub event: &'a str,
    /// Its data.
    pub data: &'a str,
}

impl<'a> Frame<'a> {
    /// The name that the service gave the event; empty if it gave none. Server-sent events without a name are called
    /// `message`, and some services write that name out.
    pub fn name(&self) -> &'a str {
        if self.event == "message" { "" } else { self.event }
    }
}

/// Decodes one answer, event by event.
pub trait Decoder: Send {
    /// Appends what `frame` means to `deltas`.
    ///
    /// # Errors
    ///
    /// The frame breaks the format, or tells of an error. The answer ends with that.
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError>;

    /// Whether the format's terminal event has been seen: nothing after it is read.
    fn is_done(&self) -> bool;

    /// Whether the answer may end here, without a terminal event. What follows, such as usage, is waited for only
    /// briefly; then [`end`](Decoder::end) is called. By default never.
    fn is_complete(&self) -> bool {
        false
    }

    /// The body has ended, or the wait after a complete answer. Appends the last deltas.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Truncated`] if the format's terminal event has not been seen.
    fn end(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError>;
}

/// What goes in place of an attachment that the format or the model can't take: a text that names it, or the
/// error that the request fails with, as its options say.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`], unless the options ask for a placeholder.
pub fn placeholder(request: &Request, attachment: &Attachment, why: &str) -> Result<String, ProviderError> {
    let name = attachment.name.as_deref().unwrap_or("unnamed");
    let media_type = &attachment.media_type;
    match request.options.unsupported_attachment.unwrap_or_default() {
        UnsupportedAttachment::Placeholder => {
            Ok(format!("[attachment {name} ({media_type}) left out: {why}]"))
        }
        UnsupportedAttachment::Error => Err(ProviderError::new(
            ErrorKind::Unsupported,
            format!(
                "attachment {name} ({media_type}): {why}; set Options::unsupported_attachment to send a placeholder"
            ),
        )),
    }
}

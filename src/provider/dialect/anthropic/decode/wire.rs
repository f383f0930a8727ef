//! The shapes of the events. They borrow from the frame if possible.

use std::{borrow::Cow, fmt, ops::Deref};

use serde::{Deserialize, Deserializer, de};
use serde_json::{Map, Value};

/// An event of any kind. The struct has the members of all kinds.
#[derive(Deserialize)]
pub(super) struct Event<'a> {
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: Str<'a>,
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) delta: Option<DeltaBody<'a>>,
    pub(super) content_block: Option<Value>,
    #[serde(borrow)]
    pub(super) message: Option<MessageStart<'a>>,
    /// The usage, read leniently, member by member. Unreadable usage never causes a response to fail.
    pub(super) usage: Option<Value>,
    pub(super) error: Option<Value>,
}

/// Parses an event from its JSON text.
pub(super) fn parse(data: &str) -> Option<Event<'_>> {
    // A struct with a derived `Deserialize` would accept an array too, so the text must begin with a brace.
    if data.starts_with('{') { serde_json::from_str(data).ok() } else { None }
}

impl Event<'_> {
    /// Returns whether the event contains, or may contain, the input of a tool use as a JSON object. Parsing such an
    /// input into a map would lose repeated keys.
    pub(super) fn has_whole_input(&self) -> bool {
        let has_input = |block: &Value| {
            let input = block.get("input").and_then(Value::as_object);
            block.get("type").is_some_and(|kind| kind == "tool_use") && input.is_some_and(|it| !it.is_empty())
        };
        let content = self.message.as_ref().and_then(|message| message.content.as_ref());
        let mut started = content.and_then(Value::as_array).into_iter().flatten();
        self.content_block.as_ref().is_some_and(has_input)
            || started.any(has_input)
            || &*self.kind == "message"
    }
}

/// The delta of a `content_block_delta` or a `message_delta`.
#[derive(Deserialize)]
pub(super) struct DeltaBody<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: Str<'a>,
    #[serde(borrow, default)]
    text: Str<'a>,
    #[serde(borrow, default)]
    partial_json: Str<'a>,
    #[serde(borrow, default)]
    thinking: Str<'a>,
    #[serde(borrow, default)]
    signature: Str<'a>,
    citation: Option<Value>,
    #[serde(borrow, default)]
    pub(super) stop_reason: Str<'a>,
    pub(super) stop_details: Option<Value>,
    pub(super) container: Option<Value>,
}

/// The content that a delta adds to its block.
pub(super) enum Body<'a> {
    Text(Str<'a>),
    Thinking(Str<'a>),
    Signature(Str<'a>),
    Input(Str<'a>),
    Citation(Value),
    Unknown,
}

impl<'a> DeltaBody<'a> {
    /// Returns the kind that the delta names, and the content that it adds.
    pub(super) fn into_parts(self) -> (Str<'a>, Body<'a>) {
        let body = match &*self.kind {
            "text_delta" => Body::Text(self.text),
            "thinking_delta" => Body::Thinking(self.thinking),
            "signature_delta" => Body::Signature(self.signature),
            "input_json_delta" => Body::Input(self.partial_json),
            "citations_delta" => self.citation.map_or(Body::Unknown, Body::Citation),
            _ => Body::Unknown,
        };
        (self.kind, body)
    }
}

#[derive(Deserialize)]
pub(super) struct MessageStart<'a> {
    #[serde(borrow, default)]
    pub(super) id: Str<'a>,
    #[serde(borrow, default)]
    pub(super) model: Str<'a>,
    pub(super) usage: Option<Value>,
    /// The complete blocks that the start event already contains.
    pub(super) content: Option<Value>,
    #[serde(borrow, default)]
    pub(super) stop_reason: Str<'a>,
    pub(super) stop_details: Option<Value>,
    pub(super) container: Option<Value>,
}

/// A string or null, borrowed unless it has escapes.
#[derive(Default)]
pub(super) struct Str<'a>(Cow<'a, str>);

impl Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl From<Str<'_>> for String {
    fn from(text: Str<'_>) -> Self {
        text.0.into_owned()
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Str<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or null")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Owned(text.to_owned())))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Str<'de>, E> {
                Ok(Str(Cow::Owned(text)))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Str<'de>, E> {
                Ok(Str::default())
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

/// Returns whether the wire format defines the event.
pub(super) fn is_known(kind: &str) -> bool {
    matches!(
        kind,
        "message_start"
            | "content_block_start"
            | "content_block_delta"
            | "content_block_stop"
            | "message_delta"
            | "message_stop"
            | "ping"
    )
}

/// Returns whether the delta names a kind that this decoder does not know.
pub(super) fn is_unknown_delta(delta: &Map<String, Value>) -> bool {
    let known = ["text_delta", "thinking_delta", "signature_delta", "input_json_delta", "citations_delta"];
    delta.get("type").and_then(Value::as_str).is_some_and(|kind| !kind.is_empty() && !known.contains(&kind))
}

/// Returns whether a tool use was made by code and not by the model itself. The caller of such a use has to be sent
/// back to the service.
pub(super) fn is_foreign_caller(caller: &Value) -> bool {
    caller.get("type").and_then(Value::as_str).is_some_and(|kind| kind != "direct")
}

/// Returns the JSON text of the input in the start of a tool use. An empty input is ignored, because it is the usual
/// placeholder for an input that arrives in deltas.
pub(super) fn whole_input(input: Option<&Value>) -> Option<String> {
    match input? {
        Value::Null => None,
        Value::Object(members) if members.is_empty() => None,
        Value::String(text) => (!text.trim().is_empty()).then(|| text.clone()),
        whole => Some(whole.to_string()),
    }
}

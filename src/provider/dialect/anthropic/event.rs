//! The events of the stream, and what their members mean.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::provider::dialect::lenient::StrictText;

/// An event of any kind, borrowed from the frame if possible. The struct has the members of all kinds.
#[derive(Deserialize)]
pub(super) struct AnthropicEvent<'a> {
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: StrictText<'a>,
    pub(super) index: Option<u64>,
    #[serde(borrow)]
    pub(super) delta: Option<AnthropicEventDelta<'a>>,
    pub(super) content_block: Option<Value>,
    #[serde(borrow)]
    pub(super) message: Option<AnthropicMessageStart<'a>>,
    /// The usage, read leniently, member by member. Unreadable usage never causes a response to fail.
    pub(super) usage: Option<Value>,
    pub(super) error: Option<Value>,
}

impl AnthropicEvent<'_> {
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
pub(super) struct AnthropicEventDelta<'a> {
    #[serde(rename = "type", borrow, default)]
    pub(super) kind: StrictText<'a>,
    #[serde(borrow, default)]
    pub(super) text: StrictText<'a>,
    #[serde(borrow, default)]
    pub(super) partial_json: StrictText<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: StrictText<'a>,
    #[serde(borrow, default)]
    pub(super) signature: StrictText<'a>,
    pub(super) citation: Option<Value>,
    #[serde(borrow, default)]
    pub(super) stop_reason: StrictText<'a>,
    pub(super) stop_details: Option<Value>,
    pub(super) container: Option<Value>,
}

/// The content that a delta adds to its block.
pub(super) enum AnthropicDeltaContent<'a> {
    Text(StrictText<'a>),
    Thinking(StrictText<'a>),
    Signature(StrictText<'a>),
    Input(StrictText<'a>),
    Citation(Value),
    Unknown,
}

impl<'a> AnthropicEventDelta<'a> {
    /// Returns the kind that the delta names, and the content that it adds.
    pub(super) fn into_parts(self) -> (StrictText<'a>, AnthropicDeltaContent<'a>) {
        let body = match &*self.kind {
            "text_delta" => AnthropicDeltaContent::Text(self.text),
            "thinking_delta" => AnthropicDeltaContent::Thinking(self.thinking),
            "signature_delta" => AnthropicDeltaContent::Signature(self.signature),
            "input_json_delta" => AnthropicDeltaContent::Input(self.partial_json),
            "citations_delta" => {
                self.citation.map_or(AnthropicDeltaContent::Unknown, AnthropicDeltaContent::Citation)
            }
            _ => AnthropicDeltaContent::Unknown,
        };
        (self.kind, body)
    }
}

/// The member that shows whether an object is a message.
#[derive(Deserialize)]
pub(super) struct AnthropicMessageProbe<'a> {
    #[serde(borrow, default)]
    pub(super) role: StrictText<'a>,
}

#[derive(Deserialize)]
pub(super) struct AnthropicMessageStart<'a> {
    #[serde(borrow, default)]
    pub(super) id: StrictText<'a>,
    #[serde(borrow, default)]
    pub(super) model: StrictText<'a>,
    pub(super) usage: Option<Value>,
    /// The complete blocks that the start event already contains.
    pub(super) content: Option<Value>,
    #[serde(borrow, default)]
    pub(super) stop_reason: StrictText<'a>,
    pub(super) stop_details: Option<Value>,
    pub(super) container: Option<Value>,
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

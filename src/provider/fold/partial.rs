use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::message::{Content, Text, Thinking};

/// A block that is not complete yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PartialBlock {
    /// The block so far. The input of a tool use is an empty object until the message is finished.
    pub content: Content,
    /// The part of the JSON text of a tool use's input that has arrived so far.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// Whether a delta has ended the block.
    pub ended: bool,
}

impl PartialBlock {
    pub(super) fn new(content: Content) -> Self {
        Self { content, input: String::new(), ended: false }
    }

    pub(super) fn weight(&self) -> usize {
        self.content.weight() + self.input.len()
    }

    /// Returns the block of a response that has ended. If the response may have been truncated in this block, a missing
    /// input is not treated as an empty input.
    pub(super) fn finish(self, cut: bool) -> Content {
        let mut tool_use = match self.content {
            Content::ToolUse(tool_use) => tool_use,
            mut other => {
                if let Content::Text(Text { text, .. }) | Content::Thinking(Thinking { text, .. }) =
                    &mut other
                {
                    text.shrink_to_fit();
                }
                return other;
            }
        };
        if cut || !is_blank(&self.input) {
            match parse_input(&self.input) {
                Some(input) => tool_use.input = Value::Object(input),
                None => tool_use.malformed = Some(self.input),
            }
        }
        tool_use.into()
    }

    /// Returns the final form of a block that the stream has ended.
    pub(crate) fn finished(self) -> Content {
        self.finish(false)
    }

    /// Returns the part of the block that can be kept if the stream breaks off here.
    pub(crate) fn salvage(mut self) -> Option<Content> {
        let ended = self.ended;
        let keep = match &mut self.content {
            Content::Text(text) => {
                if !ended {
                    // The signature may be incomplete, and services reject incomplete signatures. Text without a
                    // signature is valid.
                    text.signature = None;
                }
                !is_blank(&text.text)
            }
            Content::Thinking(thinking) => ended && thinking.is_signed(),
            // Nothing can follow a complete JSON object, so an input that can be parsed is complete.
            Content::ToolUse(tool_use) => {
                let signature_is_whole = ended || tool_use.signature.is_none();
                let no_input = ended && is_blank(&self.input);
                signature_is_whole && (no_input || parse_input(&self.input).is_some())
            }
            Content::ProviderItem(_) => ended,
            Content::Attachment(_) | Content::ToolResult(_) => true,
        };
        keep.then(|| self.finish(false))
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Parses `json` as an object. Rejects repeated keys, since all but one of their values would be lost. Also rejects
/// nesting deeper than [`MAX_DEPTH`](super::Fold::MAX_DEPTH).
fn parse_input(json: &str) -> Option<Map<String, Value>> {
    let input = Value::Object(serde_json::from_str(json).ok()?);
    let whole = members(&input) == members_written(json) && super::is_shallow(&input);
    match input {
        Value::Object(input) if whole => Some(input),
        _ => None,
    }
}

/// Counts the members of all objects in `value`.
fn members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Object(map) => map.len() + map.values().map(members).sum::<usize>(),
        _ => 0,
    }
}

/// Counts the members of all objects in the valid JSON text `json`, including members with repeated keys. Each member
/// has exactly one colon outside strings.
fn members_written(json: &str) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b':' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

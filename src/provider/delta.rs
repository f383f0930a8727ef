use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ProviderError;
use crate::message::{Attachment, ProviderItem, StopReason, ToolUseId, Usage, map_weight};
use crate::setters::setters;

/// One piece of a response, as it is streamed. Deltas have the same form for every wire format.
///
/// `index` is the block's index in the message. Blocks start in the order of their indexes: 0, 1, 2, …. Blocks that
/// have started are extended in any order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Delta {
    /// A block starts.
    Start {
        /// The index of the block, which is the number of blocks that have started before.
        index: usize,
        /// The kind of the block.
        block: BlockStart,
    },
    /// Text or data was appended to a block.
    Extend {
        /// The index of the block.
        index: usize,
        /// The appended part.
        part: Part,
    },
    /// A block is complete. This delta is optional, since the end of the message completes all blocks. However, if a
    /// response breaks off, thinking and provider items are kept only if this delta has ended them.
    End {
        /// The index of the block.
        index: usize,
    },
    /// Data about the whole message arrived.
    Message(Box<MessageDelta>),
    /// The blocks so far are void, and the answer starts again with block 0. A [`RetryPolicy`](super::RetryPolicy)
    /// emits this delta if the request failed before its first content and is sent again. The delay begins with this
    /// delta, and the request is sent when the stream is polled after the delay. A wire format emits this delta, with a
    /// delay of zero, if the service itself starts its answer again, for example because another model takes over from a
    /// model that declined.
    Retry {
        /// The failure of the attempt.
        error: Box<ProviderError>,
        /// The time until the request is sent again. Zero if the service itself starts its answer again.
        delay: Duration,
    },
}

impl Delta {
    /// Returns message data that contains only a stop reason.
    pub fn stop(reason: StopReason) -> Self {
        Self::Message(Box::new(MessageDelta { stop_reason: Some(reason), ..MessageDelta::default() }))
    }

    /// Returns message data that contains only a warning.
    pub(in crate::provider) fn warning(text: impl Into<String>) -> Self {
        Self::Message(Box::new(MessageDelta { warnings: vec![text.into()], ..MessageDelta::default() }))
    }

    /// Returns whether this delta contains content. After the first content, a request is not repeated any more.
    pub fn is_content(&self) -> bool {
        !matches!(self, Self::Message(_) | Self::Retry { .. })
    }
}

/// The kind of a block that starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BlockStart {
    /// A text block.
    Text,
    /// A thinking block.
    Thinking,
    /// A tool use, whose input follows.
    ToolUse {
        /// The id of the tool use. If it is empty, the message gets a generated id.
        id: ToolUseId,
        /// The tool's name.
        name: String,
    },
    /// A complete file that the model has generated.
    Attachment(Attachment),
    /// A provider item.
    ProviderItem(ProviderItem),
}

/// The part by which a block is extended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// More text of a text block or a thinking block.
    Text(String),
    /// More of the JSON text of a tool use's input.
    Input(String),
    /// More of the signature of a text block, a thinking block or a tool use.
    Signature(String),
    /// More of the encrypted payload of a thinking block.
    Redacted(String),
    /// A newer value of a provider item, which replaces the previous one.
    Item(Value),
}

impl Part {
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "text",
            Self::Input(_) => "tool input",
            Self::Signature(_) => "a signature",
            Self::Redacted(_) => "redacted thinking",
            Self::Item(_) => "an item's value",
        }
    }
}

/// Data of the whole message. Values that are absent stay unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageDelta {
    /// The model that responded, as the service names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The reason why the response ended. If several deltas have a reason, the last one counts. A response without a
    /// reason is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// The complete usage of this request so far. It replaces an earlier value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The size of the conversation after the response, in tokens, if the usage does not show it. While a service runs its
    /// own tools, the usage is the sum of several passes over the conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
    /// Data that the provider stores with the message, one entry per wire format. An entry replaces an earlier entry
    /// with the same name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_data: Map<String, Value>,
    /// Warnings about parts of the request that could not be honoured. They are added to earlier warnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether the service enforces the output schema. Once true, this stays true. While it is false, the requested
    /// value may be surrounded by other text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_enforced: bool,
}

setters! {
    MessageDelta: with_model(model: some String), with_stop_reason(stop_reason: some StopReason), with_usage(usage: some Usage),
    with_context(context: some u32), with_provider_data(provider_data: Map<String, Value>), with_warnings(warnings: Vec<String>), with_output_enforced(output_enforced: bool)
}

impl MessageDelta {
    /// Returns the approximate size of the data in bytes.
    pub(super) fn weight(&self) -> usize {
        self.model.as_ref().map_or(0, String::len)
            + self.stop_reason.as_ref().map_or(0, StopReason::weight)
            + map_weight(&self.provider_data)
            + self.warnings.iter().map(|warning| 64 + warning.len()).sum::<usize>()
    }
}

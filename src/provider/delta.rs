use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ProviderError;
use crate::message::{Attachment, ProviderItem, ToolUseId, Usage, map_weight};
use crate::setters::setters;

/// One step of an answer as it arrives, the same for every wire format.
///
/// `index` is the block's place in the message: blocks start at 0, 1, 2… in order, and are extended in any
/// order after that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Delta {
    /// A block begins.
    Start {
        /// The number of blocks so far.
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
    /// A block is complete. Optional, since the end of the message completes all blocks; but of an answer
    /// that breaks off, thinking and opaque items are kept only if they have ended.
    End {
        /// The index of the block.
        index: usize,
    },
    /// Data of the message as a whole.
    Message(Box<MessageDelta>),
    /// The request failed before it brought content, and is sent again after a delay. A
    /// [`RetryPolicy`](super::RetryPolicy) reports it; a provider does not.
    Retry {
        /// The failure of the attempt.
        error: Box<ProviderError>,
        /// The time until the request is sent again.
        delay: Duration,
    },
}

impl Delta {
    /// Message data that says only why the answer ended.
    pub fn stop(reason: StopReason) -> Self {
        Self::Message(Box::new(MessageDelta { stop_reason: Some(reason), ..MessageDelta::default() }))
    }

    /// Whether this brings content, so that the request can't be repeated unseen any more.
    pub fn is_content(&self) -> bool {
        !matches!(self, Self::Message(_) | Self::Retry { .. })
    }
}

/// What begins.
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
        /// Its id; made by the decoder where the service gives none.
        id: ToolUseId,
        /// The tool's name.
        name: String,
    },
    /// A file that the model made, complete.
    Attachment(Attachment),
    /// An opaque item.
    ProviderItem(ProviderItem),
}

/// What a block grows by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// More text, of a text or a thinking block.
    Text(String),
    /// More of the JSON text of a tool use's input.
    Input(String),
    /// More of the signature of a text block, a thinking block or a tool use.
    Signature(String),
    /// More of the encrypted payload of a thinking block.
    Redacted(String),
    /// An opaque item's newer value, in place of the older.
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

/// Data of the message as a whole; what is absent stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageDelta {
    /// The model that answers, as the service names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Why the answer ended. The last one counts; an answer without one is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<StopReason>,
    /// All usage of this request so far, in place of what was told before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// What the provider keeps with the message, one entry a format; an entry replaces the one of its name
    /// that was told before.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_data: Map<String, Value>,
    /// What was asked for and could not be honoured, in words; added to what was told before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Whether the service itself holds the answer to the output schema. Once told, it stays. Where it is not told, the
    /// value may stand among other words.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub output_enforced: bool,
}

setters! {
    MessageDelta: with_model(model: some String), with_stop_reason(stop_reason: some StopReason), with_usage(usage: some Usage),
    with_provider_data(provider_data: Map<String, Value>), with_warnings(warnings: Vec<String>), with_output_enforced(output_enforced: bool)
}

impl MessageDelta {
    /// Approximate bytes of payload.
    pub(super) fn weight(&self) -> usize {
        self.model.as_ref().map_or(0, String::len)
            + self.stop_reason.as_ref().map_or(0, StopReason::weight)
            + map_weight(&self.provider_data)
            + self.warnings.iter().map(|warning| 64 + warning.len()).sum::<usize>()
    }
}

/// Why an answer, or a turn, ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The model was done.
    Stop,
    /// The model wrote one of the stop sequences.
    StopSequence,
    /// The output limit was reached.
    Length,
    /// The model's context was full.
    ContextLength,
    /// The model wants tools run. On a turn: it uses a tool that the application has to run.
    ToolUse,
    /// The model or the service declined.
    Refusal,
    /// The service paused a long answer and wants it sent back to go on.
    Pause,
    /// The limit of requests for one prompt was reached.
    MaxSteps,
    /// The turn was interrupted; what was there is kept.
    Interrupted,
    /// The turn was cancelled; what was there is discarded.
    Cancelled,
    /// What else a format knows, in its own word.
    Other(String),
}

impl StopReason {
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Other(word) => word.len(),
            _ => 0,
        }
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stop => "stop",
            Self::StopSequence => "stop_sequence",
            Self::Length => "length",
            Self::ContextLength => "context_length",
            Self::ToolUse => "tool_use",
            Self::Refusal => "refusal",
            Self::Pause => "pause",
            Self::MaxSteps => "max_steps",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
            Self::Other(word) => word,
        })
    }
}

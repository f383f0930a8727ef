use std::fmt;

use serde::{Deserialize, Serialize};

/// The reason why a response or a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StopReason {
    /// The model has finished.
    Stop,
    /// The model wrote one of the stop sequences.
    StopSequence,
    /// The output limit was reached.
    Length,
    /// The model's context window was full.
    ContextLength,
    /// The model requests tool uses. For a turn: the model requests a tool that the application has to run.
    ToolUse,
    /// The model or the service declined to respond.
    Refusal,
    /// The service paused a long response. If the response is sent back, the service continues it.
    Pause,
    /// The limit of requests for one prompt was reached.
    MaxSteps,
    /// A budget did not allow another request. The content so far is kept.
    Budget,
    /// The turn was interrupted. Its content so far is kept.
    Interrupted,
    /// The turn was cancelled. Its content is discarded.
    Cancelled,
    /// The turn was restarted too often without progress. Its completed steps are kept, if there are any.
    Abandoned,
    /// The run failed. Its completed steps are kept, if there are any.
    Failed,
    /// Another reason, in the words of the wire format.
    Other(String),
}

impl StopReason {
    pub(crate) fn weight(&self) -> usize {
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
            Self::Budget => "budget",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
            Self::Abandoned => "abandoned",
            Self::Failed => "failed",
            Self::Other(word) => word,
        })
    }
}

use serde::{Deserialize, Serialize};

use super::{Prompt, prompt::is_default};
use crate::{message::id::NodeId, setters::setters};

/// The place in the conversation where a run starts.
///
/// Only the conversation of a [session](crate::session) has other places than [`Head`](RunAt::Head). At these places,
/// the session must be idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunAt {
    /// The end of the path. If a run is active, the prompt is staged.
    #[default]
    Head,
    /// The user message with this id gets another response. The prompt contains only settings for the run.
    Again(NodeId),
    /// The prompt replaces the user message with this id, on a new branch.
    Instead(NodeId),
    /// The prompt follows the last message of a turn, which has this id. Without an id, the prompt is a new root.
    Below(Option<NodeId>),
}

/// The description of a run as data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RunSpec {
    /// The place where the run starts: the end of the path by default.
    #[serde(default, skip_serializing_if = "is_default")]
    pub at: RunAt,
    /// The prompt.
    #[serde(default, skip_serializing_if = "is_default")]
    pub prompt: Prompt,
    /// Whether the caller waits for the response of the run. Otherwise, the caller waits only until the prompt is
    /// accepted.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wait: bool,
}

setters!(RunSpec: with_wait(wait: bool));

impl RunSpec {
    /// Describes a run that starts at this place with this prompt.
    pub fn new(at: RunAt, prompt: impl Into<Prompt>) -> Self {
        Self { at, prompt: prompt.into(), wait: false }
    }
}

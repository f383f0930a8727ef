use serde_json::Value;

use super::{BackendError, PermissionRequest};
use crate::{
    message::{ToolResult, ToolUse, ToolUseId, Usage},
    provider::StopReason,
};

/// Something that happens in a turn.
///
/// Tool uses are the backend's own. An id is used once in a turn; updates and the result come after the use, and nothing
/// about it after the result. A tool use may stay without a result, in a turn that was cut short say.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackendEvent {
    /// More of the answer's text.
    Text(String),
    /// More of what the model thinks.
    Thinking(String),
    /// The backend runs a tool, or is about to.
    ToolUse(ToolUse),
    /// News of a tool that runs, in the backend's own form. It takes the place of the news before.
    ToolUpdate {
        /// Which tool use.
        id: ToolUseId,
        /// The news.
        data: Value,
    },
    /// What the tool gave the backend.
    ToolResult(ToolResult),
    /// What the backend means to do, whole, in the backend's own form.
    Plan(Value),
    /// Something about the session in the backend's own form: its mode, the commands it knows. It takes the place of what was
    /// told under this name in this turn.
    Status {
        /// What it is about.
        name: String,
        /// The status.
        data: Value,
    },
    /// The backend asks whether it may run a tool, and waits. Once at a time for each tool use, and for 64 at once.
    Permission(PermissionRequest),
    /// All that the turn has used so far.
    Usage(Usage),
    /// The turn is over. Terminal.
    Result(TurnResult),
    /// The turn has failed. Terminal.
    Error(BackendError),
}

impl BackendEvent {
    /// Whether this ends the turn.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Result(_) | Self::Error(_))
    }
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TurnResult {
    /// Why it ended. [`StopReason::ToolUse`] and [`StopReason::Pause`], which leave it to the agent to go on, are taken for
    /// [`StopReason::Stop`].
    pub stop_reason: StopReason,
    /// The model that answered, if the backend says.
    pub model: Option<String>,
    /// What the prompt asked for and the backend could not honour, in words.
    pub warnings: Vec<String>,
    /// Whatever else the backend told with the end, for [`BackendSession::update`](super::BackendSession::update).
    pub data: Value,
}

impl TurnResult {
    /// A turn that ended for this reason.
    pub fn new(stop_reason: StopReason) -> Self {
        Self { stop_reason, model: None, warnings: Vec::new(), data: Value::Null }
    }

    /// The same result with the model that answered.
    pub fn with_model(mut self, model: impl Into<String>) -> Self {
        self.model = Some(model.into());
        self
    }

    /// The same result with one more warning.
    pub fn with_warning(mut self, warning: impl Into<String>) -> Self {
        self.warnings.push(warning.into());
        self
    }

    /// The same result with what else the backend told.
    pub fn with_data(mut self, data: Value) -> Self {
        self.data = data;
        self
    }
}

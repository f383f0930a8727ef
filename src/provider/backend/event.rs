use serde_json::Value;

use super::{BackendError, PermissionRequest};
use crate::{
    message::{ToolResult, ToolUse, ToolUseId, Usage},
    provider::StopReason,
};

/// An event of a turn.
///
/// Each tool use is one of the backend's own tools, and its id is used only once in a turn. The updates and the result
/// of a tool use follow the tool use itself. After the result, no event is about this tool use. A tool use may have no
/// result, for example in a turn that was cut short.
#[derive(Debug)]
#[non_exhaustive]
pub enum BackendEvent {
    /// A piece of the response's text.
    Text(String),
    /// A piece of the model's thinking.
    Thinking(String),
    /// The backend runs a tool, or is about to run it.
    ToolUse(ToolUse),
    /// A progress report of a running tool, in the backend's own form. It replaces the previous report.
    ToolUpdate {
        /// The id of the tool use.
        id: ToolUseId,
        /// The report.
        data: Value,
    },
    /// The result of a tool, as the backend received it.
    ToolResult(ToolResult),
    /// The backend's complete plan, in the backend's own form.
    Plan(Value),
    /// A status of the session in the backend's own form, such as its mode or its commands. It replaces the previous
    /// status of the same name in this turn.
    Status {
        /// The name of the status.
        name: String,
        /// The status.
        data: Value,
    },
    /// The backend asks for permission to run a tool, and waits. It may have one open request for each tool use, and at
    /// most 64 open requests in total.
    Permission(PermissionRequest),
    /// The total usage of the turn so far.
    Usage(Usage),
    /// The turn is over. This event is terminal.
    Result(TurnResult),
    /// The turn has failed. This event is terminal.
    Error(BackendError),
}

impl BackendEvent {
    /// Returns whether this event ends the turn.
    pub fn is_terminal(&self) -> bool {
        matches!(self, Self::Result(_) | Self::Error(_))
    }
}

/// The result of a turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TurnResult {
    /// The reason why the turn ended. [`StopReason::ToolUse`] and [`StopReason::Pause`] count as [`StopReason::Stop`],
    /// because they would require the agent to continue.
    pub stop_reason: StopReason,
    /// The model that answered, if the backend reports it.
    pub model: Option<String>,
    /// Warnings about parts of the prompt that the backend could not honour.
    pub warnings: Vec<String>,
    /// Other data that arrived with the end of the turn, for [`BackendSession::update`](super::BackendSession::update).
    pub data: Value,
}

impl TurnResult {
    /// Creates the result of a turn that ended for this reason.
    pub fn new(stop_reason: StopReason) -> Self {
        Self { stop_reason, model: None, warnings: Vec::new(), data: Value::Null }
    }

    crate::setters::setters! {
        /// Returns the same result with the model that answered.
        pub fn with_model(self, model: impl Into<String>) { self.model = Some(model.into()) }

        /// Returns the same result with one more warning.
        pub fn with_warning(self, warning: impl Into<String>) { self.warnings.push(warning.into()) }

        /// Returns the same result with other data from the backend.
        pub fn with_data(self, data: Value) { self.data = data }
    }
}

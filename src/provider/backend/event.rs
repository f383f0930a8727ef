use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use super::BackendError;
use crate::{
    message::{ToolResult, ToolUse, ToolUseId, Usage},
    provider::StopReason,
    tool::Decision,
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
    /// The input of a tool use that became known only after the tool use itself. It replaces the input.
    ToolInput {
        /// The id of the tool use.
        id: ToolUseId,
        /// The input.
        input: Value,
    },
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

/// A backend's request for permission to run a tool.
///
/// An agent passes the request to `handle_tool_use`, which may pause. A decision to execute allows the tool, and a
/// decision to reject refuses it. The options that the backend offers are in the opaque item of the tool use. To choose
/// one of these options, provide its id as the tool's result.
#[derive(Debug)]
#[non_exhaustive]
pub struct PermissionRequest {
    /// The tool use to be allowed. The request may arrive before the event of the tool use.
    pub tool_use: ToolUse,
    /// The options to choose from, if the backend offers more than allowing and rejecting.
    pub options: Vec<PermissionOption>,
    answer: oneshot::Sender<PermissionAnswer>,
}

/// An option that a backend offers as an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PermissionOption {
    /// The id with which an answer chooses the option.
    pub id: String,
    /// The name of the option, for people to read.
    pub name: String,
    /// The meaning of the option.
    pub kind: PermissionKind,
}

impl PermissionOption {
    /// Creates an option.
    pub fn new(id: impl Into<String>, name: impl Into<String>, kind: PermissionKind) -> Self {
        Self { id: id.into(), name: name.into(), kind }
    }
}

/// The meaning of a permission option. These are the kinds that the Agent Client Protocol defines
/// (<https://agentclientprotocol.com/protocol/tool-calls>, `PermissionOptionKind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PermissionKind {
    /// Allows the tool this time.
    AllowOnce,
    /// Allows the tool from now on.
    AllowAlways,
    /// Rejects the tool this time.
    RejectOnce,
    /// Rejects the tool from now on.
    RejectAlways,
}

/// The answer to a request for permission.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PermissionAnswer {
    /// Allows the tool this time.
    Allow,
    /// Allows the tool with this input instead of the requested one. Only for a backend with
    /// [`Capabilities::edits`](super::Capabilities::edits).
    AllowWith(Value),
    /// Rejects the tool, for this reason.
    Reject(String),
    /// Chooses the option with this id.
    Choose(String),
}

impl PermissionRequest {
    /// Creates a request and the receiver of its answer. If the receiver reports that the request was dropped without
    /// an answer, the turn was cancelled. To withdraw the request, drop the receiver.
    pub fn new(
        tool_use: ToolUse,
        options: impl IntoIterator<Item = PermissionOption>,
    ) -> (Self, oneshot::Receiver<PermissionAnswer>) {
        let (answer, answered) = oneshot::channel();
        (Self { tool_use, options: options.into_iter().collect(), answer }, answered)
    }

    /// Answers the request.
    pub fn answer(self, answer: PermissionAnswer) {
        // If the request was withdrawn, nobody needs the answer.
        let _ = self.answer.send(answer);
    }

    /// Completes when the backend has withdrawn the request.
    pub(super) async fn withdrawn(&mut self) {
        self.answer.closed().await;
    }

    /// Converts the agent's decision to an answer.
    pub(super) fn read(&self, decision: Decision, edits: bool) -> PermissionAnswer {
        match decision {
            Decision::Execute => PermissionAnswer::Allow,
            Decision::ExecuteWith(input) if edits => PermissionAnswer::AllowWith(input),
            Decision::ExecuteWith(_) => PermissionAnswer::Reject(
                "it was allowed with another input, which this backend does not support".into(),
            ),
            Decision::Reject(reason) => PermissionAnswer::Reject(reason),
            Decision::Provide(result) => {
                let text = result.text();
                if self.options.iter().any(|option| option.id == text) {
                    PermissionAnswer::Choose(text)
                } else {
                    PermissionAnswer::Reject(text)
                }
            }
        }
    }
}

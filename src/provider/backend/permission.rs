use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{message::ToolUse, tool::Decision};

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

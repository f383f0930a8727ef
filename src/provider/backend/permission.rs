use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{message::ToolUse, tool::Decision};

/// The backend asks whether it may run a tool.
///
/// In an agent this is a question to `handle_tool_use`, which may pause. The options show in the opaque item of the tool
/// use; to choose one of them by its id, provide it as the tool's result. Executing allows, rejecting rejects.
#[derive(Debug)]
pub struct PermissionRequest {
    /// What it wants to run. It may come before the event of the tool use.
    pub tool_use: ToolUse,
    /// What can be chosen, if the backend leaves more than yes and no.
    pub options: Vec<PermissionOption>,
    answer: oneshot::Sender<PermissionAnswer>,
}

/// One of the answers that a backend offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermissionOption {
    /// Names it in the answer.
    pub id: String,
    /// What a person reads.
    pub name: String,
    /// What it means.
    pub kind: PermissionKind,
}

impl PermissionOption {
    /// An option.
    pub fn new(id: impl Into<String>, name: impl Into<String>, kind: PermissionKind) -> Self {
        Self { id: id.into(), name: name.into(), kind }
    }
}

/// What an option means. These are the kinds of the Agent Client Protocol
/// (<https://agentclientprotocol.com/protocol/tool-calls>, `PermissionOptionKind`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum PermissionKind {
    /// This time.
    AllowOnce,
    /// From now on.
    AllowAlways,
    /// Not this time.
    RejectOnce,
    /// Never.
    RejectAlways,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum PermissionAnswer {
    /// Run it, this time.
    Allow,
    /// Run it with this input instead. Only for a backend with [`Capabilities::edits`](super::Capabilities::edits).
    AllowWith(Value),
    /// Don't run it, for this reason.
    Reject(String),
    /// The option of this id.
    Choose(String),
}

impl PermissionRequest {
    /// A request, and where its answer comes out. An answer that never comes, because its sender was dropped, means that the
    /// turn was cancelled. Drop the receiver to take the request back.
    pub fn new(
        tool_use: ToolUse,
        options: impl IntoIterator<Item = PermissionOption>,
    ) -> (Self, oneshot::Receiver<PermissionAnswer>) {
        let (answer, answered) = oneshot::channel();
        (Self { tool_use, options: options.into_iter().collect(), answer }, answered)
    }

    /// Answers it.
    pub fn answer(self, answer: PermissionAnswer) {
        // Who took the request back does not want the answer.
        let _ = self.answer.send(answer);
    }

    /// Done when the backend has taken the request back.
    pub(super) async fn withdrawn(&mut self) {
        self.answer.closed().await;
    }

    /// What the agent's decision means here.
    pub(super) fn read(&self, decision: Decision, edits: bool) -> PermissionAnswer {
        match decision {
            Decision::Execute => PermissionAnswer::Allow,
            Decision::ExecuteWith(input) if edits => PermissionAnswer::AllowWith(input),
            Decision::ExecuteWith(_) => PermissionAnswer::Reject(
                "it was allowed with another input, which this backend can't do".into(),
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

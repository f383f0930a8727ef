use std::{sync::Arc, time::Duration};

use crate::{
    agent::{AgentError, Status},
    provider::ProviderError,
    run::{PromptId, Response},
    store::StoreError,
    subscription::EndReason,
    tree::{NodeId, TreeError},
};

/// An operation on a session failed. Unless the variant states otherwise, nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session has ended, for this reason.
    #[error("the session has ended: {0}")]
    Ended(EndReason),
    /// The operation requires an idle session.
    #[error("the session is {0:?}; wait until it is idle, or cancel")]
    Busy(Status),
    /// The tree has no node with this id.
    #[error("the tree has no node {node}; `Session::tree` returns the existing nodes")]
    UnknownNode {
        /// The id that was given to the operation.
        node: NodeId,
    },
    /// The node is an assistant message, but `regenerate` and `edit` need a user message.
    #[error("node {node} is an assistant message; give the user message to respond to again")]
    NotUser {
        /// The id that was given.
        node: NodeId,
    },
    /// The node is a user message, but `branch` needs an assistant message.
    #[error(
        "node {node} is a user message; give the assistant message to continue from, or regenerate this one"
    )]
    NotAssistant {
        /// The id that was given.
        node: NodeId,
    },
    /// The node has tool results, so it is in the middle of a turn. `regenerate` and `edit` can't start there.
    #[error("node {node} has tool results; give the user message that started the turn")]
    ToolResults {
        /// The id that was given.
        node: NodeId,
    },
    /// The node has open tool uses that a prompt can't answer, so `branch` can't start below it.
    #[error("node {node} has open tool uses; give an assistant message without open tool uses")]
    OpenToolUses {
        /// The id that was given.
        node: NodeId,
    },
    /// The path would end at a prompt without an answer, because its answer was erased.
    #[error("node {node} is a prompt without an answer; regenerate it, or navigate to another node")]
    Unanswered {
        /// The prompt.
        node: NodeId,
    },
    /// No prompt with this id is known, so it has no outcome.
    #[error(
        "no prompt with the id {id} is known, because it was not accepted, was returned unused, or is older than the \
         last 32 prompts with ids; if it was not accepted, send it"
    )]
    UnknownPrompt {
        /// The id that was given to the operation.
        id: PromptId,
    },
    /// The agent was given a history. A session's messages, new or stored, come only from the store.
    #[error(
        "a session can't start with a given history, because its messages come from the store; remove the history, or \
         import it into the store first"
    )]
    InitialHistory,
    /// The title is too long.
    #[error("the title has {length} bytes, but at most {limit} are allowed; use a shorter title")]
    LongTitle {
        /// The length of the title in bytes.
        length: usize,
        /// The greatest allowed length.
        limit: usize,
    },
    /// Too many changes are unsaved, so no new prompt is accepted.
    #[error("the store is behind: more than {limit} bytes are unsaved; prompt again when it has caught up")]
    StoreBehind {
        /// The limit of unsaved messages, in bytes.
        limit: usize,
    },
    /// The session is being shut down and accepts no new prompts.
    #[error("the session is being shut down and accepts no prompts; open the conversation again later")]
    Draining,
    /// Not all changes of the session were in the store when the deadline passed.
    #[error("after {waited:?} {}{}", missing(*nodes), because(error.as_ref()))]
    Unsaved {
        /// The number of unsaved messages. If it is 0, only the path or the state is unsaved.
        nodes: usize,
        /// How long the operation waited.
        waited: Duration,
        /// The store's last error, if saving failed.
        error: Option<String>,
    },
    /// The agent rejected the operation, or its run failed.
    #[error(transparent)]
    Agent(AgentError),
    /// The store rejected the operation or failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored nodes do not form a tree.
    #[error("the stored conversation is not a valid tree: {0}")]
    Tree(TreeError),
    /// The store does not keep turns in flight, which the session's durability requires.
    #[error(
        "this store does not keep turns in flight; use a store that does, or `Durable::Turns` (a `FileSystemStore` \
         keeps them if it is exclusive)"
    )]
    NotDurable,
    /// A newer version of this crate has recorded the turn in flight. Other processes may be able to continue it.
    #[error(
        "the turn in flight has the format {format} of a newer version; open the conversation with that version, or \
         discard the turn with `SessionBuilder::recover`"
    )]
    NewerTurn {
        /// The format of the record.
        format: u32,
    },
    /// The recorded turn in flight can't be read. The rest of the conversation is not affected.
    #[error(
        "the turn in flight is damaged ({problem}); discard it with `SessionBuilder::recover` to open the rest of the \
         conversation"
    )]
    DamagedTurn {
        /// The problem.
        problem: String,
    },
}

/// The greatest length of a title in bytes.
const MAX_TITLE: usize = 1024;

/// Checks the length of a title. The length is limited because lists repeat titles and because search indexes limit the
/// length of an entry.
pub(crate) fn check_title(title: Option<&str>) -> Result<(), SessionError> {
    match title.map_or(0, str::len) {
        length if length > MAX_TITLE => Err(SessionError::LongTitle { length, limit: MAX_TITLE }),
        _ => Ok(()),
    }
}

impl SessionError {
    /// Returns whether the conversation is missing from the store, the node is missing from the tree, or the prompt is
    /// unknown, like HTTP's 404.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Self::UnknownNode { .. } | Self::UnknownPrompt { .. } | Self::Store(StoreError::NotFound { .. })
        )
    }

    /// Returns whether the operation failed because a run is active. The operation can be repeated when the session is
    /// idle.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_)) || matches!(self, Self::Agent(error) if error.is_busy())
    }

    /// Returns whether the operation conflicts with the session's current activity, or whether the conversation already
    /// exists or is open elsewhere, like HTTP's 409.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Agent(error) => error.is_conflict(),
            Self::Store(error) => error.is_conflict(),
            _ => self.is_busy(),
        }
    }

    /// Returns whether the session has ended or accepts no prompts now, or whether the store cannot be used, like
    /// HTTP's 503. Open the conversation again, or try again later.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Agent(error) => error.is_unavailable(),
            Self::Store(error) => error.is_unavailable(),
            _ => matches!(
                self,
                Self::Ended(_) | Self::StoreBehind { .. } | Self::Draining | Self::Unsaved { .. }
            ),
        }
    }

    /// Returns the error of the model service, if this error caused the run to fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self {
            Self::Agent(error) => error.provider_error(),
            _ => None,
        }
    }

    /// Returns the response of the run, if this error is the end of a run: see
    /// [`AgentError::response`](crate::agent::AgentError::response).
    pub fn response(&self) -> Option<&Arc<Response>> {
        match self {
            Self::Agent(error) => error.response(),
            _ => None,
        }
    }
}

fn missing(nodes: usize) -> String {
    match nodes {
        0 => "the path or the state is not in the store".to_owned(),
        1 => "1 message is not in the store".to_owned(),
        many => format!("{many} messages are not in the store"),
    }
}

fn because(error: Option<&String>) -> String {
    error.map(|error| format!("; saving fails: {error}")).unwrap_or_default()
}

impl From<TreeError> for SessionError {
    fn from(error: TreeError) -> Self {
        Self::Tree(error)
    }
}

impl From<AgentError> for SessionError {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Busy(status) => Self::Busy(status),
            AgentError::Stopped(reason) => Self::Ended(reason),
            AgentError::OnHold(cause) => match cause.downcast_ref() {
                Some(Self::StoreBehind { limit }) => Self::StoreBehind { limit: *limit },
                Some(Self::Draining) => Self::Draining,
                _ => Self::Agent(AgentError::OnHold(cause)),
            },
            other => Self::Agent(other),
        }
    }
}

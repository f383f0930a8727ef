use std::time::Duration;

use crate::{
    agent::{AgentError, Status},
    provider::ProviderError,
    store::StoreError,
    subscription::EndReason,
    tree::{NodeId, TreeError},
};

/// An operation on a session failed. Unless the variant states otherwise, nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The session has ended.
    #[error("the session has ended: {0}")]
    Ended(EndReason),
    /// The operation needs an idle session.
    #[error("the session is {0:?}; wait until it is idle, or cancel")]
    Busy(Status),
    /// There is no such node.
    #[error("the tree has no node {node}")]
    UnknownNode {
        /// The node that was named.
        node: NodeId,
    },
    /// `regenerate` needs a message of the user.
    #[error("node {node} is an answer; name the user message that is to be answered again")]
    NotUser {
        /// The node that was named.
        node: NodeId,
    },
    /// `branch` needs an answer to go on from.
    #[error("node {node} is a user message; name the answer below which to go on, or regenerate it")]
    NotAssistant {
        /// The node that was named.
        node: NodeId,
    },
    /// `regenerate` on a message that carries tool results: it belongs to the middle of a turn.
    #[error("node {node} holds tool results; name the user message that began the turn")]
    ToolResults {
        /// The node that was named.
        node: NodeId,
    },
    /// `branch` below an answer whose tool uses are open there.
    #[error("node {node} has open tool uses; name an answer that has none")]
    OpenToolUses {
        /// The node that was named.
        node: NodeId,
    },
    /// A history was given for a session, whether new or loaded. Its messages come from the store alone.
    #[error(
        "a session can't begin with a given history: its messages come from the store; leave the history out, or import \
         it into the store first"
    )]
    InitialHistory,
    /// Too much is not in the store yet for anything new to begin.
    #[error("the store is behind: more than {limit} bytes are unsaved; prompt again when it has caught up")]
    StoreBehind {
        /// The limit, in bytes.
        limit: usize,
    },
    /// The session is being shut down, and takes nothing new.
    #[error("the session is being shut down; it takes nothing new")]
    Draining,
    /// Not everything was in the store when the deadline passed.
    #[error("after {waited:?} {}{}", missing(*nodes), because(error.as_ref()))]
    Unsaved {
        /// How many messages are missing there; with none, it is the path or the state.
        nodes: usize,
        /// How long it was waited for.
        waited: Duration,
        /// What saving last failed with, if it did.
        error: Option<String>,
    },
    /// The agent refused.
    #[error(transparent)]
    Agent(AgentError),
    /// The store refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The stored nodes do not form a tree.
    #[error("the stored conversation is not a valid tree: {0}")]
    Tree(TreeError),
}

impl SessionError {
    /// Returns whether the store has no such conversation or the tree no such node, like HTTP's 404.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::UnknownNode { .. } | Self::Store(StoreError::NotFound { .. }))
    }

    /// Returns whether a run is active, so that the operation has to wait until the session is idle.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_)) || matches!(self, Self::Agent(error) if error.is_busy())
    }

    /// Returns whether the operation does not fit what the session is doing now, or the conversation exists or is open
    /// elsewhere, like HTTP's 409.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Agent(error) => error.is_conflict(),
            Self::Store(error) => error.is_conflict(),
            _ => self.is_busy(),
        }
    }

    /// Returns whether the session has ended or accepts nothing now, or the store can't be used, like HTTP's 503. Open the
    /// conversation again, or try again later.
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

    /// The model service's error, if it made the run fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self {
            Self::Agent(error) => error.provider_error(),
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

use std::{sync::Arc, time::Duration};

use super::ApprovalId;
use crate::{
    message::ToolUseId,
    provider::ProviderError,
    run::Response,
    session::SessionError,
    store::{ConversationId, Owner, StoreError},
};

/// An operation on a manager failed. Unless the variant states otherwise, nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The manager is shut down or is being shut down.
    #[error("the manager is shut down and opens nothing; build another manager")]
    ShutDown,
    /// The id belongs to an open conversation.
    #[error("conversation {id} already exists; open it, or choose another id")]
    AlreadyExists {
        /// The taken id.
        id: ConversationId,
    },
    /// The conversation is open in another process or another manager. Use it there. If that process has died, the
    /// conversation can be opened in this manager after its lease expires.
    #[error(
        "conversation {id} is open elsewhere, owned by {owner}; use it there, or wait until its lease expires{}",
        within(.left.as_ref())
    )]
    OpenElsewhere {
        /// The conversation's id.
        id: ConversationId,
        /// The owner's name, and its address if it gave one.
        owner: Owner,
        /// The maximum time until the lease expires, unless its owner renews it. `None` if it is not known.
        /// [`Manager::decide`](super::Manager::decide) knows it.
        left: Option<Duration>,
    },
    /// The tool use does not wait for a decision: it was already decided, its time limit has passed, or its turn has
    /// ended.
    #[error("no decision is needed for {}: the tool use does not wait for a decision{}", .id.tool_use, still(.waiting))]
    StaleApproval {
        /// The id of the tool use.
        id: ApprovalId,
        /// The tool uses of the conversation that wait for decisions.
        waiting: Vec<ToolUseId>,
    },
    /// No place for another open session became free within the [room timeout](super::ManagerBuilder::room_timeout),
    /// and some places are held by sessions whose tools or callbacks are running.
    ///
    /// These tools may be waiting for the new session to open, because a session keeps its place while one of its tools
    /// opens another session.
    #[error(
        "there is no room to open conversation {id}: after {waited:?}, places are still held by sessions whose tools \
         run: {}; raise `max_open`, or set a time limit for tools", list(.parents)
    )]
    NoRoom {
        /// The id of the conversation that was not opened.
        id: ConversationId,
        /// How long the call waited for a place.
        waited: Duration,
        /// The open sessions whose tools or callbacks are running.
        parents: Vec<ConversationId>,
    },
    /// The manager does not know how to open conversations without a caller.
    #[error("the manager cannot recover turns, because it has no starter; set `ManagerBuilder::starter`")]
    NoStarter,
    /// A session returned an error. For example, it could not be started, or could not save everything when it was
    /// stopped.
    #[error(transparent)]
    Session(SessionError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// The open session has the new title or labels, but they were not stored within the [close
    /// timeout](super::ManagerBuilder::close_timeout). The session stores them as soon as the store accepts them.
    #[error(
        "the new title or labels of conversation {id} are not stored yet; the open session keeps them and stores them later: {cause}"
    )]
    ChangeUnsaved {
        /// The conversation's id.
        id: ConversationId,
        /// The session's error: [`SessionError::Unsaved`].
        cause: Box<SessionError>,
    },
    /// The operation was given up because it took too long, or its task was aborted or panicked in a store or a
    /// callback.
    #[error("the operation on conversation {id} was aborted: {reason}; try again")]
    CutOff {
        /// The conversation's id.
        id: ConversationId,
        /// The reason, as far as it is known.
        reason: String,
    },
    /// A shutdown ended sessions that are not completely saved or whose aborted tools are still running. All sessions
    /// have ended nevertheless.
    #[error("{} of the sessions could not be ended completely: {}", .sessions.len(), first(.sessions))]
    EndedIncomplete {
        /// The sessions with their errors.
        sessions: Vec<(ConversationId, SessionError)>,
    },
}

impl ManagerError {
    /// Returns whether the conversation is missing from the store, like HTTP's 404.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Session(error) => error.is_not_found(),
            Self::Store(error) => error.is_not_found(),
            _ => false,
        }
    }

    /// Returns whether the operation failed because a run is active. The operation can be repeated when the session is
    /// idle.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_busy())
    }

    /// Returns whether the operation conflicts with the state of the conversation, like HTTP's 409. For example, the
    /// conversation already exists, is open elsewhere or is busy, or a tool use no longer waits for a decision.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Session(error) => error.is_conflict(),
            Self::Store(error) => error.is_conflict(),
            Self::AlreadyExists { .. } | Self::OpenElsewhere { .. } | Self::StaleApproval { .. } => true,
            _ => false,
        }
    }

    /// Returns whether the manager is shut down or has no room, or whether the store cannot be used or has not stored a
    /// change in time, like HTTP's 503. The operation can be repeated later.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Session(error) => error.is_unavailable(),
            Self::Store(error) => error.is_unavailable(),
            _ => matches!(self, Self::ShutDown | Self::NoRoom { .. } | Self::ChangeUnsaved { .. }),
        }
    }

    /// Returns the same error with the maximum time until the lease expires, if the conversation is open elsewhere.
    /// `lease` is the duration of leases. A lease that was not renewed while the caller has `waited` lasts for the rest of
    /// it. If this caller has waited for longer than the duration, the lease was renewed.
    pub(super) fn with_left(mut self, lease: Option<Duration>, waited: Duration) -> Self {
        if let Self::OpenElsewhere { left, .. } = &mut self {
            *left = lease.map(|lease| lease.checked_sub(waited).unwrap_or(lease));
        }
        self
    }

    /// Returns the error of the model service, if this error caused a run to fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self {
            Self::Session(error) => error.provider_error(),
            _ => None,
        }
    }

    /// Returns the response of the run, if this error is the end of a run: see
    /// [`AgentError::response`](crate::agent::AgentError::response).
    pub fn response(&self) -> Option<&Arc<Response>> {
        match self {
            Self::Session(error) => error.response(),
            _ => None,
        }
    }
}

fn within(left: Option<&Duration>) -> String {
    left.map(|left| format!(", in at most {left:?}")).unwrap_or_default()
}

fn still(waiting: &[ToolUseId]) -> String {
    if waiting.is_empty() {
        return String::new();
    }
    let list = waiting.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    format!("; decide on {list}")
}

/// Lists the first ids, and the number of further ids.
fn list(ids: &[ConversationId]) -> String {
    const SHOWN: usize = 5;
    let list = ids.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if ids.len() > SHOWN { format!("{list} and {} more", ids.len() - SHOWN) } else { list }
}

impl From<SessionError> for ManagerError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Store(error @ StoreError::Owned { .. }) => error.into(),
            other => Self::Session(other),
        }
    }
}

impl From<StoreError> for ManagerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Owned { id, owner } => Self::OpenElsewhere { id, owner, left: None },
            other => Self::Store(other),
        }
    }
}

/// Lists the first sessions with their errors.
fn first(sessions: &[(ConversationId, SessionError)]) -> String {
    const NAMED: usize = 3;
    let mut named: Vec<_> = sessions.iter().take(NAMED).map(|(id, error)| format!("{id}: {error}")).collect();
    if sessions.len() > NAMED {
        named.push(format!("and {} more", sessions.len() - NAMED));
    }
    named.join("; ")
}

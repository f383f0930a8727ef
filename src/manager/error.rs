use std::time::Duration;

use crate::{
    provider::ProviderError,
    session::SessionError,
    store::{ConversationId, Owner, StoreError},
};

/// An operation on a manager failed. Nothing has changed then, but where the variant says otherwise.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// The manager has been shut down, or is being.
    #[error("the manager is shut down; it opens nothing new")]
    ShutDown,
    /// The id belongs to a conversation that is open.
    #[error("conversation {id} exists already; open it, or choose another id")]
    AlreadyExists {
        /// The taken id.
        id: ConversationId,
    },
    /// Another process has the conversation open, or another manager: it is to be reached there. If it is gone without a
    /// word, its ownership runs out, and the conversation can be opened then.
    #[error("conversation {id} is open elsewhere, owned by {owner}")]
    OpenElsewhere {
        /// The conversation.
        id: ConversationId,
        /// Who has it open, and at which address, if it told.
        owner: Owner,
    },
    /// No place for an open session came free within the [room timeout](super::ManagerBuilder::room_timeout), and some places
    /// are held by sessions whose tools or callbacks run. These may be waiting for this very opening: a tool that opens
    /// another session keeps its own session's place.
    #[error(
        "there is no room to open conversation {id}: after {waited:?}, places are still held by sessions whose tools \
         run: {}; raise `max_open`, or give tools a time limit", list(.parents)
    )]
    NoRoom {
        /// The conversation that was to be opened.
        id: ConversationId,
        /// How long the opening has waited.
        waited: Duration,
        /// The open sessions whose tools or callbacks run.
        parents: Vec<ConversationId>,
    },
    /// The session could not be started, or not be stopped with everything saved.
    #[error(transparent)]
    Session(SessionError),
    /// The store failed.
    #[error(transparent)]
    Store(StoreError),
    /// The open session has the new title, but it was not in the store within the
    /// [close timeout](super::ManagerBuilder::close_timeout). It is stored as soon as the store accepts it.
    #[error("the new title of conversation {id} is not stored yet: {cause}")]
    TitleUnsaved {
        /// The conversation.
        id: ConversationId,
        /// The session's report: [`SessionError::Unsaved`].
        cause: Box<SessionError>,
    },
    /// The task that did it was killed, or panicked: a store or a callback did.
    #[error("the work on conversation {id} was cut off: {reason}")]
    CutOff {
        /// The conversation.
        id: ConversationId,
        /// What is known of the reason.
        reason: String,
    },
}

impl ManagerError {
    /// Returns whether the store has no such conversation, like HTTP's 404.
    pub fn is_not_found(&self) -> bool {
        match self {
            Self::Session(error) => error.is_not_found(),
            Self::Store(error) => error.is_not_found(),
            _ => false,
        }
    }

    /// Returns whether a run is active, so that the operation has to wait until the session is idle.
    pub fn is_busy(&self) -> bool {
        matches!(self, Self::Session(error) if error.is_busy())
    }

    /// Returns whether the conversation exists, is open elsewhere or is busy, like HTTP's 409.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Session(error) => error.is_conflict(),
            Self::Store(error) => error.is_conflict(),
            _ => matches!(self, Self::AlreadyExists { .. } | Self::OpenElsewhere { .. }),
        }
    }

    /// Returns whether the manager is shut down or has no room, or the store can't be used, like HTTP's 503. Try again
    /// later.
    pub fn is_unavailable(&self) -> bool {
        match self {
            Self::Session(error) => error.is_unavailable(),
            Self::Store(error) => error.is_unavailable(),
            _ => matches!(self, Self::ShutDown | Self::NoRoom { .. } | Self::TitleUnsaved { .. }),
        }
    }

    /// The model service's error, if it made a run fail.
    pub fn provider_error(&self) -> Option<&ProviderError> {
        match self {
            Self::Session(error) => error.provider_error(),
            _ => None,
        }
    }
}

/// The first ids in a row, and how many more there are.
fn list(ids: &[ConversationId]) -> String {
    const SHOWN: usize = 5;
    let list = ids.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if ids.len() > SHOWN { format!("{list} and {} more", ids.len() - SHOWN) } else { list }
}

impl From<SessionError> for ManagerError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Store(StoreError::Owned { id, owner }) => Self::OpenElsewhere { id, owner },
            other => Self::Session(other),
        }
    }
}

impl From<StoreError> for ManagerError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Owned { id, owner } => Self::OpenElsewhere { id, owner },
            other => Self::Store(other),
        }
    }
}

/// The sessions that a shutdown could not end with everything saved and all tools gone.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} of the sessions could not be ended in full: {}", .sessions.len(), first(.sessions))]
pub struct ShutdownError {
    /// Each of those sessions, with the reason.
    pub sessions: Vec<(ConversationId, SessionError)>,
}

/// The first sessions and their errors, in words.
fn first(sessions: &[(ConversationId, SessionError)]) -> String {
    const NAMED: usize = 3;
    let mut named: Vec<_> = sessions.iter().take(NAMED).map(|(id, error)| format!("{id}: {error}")).collect();
    if sessions.len() > NAMED {
        named.push(format!("and {} more", sessions.len() - NAMED));
    }
    named.join("; ")
}

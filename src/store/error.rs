use std::{error::Error, sync::Arc, time::Duration};

use super::{ConversationId, Owner, Version};

type Cause = Arc<dyn Error + Send + Sync>;

/// An operation on a store failed. Nothing has changed then.
///
/// The one exception is a write whose outcome the store itself can't know, such as one over a connection that
/// broke: repeating it unchanged, with the same id, is then the way to find out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// `create` with the id of a conversation that is there.
    #[error("conversation {id} exists already; load it, or choose another id")]
    AlreadyExists {
        /// The taken id.
        id: ConversationId,
    },
    /// There is no such conversation, or no longer.
    #[error("the store has no conversation {id}")]
    NotFound {
        /// The id that was asked for.
        id: ConversationId,
    },
    /// Another writer got there first. Repeating the write can't help; loading the conversation again can.
    #[error("conversation {id} was written to by another: it is at version {current}; load it again")]
    Conflict {
        /// The conversation.
        id: ConversationId,
        /// The version that it is at.
        current: Version,
    },
    /// Another has the conversation open.
    #[error("conversation {id} is open elsewhere, owned by {owner}")]
    Owned {
        /// The conversation.
        id: ConversationId,
        /// Who has it.
        owner: Owner,
    },
    /// The ownership that the write relied on has passed to another, or ran out.
    #[error("conversation {id} is no longer owned by this writer; acquire and load it again")]
    LeaseLost {
        /// The conversation.
        id: ConversationId,
    },
    /// Others keep what is needed, such as a lock or a connection, for longer than this one was set to wait.
    #[error("{place} was kept busy by others for {waited:?}; try again")]
    Busy {
        /// What is not free.
        place: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// What is stored can't be read.
    #[error("{place} is damaged: {problem}")]
    Damaged {
        /// Where the damage is.
        place: String,
        /// What is wrong there.
        problem: String,
    },
    /// What is stored was written by a later version of the crate.
    #[error("{place} has format version {found}, this version of the crate reads up to {known}; update it")]
    UnknownFormat {
        /// What has that format.
        place: String,
        /// The format's version.
        found: u64,
        /// The latest version that is understood.
        known: u64,
    },
    /// What is to be stored could not be read again.
    #[error("conversation {id} can't take this write: {problem}")]
    Unstorable {
        /// The conversation.
        id: ConversationId,
        /// Why not.
        problem: String,
    },
    /// There is no room left.
    #[error("no room to write {place}; free some, then repeat the write")]
    Full {
        /// What was to be written.
        place: String,
        /// What the system said.
        #[source]
        source: Cause,
    },
    /// The store may not do this.
    #[error("no permission for {place}; check who owns it, its mode, and whether it is mounted read-only")]
    Denied {
        /// What is out of reach.
        place: String,
        /// What the system said.
        #[source]
        source: Cause,
    },
    /// The store is not where it should be.
    #[error("{place} can't be reached; check that it is there, running or mounted, then repeat")]
    Unreachable {
        /// What can't be reached.
        place: String,
        /// What the system said.
        #[source]
        source: Cause,
    },
    /// The store can't work as it is set up: with this URL, these certificates, that library. Another setting is needed.
    #[error("{setting} can't be used; change it")]
    Misconfigured {
        /// What is to be changed.
        setting: String,
        /// What is wrong with it.
        #[source]
        source: Cause,
    },
    /// The store failed in a way of its own.
    #[error("{action} failed")]
    Failed {
        /// What the store was doing, and to what.
        action: String,
        /// Why it failed.
        #[source]
        source: Cause,
    },
}

impl StoreError {
    /// A failure that no other variant means.
    pub fn failed(action: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Failed { action: action.into(), source: Arc::new(source) }
    }

    /// A setting that can't be used.
    pub fn misconfigured(setting: impl Into<String>, source: impl Error + Send + Sync + 'static) -> Self {
        Self::Misconfigured { setting: setting.into(), source: Arc::new(source) }
    }

    /// Damage at this place.
    pub fn damaged(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), problem: problem.into() }
    }

    /// Whether the same operation, repeated unchanged, may succeed: at once, or after somebody has set
    /// things right outside the program.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Owned { .. }
            | Self::Busy { .. }
            | Self::Full { .. }
            | Self::Denied { .. }
            | Self::Unreachable { .. }
            | Self::Failed { .. } => true,
            Self::AlreadyExists { .. }
            | Self::NotFound { .. }
            | Self::Conflict { .. }
            | Self::LeaseLost { .. }
            | Self::Damaged { .. }
            | Self::UnknownFormat { .. }
            | Self::Unstorable { .. }
            | Self::Misconfigured { .. } => false,
        }
    }
}

use std::{error::Error, fmt, sync::Arc, time::Duration};

use super::{ConversationId, Owner, Version};
use crate::error::source_after;

type Cause = Arc<dyn Error + Send + Sync>;

/// An operation on a store failed and has changed nothing.
///
/// The one exception is a write whose outcome the store can't know, for instance because the connection broke. Repeat
/// such a write unchanged, with the same id, to find out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StoreError {
    /// `create` with the id of an existing conversation.
    AlreadyExists {
        /// The taken id.
        id: ConversationId,
    },
    /// The conversation does not exist, or no longer exists.
    NotFound {
        /// The id that was asked for.
        id: ConversationId,
    },
    /// Another writer got there first. Repeating the write can't help; loading the conversation again can.
    Conflict {
        /// The conversation.
        id: ConversationId,
        /// The version that it is at.
        current: Version,
    },
    /// Another process or manager has the conversation open.
    Owned {
        /// The conversation.
        id: ConversationId,
        /// The owner.
        owner: Owner,
    },
    /// The ownership that the write relied on has passed to another, or ran out.
    LeaseLost {
        /// The conversation.
        id: ConversationId,
    },
    /// Others hold a lock or a connection for longer than the store was set to wait.
    ///
    /// If it stays busy, a process may have been stopped (`SIGSTOP`, a debugger, a paused container) in the middle of a write.
    /// Continue or end that process: its lock ends with it.
    Busy {
        /// The busy part of the store.
        place: String,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The stored content can't be read.
    Damaged {
        /// Where the damage is.
        place: String,
        /// The damage.
        problem: String,
    },
    /// The content was written by a later version of the crate.
    UnknownFormat {
        /// The part of the store with that format.
        place: String,
        /// The format's version.
        found: u64,
        /// The latest version that is understood.
        known: u64,
    },
    /// The store could not read this content back, so it refuses to write it. Repeating the write is useless.
    Unstorable {
        /// The conversation.
        id: ConversationId,
        /// Why not.
        problem: String,
    },
    /// There is no room left.
    Full {
        /// The file or table to be written.
        place: String,
        /// The system's error.
        source: Cause,
    },
    /// The store may not do this.
    Denied {
        /// The file or table without permission.
        place: String,
        /// The system's error.
        source: Cause,
    },
    /// The store is not where it should be.
    Unreachable {
        /// The file, folder or server that can't be reached.
        place: String,
        /// The system's error.
        source: Cause,
    },
    /// The store can't work as it is set up: with this URL, these certificates, that library. Another setting is needed.
    Misconfigured {
        /// The setting to change.
        setting: String,
        /// The problem with the setting.
        source: Cause,
    },
    /// The store failed in a way of its own.
    Failed {
        /// The failed action and its object.
        action: String,
        /// Why it failed.
        source: Cause,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyExists { id } => {
                write!(f, "conversation {id} exists already; load it, or choose another id")
            }
            Self::NotFound { id } => write!(f, "the store has no conversation {id}"),
            Self::Conflict { id, .. } => write!(
                f,
                "conversation {id} was changed by another writer after it was loaded; load it again"
            ),
            Self::Owned { id, owner } => write!(f, "conversation {id} is open elsewhere, owned by {owner}"),
            Self::LeaseLost { id } => {
                write!(f, "conversation {id} is no longer owned by this writer; acquire and load it again")
            }
            Self::Busy { place, waited } => {
                write!(
                    f,
                    "{place} was kept busy by others for {waited:?}; try again, \
                     and if it stays busy, continue or end the stopped process that holds it"
                )
            }
            Self::Damaged { place, problem } => write!(f, "{place} is damaged: {problem}"),
            Self::UnknownFormat { place, found, known } => write!(
                f,
                "{place} has format version {found}, \
                 this version of the crate reads up to {known}; update it"
            ),
            Self::Unstorable { id, problem } => {
                write!(f, "conversation {id} can't take this write: {problem}")
            }
            Self::Full { place, source } => {
                write!(f, "no room to write {place}; free some, then repeat the write: {source}")
            }
            Self::Denied { place, source } => write!(
                f,
                "no permission for {place}; \
                 check its owner, its mode, and whether it is mounted read-only: {source}"
            ),
            Self::Unreachable { place, source } => write!(
                f,
                "{place} can't be reached; check that it exists, runs or is mounted, then repeat: {source}"
            ),
            Self::Misconfigured { setting, source } => {
                write!(f, "{setting} can't be used; change it: {source}")
            }
            Self::Failed { action, source } => write!(f, "{action} failed: {source}"),
        }
    }
}

impl Error for StoreError {
    /// The part of the cause's chain that `Display` does not include.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Full { source, .. }
            | Self::Denied { source, .. }
            | Self::Unreachable { source, .. }
            | Self::Misconfigured { source, .. }
            | Self::Failed { source, .. } => source_after(&self.to_string(), &**source),
            _ => None,
        }
    }
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

use std::{error::Error as StdError, fmt, sync::Arc, time::Duration};

use super::{ConversationId, Owner, Version};
use crate::{
    error::source_after,
    run::{Error, ErrorKind},
};

type Cause = Arc<dyn StdError + Send + Sync>;

/// An operation on a store failed. With one exception, the operation has changed nothing.
///
/// The exception is a write whose outcome the store can't know, for instance because the connection broke. To find out,
/// repeat the write unchanged, with the same id.
#[derive(Clone)]
#[non_exhaustive]
pub enum StoreError {
    /// `create` was called with the id of an existing conversation.
    AlreadyExists {
        /// The id of the existing conversation.
        id: ConversationId,
    },
    /// The conversation does not exist, or no longer exists.
    NotFound {
        /// The requested id.
        id: ConversationId,
    },
    /// Another writer changed the conversation first. Repeating the write is useless. Load the conversation again
    /// instead.
    Conflict {
        /// The conversation's id.
        id: ConversationId,
        /// The current version of the conversation.
        current: Version,
    },
    /// Another process or manager has the conversation open.
    Owned {
        /// The conversation's id.
        id: ConversationId,
        /// The current owner.
        owner: Owner,
    },
    /// The lease of the write was released, or it passed to another owner.
    LeaseLost {
        /// The conversation's id.
        id: ConversationId,
    },
    /// A lock or a connection was in use by others for longer than the store's maximum waiting time.
    ///
    /// If this error persists, a process may have been stopped in the middle of a write (`SIGSTOP`, a debugger, a
    /// paused container). Let that process continue or end it. When the process ends, its lock is released.
    Busy {
        /// The part of the store that is busy.
        place: String,
        /// The time that the operation waited.
        waited: Duration,
    },
    /// The stored content can't be read.
    Damaged {
        /// The place of the damage.
        place: String,
        /// The description of the damage.
        problem: String,
    },
    /// The content was written by a later version of the crate, or by an earlier one whose format is no longer read.
    UnknownFormat {
        /// The part of the store that has this format.
        place: String,
        /// The version of the format.
        found: u64,
        /// The latest version that this crate can read.
        known: u64,
    },
    /// The store would not be able to read this content back, so it rejects the write. Repeating the write is useless.
    Unstorable {
        /// The conversation's id.
        id: ConversationId,
        /// The reason.
        problem: String,
    },
    /// The disk or quota is full.
    Full {
        /// The file or table that was being written.
        place: String,
        /// The system's error.
        source: Cause,
    },
    /// The store lacks a permission.
    Denied {
        /// The file or table for which the permission is missing.
        place: String,
        /// The system's error.
        source: Cause,
    },
    /// The file, folder or server of the store can't be reached.
    Unreachable {
        /// The file, folder or server.
        place: String,
        /// The system's error.
        source: Cause,
    },
    /// The store can't work with its settings, such as its URL, its certificates or a library. Change the setting.
    Misconfigured {
        /// The setting to change.
        setting: String,
        /// The problem with the setting.
        source: Cause,
    },
    /// The store does not support this operation.
    Unsupported {
        /// The operation.
        operation: &'static str,
    },
    /// The query of a search can't be understood.
    InvalidQuery {
        /// The problem with the query.
        problem: String,
    },
    /// The store failed for a different reason.
    Failed {
        /// The action that failed, and the object of the action.
        action: String,
        /// The reason for the failure.
        source: Cause,
    },
}

crate::error::debug_as_chain!(StoreError);

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
            Self::UnknownFormat { place, found, known } if found < known => write!(
                f,
                "{place} has format version {found}, \
                 this version of the crate reads only version {known}; export it with the version that wrote it"
            ),
            Self::UnknownFormat { place, found, known } => write!(
                f,
                "{place} has format version {found}, \
                 this version of the crate reads up to {known}; update it"
            ),
            Self::Unstorable { id, problem } => {
                write!(f, "conversation {id} can't store this write: {problem}")
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
            Self::Unsupported { operation } => {
                write!(f, "the store does not support {operation}; use a store that does")
            }
            Self::InvalidQuery { problem } => write!(f, "the search query is invalid: {problem}"),
            Self::Failed { action, source } => write!(f, "{action} failed: {source}"),
        }
    }
}

impl StdError for StoreError {
    /// Returns the rest of the chain of causes, which `Display` does not include.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
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
    /// Returns an error for a failure for which no other variant exists.
    pub fn failed(action: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Failed { action: action.into(), source: Arc::new(source) }
    }

    /// Returns an error for a setting that can't be used.
    pub fn misconfigured(setting: impl Into<String>, source: impl StdError + Send + Sync + 'static) -> Self {
        Self::Misconfigured { setting: setting.into(), source: Arc::new(source) }
    }

    /// Returns the error for an operation that the store does not support.
    pub const fn unsupported(operation: &'static str) -> Self {
        Self::Unsupported { operation }
    }

    /// Returns an error for damage at this place.
    pub fn damaged(place: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Damaged { place: place.into(), problem: problem.into() }
    }

    /// Returns the kind of the [`Error`] that an operation returns because of this error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::AlreadyExists { .. } => ErrorKind::AlreadyExists,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Conflict { .. } => ErrorKind::Conflict,
            Self::Owned { .. } => ErrorKind::OpenElsewhere,
            Self::LeaseLost { .. } => ErrorKind::LeaseLost,
            Self::Busy { .. } | Self::Full { .. } | Self::Unreachable { .. } => ErrorKind::StoreUnreachable,
            Self::Damaged { .. } | Self::UnknownFormat { .. } => ErrorKind::Damaged,
            Self::Unstorable { .. } => ErrorKind::Unstorable,
            Self::Denied { .. } | Self::Failed { .. } => ErrorKind::StoreFailed,
            Self::Misconfigured { .. } => ErrorKind::Config,
            Self::Unsupported { .. } => ErrorKind::Unsupported,
            Self::InvalidQuery { .. } => ErrorKind::InvalidQuery,
        }
    }

    /// Returns whether the conversation does not exist (HTTP status 404).
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }

    /// Returns whether the conversation already exists, was changed by another writer, or belongs to another owner
    /// (HTTP status 409).
    pub fn is_conflict(&self) -> bool {
        matches!(self.kind().status(), 409 | 421)
    }

    /// Returns whether the store can't be used now, because it is busy, full, unreachable or failing, or denies access
    /// (HTTP status 503).
    pub fn is_unavailable(&self) -> bool {
        self.is_transient() && !self.is_conflict()
    }

    /// Returns whether the same operation may succeed if it is repeated unchanged. The repetition may succeed either
    /// immediately or after somebody has fixed the problem outside the program.
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
            | Self::Unsupported { .. }
            | Self::InvalidQuery { .. }
            | Self::Misconfigured { .. } => false,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        let new = Self::new(error.kind(), error.to_string());
        let new = match &error {
            StoreError::AlreadyExists { id }
            | StoreError::NotFound { id }
            | StoreError::Conflict { id, .. }
            | StoreError::LeaseLost { id }
            | StoreError::Unstorable { id, .. } => new.with_member("conversation", id),
            StoreError::Owned { id, owner } => {
                let text = format!("{error}; use it there, or wait until its lease expires");
                new.worded(text).with_member("conversation", id).with_member("owner", owner)
            }
            StoreError::Unsupported { operation } => new.with_member("operation", operation),
            _ => new,
        };
        new.with_source(error)
    }
}

impl Error {
    /// Returns the store's error, if it is the cause.
    pub fn store_error(&self) -> Option<&StoreError> {
        self.cause()?.downcast_ref()
    }

    /// Returns the owner of the conversation, if the conversation is [open elsewhere](ErrorKind::OpenElsewhere) or its owner
    /// is [unreachable](ErrorKind::Unreachable).
    pub fn owner(&self) -> Option<Owner> {
        self.typed("owner")
    }
}

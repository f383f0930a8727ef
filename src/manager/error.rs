use crate::{
    session::SessionError,
    store::{ConversationId, StoreError},
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
    /// The session could not be started, or not be stopped with everything saved.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The task that did it was killed, or panicked: a store or a callback did.
    #[error("the work on conversation {id} was cut off: {reason}")]
    CutOff {
        /// The conversation.
        id: ConversationId,
        /// What is known of the reason.
        reason: String,
    },
}

/// What a shutdown could not bring to a good end.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{} of the sessions could not be ended with everything saved", .sessions.len())]
pub struct ShutdownError {
    /// Each of those sessions, and what is missing.
    pub sessions: Vec<(ConversationId, SessionError)>,
}

use std::time::Duration;

use crate::{
    message::ToolUseId,
    provider::{ProviderError, ProviderErrorKind},
};

use super::SessionId;

/// An error of a backend. An agent reports it as a [`ProviderError`] with this error as its
/// [cause](ProviderError::cause).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend requires the user to sign in.
    #[error("the backend is not signed in: {0}")]
    Auth(String),
    /// The backend can't be reached or started at the moment. Another attempt may succeed.
    #[error("the backend is not available: {0}")]
    Unavailable(String),
    /// The backend can't work with its configuration: its program or folder does not exist, may not be used, or is not
    /// of the expected kind (for example, the folder is a file). Another attempt fails too.
    #[error("the backend can't be started: {0}")]
    Misconfigured(String),
    /// The session has ended, for example because its program has ended. If possible, the next prompt resumes the
    /// session.
    #[error("the backend's session has ended: {0}")]
    Ended(String),
    /// The session with this id can't be resumed or forked, because it does not exist.
    #[error("the backend has no session {id}{}; start a new conversation, or set `with_lost_session`", said(.message))]
    UnknownSession {
        /// The id of the session.
        id: SessionId,
        /// The backend's own message; may be empty.
        message: String,
    },
    /// The conversation has a session at the backend, but the backend can't resume it.
    #[error("the conversation can't be resumed: {0}")]
    NotResumable(String),
    /// The conversation is at another position than the backend, and the backend can't move to that position.
    #[error("the backend can't follow the conversation: {0}")]
    Diverged(String),
    /// The backend can't do what was requested.
    #[error("the backend does not support this: {0}")]
    Unsupported(String),
    /// The backend refused the prompt or the options.
    #[error("the backend refused: {0}")]
    Invalid(String),
    /// There were too many requests, or the limit of an account is reached.
    #[error("the backend's limit is reached: {message}")]
    RateLimit {
        /// The backend's message.
        message: String,
        /// How long to wait before another attempt, if the backend specified a time.
        retry_after: Option<Duration>,
    },
    /// A call took longer than its limit.
    #[error("the backend's {call} took longer than {limit:?}")]
    Timeout {
        /// The name of the method that was called.
        call: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The turn failed at the backend.
    #[error("the backend failed: {0}")]
    Failed(String),
    /// The backend broke its contract.
    #[error("{}", contract(.0))]
    Contract(Breach),
}

crate::error::debug_as_chain!(BackendError);

/// A breach of a backend's contract.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The stream ended without a terminal event.
    #[error("the event stream ended without a result or an error")]
    NoTerminalEvent,
    /// No event arrived for longer than [`BackendLimits::silence`](super::BackendLimits::silence), although no request
    /// for permission was open.
    #[error("it sent nothing for {0:?}; if its tools may take longer, raise `BackendLimits::silence`")]
    Silence(Duration),
    /// A method or the stream panicked.
    #[error("{call} panicked: {message}")]
    Panicked {
        /// The name of the method that panicked.
        call: &'static str,
        /// The message of the panic.
        message: String,
    },
    /// The same tool use was started twice in one turn.
    #[error("the tool use {0} was repeated in one turn")]
    RepeatedToolUse(ToolUseId),
    /// An update or a result is about a tool use that is not part of this turn.
    #[error("an event is about the tool use {0}, which is not part of this turn")]
    UnknownToolUse(ToolUseId),
    /// An update or a result is about a tool use that already has its result.
    #[error("an event is about the tool use {0}, which already has its result")]
    FinishedToolUse(ToolUseId),
    /// Permission for a tool use was requested while a request for the same tool use was open.
    #[error("permission for the tool use {0} was requested twice at once")]
    RepeatedPermission(ToolUseId),
    /// More than this number of permissions were requested at the same time.
    #[error("more than {0} permissions were requested at once")]
    TooManyPermissions(usize),
}

crate::error::debug_as_chain!(Breach);

impl BackendError {
    /// Creates an [`UnknownSession`](BackendError::UnknownSession) error without a message from the backend.
    pub fn unknown_session(id: impl Into<SessionId>) -> Self {
        Self::UnknownSession { id: id.into(), message: String::new() }
    }

    /// Returns whether the session is lost, so that only a new session can answer the prompt.
    pub(super) fn is_lost_session(&self) -> bool {
        matches!(self, Self::UnknownSession { .. } | Self::NotResumable(_))
    }

    /// Returns whether the session has become unusable.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Contract(Breach::Panicked { .. }))
    }

    fn kind(&self) -> ProviderErrorKind {
        match self {
            Self::Auth(_) => ProviderErrorKind::Auth,
            Self::Unavailable(_) | Self::Ended(_) => ProviderErrorKind::Transport,
            Self::UnknownSession { .. }
            | Self::NotResumable(_)
            | Self::Diverged(_)
            | Self::Unsupported(_) => ProviderErrorKind::Unsupported,
            Self::Invalid(_) | Self::Misconfigured(_) => ProviderErrorKind::InvalidRequest,
            Self::RateLimit { .. } => ProviderErrorKind::RateLimit,
            Self::Timeout { .. } => ProviderErrorKind::Timeout,
            Self::Failed(_) => ProviderErrorKind::Service,
            Self::Contract(_) => ProviderErrorKind::Contract,
        }
    }

    /// Returns the provider's error for a prompt that the backend has not accepted. The error is retryable if another
    /// attempt may succeed.
    pub(super) fn before_prompt(self) -> ProviderError {
        let (kind, message) = (self.kind(), self.to_string());
        let retry_after = match &self {
            Self::RateLimit { retry_after, .. } => *retry_after,
            _ => None,
        };
        let is_slow = matches!(self, Self::Timeout { .. });
        let error = ProviderError::new(kind, message).with_retry_after(retry_after).with_source(self);
        // A start that timed out is not repeated: its limit is long, and a program that has hung once hangs again.
        if is_slow { error.with_retryable(false) } else { error }
    }

    /// Returns the provider's error for a turn that had begun. The error is never retryable, since a retry would run
    /// the turn twice.
    pub(super) fn in_turn(self) -> ProviderError {
        self.before_prompt().with_retryable(false)
    }
}

impl From<Breach> for BackendError {
    fn from(breach: Breach) -> Self {
        Self::Contract(breach)
    }
}

/// Returns the message in parentheses, or an empty text if the message is empty.
fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// Returns the description of a breach. Silence is not called a breach of contract, because a backend may run a slow
/// tool without reporting anything.
fn contract(breach: &Breach) -> String {
    match breach {
        Breach::Silence(_) => format!("the backend is silent: {breach}"),
        _ => format!("the backend broke its contract: {breach}"),
    }
}

use std::time::Duration;

use crate::{
    message::ToolUseId,
    provider::{ErrorKind, ProviderError},
};

use super::SessionId;

/// A backend failed. As an agent's failure it is a [`ProviderError`] with this as its [cause](ProviderError::cause).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend wants the user to sign in.
    #[error("the backend is not signed in: {0}")]
    Auth(String),
    /// The backend can't be reached or started now. Another attempt may succeed.
    #[error("the backend is not available: {0}")]
    Unavailable(String),
    /// The backend can't work as it is set up: its program or folder does not exist, may not be used, or is not what it is
    /// named as. Another attempt fails too.
    #[error("the backend can't be started: {0}")]
    Misconfigured(String),
    /// The session is over: its program has ended, say. The next prompt resumes it, where that is possible.
    #[error("the backend's session has ended: {0}")]
    Ended(String),
    /// There is no session of this id to resume or to fork.
    #[error("the backend knows no session {id}{}; start a new conversation, or set `with_lost_session`", said(.message))]
    UnknownSession {
        /// The session.
        id: SessionId,
        /// The backend's own words, or an empty text.
        message: String,
    },
    /// The conversation was at the backend before, and the backend can't resume it.
    #[error("the conversation can't be resumed: {0}")]
    NotResumable(String),
    /// The conversation is not where the backend is, and the backend can't go there.
    #[error("the backend can't follow the conversation: {0}")]
    Diverged(String),
    /// The backend can't do what was asked.
    #[error("the backend does not support this: {0}")]
    Unsupported(String),
    /// The backend refused the prompt or the options as they are.
    #[error("the backend refused: {0}")]
    Invalid(String),
    /// Too many requests, or an account's limit.
    #[error("the backend's limit is reached: {message}")]
    RateLimit {
        /// In words.
        message: String,
        /// How long the backend asked to wait.
        retry_after: Option<Duration>,
    },
    /// A call took longer than its limit.
    #[error("the backend's {call} took longer than {limit:?}")]
    Timeout {
        /// Which method.
        call: &'static str,
        /// The limit.
        limit: Duration,
    },
    /// The turn failed at the backend.
    #[error("the backend failed: {0}")]
    Failed(String),
    /// The backend did what no backend may do.
    #[error("{}", contract(.0))]
    Contract(Breach),
}

/// How a backend broke its contract.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Breach {
    /// The stream ended without a terminal event.
    #[error("the event stream ended without a result or an error")]
    NoTerminalEvent,
    /// No event came for longer than [`BackendLimits::silence`](super::BackendLimits::silence), while no permission was
    /// asked for.
    #[error("it sent nothing for {0:?}; if its tools may take longer, raise `BackendLimits::silence`")]
    Silence(Duration),
    /// A method, or the stream, panicked.
    #[error("{call} panicked: {message}")]
    Panicked {
        /// Which method.
        call: &'static str,
        /// What the panic said.
        message: String,
    },
    /// A tool use came twice in one turn.
    #[error("the tool use {0} came twice in one turn")]
    RepeatedToolUse(ToolUseId),
    /// An update or a result for a tool use that has not come in this turn.
    #[error("there is no tool use {0} in this turn that the event could be about")]
    UnknownToolUse(ToolUseId),
    /// An update or a result for a tool use that has its result.
    #[error("the tool use {0} has its result already")]
    FinishedToolUse(ToolUseId),
    /// Permission for a tool use was asked for while the same was asked already.
    #[error("permission for the tool use {0} was asked for twice at once")]
    RepeatedPermission(ToolUseId),
    /// More permissions were asked for at once than this.
    #[error("more than {0} permissions were asked for at once")]
    TooManyPermissions(usize),
}

impl BackendError {
    /// An [`UnknownSession`](BackendError::UnknownSession) without words of the backend's.
    pub fn unknown_session(id: impl Into<SessionId>) -> Self {
        Self::UnknownSession { id: id.into(), message: String::new() }
    }

    /// Returns whether the session is lost, so that only a new one can answer.
    pub(super) fn is_lost_session(&self) -> bool {
        matches!(self, Self::UnknownSession { .. } | Self::NotResumable(_))
    }

    /// Whether the session can't be used any more.
    pub(super) fn is_final(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Contract(Breach::Panicked { .. }))
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Auth(_) => ErrorKind::Auth,
            Self::Unavailable(_) | Self::Ended(_) => ErrorKind::Transport,
            Self::UnknownSession { .. }
            | Self::NotResumable(_)
            | Self::Diverged(_)
            | Self::Unsupported(_) => ErrorKind::Unsupported,
            Self::Invalid(_) | Self::Misconfigured(_) => ErrorKind::InvalidRequest,
            Self::RateLimit { .. } => ErrorKind::RateLimit,
            Self::Timeout { .. } => ErrorKind::Timeout,
            Self::Failed(_) => ErrorKind::Service,
            Self::Contract(_) => ErrorKind::Contract,
        }
    }

    /// Returns the provider's error for a prompt that the backend has not taken. It is retryable if another attempt may
    /// succeed.
    pub(super) fn before_prompt(self) -> ProviderError {
        let (kind, message) = (self.kind(), self.to_string());
        let retry_after = match &self {
            Self::RateLimit { retry_after, .. } => *retry_after,
            _ => None,
        };
        let is_slow = matches!(self, Self::Timeout { .. });
        let error = ProviderError::new(kind, message).with_retry_after(retry_after).with_source(self);
        // The limit of a start is long, and a program that hangs once hangs again.
        if is_slow { error.with_retryable(false) } else { error }
    }

    /// Returns the provider's error for a turn that had begun. It is never retryable, since the turn would run twice.
    pub(super) fn in_turn(self) -> ProviderError {
        self.before_prompt().with_retryable(false)
    }
}

impl From<Breach> for BackendError {
    fn from(breach: Breach) -> Self {
        Self::Contract(breach)
    }
}

/// Returns a message as the end of a clause, or nothing if it is empty.
fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" ({message})") }
}

/// Returns the sentence on a breach. A backend that runs a slow tool in silence has done nothing wrong.
fn contract(breach: &Breach) -> String {
    match breach {
        Breach::Silence(_) => format!("the backend is silent: {breach}"),
        _ => format!("the backend broke its contract: {breach}"),
    }
}

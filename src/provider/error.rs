use std::{error::Error, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::error::{names, source_after};

/// What went wrong between us and a model service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// No key, a wrong one, or one without the right.
    Auth,
    /// Too many requests; `retry_after` says when to come back, if the service told.
    RateLimit,
    /// The account has nothing left to spend; waiting does not help.
    Quota,
    /// The service is overloaded.
    Overloaded,
    /// The service, or this crate before it, refused the request as it is.
    InvalidRequest,
    /// The conversation is longer than the model's context.
    ContextTooLong,
    /// The model or the service can't do what was asked.
    Unsupported,
    /// Something took longer than its limit.
    Timeout,
    /// The connection failed.
    Transport,
    /// The service sent what its format does not allow, or more than the limits do.
    Decoding,
    /// The stream ended before the answer did.
    Truncated,
    /// The answer does not have the shape that was asked for.
    Output,
    /// A backend did what its contract forbids; the cause says what.
    Contract,
    /// The service failed.
    Service,
}

impl ErrorKind {
    /// Whether the same request may succeed if it is sent again.
    pub fn is_transient(self) -> bool {
        match self {
            Self::RateLimit
            | Self::Overloaded
            | Self::Timeout
            | Self::Transport
            | Self::Truncated
            | Self::Service => true,
            Self::Auth
            | Self::Quota
            | Self::InvalidRequest
            | Self::ContextTooLong
            | Self::Unsupported
            | Self::Decoding
            | Self::Contract
            | Self::Output => false,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auth => "not authorised",
            Self::RateLimit => "rate limit reached",
            Self::Quota => "quota spent",
            Self::Overloaded => "service overloaded",
            Self::InvalidRequest => "invalid request",
            Self::ContextTooLong => "context too long",
            Self::Unsupported => "not supported",
            Self::Timeout => "timeout",
            Self::Transport => "transport failed",
            Self::Decoding => "undecodable answer",
            Self::Truncated => "truncated answer",
            Self::Output => "answer of another shape",
            Self::Contract => "contract broken",
            Self::Service => "service error",
        })
    }
}

/// A request to a model service failed.
///
/// Endpoints keep keys out of it: what a service echoes of one is replaced, see [`Secret::scrub`].
///
/// [`Secret::scrub`]: super::Secret::scrub
#[derive(Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProviderError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// In words, with what to do about it where that is known.
    pub message: String,
    /// Whether the same request may succeed if it is sent again.
    pub retryable: bool,
    /// How long the service asked to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Duration>,
    /// The HTTP status, if there was an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The answer's body or the error event, cut to [`BODY_LIMIT`](Self::BODY_LIMIT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The service's id of the request, for its support.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip)]
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl ProviderError {
    /// Bytes of a body that an error keeps.
    pub const BODY_LIMIT: usize = 8 * 1024;

    /// An error that can be retried if its kind is transient.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            retryable: kind.is_transient(),
            retry_after: None,
            status: None,
            body: None,
            request_id: None,
            source: None,
        }
    }

    /// The same error with its cause. Unless the message names the cause already, its sentence is appended: an error
    /// that was stored and read again has nothing but its message.
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        if !names(&self.message, &source) {
            let separator = if self.message.is_empty() { "" } else { ": " };
            self.message = format!("{}{separator}{source}", self.message);
        }
        self.source = Some(Arc::new(source));
        self
    }

    /// The error that caused this one, as it was given to [`with_source`](Self::with_source). Its sentence is part of
    /// the message, so [`source`](Error::source) returns the causes below it.
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.source.as_deref()
    }

    /// The same error with the HTTP status of the answer.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// The same error with the answer's body, cut at a character to at most [`Self::BODY_LIMIT`] bytes.
    pub fn with_body(mut self, body: &str) -> Self {
        let end = body.floor_char_boundary(Self::BODY_LIMIT);
        self.body = Some(body[..end].to_owned());
        self
    }

    /// The same error with the wait that the service asked for, if it did.
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// The same error with the service's id of the request, if it gave one.
    pub fn with_request_id(mut self, id: Option<String>) -> Self {
        self.request_id = id;
        self
    }

    /// The same error without secrets, wherever the service echoed one. A cause whose text holds one is left out,
    /// since its text can't be changed.
    #[cfg(feature = "http")]
    pub(crate) fn scrubbed(mut self, scrubber: &super::Scrubber) -> Self {
        self.message = scrubber.scrub(&self.message).into_owned();
        self.body = self.body.map(|body| scrubber.scrub(&body).into_owned());
        self.request_id = self.request_id.map(|id| scrubber.scrub(&id).into_owned());
        self.source.take_if(|source| scrubber.shows_in(&**source));
        self
    }

    /// The same error, retryable or not, whatever its kind.
    pub fn with_retryable(mut self, retryable: bool) -> Self {
        self.retryable = retryable;
        self
    }
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.kind)?;
        if let Some(status) = self.status {
            write!(f, " (status {status})")?;
        }
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        Ok(())
    }
}

impl Error for ProviderError {
    /// The part of the cause's chain that the message does not include.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        source_after(&self.message, self.source.as_deref()?)
    }
}

impl fmt::Debug for ProviderError {
    /// Shows the fields that are set, and the beginning of the body. The cause is part of the message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const BODY_SHOWN: usize = 200;
        let mut shown = f.debug_struct("ProviderError");
        shown.field("kind", &self.kind).field("message", &self.message).field("retryable", &self.retryable);
        if let Some(wait) = self.retry_after {
            shown.field("retry_after", &wait);
        }
        if let Some(status) = self.status {
            shown.field("status", &status);
        }
        if let Some(body) = &self.body {
            shown.field("body", &&body[..body.floor_char_boundary(BODY_SHOWN)]);
        }
        if let Some(id) = &self.request_id {
            shown.field("request_id", id);
        }
        shown.finish_non_exhaustive()
    }
}

impl Eq for ProviderError {}

impl PartialEq for ProviderError {
    /// Compares everything except the cause, which is part of the message.
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message, self.retryable, self.retry_after, self.status)
            == (other.kind, &other.message, other.retryable, other.retry_after, other.status)
            && (&self.body, &self.request_id) == (&other.body, &other.request_id)
    }
}

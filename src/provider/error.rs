use std::{error::Error, fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::error::{debug_as_chain, names, source_after};

/// The kind of a failure of a request to a model service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ProviderErrorKind {
    /// The API key is missing, wrong, or lacks permission.
    Auth,
    /// Too many requests were sent. If the service requested a delay, `retry_after` contains it.
    RateLimit,
    /// The account's quota or credit is used up. Waiting does not help.
    Quota,
    /// The service is overloaded.
    Overloaded,
    /// The request was rejected by the service, or by this crate before sending.
    InvalidRequest,
    /// The conversation is longer than the model's context window.
    ContextTooLong,
    /// The model or the service does not support the request.
    Unsupported,
    /// A time limit was exceeded.
    Timeout,
    /// The connection failed.
    Transport,
    /// The service sent data that its wire format does not allow, or more data than the limits allow.
    Decoding,
    /// The stream ended before the response was complete.
    Truncated,
    /// The response does not match the output schema.
    Output,
    /// A backend broke its contract. The cause contains the details.
    Contract,
    /// The service failed.
    Service,
}

impl ProviderErrorKind {
    /// Returns whether the same request may succeed if it is sent again.
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

impl fmt::Display for ProviderErrorKind {
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
            Self::Decoding => "undecodable response",
            Self::Truncated => "truncated response",
            Self::Output => "response does not fit the schema",
            Self::Contract => "contract broken",
            Self::Service => "service error",
        })
    }
}

/// The error of a failed request to a model service.
///
/// Endpoints remove API keys from errors: if a service echoes a key, the key is replaced (see [`Secret::scrub`]).
///
/// [`Secret::scrub`]: super::Secret::scrub
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "The error of a failed request to a model service.")
)]
#[non_exhaustive]
pub struct ProviderError {
    /// The kind of the failure.
    pub kind: ProviderErrorKind,
    /// A message for people to read, with advice if possible.
    pub message: String,
    /// Whether the same request may succeed if it is sent again.
    pub retryable: bool,
    /// The delay that the service requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<Duration>,
    /// The HTTP status, if there was a response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The response's body or the error event, truncated to [8 KiB](Self::BODY_LIMIT).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The service's id of the request, which the service's support may ask for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    #[serde(skip)]
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl ProviderError {
    /// The maximum number of bytes of a body that an error keeps.
    pub const BODY_LIMIT: usize = 8 * 1024;

    /// Creates an error that is retryable if its kind is transient.
    pub fn new(kind: ProviderErrorKind, message: impl Into<String>) -> Self {
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

    /// Adds the cause. If the message does not contain the cause's text yet, the text is appended, because only the
    /// message remains when an error is stored and read again.
    pub fn with_source(mut self, source: impl Error + Send + Sync + 'static) -> Self {
        if !names(&self.message, &source) {
            let separator = if self.message.is_empty() { "" } else { ": " };
            self.message = format!("{}{separator}{source}", self.message);
        }
        self.source = Some(Arc::new(source));
        self
    }

    /// Returns the cause given to [`with_source`](Self::with_source). The cause's text is part of the message.
    /// Therefore, [`source`](Error::source) returns the part of the chain below the cause.
    pub fn cause(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        self.source.as_deref()
    }

    /// Sets the HTTP status of the response.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Sets the response's body, truncated to at most [`Self::BODY_LIMIT`] bytes at a character boundary.
    pub fn with_body(mut self, body: &str) -> Self {
        let end = body.floor_char_boundary(Self::BODY_LIMIT);
        self.body = Some(body[..end].to_owned());
        self
    }

    crate::setters::setters! {
        /// Sets the delay that the service requested.
        pub fn with_retry_after(self, wait: Option<Duration>) { self.retry_after = wait }

        /// Sets the service's id of the request.
        pub fn with_request_id(self, id: Option<String>) { self.request_id = id }
    }

    /// Removes secrets that the service has echoed. If the text of a cause contains a secret, the cause is dropped,
    /// because its text can't be changed.
    #[cfg(feature = "http")]
    pub(crate) fn scrubbed(mut self, scrubber: &super::Scrubber) -> Self {
        self.message = scrubber.scrub(&self.message).into_owned();
        self.body = self.body.map(|body| scrubber.scrub(&body).into_owned());
        self.request_id = self.request_id.map(|id| scrubber.scrub(&id).into_owned());
        self.source.take_if(|source| scrubber.shows_in(&**source));
        self
    }

    /// Writes the fields that are set, and the beginning of the body. The cause is part of the message.
    fn details(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// Sets whether the error is retryable, independent of its kind.
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
    /// Returns the first error in the cause's chain that the message does not contain.
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        source_after(&self.message, self.source.as_deref()?)
    }
}

debug_as_chain!(ProviderError, details);

impl Eq for ProviderError {}

impl PartialEq for ProviderError {
    /// Compares everything except the cause, which is part of the message.
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message, self.retryable, self.retry_after, self.status)
            == (other.kind, &other.message, other.retryable, other.retry_after, other.status)
            && (&self.body, &self.request_id) == (&other.body, &other.request_id)
    }
}

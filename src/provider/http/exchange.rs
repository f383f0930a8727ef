//! One exchange with a service: sends a request, reads the head of the response, and turns the body into deltas or an
//! error.

use std::{
    borrow::Cow,
    error::Error,
    sync::OnceLock,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use reqwest::{
    Response, Url,
    header::{CONTENT_ENCODING, CONTENT_TYPE, DATE, HeaderMap, LOCATION, RETRY_AFTER},
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    Timeouts,
    answer::{ReaderParts, ResponseReader},
    client, gzip,
};
use crate::provider::dialect::{Dialect, with_wait};
use crate::provider::{DeltaStream, ProviderError, ProviderErrorKind, Scrubber, Secret, SecretMatchMode};

/// How long to wait for the body of an error. The status is already known, and the body only adds an explanation.
const ERROR_BODY_TIME: Duration = Duration::from_secs(10);

/// The maximum length of a header's value in bytes. A longer value is ignored. Only the name of a compression is
/// shortened instead.
const LONGEST_HEADER: usize = 256;

/// A request that is ready to be sent.
pub(super) struct OutgoingHttpRequest {
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) timeouts: Timeouts,
}

/// Prepares the errors of an exchange: adds the id of the request and removes secrets.
pub(super) struct ExchangeErrorScrubber {
    secrets: Vec<(Secret, SecretMatchMode)>,
    /// The scrubber. It is created when the first text has to be scrubbed, because most exchanges need no scrubbing.
    scrubber: OnceLock<Scrubber>,
    /// The id of the request, as the service sent it. Only scrubbed copies of the id are used outside this struct.
    request_id: Option<String>,
}

impl ExchangeErrorScrubber {
    pub(super) fn new(secrets: Vec<(Secret, SecretMatchMode)>) -> Self {
        Self { secrets, scrubber: OnceLock::new(), request_id: None }
    }

    pub(super) fn error_context(&self, mut error: ProviderError) -> ProviderError {
        if error.request_id.is_none() {
            error.request_id.clone_from(&self.request_id);
        }
        error.scrubbed(self.scrubber())
    }

    pub(super) fn scrub<'t>(&self, text: &'t str) -> Cow<'t, str> {
        self.scrubber().scrub(text)
    }

    fn scrubber(&self) -> &Scrubber {
        self.scrubber
            .get_or_init(|| Scrubber::new(self.secrets.iter().map(|(secret, extent)| (secret, *extent))))
    }
}

/// Sends a request and returns the deltas of its response.
///
/// # Errors
///
/// Returns an error if the service did not respond or responded with an error, or if the content type of its response
/// can't contain events.
pub(super) async fn run(
    outgoing: OutgoingHttpRequest,
    mut parts: ReaderParts,
) -> Result<DeltaStream, ProviderError> {
    let response = send(outgoing).await.map_err(|error| parts.error_context.error_context(error))?;
    parts.error_context.request_id = request_id(response.headers());
    let status = response.status().as_u16();
    let error_context = &parts.error_context;
    tracing::debug!(
        status,
        request_id = error_context.request_id.as_deref().map(|id| error_context.scrub(id)).as_deref(),
        "the service responded"
    );
    let checked = match check(&response) {
        Ok(()) if response.status().is_success() => {
            return Ok(Box::pin(ResponseReader::new(response.bytes_stream(), parts)));
        }
        Ok(()) => refusal(response, &*parts.dialect, parts.limits.error_body, &parts.error_context).await,
        Err(error) => {
            let compression = compression(response.headers());
            let head = read(response, ProviderError::BODY_LIMIT).await;
            let error = error.with_status(status);
            match text(&head, compression) {
                Ok(head) => error.with_body(&parts.error_context.scrub(&head)),
                Err(_) => error,
            }
        }
    };
    Err(parts.error_context.error_context(checked))
}

async fn send(outgoing: OutgoingHttpRequest) -> Result<Response, ProviderError> {
    let OutgoingHttpRequest { url, headers, body, timeouts } = outgoing;
    let host = url.host_str().unwrap_or_default().to_owned();
    let sent = client::client(&url, timeouts.connect)?.post(url).headers(headers).body(body).send();
    match timeout(timeouts.first_byte, sent).await {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) if error.is_connect() && error.is_timeout() => {
            let message =
                format!("no connection to {host} within {:?}, the connect timeout", timeouts.connect);
            Err(ProviderError::new(ProviderErrorKind::Timeout, message))
        }
        Ok(Err(error)) => {
            let what = if error.is_connect() { "no connection to" } else { "no response from" };
            Err(with_cause(ProviderErrorKind::Transport, &format!("{what} {host}"), error))
        }
        Err(_) => {
            let message =
                format!("no response from {host} within {:?}, the first-byte timeout", timeouts.first_byte);
            Err(ProviderError::new(ProviderErrorKind::Timeout, message))
        }
    }
}

/// Converts an error of the connection. The message contains the innermost cause, because this cause is the helpful
/// part, and only the message of an error is stored.
pub(super) fn with_cause(kind: ProviderErrorKind, what: &str, error: reqwest::Error) -> ProviderError {
    let error = error.without_url();
    let mut cause: &dyn Error = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    ProviderError::new(kind, format!("{what}: {cause}")).with_source(error)
}

/// Checks whether the head of the response announces a body that can be read.
fn check(response: &Response) -> Result<(), ProviderError> {
    let headers = response.headers();
    let bad = |message| Err(ProviderError::new(ProviderErrorKind::Decoding, message));
    if response.status().is_redirection() {
        let to = short_header(headers, LOCATION.as_str()).unwrap_or_else(|| "another address".to_owned());
        // The query of an address may contain secrets, so it is removed.
        let to = to.split('?').next().unwrap_or_default();
        let message = format!(
            "the service redirects to {to}, which is not followed, since it would take the key there; \
             set the base URL to where the service is"
        );
        return Err(ProviderError::new(ProviderErrorKind::InvalidRequest, message));
    }
    if !response.status().is_success() {
        return Ok(());
    }
    if let Some(compression) = compression(headers) {
        return bad(format!(
            "the response is compressed as {compression:?}, although the request allows no compression"
        ));
    }
    let Some(full) = short_header(headers, CONTENT_TYPE.as_str()) else {
        return Ok(());
    };
    let media_type = full.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let readable = matches!(
        &*media_type,
        "text/event-stream" | "text/plain" | "application/octet-stream" | "application/jsonl"
    ) || media_type.contains("json");
    if readable {
        return Ok(());
    }
    bad(format!("the response has content type {media_type:?}, which has no events; check the base URL"))
}

/// Returns the error for a response with an error status.
async fn refusal(
    response: Response,
    dialect: &dyn Dialect,
    limit: usize,
    error_context: &ExchangeErrorScrubber,
) -> ProviderError {
    let status = response.status().as_u16();
    let headers = response.headers();
    let (wait, repeats) = (retry_after(headers), should_retry(headers));
    let mut compression = compression(headers);
    let mut body = read(response, limit).await;
    if let None | Some("gzip" | "x-gzip") = compression.as_deref()
        && let Some(content) = gzip::unpacked(&body, limit)
    {
        (body, compression) = (content, None);
    }
    let mut error = match text(&body, compression) {
        // The body is scrubbed before it is truncated, because a fragment of a key would not be recognised.
        Ok(body) => dialect.error(status, &error_context.scrub(&body)),
        Err(reason) => {
            // The body could not be read, so only the status describes the error.
            let mut error = dialect.error(status, "");
            error.message = format!("the body of the error can't be read: {reason}");
            error.body = None;
            error
        }
    };
    error.status = error.status.or(Some(status));
    error = with_wait(error, wait);
    error.retryable = repeats.unwrap_or(error.retryable);
    error
}

/// Returns the text of an error's body. If the body is not text, returns the reason, because other bytes would be
/// useless in errors and logs.
fn text(body: &[u8], compression: Option<String>) -> Result<Cow<'_, str>, String> {
    const MAGIC: [(&[u8], &str); 2] = [(b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd")];
    let by_magic =
        MAGIC.iter().find(|(magic, _)| body.starts_with(magic)).map(|(_, name)| (*name).to_owned());
    if let Some(compression) = compression.or(by_magic) {
        return Err(format!(
            "it is compressed as {compression:?}, although the request allows no compression"
        ));
    }
    let text = String::from_utf8_lossy(body);
    // Text in an unexpected encoding contains some unreadable characters, but only a few.
    let unreadable = |c: &char| *c == char::REPLACEMENT_CHARACTER || (c.is_control() && !c.is_whitespace());
    let count = text.chars().filter(unreadable).count();
    if text.contains('\0') || count > text.chars().count() / 4 {
        return Err(format!("its {} bytes contain no text", body.len()));
    }
    Ok(text)
}

/// Reads as much of a body as the limits on bytes and time allow.
async fn read(mut response: Response, limit: usize) -> Vec<u8> {
    let deadline = Instant::now() + ERROR_BODY_TIME;
    let mut body = Vec::new();
    while let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await {
        let room = limit - body.len();
        body.extend_from_slice(&chunk[..room.min(chunk.len())]);
        if body.len() == limit {
            break;
        }
    }
    body
}

/// Returns how long the service asks to wait. The header `retry-after-ms`, which the SDKs of OpenAI and Anthropic read,
/// takes precedence. Otherwise, `Retry-After` is used, in seconds or as a date (RFC 9110, section 10.2.3).
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let millis = short_header(headers, "retry-after-ms").as_deref().and_then(number);
    if let Some(wait) = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok()) {
        return Some(wait);
    }
    let text = short_header(headers, RETRY_AFTER.as_str())?;
    if let Some(seconds) = number(&text) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = httpdate::parse_http_date(text.trim()).ok()?;
    // If the response contains the service's own time, that time is used, because the service's clock may differ from
    // ours.
    let now = short_header(headers, DATE.as_str()).and_then(|date| httpdate::parse_http_date(&date).ok());
    Some(until.duration_since(now.unwrap_or_else(SystemTime::now)).unwrap_or_default())
}

/// Returns whether the service declares that the same request can succeed, or `None` without such a declaration. The
/// declaration is in a header that the SDKs of OpenAI and Anthropic obey.
fn should_retry(headers: &HeaderMap) -> Option<bool> {
    match short_header(headers, "x-should-retry").as_deref() {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ => None,
    }
}

/// Returns the service's id of the request. Anthropic sends it in the header `request-id`, and all other services in
/// `x-request-id`.
fn request_id(headers: &HeaderMap) -> Option<String> {
    short_header(headers, "request-id").or_else(|| short_header(headers, "x-request-id"))
}

/// Returns the compression of the body, or `None` if the body is not compressed.
fn compression(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let list = values.map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    let list = list.collect::<Vec<_>>().join(",");
    let codings = list.split(',').map(str::trim).filter(|coding| !matches!(*coding, "" | "identity"));
    let codings = codings.collect::<Vec<_>>().join(", ");
    (!codings.is_empty()).then(|| codings.chars().take(LONGEST_HEADER).collect())
}

/// Returns a header's value, if it is text and not too long.
fn short_header(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    (!value.is_empty() && value.len() <= LONGEST_HEADER).then(|| value.to_owned())
}

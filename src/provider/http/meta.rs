//! Reads the headers of a response.

use std::time::{Duration, SystemTime};

use reqwest::header::{CONTENT_ENCODING, DATE, HeaderMap, RETRY_AFTER};

/// The maximum length of a header's value in bytes. A longer value is ignored. Only the name of a compression is
/// shortened instead.
const SHORT: usize = 256;

/// Returns how long the service asks to wait. The header `retry-after-ms`, which the SDKs of OpenAI and Anthropic read,
/// takes precedence. Otherwise, `Retry-After` is used, in seconds or as a date (RFC 9110, section 10.2.3).
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let millis = short(headers, "retry-after-ms").as_deref().and_then(number);
    if let Some(wait) = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok()) {
        return Some(wait);
    }
    let text = short(headers, RETRY_AFTER.as_str())?;
    if let Some(seconds) = number(&text) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let until = httpdate::parse_http_date(text.trim()).ok()?;
    // If the response contains the service's own time, that time is used, because the service's clock may differ from
    // ours.
    let now = short(headers, DATE.as_str()).and_then(|date| httpdate::parse_http_date(&date).ok());
    Some(until.duration_since(now.unwrap_or_else(SystemTime::now)).unwrap_or_default())
}

/// Returns whether the service declares that the same request can succeed, or `None` without such a declaration. The
/// declaration is in a header that the SDKs of OpenAI and Anthropic obey.
pub(super) fn should_retry(headers: &HeaderMap) -> Option<bool> {
    match short(headers, "x-should-retry").as_deref() {
        Some("true") => Some(true),
        Some("false") => Some(false),
        _ => None,
    }
}

/// Returns the service's id of the request. Anthropic sends it in the header `request-id`, and all other services in
/// `x-request-id`.
pub(super) fn request_id(headers: &HeaderMap) -> Option<String> {
    short(headers, "request-id").or_else(|| short(headers, "x-request-id"))
}

/// Returns the compression of the body, or `None` if the body is not compressed.
pub(super) fn compression(headers: &HeaderMap) -> Option<String> {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let list = values.map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    let list = list.collect::<Vec<_>>().join(",");
    let codings = list.split(',').map(str::trim).filter(|coding| !matches!(*coding, "" | "identity"));
    let codings = codings.collect::<Vec<_>>().join(", ");
    (!codings.is_empty()).then(|| codings.chars().take(SHORT).collect())
}

/// Returns a header's value, if it is text and not too long.
pub(super) fn short(headers: &HeaderMap, name: &str) -> Option<String> {
    let value = headers.get(name)?.to_str().ok()?;
    (!value.is_empty() && value.len() <= SHORT).then(|| value.to_owned())
}

//! Stray events, which are events that are not part of a response. Examples are keep-alives, prices, events of other
//! wire formats, and failure reports. All wire formats treat stray events in the same way. A failure report is an
//! error. All other stray events are skipped.

use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::error::{self, is_error};
use crate::provider::{ProviderError, ProviderErrorKind, dialect::Frame, halves};

/// The number of bytes of a stray event that an error message quotes.
const QUOTE: usize = 200;

/// The stray events of one response.
#[derive(Debug, Default)]
pub(super) struct Strays {
    /// The first stray event that has members but does not name its kind. A gateway may send such an object instead of
    /// a response.
    first: Option<Box<str>>,
    /// The number of stray events. Counting stops at 2.
    count: u8,
}

impl Strays {
    /// Skips an event that is a JSON object without any member of a response.
    ///
    /// # Errors
    ///
    /// Fails if the event reports a failure.
    pub(super) fn skip(&mut self, data: &str) -> Result<(), ProviderError> {
        self.count = self.count.saturating_add(1).min(2);
        let Ok(Value::Object(event)) = halves::read(data) else {
            return Ok(());
        };
        if is_report(&event) {
            return Err(error::from_event(data));
        }
        if name_of(&event).is_none() && !event.is_empty() && self.first.is_none() {
            let end = data.floor_char_boundary(ProviderError::BODY_LIMIT);
            self.first = Some(data[..end].into());
        }
        Ok(())
    }

    /// Returns the error for a stream that ended before the response was complete. `begun` indicates whether any event
    /// was part of a response.
    pub(super) fn truncated(&self, begun: bool, message: &str) -> ProviderError {
        match &self.first {
            // The only event was not part of a response, so nothing was cut off.
            Some(first) if self.count == 1 && !begun => {
                let quote = &first[..first.floor_char_boundary(QUOTE)];
                let message = format!("the service sent something other than a response: {quote}");
                ProviderError::new(ProviderErrorKind::Decoding, message).with_body(first)
            }
            Some(first) => ProviderError::new(ProviderErrorKind::Truncated, message).with_body(first),
            None => ProviderError::new(ProviderErrorKind::Truncated, message),
        }
    }
}

/// Skips data that cannot be parsed as an event, if its event has a name. This is for wire formats whose own events
/// have no names.
///
/// # Errors
///
/// Fails if the event may be part of the response, or if it reports a failure. If it may be part of the response,
/// `what` is the message of the error.
pub(super) fn skip_unreadable(
    frame: Frame<'_>,
    what: &str,
    cause: serde_json::Error,
) -> Result<(), ProviderError> {
    let data = frame.data.trim_ascii();
    let reports = match halves::read(data) {
        Ok(Value::Object(event)) => is_named_report(&event),
        // Google's compatible endpoint sends errors as a list.
        Ok(Value::Array(items)) => items.iter().any(|item| item.get("error").is_some_and(is_error)),
        _ => false,
    };
    if reports {
        return Err(error::from_event(data));
    }
    if frame.name().is_empty() || may_be_own(data) {
        return Err(ProviderError::new(ProviderErrorKind::Decoding, what).with_source(cause).with_body(data));
    }
    Ok(())
}

/// Returns whether unparsable data may still be part of the response, although the wire format does not know the
/// event's name. Such data is JSON of another shape, JSON with half of a surrogate pair, or truncated JSON.
pub(super) fn may_be_own(data: &str) -> bool {
    match serde_json::from_str::<IgnoredAny>(data) {
        Ok(_) => data.starts_with('{'),
        Err(error) => error.is_eof() && data.starts_with(['{', '[']),
    }
}

/// Returns whether an event without any member of a response reports a failure.
fn is_report(event: &Map<String, Value>) -> bool {
    let speaks = || ["message", "msg"].iter().any(|key| !text_at(event, key).is_empty());
    is_named_report(event) || name_of(event).is_none() && speaks()
}

/// Returns whether the members of an event report a failure explicitly.
fn is_named_report(event: &Map<String, Value>) -> bool {
    let has_errors = event.get("errors").and_then(Value::as_array).is_some_and(|errors| !errors.is_empty());
    let has_error = |member: &Value| member.get("error").is_some_and(is_error);
    has_errors
        || event.get("error").is_some_and(is_error)
        // An event of a known kind may quote the failure of something else, such as a tool.
        || name_of(event).is_none() && event.values().any(has_error)
        || name_of(event).is_some_and(|name| name.to_ascii_lowercase().ends_with("error"))
}

/// Returns the name of the event's kind, as stated in the event.
fn name_of(event: &Map<String, Value>) -> Option<&str> {
    ["type", "object", "event"].iter().map(|key| text_at(event, key)).find(|name| !name.is_empty())
}

fn text_at<'v>(event: &'v Map<String, Value>, key: &str) -> &'v str {
    event.get(key).and_then(Value::as_str).unwrap_or_default()
}

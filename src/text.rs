//! Shortened texts.

use std::borrow::Cow;

/// Returns `text` if it has at most `max` bytes. Otherwise returns the longest prefix of at most `max` bytes, plus an
/// ellipsis, which does not count towards the limit.
pub(crate) fn clip(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max { text.into() } else { format!("{}…", start(text, max)).into() }
}

/// Returns the longest beginning of `text` with at most `max` bytes.
pub(crate) fn start(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

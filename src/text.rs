//! Shortened texts.

use std::borrow::Cow;

/// Returns `text`, or the longest start of it that takes at most `max` bytes, followed by an ellipsis.
pub(crate) fn clip(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max { text.into() } else { format!("{}…", start(text, max)).into() }
}

/// Returns the longest start of `text` that takes at most `max` bytes.
pub(crate) fn start(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

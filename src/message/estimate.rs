//! Estimates of the number of tokens, without a tokenizer.
//!
//! The weights were fitted to the tokenizer o200k. As a share of the true number, the estimate is 0.8 to 1.2 for the
//! texts in `tests/message/estimates.json`: prose and code in several languages, JSON, logs and lists of files.

use super::{Attachment, Content, Message, ResultBlock, Source};

/// The tokens of a message in addition to its content.
const PER_MESSAGE: u64 = 4;

/// The kinds of characters. A run consists of adjacent characters of one kind.
#[derive(Clone, Copy, PartialEq)]
enum CharKind {
    Lower,
    Upper,
    Digit,
    Space,
    LineEnd,
    /// Another ASCII character.
    Mark,
    Other,
}

fn kind(c: char) -> CharKind {
    match c {
        'a'..='z' => CharKind::Lower,
        'A'..='Z' => CharKind::Upper,
        '0'..='9' => CharKind::Digit,
        ' ' => CharKind::Space,
        '\n' | '\r' => CharKind::LineEnd,
        c if c.is_ascii() => CharKind::Mark,
        _ => CharKind::Other,
    }
}

/// Returns the weight of a character outside of ASCII, in hundredths of a token.
const fn weight(c: char) -> u64 {
    match c as u32 {
        0x00C0..=0x024F | 0x1E00..=0x1EFF => 55,    // Latin
        0x0370..=0x052F | 0x1F00..=0x1FFF => 30,    // Greek, Cyrillic
        0x0590..=0x077F | 0x08A0..=0x08FF => 33,    // Hebrew, Arabic
        0x0E00..=0x0E7F => 42,                      // Thai
        0x3040..=0x30FF => 75,                      // kana
        0x1100..=0x11FF | 0xAC00..=0xD7AF => 65,    // Hangul
        0x3400..=0x4DBF | 0x4E00..=0x9FFF => 70,    // Han
        0x2600..=0x27BF | 0x1F000..=0x1FAFF => 180, // emoji
        _ => 80,
    }
}

/// Returns the estimated number of tokens of a text. One pass over the characters.
pub(crate) fn text_tokens(text: &str) -> u64 {
    let mut hundredths = 0;
    let (mut before, mut last, mut place) = (None, None, 0_u64);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let own = kind(c);
        let starts = match own {
            // A capital belongs to the lower-case letters after it.
            CharKind::Upper => before != Some(own) || chars.peek().is_some_and(char::is_ascii_lowercase),
            CharKind::Lower => !matches!(before, Some(CharKind::Lower | CharKind::Upper)),
            own => before != Some(own),
        };
        place = if starts { 0 } else { place + 1 };
        hundredths += match (own, place) {
            (CharKind::Lower | CharKind::Upper, 0)
                if matches!(before, Some(CharKind::Digit | CharKind::Lower)) =>
            {
                100
            }
            (CharKind::Lower | CharKind::Upper, 0) => 85,
            (CharKind::Lower, 1..5) => 2,
            (CharKind::Upper, 1..5) => 25,
            (CharKind::Lower | CharKind::Upper, _) => 17,
            (CharKind::Digit, 0) if before == Some(CharKind::Space) => 190,
            (CharKind::Digit, place) if place.is_multiple_of(3) => 100,
            (CharKind::Space, 1) => 80,
            (CharKind::LineEnd, 0) => 60,
            (CharKind::Digit | CharKind::Space | CharKind::LineEnd, _) => 0,
            (CharKind::Mark, 0) => 75,
            (CharKind::Mark, _) if last == Some(c) => 10,
            (CharKind::Mark, _) => 45,
            (CharKind::Other, _) => weight(c),
        };
        (before, last) = (Some(own), Some(c));
    }
    u64::div_ceil(hundredths, 100)
}

impl Message {
    /// Returns the estimated number of tokens of the message in a request. Services count differently, and no tokenizer
    /// is used: for texts, the estimate is usually within a fifth of the true number. O(bytes).
    pub fn estimated_tokens(&self) -> u64 {
        PER_MESSAGE + self.content.iter().map(content_tokens).sum::<u64>()
    }
}

fn content_tokens(block: &Content) -> u64 {
    match block {
        Content::Text(text) => text_tokens(&text.text),
        Content::Thinking(thinking) => text_tokens(&thinking.text),
        Content::Attachment(file) => file_tokens(file),
        Content::ToolUse(tool_use) => text_tokens(&tool_use.name) + text_tokens(&tool_use.input.to_string()),
        Content::ToolResult(result) => {
            let block = |block: &ResultBlock| match block {
                ResultBlock::Text(text) => text_tokens(&text.text),
                ResultBlock::Attachment(file) => file_tokens(file),
            };
            result.content.iter().map(block).sum()
        }
        Content::ProviderItem(item) => text_tokens(&item.data.to_string()),
    }
}

/// Returns the estimated number of tokens of a file. Services that fetch a file know its size, so only its kind counts.
fn file_tokens(Attachment { source, media_type, .. }: &Attachment) -> u64 {
    let bytes = match source {
        Source::Base64 { data } => data.len() as u64 * 3 / 4,
        Source::Url { .. } => 0,
    };
    match media_type.as_str() {
        "application/pdf" => (bytes / 40).max(2000),
        kind if kind.starts_with("image/") => 1600,
        kind if kind.starts_with("audio/") => bytes / 500,
        _ => bytes / 4,
    }
}

//! Joins the halves of characters. A service or program whose strings are UTF-16 may cut a text between the two halves
//! (surrogates) of a character. Each half then arrives as a separate escape, `\uD83D` and `\uDE00`, perhaps in two
//! events. A JSON reader rejects both halves.
//!
//! [`marked`] rewrites such JSON so that it can be read, and replaces each half with a mark. Which text continues which
//! other text is known only from the deltas. Therefore, [`SurrogateHalves`] resolves the marks in the deltas. If a text ends
//! with a first half and the text that continues it begins with a second half, the two halves become a character. An
//! unpaired half becomes U+FFFD at its position.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{BlockStart, Delta, Part, ProviderError, StopReason};

/// The first character of a mark. It is a noncharacter, which does not occur in normal text. The second character of
/// the mark encodes the half.
const MARK: char = '\u{10FFFF}';
/// The offset between the half and the second character of a mark. That character is in the last plane for private use.
const PLANE: u32 = 0x10_0000;
/// The number of bytes of an escape: `\uXXXX`.
const ESCAPE: usize = 6;

/// Returns the JSON text with a mark instead of each unpaired half, or `None` if there are no unpaired halves.
pub(in crate::provider) fn marked(json: &str) -> Option<String> {
    let mut marked = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(found) = json[at..].find('\\') {
        at += found;
        let Some(half) = SurrogateHalf::escaped(json, at) else {
            // The escaped character may be a backslash, so it is skipped.
            at += 2;
            if !json.is_char_boundary(at) {
                break;
            }
            continue;
        };
        let end = at + ESCAPE;
        if let Some(second) = SurrogateHalf::escaped(json, end)
            && half.joined(second).is_some()
        {
            at = end + ESCAPE;
            continue;
        }
        marked.push_str(&json[copied..at]);
        marked.extend([MARK, half.mark()]);
        (copied, at) = (end, end);
    }
    (copied > 0).then(|| marked + &json[copied..])
}

/// Parses JSON text that may contain unpaired halves. Two adjacent halves of a character become this character. Every
/// other half becomes U+FFFD.
///
/// # Errors
///
/// Fails if the text is not JSON for a reason other than its halves.
pub(in crate::provider) fn read(json: &str) -> serde_json::Result<Value> {
    serde_json::from_str(json).or_else(|error| {
        let mut value = serde_json::from_str(&marked(json).ok_or(error)?)?;
        resolve_value(&mut value);
        Ok(value)
    })
}

/// Returns the JSON text with U+FFFD instead of each unpaired half, or `None` if there are no unpaired halves.
pub(in crate::provider) fn replaced(json: &str) -> Option<String> {
    let mut replaced = marked(json)?;
    resolve_text(&mut replaced);
    Some(replaced)
}

/// Resolves the marks in the deltas of one response.
#[derive(Debug, Default)]
pub(in crate::provider) struct SurrogateHalves {
    /// Whether an unpaired half has occurred. Before that, deltas are forwarded without a check.
    found: bool,
    /// The first halves of characters with which texts ended, by the index of the block.
    open: HashMap<usize, (ExtendableTextKind, SurrogateHalf)>,
}

impl SurrogateHalves {
    /// Returns the JSON text of an event with a [mark](marked) instead of each unpaired half, or `None` if there are no
    /// unpaired halves.
    pub(in crate::provider) fn mark(&mut self, json: &str) -> Option<String> {
        let marked = marked(json)?;
        self.found = true;
        Some(marked)
    }

    /// Resolves the marks in the deltas of an event. If a text ends with a first half, this half waits for the text's
    /// continuation.
    pub(in crate::provider) fn resolve(&mut self, deltas: &mut Vec<Delta>) {
        if !self.found {
            return;
        }
        for delta in std::mem::take(deltas) {
            match delta {
                Delta::Start { index, mut block } => {
                    resolve_start(&mut block);
                    deltas.push(Delta::Start { index, block });
                }
                Delta::Extend { index, part } => self.extend(index, part, deltas),
                Delta::End { index } => {
                    self.give_up(index, deltas);
                    deltas.push(Delta::End { index });
                }
                Delta::Message(mut message) => {
                    if let Some(reason) = &mut message.stop_reason {
                        if let StopReason::Other(word) = reason {
                            resolve_text(word);
                        }
                        self.finish(deltas);
                    }
                    message.model.iter_mut().chain(&mut message.warnings).for_each(resolve_text);
                    resolve_members(&mut message.provider_data);
                    deltas.push(Delta::Message(message));
                }
                retry @ Delta::Retry { .. } => {
                    self.open.clear();
                    deltas.push(retry);
                }
            }
        }
    }

    /// Ends the response. Each half that is still waiting becomes U+FFFD.
    pub(in crate::provider) fn finish(&mut self, deltas: &mut Vec<Delta>) {
        let mut open: Vec<usize> = self.open.keys().copied().collect();
        open.sort_unstable();
        for index in open {
            self.give_up(index, deltas);
        }
    }

    /// Returns the error with each mark of a half replaced by U+FFFD.
    pub(in crate::provider) fn resolve_error(&self, mut error: ProviderError) -> ProviderError {
        if self.found {
            resolve_text(&mut error.message);
            error.body.iter_mut().chain(&mut error.request_id).for_each(resolve_text);
        }
        error
    }

    fn extend(&mut self, index: usize, part: Part, deltas: &mut Vec<Delta>) {
        let (kind, text) = match part {
            Part::Text(text) => (ExtendableTextKind::Text, text),
            Part::Input(text) => (ExtendableTextKind::Input, text),
            Part::Signature(text) => (ExtendableTextKind::Signature, text),
            Part::Redacted(text) => (ExtendableTextKind::Redacted, text),
            Part::Item(mut item) => {
                resolve_value(&mut item);
                return deltas.push(Delta::Extend { index, part: Part::Item(item) });
            }
        };
        if self.open.get(&index).is_some_and(|(open, _)| *open != kind) {
            self.give_up(index, deltas);
        }
        let before = self.open.remove(&index).map(|(_, half)| half);
        let (text, open) = resolved(before, text);
        if let Some(half) = open {
            self.open.insert(index, (kind, half));
        }
        if !text.is_empty() {
            deltas.push(Delta::Extend { index, part: kind.part(text) });
        }
    }

    /// Replaces the half that waits in this block with U+FFFD, because its text was not continued.
    fn give_up(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        if let Some((kind, _)) = self.open.remove(&index) {
            let part = kind.part(char::REPLACEMENT_CHARACTER.to_string());
            deltas.push(Delta::Extend { index, part });
        }
    }
}

/// The kinds of text with which a block can be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtendableTextKind {
    Text,
    Input,
    Signature,
    Redacted,
}

impl ExtendableTextKind {
    fn part(self, text: String) -> Part {
        match self {
            Self::Text => Part::Text(text),
            Self::Input => Part::Input(text),
            Self::Signature => Part::Signature(text),
            Self::Redacted => Part::Redacted(text),
        }
    }
}

/// One half: a surrogate of UTF-16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::provider) struct SurrogateHalf(u16);

impl SurrogateHalf {
    /// Returns the half that is escaped at this position, if there is one.
    fn escaped(json: &str, at: usize) -> Option<Self> {
        let digits = json.get(at..at + ESCAPE)?.strip_prefix("\\u")?;
        let unit = digits.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(digits)?;
        let unit = u16::from_str_radix(unit, 16).ok()?;
        (0xD800..=0xDFFF).contains(&unit).then_some(Self(unit))
    }

    /// Returns the second character of the half's mark.
    fn mark(self) -> char {
        char::from_u32(PLANE + u32::from(self.0)).unwrap_or(char::REPLACEMENT_CHARACTER)
    }

    /// Returns the half that the second character of a mark encodes.
    fn of_mark(mark: char) -> Option<Self> {
        let unit = u16::try_from(u32::from(mark).checked_sub(PLANE)?).ok()?;
        (0xD800..=0xDFFF).contains(&unit).then_some(Self(unit))
    }

    fn is_first(self) -> bool {
        self.0 < 0xDC00
    }

    /// Returns the character that the two halves form, if they form one.
    fn joined(self, second: Self) -> Option<char> {
        char::decode_utf16([self.0, second.0]).next()?.ok()
    }
}

/// Returns the text without marks, and the first half with which it ends, if any. `before` is the half with which the
/// preceding text ended.
pub(in crate::provider) fn resolved(
    before: Option<SurrogateHalf>,
    text: String,
) -> (String, Option<SurrogateHalf>) {
    if before.is_none() && !text.contains(MARK) {
        return (text, None);
    }
    let mut open = before;
    let mut resolved = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        let next = characters.clone().next().filter(|_| character == MARK);
        let half = next.and_then(SurrogateHalf::of_mark);
        let last = open.take();
        if half.is_some() {
            characters.next();
        }
        let pair = last.zip(half).and_then(|(first, second)| first.joined(second));
        if last.is_some() && pair.is_none() {
            resolved.push(char::REPLACEMENT_CHARACTER);
        }
        match (pair, half) {
            (Some(pair), _) => resolved.push(pair),
            (None, Some(half)) if half.is_first() => open = Some(half),
            (None, Some(_)) => resolved.push(char::REPLACEMENT_CHARACTER),
            (None, None) => resolved.push(character),
        }
    }
    (resolved, open)
}

fn resolve_text(text: &mut String) {
    if text.contains(MARK) {
        let (mut resolved, open) = resolved(None, std::mem::take(text));
        resolved.extend(open.map(|_| char::REPLACEMENT_CHARACTER));
        *text = resolved;
    }
}

pub(in crate::provider) fn resolve_value(value: &mut Value) {
    match value {
        Value::String(text) => resolve_text(text),
        Value::Array(items) => items.iter_mut().for_each(resolve_value),
        Value::Object(members) => resolve_members(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn resolve_members(members: &mut Map<String, Value>) {
    if members.keys().any(|key| key.contains(MARK)) {
        let resolved = std::mem::take(members).into_iter().map(|(mut key, value)| {
            resolve_text(&mut key);
            (key, value)
        });
        *members = resolved.collect();
    }
    members.values_mut().for_each(resolve_value);
}

fn resolve_start(block: &mut BlockStart) {
    match block {
        BlockStart::Text | BlockStart::Thinking => {}
        BlockStart::ToolUse { id, name } => {
            if id.as_str().contains(MARK) {
                let mut resolved = id.as_str().to_owned();
                resolve_text(&mut resolved);
                *id = resolved.into();
            }
            resolve_text(name);
        }
        BlockStart::Attachment(attachment) => {
            attachment.name.iter_mut().chain([&mut attachment.media_type]).for_each(resolve_text);
        }
        BlockStart::ProviderItem(item) => resolve_value(&mut item.data),
    }
}

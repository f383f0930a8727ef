//! Joins the halves of characters. A service or program whose strings are UTF-16 may cut a text between the two halves
//! (surrogates) of a character. Each half then arrives as a separate escape, `\uD83D` and `\uDE00`, perhaps in two
//! events. A JSON reader rejects both halves.
//!
//! [`parse`] reads such JSON: an unpaired half becomes U+FFFD. If another text may continue the text, [`marked`] replaces
//! each half with a mark, and [`resolved`] joins the halves of two consecutive texts.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// The first character of a mark. It is a noncharacter, which does not occur in normal text. The second character of
/// the mark encodes the half.
pub(crate) const MARK: char = '\u{10FFFF}';
/// The offset between the half and the second character of a mark. That character is in the last plane for private use.
const PLANE: u32 = 0x10_0000;
/// The number of bytes of an escape: `\uXXXX`.
const ESCAPE: usize = 6;

/// Returns the JSON text with a mark instead of each unpaired half, or `None` if there are no unpaired halves.
pub(crate) fn marked(json: &str) -> Option<String> {
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
/// Fails if the text is not JSON for a reason other than its halves, or does not describe a `T`.
pub(crate) fn parse<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<T> {
    serde_json::from_slice(json).or_else(|error| serde_json::from_str(&replaced(json).ok_or(error)?))
}

/// Returns the JSON text with U+FFFD instead of each unpaired half, or `None` if there are no unpaired halves.
pub(crate) fn replaced(json: &[u8]) -> Option<String> {
    let mut replaced = marked(std::str::from_utf8(json).ok()?)?;
    resolve_text(&mut replaced);
    Some(replaced)
}

/// One half: a surrogate of UTF-16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SurrogateHalf(u16);

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
pub(crate) fn resolved(before: Option<SurrogateHalf>, text: String) -> (String, Option<SurrogateHalf>) {
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

pub(crate) fn resolve_text(text: &mut String) {
    if text.contains(MARK) {
        let (mut resolved, open) = resolved(None, std::mem::take(text));
        resolved.extend(open.map(|_| char::REPLACEMENT_CHARACTER));
        *text = resolved;
    }
}

pub(crate) fn resolve_value(value: &mut Value) {
    match value {
        Value::String(text) => resolve_text(text),
        Value::Array(items) => items.iter_mut().for_each(resolve_value),
        Value::Object(members) => resolve_members(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

pub(crate) fn resolve_members(members: &mut Map<String, Value>) {
    if members.keys().any(|key| key.contains(MARK)) {
        let resolved = std::mem::take(members).into_iter().map(|(mut key, value)| {
            resolve_text(&mut key);
            (key, value)
        });
        *members = resolved.collect();
    }
    members.values_mut().for_each(resolve_value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_unpaired_halves_are_replaced_and_pairs_kept() {
        let cases = [
            (r#""cut \ud83d""#, "cut \u{fffd}"),
            (r#""\ude00 \uD83D\uDE00 \\ud83d""#, "\u{fffd} \u{1f600} \\ud83d"),
        ];
        for (json, text) in cases {
            assert_eq!(parse::<String>(json.as_bytes()).unwrap(), text, "{json}");
        }
        for json in [r#""\ud83d"#, r#"{"a":"\ud83d"}"#, "\"\u{0}\"", ""] {
            assert!(parse::<String>(json.as_bytes()).is_err(), "{json}");
        }
        assert!(parse::<String>(b"\"\xff\"").is_err());
    }
}

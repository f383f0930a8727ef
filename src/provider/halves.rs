//! Halves of characters: services and programs in languages whose strings are UTF-16 cut a text between the two halves
//! of a character, and so send in two events, as an escape each, what is no text in either.

use std::ops::Range;

/// What stands for a half that is alone: the replacement character.
const REPLACEMENT: &str = "\\ufffd";
/// Bytes of an escape: `\uXXXX`.
const ESCAPE: usize = 6;

/// Puts the halves together again, over all events of one.
#[derive(Debug, Default)]
pub(in crate::provider) struct Halves {
    /// The escape that a text ended with; the other half begins another event.
    first: Option<String>,
}

impl Halves {
    /// The JSON text in which each half is joined with the other, waits for it, or is replaced. `None` if there is
    /// none alone.
    pub(in crate::provider) fn mend(&mut self, json: &str) -> Option<String> {
        let mut mended = String::new();
        let mut copied = 0;
        let mut at = 0;
        while let Some(found) = memchr::memchr(b'\\', &json.as_bytes()[at..]) {
            at += found;
            let Some(half) = half(json, at) else {
                // What is escaped may be a backslash.
                at += 2;
                if at >= json.len() {
                    break;
                }
                continue;
            };
            let end = at + ESCAPE;
            if half == Half::First && self::half(json, end) == Some(Half::Second) {
                at = end + ESCAPE;
                continue;
            }
            mended.push_str(&json[copied..at]);
            let escape = &json[at..end];
            match half {
                Half::First if json[end..].starts_with('"') => self.first = Some(escape.to_owned()),
                Half::Second if json[..at].ends_with('"') => match self.first.take() {
                    Some(first) => mended.extend([&*first, escape]),
                    None => mended.push_str(REPLACEMENT),
                },
                Half::First | Half::Second => mended.push_str(REPLACEMENT),
            }
            (copied, at) = (end, end);
        }
        (copied > 0).then(|| mended + &json[copied..])
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    First,
    Second,
}

/// Which half of a character the escape at this place means, if it means one.
fn half(json: &str, at: usize) -> Option<Half> {
    const FIRST: Range<u16> = 0xD800..0xDC00;
    const SECOND: Range<u16> = 0xDC00..0xE000;

    let digits = json.get(at..at + ESCAPE)?.strip_prefix("\\u")?;
    let unit = u16::from_str_radix(digits, 16).ok()?;
    if FIRST.contains(&unit) { Some(Half::First) } else { SECOND.contains(&unit).then_some(Half::Second) }
}

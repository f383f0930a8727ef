//! Describes the difference between a request and a recorded request, for people to read.

use serde_json::Value;

use crate::text::{clip, start};

/// The maximum number of bytes that are shown of a value.
const SHOWN: usize = 120;
/// The number of bytes that are shown before the first difference of two texts.
const BEFORE: usize = 40;

/// The differences between two values.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// The number of members and items that differ.
    pub(super) count: usize,
    /// The description of the first difference.
    pub(super) first: String,
}

impl Difference {
    /// Compares a recorded request with the request that was sent.
    pub(super) fn between(recorded: &Value, sent: &Value) -> Self {
        let mut difference = Self::default();
        difference.compare(Some(recorded), Some(sent), "");
        difference
    }

    fn compare(&mut self, recorded: Option<&Value>, sent: Option<&Value>, at: &str) {
        match (recorded, sent) {
            (Some(Value::Object(recorded)), Some(Value::Object(sent))) => {
                let added = sent.keys().filter(|name| !recorded.contains_key(*name));
                for name in recorded.keys().chain(added) {
                    let escaped = name.replace('~', "~0").replace('/', "~1");
                    self.compare(recorded.get(name), sent.get(name), &format!("{at}/{escaped}"));
                }
            }
            (Some(Value::Array(recorded)), Some(Value::Array(sent))) => {
                for index in 0..recorded.len().max(sent.len()) {
                    self.compare(recorded.get(index), sent.get(index), &format!("{at}/{index}"));
                }
            }
            (recorded, sent) if recorded == sent => {}
            (recorded, sent) => {
                if self.count == 0 {
                    let (recorded, sent) = shown(recorded, sent);
                    self.first = format!("{at}: {recorded} was recorded, {sent} was sent");
                }
                self.count += recorded.map_or(0, leaves).max(sent.map_or(0, leaves));
            }
        }
    }
}

/// Returns the number of values in `value`, including `value` itself.
fn leaves(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(leaves).sum::<usize>(),
        Value::Object(members) => 1 + members.values().map(leaves).sum::<usize>(),
        _ => 1,
    }
}

/// Returns short forms of two different values. Long texts are shown from shortly before their first difference.
fn shown(recorded: Option<&Value>, sent: Option<&Value>) -> (String, String) {
    if let (Some(Value::String(recorded)), Some(Value::String(sent))) = (recorded, sent) {
        let pairs = recorded.char_indices().zip(sent.chars());
        let equal = pairs.take_while(|((_, one), other)| one == other).last();
        let equal = equal.map_or(0, |((at, one), _)| at + one.len_utf8());
        let from = start(recorded, equal.saturating_sub(BEFORE)).len();
        return (text_from(recorded, from), text_from(sent, from));
    }
    let show = |value: Option<&Value>| {
        value.map_or_else(|| "nothing".to_owned(), |value| clip(&value.to_string(), SHOWN).into_owned())
    };
    (show(recorded), show(sent))
}

fn text_from(text: &str, from: usize) -> String {
    let omitted = if from > 0 { "…" } else { "" };
    format!("{:?}", format!("{omitted}{}", clip(&text[from..], SHOWN)))
}

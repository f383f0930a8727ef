//! What is gathered beside the blocks of an answer.

use serde_json::{Map, Value};

use crate::{
    message::value_weight,
    provider::{ErrorKind, Fold, ProviderError},
};

/// Entries that one answer may have; more are a broken server.
const MAX_ENTRIES: usize = 512;

/// How often they are told before the answer's end. A service may alternate with each token.
const MAX_TOLD: usize = 16;

/// The entries of `reasoning_details`, put together from their fragments. They have to go back whole,
/// unchanged and in order:
/// <https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks>.
///
/// They are told in parts, as they are complete. What comes late for an entry that was told is the beginning of the next
/// part, and put to it when they go back.
#[derive(Default)]
pub(super) struct Details {
    entries: Vec<Value>,
    weight: usize,
    /// Entries and parts that were told.
    told: usize,
    parts: usize,
}

impl Details {
    pub(super) fn add(&mut self, fragments: Value) -> Result<(), ProviderError> {
        self.weight += value_weight(&fragments);
        if self.weight > Fold::LIMIT {
            return Err(endless());
        }
        let Value::Array(fragments) = fragments else {
            return Ok(());
        };
        for fragment in fragments {
            let Value::Object(fragment) = fragment else { continue };
            if let Some(fragment) = continued(&mut self.entries, fragment) {
                if self.told + self.entries.len() == MAX_ENTRIES {
                    return Err(endless());
                }
                self.entries.push(Value::Object(fragment));
            }
        }
        Ok(())
    }

    /// The entries since those that were taken before, if there are any, and this is the last time or not yet too many.
    pub(super) fn take(&mut self, last: bool) -> Option<Vec<Value>> {
        if self.entries.is_empty() || self.parts == MAX_TOLD && !last {
            return None;
        }
        self.parts += 1;
        self.told += self.entries.len();
        Some(std::mem::take(&mut self.entries))
    }
}

/// The annotations of an answer: what it cites, and what the files in the prompt were read as. They come whole,
/// and may be told again.
#[derive(Default)]
pub(super) struct Annotations {
    list: Vec<Value>,
    weight: usize,
}

impl Annotations {
    pub(super) fn add(&mut self, annotations: Value) -> Result<(), ProviderError> {
        let Value::Array(annotations) = annotations else {
            return Ok(());
        };
        for annotation in annotations {
            if !annotation.is_object() || self.list.contains(&annotation) {
                continue;
            }
            self.weight += value_weight(&annotation);
            if self.weight > Fold::LIMIT || self.list.len() == MAX_ENTRIES {
                return Err(ProviderError::new(ErrorKind::Decoding, "annotations without end"));
            }
            self.list.push(annotation);
        }
        Ok(())
    }

    /// All of them, if there are any.
    pub(super) fn take(&mut self) -> Option<Vec<Value>> {
        (!self.list.is_empty()).then(|| std::mem::take(&mut self.list))
    }
}

/// Puts a later part of an answer's entries behind an earlier one.
pub(super) fn append(entries: &mut Vec<Value>, part: &[Value]) {
    for entry in part {
        let rest = match entry {
            // No decoder makes more, and looking for one's beginning costs as many steps.
            Value::Object(entry) if entries.len() <= MAX_ENTRIES => {
                continued(entries, entry.clone()).map(Value::Object)
            }
            entry => Some(entry.clone()),
        };
        entries.extend(rest);
    }
}

/// Joins a fragment to the entry that it goes on with; gives it back if there is none.
fn continued(entries: &mut [Value], fragment: Map<String, Value>) -> Option<Map<String, Value>> {
    let count = entries.len();
    let goes_on = |(at, entry): &(usize, &mut Value)| {
        entry.as_object().is_some_and(|entry| continues(entry, &fragment, at + 1 == count))
    };
    match entries.iter_mut().enumerate().rev().find(goes_on) {
        Some((_, entry)) => {
            join(entry, fragment);
            None
        }
        None => Some(fragment),
    }
}

/// Whether a fragment belongs to an entry: they share the type, and the index or the id. One with neither
/// goes on with the entry before it.
fn continues(entry: &Map<String, Value>, fragment: &Map<String, Value>, is_last: bool) -> bool {
    // `None`: one of them does not say.
    let same = |key| value_of(entry, key).zip(value_of(fragment, key)).map(|(one, other)| one == other);
    let named = ["id", "index"].iter().any(|key| value_of(fragment, key).is_some());
    let together = match (same("id"), same("index")) {
        (Some(false), _) | (_, Some(false)) => false,
        (Some(true), _) | (_, Some(true)) => true,
        (None, None) => is_last && !named,
    };
    // An encrypted payload comes whole; told again, it is the same one.
    let whole = |data| entry.get("data") == Some(data);
    same("type") == Some(true) && together && value_of(fragment, "data").is_none_or(whole)
}

fn value_of<'a>(part: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    part.get(key).filter(|value| !value.is_null())
}

fn join(entry: &mut Value, fragment: Map<String, Value>) {
    let Some(entry) = entry.as_object_mut() else {
        return;
    };
    for (key, value) in fragment {
        match (entry.get_mut(&key), value) {
            (Some(Value::String(text)), Value::String(more)) if key == "text" || key == "summary" => {
                text.push_str(&more);
            }
            (Some(_), Value::Null) => {}
            (_, value) => {
                entry.insert(key, value);
            }
        }
    }
}

fn endless() -> ProviderError {
    ProviderError::new(ErrorKind::Decoding, "reasoning details without end")
}

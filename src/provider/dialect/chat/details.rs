//! Data that is collected in addition to the blocks of a response.

use serde_json::{Map, Value};

use crate::{
    message::value_weight,
    provider::{Fold, ProviderError, ProviderErrorKind},
};

/// The maximum number of entries in one response. Only a broken server sends more.
const MAX_ENTRIES: usize = 512;

/// The maximum number of parts in which a response's entries are emitted before the end of the response. Without this
/// limit, a service that alternates between text and details with each token would cause a part for each token.
const MAX_TOLD: usize = 16;

/// The entries of `reasoning_details`, assembled from their fragments. They have to be sent back complete, unchanged
/// and in order: <https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks>.
///
/// The entries are emitted in parts, as soon as they are complete. A late fragment for an entry that was already
/// emitted begins the next part. The fragment is joined to its entry when the entries are sent back.
#[derive(Default)]
pub(super) struct Details {
    entries: Vec<Value>,
    weight: usize,
    /// The number of entries that were emitted.
    emitted: usize,
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
                if self.emitted + self.entries.len() == MAX_ENTRIES {
                    return Err(endless());
                }
                self.entries.push(Value::Object(fragment));
            }
        }
        Ok(())
    }

    /// Returns the entries that were added after the previous call, if there are any. After [`MAX_TOLD`] parts, entries
    /// are returned only if `last` is true.
    pub(super) fn take(&mut self, last: bool) -> Option<Vec<Value>> {
        if self.entries.is_empty() || self.parts == MAX_TOLD && !last {
            return None;
        }
        self.parts += 1;
        self.emitted += self.entries.len();
        Some(std::mem::take(&mut self.entries))
    }
}

/// The annotations of a response: its citations, and the content that the service read from files in the prompt. Each
/// annotation arrives complete, and may be repeated.
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
                return Err(ProviderError::new(
                    ProviderErrorKind::Decoding,
                    "the annotations of the response exceed the size limit",
                ));
            }
            self.list.push(annotation);
        }
        Ok(())
    }

    /// Returns all annotations, if there are any.
    pub(super) fn take(&mut self) -> Option<Vec<Value>> {
        (!self.list.is_empty()).then(|| std::mem::take(&mut self.list))
    }
}

/// Appends a later part of a response's entries to the entries of the earlier parts.
pub(super) fn append(entries: &mut Vec<Value>, part: &[Value]) {
    for entry in part {
        let rest = match entry {
            // Each entry requires a search through all others, so the number of joined entries is limited. A response
            // contains at most this many entries.
            Value::Object(entry) if entries.len() <= MAX_ENTRIES => {
                continued(entries, entry.clone()).map(Value::Object)
            }
            entry => Some(entry.clone()),
        };
        entries.extend(rest);
    }
}

/// Joins a fragment to the entry that the fragment continues. Returns the fragment if there is no such entry.
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

/// Returns whether a fragment belongs to an entry. The fragment and its entry have the same type, and the same index or
/// id. A fragment without an index and an id continues the last entry.
fn continues(entry: &Map<String, Value>, fragment: &Map<String, Value>, is_last: bool) -> bool {
    // `None` if the entry or the fragment has no value for this key.
    let same = |key| value_of(entry, key).zip(value_of(fragment, key)).map(|(one, other)| one == other);
    let named = ["id", "index"].iter().any(|key| value_of(fragment, key).is_some());
    let together = match (same("id"), same("index")) {
        (Some(false), _) | (_, Some(false)) => false,
        (Some(true), _) | (_, Some(true)) => true,
        (None, None) => is_last && !named,
    };
    // An encrypted payload arrives complete. A repeated payload of the same entry is identical.
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
    ProviderError::new(
        ProviderErrorKind::Decoding,
        "the reasoning details of the response exceed the size limit",
    )
}

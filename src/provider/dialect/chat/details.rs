//! What is gathered beside the blocks of an answer.

use serde_json::{Map, Value};

use crate::{
    message::value_weight,
    provider::{ErrorKind, Fold, ProviderError},
};

/// Entries that one answer may have; more are a broken server.
const MAX_ENTRIES: usize = 512;

/// The entries of `reasoning_details`, put together from their fragments. They have to go back whole,
/// unchanged and in order:
/// <https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks>.
#[derive(Default)]
pub(super) struct Details {
    pub(super) entries: Vec<Value>,
    weight: usize,
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
            let continued = |(at, entry): (usize, &Value)| {
                let is_last = at + 1 == self.entries.len();
                entry.as_object().is_some_and(|entry| continues(entry, &fragment, is_last))
            };
            let place = self.entries.iter().enumerate().rev().find(|entry| continued(*entry));
            match place.map(|(at, _)| at) {
                Some(at) => join(&mut self.entries[at], fragment),
                None if self.entries.len() == MAX_ENTRIES => return Err(endless()),
                None => self.entries.push(Value::Object(fragment)),
            }
        }
        Ok(())
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

//! Assembly of a function call whose arguments arrive in parts.
//!
//! Source: `FunctionCall` and `PartialArg` in <https://googleapis.github.io/js-genai/release_docs/interfaces/>. The
//! path of a part has the form of RFC 9535, with only names and indices: `$.rooms[0]['a.b']`.

use serde_json::{Value, json};

use crate::{message::value_weight, provider::Fold};

/// The maximum number of names and indices in a path. Deeper JSON could not be parsed.
const MAX_STEPS: usize = 100;

/// A function call that is not complete.
#[derive(Default)]
pub(super) struct OpenCall {
    pub(super) block: usize,
    /// The arguments that arrived complete.
    pub(super) args: String,
    /// All arguments so far. `None` if no part has arrived.
    pub(super) parts: Option<Value>,
    pub(super) weight: usize,
}

impl OpenCall {
    /// Adds a part of the arguments. A text is appended to the text that has the same path.
    pub(super) fn add(&mut self, part: &Value) -> Result<(), &'static str> {
        self.weight += value_weight(part);
        if self.weight > Fold::LIMIT {
            return Err("the arguments of a function call exceed the size limit");
        }
        let value = |key: &&str| part.get(*key).filter(|value| !value.is_null());
        let value = match ["stringValue", "numberValue", "boolValue"].iter().find_map(value) {
            Some(value) => value.clone(),
            None if part.get("nullValue").is_some() => Value::Null,
            // The last part of a text may have no value.
            None => return Ok(()),
        };
        let begin = || serde_json::from_str(&self.args).unwrap_or_else(|_| json!({}));
        let place =
            place(self.parts.get_or_insert_with(begin), part["jsonPath"].as_str().unwrap_or_default());
        match (place.ok_or("the path of an argument's part is invalid")?, value) {
            (Value::String(text), Value::String(more)) => text.push_str(&more),
            (place, value) => *place = value,
        }
        Ok(())
    }

    /// Returns the JSON text of the arguments.
    pub(super) fn input(self) -> String {
        let whole = if self.args.is_empty() { "{}".to_owned() } else { self.args };
        self.parts.map_or(whole, |parts| parts.to_string())
    }
}

/// Returns the value at a path, which is created if it is missing. Returns `None` if the path is malformed, or if it
/// leads through a value of another type.
fn place<'v>(root: &'v mut Value, path: &str) -> Option<&'v mut Value> {
    let (mut place, mut rest) = (root, path.strip_prefix('$')?);
    for _ in 0..MAX_STEPS {
        let end = match rest.chars().next() {
            None => return Some(place),
            Some('.') => rest[1..].find(['.', '[']).map_or(rest.len(), |end| end + 1),
            Some(_) => rest.find(']')? + 1,
        };
        let step = rest[..end].trim_start_matches(['.', '[']).trim_end_matches(']');
        let index = if rest.starts_with('[') { step.parse().ok() } else { None };
        rest = &rest[end..];
        if place.is_null() {
            *place = if index.is_some() { json!([]) } else { json!({}) };
        }
        place = match (index, step.trim_matches(['\'', '"'])) {
            (Some(index), _) => {
                let list = place.as_array_mut()?;
                // Only the next element is created, so that a large index allocates nothing.
                list.extend((index == list.len()).then_some(Value::Null));
                list.get_mut::<usize>(index)?
            }
            (None, "") => return None,
            (None, name) => place.as_object_mut()?.entry(name).or_insert(Value::Null),
        };
    }
    None
}

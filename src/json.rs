//! Parses stored JSON, which may be nested more deeply than JSON parsers allow by default, and limits the nesting of
//! values that are to be stored.

pub(crate) mod halves;

use serde::de::DeserializeOwned;
use serde_json::Value;

/// The maximum number of levels of arrays and objects in a value from a model service, a tool or the application.
pub(crate) const MAX_LEVELS: usize = 64;

/// The maximum nesting of JSON that is stored. It is four times [`MAX_LEVELS`], and far below the nesting that could exhaust the stack of a thread that reads the JSON.
pub(crate) const MAX_DEPTH: usize = 256;
/// The maximum nesting that `serde_json` reads by default.
const PLAIN_DEPTH: usize = 127;

/// Parses stored JSON with a nesting of at most [`MAX_DEPTH`].
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    match serde_json::from_str(text) {
        Err(_) if (PLAIN_DEPTH + 1..=MAX_DEPTH).contains(&depth(text.as_bytes())) => {
            let mut deserializer = serde_json::Deserializer::from_str(text);
            deserializer.disable_recursion_limit();
            T::deserialize(&mut deserializer)
        }
        parsed => parsed,
    }
    .map_err(|error| error.to_string())
}

/// Returns whether the value has at most [`MAX_LEVELS`] levels of arrays and objects.
pub(crate) fn is_shallow(value: &Value) -> bool {
    fn fits(value: &Value, levels: usize) -> bool {
        match value {
            Value::Array(items) => levels > 0 && items.iter().all(|item| fits(item, levels - 1)),
            Value::Object(map) => levels > 0 && map.values().all(|value| fits(value, levels - 1)),
            _ => true,
        }
    }
    fits(value, MAX_LEVELS)
}

/// Parses JSON from a model service. Rejects repeated keys, since all but one of their values would be lost. Also rejects
/// nesting deeper than [`MAX_LEVELS`].
pub(crate) fn parse_strictly<T: DeserializeOwned + Into<Value>>(json: &str) -> Option<Value> {
    let value = serde_json::from_str::<T>(json).ok()?.into();
    (members(&value) == members_written(json) && is_shallow(&value)).then_some(value)
}

/// Counts the members of all objects in `value`.
fn members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Object(map) => map.len() + map.values().map(members).sum::<usize>(),
        _ => 0,
    }
}

/// Counts the members of all objects in the valid JSON text `json`, including members with repeated keys. Each member
/// has exactly one colon outside strings.
fn members_written(json: &str) -> usize {
    let (mut count, mut in_string, mut escaped) = (0, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => in_string = !in_string,
            b':' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}

/// Returns the maximum nesting of arrays and objects in a JSON text.
pub(crate) fn depth(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => drop(bytes.next()),
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

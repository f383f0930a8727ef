//! Limits the nesting of stored JSON, and parses stored JSON.

use serde::de::DeserializeOwned;

use super::{ConversationId, StoreError};

/// The maximum nesting of JSON that is written. It is four times the nesting that is accepted from a model service, and
/// far below the nesting that could exhaust the stack of a thread that reads the JSON.
pub(super) const MAX_DEPTH: usize = 256;
/// The maximum nesting that `serde_json` reads by default.
const PLAIN_DEPTH: usize = 127;

/// Returns the JSON text of a value that belongs to this conversation. Fails if the JSON is nested too deeply to be
/// read back.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn encode(id: &ConversationId, value: &impl serde::Serialize) -> Result<String, StoreError> {
    let text = serde_json::to_string(value).expect("messages and state have a JSON form");
    check_depth(id, text.as_bytes())?;
    Ok(text)
}

/// Checks that the JSON is not nested too deeply to be read back.
pub(super) fn check_depth(id: &ConversationId, json: &[u8]) -> Result<(), StoreError> {
    if depth(json) <= MAX_DEPTH {
        return Ok(());
    }
    let problem = format!("its JSON is nested more than {MAX_DEPTH} levels deep");
    Err(StoreError::Unstorable { id: id.clone(), problem })
}

/// Parses stored JSON, even if it is nested more deeply than JSON parsers allow by default.
pub(super) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
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

/// Returns the maximum nesting of arrays and objects in a JSON text.
fn depth(json: &[u8]) -> usize {
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

//! Parses stored JSON, which may be nested more deeply than JSON parsers allow by default.

use serde::de::DeserializeOwned;

/// The maximum nesting of JSON that is stored. It is four times the nesting that is accepted from a model service, and
/// far below the nesting that could exhaust the stack of a thread that reads the JSON.
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

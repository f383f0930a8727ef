//! The output limit of a request that sets none, for services that require a limit or have a small one by default.

use serde_json::{Map, Value};

use crate::provider::ModelInfo;

/// The limit that has room for the thinking and the answer. Thinking counts towards the limit.
const MAX_TOKENS: u64 = 32_000;

/// The smallest limit. A thinking budget leaves at least this room for the answer.
pub(super) const MIN_TOKENS: u32 = 4096;

/// The number of bytes of JSON text that count as one token of the input. Tokens of most texts are longer, so the
/// estimate is rather too high.
const BYTES_PER_TOKEN: u64 = 3;

/// Returns the output limit for a request with this body. The limit lies within the model's limit and within the
/// estimated rest of its context window, but is not below [`MIN_TOKENS`] unless the model's limit is.
pub(in crate::provider) fn default_limit(
    info: Option<&ModelInfo>,
    body: &Map<String, Value>,
    budget: Option<u32>,
) -> u32 {
    let min = u64::from(MIN_TOKENS);
    let wanted = MAX_TOKENS.max(u64::from(budget.unwrap_or(0)) + min);
    let window = info.and_then(|info| info.context_window);
    let free = window.map(|window| window.saturating_sub(object_len(body) / BYTES_PER_TOKEN));
    let fitting = wanted.min(free.unwrap_or(u64::MAX)).max(min);
    let limit = fitting.min(info.and_then(|info| info.output_limit).unwrap_or(u64::MAX));
    u32::try_from(limit).unwrap_or(u32::MAX)
}

/// Returns the approximate length of an object in JSON text, without the escapes of strings and without base64. The
/// time depends on the number of values, and not on the length of their texts.
fn object_len(members: &Map<String, Value>) -> u64 {
    let is_base64 = members.get("type").is_some_and(|kind| kind == "base64");
    let sent = members.iter().filter(|(key, _)| !is_base64 || *key != "data");
    sent.map(|(key, value)| key.len() as u64 + 4 + json_len(value)).sum()
}

fn json_len(value: &Value) -> u64 {
    match value {
        Value::String(text) if text.starts_with("data:") => 0,
        Value::String(text) => text.len() as u64 + 2,
        Value::Array(items) => items.iter().map(|item| json_len(item) + 1).sum(),
        Value::Object(members) => object_len(members),
        Value::Null | Value::Bool(_) | Value::Number(_) => 4,
    }
}

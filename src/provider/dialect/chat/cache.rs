//! Cache breakpoints in messages: <https://openrouter.ai/docs/features/prompt-caching>.

use serde_json::{Map, Value, json};

use crate::provider::{CacheHint, dialect::cache_control};

/// Marks the system prompt and the last text. The service caches the messages up to each mark, so that the next request
/// can reuse them. The next requests don't contain the last `passing` messages, so the last text before them is marked
/// too.
pub(super) fn mark(messages: &mut [Value], hint: CacheHint, passing: usize) {
    let control = cache_control(hint);
    if let Some((first, rest)) = messages.split_first_mut() {
        let is_system = matches!(first["role"].as_str(), Some("system" | "developer"));
        let mut mark_last =
            |skipped: usize| rest.iter_mut().rev().skip(skipped).any(|it| mark_text(it, &control));
        let marked = mark_last(0) && mark_last(passing);
        if is_system || !marked {
            mark_text(first, &control);
        }
    }
}

/// Marks a message's last text. Returns whether the message has a text.
fn mark_text(message: &mut Value, control: &Value) -> bool {
    let Some(content) = message.get_mut("content") else {
        return false;
    };
    if let Value::String(text) = content {
        *content = json!([{"type": "text", "text": text}]);
    }
    let parts = content.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
    let is_text = |part: &Map<String, Value>| part.get("type").is_some_and(|kind| kind == "text");
    match parts.filter(|part| is_text(part)).last() {
        Some(part) => {
            part.insert("cache_control".to_owned(), control.clone());
            true
        }
        None => false,
    }
}

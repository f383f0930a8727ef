//! The differences between two JSON bodies.

use serde_json::Value;

/// Returns one line per change: the path of the member and its new value.
pub(crate) fn changes(before: &Value, after: &Value) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", before, after, &mut lines);
    lines
}

fn compare(place: &str, before: &Value, after: &Value, lines: &mut Vec<String>) {
    match (before, after) {
        _ if before == after => {}
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in new {
                let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
                match old.get(key) {
                    Some(old) => compare(&place, old, value, lines),
                    None => lines.push(format!("`{place}: {value}`")),
                }
            }
            for key in old.keys().filter(|key| !new.contains_key(*key)) {
                let dot = if place.is_empty() { "" } else { "." };
                lines.push(format!("no `{place}{dot}{key}`"));
            }
        }
        (Value::Array(old), Value::Array(new)) if new.starts_with(old) => {
            let more = new[old.len()..].iter().zip(old.len()..);
            lines.extend(more.map(|(item, index)| format!("`{place}[{index}]: {item}`")));
        }
        (Value::Array(old), Value::Array(new)) if new.ends_with(old) => {
            let more = new[..new.len() - old.len()].iter().enumerate();
            lines.extend(more.map(|(index, item)| format!("`{place}[{index}]: {item}` before the rest")));
        }
        (Value::Array(old), Value::Array(new)) if new.len() == old.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{place}[{index}]"), old, new, lines);
            }
        }
        _ => lines.push(format!("`{place}: {after}`")),
    }
}

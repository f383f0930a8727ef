//! Resolves the references in a schema. A reference may only point into the schema itself.

use serde_json::Value;

use super::SchemaError;
use crate::text::clip;

/// Returns the value that a reference in this schema points to, if it exists.
pub(crate) fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(&pointer(root_id(root), reference).ok()?)
}

/// Returns the keywords that give a schema its id.
pub(super) fn id_keywords(root: &Value) -> &'static [&'static str] {
    let draft = root.get("$schema").and_then(Value::as_str).unwrap_or_default();
    if draft.contains("draft-04") { &["$id", "id"] } else { &["$id"] }
}

/// Returns the schema's id. A reference may start with this id to point into the schema.
pub(super) fn root_id(root: &Value) -> Option<&str> {
    let id = id_keywords(root).iter().find_map(|keyword| root.get(*keyword)?.as_str())?;
    Some(id.trim_end_matches('#')).filter(|id| !id.is_empty())
}

/// Converts a reference into a JSON pointer within the schema. `root_id` is the schema's id. Fails if the reference is
/// invalid, or if it points to another document or to an anchor.
pub(super) fn pointer(root_id: Option<&str>, reference: &str) -> Result<String, SchemaError> {
    let refuse = |reason| Err(SchemaError(format!("`$ref` {reason}: {:?}", clip(reference, 200))));
    let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
    if !document.is_empty() && root_id != Some(document) {
        return refuse("points to another document");
    }
    let Some(pointer) = percent_decoded(fragment) else {
        return refuse("is not a valid reference");
    };
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Err(SchemaError(format!(
            "`$ref` points to an anchor: {:?}; use a JSON pointer such as `#/$defs/name`",
            clip(reference, 200)
        )));
    }
    Ok(pointer)
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%'
            && let [high, low, after @ ..] = rest
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            bytes.push(high << 4 | low);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

//! Finds the parts of a JSON Schema: its subschemas, references and types. Used by all code that reads or rewrites
//! schemas. A reference may only point into the schema itself.
//!
//! `schemars::transform` does not visit `dependentSchemas` and `unevaluatedProperties`, so references in them would
//! keep their old targets.

use serde_json::{Map, Value};

use super::SchemaError;
use crate::text::clip;

/// Where a subschema is within the value of its keyword.
pub(crate) enum PlaceInKeyword<'a> {
    /// The value of the keyword is itself the subschema.
    Only,
    Position(usize),
    Name(&'a str),
}

impl PlaceInKeyword<'_> {
    /// Returns the JSON pointer to the subschema, relative to the schema that contains the keyword.
    pub(crate) fn pointer(&self, keyword: &str) -> String {
        match self {
            Self::Only => format!("/{keyword}"),
            Self::Position(position) => format!("/{keyword}/{position}"),
            Self::Name(name) => format!("/{keyword}/{}", name.replace('~', "~0").replace('/', "~1")),
        }
    }
}

/// Returns the subschemas in the value of a keyword.
///
/// The keywords of all drafts are considered, whatever draft the schema uses.
pub(crate) fn subschemas<'a>(keyword: &str, value: &'a Value) -> Vec<(PlaceInKeyword<'a>, &'a Value)> {
    match (keyword, value) {
        ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => list
            .iter()
            .enumerate()
            .map(|(position, part)| (PlaceInKeyword::Position(position), part))
            .collect(),
        (
            "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs"
            | "definitions",
            Value::Object(map),
        ) => {
            let named = map.iter().filter(|(_, part)| is_schema(part));
            named.map(|(name, part)| (PlaceInKeyword::Name(name), part)).collect()
        }
        (
            "not"
            | "if"
            | "then"
            | "else"
            | "additionalProperties"
            | "unevaluatedProperties"
            | "propertyNames"
            | "items"
            | "additionalItems"
            | "contains"
            | "unevaluatedItems"
            | "contentSchema",
            value,
        ) if is_schema(value) => vec![(PlaceInKeyword::Only, value)],
        _ => Vec::new(),
    }
}

fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

/// Returns the references in a schema and its subschemas, each with the JSON pointer to its `$ref`.
pub(crate) fn references(schema: &Value) -> Vec<(String, &str)> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), schema)];
    while let Some((path, schema)) = open.pop() {
        for (keyword, value) in schema.as_object().into_iter().flatten() {
            if let ("$ref", Value::String(reference)) = (keyword.as_str(), value) {
                found.push((format!("{path}/$ref"), &**reference));
            }
            let parts = subschemas(keyword, value).into_iter();
            open.extend(parts.map(|(step, part)| (path.clone() + &step.pointer(keyword), part)));
        }
    }
    found
}

/// Replaces references in a schema and its subschemas. Calls `moved` for each reference, and replaces the reference if
/// `moved` returns a new one.
pub(crate) fn redirect(schema: &mut Value, moved: impl Fn(&str) -> Option<String>) {
    let references = references(schema).into_iter();
    let changes: Vec<_> = references.filter_map(|(path, old)| Some((path, moved(old)?))).collect();
    for (path, new) in changes {
        if let Some(reference) = schema.pointer_mut(&path) {
            *reference = new.into();
        }
    }
}

/// Returns whether the schema's `type` includes the type `name`. Returns `None` if the schema has no `type`.
pub(crate) fn includes_type(schema: &Map<String, Value>, name: &str) -> Option<bool> {
    match schema.get("type")? {
        Value::String(only) => Some(only == name),
        Value::Array(several) => Some(several.iter().any(|one| one == name)),
        _ => None,
    }
}

/// Returns the items of a keyword whose value is a list.
pub(crate) fn parts<'a>(schema: &'a Map<String, Value>, keyword: &str) -> &'a [Value] {
    schema.get(keyword).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Appends a text to a schema's description. If there is a description already, `separator` is written before the text.
pub(crate) fn describe(schema: &mut Map<String, Value>, separator: &str, text: &str) {
    let before = schema.get("description").and_then(Value::as_str).filter(|before| !before.is_empty());
    let text = before.map_or_else(|| text.to_owned(), |before| format!("{before}{separator}{text}"));
    schema.insert("description".to_owned(), text.into());
}

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

/// Decodes the percent-encoded bytes of a reference. Returns `None` if they are not UTF-8.
pub(crate) fn percent_decoded(text: &str) -> Option<String> {
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

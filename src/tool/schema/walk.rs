//! Finds the parts of a JSON Schema: its subschemas, references and types. Used by all code that reads or rewrites
//! schemas.
//!
//! `schemars::transform` does not visit `dependentSchemas` and `unevaluatedProperties`, so references in them would
//! keep their old targets.

use serde_json::{Map, Value};

/// Where a subschema is within the value of its keyword.
pub(crate) enum Step<'a> {
    /// The value of the keyword is itself the subschema.
    Only,
    Position(usize),
    Name(&'a str),
}

impl Step<'_> {
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
pub(crate) fn subschemas<'a>(keyword: &str, value: &'a Value) -> Vec<(Step<'a>, &'a Value)> {
    match (keyword, value) {
        ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => {
            list.iter().enumerate().map(|(position, part)| (Step::Position(position), part)).collect()
        }
        (
            "properties" | "patternProperties" | "dependentSchemas" | "dependencies" | "$defs"
            | "definitions",
            Value::Object(map),
        ) => {
            let named = map.iter().filter(|(_, part)| is_schema(part));
            named.map(|(name, part)| (Step::Name(name), part)).collect()
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
        ) if is_schema(value) => vec![(Step::Only, value)],
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

//! Output schemas for services that guarantee the shape of a response.

use serde_json::{Map, Value, json};

use super::output::wrapped;
use crate::{provider::output::takes_null, tool::walk::includes_type};

/// Rewrites a schema to the subset of JSON Schema that OpenAI's strict mode accepts. Also returns whether the value is
/// requested as the only member of an enclosing object.
///
///
/// - Objects are closed and require every property. An optional property may be null instead of absent.
/// - Keywords that the service rejects are removed.
/// - A value that is not an object is wrapped in an object.
///
/// If a value fits the rewritten schema, it fits the original schema after nulls and the wrapping object are removed,
/// except that the removed keywords are not checked. Conversely, every value that fits the original schema has a
/// corresponding value that fits the rewritten schema. The corresponding value lacks the members that the original
/// schema allows only because an object is open.
///
/// Returns `None` if the subset cannot express the schema. This is the case for a map with arbitrary keys, a schema
/// that accepts any value, a combination other than alternatives, and alternatives next to properties. If alternatives
/// and properties were both closed, each would exclude the members that the other requires.
///
/// Source: <https://platform.openai.com/docs/guides/structured-outputs#supported-schemas> and `to_strict_json_schema`
/// of OpenAI's Python SDK.
pub(super) fn strict(schema: &Value) -> Option<(Value, bool)> {
    let object = wrapped(schema);
    let wrapped = object.is_some();
    let root = object.as_ref().unwrap_or(schema);
    let schema = StrictRewriter { root, inlining: SchemaInlining::default() }.schema(root)?;
    Some((schema, wrapped))
}

struct StrictRewriter<'a> {
    root: &'a Value,
    inlining: SchemaInlining,
}

/// The maximum number of references in one schema that are replaced by their targets. Without this limit, a few types
/// that refer to each other would grow without end if their references have annotations. Beyond this number, a
/// reference loses its annotations.
const MAX_INLININGS: usize = 500;

/// The references that are replaced by their targets.
#[derive(Default)]
pub(super) struct SchemaInlining {
    /// The references whose replacement led to the current schema.
    open: Vec<String>,
    count: usize,
}

impl SchemaInlining {
    /// Begins the replacement of a reference, unless the replacement would not end. If this returns `true`, call
    /// [`end`](Self::end) afterwards.
    pub(super) fn begin(&mut self, reference: &str) -> bool {
        let begins = self.count < MAX_INLININGS && !self.open.iter().any(|other| other == reference);
        if begins {
            self.count += 1;
            self.open.push(reference.to_owned());
        }
        begins
    }

    pub(super) fn end(&mut self) {
        self.open.pop();
    }
}

/// Keywords that can be removed without changing the shape of a response.
const DROPPED: &[&str] = &[
    "$schema",
    "$id",
    "$comment",
    "$anchor",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "minLength",
    "maxLength",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "contentEncoding",
    "contentMediaType",
];

const KEPT: &[&str] = &[
    "type",
    "title",
    "description",
    "enum",
    "const",
    "pattern",
    "multipleOf",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "minItems",
    "maxItems",
];

const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

impl StrictRewriter<'_> {
    /// Rewrites a schema.
    fn schema(&mut self, schema: &Value) -> Option<Value> {
        let schema = schema.as_object()?;
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, schema);
        }
        if let Some(Value::Array(all)) = schema.get("allOf") {
            // Only an `allOf` with a single part can be expressed. It is often used to add annotations to a reference.
            let [part] = all.as_slice() else { return None };
            let merged = merged(part.as_object()?, without(schema, "allOf"))?;
            return self.schema(&Value::Object(merged));
        }
        let mut out = Map::new();
        for (key, value) in schema {
            match key.as_str() {
                "$defs" | "definitions" => {
                    out.insert(key.clone(), self.each(value)?.into());
                }
                "items" => {
                    out.insert(key.clone(), self.schema(value)?);
                }
                "anyOf" | "oneOf" => {
                    let rewritten = value.as_array()?.iter().map(|part| self.schema(part));
                    out.insert("anyOf".to_owned(), rewritten.collect::<Option<Vec<_>>>()?.into());
                }
                "format" if value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {
                    out.insert(key.clone(), value.clone());
                }
                // `properties`, `required` and `additionalProperties` are written below. An unsupported `format` is
                // removed.
                "properties" | "required" | "additionalProperties" | "format" => {}
                key if DROPPED.contains(&key) => {}
                key if KEPT.contains(&key) => {
                    out.insert(key.to_owned(), value.clone());
                }
                _ => return None,
            }
        }
        let is_object = includes_type(schema, "object") == Some(true);
        let has_alternatives = schema.contains_key("anyOf") || schema.contains_key("oneOf");
        if has_alternatives && (schema.contains_key("properties") || is_object) {
            return None;
        }
        if is_object {
            let closed = matches!(schema.get("additionalProperties"), None | Some(Value::Bool(_)));
            let properties = schema.get("properties").filter(|_| closed)?;
            let mut properties = self.each(properties)?;
            let demanded = schema.get("required").and_then(Value::as_array);
            for (name, property) in &mut properties {
                let is_demanded = demanded.is_some_and(|names| names.iter().any(|other| other == name));
                if !is_demanded && !takes_null(property, self.root) {
                    *property = nullable(property.take());
                }
            }
            let required: Vec<Value> = properties.keys().cloned().map(Value::String).collect();
            out.insert("properties".to_owned(), Value::Object(properties));
            out.insert("required".to_owned(), Value::Array(required));
            out.insert("additionalProperties".to_owned(), Value::Bool(false));
        } else if schema.contains_key("properties") {
            return None;
        }
        if includes_type(schema, "array") == Some(true) && !schema.contains_key("items") {
            return None;
        }
        let says_what = ["type", "anyOf", "enum", "const"].iter().any(|key| out.contains_key(*key));
        says_what.then_some(Value::Object(out))
    }

    fn each(&mut self, schemas: &Value) -> Option<Map<String, Value>> {
        let schemas = schemas.as_object()?.iter();
        schemas.map(|(name, schema)| Some((name.clone(), self.schema(schema)?))).collect()
    }

    /// Rewrites a reference. No other keywords may accompany a reference, so a reference with keywords is replaced by
    /// its target.
    fn reference(&mut self, reference: &str, schema: &Map<String, Value>) -> Option<Value> {
        let target = self.root.pointer(reference.strip_prefix('#')?)?;
        let beside = without(schema, "$ref").filter(|(key, _)| !DROPPED.contains(&key.as_str()));
        let beside: Map<String, Value> = beside.collect();
        if beside.is_empty() || !self.inlining.begin(reference) {
            let words_alone = beside.keys().all(|key| is_words(key));
            return words_alone
                .then(|| Value::Object(Map::from_iter([("$ref".to_owned(), reference.into())])));
        }
        let merged = merged(target.as_object()?, beside)?;
        let rewritten = self.schema(&Value::Object(merged));
        self.inlining.end();
        rewritten
    }
}

/// Returns the schema with null as an additional alternative.
fn nullable(mut schema: Value) -> Value {
    let closed = schema.get("enum").is_some() || schema.get("const").is_some();
    let nothing = json!({"type": "null"});
    if let Some(Value::String(name)) = schema.get("type")
        && !closed
        && matches!(&**name, "string" | "integer" | "number" | "boolean")
    {
        schema["type"] = json!([name, "null"]);
        return schema;
    }
    if let (Some(Value::Array(alternatives)), None) = (schema.get("anyOf"), schema.get("type")) {
        let alternatives = alternatives.iter().cloned().chain([nothing]).collect();
        schema["anyOf"] = Value::Array(alternatives);
        return schema;
    }
    json!({"anyOf": [schema, nothing]})
}

/// Returns whether a keyword describes a value without restricting it.
fn is_words(key: &str) -> bool {
    matches!(key, "title" | "description") || DROPPED.contains(&key)
}

/// Returns the schema with additional members. These replace the schema's own annotations. Returns `None` if the schema
/// and the additional members restrict a value by the same keyword in different ways.
fn merged(
    schema: &Map<String, Value>,
    more: impl IntoIterator<Item = (String, Value)>,
) -> Option<Map<String, Value>> {
    let mut merged = schema.clone();
    for (key, value) in more {
        if !is_words(&key) && merged.get(&key).is_some_and(|own| *own != value) {
            return None;
        }
        merged.insert(key, value);
    }
    Some(merged)
}

/// Returns all members of the schema except the one with this key.
pub(super) fn without<'a>(
    schema: &'a Map<String, Value>,
    key: &'a str,
) -> impl Iterator<Item = (String, Value)> + 'a {
    schema.iter().filter(move |(other, _)| *other != key).map(|(key, value)| (key.clone(), value.clone()))
}

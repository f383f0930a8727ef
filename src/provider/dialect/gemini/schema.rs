//! Schemas as the service accepts them: a subset of JSON Schema. Source: `responseJsonSchema` in
//! <https://ai.google.dev/api/generate-content#generationconfig>.

use serde_json::{Map, Value, json};

use crate::{
    provider::dialect::strict::{Inlining, without},
    tool::{
        resolve_reference,
        walk::{describe, parts},
    },
};

const KEPT: [&str; 14] = [
    "$id",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "required",
    "propertyOrdering",
    "additionalProperties",
];

/// Keywords that do not restrict a value.
const SILENT: [&str; 7] =
    ["$schema", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"];

/// Returns the schema in the supported subset. Other keywords move to the description, where the model can read them.
pub(super) fn restricted(schema: &Value) -> Value {
    Restrictor { root: schema, inlining: Inlining::default() }.schema(schema)
}

struct Restrictor<'a> {
    root: &'a Value,
    inlining: Inlining,
}

impl Restrictor<'_> {
    /// Rewrites a schema.
    fn schema(&mut self, schema: &Value) -> Value {
        let Value::Object(schema) = schema else {
            // `true` accepts any value, so it is replaced by a schema without keywords.
            return json!({});
        };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, schema);
        }
        if let [Value::Object(part)] = parts(schema, "allOf") {
            // An `allOf` with a single part, which is often used to add annotations to a reference, is merged into the
            // schema.
            let mut merged = part.clone();
            merged.extend(without(schema, "allOf"));
            return self.schema(&Value::Object(merged));
        }
        let mut out = Map::new();
        let mut notes = Vec::new();
        for (key, value) in schema {
            match (key.as_str(), value) {
                ("$defs" | "definitions", Value::Object(_)) => {
                    out.insert("$defs".to_owned(), self.each(value));
                }
                ("properties", Value::Object(_)) => {
                    out.insert(key.clone(), self.each(value));
                }
                ("anyOf" | "oneOf" | "prefixItems", Value::Array(parts)) => {
                    let key = if key == "oneOf" { "anyOf" } else { key };
                    let parts: Vec<Value> = parts.iter().map(|part| self.schema(part)).collect();
                    out.insert(key.to_owned(), parts.into());
                }
                ("items", Value::Object(_) | Value::Bool(_)) | ("additionalProperties", Value::Object(_)) => {
                    out.insert(key.clone(), self.schema(value));
                }
                ("const", Value::String(_) | Value::Number(_)) => {
                    out.insert("enum".to_owned(), json!([value]));
                }
                (key, _) if KEPT.contains(&key) => {
                    out.insert(key.to_owned(), value.clone());
                }
                (key, _) if SILENT.contains(&key) => {}
                (key, value) => notes.push(format!("{key}: {value}")),
            }
        }
        if !notes.is_empty() {
            describe(&mut out, " ", &format!("({})", notes.join(", ")));
        }
        Value::Object(out)
    }

    fn each(&mut self, schemas: &Value) -> Value {
        let schemas = schemas.as_object().into_iter().flatten();
        Value::Object(schemas.map(|(name, schema)| (name.clone(), self.schema(schema))).collect())
    }

    /// Rewrites a reference. No other keywords may accompany a reference, so a reference with keywords is replaced by
    /// its target.
    fn reference(&mut self, reference: &str, schema: &Map<String, Value>) -> Value {
        let target = resolve_reference(self.root, reference);
        let beside: Map<String, Value> =
            without(schema, "$ref").filter(|(key, _)| !SILENT.contains(&key.as_str())).collect();
        let place = reference.split_once('#').map_or(Some(String::new()), |(_, pointer)| place(pointer));
        match target {
            Some(Value::Object(target))
                if (!beside.is_empty() || place.is_none()) && self.inlining.begin(reference) =>
            {
                let mut merged = target.clone();
                merged.extend(beside);
                let restricted = self.schema(&Value::Object(merged));
                self.inlining.end();
                restricted
            }
            // A schema that cannot be expressed is replaced by a schema that accepts any value. The response is
            // validated later.
            _ => place.map_or_else(|| json!({}), |place| json!({"$ref": format!("#{place}")})),
        }
    }
}

/// Converts the JSON pointer of a subschema to the pointer of this subschema in the rewritten schema. Returns `None` if
/// the subset has no such location.
fn place(pointer: &str) -> Option<String> {
    let mut place = String::new();
    let mut steps = pointer.split('/').skip(1);
    while let Some(keyword) = steps.next() {
        let (keyword, has_name) = match keyword {
            "oneOf" | "anyOf" => ("anyOf", true),
            "definitions" | "$defs" => ("$defs", true),
            "properties" | "prefixItems" => (keyword, true),
            "items" | "additionalProperties" => (keyword, false),
            _ => return None,
        };
        place.push('/');
        place.push_str(keyword);
        if has_name {
            place.push('/');
            place.push_str(steps.next()?);
        }
    }
    Some(place)
}

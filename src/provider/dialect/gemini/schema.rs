//! Schemas as the service accepts them: a subset of JSON Schema. Source: `responseJsonSchema` in
//! <https://ai.google.dev/api/generate-content#generationconfig>.

use std::cell::Cell;

use serde_json::{Map, Value, json};

use crate::{
    provider::dialect::strict::{MAX_INLININGS, may_inline, without},
    tool::resolve_reference,
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
    Restrictor { root: schema, inlinings: Cell::new(MAX_INLININGS) }.schema(schema, &mut Vec::new())
}

struct Restrictor<'a> {
    root: &'a Value,
    /// The number of references that may still be replaced by their targets.
    inlinings: Cell<usize>,
}

impl Restrictor<'_> {
    /// Rewrites a schema. `inlined` are the references that led to it.
    fn schema(&self, schema: &Value, inlined: &mut Vec<String>) -> Value {
        let Value::Object(schema) = schema else {
            // `true` allows anything, like a schema without keywords.
            return json!({});
        };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, schema, inlined);
        }
        if let Some([Value::Object(part)]) = schema.get("allOf").and_then(Value::as_array).map(Vec::as_slice)
        {
            // An `allOf` with a single part is an idiom for adding annotations to a reference.
            let mut merged = part.clone();
            merged.extend(without(schema, "allOf"));
            return self.schema(&Value::Object(merged), inlined);
        }
        let mut out = Map::new();
        let mut said = Vec::new();
        for (key, value) in schema {
            match (key.as_str(), value) {
                ("$defs" | "definitions", Value::Object(_)) => {
                    out.insert("$defs".to_owned(), self.each(value, inlined));
                }
                ("properties", Value::Object(_)) => {
                    out.insert(key.clone(), self.each(value, inlined));
                }
                ("anyOf" | "oneOf" | "prefixItems", Value::Array(parts)) => {
                    let key = if key == "oneOf" { "anyOf" } else { key };
                    let parts: Vec<Value> = parts.iter().map(|part| self.schema(part, inlined)).collect();
                    out.insert(key.to_owned(), parts.into());
                }
                ("items", Value::Object(_) | Value::Bool(_)) | ("additionalProperties", Value::Object(_)) => {
                    out.insert(key.clone(), self.schema(value, inlined));
                }
                ("const", Value::String(_) | Value::Number(_)) => {
                    out.insert("enum".to_owned(), json!([value]));
                }
                (key, _) if KEPT.contains(&key) => {
                    out.insert(key.to_owned(), value.clone());
                }
                (key, _) if SILENT.contains(&key) => {}
                (key, value) => said.push(format!("{key}: {value}")),
            }
        }
        if !said.is_empty() {
            let said = format!("({})", said.join(", "));
            let text = match out.get("description").and_then(Value::as_str) {
                Some(before) if !before.is_empty() => format!("{before} {said}"),
                _ => said,
            };
            out.insert("description".to_owned(), text.into());
        }
        Value::Object(out)
    }

    fn each(&self, schemas: &Value, inlined: &mut Vec<String>) -> Value {
        let schemas = schemas.as_object().into_iter().flatten();
        Value::Object(schemas.map(|(name, schema)| (name.clone(), self.schema(schema, inlined))).collect())
    }

    /// Rewrites a reference. No other keywords may accompany a reference, so a reference with keywords is replaced by
    /// its target.
    fn reference(&self, reference: &str, schema: &Map<String, Value>, inlined: &mut Vec<String>) -> Value {
        let target = resolve_reference(self.root, reference);
        let beside: Map<String, Value> =
            without(schema, "$ref").filter(|(key, _)| !SILENT.contains(&key.as_str())).collect();
        let place = reference.split_once('#').map_or(Some(String::new()), |(_, pointer)| place(pointer));
        match target {
            Some(Value::Object(target))
                if (!beside.is_empty() || place.is_none())
                    && !inlined.iter().any(|other| other == reference)
                    && may_inline(&self.inlinings) =>
            {
                let mut merged = target.clone();
                merged.extend(beside);
                inlined.push(reference.to_owned());
                let restricted = self.schema(&Value::Object(merged), inlined);
                inlined.pop();
                restricted
            }
            // A schema that cannot be expressed allows anything here. The response is validated later.
            _ => place.map_or_else(|| json!({}), |place| json!({"$ref": format!("#{place}")})),
        }
    }
}

/// Returns the place of a subschema in the rewritten schema. `None` if the subset has no such place.
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

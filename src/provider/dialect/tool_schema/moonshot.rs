//! The form of tool input schemas that Moonshot accepts, which it calls Moonshot Flavored JSON Schema. It rejects a
//! request if a single tool has another form.
//!
//! Source: the service's own validator, <https://github.com/MoonshotAI/walle>. Its rules differ between versions, so the
//! result obeys the rules of all of them: each schema has a type, and each object has `required`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::{describe, flattened, members, target};

/// The keywords that may stand next to a reference or alternatives.
const ANNOTATIONS: [&str; 3] = ["description", "title", "default"];

/// Keywords that are removed. The service does not know them, and a loosened schema in them may forbid valid values.
const REMOVED: [&str; 15] = [
    "oneOf",
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "dependentSchemas",
    "dependencies",
    "contains",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "$defs",
    "definitions",
];

/// The names that the service accepts for no property.
const RESERVED: [&str; 5] = ["$defs", "$ref", "anyOf", "required", "additionalProperties"];

/// All types of values.
const TYPES: [&str; 6] = ["object", "array", "string", "number", "boolean", "null"];

/// The maximum number of values in an `enum`.
const MAX_VALUES: usize = 500;

/// Returns the schema of a tool's input in the form that Moonshot accepts. The returned schema may accept more values,
/// because the input is validated later.
pub(in crate::provider::dialect) fn moonshot_schema(schema: &Value) -> Value {
    let mut rewriter = MoonshotSchemaRewriter { root: schema, names: HashMap::new(), open: Vec::new() };
    let mut out =
        if schema.is_object() { schema.clone() } else { json!({"type": "object", "properties": {}}) };
    rewriter.rewrite(&mut out, false);
    let mut definitions = Map::new();
    while let Some((name, target)) = rewriter.open.pop() {
        let mut definition = target.clone();
        rewriter.rewrite(&mut definition, true);
        definitions.insert(name, definition);
    }
    if !definitions.is_empty() {
        out["$defs"] = definitions.into();
    }
    out
}

struct MoonshotSchemaRewriter<'a> {
    root: &'a Value,
    /// The name of the definition for each reference.
    names: HashMap<String, String>,
    /// The definitions that are not rewritten yet.
    open: Vec<(String, &'a Value)>,
}

impl MoonshotSchemaRewriter<'_> {
    /// Rewrites a schema and its subschemas. `takes_reference` indicates whether a reference may stand in its place.
    fn rewrite(&mut self, schema: &mut Value, takes_reference: bool) {
        if !schema.is_object() {
            *schema = json!({});
        }
        let Value::Object(map) = schema else { return };
        if let Some(Value::String(reference)) = map.shift_remove("$ref") {
            map.retain(|key, _| ANNOTATIONS.contains(&key.as_str()));
            if let Some(reference) = self.definition(&reference) {
                let (key, value) = if takes_reference && map.is_empty() {
                    ("$ref", reference.into())
                } else {
                    ("anyOf", json!([{"$ref": reference}]))
                };
                map.insert(key.to_owned(), value);
                return;
            }
        }
        if let Some(only) = map.shift_remove("const") {
            map.insert("enum".to_owned(), json!([only]));
        }
        split_types(map);
        self.flatten(map);
        for key in ["oneOf", "allOf"] {
            let parts = map.shift_remove(key);
            if let Some(Value::Array(parts)) = parts
                && !map.contains_key("anyOf")
                && !parts.is_empty()
                && (key == "oneOf" || parts.len() == 1)
            {
                map.insert("anyOf".to_owned(), parts.into());
            }
        }
        map.retain(|key, _| !REMOVED.contains(&key.as_str()));
        if !map.contains_key("type") && !map.contains_key("anyOf") {
            map.insert("type".to_owned(), inferred(map));
            split_types(map);
        }
        move_type(map);
        restrict_values(map);
        reserve_names(map);
        self.rewrite_parts(map);
        require(map);
    }

    /// Returns the reference to the definition of a reference's target.
    fn definition(&mut self, reference: &str) -> Option<String> {
        let target = target(self.root, reference)?;
        if std::ptr::eq(target, self.root) {
            return Some("#".to_owned());
        }
        if let Some(name) = self.names.get(reference) {
            return Some(format!("#/$defs/{name}"));
        }
        let last = reference.rsplit('/').next().unwrap_or_default();
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut name: String = last.chars().map(plain).collect();
        while self.names.values().any(|taken| *taken == name) {
            name.push('_');
        }
        self.names.insert(reference.to_owned(), name.clone());
        self.open.push((name.clone(), target));
        Some(format!("#/$defs/{name}"))
    }

    /// Moves the properties of an object's alternatives and parts to the object itself.
    fn flatten(&self, map: &mut Map<String, Value>) {
        let parts = |key: &str| map.get(key).and_then(Value::as_array).map_or(0, Vec::len);
        let is_object = match map.get("type") {
            Some(kind) => kind == "object",
            None => map.contains_key("properties") || parts("allOf") > 1,
        };
        if !is_object || ["anyOf", "oneOf", "allOf"].iter().all(|key| parts(key) == 0) {
            return;
        }
        let schema = Value::Object(map.clone());
        let has_members = members(self.root, &schema).is_some_and(|found| !found.properties.is_empty());
        if let Some(flat) = flattened(self.root, &schema).filter(|_| has_members) {
            *map = flat;
        }
    }

    fn rewrite_parts(&mut self, map: &mut Map<String, Value>) {
        for (key, value) in map {
            match (key.as_str(), value) {
                (key @ ("properties" | "patternProperties"), Value::Object(parts)) => {
                    parts.values_mut().for_each(|part| self.rewrite(part, key == "properties"));
                }
                ("anyOf", Value::Array(parts)) => {
                    for part in &mut *parts {
                        self.rewrite(part, true);
                    }
                    *parts = std::mem::take(parts).into_iter().flat_map(alternatives).collect();
                }
                ("prefixItems", Value::Array(parts)) => {
                    for part in parts {
                        self.rewrite(part, false);
                    }
                }
                ("items", part) => self.rewrite(part, true),
                ("additionalProperties", part) if part.is_object() => self.rewrite(part, true),
                _ => {}
            }
        }
    }
}

/// Returns the alternatives of an alternative, because the service does not accept `anyOf` within `anyOf`. The description
/// is kept.
fn alternatives(mut part: Value) -> Vec<Value> {
    let Some(Value::Array(mut inner)) = part.get_mut("anyOf").map(Value::take) else { return vec![part] };
    let description = part.get("description");
    for map in inner.iter_mut().filter_map(Value::as_object_mut).filter(|map| !map.contains_key("$ref")) {
        if let Some(description) = description {
            map.entry("description").or_insert_with(|| description.clone());
        }
    }
    inner
}

/// Replaces a list of types by alternatives with one type each, unless the schema has nothing but the types.
fn split_types(map: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = map.get("type") else { return };
    let types = types.clone();
    if types.len() > 1 && map.keys().all(|key| ["type", "description", "title"].contains(&key.as_str())) {
        return;
    }
    map.shift_remove("type");
    let (outer, inner): (Map<_, _>, Map<_, _>) =
        std::mem::take(map).into_iter().partition(|(key, _)| ANNOTATIONS.contains(&key.as_str()));
    let of_type = |kind: Value| {
        let mut part = if kind == "null" { Map::new() } else { inner.clone() };
        part.insert("type".to_owned(), kind);
        part
    };
    let fits = |kind: &Value| {
        let values = inner.get("enum").and_then(Value::as_array);
        values.is_none_or(|values| values.iter().any(|value| is_of(value, kind)))
    };
    let mut parts: Vec<Map<String, Value>> = types.into_iter().filter(fits).map(of_type).collect();
    *map = outer;
    match parts.len() {
        0 => {}
        1 => map.append(&mut parts[0]),
        _ => {
            map.insert("anyOf".to_owned(), parts.into());
        }
    }
}

/// Returns the types of a schema without `type`.
fn inferred(map: &Map<String, Value>) -> Value {
    let has = |keys: &[&str]| keys.iter().any(|key| map.contains_key(*key));
    if let Some(Value::Array(values)) = map.get("enum") {
        let number = if values.iter().any(Value::is_f64) { "number" } else { "integer" };
        let types = TYPES.map(|kind| if kind == "number" { number } else { kind }).into_iter();
        let types = types.filter(|kind| values.iter().any(|value| is_of(value, &(*kind).into())));
        return types.collect();
    }
    if has(&["properties", "required", "additionalProperties", "patternProperties"]) {
        return "object".into();
    }
    if has(&["items", "prefixItems", "minItems", "maxItems"]) {
        return "array".into();
    }
    if has(&["minLength", "maxLength", "pattern", "format"]) {
        return "string".into();
    }
    if has(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
        return "number".into();
    }
    json!(TYPES)
}

/// Moves the type of a schema with alternatives to the alternatives, and removes keywords that an alternative has too.
fn move_type(map: &mut Map<String, Value>) {
    let Some(Value::Array(mut parts)) = map.shift_remove("anyOf") else { return };
    let kind = map.shift_remove("type");
    for part in parts.iter_mut().filter_map(Value::as_object_mut) {
        let is_typed = ["type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"];
        if let Some(kind) = kind.clone().filter(|_| !is_typed.iter().any(|key| part.contains_key(*key))) {
            part.insert("type".to_owned(), kind);
        }
        map.retain(|key, _| key == "description" || key == "title" || !part.contains_key(key));
    }
    map.insert("anyOf".to_owned(), parts.into());
}

/// Removes the values that do not have the schema's type.
fn restrict_values(map: &mut Map<String, Value>) {
    let kind = map.get("type").cloned();
    let Some(Value::Array(values)) = map.get_mut("enum") else { return };
    values.retain(|value| kind.as_ref().is_some_and(|kind| is_of(value, kind)));
    if values.is_empty() || values.len() > MAX_VALUES {
        map.shift_remove("enum");
    }
}

/// Describes the properties whose names the service does not accept.
fn reserve_names(map: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = map.get_mut("properties") else { return };
    let removed = RESERVED.iter().filter_map(|name| properties.shift_remove_entry(*name));
    let words: Vec<String> = removed.map(|(name, schema)| format!("Property `{name}`: {schema}")).collect();
    if !words.is_empty() {
        describe(map, "\n", &words.join("\n"));
    }
}

/// Gives an object the list of its required properties, which must be properties of the object itself.
fn require(map: &mut Map<String, Value>) {
    let required = map.shift_remove("required");
    if map.get("type").is_none_or(|kind| kind != "object") {
        return;
    }
    let has = |name: &Value| {
        name.as_str().is_some_and(|name| map.get("properties").is_some_and(|all| all.get(name).is_some()))
    };
    let names: Vec<Value> = match required {
        Some(Value::Array(names)) => names.into_iter().filter(has).collect(),
        _ => Vec::new(),
    };
    map.insert("required".to_owned(), names.into());
}

/// Returns whether the value has the type. A list of types is the type of no value.
fn is_of(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap_or_default() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}

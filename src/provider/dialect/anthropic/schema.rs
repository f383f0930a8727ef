//! Output schemas as the service takes them: a part of JSON Schema, with objects closed. Source:
//! <https://platform.claude.com/docs/en/build-with-claude/structured-outputs>.

use serde_json::{Map, Value};

/// Keywords that the service refuses. They stay in the description, for the model to read.
const REFUSED: [&str; 16] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "patternProperties",
    "propertyNames",
];

/// Formats of a string that the service knows.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// The schema in the service's terms, and whether it lost open objects on the way. A schema that is in these
/// terms already comes back as it is.
pub(super) fn output(schema: &Value) -> (Value, bool) {
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        map.shift_remove("$schema");
    }
    let mut closed = false;
    restrict(&mut schema, &mut closed);
    (schema, closed)
}

fn restrict(schema: &mut Value, closed: &mut bool) {
    let Value::Object(map) = schema else {
        return;
    };
    if let Some(one_of) = map.shift_remove("oneOf") {
        map.entry("anyOf").or_insert(one_of);
    }
    let of_type = |map: &Map<String, Value>, name: &str| match map.get("type") {
        Some(Value::String(only)) => only == name,
        Some(Value::Array(types)) => types.iter().any(|one| one == name),
        _ => false,
    };
    if of_type(map, "object") || map.contains_key("properties") {
        let before = map.insert("additionalProperties".to_owned(), Value::Bool(false));
        *closed |= before.is_some_and(|before| before != Value::Bool(false));
    }
    say_refused(map);
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                for schema in schemas.values_mut() {
                    restrict(schema, closed);
                }
            }
            ("anyOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                for schema in schemas {
                    restrict(schema, closed);
                }
            }
            ("items", schema) => restrict(schema, closed),
            _ => {}
        }
    }
}

/// Moves what the service refuses into the description.
fn say_refused(map: &mut Map<String, Value>) {
    let refused: Vec<String> = map
        .iter()
        .filter(|(key, value)| match key.as_str() {
            "format" => !value.as_str().is_some_and(|format| FORMATS.contains(&format)),
            "minItems" => value.as_u64().is_none_or(|items| items > 1),
            key => REFUSED.contains(&key),
        })
        .map(|(key, _)| key.clone())
        .collect();
    if refused.is_empty() {
        return;
    }
    let said: Vec<String> = refused
        .iter()
        .filter_map(|key| map.shift_remove(key).map(|value| format!("{key}: {value}")))
        .collect();
    let said = format!("({})", said.join(", "));
    let text = match map.get("description").and_then(Value::as_str) {
        Some(before) if !before.is_empty() => format!("{before} {said}"),
        _ => said,
    };
    map.insert("description".to_owned(), text.into());
}

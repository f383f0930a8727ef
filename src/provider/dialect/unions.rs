//! Unions of schemas. A union accepts every value that at least one of its schemas accepts.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

/// The members that schemas define for an object.
#[derive(Default)]
pub(super) struct Members {
    pub(super) properties: Map<String, Value>,
    pub(super) required: Vec<String>,
    /// The required names as a set, because there may be very many of them.
    demanded: HashSet<String>,
}

impl Members {
    /// Returns the members that a schema itself defines. Members that only its subschemas define are not included.
    pub(super) fn of(schema: &Map<String, Value>) -> Self {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: Vec<String> = required.filter_map(Value::as_str).map(ToOwned::to_owned).collect();
        Self {
            properties: schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default(),
            demanded: required.iter().cloned().collect(),
            required,
        }
    }

    /// Returns whether an object must have this member.
    pub(super) fn demands(&self, name: &str) -> bool {
        self.demanded.contains(name)
    }

    /// Adds the members that another schema defines for the same object.
    pub(super) fn and(&mut self, other: Self) {
        for (name, schema) in other.properties {
            let both = match self.properties.get_mut(&name) {
                Some(own) => both(own.take(), schema),
                None => schema,
            };
            self.properties.insert(name, both);
        }
        for name in other.required {
            if self.demanded.insert(name.clone()) {
                self.required.push(name);
            }
        }
    }

    /// Combines the members of two alternative schemas.
    pub(super) fn or(mut self, other: Self) -> Self {
        for (name, schema) in other.properties {
            let either = match self.properties.get_mut(&name) {
                Some(own) => either(own.take(), schema),
                None => schema,
            };
            self.properties.insert(name, either);
        }
        self.required.retain(|name| other.demanded.contains(name));
        self.demanded.retain(|name| other.demanded.contains(name));
        self
    }
}

/// Returns the only value that a schema accepts, if there is exactly one.
pub(super) fn constant(schema: &Value) -> Option<&Value> {
    match (schema.get("const"), schema.get("enum").and_then(Value::as_array).map(Vec::as_slice)) {
        (Some(value), _) | (None, Some([value])) => Some(value),
        _ => None,
    }
}

/// Returns a schema for values that fit both schemas. If both schemas use the same keyword with different values,
/// returns a schema for values that fit at least one of them.
fn both(mut first: Value, second: Value) -> Value {
    let (Value::Object(own), Value::Object(more)) = (&mut first, &second) else {
        return if first.is_object() { first } else { second };
    };
    let disagree =
        more.iter().any(|(key, value)| !is_words(key) && own.get(key).is_some_and(|own| own != value));
    if disagree {
        return either(first, second);
    }
    for (key, value) in more {
        own.entry(key.clone()).or_insert_with(|| value.clone());
    }
    first
}

/// Returns a schema for values that fit at least one of the two schemas.
fn either(first: Value, second: Value) -> Value {
    let mut parts = alternatives(first);
    for other in alternatives(second) {
        let joined = parts.iter_mut().any(|part| match join(part, &other) {
            Some(joined) => {
                *part = joined;
                true
            }
            None => false,
        });
        if !joined {
            parts.push(other);
        }
    }
    match parts.len() {
        1 => parts.remove(0),
        _ => json!({"anyOf": parts}),
    }
}

/// Returns the alternatives of a schema that consists only of alternatives. Any other schema is returned as the only
/// alternative.
fn alternatives(mut schema: Value) -> Vec<Value> {
    match schema.as_object_mut() {
        Some(map) if map.len() == 1 => match map.get_mut("anyOf").map(Value::take) {
            Some(Value::Array(parts)) => parts,
            Some(other) => vec![json!({"anyOf": other})],
            None => vec![schema],
        },
        _ => vec![schema],
    }
}

/// Joins two schemas into one without alternatives. This is possible if they differ only in annotations, or if both are
/// lists of values of one type.
fn join(first: &Value, second: &Value) -> Option<Value> {
    if first == second {
        return Some(first.clone());
    }
    let (own, more) = (first.as_object()?, second.as_object()?);
    let is_values = |key: &str| matches!(key, "const" | "enum");
    let says = |map: &Map<String, Value>| map.keys().any(|key| is_values(key));
    let same = |one: &Map<String, Value>, other: &Map<String, Value>, free: &dyn Fn(&str) -> bool| {
        one.iter().all(|(key, value)| free(key) || other.get(key) == Some(value))
    };
    let joins = |free: &dyn Fn(&str) -> bool| same(own, more, free) && same(more, own, free);
    let mut joined;
    if says(own) && says(more) {
        let texts = values(own).chain(values(more)).all(Value::is_string);
        let free = |key: &str| is_words(key) || is_values(key) || (texts && key == "type");
        if !joins(&free) {
            return None;
        }
        let mut known: HashSet<&Value> = values(own).collect();
        let others = values(more).filter(|value| known.insert(value));
        let values: Vec<Value> = values(own).chain(others).cloned().collect();
        joined = own.clone();
        joined.shift_remove("const");
        if texts {
            joined.insert("type".to_owned(), "string".into());
        }
        joined.insert("enum".to_owned(), values.into());
    } else if joins(&is_words) {
        joined = own.clone();
    } else {
        return None;
    }
    let text =
        |map: &Map<String, Value>| map.get("description").and_then(Value::as_str).map(ToOwned::to_owned);
    match (text(own), text(more)) {
        (Some(before), Some(after)) if !before.contains(&after) => {
            joined.insert("description".to_owned(), format!("{before}\n{after}").into());
        }
        (None, Some(after)) => {
            joined.insert("description".to_owned(), after.into());
        }
        _ => {}
    }
    Some(joined.into())
}

fn values(schema: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
    schema.get("const").into_iter().chain(listed)
}

fn is_words(key: &str) -> bool {
    matches!(key, "title" | "description" | "default" | "examples")
}

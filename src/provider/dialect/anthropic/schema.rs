//! Output schemas as the service accepts them: a subset of JSON Schema in which every object is closed
//! (`additionalProperties: false`). Source: <https://platform.claude.com/docs/en/build-with-claude/structured-outputs>.

use std::collections::HashSet;

use serde_json::{Map, Value};

use crate::tool::walk::{describe, includes_type, references};

/// Keywords that the service rejects. They move to the description, where the model can read them.
const REFUSED: [&str; 15] = [
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
    "propertyNames",
];

/// The string formats that the service supports.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// Returns the schema in the supported subset, and whether the rewriting closed an open object. A schema that is
/// already in the subset is returned unchanged.
///
/// Returns `None` if the subset cannot express the schema, for example for a recursive schema, for a map (closed, it
/// could only be empty), and for an object with both properties and alternatives (closed, each side would forbid the
/// properties of the other).
pub(super) fn output(schema: &Value) -> Option<(Value, bool)> {
    if is_recursive(schema) {
        return None;
    }
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        map.shift_remove("$schema");
    }
    let mut closed = false;
    restrict(&mut schema, &mut closed)?;
    Some((schema, closed))
}

fn restrict(schema: &mut Value, closed: &mut bool) -> Option<()> {
    // A schema that is not a JSON object, such as `true`, accepts any value. The supported subset cannot express such a
    // schema.
    let map = schema.as_object_mut()?;
    if let Some(one_of) = map.shift_remove("oneOf")
        && map.insert("anyOf".to_owned(), one_of).is_some()
    {
        return None;
    }
    let combined = ["anyOf", "allOf", "$ref"].iter().any(|key| map.contains_key(*key));
    if includes_type(map, "object") == Some(true) || map.contains_key("properties") {
        if combined {
            return None;
        }
        match map.insert("additionalProperties".to_owned(), Value::Bool(false)) {
            Some(Value::Bool(false)) => {}
            // The schema is a map, whose keys are arbitrary. A closed object does not allow arbitrary keys.
            Some(Value::Object(_)) => return None,
            None | Some(Value::Bool(true)) if is_empty(map.get("properties")) => return None,
            before => *closed |= before.is_some(),
        }
        if map.contains_key("patternProperties") {
            return None;
        }
    } else if !combined && !["type", "enum", "const"].iter().any(|key| map.contains_key(*key)) {
        return None;
    }
    describe_refused(map);
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                schemas.values_mut().try_for_each(|schema| restrict(schema, closed))?;
            }
            // Each schema in `allOf` would become a closed object and reject the properties of the other schemas.
            ("allOf", Value::Array(schemas)) if schemas.len() > 1 => return None,
            ("anyOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter_mut().try_for_each(|schema| restrict(schema, closed))?;
            }
            ("items", schema) => restrict(schema, closed)?,
            _ => {}
        }
    }
    Some(())
}

fn is_empty(properties: Option<&Value>) -> bool {
    properties.and_then(Value::as_object).is_none_or(Map::is_empty)
}

/// Returns whether the schema contains a reference that is recursive or that cannot be resolved.
fn is_recursive(root: &Value) -> bool {
    let mut references = References { root, open: Vec::new(), done: HashSet::new() };
    references.lead_back(root)
}

struct References<'a> {
    root: &'a Value,
    /// The references that are being followed.
    open: Vec<&'a str>,
    /// The references that are known not to be recursive.
    done: HashSet<&'a str>,
}

impl<'a> References<'a> {
    fn lead_back(&mut self, schema: &'a Value) -> bool {
        references(schema).into_iter().any(|(_, reference)| self.leads_back(reference))
    }

    fn leads_back(&mut self, reference: &'a str) -> bool {
        if self.done.contains(reference) {
            return false;
        }
        if self.open.contains(&reference) {
            return true;
        }
        let Some(target) = reference.strip_prefix('#').and_then(|place| self.root.pointer(place)) else {
            return true;
        };
        self.open.push(reference);
        let back = self.lead_back(target);
        self.open.pop();
        self.done.insert(reference);
        back
    }
}

/// Moves the keywords that the service rejects to the description.
fn describe_refused(map: &mut Map<String, Value>) {
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
    let notes: Vec<String> = refused
        .iter()
        .filter_map(|key| map.shift_remove(key).map(|value| format!("{key}: {value}")))
        .collect();
    describe(map, " ", &format!("({})", notes.join(", ")));
}

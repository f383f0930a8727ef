//! Removes nulls that stand for absent properties. If a service requires every property, an optional property is
//! declared as nullable.

use serde_json::{Map, Value};

use crate::tool::walk::{includes_type, parts};

/// The maximum number of references and alternatives that are followed, since a schema may refer to itself.
const MAX_STEPS: usize = 64;

/// Returns the value without members that are null although they are optional and not nullable in the schema. If
/// alternatives disagree, a null stays.
pub(crate) fn without_nulls(value: &Value, schema: &Value) -> Value {
    Stripper { root: schema }.strip(value, &[schema])
}

struct Stripper<'a> {
    root: &'a Value,
}

impl<'a> Stripper<'a> {
    /// Returns the value without nulls that stand for absent properties. `schemas` are the schemas that may apply to
    /// the value.
    fn strip(&self, value: &Value, schemas: &[&'a Value]) -> Value {
        let mut all = Vec::new();
        for schema in schemas {
            self.gather(schema, value, &mut all);
        }
        match value {
            Value::Object(map) => Value::Object(self.object(map, &all)),
            Value::Array(items) => {
                let strip = |(index, item): (usize, &Value)| {
                    let own: Vec<&Value> =
                        all.iter().filter_map(|schema| item_schema(schema, index)).collect();
                    self.strip(item, &own)
                };
                items.iter().enumerate().map(strip).collect()
            }
            other => other.clone(),
        }
    }

    fn object(&self, map: &Map<String, Value>, all: &[&'a Map<String, Value>]) -> Map<String, Value> {
        let mut out = Map::new();
        for (name, member) in map {
            let own: Vec<&Value> = all.iter().filter_map(|schema| property(schema, name)).collect();
            let stands_for_nothing = member.is_null()
                && !own.is_empty()
                && !own.iter().any(|schema| takes_null(schema, self.root))
                && !all.iter().any(|schema| requires(schema, name));
            if !stands_for_nothing {
                out.insert(name.clone(), self.strip(member, &own));
            }
        }
        out
    }

    /// Adds the schema to `all`, and the schemas that it refers to, its parts, and those alternatives that can apply.
    fn gather(&self, schema: &'a Value, value: &Value, all: &mut Vec<&'a Map<String, Value>>) {
        let Value::Object(schema) = schema else { return };
        if all.len() >= MAX_STEPS {
            return;
        }
        all.push(schema);
        if let Some(target) = resolve(schema, self.root) {
            self.gather(target, value, all);
        }
        for part in parts(schema, "allOf") {
            self.gather(part, value, all);
        }
        for alternative in ["anyOf", "oneOf"].into_iter().flat_map(|key| parts(schema, key)) {
            if may_be_meant(alternative, value, self.root) {
                self.gather(alternative, value, all);
            }
        }
    }
}

fn resolve<'a>(schema: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    root.pointer(schema.get("$ref")?.as_str()?.strip_prefix('#')?)
}

fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(name)
}

fn requires(schema: &Map<String, Value>, name: &str) -> bool {
    parts(schema, "required").iter().any(|required| required == name)
}

fn item_schema(schema: &Map<String, Value>, index: usize) -> Option<&Value> {
    let first = schema.get("prefixItems").and_then(|items| items.get(index));
    first.or_else(|| schema.get("items").filter(|items| !items.is_array()))
}

/// Returns whether the schema accepts null, judged by simple keywords. If that is unclear, returns `true`.
pub(crate) fn takes_null(schema: &Value, root: &Value) -> bool {
    null_fits(schema, root, MAX_STEPS)
}

fn null_fits(schema: &Value, root: &Value, steps: usize) -> bool {
    let Value::Object(schema) = schema else {
        return *schema != Value::Bool(false);
    };
    let Some(steps) = steps.checked_sub(1) else {
        return true;
    };
    let fits = |schema: &Value| null_fits(schema, root, steps);
    includes_type(schema, "null") != Some(false)
        && schema.get("const").is_none_or(Value::is_null)
        && schema.get("enum").and_then(Value::as_array).is_none_or(|values| values.contains(&Value::Null))
        && resolve(schema, root).is_none_or(fits)
        && parts(schema, "allOf").iter().all(fits)
        && ["anyOf", "oneOf"]
            .into_iter()
            .all(|key| !schema.contains_key(key) || parts(schema, key).iter().any(fits))
}

/// Returns whether an alternative can apply to a value. An alternative can apply if the value has the alternative's
/// type and required members, and contains the constants that distinguish the alternative from others.
fn may_be_meant(alternative: &Value, value: &Value, root: &Value) -> bool {
    let Value::Object(schema) = alternative else {
        return true;
    };
    let kind = match value {
        Value::Object(_) => "object",
        Value::Array(_) => "array",
        // Values of other types have no members to remove, so every alternative can apply.
        _ => return true,
    };
    let target = resolve(schema, root).and_then(Value::as_object);
    [Some(schema), target].into_iter().flatten().all(|schema| {
        let has_kind = includes_type(schema, kind) != Some(false);
        let properties = schema.get("properties").and_then(Value::as_object);
        let has_constants = properties.into_iter().flatten().all(|(name, property)| {
            match (value.get(name), property.get("const"), property.get("enum")) {
                // A null may stand for an absent member, so it does not exclude the alternative.
                (Some(Value::Null), _, _) if !requires(schema, name) => true,
                (Some(member), Some(constant), _) => member == constant,
                (Some(member), None, Some(Value::Array(values))) => values.contains(member),
                _ => true,
            }
        });
        let mut required = parts(schema, "required").iter().filter_map(Value::as_str);
        let is_complete = kind == "array" || required.all(|name| value.get(name).is_some());
        has_kind && has_constants && is_complete
    })
}

//! The form of tool input schemas that services accept, which is an object with all properties at the top level.
//!
//! If the top level has alternatives or a reference, OpenAI and Anthropic reject every request that contains the tool,
//! and servers of open models do not show the schema to their models. OpenAI and Gemini reject lists whose `items` are
//! missing. OpenAI and Anthropic reject the `items` of earlier drafts, which are a list of schemas.

mod moonshot;

pub(super) use moonshot::moonshot_schema;

use std::{collections::HashSet, fmt::Write as _};

use serde_json::{Map, Value, json};

use crate::tool::{
    Schema, resolve_reference as target,
    walk::{describe, includes_type, parts, percent_decoded, redirect, references, subschemas},
};

/// Keywords that are not allowed at the top level. `properties`, `required` and the description express them instead.
const REFUSED: [&str; 7] = ["$ref", "oneOf", "anyOf", "allOf", "enum", "const", "not"];

/// The approximate limit on the number of bytes that describe alternatives.
const MAX_WORDS: usize = 4000;

/// Returns the schema with the properties of all its alternatives at the top level, and with the items of all lists. A
/// property is required if all alternatives require it.
///
/// Every input that fits the original schema fits the returned schema. The description states which properties belong
/// together. Inputs that violate this are found later, when the input is validated. A schema that already has this form
/// is returned unchanged, byte for byte.
pub(super) fn tool_schema(schema: &Schema) -> &Value {
    schema.offered(as_object)
}

fn as_object(schema: &Value) -> Option<Value> {
    let newer = modernised(schema);
    as_complete_object(newer.as_ref().unwrap_or(schema)).or(newer)
}

/// Returns the schema without the keywords of earlier drafts that the current draft does not allow. Anthropic accepts only
/// schemas of the current draft. Returns `None` if the schema has no such keywords.
fn modernised(schema: &Value) -> Option<Value> {
    const BOUNDS: [(&str, &str); 2] = [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")];
    let has_old_id = |map: &Map<String, Value>| {
        let fragment = map.get("$id").and_then(Value::as_str).and_then(|id| id.split_once('#'));
        fragment.is_some_and(|(_, fragment)| !fragment.is_empty())
    };
    let is_flag = |value: Option<&Value>| value.is_some_and(Value::is_boolean);
    let found =
        places(schema, |map| has_old_id(map) || BOUNDS.iter().any(|(flag, _)| is_flag(map.get(*flag))));
    if found.is_empty() {
        return None;
    }
    let mut newer = schema.clone();
    for path in found {
        let Some(Value::Object(map)) = newer.pointer_mut(&path) else { continue };
        if has_old_id(map) {
            map.shift_remove("$id");
        }
        for (flag, bound) in BOUNDS {
            // A flag makes the bound exclusive.
            if is_flag(map.get(flag)) {
                let is_set = map.shift_remove(flag) == Some(Value::Bool(true));
                let bound = if is_set { map.shift_remove(bound) } else { None };
                map.extend(bound.map(|bound| (flag.to_owned(), bound)));
            }
        }
    }
    if let Value::Object(map) = &mut newer
        && map.get("$schema").and_then(Value::as_str).is_some_and(|draft| draft.contains("draft-04"))
    {
        map.shift_remove("$schema");
        let id = map.shift_remove("id").filter(Value::is_string);
        map.extend(id.map(|id| ("$id".to_owned(), id)));
    }
    Some(newer)
}

fn as_complete_object(schema: &Value) -> Option<Value> {
    let is_plain = |map: &Map<String, Value>| {
        map.get("type").is_some_and(|kind| kind == "object")
            && map.get("properties").is_some_and(Value::is_object)
            && !REFUSED.iter().any(|key| map.contains_key(*key))
    };
    let object = match schema {
        Value::Object(map) if !is_plain(map) => flat(schema),
        _ => None,
    };
    let lists = incomplete_lists(object.as_ref().unwrap_or(schema));
    if lists.is_empty() {
        return object;
    }
    let mut object = object.unwrap_or_else(|| schema.clone());
    let mut tuples = Vec::new();
    for path in lists {
        if let Some(Value::Object(list)) = object.pointer_mut(&path) {
            let is_tuple = list.get("items").is_some_and(Value::is_array);
            complete_list(list);
            tuples.extend(is_tuple.then_some(path));
        }
    }
    redirect(&mut object, |reference| {
        let (document, place) = reference.split_once('#')?;
        let mut moved = place.to_owned();
        // A tuple comes after the tuples that it contains, so the path of each one is still the original one here.
        for path in &tuples {
            let rest = moved.strip_prefix(path.as_str()).unwrap_or_default();
            if let Some(first) = rest.strip_prefix("/items/") {
                moved = format!("{path}/prefixItems/{first}");
            } else if let Some(other) = rest.strip_prefix("/additionalItems") {
                moved = format!("{path}/items{other}");
            }
        }
        (moved != place).then(|| format!("{document}#{moved}"))
    });
    Some(object)
}

/// Returns the JSON pointers to the lists whose `items` not every service accepts.
fn incomplete_lists(schema: &Value) -> Vec<String> {
    places(schema, |map| match map.get("items") {
        None => includes_type(map, "array") == Some(true),
        Some(items) => items.is_array() || items.is_boolean(),
    })
}

/// Returns the JSON pointers to the schemas for which `is_wanted` returns true. A schema comes after the schemas that it
/// contains.
fn places(schema: &Value, is_wanted: impl Fn(&Map<String, Value>) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![(String::new(), schema)];
    while let Some((path, schema)) = open.pop() {
        let Value::Object(map) = schema else { continue };
        for (keyword, value) in map {
            let parts = subschemas(keyword, value).into_iter();
            open.extend(parts.map(|(step, part)| (path.clone() + &step.pointer(keyword), part)));
        }
        if is_wanted(map) {
            found.push(path);
        }
    }
    found.reverse();
    found
}

/// Gives a list items that are a schema. This schema may accept more than before, because the input is validated later.
fn complete_list(list: &mut Map<String, Value>) {
    let mut items = json!({});
    if let Some(first @ Value::Array(_)) = list.get_mut("items").map(Value::take) {
        list.insert("prefixItems".to_owned(), first);
        items = list.shift_remove("additionalItems").filter(Value::is_object).unwrap_or(items);
    }
    list.insert("items".to_owned(), items);
}

/// Returns the schema with all properties at the top level. Returns `None` if a reference cannot be resolved, because
/// its target cannot be included.
fn flat(root: &Value) -> Option<Value> {
    Some(with_targets(root, flattened(root, root)?.into()))
}

/// Returns a schema of the document `root` with all properties at its top level, like [`flat`]. References keep their
/// targets in the document.
fn flattened(root: &Value, schema: &Value) -> Option<Map<String, Value>> {
    let members = members(root, schema).unwrap_or_default();
    let mut out = resolved(root, schema.as_object()?)?;
    let words = SchemaKeywordDescription::on(root, &out);
    out.retain(|key, _| !REFUSED.contains(&key.as_str()));
    out.insert("type".to_owned(), "object".into());
    if !words.is_empty() {
        describe(&mut out, "\n\n", &words);
    }
    out.insert("properties".to_owned(), members.properties.into());
    if members.required.is_empty() {
        out.shift_remove("required");
    } else {
        out.insert("required".to_owned(), members.required.into());
    }
    Some(out)
}

/// Returns the schema. If the schema is a reference, returns its target together with the keywords next to the
/// reference.
fn resolved(root: &Value, map: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut out = map.clone();
    while let Some(Value::String(reference)) = out.shift_remove("$ref") {
        let Value::Object(target) = target(root, &reference)? else { break };
        let mut merged = target.clone();
        merged.extend(out);
        out = merged;
    }
    Some(out)
}

/// Returns the members that a schema defines for an object. Returns `None` if no object fits the schema. A reference
/// never leads back to a schema that contains it, and only few subschemas apply to one value, because [`Schema::new`]
/// rejects all other schemas.
fn members(root: &Value, schema: &Value) -> Option<CombinedSchemaProperties> {
    let map = match schema {
        Value::Object(map) => map,
        Value::Bool(false) => return None,
        _ => return Some(CombinedSchemaProperties::default()),
    };
    let fits_const = || map.get("const").is_none_or(Value::is_object);
    if !includes_type(map, "object").unwrap_or_else(fits_const) {
        return None;
    }
    let mut found = CombinedSchemaProperties::of(map);
    if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(|it| target(root, it)) {
        found.and(members(root, target)?);
    }
    for part in parts(map, "allOf") {
        found.and(members(root, part)?);
    }
    for key in ["anyOf", "oneOf"] {
        let parts = parts(map, key).iter().filter_map(|part| members(root, part));
        found.and(parts.reduce(CombinedSchemaProperties::or).unwrap_or_default());
    }
    Some(found)
}

/// A description of the keywords that are not allowed at the top level. Only this text states which properties belong
/// together.
#[derive(Default)]
struct SchemaKeywordDescription {
    text: String,
    full: bool,
}

impl SchemaKeywordDescription {
    fn on(root: &Value, top: &Map<String, Value>) -> String {
        let mut words = Self::default();
        words.add(root, top);
        words.text
    }

    /// Describes the alternatives of a schema and of its subschemas, and the values that the schema forbids.
    fn add(&mut self, root: &Value, schema: &Map<String, Value>) {
        for (key, head) in [("oneOf", "Exactly one of these:"), ("anyOf", "At least one of these:")] {
            let described = |part| Some(line(&members(root, part)?, description(root, part)));
            let lines: Vec<String> = parts(schema, key).iter().filter_map(described).collect();
            if lines.len() >= 2 {
                self.say(head, &lines);
            }
        }
        if let Some(not) = schema.get("not")
            && members(root, not).is_some()
        {
            self.say("Nothing that fits this JSON Schema:", &[format!("\n- {not}")]);
        }
        for part in parts(schema, "allOf") {
            let part = part.as_object().and_then(|part| resolved(root, part));
            if let Some(part) = part {
                self.add(root, &part);
            }
        }
    }

    fn say(&mut self, head: &str, lines: &[String]) {
        if self.full {
            return;
        }
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.text.push_str(head);
        for line in lines {
            if self.text.len() + line.len() > MAX_WORDS {
                self.text.push_str("\n- …");
                self.full = true;
                return;
            }
            self.text.push_str(line);
        }
    }
}

/// Describes an alternative by its members. Optional members are marked, and constant members are followed by their
/// value.
fn line(members: &CombinedSchemaProperties, description: Option<&str>) -> String {
    let mut line = String::from("\n- {");
    let unsaid = members.required.iter().filter(|name| !members.properties.contains_key(*name));
    let names = members.properties.iter().map(|(name, schema)| (name, constant(schema)));
    for (number, (name, value)) in names.chain(unsaid.map(|name| (name, None))).enumerate() {
        let gap = if number == 0 { "" } else { ", " };
        let mark = if members.demands(name) { "" } else { "?" };
        let _ = write!(line, "{gap}{name}{mark}");
        if let Some(value) = value {
            let _ = write!(line, ": {value}");
        }
    }
    line.push('}');
    if let Some(description) = description {
        let _ = write!(line, ": {description}");
    }
    line
}

/// Returns the description or title of a schema. If the schema has neither, returns that of the target of its
/// reference.
fn description<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a str> {
    let mut schema = schema;
    loop {
        let text = schema.get("description").or_else(|| schema.get("title"));
        if let Some(text) = text.and_then(Value::as_str).filter(|text| !text.is_empty()) {
            return Some(text);
        }
        schema = target(root, schema.get("$ref")?.as_str()?)?;
    }
}

/// Adds a copy of the original schema to the definitions if targets of references were removed. References to removed
/// targets are redirected to the copy.
fn with_targets(root: &Value, out: Value) -> Value {
    let is_lost = |reference: &str| target(&out, reference).is_none() && target(root, reference).is_some();
    if !references(&out).iter().any(|(_, reference)| is_lost(reference)) {
        return out;
    }
    with_original(root, &out, |reference, _| is_lost(reference))
}

/// Adds the original schema to the definitions of a schema. `moves` returns whether a reference leads to the original,
/// and gets whether the reference is in the original itself.
fn with_original(root: &Value, out: &Value, moves: impl Fn(&str, bool) -> bool) -> Value {
    let mut copy = root.clone();
    if let Value::Object(copy) = &mut copy {
        // The copy becomes a definition, so it omits the keywords that have a meaning only at the top level.
        copy.retain(|key, _| !["$defs", "definitions", "$id", "id", "$schema"].contains(&key.as_str()));
    }
    let mut name = "original".to_owned();
    while out["$defs"].get(&name).is_some() {
        name.push('_');
    }
    let place = |reference: &str| reference.split_once('#').map_or("", |(_, place)| place).to_owned();
    let copied = |reference: &str| format!("#/$defs/{name}{}", place(reference));
    let mut kept = out.clone();
    redirect(&mut copy, |reference| moves(reference, true).then(|| copied(reference)));
    redirect(&mut kept, |reference| moves(reference, false).then(|| copied(reference)));
    if !kept["$defs"].is_object() {
        kept["$defs"] = json!({});
    }
    kept["$defs"][&name] = copy;
    kept
}

/// The members that schemas define for an object.
#[derive(Default)]
struct CombinedSchemaProperties {
    properties: Map<String, Value>,
    required: Vec<String>,
    /// The required names as a set, because there may be very many of them.
    demanded: HashSet<String>,
}

impl CombinedSchemaProperties {
    /// Returns the members that a schema itself defines. Members that only its subschemas define are not included.
    fn of(schema: &Map<String, Value>) -> Self {
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
        let required: Vec<String> = required.filter_map(Value::as_str).map(ToOwned::to_owned).collect();
        Self {
            properties: schema.get("properties").and_then(Value::as_object).cloned().unwrap_or_default(),
            demanded: required.iter().cloned().collect(),
            required,
        }
    }

    /// Returns whether an object must have this member.
    fn demands(&self, name: &str) -> bool {
        self.demanded.contains(name)
    }

    /// Adds the members that another schema defines for the same object.
    fn and(&mut self, other: Self) {
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
    fn or(mut self, other: Self) -> Self {
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
fn constant(schema: &Value) -> Option<&Value> {
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

/// Returns an object's schema with other names for its properties at the top level. `wire` returns the new name of a
/// property. An object of the same schema below it keeps its names, so it refers to a copy of the schema.
pub(super) fn with_names(schema: &Value, wire: impl Fn(&str) -> String) -> Value {
    let is_recursive = references(schema).iter().any(|(_, reference)| *reference == "#");
    let mut out = if is_recursive {
        with_original(schema, schema, |reference, is_in_original| {
            reference == "#" || is_in_original && reference.starts_with("#/properties/")
        })
    } else {
        schema.clone()
    };
    if let Some(Value::Object(properties)) = out.get_mut("properties") {
        let named = std::mem::take(properties).into_iter();
        *properties = named.map(|(name, schema)| (wire(&name), schema)).collect();
    }
    for name in out.get_mut("required").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Value::String(name) = name {
            *name = wire(name);
        }
    }
    redirect(&mut out, |reference| {
        let (document, path) = reference.split_once("#/properties/")?;
        let (escaped, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
        let name = percent_decoded(escaped)?.replace("~1", "/").replace("~0", "~");
        let wire = wire(&name);
        (wire != name).then(|| format!("{document}#/properties/{wire}{rest}"))
    });
    out
}

//! The form of tool input schemas that services accept, which is an object with all properties at the top level.
//!
//! If the top level has alternatives or a reference, OpenAI and Anthropic reject every request that contains the tool,
//! and servers of open models do not show the schema to their models.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::unions::{Members, constant};
use crate::tool::{
    Schema, resolve_reference as target,
    walk::{describe, includes_type, parts, redirect, references},
};

/// Keywords that are not allowed at the top level. `properties`, `required` and the description express them instead.
const REFUSED: [&str; 7] = ["$ref", "oneOf", "anyOf", "allOf", "enum", "const", "not"];

/// The approximate limit on the number of bytes that describe alternatives.
const MAX_WORDS: usize = 4000;

/// Returns the schema with the properties of all its alternatives at the top level. A property is required if all
/// alternatives require it.
///
/// Every input that fits the original schema fits the returned schema. The description states which properties belong
/// together. Inputs that violate this are found later, when the input is validated. A schema that already has this form
/// is returned unchanged, byte for byte.
pub(super) fn tool_schema(schema: &Schema) -> &Value {
    schema.offered(as_object)
}

fn as_object(schema: &Value) -> Option<Value> {
    let is_plain = |map: &Map<String, Value>| {
        map.get("type").is_some_and(|kind| kind == "object")
            && map.get("properties").is_some_and(Value::is_object)
            && !REFUSED.iter().any(|key| map.contains_key(*key))
    };
    match schema {
        Value::Object(map) if !is_plain(map) => flat(schema, map),
        _ => None,
    }
}

/// Returns the schema with all properties at the top level. Returns `None` if a reference cannot be resolved, because
/// its target cannot be included.
fn flat(root: &Value, map: &Map<String, Value>) -> Option<Value> {
    let members = members(root, root).unwrap_or_default();
    let mut out = resolved(root, map)?;
    let words = Words::on(root, &out);
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
    Some(with_targets(root, out.into()))
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
fn members(root: &Value, schema: &Value) -> Option<Members> {
    let map = match schema {
        Value::Object(map) => map,
        Value::Bool(false) => return None,
        _ => return Some(Members::default()),
    };
    let fits_const = || map.get("const").is_none_or(Value::is_object);
    if !includes_type(map, "object").unwrap_or_else(fits_const) {
        return None;
    }
    let mut found = Members::of(map);
    if let Some(target) = map.get("$ref").and_then(Value::as_str).and_then(|it| target(root, it)) {
        found.and(members(root, target)?);
    }
    for part in parts(map, "allOf") {
        found.and(members(root, part)?);
    }
    for key in ["anyOf", "oneOf"] {
        let parts = parts(map, key).iter().filter_map(|part| members(root, part));
        found.and(parts.reduce(Members::or).unwrap_or_default());
    }
    Some(found)
}

/// A description of the keywords that are not allowed at the top level. Only this text states which properties belong
/// together.
#[derive(Default)]
struct Words {
    text: String,
    full: bool,
}

impl Words {
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
fn line(members: &Members, description: Option<&str>) -> String {
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
    let moved = |reference: &str| is_lost(reference).then(|| format!("#/$defs/{name}{}", place(reference)));
    let mut kept = out.clone();
    redirect(&mut copy, moved);
    redirect(&mut kept, moved);
    if !kept["$defs"].is_object() {
        kept["$defs"] = json!({});
    }
    kept["$defs"][&name] = copy;
    kept
}

//! Schemas of tools' inputs as services take them: an object, with all its properties at the top. With alternatives there,
//! or a reference, OpenAI and Anthropic refuse every request that offers the tool, and servers of open models show
//! their models nothing of it.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::unions::{Members, constant};
use crate::tool::{Schema, resolve_reference as target};

/// Keywords that can't be at the top. `properties`, `required` and the description say what is to be said of them.
const REFUSED: [&str; 7] = ["$ref", "oneOf", "anyOf", "allOf", "enum", "const", "not"];

/// Bytes of words on alternatives, about.
const MAX_WORDS: usize = 4000;

/// The schema with the properties of its alternatives side by side at the top, and demanded where all demand them. Every
/// input that fits the schema fits this one; the description says what belongs together, and what does not is found
/// when the input is checked. A schema that is so already stays as it is, to the byte.
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
        Value::Object(map) if !is_plain(map) => flat(schema, map).map(Value::Object),
        _ => None,
    }
}

/// `None` where a reference leads nowhere: what it stands for can't be gathered.
fn flat(root: &Value, map: &Map<String, Value>) -> Option<Map<String, Value>> {
    let members = members(root, root).unwrap_or_default();
    let mut out = resolved(root, map)?;
    let words = Words::on(root, &out);
    out.retain(|key, _| !REFUSED.contains(&key.as_str()));
    out.insert("type".to_owned(), "object".into());
    if !words.is_empty() {
        let before = out.get("description").and_then(Value::as_str).filter(|text| !text.is_empty());
        let words = before.map_or_else(|| words.clone(), |before| format!("{before}\n\n{words}"));
        out.insert("description".to_owned(), words.into());
    }
    out.insert("properties".to_owned(), members.properties.into());
    if members.required.is_empty() {
        out.shift_remove("required");
    } else {
        out.insert("required".to_owned(), members.required.into());
    }
    Some(with_targets(root, out))
}

/// The schema, or what its reference leads to with what stands beside that.
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

/// What a schema says of an object's members; `None` if no object fits it. A reference never leads to what it stands in,
/// and a schema has few parts that apply to one value: [`Schema::new`] refuses others.
fn members(root: &Value, schema: &Value) -> Option<Members> {
    let map = match schema {
        Value::Object(map) => map,
        Value::Bool(false) => return None,
        _ => return Some(Members::default()),
    };
    let takes_objects = match map.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => map.get("const").is_none_or(Value::is_object),
    };
    if !takes_objects {
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

fn parts<'a>(schema: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    schema.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// What can't stand at the top, in words: nothing else says what belongs together.
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

    /// Takes the alternatives of a schema and of its parts, and what it forbids.
    fn add(&mut self, root: &Value, schema: &Map<String, Value>) {
        for (key, head) in [("oneOf", "Exactly one of these:"), ("anyOf", "At least one of these:")] {
            let said = |part| Some(line(&members(root, part)?, description(root, part)));
            let lines: Vec<String> = parts(schema, key).iter().filter_map(said).collect();
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

/// An alternative: its members, with a mark on those that may be absent and the value of those that have but one.
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

/// What a schema is called: its own words, or those of what it refers to.
fn description<'a>(root: &'a Value, schema: &'a Value) -> Option<&'a str> {
    let mut schema = schema;
    loop {
        let said = schema.get("description").or_else(|| schema.get("title"));
        if let Some(text) = said.and_then(Value::as_str).filter(|text| !text.is_empty()) {
            return Some(text);
        }
        schema = target(root, schema.get("$ref")?.as_str()?)?;
    }
}

/// Lets references that led into what is gone find it in a copy among the definitions.
fn with_targets(root: &Value, out: Map<String, Value>) -> Map<String, Value> {
    let out = Value::Object(out);
    let is_lost = |reference: &str| target(&out, reference).is_none() && target(root, reference).is_some();
    let mut kept = out.clone();
    if refers(&out, &is_lost) {
        let mut copy = root.clone();
        if let Value::Object(copy) = &mut copy {
            // What it is called by is understood at the top alone.
            copy.retain(|key, _| !["$defs", "definitions", "$id", "id", "$schema"].contains(&key.as_str()));
        }
        let mut name = "original".to_owned();
        while out["$defs"].get(&name).is_some() {
            name.push('_');
        }
        let place = |reference: &str| reference.split_once('#').map_or("", |(_, place)| place).to_owned();
        let moved =
            |reference: &str| is_lost(reference).then(|| format!("#/$defs/{name}{}", place(reference)));
        repoint(&mut copy, &moved);
        repoint(&mut kept, &moved);
        if !kept["$defs"].is_object() {
            kept["$defs"] = json!({});
        }
        kept["$defs"][&name] = copy;
    }
    match kept {
        Value::Object(kept) => kept,
        _ => Map::new(),
    }
}

/// Whether any reference is of this kind.
fn refers(schema: &Value, kind: &impl Fn(&str) -> bool) -> bool {
    match schema {
        Value::Array(items) => items.iter().any(|item| refers(item, kind)),
        Value::Object(map) => map.iter().any(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(reference)) => kind(reference),
            (_, value) => refers(value, kind),
        }),
        _ => false,
    }
}

/// Gives each reference to `moved`, which says where it leads now if elsewhere.
fn repoint(schema: &mut Value, moved: &impl Fn(&str) -> Option<String>) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| repoint(item, moved)),
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(reference)) => {
                if let Some(there) = moved(reference) {
                    *reference = there;
                }
            }
            (_, value) => repoint(value, moved),
        }),
        _ => {}
    }
}

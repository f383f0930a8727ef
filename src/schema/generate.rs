//! Makes the files in `schema/` from the types. `OMNI_WRITE_SCHEMA=1 cargo test --all-features --lib schema` writes them.

mod openapi;
mod plain;

use std::{collections::BTreeSet, env, fs, path::Path};

use schemars::{
    JsonSchema, Schema, SchemaGenerator,
    generate::SchemaSettings,
    transform::{Transform, transform_subschemas},
};
use serde_json::{Map, Value, json};

use super::{COMMANDS, OPENAPI, UPDATES};
use crate::{
    agent::{Event, Snapshot},
    manager::{Listed, ManagerEvent, ManagerSnapshot},
    message::UsageSum,
    session::{SessionAnswer, SessionCommand, SessionEvent, SessionSnapshot},
    store::{Found, Listing},
    subscription::Update,
};

/// If this variable is set, the test writes the files instead of comparing them.
const WRITE: &str = "OMNI_WRITE_SCHEMA";

#[test]
fn files_are_the_schemas_of_the_types() {
    for (name, stored, document) in [
        ("updates", UPDATES, updates()),
        ("commands", COMMANDS, commands()),
        ("openapi", OPENAPI, openapi::openapi()),
    ] {
        let text = format!("{document:#}\n");
        if env::var_os(WRITE).is_some() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("schema/{name}.json"));
            fs::write(file, text).unwrap();
        } else {
            assert!(
                stored.replace("\r\n", "\n") == text,
                "schema/{name}.json is not the schema of the types. To write the file, run \
                 `{WRITE}=1 cargo test --all-features --lib schema`"
            );
        }
    }
}

/// Returns the schema of the updates of agents, sessions and managers, as they are serialised.
fn updates() -> Value {
    let mut document = SchemaDocument::new(SchemaSettings::draft2020_12().for_serialize());
    document.add::<Update<SessionSnapshot, SessionEvent>>("SessionUpdate", "An update of a session.");
    document.add::<Update<Snapshot, Event>>("AgentUpdate", "An update of an agent without a session.");
    document.add::<Update<ManagerSnapshot, ManagerEvent>>("ManagerUpdate", "An update of a manager.");
    document.finish("Updates", "The updates of agents, sessions and managers, which they emit in order.")
}

/// Returns the schema of the commands for sessions, and of their answers, as they are read.
fn commands() -> Value {
    let mut document = SchemaDocument::new(SchemaSettings::draft2020_12().for_deserialize());
    document.add::<SessionCommand>("SessionCommand", "An operation of a session, sent by a client.");
    document.add::<SessionAnswer>("SessionAnswer", "The result of an operation of a session.");
    document.include::<Listing>();
    document.include::<Listed>();
    document.include::<Found>();
    document.include::<UsageSum>();
    document.finish("Commands", "The commands for sessions and managers, and the answers.")
}

/// A schema with several main types.
struct SchemaDocument {
    generator: SchemaGenerator,
    /// The main types, with their names.
    main: Vec<(&'static str, Schema)>,
}

impl SchemaDocument {
    fn new(settings: SchemaSettings) -> Self {
        Self { generator: settings.into_generator(), main: Vec::new() }
    }

    fn add<T: JsonSchema>(&mut self, name: &'static str, description: &str) {
        let mut schema = T::json_schema(&mut self.generator);
        schema.insert("description".to_owned(), description.into());
        self.main.push((name, schema));
    }

    /// Adds a type that is not one of the main types. Returns the reference to it.
    fn include<T: JsonSchema>(&mut self) -> Schema {
        self.generator.subschema_for::<T>()
    }

    /// Returns all types, with descriptions for readers who do not know Rust.
    fn types(&mut self) -> Map<String, Value> {
        let mut types: Map<String, Value> = self.generator.take_definitions(false);
        types.extend(self.main.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone().into())));
        if types.contains_key("Duration") {
            types.insert("Duration".to_owned(), duration());
        }
        types.sort_keys();
        let tidy = SchemaTidier {
            is_written: self.generator.contract().is_serialize(),
            in_events: false,
            events: types
                .iter()
                .filter(|(name, _)| is_event(name))
                .flat_map(|(_, event)| tags(event))
                .collect(),
        };
        for (name, schema) in &mut types {
            if let Ok(schema) = schema.try_into() {
                SchemaTidier { in_events: is_event(name), ..tidy.clone() }.transform(schema);
            }
        }
        types
    }

    fn finish(mut self, title: &str, description: &str) -> Value {
        let types = self.types();
        let references: Vec<_> =
            self.main.iter().map(|(name, _)| json!({ "$ref": format!("#/$defs/{name}") })).collect();
        json!({
            "$schema": self.generator.settings().meta_schema,
            "title": title,
            "description": description,
            "anyOf": references,
            "$defs": types,
        })
    }
}

fn is_event(name: &str) -> bool {
    name.ends_with("Event")
}

/// Returns the tags of the alternatives of an enum with tagged objects.
fn tags(schema: &Value) -> impl Iterator<Item = String> {
    let kinds = schema["oneOf"].as_array().into_iter().flatten();
    kinds.filter_map(|kind| kind["properties"]["type"]["const"].as_str()).map(str::to_owned)
}

/// Returns the schema of a duration, in the form that serde gives it.
fn duration() -> Value {
    json!({
        "type": "object",
        "description": "A span of time.",
        "properties": {
            "secs": { "type": "integer", "format": "uint64", "minimum": 0, "description": "The whole seconds." },
            "nanos": {
                "type": "integer",
                "minimum": 0,
                "maximum": 999_999_999,
                "description": "The rest, in nanoseconds.",
            },
        },
        "required": ["secs", "nanos"],
    })
}

/// Adapts schemas of Rust types to readers who do not know Rust.
#[derive(Clone)]
struct SchemaTidier {
    /// Whether the schema describes the JSON that this crate writes, and not the JSON that it reads.
    is_written: bool,
    /// Whether the schema describes events.
    in_events: bool,
    /// The tags of all events.
    events: BTreeSet<String>,
}

impl Transform for SchemaTidier {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(Value::String(text)) = schema.get_mut("description") {
            let is_event = |tag: &str| self.in_events && self.events.contains(tag);
            *text = plain::with_json_names(&plain::text(text), is_event);
        }
        let limit = match schema.get("format").and_then(Value::as_str) {
            Some("uint16") => Some(u32::from(u16::MAX)),
            Some("uint32") => Some(u32::MAX),
            _ => None,
        };
        if let Some(limit) = limit {
            schema.insert("maximum".to_owned(), limit.into());
        }
        let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let members = schema.get_mut("properties").and_then(Value::as_object_mut);
        for (name, member) in members.into_iter().flatten() {
            let Some(member) = member.as_object_mut() else { continue };
            let is_absent = self.is_written && !required.iter().any(|required| required == name);
            if self.is_written {
                member.remove("default");
            }
            if is_absent {
                without_null(member);
            }
            if let Some(Value::String(text)) = member.get_mut("description") {
                *text = plain::without_none(text, is_absent);
            }
        }
        name_reference(schema);
        transform_subschemas(self, schema);
    }
}

/// Moves a reference that has other keywords next to it into `allOf`. The meaning is the same, but generators of types
/// otherwise repeat the type instead of using its name.
fn name_reference(schema: &mut Schema) {
    let Some(members) = schema.as_object_mut() else { return };
    if members.len() > 1
        && let Some(reference) = members.shift_remove("$ref")
    {
        members.insert("allOf".to_owned(), json!([{ "$ref": reference }]));
    }
}

/// Removes `null` from the alternatives of a member that is absent when it has no value.
fn without_null(member: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = member.get_mut("type") {
        types.retain(|name| name != "null");
        if let [name] = &mut types[..] {
            let name = name.take();
            member.insert("type".to_owned(), name);
        }
    }
    if let Some(Value::Array(kinds)) = member.get_mut("anyOf") {
        kinds.retain(|kind| kind.get("type").is_none_or(|name| name != "null"));
        if let [Value::Object(kind)] = &mut kinds[..] {
            let kind = std::mem::take(kind);
            member.remove("anyOf");
            member.extend(kind.into_iter().filter(|(key, _)| key != "description"));
        }
    }
}

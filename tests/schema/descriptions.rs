//! Every type and member has a description in plain words, and objects accept further members.

use omni_agent::schema;
use serde_json::{Value, json};

use crate::{COMMANDS, UPDATES};

/// Returns the documents, with their types in `$defs`.
fn documents() -> [Value; 3] {
    let openapi: Value = serde_json::from_str(schema::OPENAPI).unwrap();
    let types = json!({ "$defs": openapi["components"]["schemas"] });
    [UPDATES.value.clone(), COMMANDS.value.clone(), types]
}

/// Calls `see` for each schema inside the value, with the path of the schema.
fn walk(place: &str, schema: &Value, see: &mut impl FnMut(&str, &Value)) {
    see(place, schema);
    for (key, part) in schema.as_object().into_iter().flatten() {
        match (key.as_str(), part) {
            ("$defs" | "properties", Value::Object(parts)) => {
                parts.iter().for_each(|(name, part)| walk(&format!("{place}/{name}"), part, see));
            }
            ("oneOf" | "anyOf" | "allOf" | "prefixItems", Value::Array(parts)) => {
                parts.iter().enumerate().for_each(|(at, part)| walk(&format!("{place}/{at}"), part, see));
            }
            ("items" | "additionalProperties" | "not" | "propertyNames", part) => {
                walk(&format!("{place}/{key}"), part, see);
            }
            _ => {}
        }
    }
}

#[test]
fn every_type_and_member_is_described() {
    let mut missing = Vec::new();
    for document in &documents() {
        let types = document["$defs"].as_object().unwrap();
        missing.extend(
            types.iter().filter(|(_, schema)| schema["description"].is_null()).map(|(name, _)| name.clone()),
        );
        walk("", document, &mut |place, schema| {
            for (name, member) in schema["properties"].as_object().into_iter().flatten() {
                // Two kinds of members need no description of their own, because the description of their alternative
                // covers them: a tag, and the only member of an alternative.
                let is_choice = schema["additionalProperties"] == Value::Bool(false);
                if member["description"].is_null() && member["const"].is_null() && !is_choice {
                    missing.push(format!("{place}/{name}"));
                }
            }
        });
    }
    assert!(missing.is_empty(), "no descriptions: {missing:#?}");
}

#[test]
fn descriptions_have_no_syntax_of_rust_documentation() {
    let mut wrong = Vec::new();
    for document in &documents() {
        walk("", document, &mut |place, schema| {
            if let Some(text) = schema["description"].as_str()
                && (["](", "[`", "```", "None`", "::", "Arc", "allocat"]
                    .iter()
                    .any(|syntax| text.contains(syntax))
                    || text.trim() != text
                    || text.ends_with(':')
                    || text.is_empty())
            {
                wrong.push(format!("{place}: {text}"));
            }
        });
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn objects_accept_further_members_except_choices() {
    for document in [&UPDATES.value, &COMMANDS.value] {
        walk("", document, &mut |place, schema| {
            let members = schema["properties"].as_object().map_or(0, serde_json::Map::len);
            let is_closed = schema["additionalProperties"] == Value::Bool(false);
            assert!(!is_closed || members == 1, "{place} is closed: {schema:#}");
        });
    }
}

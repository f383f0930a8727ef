//! Values that are no object, asked for as the one member of an object, where a service takes nothing else.

use serde_json::{Value, json};

use crate::provider::output::WRAPPER;

/// The schema of an object that holds the value; `None` if the value is an object already.
pub(super) fn wrapped(schema: &Value) -> Option<Value> {
    if is_object(schema) {
        return None;
    }
    let mut inner = schema.clone();
    repoint(&mut inner);
    let mut out = json!({
        "type": "object",
        "properties": {},
        "required": [WRAPPER],
        "additionalProperties": false,
    });
    for key in ["$schema", "$defs", "definitions"] {
        if let Some(kept) = inner.as_object_mut().and_then(|inner| inner.shift_remove(key)) {
            out[key] = kept;
        }
    }
    out["properties"] = json!({WRAPPER: inner});
    Some(out)
}

/// Whether the schema takes objects and nothing else.
pub(super) fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Lets references into the schema find it where it has moved to. Shared definitions stay at the top.
fn repoint(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(repoint),
        Value::Object(map) => map.iter_mut().for_each(|(key, value)| match (key.as_str(), value) {
            ("$ref", Value::String(reference)) => *reference = moved(reference),
            // Not schemas.
            ("const" | "enum" | "default" | "examples", _) => {}
            (_, value) => repoint(value),
        }),
        _ => {}
    }
}

fn moved(reference: &str) -> String {
    match reference.strip_prefix('#') {
        Some(pointer) if !pointer.starts_with("/$defs/") && !pointer.starts_with("/definitions/") => {
            format!("#/properties/{WRAPPER}{pointer}")
        }
        _ => reference.to_owned(),
    }
}

/// The value's JSON text out of the object around it, as it streams in. A text that is no such object passes as it
/// is.
#[derive(Debug, Default)]
pub(super) struct Unwrapper {
    state: State,
    /// What can't be told yet.
    held: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// The object's beginning may still come.
    #[default]
    Before,
    /// Within the value, or behind it.
    Inside,
    /// It is no such object, or it is over.
    Outside,
}

/// The member's name as JSON text.
const WRAPPER_TEXT: &str = "\"value\"";

/// Bytes that are held back, at most: of an object's beginning or end.
const MAX_HELD: usize = 1024;

impl Unwrapper {
    /// More text, and what is known by it to be the value's.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.state == State::Before {
            match beginning(&self.held) {
                Beginning::Object(length) => {
                    self.state = State::Inside;
                    self.held.drain(..length);
                }
                Beginning::Open if self.held.len() <= MAX_HELD => return String::new(),
                Beginning::Open | Beginning::Other => self.state = State::Outside,
            }
        }
        match self.state {
            State::Before => String::new(),
            State::Outside => std::mem::take(&mut self.held),
            State::Inside => {
                let kept = self.held.trim_end();
                let kept = kept.strip_suffix('}').unwrap_or(kept).trim_end().len();
                let kept = if self.held.len() - kept > MAX_HELD { self.held.len() } else { kept };
                let rest = self.held.split_off(kept);
                std::mem::replace(&mut self.held, rest)
            }
        }
    }

    /// The text is over: what is left of it. Only the closing brace is not the value's.
    pub(super) fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Outside) {
            State::Inside => String::new(),
            State::Before | State::Outside => held,
        }
    }
}

/// How a text begins.
enum Beginning {
    /// As the object does, whose value is at this place.
    Object(usize),
    /// As the object may.
    Open,
    /// Otherwise.
    Other,
}

fn beginning(text: &str) -> Beginning {
    let mut rest = text.trim_start();
    for token in ["{", WRAPPER_TEXT, ":"] {
        match rest.strip_prefix(token) {
            Some(after) => rest = after.trim_start(),
            None if token.starts_with(rest) => return Beginning::Open,
            None => return Beginning::Other,
        }
    }
    // White space before the value may still come.
    if rest.is_empty() { Beginning::Open } else { Beginning::Object(text.len() - rest.len()) }
}

//! Wrapping of values that are not objects. If a service accepts only objects, such a value is requested as the only
//! member of an object.

use serde_json::{Value, json};

use crate::{provider::output::WRAPPER, tool::walk::redirect};

/// Returns the schema of an object whose only member is a value that fits `schema`. Returns `None` if `schema` accepts
/// only objects.
pub(super) fn wrapped(schema: &Value) -> Option<Value> {
    if is_object(schema) {
        return None;
    }
    let mut inner = schema.clone();
    // Shared definitions stay at the top level, so references to them do not change.
    redirect(&mut inner, |reference| {
        let pointer = reference.strip_prefix('#')?;
        let is_shared = ["/$defs/", "/definitions/"].iter().any(|shared| pointer.starts_with(shared));
        (!is_shared).then(|| format!("#/properties/{WRAPPER}{pointer}"))
    });
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

/// Returns whether the schema accepts only objects.
pub(super) fn is_object(schema: &Value) -> bool {
    schema.get("type").is_some_and(|kind| kind == "object")
}

/// Extracts a value's JSON text from the object that encloses it, while the text is streamed. A text that is not such
/// an object is returned unchanged.
#[derive(Debug, Default)]
pub(super) struct Unwrapper {
    state: UnwrapState,
    /// The received text that may belong to the value or to the enclosing object.
    held: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum UnwrapState {
    /// The beginning of the object has not arrived completely.
    #[default]
    Before,
    /// The text is inside the value or after the value.
    Inside,
    /// The text is not an object that encloses the value, or the text has ended.
    Outside,
}

/// The name of the enclosing object's only member, as JSON text.
const WRAPPER_TEXT: &str = "\"value\"";

/// The maximum number of bytes that are held back because they may be the beginning or the end of the object.
const MAX_HELD: usize = 1024;

impl Unwrapper {
    /// Adds text, and returns the text that is now known to belong to the value.
    pub(super) fn push(&mut self, text: &str) -> String {
        self.held.push_str(text);
        if self.state == UnwrapState::Before {
            match beginning(&self.held) {
                Prefix::Object(length) => {
                    self.state = UnwrapState::Inside;
                    self.held.drain(..length);
                }
                Prefix::Open if self.held.len() <= MAX_HELD => return String::new(),
                Prefix::Open | Prefix::Other => self.state = UnwrapState::Outside,
            }
        }
        match self.state {
            UnwrapState::Before => String::new(),
            UnwrapState::Outside => std::mem::take(&mut self.held),
            UnwrapState::Inside => {
                let kept = self.held.trim_end();
                let kept = kept.strip_suffix('}').unwrap_or(kept).trim_end().len();
                let kept = if self.held.len() - kept > MAX_HELD { self.held.len() } else { kept };
                let rest = self.held.split_off(kept);
                std::mem::replace(&mut self.held, rest)
            }
        }
    }

    /// Ends the text, and returns the part that was held back, unless this part is the end of the enclosing object.
    pub(super) fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, UnwrapState::Outside) {
            UnwrapState::Inside => String::new(),
            UnwrapState::Before | UnwrapState::Outside => held,
        }
    }
}

/// How a text begins.
enum Prefix {
    /// The text begins with the object. The value in the object starts at this position.
    Object(usize),
    /// The text is too short to decide.
    Open,
    /// The text begins differently.
    Other,
}

fn beginning(text: &str) -> Prefix {
    let mut rest = text.trim_start();
    for token in ["{", WRAPPER_TEXT, ":"] {
        match rest.strip_prefix(token) {
            Some(after) => rest = after.trim_start(),
            None if token.starts_with(rest) => return Prefix::Open,
            None => return Prefix::Other,
        }
    }
    // White space before the value may still follow.
    if rest.is_empty() { Prefix::Open } else { Prefix::Object(text.len() - rest.len()) }
}

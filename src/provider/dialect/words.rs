//! What a format has no member for and can only be said to the model.

use super::wrapping::wrapped;
use crate::provider::OutputSchema;

/// The warning where a schema is only said.
pub(super) const UNENFORCED: &str = "output: the schema is said in the system prompt, and not enforced";

/// The warning where a cache can't be told how long to last.
pub(super) const NO_LONG_CACHE: &str = "cache: it can't be said here how long to keep the prompt";

/// The system prompt with the demand for an answer of this shape. One that is no object is asked for within one:
/// services that hold an answer to JSON hold it to an object.
pub(super) fn with_schema(system: &str, output: &OutputSchema) -> String {
    let mut text = system.to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str("Answer with one JSON object and nothing else. It must fit this JSON Schema:\n");
    let schema = output.schema.as_value();
    text.push_str(&wrapped(schema).as_ref().unwrap_or(schema).to_string());
    text
}

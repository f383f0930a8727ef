//! What a format has no member for and can only be said to the model.

use crate::provider::OutputSchema;

/// The system prompt with the demand for an answer of this shape.
pub(super) fn with_schema(system: &str, output: &OutputSchema) -> String {
    let mut text = system.to_owned();
    if !text.is_empty() {
        text.push_str("\n\n");
    }
    text.push_str("Answer with one JSON object and nothing else. It must fit this JSON Schema:\n");
    text.push_str(&output.schema.as_value().to_string());
    text
}

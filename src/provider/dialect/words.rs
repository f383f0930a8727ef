//! Texts for the system prompt and for warnings. They are used where a service has no setting for an option.

use super::wrapping::wrapped;
use crate::provider::OutputSchema;

/// The warning for an output schema that is sent only as a part of the system prompt.
pub(super) const UNENFORCED: &str = "`output` is not enforced: the schema is only part of the system prompt";

/// The warning for a cache hint that asks for a time for which the service has no setting.
pub(super) const NO_LONG_CACHE: &str =
    "`cache` is not extended: this service has no setting for the time that the prompt is kept";

/// Returns the system prompt with an instruction to answer with JSON that fits the schema. If the schema describes a
/// value that is not an object, the value is requested as a member of an object, because the JSON that services
/// guarantee is always an object.
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

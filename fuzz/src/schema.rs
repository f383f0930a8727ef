//! Schemas from outside, such as those of tool servers.

use omni_agent::{
    provider::{OutputSchema, Request},
    tool::{Schema, declared_tool_with_schema, ToolSet},
};
use serde_json::Value;

use crate::{assert_encodes, lenient};

/// The maximum bytes of a request per byte of its schema. Formats without references inline their targets, at most
/// 500 times per schema, and the request contains the schema for the tool and for the answer.
const GROWTH: usize = 2 * 2 * 500;

/// Checks that a schema is either rejected, or validates values and is encoded in every format within the limits.
///
/// # Panics
///
/// If a check fails.
pub fn schema(text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let Ok(schema) = Schema::new(value.clone()) else { return };
    for instance in [&value, &Value::Null, &Value::from("a")] {
        let _ = schema.validate(instance);
    }
    let Ok(tools) = ToolSet::new().with(declared_tool_with_schema("tool", "", schema.clone())) else { return };
    let options = lenient().with_output(OutputSchema::new("answer", schema));
    let request = Request::prompt("a").with_tools(tools).with_options(options);
    assert_encodes(request, GROWTH * (text.len() + 64));
}

//! Schemas from anywhere: tool servers bring their own.

use omni_agent::{
    provider::{OutputSchema, Request},
    tool::{Schema, SchemaTool, ToolSet},
};
use serde_json::Value;

use crate::{assert_encodes, lenient};

/// Bytes of a request for each byte of its schema, at most. Formats that know no references get what they name
/// in their place, 500 times a schema, which stands in the request for the tool and for the answer.
const GROWTH: usize = 2 * 2 * 500;

/// That a schema is refused, or checks values and is rewritten for every format within limits.
///
/// # Panics
///
/// If it does neither.
pub fn schema(text: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(text) else { return };
    let Ok(schema) = Schema::new(value.clone()) else { return };
    for instance in [&value, &Value::Null, &Value::from("a")] {
        let _ = schema.validate(instance);
    }
    let Ok(tools) = ToolSet::new().with(SchemaTool::new("tool", "", schema.clone())) else { return };
    let options = lenient().with_output(OutputSchema::new("answer", schema));
    let request = Request::prompt("a").with_tools(tools).with_options(options);
    assert_encodes(request, GROWTH * (text.len() + 64));
}

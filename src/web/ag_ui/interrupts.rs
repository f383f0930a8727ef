//! Translates an agent's pauses to interrupts of AG-UI.

use serde_json::{Map, Value, json};

use super::{AgUiVersion, frame::AgUiInterrupt, messages::newest_call_of, request::interrupt_id};
use crate::{
    agent::Snapshot,
    message::{Timestamp, ToolUseId, value_weight},
    run::PendingUse,
    text::clip,
};

/// The maximum size of a message that explains an interrupt, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

/// The maximum total size of the schemas, inputs and structured reasons of all interrupts, in bytes.
const MAX_DETAILS: usize = 1 << 20;

/// Returns an interrupt for each pause of the agent.
pub(super) fn interrupts(agent: &Snapshot, decided: &[ToolUseId], level: AgUiVersion) -> Vec<AgUiInterrupt> {
    let mut room = MAX_DETAILS;
    let pauses = agent.pauses.iter().filter(|pause| !decided.contains(&pause.tool_use.id));
    pauses.map(|pause| interrupt(pause, agent, level, &mut room)).collect()
}

fn interrupt(pause: &PendingUse, agent: &Snapshot, level: AgUiVersion, room: &mut usize) -> AgUiInterrupt {
    let mut take = |value: &Value| {
        let size = value_weight(value);
        let fits = size <= *room;
        if fits {
            *room -= size;
        }
        fits
    };
    let mut metadata = Map::new();
    let is_other = pause.input_replaced || pause.sub_agent.is_some();
    if is_other && !pause.is_question() && take(&pause.tool_use.input) {
        metadata.insert("input".to_owned(), pause.tool_use.input.clone());
    }
    if let Some(own) = &pause.sub_agent {
        metadata.insert("tool".to_owned(), clip(&pause.tool_use.name, MAX_MESSAGE).into());
        metadata.insert("subAgent".to_owned(), clip(&own.name, MAX_MESSAGE).into());
    }
    let message = match &pause.reason {
        Value::String(text) => Some(clip(text, MAX_MESSAGE).into_owned()),
        Value::Null => None,
        reason => {
            if take(reason) {
                metadata.insert("reason".to_owned(), reason.clone());
            }
            let question = reason["message"].as_str().filter(|_| pause.is_question());
            question.map(|text| clip(text, MAX_MESSAGE).into_owned())
        }
    };
    let tool = || agent.state.tools.iter().find(|tool| tool.name == pause.tool_use.name);
    // The answer to a question of a running tool is the value that the question asks for.
    let schema = match &pause.sub_agent {
        _ if pause.is_question() => pause.reason.get("schema").filter(|schema| schema.is_object()),
        Some(_) => None,
        None => tool().map(|tool| tool.schema.as_value()),
    };
    let schema = schema.filter(|schema| take(schema));
    AgUiInterrupt {
        tool_call_id: newest_call_of(agent, pause.call()),
        id: interrupt_id(pause),
        reason: "tool_call",
        message,
        response_schema: response_schema(&pause.tool_use.name, schema),
        // A client of version 0.0.59 can never continue a conversation after an interrupt has expired, so such a client
        // gets no time of expiry.
        expires_at: pause.expires.filter(|_| level == AgUiVersion::V1).map(Timestamp::rfc_3339),
        metadata,
    }
}

/// Returns the schema of an answer to an interrupt. `input` is the schema of the tool's input, or of the answer to a
/// running tool's question.
fn response_schema(tool: &str, input: Option<&Value>) -> Value {
    let mut edited = input.cloned().unwrap_or_else(|| json!({ "type": "object" }));
    if let Value::Object(schema) = &mut edited
        && (schema.contains_key("$defs") || schema.contains_key("definitions"))
    {
        // References in the tool's schema are relative to its root. An `$id` keeps them valid inside the schema of the
        // answer.
        schema.entry("$id").or_insert_with(|| format!("urn:omni-agent:tool:{tool}").into());
    }
    json!({
        "type": "object",
        "properties": {
            "approved": { "type": "boolean" },
            "reason": { "type": "string" },
            "editedArgs": edited,
        },
        "required": ["approved"],
    })
}

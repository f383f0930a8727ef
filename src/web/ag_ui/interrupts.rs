//! Pauses as interrupts.

use serde_json::{Map, Value, json};

use super::{Level, frame::Interrupt};
use crate::{
    agent::{Pause, Snapshot},
    message::{Timestamp, value_weight},
    text::clip,
};

/// The greatest size of a message that explains an interrupt, in bytes.
const MAX_MESSAGE: usize = 16 << 10;

/// The greatest size of the schemas and inputs of all interrupts, in bytes.
const MAX_DETAILS: usize = 1 << 20;

/// Returns an interrupt for each pause.
pub(super) fn interrupts(agent: &Snapshot, level: Level) -> Vec<Interrupt> {
    let mut room = MAX_DETAILS;
    agent.pauses.iter().map(|pause| interrupt(pause, agent, level, &mut room)).collect()
}

fn interrupt(pause: &Pause, agent: &Snapshot, level: Level, room: &mut usize) -> Interrupt {
    let mut take = |value: &Value| {
        let size = value_weight(value);
        let fits = size <= *room;
        if fits {
            *room -= size;
        }
        fits
    };
    let mut metadata = Map::new();
    if pause.input_replaced && pause.asked_by.is_none() && take(&pause.tool_use.input) {
        metadata.insert("input".to_owned(), pause.tool_use.input.clone());
    }
    let message = match &pause.reason {
        Value::String(text) => Some(clip(text, MAX_MESSAGE).into_owned()),
        Value::Null => None,
        reason => {
            if take(reason) {
                metadata.insert("reason".to_owned(), reason.clone());
            }
            let question = reason["message"].as_str().filter(|_| pause.asked_by.is_some());
            question.map(|text| clip(text, MAX_MESSAGE).into_owned())
        }
    };
    let tool = || agent.state.tools.iter().find(|tool| tool.name == pause.tool_use.name);
    // The answer to a question of a running tool is the value that the question asks for.
    let schema = match &pause.asked_by {
        Some(_) => pause.reason.get("schema").filter(|schema| schema.is_object()),
        None => tool().map(|tool| tool.schema.as_value()),
    };
    let schema = schema.filter(|schema| take(schema));
    Interrupt {
        tool_call_id: pause.call().to_string(),
        id: pause.tool_use.id.to_string(),
        reason: "tool_call",
        message,
        response_schema: response_schema(&pause.tool_use.name, schema),
        // The client of 0.0.59 can never continue a conversation after an interrupt has expired.
        expires_at: pause.expiry.as_ref().filter(|_| level == Level::V1).map(|expiry| rfc_3339(expiry.at)),
        metadata,
    }
}

/// Returns the schema of an answer.
fn response_schema(tool: &str, input: Option<&Value>) -> Value {
    let mut edited = input.cloned().unwrap_or_else(|| json!({ "type": "object" }));
    if let Value::Object(schema) = &mut edited
        && (schema.contains_key("$defs") || schema.contains_key("definitions"))
    {
        // References in the tool's schema are relative to its own root.
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

/// Returns the time as RFC 3339 has it, in UTC.
fn rfc_3339(time: Timestamp) -> String {
    let (days, millis) = (time.0 / 86_400_000, time.0 % 86_400_000);
    // The algorithm counts years from March on, in eras of 400 years, so that a leap day is the last day of a year.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", millis % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_of_known_times_is_their_date() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_827_696_789, "2000-02-29T12:34:56.789Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc_3339(Timestamp(millis)), text);
        }
    }
}

//! Arguments that are not a valid input for a tool. The answer contains one malformed call with the text that the model
//! wrote, and all other content is kept.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::ToolUse,
    provider::{Completion, StopReason},
};
use serde_json::{Value, json};

use crate::wires::Wire;

/// Returns the events of an answer that consists of a call with these arguments. The arguments are sent either as a
/// JSON string or as plain JSON. Services that don't stream arguments send plain JSON.
fn call(wire: Wire, arguments: &str, as_text: bool) -> Vec<String> {
    let text = Value::from(arguments).to_string();
    let arguments = if as_text { &text } else { arguments };
    let events = match wire {
        Wire::Chat => vec![format!(
            r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":0,"id":"a","function":{{"name":"f","arguments":{arguments}}}}}]}}}}]}}"#
        )],
        Wire::Responses => vec![format!(
            r#"{{"type":"response.output_item.done","output_index":0,"item":{{"type":"function_call","id":"i","call_id":"a","name":"f","arguments":{arguments}}}}}"#
        )],
        Wire::Messages => vec![
            format!(
                r#"{{"type":"content_block_start","index":0,"content_block":{{"type":"tool_use","id":"a","name":"f","input":{arguments}}}}}"#
            ),
            r#"{"type":"content_block_stop","index":0}"#.to_owned(),
        ],
        Wire::Gemini => vec![format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"functionCall":{{"name":"f","args":{arguments}}}}}]}}}}]}}"#
        )],
        Wire::Ollama => {
            vec![format!(
                r#"{{"message":{{"tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}}}"#
            )]
        }
    };
    let mut events = [wire.begin(), events, wire.end()].concat();
    if wire == Wire::Messages {
        let last = events.len() - 2;
        events[last] = events[last].replace("end_turn", "tool_use");
    }
    events
}

async fn answer(wire: Wire, arguments: &str, as_text: bool) -> Completion {
    let body: String = call(wire, arguments, as_text).iter().map(|event| wire.frame(event)).collect();
    let answer = wire.answer(&body).await;
    answer.unwrap_or_else(|error| panic!("{wire:?} {arguments:.60}: {error}"))
}

fn only_call(answer: &Completion) -> &ToolUse {
    let calls: Vec<_> = answer.message.tool_uses().collect();
    let [call] = calls[..] else { panic!("{:?}", answer.message) };
    assert_eq!((&*call.name, &answer.stop_reason), ("f", &StopReason::ToolUse));
    call
}

#[tokio::test]
async fn arguments_that_are_not_a_lossless_object_are_one_malformed_call_in_every_format() {
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(200), "]".repeat(200));
    let bad = [
        "42",
        "true",
        "-1.5",
        "[]",
        r#"[{"a":1}]"#,
        r#"{"a":1,"a":2}"#,
        r#"{"x":{"a":{},"b":1,"a":{}}}"#,
        &deep,
    ];
    for wire in Wire::ALL {
        for arguments in bad {
            for as_text in [false, true] {
                let answer = answer(wire, arguments, as_text).await;
                let call = only_call(&answer);
                assert_eq!(call.malformed.as_deref(), Some(arguments), "{wire:?} {as_text}");
                assert_eq!(call.input, json!({}), "{wire:?} {as_text}");
            }
        }
    }
}

#[tokio::test]
async fn arguments_that_are_an_object_keep_their_order_in_every_format() {
    for wire in Wire::ALL {
        for arguments in ["{}", r#"{"z":1,"a":{"b":[1.5,null,"x: \"y\""]}}"#] {
            for as_text in [false, true] {
                let answer = answer(wire, arguments, as_text).await;
                let call = only_call(&answer);
                assert_eq!(
                    (call.input.to_string(), &call.malformed),
                    (arguments.to_owned(), &None),
                    "{wire:?}"
                );
            }
        }
    }
}

#[tokio::test]
async fn call_with_unreadable_usage_is_kept_whole() {
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    for (wire, usage, count) in
        [(Wire::Chat, "usage", "prompt_tokens"), (Wire::Gemini, "usageMetadata", "promptTokenCount")]
    {
        for bad in ["1e999", r#""\ud83d""#, &deep] {
            let bad = format!(r#"{{"{count}":{bad}}}"#);
            let mut events = call(wire, r#"{"a":1,"a":2}"#, false);
            events[0] = format!("{},\"{usage}\":{bad}}}", events[0].strip_suffix('}').unwrap());
            let body: String = events.iter().map(|event| wire.frame(event)).collect();
            let answer = wire.answer(&body).await.unwrap();
            assert_eq!(
                only_call(&answer).malformed.as_deref(),
                Some(r#"{"a":1,"a":2}"#),
                "{wire:?} {bad:.60}"
            );
            assert_eq!(answer.warnings.len(), 1, "{wire:?} {bad:.60}");
        }
    }
}

/// Calls of the service's own tools are sent back unchanged, so their input must remain JSON.
#[tokio::test]
async fn input_of_a_services_own_tool_stays_json() {
    let input = r#"{"query":"x"}"#;
    let events = call(Wire::Messages, input, false);
    let body: String = events
        .iter()
        .map(|event| Wire::Messages.frame(&event.replace("\"tool_use\",\"id", "\"server_tool_use\",\"id")))
        .collect();
    let answer = Wire::Messages.answer(&body).await.unwrap();
    let stored = serde_json::to_value(&answer.message).unwrap().to_string();
    assert!(stored.contains(r#""input":{"query":"x"}"#), "{stored}");
}

//! Deviations from the wire formats that users of other clients have reported. Each test replays the bytes of a report.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::provider::{Completion, StopReason};
use serde_json::{Value, json};

use crate::wires::Wire;

/// Returns a body with these events, each followed by a blank line.
fn events(events: &[&str]) -> String {
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// Returns the names and the inputs of the tool uses of an answer.
fn uses(answer: &Completion) -> Vec<(&str, &Value)> {
    answer.message.tool_uses().map(|call| (call.name.as_str(), &call.input)).collect()
}

/// Returns the answer to a call whose arguments arrive in these fragments, in order.
async fn called(fragments: &[&str], finish: &str) -> Completion {
    let mut body = String::new();
    for (at, arguments) in fragments.iter().enumerate() {
        let function = if at == 0 {
            json!({"name": "f", "arguments": arguments})
        } else {
            json!({"arguments": arguments})
        };
        let mut call = json!({"index": 0, "function": function});
        if at == 0 {
            call["id"] = json!("a");
        }
        let chunk = json!({"id": "c", "object": "chat.completion.chunk", "choices": [
            {"index": 0, "delta": {"tool_calls": [call]}}]});
        body += &events(&[&chunk.to_string()]);
    }
    let end = json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]});
    Wire::Chat.answer(&(body + &events(&[&end.to_string(), "[DONE]"]))).await.unwrap()
}

#[tokio::test]
async fn chat_arguments_sent_more_than_once_are_read_once() {
    for fragments in [
        &["{}", "{\"city\":\"Oslo\"}"][..],
        &["{ }", "", "{\"city\":", "\"Oslo\"}"],
        &["{}", "null", "{}", "{\"city\":\"Oslo\"}"],
        &["{\"city\":", "\"Oslo\"}", "{\"city\":\"Oslo\"}"],
        &["{\"city\":\"Oslo\"}", "{\"city\":\"Oslo\"}"],
        &["{\"ci", "{\"city\":\"O", "{\"city\":\"O", "{\"city\":\"Oslo\"}", "{\"city\":\"Oslo\"}"],
        &["{", "{\"city\":", "{\"city\":\"Oslo\"}"],
        &["{\"", "{\"city\":\"Oslo\"}"],
    ] {
        let answer = called(fragments, "tool_calls").await;
        assert_eq!(uses(&answer), [("f", &json!({"city": "Oslo"}))], "{fragments:?}");
    }
}

#[tokio::test]
async fn chat_fragment_that_resembles_the_arguments_so_far_is_appended() {
    for fragments in [
        &["{\"not\":", "{\"not\":{}}}"][..],
        &["{\"a\":[", "{\"a\":[1]}", "]}"],
        &["{\"a\":[{\"b\":1},", "{\"a\":[{\"b\":1},2]}]}"],
        &["{\"", "{\":1}"],
        &["{\"a\":\"", "{\\\"a\\\":\\\"\"}"],
    ] {
        let answer = called(fragments, "tool_calls").await;
        let whole: Value = serde_json::from_str(&fragments.concat()).unwrap();
        assert_eq!(uses(&answer), [("f", &whole)], "{fragments:?}");
    }
}

#[tokio::test]
async fn chat_call_with_empty_arguments_is_complete_in_a_truncated_answer() {
    let answer = called(&["{}"], "length").await;
    let call = answer.message.tool_uses().next().unwrap();
    assert_eq!((&call.input, call.malformed.as_deref()), (&json!({}), None));
}

#[tokio::test]
async fn responses_call_under_several_ids_is_one_call() {
    let reasoning = r#"{"id":"msg_R","type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"Hm."}]}"#;
    let body = events(&[
        r#"{"type":"response.output_item.added","output_index":0,"item":{"id":"msg_R","type":"reasoning","summary":[]}}"#,
        r#"{"type":"response.reasoning_text.delta","item_id":"msg_R","output_index":0,"content_index":0,"delta":"Hm."}"#,
        &format!(r#"{{"type":"response.output_item.done","output_index":0,"item":{reasoning}}}"#),
        r#"{"type":"response.output_item.added","output_index":1,"item":{"id":"msg_R","type":"function_call","call_id":"call_A","name":"f","arguments":""}}"#,
        r#"{"type":"response.function_call_arguments.delta","item_id":"fc_X","output_index":1,"delta":"{\"a\":1}"}"#,
        r#"{"type":"response.function_call_arguments.done","item_id":"fc_X","output_index":2,"arguments":"{\"a\":1}","name":"f"}"#,
        r#"{"type":"response.output_item.done","output_index":2,"item":{"id":null,"item_id":"fc_X","type":"function_call","call_id":"fc_Y","name":"f","arguments":"{\"a\":1}"}}"#,
        &format!(
            r#"{{"type":"response.completed","response":{{"id":"r","status":"completed","output":[{reasoning},{{"id":"fc_Z","type":"function_call","call_id":"call_Z","name":"f","arguments":"{{\"a\":1}}"}}]}}}}"#
        ),
    ]);
    let answer = Wire::Responses.answer(&body).await.unwrap();
    assert_eq!(uses(&answer), [("f", &json!({"a": 1}))]);
    assert_eq!((answer.message.content.len(), answer.stop_reason), (2, StopReason::ToolUse));
}

#[tokio::test]
async fn responses_text_after_the_end_of_its_item_is_kept() {
    let item = |text: &str| json!({"id": "m", "type": "message", "content": [{"type": "output_text", "text": text}]});
    let delta = |text: &str| {
        json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "content_index": 0,
            "delta": text})
    };
    let all = [
        json!({"type": "response.output_item.added", "output_index": 0,
            "item": {"id": "m", "type": "message", "content": []}}),
        delta("1"),
        json!({"type": "response.output_text.done", "item_id": "m", "output_index": 0, "content_index": 0, "text": "1"}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item("1")}),
        delta("\n2\n3"),
        json!({"type": "response.completed", "response": {"id": "r", "status": "completed",
            "output": [item("1\n2\n3")]}}),
    ];
    let answer = Wire::Responses
        .answer(&events(&all.each_ref().map(Value::to_string).each_ref().map(String::as_str)))
        .await;
    let answer = answer.unwrap();
    assert_eq!((answer.message.text().as_str(), answer.warnings.len()), ("1\n2\n3", 0));
}

//! The Chat Completions format: helpers for its tests, and the round trip of a conversation.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, Timestamp, ToolResult},
    provider::{
        Completion, ProviderError, Request, StopReason,
        custom::{ChatCompletions, Delta, Dialect, Frame},
    },
    testing::internals::Fold,
};
use serde_json::{Value, json};

/// Returns the deltas of an answer with these events. The body ends after the last event.
pub(crate) fn deltas_of<S: AsRef<str>>(
    chat: &ChatCompletions,
    events: &[S],
) -> Result<Vec<Delta>, ProviderError> {
    let mut decoder = chat.decoder(&Request::default());
    let mut deltas = Vec::new();
    for data in events {
        decoder.decode(Frame::new("", data.as_ref()), &mut deltas)?;
    }
    decoder.end(&mut deltas)?;
    Ok(deltas)
}

pub(crate) fn fold(deltas: Vec<Delta>) -> Completion {
    let mut fold = Fold::default();
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    fold.finish(Timestamp(1)).unwrap()
}

/// Decodes an answer that consists of these chunks, and folds it into a completion. A chunk that is a JSON string is
/// sent as its raw text.
pub(crate) fn answer(chunks: &[Value]) -> Result<Completion, ProviderError> {
    let events: Vec<String> = chunks
        .iter()
        .map(|chunk| chunk.as_str().map_or_else(|| chunk.to_string(), ToOwned::to_owned))
        .collect();
    deltas_of(&ChatCompletions::default(), &events).map(fold)
}

/// Returns a chunk with this delta.
pub(crate) fn delta(delta: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m-1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

/// Returns a chunk with this finish reason.
pub(crate) fn finish(reason: &str) -> Value {
    json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

/// Returns the tool uses of an answer as (id, name, input).
pub(crate) fn calls(folded: &Completion) -> Vec<(String, String, Value)> {
    let uses = folded.message.tool_uses();
    uses.map(|call| (call.id.to_string(), call.name.clone(), call.input.clone())).collect()
}

pub(crate) fn encode(chat: &ChatCompletions, request: &Request) -> Value {
    let mut body = chat.encode(request).unwrap().body;
    crate::without_opening(&mut body, "messages");
    Value::Object(body)
}

#[test]
fn round_trip_of_a_conversation_with_tools_sends_back_the_answers() {
    let asked = answer(&[
        delta(json!({"role": "assistant", "content": null})),
        delta(json!({"reasoning_content": "Two cities."})),
        delta(json!({"content": "I'll look."})),
        delta(json!({"tool_calls": [{"index": 0, "id": "call_a", "type": "function",
            "function": {"name": "weather", "arguments": ""}}]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"b\":1.50,\"a\":"}}]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": "\"Oslo\"}"}}]})),
        delta(json!({"tool_calls": [{"index": 1, "id": "call_b", "type": "function",
            "function": {"name": "weather", "arguments": "{}"}}]})),
        finish("tool_calls"),
        json!("[DONE]"),
    ])
    .unwrap();
    assert_eq!(asked.stop_reason, StopReason::ToolUse);
    let uses: Vec<_> = asked.message.tool_uses().cloned().collect();
    let mut history = History::from_iter([Message::user("Weather?"), asked.message]);
    history.push(Message::user([
        Content::from(ToolResult::ok(&uses[0], "rain")),
        ToolResult::error(&uses[1], "no city given").into(),
    ]));
    history.check_sendable().unwrap();

    let done = answer(&[delta(json!({"content": "Rain."})), finish("stop"), json!("[DONE]")]).unwrap();
    assert_eq!(done.stop_reason, StopReason::Stop);
    history.push(done.message);
    history.push(Message::user("Thanks"));

    let chat = ChatCompletions::default();
    let request = Request::new(history);
    let body = encode(&chat, &request);
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I'll look.", "tool_calls": [
                {"id": "call_a", "type": "function",
                    "function": {"name": "weather", "arguments": "{\"b\":1.5,\"a\":\"Oslo\"}"}},
                {"id": "call_b", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_b", "content": "Error: no city given"},
            {"role": "assistant", "content": "Rain."},
            {"role": "user", "content": "Thanks"},
        ])
    );
    assert_eq!(body.to_string(), encode(&chat, &request).to_string());
}

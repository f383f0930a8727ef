//! Ollama's chat format: helpers for its tests, and round trips of conversations.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, Text, Thinking, Timestamp, ToolResult, ToolUse},
    provider::{
        Completion, ProviderError, Request, StopReason,
        custom::{Delta, Dialect, Frame, OllamaChat},
    },
    testing::internals::Fold,
};
use serde_json::{Map, Value, json};

pub(crate) const BEGAN: &str = "2026-03-03T13:20:11.787576Z";

/// Returns the deltas of an answer with these lines. The body ends after the last line.
pub(crate) fn deltas_of<S: AsRef<str>>(lines: &[S]) -> Result<Vec<Delta>, ProviderError> {
    let mut decoder = OllamaChat::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    for data in lines {
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

/// Decodes an answer that consists of these lines, and folds it into a completion.
pub(crate) fn answer(lines: &[Value]) -> Result<Completion, ProviderError> {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    deltas_of(&lines).map(fold)
}

/// Returns a line with this message.
pub(crate) fn line(message: Value) -> Value {
    json!({"model": "m-1", "created_at": BEGAN, "message": message, "done": false})
}

/// Returns the last line of an answer.
pub(crate) fn last(reason: &str) -> Value {
    json!({"model": "m-1", "created_at": BEGAN, "message": {"role": "assistant", "content": ""}, "done": true,
        "done_reason": reason, "total_duration": 9, "prompt_eval_count": 20, "eval_count": 22})
}

pub(crate) fn messages(messages: impl IntoIterator<Item = Message>) -> Value {
    let encoded = OllamaChat::default().encode(&Request::new(History::from_iter(messages))).unwrap();
    encoded.body["messages"].clone()
}

#[test]
fn round_trip_of_thinking_and_tools_sends_back_the_answers() {
    let asked = answer(&[
        line(json!({"role": "assistant", "content": "", "thinking": "Two "})),
        line(json!({"role": "assistant", "content": "", "thinking": "cities."})),
        line(json!({"role": "assistant", "content": "I'll look."})),
        line(json!({"role": "assistant", "content": "", "tool_calls": [
            {"function": {"name": "weather", "arguments": {"b": 1.5, "a": "Oslo"}}},
            {"id": "call_given", "function": {"index": 1, "name": "weather", "arguments": {}}}]})),
        last("stop"),
    ])
    .unwrap();
    assert_eq!(asked.stop_reason, StopReason::ToolUse);
    let uses: Vec<ToolUse> = asked.message.tool_uses().cloned().collect();
    let mut history = History::from_iter([Message::user("Weather?"), asked.message]);
    history.push(Message::user([
        Content::from(ToolResult::ok(&uses[0], "rain")),
        ToolResult::error(&uses[1], "no city given").into(),
    ]));
    history.check_sendable().unwrap();
    history.push(answer(&[line(json!({"content": "Rain."})), last("stop")]).unwrap().message);
    history.push(Message::user("Thanks"));

    let made = uses[0].id.as_str();
    assert!(made.starts_with("call_") && made.ends_with("_0"), "{made}");
    let request = Request::new(history);
    let encoded = OllamaChat::default().encode(&request).unwrap();
    assert_eq!(
        encoded.body["messages"],
        json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "I'll look.", "thinking": "Two cities.", "tool_calls": [
                {"id": made, "function": {"name": "weather", "arguments": {"b": 1.5, "a": "Oslo"}}},
                {"id": "call_given", "function": {"name": "weather", "arguments": {}}},
            ]},
            {"role": "tool", "tool_name": "weather", "tool_call_id": made, "content": "rain"},
            {"role": "tool", "tool_name": "weather", "tool_call_id": "call_given",
                "content": "Error: no city given"},
            {"role": "assistant", "content": "Rain."},
            {"role": "user", "content": "Thanks"},
        ])
    );
    let again = OllamaChat::default().encode(&request).unwrap();
    assert_eq!(Value::Object(encoded.body).to_string(), Value::Object(again.body).to_string());
}

#[test]
fn conversation_begun_in_another_format_continues_without_its_private_data() {
    let mut foreign = Message::assistant([
        Content::from(Thinking::new("Hm.").with_signature("s")),
        Text::new("So.").with_signature("s").into(),
        ToolUse::new("toolu_1|x", "look", json!({"x": 1})).with_signature("s").into(),
    ]);
    foreign.provider_data = Map::from_iter([("anthropic_messages".to_owned(), json!({}))]);
    let result = ToolResult::ok(foreign.tool_uses().next().unwrap(), "seen");
    let history = History::from_iter([Message::user("Look"), foreign, Message::user([result])]);
    let before = serde_json::to_string(&history).unwrap();
    assert_eq!(
        messages(history.iter().map(|message| Message::clone(message))),
        json!([
            {"role": "user", "content": "Look"},
            {"role": "assistant", "content": "So.",
                "tool_calls": [{"id": "toolu_1|x", "function": {"name": "look", "arguments": {"x": 1}}}]},
            {"role": "tool", "tool_name": "look", "tool_call_id": "toolu_1|x", "content": "seen"},
        ])
    );
    assert_eq!(serde_json::to_string(&history).unwrap(), before);
}

//! Anthropic's Messages format: helpers for its tests, and conversations that are encoded and decoded as a whole.
#![allow(clippy::needless_pass_by_value, clippy::unwrap_used, reason = "helpers of tests")]

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use omni_agent::{
    message::{Content, History, Message, Timestamp, ToolResult},
    provider::{
        Completion, ProviderError, Request, StopReason,
        custom::{AnthropicMessages, Delta, Dialect, Encoded, Frame, Framing},
    },
    testing::internals::Fold,
    tool::{Schema, Tool, ToolContext, ToolError, ToolOutput, ToolSet},
};
use serde_json::{Value, json};

/// A tool that is only declared, never run.
pub(crate) struct Declared {
    name: &'static str,
    description: &'static str,
    schema: Schema,
}

#[async_trait]
impl Tool for Declared {
    fn name(&self) -> &str {
        self.name
    }

    fn description(&self) -> Cow<'_, str> {
        self.description.into()
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn has_handler(&self) -> bool {
        false
    }

    async fn call(&self, _input: Value, _context: ToolContext) -> Result<ToolOutput, ToolError> {
        Err(ToolError::new("never run"))
    }
}

pub(crate) fn tools(tools: &[(&'static str, &'static str, Value)]) -> ToolSet {
    let mut set = ToolSet::new();
    for (name, description, schema) in tools {
        let schema = Schema::new(schema.clone()).unwrap();
        set.insert(Arc::new(Declared { name, description, schema })).unwrap();
    }
    set
}

pub(crate) fn encode(mut request: Request, model: &str) -> Encoded {
    request.model = model.into();
    // The endpoint of Anthropic itself also encodes its requests with block binding.
    let mut encoded = AnthropicMessages::default().with_block_binding().encode(&request).unwrap();
    crate::without_opening(&mut encoded.body, "messages");
    encoded
}

/// Encodes this history and returns the `messages` of the body.
pub(crate) fn messages(history: impl IntoIterator<Item = Message>) -> Value {
    let request = Request::new(history.into_iter().collect::<History>());
    encode(request, "claude-sonnet-4-5").body["messages"].clone()
}

/// Decodes events. The name of each event is its `type`.
pub(crate) fn decode(events: &[Value]) -> Result<Vec<Delta>, ProviderError> {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    for event in events {
        let data = event.to_string();
        let event = event["type"].as_str().unwrap_or_default();
        decoder.decode(Frame::new(event, &data), &mut deltas)?;
    }
    Ok(deltas)
}

pub(crate) fn fold(deltas: Vec<Delta>) -> Completion {
    let mut fold = Fold::default();
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    fold.finish(Timestamp::default()).unwrap()
}

pub(crate) fn start() -> Value {
    json!({"type": "message_start", "message": {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": {"input_tokens": 10, "output_tokens": 1},
    }})
}

pub(crate) fn block(index: u64, block: Value) -> Value {
    json!({"type": "content_block_start", "index": index, "content_block": block})
}

pub(crate) fn delta(index: u64, delta: Value) -> Value {
    json!({"type": "content_block_delta", "index": index, "delta": delta})
}

pub(crate) fn stop(index: u64) -> Value {
    json!({"type": "content_block_stop", "index": index})
}

/// Returns the two events that end an answer.
pub(crate) fn end(stop_reason: &str) -> [Value; 2] {
    [
        json!({"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": null},
            "usage": {"output_tokens": 20}}),
        json!({"type": "message_stop"}),
    ]
}

/// Decodes a complete answer with these events, and folds it into a completion.
pub(crate) fn answer(events: impl IntoIterator<Item = Value>, stop_reason: &str) -> Completion {
    let events: Vec<Value> = [start()].into_iter().chain(events).chain(end(stop_reason)).collect();
    fold(decode(&events).unwrap())
}

#[test]
fn dialect_has_its_path_and_framing() {
    let dialect = AnthropicMessages::default();
    assert_eq!(dialect.name(), "anthropic_messages");
    assert_eq!(dialect.path(&Request::prompt("Hi")), "/messages");
    assert_eq!(dialect.framing(), Framing::Sse);
}

#[test]
fn round_trip_of_two_turns_with_thinking_and_parallel_tools_keeps_the_exact_blocks() {
    let folded = answer(
        [
            block(0, json!({"type": "thinking", "thinking": "", "signature": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "Both cities, "})),
            delta(0, json!({"type": "thinking_delta", "thinking": "at once.\n"})),
            delta(0, json!({"type": "signature_delta", "signature": "c2lnbmVk"})),
            stop(0),
            block(1, json!({"type": "redacted_thinking", "data": "aGlkZGVu"})),
            stop(1),
            block(2, json!({"type": "text", "text": ""})),
            delta(2, json!({"type": "text_delta", "text": "I look both up."})),
            stop(2),
            block(3, json!({"type": "tool_use", "id": "toolu_A", "name": "weather", "input": {}})),
            delta(3, json!({"type": "input_json_delta", "partial_json": ""})),
            delta(3, json!({"type": "input_json_delta", "partial_json": "{\"city\":\"Oslo\",\"da"})),
            delta(3, json!({"type": "input_json_delta", "partial_json": "ys\":2}"})),
            stop(3),
            block(4, json!({"type": "tool_use", "id": "toolu_B", "name": "weather", "input": {}})),
            delta(4, json!({"type": "input_json_delta", "partial_json": "{\"city\":\"Rome\"}"})),
            stop(4),
        ],
        "tool_use",
    );
    assert_eq!(folded.stop_reason, StopReason::ToolUse);

    let results: Vec<Content> =
        folded.message.tool_uses().map(|tool_use| ToolResult::ok(tool_use, "sunny").into()).collect();
    let second = answer(
        [
            block(0, json!({"type": "text", "text": ""})),
            delta(0, json!({"type": "text_delta", "text": "Sunny in both."})),
            stop(0),
        ],
        "end_turn",
    );
    let history = [
        Message::user("Weather?"),
        folded.message,
        Message::user(results),
        second.message,
        Message::user("Thanks"),
    ];

    assert_eq!(
        messages(history),
        json!([
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Both cities, at once.\n", "signature": "c2lnbmVk"},
                {"type": "redacted_thinking", "data": "aGlkZGVu"},
                {"type": "text", "text": "I look both up."},
                {"type": "tool_use", "id": "toolu_A", "name": "weather", "input": {"city": "Oslo", "days": 2}},
                {"type": "tool_use", "id": "toolu_B", "name": "weather", "input": {"city": "Rome"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_A", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "tool_result", "tool_use_id": "toolu_B", "content": [{"type": "text", "text": "sunny"}]},
            ]},
            {"role": "assistant", "content": [{"type": "text", "text": "Sunny in both."}]},
            {"role": "user", "content": [{"type": "text", "text": "Thanks"}]},
        ])
    );
}

#[test]
fn round_trip_of_citations_and_server_tools_keeps_the_exact_blocks() {
    let search = json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
        {"type": "web_search_result", "title": "Fjord", "url": "https://example.org/fjord", "encrypted_content": "ZW5j"},
    ]});
    let cited = json!({"type": "web_search_result_location", "url": "https://example.org/fjord",
        "title": "Fjord", "encrypted_index": "aWR4", "cited_text": "A fjord is\na drowned valley."});
    let other =
        json!({"type": "char_location", "document_index": 0, "cited_text": "deep", "start_char_index": 1});
    let folded = answer(
        [
            block(0, search),
            delta(0, json!({"type": "input_json_delta", "partial_json": "{\"query\": "})),
            delta(0, json!({"type": "input_json_delta", "partial_json": "\"fjord\"}"})),
            stop(0),
            block(1, found.clone()),
            stop(1),
            block(2, json!({"type": "text", "text": "", "citations": []})),
            delta(2, json!({"type": "citations_delta", "citation": cited})),
            delta(2, json!({"type": "text_delta", "text": "Deep water."})),
            delta(2, json!({"type": "citations_delta", "citation": other})),
            stop(2),
            block(
                3,
                json!({"type": "tool_use", "id": "toolu_1", "name": "note", "input": {},
                "caller": {"type": "code_execution_20260120", "tool_id": "srvtoolu_2"}}),
            ),
            delta(3, json!({"type": "input_json_delta", "partial_json": "{}"})),
            stop(3),
        ],
        "tool_use",
    );
    assert_eq!(folded.message.text(), "Deep water.");
    let content = messages([Message::user("Fjords?"), folded.message])[1]["content"].clone();
    assert_eq!(
        content,
        json!([
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "fjord"}},
            found,
            {"type": "text", "text": "Deep water.", "citations": [cited, other]},
            {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {},
                "caller": {"type": "code_execution_20260120", "tool_id": "srvtoolu_2"}},
        ])
    );
}

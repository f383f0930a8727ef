//! The Responses format: helpers for its tests, and the round trip of a conversation.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, Timestamp, ToolResult},
    provider::{
        Completion, ProviderError, Request, StopReason,
        custom::{AnthropicMessages, ChatCompletions, Delta, Dialect, Frame, Framing, OpenAiResponses},
    },
    testing::internals::Fold,
};
use serde_json::{Value, json};

/// Returns the deltas of an answer with these events. The name of each event is its `type`. The body ends after the
/// last event.
pub(crate) fn decode(events: &[Value]) -> Result<Vec<Delta>, ProviderError> {
    let mut decoder = OpenAiResponses::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    for event in events {
        let data = event.as_str().map_or_else(|| event.to_string(), ToOwned::to_owned);
        decoder.decode(Frame::new(event["type"].as_str().unwrap_or_default(), &data), &mut deltas)?;
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

/// Decodes an answer that consists of these events, and folds it into a completion.
pub(crate) fn answer(events: &[Value]) -> Completion {
    fold(decode(events).unwrap())
}

pub(crate) fn created() -> Value {
    json!({"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "object": "response",
        "status": "in_progress", "error": null, "model": "gpt-5", "output": [], "usage": null}})
}

pub(crate) fn added(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.added", "output_index": index, "item": item})
}

pub(crate) fn done(index: u64, item: Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": index, "item": item})
}

/// Returns a delta event for the item with this id at this index.
pub(crate) fn delta(kind: &str, index: u64, id: &str, delta: &str) -> Value {
    json!({"type": format!("response.{kind}.delta"), "output_index": index, "item_id": id, "content_index": 0,
        "delta": delta, "obfuscation": "x"})
}

pub(crate) fn completed(output: Value) -> Value {
    json!({"type": "response.completed", "response": {"id": "resp_1", "object": "response", "status": "completed",
        "error": null, "incomplete_details": null, "model": "gpt-5", "output": output,
        "usage": {"input_tokens": 30, "input_tokens_details": {"cached_tokens": 10}, "output_tokens": 25,
            "output_tokens_details": {"reasoning_tokens": 5}, "total_tokens": 55}}})
}

pub(crate) fn message(id: &str, text: &str) -> Value {
    json!({"id": id, "type": "message", "status": "completed", "role": "assistant",
        "content": [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]})
}

pub(crate) fn call(id: &str, call_id: &str, name: &str, arguments: &str) -> Value {
    json!({"id": id, "type": "function_call", "status": "completed", "call_id": call_id, "name": name,
        "arguments": arguments})
}

pub(crate) fn reasoning(id: &str, summary: &[&str], encrypted: &str) -> Value {
    let summary: Vec<Value> =
        summary.iter().map(|text| json!({"type": "summary_text", "text": text})).collect();
    json!({"id": id, "type": "reasoning", "summary": summary, "encrypted_content": encrypted})
}

/// Returns the tool uses of an answer as (id, name, input).
pub(crate) fn calls(folded: &Completion) -> Vec<(String, String, Value)> {
    let uses = folded.message.tool_uses();
    uses.map(|call| (call.id.to_string(), call.name.clone(), call.input.clone())).collect()
}

pub(crate) fn encode(format: &OpenAiResponses, request: &Request) -> Value {
    let mut body = format.encode(request).unwrap().body;
    crate::without_opening(&mut body, "input");
    Value::Object(body)
}

pub(crate) fn input(format: &OpenAiResponses, messages: impl IntoIterator<Item = Message>) -> Value {
    encode(format, &Request::new(History::from_iter(messages)))["input"].clone()
}

#[test]
fn dialect_has_its_path_and_framing() {
    let format = OpenAiResponses::default();
    assert_eq!(format.name(), "openai_responses");
    assert_eq!(format.path(&Request::prompt("Hi")), "/responses");
    assert_eq!(format.framing(), Framing::Sse);
}

/// Returns an answer with reasoning, a text and two tool calls.
fn asked() -> Completion {
    let first = call("fc_1", "call_a", "weather", "{\"b\":1.50,\"a\":\"Oslo\"}");
    let second = call("fc_2", "call_b", "weather", "{}");
    let thought = reasoning("rs_1", &["Two cities.", "Both at once."], "c2VjcmV0");
    answer(&[
        created(),
        added(0, json!({"id": "rs_1", "type": "reasoning", "summary": []})),
        json!({"type": "response.reasoning_summary_part.added", "item_id": "rs_1", "output_index": 0,
            "summary_index": 0, "part": {"type": "summary_text", "text": ""}}),
        json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0,
            "summary_index": 0, "delta": "Two cities."}),
        json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0,
            "summary_index": 1, "delta": "Both at"}),
        json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0,
            "summary_index": 1, "delta": " once."}),
        done(0, thought.clone()),
        added(
            1,
            json!({"id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant", "content": []}),
        ),
        delta("output_text", 1, "msg_1", "I'll "),
        delta("output_text", 1, "msg_1", "look."),
        done(1, message("msg_1", "I'll look.")),
        added(2, call("fc_1", "call_a", "weather", "")),
        delta("function_call_arguments", 2, "fc_1", "{\"b\":1.50,\"a\":"),
        added(3, call("fc_2", "call_b", "weather", "")),
        delta("function_call_arguments", 3, "fc_2", "{}"),
        delta("function_call_arguments", 2, "fc_1", "\"Oslo\"}"),
        done(2, first.clone()),
        done(3, second.clone()),
        completed(json!([thought, message("msg_1", "I'll look."), first, second])),
    ])
}

fn results(folded: &Completion) -> Message {
    let uses: Vec<_> = folded.message.tool_uses().collect();
    Message::user([
        Content::from(ToolResult::ok(uses[0], "rain")),
        ToolResult::error(uses[1], "no city given").into(),
    ])
}

#[test]
fn round_trip_of_two_turns_with_reasoning_and_parallel_tools_keeps_the_items() {
    let asked = asked();
    assert_eq!(asked.stop_reason, StopReason::ToolUse);
    let Content::Thinking(thinking) = &asked.message.content[0] else { panic!("{asked:?}") };
    assert_eq!(thinking.text, "Two cities.\n\nBoth at once.");
    let mut history = History::from_iter([Message::user("Weather?"), asked.message.clone(), results(&asked)]);
    history.check_sendable().unwrap();

    let last = reasoning("rs_2", &["Simple."], "bW9yZQ==");
    let end = answer(&[
        created(),
        done(0, last.clone()),
        delta("output_text", 1, "msg_2", "Rain."),
        completed(json!([last, message("msg_2", "Rain.")])),
    ]);
    assert_eq!(end.stop_reason, StopReason::Stop);
    history.push(end.message);
    history.push(Message::user("Thanks"));

    let request = Request::new(history);
    let body = encode(&OpenAiResponses::openai(), &request);
    let text = |text: &str| json!([{"type": "output_text", "text": text, "annotations": []}]);
    assert_eq!(
        body["input"],
        json!([
            {"type": "message", "role": "user", "content": "Weather?"},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Two cities."},
                {"type": "summary_text", "text": "Both at once."}], "encrypted_content": "c2VjcmV0"},
            {"type": "message", "role": "assistant", "status": "completed", "content": text("I'll look.")},
            {"type": "function_call", "call_id": "call_a", "name": "weather", "arguments": "{\"b\":1.5,\"a\":\"Oslo\"}"},
            {"type": "function_call", "call_id": "call_b", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_a", "output": "rain"},
            {"type": "function_call_output", "call_id": "call_b", "output": "Error: no city given"},
            {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "Simple."}],
                "encrypted_content": "bW9yZQ=="},
            {"type": "message", "role": "assistant", "status": "completed", "content": text("Rain.")},
            {"type": "message", "role": "user", "content": "Thanks"},
        ])
    );
    assert_eq!(body["store"], false);
    assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
    assert_eq!(body.to_string(), encode(&OpenAiResponses::openai(), &request).to_string());
}

#[test]
fn answer_sent_in_other_formats_omits_private_content() {
    let asked = asked();
    let history = History::from_iter([Message::user("Weather?"), asked.message.clone(), results(&asked)]);
    let request = Request::new(history);
    for body in [
        ChatCompletions::default().encode(&request).unwrap().body,
        AnthropicMessages::default().encode(&request).unwrap().body,
    ] {
        let text = Value::Object(body).to_string();
        assert!(text.contains("call_a") && !text.contains("c2VjcmV0") && !text.contains("rs_1"), "{text}");
    }
}

#[test]
fn round_trip_of_server_tools_keeps_their_items_in_place() {
    let search = json!({"id": "ws_1", "type": "web_search_call", "status": "completed",
        "action": {"type": "search", "query": "fjord"}});
    let cited =
        json!({"type": "url_citation", "url": "https://example.org/fjord", "start_index": 0, "end_index": 4});
    let said = json!({"id": "msg_1", "type": "message", "status": "completed", "role": "assistant",
        "phase": "final_answer", "content": [{"type": "output_text", "text": "Deep.", "annotations": [cited]}]});
    let folded = answer(&[
        created(),
        added(0, json!({"id": "ws_1", "type": "web_search_call", "status": "in_progress"})),
        json!({"type": "response.web_search_call.searching", "item_id": "ws_1", "output_index": 0}),
        done(0, search.clone()),
        added(1, json!({"id": "msg_1", "type": "message", "content": [], "role": "assistant"})),
        delta("output_text", 1, "msg_1", "Deep."),
        json!({"type": "response.output_text.annotation.added", "item_id": "msg_1", "output_index": 1,
            "annotation": cited}),
        done(1, said.clone()),
        completed(json!([search, said])),
    ]);
    assert_eq!(folded.message.text(), "Deep.");
    assert_eq!(
        input(&OpenAiResponses::default(), [folded.message]),
        json!([search, {"type": "message", "role": "assistant", "status": "completed", "phase": "final_answer",
            "content": [{"type": "output_text", "text": "Deep.", "annotations": [cited]}]}])
    );
}

#[test]
fn round_trip_of_calls_with_namespace_or_caller_keeps_both() {
    let program =
        json!({"id": "cm_1", "type": "program", "call_id": "call_p", "code": "look()", "fingerprint": "Zm"});
    let caller = json!({"type": "program", "caller_id": "call_p"});
    let with = |mut call: Value, key: &str, value: Value| {
        call[key] = value;
        call
    };
    let looked = with(call("fc_1", "call_1", "look", "{}"), "caller", caller.clone());
    let found = with(call("fc_2", "call_2", "find", "{}"), "namespace", json!("crm"));
    let plain = with(call("fc_3", "call_3", "list", "{}"), "caller", json!({"type": "direct"}));
    let output = json!([program, looked, found, plain]);
    let began = |call: &Value| with(call.clone(), "arguments", json!(""));
    let streamed = answer(&[
        created(),
        added(0, with(program.clone(), "code", json!(""))),
        done(0, program.clone()),
        added(1, began(&looked)),
        delta("function_call_arguments", 1, "fc_1", "{}"),
        done(1, looked.clone()),
        added(2, began(&found)),
        done(2, found.clone()),
        // This call occurs only in its final event.
        done(3, plain.clone()),
        completed(output.clone()),
    ]);
    let whole = answer(&[created(), completed(output)]);
    for folded in [streamed, whole] {
        let results: Vec<Content> =
            folded.message.tool_uses().map(|call| ToolResult::ok(call, "ok").into()).collect();
        let sent =
            input(&OpenAiResponses::default(), [folded.message.clone(), Message::user(results.clone())]);
        let call = |id: &str, name: &str| json!({"type": "function_call", "call_id": id, "name": name, "arguments": "{}"});
        let output = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "ok"});
        let expected = json!([
            program,
            with(call("call_1", "look"), "caller", caller.clone()),
            with(call("call_2", "find"), "namespace", json!("crm")),
            call("call_3", "list"),
            with(output("call_1"), "caller", caller.clone()),
            output("call_2"),
            output("call_3"),
        ]);
        assert_eq!(sent, expected);

        // Another service receives neither the caller nor the namespace.
        let mut foreign = folded.message;
        foreign.provider_data.clear();
        foreign.provider_data.insert("anthropic_messages".to_owned(), json!({}));
        let sent = input(&OpenAiResponses::default(), [foreign, Message::user(results)]);
        assert!(!sent.to_string().contains("caller") && !sent.to_string().contains("namespace"), "{sent}");
    }
}

#[test]
fn salvage_of_an_incomplete_call_with_a_namespace_drops_it() {
    let mut found = call("fc_1", "call_1", "find", "");
    found["namespace"] = json!("crm");
    let mut decoder = OpenAiResponses::default().decoder(&Request::default());
    let mut fold = Fold::default();
    for event in [created(), added(0, found), delta("function_call_arguments", 0, "fc_1", "{}")] {
        let mut deltas = Vec::new();
        decoder.decode(Frame::new("", &event.to_string()), &mut deltas).unwrap();
        for delta in deltas {
            fold.apply(delta).unwrap();
        }
    }
    // The only call may be incomplete, so it is dropped as a whole.
    assert_eq!(fold.salvage(Timestamp(1)), None);
}

//! Google's Gemini format: helpers for its tests, and round trips of conversations.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, Text, Thinking, Timestamp, ToolResult, ToolUse},
    provider::{
        Completion, ProviderError, Request, StopReason,
        custom::{Delta, Dialect, Frame, GoogleGemini},
    },
    testing::internals::Fold,
};
use serde_json::{Map, Value, json};

/// Returns the deltas of an answer with these events. The body ends after the last event.
pub(crate) fn deltas_of<S: AsRef<str>>(events: &[S]) -> Result<Vec<Delta>, ProviderError> {
    let mut decoder = GoogleGemini::default().decoder(&Request::default());
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

/// Decodes an answer that consists of these chunks, and folds it into a completion.
pub(crate) fn answer(chunks: &[Value]) -> Result<Completion, ProviderError> {
    let events: Vec<String> = chunks.iter().map(Value::to_string).collect();
    deltas_of(&events).map(fold)
}

/// Returns a chunk with these parts.
pub(crate) fn parts(parts: Value) -> Value {
    json!({"candidates": [{"content": {"parts": parts, "role": "model"}, "index": 0}],
        "modelVersion": "gemini-test", "responseId": "r-1"})
}

/// Returns a chunk with this finish reason.
pub(crate) fn finish(reason: &str) -> Value {
    json!({"candidates": [{"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": reason,
        "index": 0}], "modelVersion": "gemini-test", "responseId": "r-1"})
}

pub(crate) fn request(model: &str, messages: impl IntoIterator<Item = Message>) -> Request {
    let mut request = Request::new(History::from_iter(messages));
    request.model = model.into();
    request
}

pub(crate) fn contents(model: &str, messages: impl IntoIterator<Item = Message>) -> Value {
    let mut body = GoogleGemini::default().encode(&request(model, messages)).unwrap().body;
    crate::without_opening(&mut body, "contents");
    body["contents"].take()
}

#[test]
fn round_trip_of_signed_thinking_and_tools_sends_everything_back_in_place() {
    let asked = answer(&[
        parts(json!([{"text": "Two ", "thought": true}])),
        parts(json!([{"text": "cities.", "thought": true}])),
        parts(json!([{"text": "So", "thought": true, "thoughtSignature": "s-thought"}])),
        parts(json!([{"text": "I'll "}])),
        parts(json!([{"text": "look."}])),
        parts(json!([
            {"functionCall": {"name": "weather", "args": {"b": 1.5, "a": "Oslo"}}, "thoughtSignature": "s-call"},
            {"functionCall": {"id": "given", "name": "weather", "args": {}}}])),
        finish("STOP"),
    ])
    .unwrap();
    assert_eq!(asked.stop_reason, StopReason::ToolUse);
    let uses: Vec<ToolUse> = asked.message.tool_uses().cloned().collect();
    let mut history = History::from_iter([Message::user("Weather?"), asked.message]);
    // The results are not in the order of the calls.
    history.push(Message::user([
        Content::from(ToolResult::error(&uses[1], "no city given")),
        ToolResult::ok(&uses[0], "rain").into(),
        "Hurry".into(),
    ]));
    history.check_sendable().unwrap();
    let done = answer(&[
        parts(json!([{"text": "Rain."}])),
        parts(json!([{"text": "", "thoughtSignature": "s-end"}])),
        finish("STOP"),
    ])
    .unwrap();
    assert_eq!((done.stop_reason, done.message.text()), (StopReason::Stop, "Rain.".to_owned()));
    history.push(done.message);
    history.push(Message::user("Thanks"));

    let made = uses[0].id.as_str();
    assert!(made.starts_with("call_") && made.ends_with("_0"), "{made}");
    let mut request = Request::new(history);
    request.model = "gemini-3-flash-preview".into();
    let encoded = GoogleGemini::default().encode(&request).unwrap();
    assert_eq!(
        encoded.body["contents"],
        json!([
            {"role": "user", "parts": [{"text": "Weather?"}]},
            {"role": "model", "parts": [
                {"text": "So", "thought": true, "thoughtSignature": "s-thought"},
                {"text": "I'll look."},
                {"functionCall": {"id": made, "name": "weather", "args": {"b": 1.5, "a": "Oslo"}},
                    "thoughtSignature": "s-call"},
                {"functionCall": {"id": "given", "name": "weather", "args": {}}},
            ]},
            {"role": "user", "parts": [
                {"functionResponse": {"id": made, "name": "weather", "response": {"output": "rain"}}},
                {"functionResponse": {"id": "given", "name": "weather", "response": {"error": "no city given"}}},
            ]},
            {"role": "user", "parts": [{"text": "Hurry"}]},
            {"role": "model", "parts": [{"text": "Rain."}, {"text": "", "thoughtSignature": "s-end"}]},
            {"role": "user", "parts": [{"text": "Thanks"}]},
        ])
    );
    let again = GoogleGemini::default().encode(&request).unwrap();
    assert_eq!(Value::Object(encoded.body).to_string(), Value::Object(again.body).to_string());
}

#[test]
fn conversation_begun_in_another_format_continues_without_its_private_data() {
    let mut foreign = Message::assistant([
        Content::from(Thinking::new("Hm.").with_signature("s")),
        Text::new("So.").with_signature("s").into(),
        ToolUse::new("toolu_1", "my tool!", json!({"x": 1})).with_signature("s").into(),
        ToolUse::new("toolu_2", "2nd", json!({})).into(),
    ]);
    foreign.provider_data = Map::from_iter([("anthropic_messages".to_owned(), json!({}))]);
    let results: Vec<Content> =
        foreign.tool_uses().map(|tool_use| ToolResult::ok(tool_use, "seen").into()).collect();
    let history = History::from_iter([Message::user("Look"), foreign, Message::user(results)]);
    let before = serde_json::to_string(&history).unwrap();
    let said = |model: &str| contents(model, history.iter().map(|message| Message::clone(message)));
    let mut expected = json!([
        {"role": "user", "parts": [{"text": "Look"}]},
        {"role": "model", "parts": [
            {"text": "So."},
            {"functionCall": {"id": "toolu_1", "name": "my_tool_", "args": {"x": 1}}},
            {"functionCall": {"id": "toolu_2", "name": "_2nd", "args": {}}},
        ]},
        {"role": "user", "parts": [
            {"functionResponse": {"id": "toolu_1", "name": "my_tool_", "response": {"output": "seen"}}},
            {"functionResponse": {"id": "toolu_2", "name": "_2nd", "response": {"output": "seen"}}},
        ]},
    ]);
    assert_eq!(said("gemini-2.5-pro"), expected);
    // Gemini 3 rejects a request if the first call has no signature.
    expected[1]["parts"][1]["thoughtSignature"] = "skip_thought_signature_validator".into();
    for model in ["gemini-3.1-pro-preview", "gemini-flash-latest", "models/gemini-3-flash"] {
        assert_eq!(said(model), expected, "{model}");
    }
    assert_eq!(serde_json::to_string(&history).unwrap(), before);
}

#[test]
fn round_trip_of_opaque_parts_sends_them_back_in_place() {
    let code = json!({"executableCode": {"id": "x", "language": "PYTHON", "code": "print(1)"},
        "thoughtSignature": "s-code"});
    let output = json!({"codeExecutionResult": {"id": "x", "outcome": "OUTCOME_OK", "output": "1\n"}});
    let unheard = json!({"partOfTheFuture": {"x": [1]}});
    let sketch = json!({"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thought": true});
    let image =
        json!({"inlineData": {"mimeType": "image/png", "data": "BBBB"}, "thoughtSignature": "s-image"});
    let mut last = finish("STOP");
    last["candidates"][0]["groundingMetadata"] = json!({"webSearchQueries": ["q"]});
    let folded = answer(&[
        parts(json!([{"text": "Let me see. "}, code, output, unheard])),
        parts(json!([sketch, image])),
        parts(json!([{"text": "One."}])),
        last,
    ])
    .unwrap();
    let items = folded.message.content.iter().filter_map(|block| match block {
        Content::ProviderItem(item) => Some(&item.data),
        _ => None,
    });
    let items: Vec<&Value> = items.collect();
    assert_eq!(items.len(), 6);
    assert_eq!(items[5], &json!({"groundingMetadata": {"webSearchQueries": ["q"]}}));
    assert!(folded.message.content.iter().any(|block| matches!(block, Content::Attachment(_))));
    assert_eq!(
        contents("gemini-3-pro-image", [Message::user("?"), folded.message.clone()])[1]["parts"],
        json!([{"text": "Let me see. "}, code, output, unheard, sketch, image, {"text": "One."}])
    );

    let mut foreign = folded.message;
    foreign.provider_data = Map::from_iter([("other".to_owned(), json!({}))]);
    for block in &mut foreign.content {
        if let Content::ProviderItem(item) = block {
            item.format = "other".into();
        }
    }
    assert_eq!(
        contents("gemini-3-pro-image", [foreign])[0]["parts"],
        json!([{"text": "Let me see. "}, {"inlineData": {"mimeType": "image/png", "data": "BBBB"}},
            {"text": "One."}])
    );
}

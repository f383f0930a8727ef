//! Tests of the server's strictness. For each format, the tests send a request that the server accepts, and variants of
//! the request that the real service would reject.

use omni_agent::{
    message::{Attachment, Content, History, Message, Text, ToolResult, ToolUse},
    provider::{Effort, Options, OutputSchema, ProviderErrorKind, Request, UnsupportedAttachment},
    tool::{Schema, ToolSet},
};
use serde_json::{Map, Value, json};

use crate::{
    rig::{Format, PNG, Rig, weather, within_a_minute},
    script::Answer,
};

/// Returns a request that uses every feature.
fn request() -> Request {
    let uses = [
        ToolUse::new("call_1", "weather", json!({"city": "Rome"})),
        ToolUse::new("call_2", "weather", json!({"city": "Oslo"})),
    ];
    let asked = [Content::from(Text::new("I look.")), uses[0].clone().into(), uses[1].clone().into()];
    let results = [ToolResult::ok(&uses[0], "rain"), ToolResult::error(&uses[1], "no such city")];
    let question = [Content::from(Text::new("And this?")), Attachment::base64("image/png", PNG).into()];
    let history = History::from_iter([
        Message::user("Weather?"),
        Message::assistant(asked),
        Message::user(results),
        Message::assistant("Rain."),
        Message::user(question),
    ]);
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let options = Options::default()
        .with_max_tokens(4000)
        .with_max_retries(0)
        .with_thinking(Effort::High)
        .with_unsupported_attachment(UnsupportedAttachment::Placeholder)
        .with_output(OutputSchema::new("place", Schema::new(schema).unwrap()));
    Request::new(history)
        .with_system("Be brief.")
        .with_tools(ToolSet::new().with(weather()).unwrap())
        .with_options(options)
}

/// A change that makes a body invalid: the changed place, and its new value. `None` removes the place.
type Break = (&'static str, Option<Value>);

fn set(place: &'static str, value: Value) -> Break {
    (place, Some(value))
}

fn unset(place: &'static str) -> Break {
    (place, None)
}

fn broken(body: &Value, (place, value): &Break) -> Value {
    let mut body = body.clone();
    let (parent, key) = place.rsplit_once('/').unwrap();
    match (body.pointer_mut(parent).expect("the place exists"), value) {
        (Value::Object(members), Some(value)) => drop(members.insert(key.to_owned(), value.clone())),
        (Value::Object(members), None) => drop(members.shift_remove(key).expect("the member exists")),
        (Value::Array(items), Some(value)) => items.insert(key.parse().unwrap(), value.clone()),
        (Value::Array(items), None) => drop(items.remove(key.parse().unwrap())),
        (other, _) => panic!("{other} has no members"),
    }
    body
}

/// Sends the request unchanged, and then once with each of these changes. The server may accept only the unchanged
/// request.
async fn refuses(format: Format, breaks: &[Break]) {
    let rig = Rig::new(format).await;
    let model = format.model(&rig.service.url());
    rig.service.will(Answer::text("Fine."));
    model.generate(request()).await.unwrap();
    let body = rig.service.body();
    let unknown = set("/surprise", json!(1));
    for change in breaks.iter().chain([&unknown]) {
        let members: Map<String, Value> = serde_json::from_value(broken(&body, change)).unwrap();
        let hook = move |body: &mut Map<String, Value>, _: &Request| {
            body.clone_from(&members);
            Ok(())
        };
        let model = format.model_with(&rig.service.url(), |endpoint| endpoint.with_body_hook(hook));
        let error = model.generate(request()).await.expect_err(&format!("{format:?} takes {change:?}"));
        assert_eq!(
            (error.kind, error.status),
            (ProviderErrorKind::InvalidRequest, Some(400)),
            "{change:?}: {error:?}"
        );
    }
    assert_eq!(rig.service.refused().len(), breaks.len() + 1);
}

#[tokio::test]
async fn messages_request_that_breaks_a_rule_is_rejected() {
    let foreign = json!({"type": "thinking", "thinking": "Hm.", "signature": "made up"});
    let text = json!({"type": "text", "text": "x"});
    let breaks = [
        unset("/max_tokens"),
        unset("/messages/0"),
        unset("/messages/1"),
        unset("/messages/2"),
        unset("/messages/2/content/1"),
        set("/messages/1/content/0", foreign.clone()),
        set("/messages/1/content/3", foreign),
        set("/messages/2/content/0", text),
        set("/messages/1/content/1/id", json!("call_2")),
        set("/messages/1/content/1/id", json!("call|1")),
        set("/messages/1/content/1/input", json!("{}")),
        set("/messages/1/content/1/name", json!("functions.read")),
        set("/messages/2/content/0/tool_use_id", json!("call_9")),
        set("/messages/3/content/0/text", json!(" ")),
        set("/messages/4/content/1/source/data", json!("no base64")),
        set("/messages/4/content/1/source/media_type", json!("application/pdf")),
        set("/messages/4/content/1/detail", json!("high")),
        set("/thinking/budget_tokens", json!(4000)),
        set("/thinking/budget_tokens", json!(1000)),
        set("/temperature", json!(0.5)),
        set("/tool_choice", json!({"type": "any"})),
        set("/tools/0/name", json!("the weather")),
        set("/tools/0/parameters", json!({})),
        unset("/output_config/format/schema/additionalProperties"),
        set("/stop_sequences", json!([" "])),
        set("/metadata", json!({"team": "x"})),
    ];
    within_a_minute(refuses(Format::Messages, &breaks)).await;
}

#[tokio::test]
async fn chat_request_that_breaks_a_rule_is_rejected() {
    let details = json!([{"type": "reasoning.text", "text": "Hm.", "index": 0}]);
    let breaks = [
        unset("/stream_options"),
        unset("/messages/2"),
        unset("/messages/3"),
        unset("/messages/4"),
        set("/messages/4", json!({"role": "user", "content": "too early"})),
        set("/messages/1", json!({"role": "developer", "content": "too late"})),
        set("/messages/2/reasoning_details", details),
        set("/messages/2/reasoning_content", json!("Hm.")),
        set("/messages/2/tool_calls/0/function/arguments", json!("{")),
        set("/messages/2/tool_calls/0/function/arguments", json!({"city": "Rome"})),
        set("/messages/2/tool_calls/0/id", json!("x".repeat(41))),
        set("/messages/2/tool_calls/0/function/name", json!("functions.read")),
        set("/messages/2/tool_calls/0/function/name", json!("x".repeat(65))),
        set("/messages/2/tool_calls/0/function/name", json!("")),
        set("/messages/3/tool_call_id", json!("call_9")),
        set("/messages/3/content", json!([{"type": "text", "text": "rain"}])),
        set("/messages/6/content/1/image_url/url", json!("data:image/png;base64,?")),
        set("/max_tokens", json!(10)),
        set("/reasoning_effort", json!("max")),
        set("/tools/0/function/name", json!("the weather")),
        set("/response_format/json_schema/name", json!("a place")),
        unset("/response_format/json_schema/schema/additionalProperties"),
        set("/stop", json!(["1", "2", "3", "4", "5"])),
        set("/metadata", json!({"user_id": "x"})),
    ];
    within_a_minute(refuses(Format::Chat, &breaks)).await;
}

#[tokio::test]
async fn responses_request_that_breaks_a_rule_is_rejected() {
    let reasoning = json!({"type": "reasoning", "summary": [], "encrypted_content": "made up"});
    let breaks = [
        unset("/include"),
        set("/store", json!(true)),
        unset("/input/2"),
        unset("/input/3"),
        unset("/input/4"),
        set("/input/4", json!({"type": "message", "role": "user", "content": "too early"})),
        set("/input/1", reasoning.clone()),
        set("/input/7", reasoning),
        set("/input/2/call_id", json!("call_2")),
        set("/input/2/call_id", json!("x".repeat(65))),
        set("/input/2/arguments", json!("[]")),
        set("/input/2/name", json!("my tool")),
        set("/input/2/name", json!("x".repeat(65))),
        set("/input/4/call_id", json!("call_9")),
        set("/input/7/content/1/type", json!("image_url")),
        set("/input/6/content/0/type", json!("input_text")),
        set("/max_output_tokens", json!(15)),
        set("/reasoning/effort", json!("most")),
        unset("/tools/0/strict"),
        unset("/text/format/schema/required"),
        set("/text/format/type", json!("json")),
        set("/metadata", json!({"n": 1})),
        set("/stop", json!(["x"])),
    ];
    within_a_minute(refuses(Format::Responses, &breaks)).await;
}

#[tokio::test]
async fn gemini_request_that_breaks_a_rule_is_rejected() {
    let thought = json!({"text": "Hm.", "thought": true, "thoughtSignature": "made up"});
    let breaks = [
        unset("/contents/0"),
        unset("/contents/1"),
        unset("/contents/2"),
        unset("/contents/4"),
        unset("/contents/2/parts/1"),
        set("/contents/1/parts/0", thought),
        set("/contents/1/parts/1/thoughtSignature", json!("made up")),
        unset("/contents/1/parts/1/thoughtSignature"),
        set("/contents/1/parts/1/functionCall/args", json!("{}")),
        set("/contents/1/parts/1/functionCall/name", json!("x".repeat(65))),
        set("/contents/1/role", json!("assistant")),
        set("/contents/2/parts/0/functionResponse/name", json!("other")),
        set("/contents/2/parts/0/functionResponse/id", json!("call_2")),
        set("/contents/2/parts/0", json!({"text": "between"})),
        set("/contents/3/parts", json!([])),
        set("/contents/4/parts/1/inlineData/data", json!("no base64")),
        set("/generationConfig/thinkingConfig/thinkingLevel", json!("medium")),
        set("/generationConfig/thinkingConfig/thinkingBudget", json!(1000)),
        unset("/generationConfig/responseMimeType"),
        set("/generationConfig/stopSequences", json!(["1", "2", "3", "4", "5", "6"])),
        set("/tools/0/functionDeclarations/0/name", json!("the weather")),
        set("/toolConfig", json!({"functionCallingConfig": {"mode": "SOME"}})),
    ];
    within_a_minute(refuses(Format::Gemini, &breaks)).await;
}

#[tokio::test]
async fn ollama_request_that_breaks_a_rule_is_rejected() {
    let breaks = [
        unset("/truncate"),
        set("/stream", json!(false)),
        set("/think", json!("high")),
        unset("/messages/2"),
        unset("/messages/3"),
        unset("/messages/4"),
        set("/messages/4", json!({"role": "user", "content": "too early"})),
        set("/messages/1", json!({"role": "system", "content": "too late"})),
        set("/messages/2/thinking", json!("made up")),
        set("/messages/2/tool_calls/0/function/arguments", json!("{}")),
        set("/messages/3/tool_name", json!("other")),
        set("/messages/3/tool_call_id", json!("call_2")),
        set("/messages/6/images/0", json!("data:image/png;base64,AAAA")),
        set("/messages/6/content", json!([])),
        set("/options/max_tokens", json!(10)),
        set("/tool_choice", json!("auto")),
        unset("/tools/0/function/parameters/type"),
    ];
    within_a_minute(refuses(Format::Ollama, &breaks)).await;
}

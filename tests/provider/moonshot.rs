//! Requests to Moonshot and answers from Moonshot.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, History, Message, ToolResult, ToolUse},
    provider::{
        Catalogue, Effort, Options, Request, StopReason, ThinkingMode, ToolChoice, UnsupportedAttachment,
        http::Endpoint,
    },
};
use serde_json::{Value, json};

use crate::{
    anthropic::tools,
    endpoints::{body, chunks, exchange, said, said_schema, schema},
};

const KIMI: &str = "kimi-k2.5";

/// Returns the members of a request, as [`said`] does, but without the output limit that leaves room for thinking.
async fn said_without_limit(model: &str, options: Options) -> (serde_json::Value, Vec<String>) {
    let (mut said, warnings) = said(&Endpoint::moonshot(), model, options).await;
    said.as_object_mut().unwrap().remove("max_completion_tokens");
    (said, warnings)
}

#[tokio::test]
async fn thinking_is_switched_on_or_off_if_the_model_has_a_setting() {
    let on = || json!({"thinking": {"type": "enabled"}});
    let effort = |word: &str| json!({"reasoning_effort": word});
    let cases: [(&str, ThinkingMode, Value, usize); 16] = [
        (KIMI, Effort::High.into(), on(), 1),
        (KIMI, ThinkingMode::Budget(2000), on(), 1),
        (KIMI, ThinkingMode::Off, json!({"thinking": {"type": "disabled"}}), 0),
        ("kimi-k3", Effort::Minimal.into(), effort("low"), 1),
        ("kimi-k3", Effort::Low.into(), effort("low"), 0),
        ("kimi-k3.1-pro", Effort::Medium.into(), effort("high"), 1),
        ("kimi-k3", Effort::High.into(), effort("high"), 0),
        ("kimi-k3", Effort::Max.into(), effort("max"), 0),
        ("kimi-k3", ThinkingMode::Budget(2000), effort("low"), 1),
        ("kimi-k3", ThinkingMode::Off, json!({}), 1),
        ("kimi-k2.7-code", ThinkingMode::Off, json!({}), 1),
        ("kimi-k2.7-code-highspeed", Effort::High.into(), json!({}), 1),
        ("kimi-k2-thinking", Effort::High.into(), json!({}), 1),
        ("kimi-k2-thinking-turbo", ThinkingMode::Off, json!({}), 1),
        ("kimi-k2-0905-preview", Effort::High.into(), json!({}), 1),
        ("moonshot-v1-128k", ThinkingMode::Off, json!({}), 0),
    ];
    for (model, mode, expected, warned) in cases {
        let (said, warnings) = said_without_limit(model, Options::default().with_thinking(mode)).await;
        assert_eq!((said, warnings.len()), (expected, warned), "{model} {mode:?}: {warnings:?}");
    }
}

#[tokio::test]
async fn reasoning_of_earlier_turns_is_kept_while_the_model_thinks() {
    let kept = || json!({"thinking": {"type": "enabled", "keep": "all"}});
    let with = |mode: ThinkingMode| Options::default().with_thinking(mode);
    for (model, options, expected) in [
        ("kimi-k2.6", Options::default(), kept()),
        ("kimi-k2.6", with(Effort::High.into()), kept()),
        ("kimi-k2.6", with(ThinkingMode::Off), json!({"thinking": {"type": "disabled"}})),
        (KIMI, Options::default(), json!({})),
        ("kimi-k3", Options::default(), json!({})),
    ] {
        let (sent, _) = said_without_limit(model, options).await;
        assert_eq!(sent, expected, "{model}");
    }
}

#[tokio::test]
async fn request_with_everything_sends_what_the_service_accepts() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_top_p(0.9)
        .with_tool_choice(ToolChoice::Required)
        .with_output(schema());
    let weather = tools(&[("weather", "Tells the weather.", json!({"type": "object"}))]);
    let request = Request::prompt("Hallo").with_options(options).with_tools(weather);
    let (sent, warnings) = body(&Endpoint::moonshot(), KIMI, request.clone()).await;
    assert_eq!(
        sent,
        json!({
            "model": KIMI,
            "messages": [{"role": "system", "content": said_schema()}, {"role": "user", "content": "Hallo"}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_completion_tokens": 100,
            "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
                "parameters": {"type": "object", "properties": {}, "required": []}}}],
            "tool_choice": "auto",
            "response_format": {"type": "json_object"},
        })
    );
    // There is one warning each for the temperature, for top-p and for the tool choice.
    assert_eq!(warnings.len(), 3, "{warnings:?}");
    let (sent, _) = body(&Endpoint::moonshot(), "moonshot-v1-8k", request).await;
    assert_eq!((&sent["temperature"], &sent["top_p"]), (&json!(0.5), &json!(0.9)));
}

#[tokio::test]
async fn calls_with_an_id_on_each_chunk_are_assembled_and_sent_back_with_their_reasoning() {
    let piece = |delta: Value| {
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": KIMI,
            "choices": [{"index": 0, "delta": delta, "finish_reason": null}], "system_fingerprint": "fpv0"})
    };
    let call = |index: u64, id: &str, name: Value, arguments: &str| {
        piece(json!({"tool_calls": [{"index": index, "id": id, "type": "function",
            "function": {"name": name, "arguments": arguments}}]}))
    };
    let usage = json!({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "cached_tokens": 2});
    let reply = chunks(&[
        piece(json!({"role": "assistant", "content": ""})),
        piece(json!({"reasoning_content": "Two "})),
        piece(json!({"reasoning_content": "cities."})),
        call(0, "weather:0", json!("weather"), ""),
        call(0, "weather:0", Value::Null, "{\"city\":"),
        call(0, "weather:0", Value::Null, "\"Oslo\"}"),
        call(1, "weather:1", json!("weather"), ""),
        call(1, "weather:1", json!(""), "{}"),
        json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls", "usage": usage}]}),
    ]);
    let (_, answer) = exchange(&Endpoint::moonshot(), KIMI, Request::prompt("Wetter?"), reply).await;
    let answer = answer.unwrap();
    assert_eq!(answer.stop_reason, StopReason::ToolUse);
    assert_eq!((answer.usage.input, answer.usage.cache_read, answer.usage.output), (7, 2, 4));
    let uses: Vec<ToolUse> = answer.message.tool_uses().cloned().collect();
    let made: Vec<_> = uses.iter().map(|call| (call.id.as_str(), call.input.to_string())).collect();
    assert_eq!(made, [("weather:0", "{\"city\":\"Oslo\"}".to_owned()), ("weather:1", "{}".to_owned())]);

    let results = uses.iter().map(|call| Content::from(ToolResult::ok(call, "rain")));
    let results = Message::user(results.collect::<Vec<_>>());
    let history = History::from_iter([Message::user("Wetter?"), answer.message, results]);
    let (sent, _) = body(&Endpoint::moonshot(), KIMI, Request::new(history.clone())).await;
    let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": arguments}});
    let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "rain"});
    assert_eq!(
        sent["messages"],
        json!([
            {"role": "user", "content": "Wetter?"},
            {"role": "assistant", "content": null, "reasoning_content": "Two cities.",
                "tool_calls": [call("weather:0", "{\"city\":\"Oslo\"}"), call("weather:1", "{}")]},
            result("weather:0"),
            result("weather:1"),
        ])
    );
    let (sent, _) = body(&Endpoint::moonshot(), "moonshot-v1-8k", Request::new(history)).await;
    assert_eq!(sent["messages"][1].get("reasoning_content"), None);
}

#[tokio::test]
async fn conversation_of_another_service_gets_blank_reasoning_with_its_calls() {
    let call = ToolUse::new("a", "weather", json!({}));
    let result = Content::from(ToolResult::ok(&call, "rain"));
    let history = History::from_iter([
        Message::user("Wetter?"),
        Message::assistant(Content::from(call)),
        Message::user(result),
        Message::assistant("Rain."),
        Message::user("Und?"),
    ]);
    let (sent, _) = body(&Endpoint::moonshot(), "kimi-k2-thinking", Request::new(history)).await;
    let reasoning = |at: usize| sent["messages"][at].get("reasoning_content");
    assert_eq!((reasoning(1), reasoning(3)), (Some(&json!(" ")), None));
}

#[tokio::test]
async fn images_are_sent_only_as_data() {
    let content = [
        Content::from(Attachment::base64("image/png", "AAAA")),
        Attachment::url("image/png", "https://example.com/x.png").into(),
    ];
    let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
    let (sent, _) = body(&Endpoint::moonshot(), KIMI, Request::prompt(content).with_options(options)).await;
    let parts = &sent["messages"][0]["content"];
    assert_eq!(parts[0], json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}));
    assert!(parts[1]["text"].as_str().unwrap().contains("as base64"), "{parts}");
}

#[test]
fn request_without_a_limit_to_a_model_that_thinks_leaves_room_for_thinking() {
    let limit = |model: &str, bytes: usize, max: Option<u32>| {
        let mut request = Request::prompt("a".repeat(bytes));
        request.model = model.into();
        request.model_info = Catalogue::built_in().find("moonshot", model);
        request.options.set_max_tokens(max);
        Endpoint::moonshot().preview(&request).unwrap().1.body.get("max_completion_tokens").cloned()
    };
    assert_eq!(limit("kimi-k2.6", 10, None), Some(32_000.into()));
    assert_eq!(limit("kimi-k2.6", 780_000, None), Some(4_096.into()));
    assert_eq!(limit("kimi-k2.6", 10, Some(5)), Some(5.into()));
    assert_eq!(limit("moonshot-v1-8k", 10, None), None);
}

#[test]
fn members_of_extra_are_not_mixed_with_members_for_a_model_that_thinks() {
    let sent = |members: Value| {
        let Value::Object(members) = members else { panic!("{members} is not an object") };
        let mut request = Request::prompt("Hi").with_options(Options::default().with_extra(members));
        request.model = "kimi-k2.6".into();
        request.model_info = Catalogue::built_in().find("moonshot", "kimi-k2.6");
        let encoded = Endpoint::moonshot().preview(&request).unwrap().1;
        assert!(encoded.warnings.is_empty(), "{:?}", encoded.warnings);
        Value::Object(encoded.body)
    };
    for key in ["max_tokens", "max_completion_tokens"] {
        let body = sent(json!({key: 7}));
        let limits = ["max_tokens", "max_completion_tokens"].map(|key| body.get(key).is_some());
        assert_eq!((body[key].clone(), limits), (json!(7), ["max_tokens" == key, "max_tokens" != key]));
    }
    let off = json!({"type": "disabled"});
    assert_eq!(sent(json!({"thinking": off}))["thinking"], off);
}

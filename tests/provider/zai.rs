//! Requests to Z.ai and answers from Z.ai.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, History, Message, Thinking, ToolResult, ToolUse},
    provider::{
        Effort, Options, ProviderErrorKind, Request, StopReason, ThinkingMode, ToolChoice, http::Endpoint,
    },
};
use serde_json::{Value, json};

use crate::{
    anthropic::tools,
    endpoints::{body, chunks, exchange, said, said_schema, schema},
};

const GLM: &str = "glm-4.6";

#[tokio::test]
async fn thinking_is_a_switch_and_a_level_for_the_newest_models() {
    let on = || json!({"thinking": {"type": "enabled"}});
    let off = || json!({"thinking": {"type": "disabled"}});
    let level = |word: &str| json!({"thinking": {"type": "enabled", "clear_thinking": false}, "reasoning_effort": word});
    let cases: [(&str, ThinkingMode, Value, usize); 16] = [
        (GLM, Effort::High.into(), on(), 1),
        ("glm-4.5-air", ThinkingMode::Budget(2000), on(), 1),
        ("glm-5-turbo", ThinkingMode::Off, off(), 0),
        ("glm-5.2", Effort::High.into(), level("high"), 0),
        ("glm-5.2", Effort::Max.into(), level("max"), 0),
        ("glm-5.2", Effort::Minimal.into(), level("low"), 1),
        ("glm-5.2", Effort::Medium.into(), level("medium"), 0),
        ("glm-5.2", ThinkingMode::Off, off(), 0),
        ("glm-5.3", ThinkingMode::Off, level("low"), 1),
        ("glm-5.3-flash", ThinkingMode::Budget(0), level("low"), 1),
        ("glm-5.3", Effort::Low.into(), level("low"), 0),
        ("glm-5.3", Effort::Medium.into(), level("high"), 1),
        ("glm-5.3-flash", ThinkingMode::Budget(16_000), level("high"), 1),
        ("glm-5.3", Effort::Max.into(), level("max"), 0),
        ("glm-4-32b-0414-128k", Effort::High.into(), json!({}), 1),
        ("glm-4-32b-0414-128k", ThinkingMode::Off, json!({}), 0),
    ];
    for (model, mode, expected, warned) in cases {
        let (said, warnings) = said(&Endpoint::zai(), model, Options::default().with_thinking(mode)).await;
        assert_eq!((said, warnings.len()), (expected, warned), "{model} {mode:?}: {warnings:?}");
    }
}

#[tokio::test]
async fn request_with_everything_sends_what_the_service_accepts() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_stop_sequences(["A", "B"])
        .with_thinking(ThinkingMode::Off)
        .with_tool_choice(ToolChoice::Tool("weather".to_owned()))
        .with_output(schema());
    let weather = tools(&[("weather", "Tells the weather.", json!({"type": "object"}))]);
    let request = Request::prompt("Hallo").with_options(options).with_tools(weather);
    let (sent, warnings) = body(&Endpoint::zai(), GLM, request.clone()).await;
    assert_eq!(
        sent,
        json!({
            "model": GLM,
            "messages": [{"role": "system", "content": said_schema()}, {"role": "user", "content": "Hallo"}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 100,
            "temperature": 0.5,
            "stop": ["A"],
            "thinking": {"type": "disabled"},
            "tools": [{"type": "function", "function": {"name": "weather", "description": "Tells the weather.",
                "parameters": {"type": "object", "properties": {}}}}],
            "tool_choice": "auto",
            "tool_stream": true,
            "response_format": {"type": "json_object"},
        })
    );
    // There is one warning for the second stop sequence and one for the forced tool.
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    let (sent, _) = body(&Endpoint::zai(), "glm-4.5", request.clone()).await;
    assert_eq!(sent.get("tool_stream"), None);

    let none = Options::default().with_tool_choice(ToolChoice::None);
    let (sent, warnings) = body(&Endpoint::zai(), GLM, request.with_options(none)).await;
    let members = ["tools", "tool_choice", "tool_stream"].map(|name| sent.get(name));
    assert_eq!((members, warnings.len()), ([None; 3], 0));
}

#[tokio::test]
async fn reasoning_is_sent_back() {
    let call = ToolUse::new("a", "weather", json!({}));
    let result = Content::from(ToolResult::ok(&call, "rain"));
    let mut asked = Message::assistant([Content::from(Thinking::new("Oslo, then.")), call.into()]);
    asked.provider_data.insert("chat_completions".to_owned(), json!({"id": "1"}));
    let history = History::from_iter([Message::user("Wetter?"), asked, Message::user(result)]);
    let (sent, _) = body(&Endpoint::zai(), GLM, Request::new(history)).await;
    assert_eq!(sent["messages"][1]["reasoning_content"], "Oslo, then.");
}

#[tokio::test]
async fn reasoning_of_earlier_turns_counts_without_an_option() {
    let kept = json!({"thinking": {"type": "enabled", "clear_thinking": false}});
    for (model, expected) in [
        ("glm-4.7", kept.clone()),
        ("glm-5", kept.clone()),
        ("glm-5.3", kept),
        (GLM, json!({})),
        ("glm-4", json!({})),
    ] {
        let sent = said(&Endpoint::zai(), model, Options::default()).await;
        assert_eq!(sent, (expected, Vec::new()), "{model}");
    }
}

#[tokio::test]
async fn files_are_sent_by_url() {
    let content = [
        Content::from("Look:"),
        Attachment::url("application/pdf", "https://example.com/x.pdf").into(),
        Attachment::url("image/png", "https://example.com/x.png").into(),
        Attachment::base64("image/png", "AAAA").into(),
    ];
    let (sent, _) = body(&Endpoint::zai(), "glm-4.6v", Request::prompt(content)).await;
    assert_eq!(
        sent["messages"][0]["content"],
        json!([
            {"type": "text", "text": "Look:"},
            {"type": "file_url", "file_url": {"url": "https://example.com/x.pdf"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/x.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ])
    );
    let request = Request::prompt(vec![Content::from(Attachment::base64("application/pdf", "AAAA"))]);
    let chat = Endpoint::zai().with_base_url("http://127.0.0.1:1").with_key("k");
    let error =
        omni_agent::provider::Model::new(std::sync::Arc::new(chat), "glm-4.6v").generate(request).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Unsupported);
    assert!(error.message.contains("send the URL"), "{error}");
}

/// Returns the stop reason of a streamed answer with this finish reason from the service.
async fn ended(reason: &str) -> Result<StopReason, omni_agent::provider::ProviderError> {
    let reply = chunks(&[
        json!({"id": "20260303", "created": 1, "model": GLM, "choices": [
            {"index": 0, "delta": {"role": "assistant", "reasoning_content": "\nHm."}}]}),
        json!({"id": "20260303", "created": 1, "model": GLM, "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": "Ja"}}]}),
        json!({"id": "20260303", "created": 1, "model": GLM, "choices": [
            {"index": 0, "finish_reason": reason, "delta": {"role": "assistant", "content": ""}}],
            "usage": {"prompt_tokens": 6, "completion_tokens": 3, "total_tokens": 9,
                "prompt_tokens_details": {"cached_tokens": 0}}}),
    ]);
    let (_, answer) = exchange(&Endpoint::zai(), GLM, Request::prompt("Hallo"), reply).await;
    answer.map(|answer| {
        assert_eq!((&*answer.message.text(), answer.usage.output), ("Ja", 3));
        answer.stop_reason
    })
}

#[tokio::test]
async fn finish_reasons_of_the_service_are_mapped() {
    assert_eq!(ended("stop").await, Ok(StopReason::Stop));
    assert_eq!(ended("length").await, Ok(StopReason::Length));
    assert_eq!(ended("sensitive").await, Ok(StopReason::Refusal));
    assert_eq!(ended("model_context_window_exceeded").await, Ok(StopReason::ContextLength));
    let error = ended("network_error").await.unwrap_err();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{error}");
}

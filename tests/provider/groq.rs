//! Requests to Groq and answers from Groq.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Attachment, Content, Usage},
    provider::{Effort, Options, ProviderErrorKind, Request, ThinkingMode, http::Endpoint},
};
use serde_json::{Value, json};

use crate::{
    anthropic::tools,
    endpoints::{body, chunks, exchange, model, output_tool, said, said_schema, said_tool, schema},
    server::{Reply, Server},
};

#[tokio::test]
async fn thinking_maps_to_the_efforts_of_the_model() {
    let nothing = || json!({});
    let effort = |word: &str| json!({"reasoning_effort": word});
    let qwen = |word: &str| json!({"reasoning_effort": word, "reasoning_format": "parsed"});
    let cases: [(&str, ThinkingMode, Value, usize); 12] = [
        ("openai/gpt-oss-120b", Effort::Low.into(), effort("low"), 0),
        ("openai/gpt-oss-120b", Effort::Medium.into(), effort("medium"), 0),
        ("openai/gpt-oss-120b", Effort::High.into(), effort("high"), 0),
        ("openai/gpt-oss-20b", Effort::Minimal.into(), effort("low"), 1),
        ("openai/gpt-oss-20b", Effort::Max.into(), effort("high"), 1),
        ("openai/gpt-oss-20b", ThinkingMode::Budget(5000), effort("low"), 1),
        ("openai/gpt-oss-20b", ThinkingMode::Off, nothing(), 1),
        ("qwen/qwen3-32b", ThinkingMode::Off, qwen("none"), 0),
        ("qwen/qwen3-32b", Effort::High.into(), qwen("default"), 1),
        ("qwen/qwen3-32b", ThinkingMode::Budget(5000), qwen("default"), 1),
        ("llama-3.3-70b-versatile", Effort::High.into(), nothing(), 1),
        ("llama-3.3-70b-versatile", ThinkingMode::Off, nothing(), 0),
    ];
    for (model, mode, expected, warned) in cases {
        let (said, warnings) = said(&Endpoint::groq(), model, Options::default().with_thinking(mode)).await;
        assert_eq!((said, warnings.len()), (expected, warned), "{model} {mode:?}: {warnings:?}");
    }
    let (said, _) = said(&Endpoint::groq(), "qwen/qwen3-32b", Options::default()).await;
    assert_eq!(said, json!({"reasoning_format": "parsed"}));
}

#[tokio::test]
async fn request_with_everything_sends_what_the_service_accepts() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_stop_sequences(["END"])
        .with_metadata([("user", "u-1")])
        .with_output(schema());
    let request = Request::prompt("Hallo").with_options(options);
    let (sent, warnings) = body(&Endpoint::groq(), "llama-3.3-70b-versatile", request.clone()).await;
    assert_eq!(
        sent,
        json!({
            "model": "llama-3.3-70b-versatile",
            "messages": [{"role": "user", "content": "Hallo"}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_completion_tokens": 100,
            "temperature": 0.5,
            "stop": ["END"],
            "tools": [{"type": "function", "function": output_tool()}],
            "tool_choice": {"type": "function", "function": {"name": "place"}},
        })
    );
    assert_eq!(warnings, ["`metadata` is ignored: this service does not support it"]);

    // If the request has other tools, the output tool is added to them.
    let request = request.with_tools(tools(&[("weather", "Tells the weather.", json!({"type": "object"}))]));
    let (sent, warnings) = body(&Endpoint::groq(), "llama-3.3-70b-versatile", request).await;
    assert_eq!((sent.get("response_format"), &sent["tool_choice"]), (None, &json!("required")));
    assert_eq!(sent["messages"][0], json!({"role": "system", "content": said_tool()}));
    assert_eq!(sent["tools"][0]["function"]["name"], "weather");
    assert_eq!(sent["tools"][1]["function"], output_tool());
    assert_eq!(warnings, ["`metadata` is ignored: this service does not support it"]);

    // Groq's compound systems support only their own tools, so the output tool is not sent.
    let request = Request::prompt("Hallo").with_options(Options::default().with_output(schema()));
    let (sent, warnings) = body(&Endpoint::groq(), "groq/compound", request).await;
    assert_eq!((sent.get("response_format"), sent.get("tools")), (None, None));
    assert_eq!(sent["messages"][0], json!({"role": "system", "content": said_schema()}));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[tokio::test]
async fn usage_in_the_services_own_member_is_counted() {
    let usage = json!({"queue_time": 0.26, "prompt_tokens": 46, "completion_tokens": 17, "total_tokens": 63,
        "completion_tokens_details": {"reasoning_tokens": 5}});
    let reply = chunks(&[
        json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "openai/gpt-oss-120b", "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null, "finish_reason": null}],
            "x_groq": {"id": "req_1", "seed": 19}}),
        json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"reasoning": "Hm.", "channel": "analysis"},
            "logprobs": null, "finish_reason": null}]}),
        json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Ja."}, "finish_reason": null}]}),
        json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
            "x_groq": {"id": "req_1", "usage": usage}}),
    ]);
    let (_, answer) =
        exchange(&Endpoint::groq(), "openai/gpt-oss-120b", Request::prompt("Hallo"), reply).await;
    let answer = answer.unwrap();
    assert!(matches!(&answer.message.content[0], Content::Thinking(thinking) if thinking.text == "Hm."));
    assert_eq!(answer.message.text(), "Ja.");
    let mut usage = answer.usage;
    usage.cost = None;
    assert_eq!(usage, Usage::default().with_input(46).with_output(17).with_reasoning(5));
}

#[tokio::test]
async fn error_in_the_services_own_member_ends_the_answer() {
    let reply = chunks(&[
        json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {"content": "Ja"}, "finish_reason": null}]}),
        json!({"id": "chatcmpl-1", "choices": [], "x_groq": {"id": "req_1", "error": "over capacity, try later"}}),
    ]);
    let (_, answer) = exchange(&Endpoint::groq(), "m", Request::prompt("Hallo"), reply).await;
    let error = answer.unwrap_err();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{error}");
    assert!(error.message.contains("over capacity"), "{error}");
}

/// The error arrives with status 400, or as an event before the first content.
#[tokio::test]
async fn unreadable_call_is_a_slip_of_the_model_and_is_requested_again() {
    let failed = json!({"error": {"message": "Failed to call a function. Please adjust your prompt.",
        "type": "invalid_request_error", "code": "tool_use_failed", "failed_generation": "<function=place"}});
    let answer = || {
        chunks(&[
            json!({"id": "1", "choices": [{"index": 0, "delta": {"content": "Ja."}, "finish_reason": "stop"}]}),
        ])
    };
    for failing in [Reply::json(400, &failed.to_string()), chunks(std::slice::from_ref(&failed))] {
        let server = Server::start([failing, answer()]).await;
        let model = model(&Endpoint::groq(), "m", &server);
        assert_eq!(model.generate(Request::prompt("Hallo")).await.unwrap().message.text(), "Ja.");
        assert_eq!(server.received().len(), 2);
    }
}

#[tokio::test]
async fn file_that_is_not_an_image_is_rejected_before_sending() {
    let model = omni_agent::provider::Model::new(
        std::sync::Arc::new(Endpoint::groq().with_base_url("http://127.0.0.1:1").with_key("k")),
        "m",
    );
    for file in [Attachment::base64("application/pdf", "AAAA"), Attachment::base64("audio/wav", "AAAA")] {
        let request = Request::prompt(vec![Content::from(file)]);
        assert_eq!(model.generate(request).await.unwrap_err().kind, ProviderErrorKind::Unsupported);
    }
}

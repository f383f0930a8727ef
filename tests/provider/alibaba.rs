//! Requests to Alibaba and answers from Alibaba.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, Thinking, Usage},
    provider::{
        CacheHint, Effort, Options, Request, ThinkingMode, ToolChoice,
        http::{AlibabaRegion, Endpoint},
    },
};
use serde_json::{Value, json};

use crate::{
    anthropic::tools,
    endpoints::{body, chunks, exchange, output_tool, said, said_schema, said_tool, schema},
};

#[test]
fn endpoints_of_regions_have_their_addresses() {
    for (region, host) in [
        (AlibabaRegion::International, "dashscope-intl"),
        (AlibabaRegion::UnitedStates, "dashscope-us"),
        (AlibabaRegion::China, "dashscope"),
        (AlibabaRegion::HongKong, "cn-hongkong.dashscope"),
    ] {
        assert_eq!(
            Endpoint::alibaba_in(region).base_url(),
            format!("https://{host}.aliyuncs.com/compatible-mode")
        );
    }
}

#[tokio::test]
async fn thinking_is_sent_as_a_switch_and_a_budget() {
    let on = |budget: u32| json!({"enable_thinking": true, "thinking_budget": budget});
    let cases: [(&str, ThinkingMode, Value, usize); 9] = [
        ("qwen-plus", Effort::Low.into(), on(4096), 0),
        ("qwen3-max", Effort::Max.into(), on(32_768), 0),
        ("qwen-plus", ThinkingMode::Budget(2000), on(2000), 0),
        ("qwen-plus", ThinkingMode::Off, json!({"enable_thinking": false}), 0),
        ("qwen-plus", ThinkingMode::Budget(0), json!({"enable_thinking": false}), 0),
        ("qwq-plus", Effort::Low.into(), json!({"thinking_budget": 4096}), 0),
        ("qwen3-235b-a22b-thinking-2507", ThinkingMode::Off, json!({}), 1),
        ("deepseek-r1", ThinkingMode::Budget(0), json!({}), 1),
        ("qwen3-coder-plus", Effort::Low.into(), json!({}), 1),
    ];
    for (model, mode, expected, warned) in cases {
        let (said, warnings) =
            said(&Endpoint::alibaba(), model, Options::default().with_thinking(mode)).await;
        assert_eq!((said, warnings.len()), (expected, warned), "{model} {mode:?}: {warnings:?}");
    }
}

#[tokio::test]
async fn reasoning_is_sent_back_to_models_that_keep_it() {
    let mut said = Message::assistant([Content::from(Thinking::new("Rain?")), "Ja.".into()]);
    said.provider_data.insert("chat_completions".to_owned(), json!({"id": "1"}));
    let history = History::from_iter([Message::user("Regen?"), said, Message::user("Und?")]);
    for (model, kept) in [
        ("qwen3.6-plus", true),
        ("qwen3.6-plus-2026-04-02", true),
        ("qwen3.7-plus", true),
        ("qwen3.7-max", true),
        ("qwen3.5-plus", false),
        ("qwen3-max", false),
        ("qwen3.6-flash", false),
    ] {
        let (sent, warnings) = body(&Endpoint::alibaba(), model, Request::new(history.clone())).await;
        assert_eq!(sent.get("preserve_thinking"), kept.then_some(&json!(true)), "{model}");
        let reasoning = json!("Rain?");
        assert_eq!(sent["messages"][1].get("reasoning_content"), kept.then_some(&reasoning), "{model}");
        assert!(warnings.is_empty(), "{model}: {warnings:?}");
    }
    // The models are otherwise treated as before.
    let off = Options::default().with_thinking(ThinkingMode::Off);
    let (sent, _) = crate::endpoints::said(&Endpoint::alibaba(), "qwen3.7-max", off).await;
    assert_eq!(sent, json!({"enable_thinking": false, "preserve_thinking": true}));
}

#[tokio::test]
async fn output_schema_is_a_json_object_or_a_tool_if_the_model_thinks() {
    let (off, low) = (Some(ThinkingMode::Off), Some(Effort::Low.into()));
    for (model, thinking, thinks) in [
        ("qwen-plus", None, false),
        ("qwen-plus", off, false),
        ("qwen-plus", low, true),
        ("qwq-plus", None, true),
        ("qwen3-max", None, false),
        ("qwen3-vl-plus", None, false),
        ("qwen3-32b", None, true),
        ("qwen3-235b-a22b-instruct-2507", None, false),
        ("qwen3.6-plus", None, true),
        ("qwen3.6-plus", off, false),
    ] {
        let mut options = Options::default().with_output(schema());
        options.set_thinking(thinking);
        let request = Request::prompt("Hallo").with_options(options);
        let (sent, warnings) = body(&Endpoint::alibaba(), model, request).await;
        let said = if thinks { said_tool().to_owned() } else { said_schema() };
        assert_eq!(sent["messages"][0], json!({"role": "system", "content": said}), "{model}");
        let (format, tools) = if thinks {
            (None, Some(json!([{"type": "function", "function": output_tool()}])))
        } else {
            (Some(json!({"type": "json_object"})), None)
        };
        assert_eq!(
            (sent.get("response_format"), sent.get("tools")),
            (format.as_ref(), tools.as_ref()),
            "{model}"
        );
        assert_eq!(sent.get("tool_choice"), None, "no tool can be forced while it thinks");
        assert_eq!(warnings, Vec::<String>::new());
    }
}

#[tokio::test]
async fn output_schema_of_a_model_without_tools_is_in_the_system_prompt_only() {
    for model in ["qvq-max", "deepseek-r1"] {
        let request = Request::prompt("Hallo").with_options(Options::default().with_output(schema()));
        let (sent, warnings) = body(&Endpoint::alibaba(), model, request).await;
        assert_eq!(sent["messages"][0], json!({"role": "system", "content": said_schema()}));
        assert_eq!((sent.get("response_format"), sent.get("tools"), warnings.len()), (None, None, 1));
    }
}

#[tokio::test]
async fn tool_choice_that_forces_a_tool_becomes_auto_if_the_model_thinks() {
    for (thinking, said, warned) in [(ThinkingMode::Off, "required", 0), (Effort::Low.into(), "auto", 1)] {
        let options = Options::default().with_tool_choice(ToolChoice::Required).with_thinking(thinking);
        let request = Request::prompt("Hallo").with_options(options);
        let request = request.with_tools(tools(&[("look", "Looks.", json!({"type": "object"}))]));
        let (sent, warnings) = body(&Endpoint::alibaba(), "qwen-plus", request).await;
        assert_eq!((&sent["tool_choice"], warnings.len()), (&json!(said), warned), "{warnings:?}");
    }
}

#[tokio::test]
async fn request_with_everything_sends_what_the_service_accepts() {
    let options = Options::default()
        .with_max_tokens(100)
        .with_temperature(0.5)
        .with_top_p(0.9)
        .with_stop_sequences(["END"])
        .with_cache(CacheHint::Long)
        .with_metadata([("user", "u-1")])
        .with_thinking(Effort::Medium);
    let request = Request::prompt("Hallo").with_options(options);
    let (sent, warnings) = body(&Endpoint::alibaba(), "qwen-plus", request).await;
    assert_eq!(
        sent,
        json!({
            "model": "qwen-plus",
            "messages": [{"role": "user", "content": "Hallo"}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 100,
            "temperature": 0.5,
            "top_p": 0.9,
            "stop": ["END"],
            "enable_thinking": true,
            "thinking_budget": 16_384,
        })
    );
    // There is one warning for the cache hint and one for the metadata.
    assert_eq!(warnings.len(), 2, "{warnings:?}");
}

#[tokio::test]
async fn answer_with_thinking_is_decoded() {
    let piece = |delta: Value, finish: Value| {
        json!({"choices": [{"delta": delta, "finish_reason": finish, "index": 0, "logprobs": null}],
            "object": "chat.completion.chunk", "usage": null, "created": 1, "system_fingerprint": null,
            "model": "qwen-plus", "id": "chatcmpl-1"})
    };
    let reply = chunks(&[
        piece(json!({"content": null, "role": "assistant", "reasoning_content": ""}), Value::Null),
        piece(json!({"content": null, "reasoning_content": "Hm."}), Value::Null),
        piece(json!({"content": "Ja.", "reasoning_content": null}), Value::Null),
        piece(json!({"content": "", "reasoning_content": null}), json!("stop")),
        json!({"choices": [], "object": "chat.completion.chunk", "usage": {"prompt_tokens": 10,
            "completion_tokens": 7, "total_tokens": 17, "completion_tokens_details": {"reasoning_tokens": 5},
            "prompt_tokens_details": {"cached_tokens": 3}}, "created": 1, "model": "qwen-plus", "id": "chatcmpl-1"}),
    ]);
    let (_, answer) = exchange(&Endpoint::alibaba(), "qwen-plus", Request::prompt("Hallo"), reply).await;
    let answer = answer.unwrap();
    assert!(matches!(&answer.message.content[0], Content::Thinking(thinking) if thinking.text == "Hm."));
    assert_eq!(answer.message.text(), "Ja.");
    assert_eq!(
        answer.usage,
        Usage::default().with_input(7).with_cache_read(3).with_output(7).with_reasoning(5)
    );
}

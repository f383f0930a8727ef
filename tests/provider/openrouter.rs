//! Requests to OpenRouter and answers from OpenRouter.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use futures_util::StreamExt;
use omni_agent::{
    message::{Content, History, Message, ProviderItem, Timestamp, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, Options, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        http::{Endpoint, OpenRouter, RoutingSort},
    },
    testing::internals::Fold,
};
use serde_json::{Value, json};

use crate::{
    anthropic::tools,
    endpoints::{body, chunks, exchange, model, said},
    server::{Reply, Server},
    services::CHAT,
};

const CLAUDE: &str = "anthropic/claude-sonnet-4.6";

/// Claude's reasoning as OpenRouter streams it. The stream contains comments while the service waits. The signature is
/// in a separate piece, and the usage is in an event whose choice is empty.
const THINKING: &str = concat!(
    ": OPENROUTER PROCESSING\n\n",
    r#"data: {"id":"gen-1","provider":"Anthropic","model":"anthropic/claude-sonnet-4.6","object":"chat.completion.chunk","#,
    r#""created":1771689409,"choices":[{"index":0,"delta":{"role":"assistant","content":"","reasoning":"Let ","#,
    r#""reasoning_details":[{"type":"reasoning.text","text":"Let ","format":"anthropic-claude-v1","index":0}]},"#,
    r#""finish_reason":null,"native_finish_reason":null,"logprobs":null}]}"#,
    "\n\n: OPENROUTER PROCESSING\n\n",
    r#"data: {"id":"gen-1","model":"anthropic/claude-sonnet-4.6","choices":[{"index":0,"delta":{"content":"","#,
    r#""reasoning":"me see.","reasoning_details":[{"type":"reasoning.text","text":"me see.","#,
    r#""format":"anthropic-claude-v1","index":0}]},"finish_reason":null}]}"#,
    "\n\n",
    r#"data: {"id":"gen-1","choices":[{"index":0,"delta":{"content":"","reasoning_details":[{"type":"reasoning.text","#,
    r#""signature":"EqQBCg==","format":"anthropic-claude-v1","index":0},{"type":"reasoning.encrypted","#,
    r#""data":"gAAAAB","id":"rs_1","format":"openai-responses-v1","index":1}]},"finish_reason":null}]}"#,
    "\n\n",
    r#"data: {"id":"gen-1","choices":[{"index":0,"delta":{"content":"Grüß dich"},"finish_reason":null}]}"#,
    "\n\n",
    r#"data: {"id":"gen-1","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop","native_finish_reason":"end_turn"}]}"#,
    "\n\n",
    r#"data: {"id":"gen-1","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"#,
    r#""usage":{"prompt_tokens":18,"completion_tokens":19,"total_tokens":37,"cost":0.000013959,"is_byok":false,"#,
    r#""prompt_tokens_details":{"cached_tokens":4},"cost_details":{"upstream_inference_cost":0.0000141},"#,
    r#""completion_tokens_details":{"reasoning_tokens":7}}}"#,
    "\n\ndata: [DONE]\n\n",
);

#[tokio::test]
async fn settings_are_sent_in_the_body_and_the_headers() {
    let settings = OpenRouter::default()
        .with_order(["anthropic", "google-vertex"])
        .with_only(["anthropic"])
        .with_ignored(["azure"])
        .with_fallbacks(false)
        .with_required_parameters(true)
        .with_data_collection(false)
        .with_zero_data_retention(true)
        .with_quantizations(["fp8"])
        .with_sort(RoutingSort::Throughput)
        .with_max_price(1.0, 2.5)
        .with_fallback_models(["openai/gpt-5.2"])
        .with_route("fallback")
        .with_transforms(["middle-out"])
        .with_app("https://example.com", "My application");
    let endpoint = Endpoint::openrouter_with(settings);
    let reply = Reply::sse().piece(CHAT);
    let (received, _) = exchange(&endpoint, CLAUDE, Request::prompt("Hallo"), reply).await;
    assert_eq!(
        received.json(),
        json!({
            "model": CLAUDE,
            "messages": [{"role": "user", "content": "Hallo"}],
            "stream": true,
            "stream_options": {"include_usage": true},
            "provider": {
                "order": ["anthropic", "google-vertex"],
                "only": ["anthropic"],
                "ignore": ["azure"],
                "allow_fallbacks": false,
                "require_parameters": true,
                "data_collection": "deny",
                "zdr": true,
                "quantizations": ["fp8"],
                "sort": "throughput",
                "max_price": {"prompt": 1.0, "completion": 2.5},
            },
            "models": ["openai/gpt-5.2"],
            "route": "fallback",
            "transforms": ["middle-out"],
        })
    );
    assert_eq!(received.header("http-referer"), Some("https://example.com"));
    assert_eq!(received.header("x-title"), Some("My application"));
}

#[tokio::test]
async fn application_name_is_shown_in_errors_and_must_be_a_valid_header() {
    let named =
        |title: &str| Endpoint::openrouter_with(OpenRouter::default().with_app("https://example.com", title));
    let refused = || Reply::json(400, r#"{"error":{"code":400,"message":"this application is blocked"}}"#);
    let (_, answer) = exchange(&named("My application"), CLAUDE, Request::prompt("Hallo"), refused()).await;
    assert_eq!(answer.unwrap_err().message, "this application is blocked");

    let server = Server::start([refused()]).await;
    let error = model(&named("My\napplication"), CLAUDE, &server).generate(Request::prompt("Hallo")).await;
    let error = error.unwrap_err();
    assert!(error.kind == ProviderErrorKind::InvalidRequest && error.message.contains("x-title"), "{error}");
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn extra_options_of_a_request_override_settings() {
    let settings =
        OpenRouter::default().with_only(["anthropic"]).with_sort(RoutingSort::Price).with_transforms([""; 0]);
    let options = Options::default().with_extra([("provider", json!({"only": ["azure"]}))]);
    let (body, _) = said(&Endpoint::openrouter_with(settings), CLAUDE, options).await;
    assert_eq!(body, json!({"provider": {"only": ["azure"], "sort": "price"}, "transforms": []}));
}

#[tokio::test]
async fn thinking_is_an_effort_a_budget_or_off() {
    for (mode, expected) in [
        (Effort::Minimal.into(), json!({"effort": "minimal"})),
        (Effort::High.into(), json!({"effort": "high"})),
        (Effort::Max.into(), json!({"effort": "xhigh"})),
        (ThinkingMode::Budget(2000), json!({"max_tokens": 2000})),
        (ThinkingMode::Budget(0), json!({"enabled": false})),
        (ThinkingMode::Off, json!({"enabled": false})),
    ] {
        // OpenRouter itself adapts the setting to each model, so every model gets the same setting.
        for model in [CLAUDE, "openai/gpt-5-pro", "openai/gpt-4o"] {
            let said = said(&Endpoint::openrouter(), model, Options::default().with_thinking(mode)).await;
            assert_eq!(said, (json!({"reasoning": expected}), Vec::new()));
        }
    }
}

#[tokio::test]
async fn thinking_with_a_forced_tool_is_reported_if_the_model_drops_it() {
    let weather = || tools(&[("weather", "Tells the weather.", json!({"type": "object"}))]);
    let asked = |model: &'static str, mode: ThinkingMode, choice: ToolChoice| async move {
        let options = Options::default().with_thinking(mode).with_tool_choice(choice);
        let request = Request::prompt("Hallo").with_tools(weather()).with_options(options);
        let (body, warnings) = body(&Endpoint::openrouter(), model, request).await;
        (body["tool_choice"].clone(), body["reasoning"].clone(), warnings)
    };
    let required = || ToolChoice::Required;
    let (choice, reasoning, warnings) = asked(CLAUDE, Effort::High.into(), required()).await;
    assert_eq!((choice, reasoning), (json!("required"), json!({"effort": "high"})));
    assert_eq!(
        warnings,
        ["`thinking` has no effect: at this service, Anthropic's models do not think while a tool is forced"]
    );
    for (model, mode, choice) in [
        (CLAUDE, ThinkingMode::Off, required()),
        (CLAUDE, Effort::High.into(), ToolChoice::Auto),
        ("google/gemini-2.5-flash", Effort::High.into(), required()),
    ] {
        assert_eq!(asked(model, mode, choice).await.2, Vec::<String>::new(), "{model}");
    }
}

#[tokio::test]
async fn reasoning_of_an_interrupted_answer_is_sent_back_with_its_calls() {
    let piece =
        |delta: Value| json!({"id": "gen-1", "model": CLAUDE, "choices": [{"index": 0, "delta": delta}]});
    let detail = |entry: Value| piece(json!({"content": "", "reasoning_details": [entry]}));
    let call = |id: &str, arguments: &str| {
        piece(json!({"tool_calls": [{"index": 0, "id": id, "type": "function",
            "function": {"name": "weather", "arguments": arguments}}]}))
    };
    let signed = json!({"type": "reasoning.text", "index": 0, "signature": "sig"});
    let chunks = [
        detail(json!({"type": "reasoning.text", "index": 0, "text": "Rain?"})),
        detail(signed.clone()),
        call("call_1", "{\"city\":"),
        call("", "\"Oslo\"}"),
        // These two pieces arrive late: a further member of an entry that has already been returned, and a new entry.
        detail(json!({"type": "reasoning.text", "index": 0, "format": "f"})),
        detail(json!({"type": "reasoning.encrypted", "index": 1, "data": "xx"})),
        piece(json!({"content": "and"})),
    ];
    let events: Vec<String> = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
    let server = Server::start([Reply::sse().piece(events.concat())]).await;
    let request = Request::prompt("Wetter?").with_options(Options::default().with_max_retries(0));
    let mut stream = model(&Endpoint::openrouter(), CLAUDE, &server).stream(request);
    let mut fold = Fold::default();
    while let Some(Ok(delta)) = stream.next().await {
        fold.apply(delta).unwrap();
    }
    let message = fold.salvage(Timestamp::default()).unwrap();
    let result = ToolResult::ok(message.tool_uses().next().unwrap(), "rain");
    let history = [Message::user("Wetter?"), message, Message::user(Content::from(result))];
    let (body, _) = body(&Endpoint::openrouter(), CLAUDE, Request::new(History::from_iter(history))).await;
    assert_eq!(
        body["messages"][1],
        json!({"role": "assistant", "content": "and", "tool_calls": [{"id": "call_1", "type": "function",
            "function": {"name": "weather", "arguments": "{\"city\":\"Oslo\"}"}}],
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "Rain?", "signature": "sig", "format": "f"},
            {"type": "reasoning.encrypted", "index": 1, "data": "xx"},
        ]})
    );
}

#[tokio::test]
async fn reasoning_is_sent_back_unchanged_with_its_message() {
    let endpoint = Endpoint::openrouter();
    let reply = Reply::sse().pieces(THINKING.as_bytes(), 7);
    let (_, answer) = exchange(&endpoint, CLAUDE, Request::prompt("Hallo"), reply).await;
    let answer = answer.unwrap();
    let thinking = answer.message.content.iter().find_map(|block| match block {
        Content::Thinking(thinking) => Some(thinking.text.as_str()),
        _ => None,
    });
    assert_eq!((thinking, &*answer.message.text()), (Some("Let me see."), "Grüß dich"));
    let usage = answer.usage;
    assert_eq!((usage.input, usage.cache_read, usage.output, usage.reasoning), (14, 4, 19, 7));
    assert_eq!(usage.cost, Some(0.000_013_959));

    let history = History::from_iter([Message::user("Hallo"), answer.message, Message::user("Und?")]);
    let (body, _) = body(&endpoint, CLAUDE, Request::new(history.clone())).await;
    assert_eq!(
        body["messages"],
        json!([
            {"role": "user", "content": "Hallo"},
            {"role": "assistant", "content": "Grüß dich", "reasoning_details": [
                {"type": "reasoning.text", "text": "Let me see.", "format": "anthropic-claude-v1", "index": 0,
                    "signature": "EqQBCg=="},
                {"type": "reasoning.encrypted", "data": "gAAAAB", "id": "rs_1", "format": "openai-responses-v1",
                    "index": 1},
            ]},
            {"role": "user", "content": "Und?"},
        ])
    );
    // `reasoning_details` is not sent to Groq, which does not know this member.
    let (body, _) = crate::endpoints::body(&Endpoint::groq(), "m", Request::new(history)).await;
    assert_eq!(body["messages"][1], json!({"role": "assistant", "content": "Grüß dich"}));
}

#[tokio::test]
async fn call_without_reasoning_is_sent_back_to_deepseek_with_an_empty_list() {
    let call = ToolUse::new("a", "weather", json!({}));
    let result = Content::from(ToolResult::ok(&call, "rain"));
    let mut asked = Message::assistant([Content::from(call.clone())]);
    asked.provider_data.insert("chat_completions".to_owned(), json!({"id": "1"}));
    let mut reasoned = asked.clone();
    let entry = json!({"type": "reasoning.text", "text": "Oslo?"});
    reasoned
        .content
        .push(ProviderItem::new("chat_completions", json!({"reasoning_details": [entry]})).into());
    let history = |asked: &Message| {
        Request::new(History::from_iter([
            Message::user("Wetter?"),
            asked.clone(),
            Message::user([result.clone()]),
        ]))
    };
    for (model, message, details) in [
        ("deepseek/deepseek-v4-pro", &asked, Some(json!([]))),
        ("deepseek/deepseek-v4-flash", &reasoned, Some(json!([entry]))),
        (CLAUDE, &asked, None),
        (CLAUDE, &reasoned, Some(json!([entry]))),
    ] {
        let (sent, _) = body(&Endpoint::openrouter(), model, history(message)).await;
        assert_eq!(sent["messages"][1].get("reasoning_details"), details.as_ref(), "{model}");
    }
    // If the request has tools, an answer without calls needs the list too.
    let text =
        History::from_iter([Message::user("Hi"), Message::assistant("Hallo"), Message::user("Wetter?")]);
    let declared = [("weather", "", json!({"type": "object"}))];
    for (declared, details) in [(&declared[..], Some(json!([]))), (&[], None)] {
        let request = Request::new(text.clone()).with_tools(tools(declared));
        let (sent, _) = body(&Endpoint::openrouter(), "deepseek/deepseek-v4-pro", request).await;
        assert_eq!(sent["messages"][1].get("reasoning_details"), details.as_ref());
    }
    // The entries of an answer are kept too.
    let detail = json!({"content": "Ja", "reasoning_details": [entry]});
    let reply = chunks(&[
        json!({"id": "g", "choices": [{"index": 0, "delta": detail}]}),
        json!({"id": "g", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
    ]);
    let (_, answer) =
        exchange(&Endpoint::openrouter(), "deepseek/deepseek-v4-pro", history(&asked), reply).await;
    let kept = answer.unwrap().message.content.iter().any(|block| matches!(block, Content::ProviderItem(_)));
    assert!(kept);
}

#[tokio::test]
async fn error_inside_a_started_answer_is_an_error() {
    let failed = concat!(
        r#"data: {"id":"gen-1","object":"chat.completion.chunk","model":"m","provider":"OpenAI","error":{"code":502,"#,
        r#""message":"Provider returned error","metadata":{"provider_name":"OpenAI","raw":"upstream went away"}},"#,
        r#""choices":[{"index":0,"delta":{"content":""},"finish_reason":"error","native_finish_reason":null}]}"#,
        "\n\n",
    );
    let begun = &CHAT
        [..CHAT.find(r#"data: {"id":"c1","model":"gpt-test","choices":[{"index":0,"delta":{},"#).unwrap()];
    let silent = r#"data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"error"}]}"#
        .to_owned()
        + "\n\n";
    for (end, says) in [(failed, "upstream went away"), (&*silent, "an unspecified error")] {
        let reply = Reply::sse().piece(format!("{begun}{end}data: [DONE]\n\n"));
        let (_, answer) = exchange(&Endpoint::openrouter(), CLAUDE, Request::prompt("Hallo"), reply).await;
        let error = answer.unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{error}");
        assert!(error.message.contains(says), "{error}");
    }
}

#[tokio::test]
async fn cache_hint_marks_cached_content_for_models_of_anthropic() {
    let request = |hint| {
        let history = [Message::user("Hallo"), Message::assistant("Ja?"), Message::user("Und?")];
        Request::new(History::from_iter(history))
            .with_system("Be brief.")
            .with_options(Options::default().with_cache(hint))
    };
    let text =
        |text: &str, control: &Value| json!([{"type": "text", "text": text, "cache_control": control}]);
    for (hint, control) in [
        (CacheHint::Short, json!({"type": "ephemeral"})),
        (CacheHint::Long, json!({"type": "ephemeral", "ttl": "1h"})),
    ] {
        let (body, warnings) = body(&Endpoint::openrouter(), CLAUDE, request(hint)).await;
        assert_eq!(
            body["messages"],
            json!([
                {"role": "system", "content": text("Be brief.", &control)},
                {"role": "user", "content": "Hallo"},
                {"role": "assistant", "content": "Ja?"},
                {"role": "user", "content": text("Und?", &control)},
            ])
        );
        assert!(warnings.is_empty());
    }
    let (body, warnings) = body(&Endpoint::openrouter(), "openai/gpt-5.2", request(CacheHint::Long)).await;
    assert!(!body.to_string().contains("cache_control"));
    assert_eq!(warnings.len(), 1, "{warnings:?}");
}

#[tokio::test]
async fn history_of_a_mistral_model_separates_results_from_user_messages() {
    let call = ToolUse::new("call_1", "add", json!({}));
    let history = History::from_iter([
        Message::user("Hi"),
        Message::assistant(Content::from(call.clone())),
        Message::user(vec![Content::from(ToolResult::ok(&call, "3")), "Go on.".into()]),
    ]);
    for (model, expected) in [("mistralai/mistral-large-2512", 5), ("openai/gpt-5.4", 4)] {
        let (body, _) = body(&Endpoint::openrouter(), model, Request::new(history.clone())).await;
        assert_eq!(body["messages"].as_array().unwrap().len(), expected, "{body}");
    }
}

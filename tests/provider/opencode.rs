//! OpenCode Zen: one service with several formats.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{History, Message},
    provider::{
        ProviderErrorKind, Request,
        custom::{AnthropicMessages, OpenAiResponses},
        http::{Auth, Endpoint},
    },
};

use crate::{
    endpoints::{exchange, model},
    server::{Reply, Server},
    services::{CHAT, GEMINI, KEY, MESSAGES, RESPONSES},
};

const MODELS: [(&str, &str, &str); 4] = [
    ("claude-sonnet-4-6", MESSAGES, "anthropic_messages"),
    ("gpt-5.2", RESPONSES, "openai_responses"),
    ("gemini-3-flash", GEMINI, "google_gemini"),
    ("kimi-k2.5", CHAT, "chat_completions"),
];

#[tokio::test]
async fn model_is_requested_at_the_path_of_its_format() {
    let path = |model: &str| {
        let mut request = Request::prompt("Hallo");
        request.model = model.into();
        let url = Endpoint::opencode().preview(&request).unwrap().0;
        url.strip_prefix("https://opencode.ai/zen/v1/").unwrap().to_owned()
    };
    for (models, expected) in [
        (&["gpt-5.6-sol", "gpt-6-astra", "grok-4.5", "grok-4.7", "grok-build-0.1"][..], "responses"),
        (&["muse-spark-1.3", "muse-spark-1.2-contributor-free"], "responses"),
        (
            &["claude-opus-5-5", "qwen3.5-plus", "qwen3.6-plus-free", "qwen3.7-max", "qwen3.8-flash"],
            "messages",
        ),
        (&["qwen3-coder", "grok-code", "kimi-k3", "glm-5.3", "minimax-m3", "big-pickle"], "chat/completions"),
    ] {
        for model in models {
            assert_eq!(path(model), expected, "{model}");
        }
    }
}

#[tokio::test]
async fn rejected_model_or_missing_credit_is_not_an_auth_error() {
    for (kind, message, expected) in [
        ("ModelError", "Model m is not supported for format oa-compat", ProviderErrorKind::InvalidRequest),
        ("CreditsError", "No payment method. Add one here", ProviderErrorKind::Quota),
        (
            "MonthlyLimitError",
            "Your workspace has reached its monthly spending limit",
            ProviderErrorKind::Quota,
        ),
        ("UserLimitError", "You have reached your monthly spending limit", ProviderErrorKind::Quota),
        ("AuthError", "Missing API key.", ProviderErrorKind::Auth),
    ] {
        let body = format!(r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}}}}"#);
        for (model, ..) in MODELS {
            let reply = Reply::json(401, &body);
            let (_, answer) = exchange(&Endpoint::opencode(), model, Request::prompt("Hallo"), reply).await;
            let error = answer.unwrap_err();
            assert_eq!((error.kind, error.retryable), (expected, false), "{error}");
        }
    }
}

#[tokio::test]
async fn answer_is_read_and_kept_in_the_format_of_its_model() {
    for (model, answer, format) in MODELS {
        let reply = Reply::sse().piece(answer);
        let (_, answered) = exchange(&Endpoint::opencode(), model, Request::prompt("Hallo"), reply).await;
        let message = answered.unwrap().message;
        assert_eq!(message.text(), "Grüß dich");
        assert!(message.is_native_to(format));
        assert_eq!(message.provider_data["service"], "opencode");
    }
}

#[tokio::test]
async fn conversation_continues_in_the_format_of_each_model() {
    let server = Server::start(MODELS.map(|(_, answer, _)| Reply::sse().piece(answer))).await;
    let mut history = History::default();
    for (id, ..) in MODELS {
        history.push(Message::user("Hallo"));
        let answer = model(&Endpoint::opencode(), id, &server).generate(Request::new(history.clone())).await;
        history.push(answer.unwrap().message);
    }
    let bodies: Vec<_> = server.received().iter().map(crate::server::Received::json).collect();
    let lengths =
        [&bodies[0]["messages"], &bodies[1]["input"], &bodies[2]["contents"], &bodies[3]["messages"]];
    assert_eq!(lengths.map(|list| list.as_array().unwrap().len()), [1, 3, 5, 7]);
}

#[tokio::test]
async fn rejected_key_is_an_auth_error_in_each_format() {
    // In all formats, the service sends errors in this envelope.
    let body =
        format!(r#"{{"type":"error","error":{{"type":"AuthError","message":"Invalid API key: {KEY}"}}}}"#);
    for (model, ..) in MODELS {
        let reply = Reply::json(401, &body);
        let (_, answer) = exchange(&Endpoint::opencode(), model, Request::prompt("Hallo"), reply).await;
        let error = answer.unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Auth, false), "{error}");
        assert!(!format!("{error:#?}").contains(KEY));
    }
}

#[tokio::test]
async fn formats_are_tried_in_order_and_shown_in_debug() {
    let header = || Auth::Header("x-key".to_owned());
    let endpoint = Endpoint::openai_compatible("mine", "http://localhost")
        .with_dialect_for(|model| model.starts_with('a'), AnthropicMessages::default(), header())
        .with_dialect_for(|model| model.len() == 2, OpenAiResponses::default(), Auth::None);
    for (model, line, header) in [
        ("ab", "POST /v1/messages", Some("x-key")),
        ("bc", "POST /v1/responses", None),
        ("bcd", "POST /v1/chat/completions", Some("authorization")),
    ] {
        let server = Server::start([Reply::json(400, "{}")]).await;
        let request = Request::prompt("Hallo");
        self::model(&endpoint, model, &server).generate(request).await.unwrap_err();
        let received = server.received().remove(0);
        assert_eq!(received.line, line);
        let keys = ["x-key", "authorization"].into_iter().filter(|name| received.header(name).is_some());
        assert_eq!(keys.collect::<Vec<_>>(), header.into_iter().collect::<Vec<_>>());
    }
    let shown = format!("{endpoint:?}");
    assert!(
        ["chat_completions", "anthropic_messages", "openai_responses"]
            .iter()
            .all(|name| shown.contains(name))
    );
}

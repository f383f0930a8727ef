//! The endpoints of known services, tested over a socket and each with its wire format.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{sync::Arc, time::Duration};

use futures_util::StreamExt;
use omni_agent::{
    provider::{
        Model, Options, Provider, ProviderError, ProviderErrorKind, Registry, Request, StopReason,
        custom::{AnthropicMessages, ChatCompletions, Delta, Dialect, OpenAiResponses, Part},
        http::Endpoint,
    },
    testing::decode,
};

use crate::server::{Reply, Server};

pub(crate) const KEY: &str = "sk-test-topsecret-0123456789";

pub(crate) const MESSAGES: &str = concat!(
    "event: message_start\n",
    r#"data: {"type":"message_start","message":{"id":"msg_1","type":"message","role":"assistant","content":[],"#,
    r#""model":"claude-test","stop_reason":null,"usage":{"input_tokens":3,"output_tokens":1}}}"#,
    "\n\nevent: content_block_start\n",
    r#"data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
    "\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nevent: content_block_delta\n",
    r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Grüß"}}"#,
    "\n\nevent: content_block_delta\n",
    r#"data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":" dich"}}"#,
    "\n\nevent: content_block_stop\n",
    r#"data: {"type":"content_block_stop","index":0}"#,
    "\n\nevent: message_delta\n",
    r#"data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}"#,
    "\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
);

pub(crate) const CHAT: &str = concat!(
    r#"data: {"id":"c1","object":"chat.completion.chunk","model":"gpt-test","choices":[{"index":0,"#,
    r#""delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
    "\n\n",
    r#"data: {"id":"c1","model":"gpt-test","choices":[{"index":0,"delta":{"content":"Grüß"}}]}"#,
    "\n\n",
    r#"data: {"id":"c1","model":"gpt-test","choices":[{"index":0,"delta":{"content":" dich"}}]}"#,
    "\n\n",
    r#"data: {"id":"c1","model":"gpt-test","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#,
    "\n\n",
    r#"data: {"id":"c1","model":"gpt-test","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#,
    "\n\ndata: [DONE]\n\n",
);

pub(crate) const RESPONSES: &str = concat!(
    "event: response.created\n",
    r#"data: {"type":"response.created","response":{"id":"resp_1","status":"in_progress","model":"gpt-test"}}"#,
    "\n\nevent: response.output_item.added\n",
    r#"data: {"type":"response.output_item.added","output_index":0,"item":{"id":"msg_1","type":"message","content":[]}}"#,
    "\n\nevent: response.output_text.delta\n",
    r#"data: {"type":"response.output_text.delta","output_index":0,"item_id":"msg_1","content_index":0,"delta":"Grüß"}"#,
    "\n\nevent: response.output_text.delta\n",
    r#"data: {"type":"response.output_text.delta","output_index":0,"item_id":"msg_1","content_index":0,"delta":" dich"}"#,
    "\n\nevent: response.completed\n",
    r#"data: {"type":"response.completed","response":{"id":"resp_1","status":"completed","model":"gpt-test","output":["#,
    r#"{"id":"msg_1","type":"message","content":[{"type":"output_text","text":"Grüß dich"}]}],"#,
    r#""usage":{"input_tokens":3,"output_tokens":5}}}"#,
    "\n\n",
);

pub(crate) const OLLAMA: &str = concat!(
    r#"{"model":"llama","created_at":"2026-03-03T13:20:11Z","message":{"role":"assistant","content":"Grüß"},"done":false}"#,
    "\n",
    r#"{"model":"llama","created_at":"2026-03-03T13:20:11Z","message":{"role":"assistant","content":" dich"},"done":false}"#,
    "\n",
    r#"{"model":"llama","created_at":"2026-03-03T13:20:12Z","message":{"role":"assistant","content":""},"done":true,"#,
    r#""done_reason":"stop","prompt_eval_count":3,"eval_count":5}"#,
    "\n",
);

pub(crate) const GEMINI: &str = concat!(
    r#"data: {"candidates":[{"content":{"parts":[{"text":"Grüß"}],"role":"model"},"index":0}],"#,
    r#""usageMetadata":{"promptTokenCount":3},"modelVersion":"gemini-test","responseId":"r1"}"#,
    "\r\n\r\n",
    r#"data: {"candidates":[{"content":{"parts":[{"text":" dich"}],"role":"model"},"index":0}],"#,
    r#""usageMetadata":{"promptTokenCount":3},"modelVersion":"gemini-test","responseId":"r1"}"#,
    "\r\n\r\n",
    r#"data: {"candidates":[{"content":{"parts":[{"text":""}],"role":"model"},"finishReason":"STOP","index":0}],"#,
    r#""usageMetadata":{"promptTokenCount":3,"candidatesTokenCount":5},"modelVersion":"gemini-test"}"#,
    "\r\n\r\n",
);

/// Returns the beginning of a service's reply.
fn reply(endpoint: &Endpoint) -> Reply {
    if endpoint.name() == "ollama" { Reply::ndjson() } else { Reply::sse() }
}

/// Returns the end of an event of a service.
fn event_end(endpoint: &Endpoint) -> &'static str {
    match endpoint.name() {
        "ollama" => "\n",
        "google" => "\r\n\r\n",
        _ => "\n\n",
    }
}

/// Returns the endpoint of each service, a complete answer of the service, and an error that the service may send
/// instead of the rest of an answer.
fn services() -> [(Endpoint, &'static str, &'static str); 5] {
    let overloaded = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
    let failed = r#"{"error":{"message":"Overloaded","type":"server_error","code":503}}"#;
    [
        (Endpoint::anthropic(), MESSAGES, overloaded),
        (Endpoint::openai(), CHAT, failed),
        (Endpoint::openai_responses(), RESPONSES, failed),
        (Endpoint::google(), GEMINI, failed),
        (Endpoint::ollama_at(""), OLLAMA, r#"{"error":"Overloaded"}"#),
    ]
}

pub(crate) fn model(endpoint: Endpoint, server: &Server) -> Model {
    Model::new(Arc::new(endpoint.with_base_url(server.url()).with_key(KEY)), "some-model")
}

fn once() -> Request {
    Request::prompt("Hallo").with_options(Options::default().with_max_retries(0))
}

/// Returns the text that arrived, and the error that followed the text.
async fn broken(endpoint: Endpoint, reply: Reply) -> (String, ProviderError) {
    let server = Server::start([reply]).await;
    let mut stream = model(endpoint, &server).stream(once());
    let mut text = String::new();
    while let Some(item) = stream.next().await {
        match item {
            Ok(Delta::Extend { part: Part::Text(more), .. }) => text += &more,
            Ok(_) => {}
            Err(error) => {
                assert!(stream.next().await.is_none());
                return (text, error);
            }
        }
    }
    panic!("no error after {text:?}");
}

#[tokio::test]
async fn answer_in_any_pieces_is_complete() {
    for (endpoint, body, _) in services() {
        for size in [1, 5, 64, 10_000] {
            let server = Server::start([reply(&endpoint).pieces(body.as_bytes(), size)]).await;
            let answer = model(endpoint.clone(), &server).generate(once()).await.unwrap();
            assert_eq!(answer.message.text(), "Grüß dich");
            assert_eq!((answer.stop_reason, answer.usage.output), (StopReason::Stop, 5));
        }
    }
}

/// Returns the deltas of an answer whose bytes arrive in these pieces.
fn deltas_of(dialect: &dyn Dialect, pieces: &[&[u8]]) -> Vec<Delta> {
    decode(dialect, &Request::default(), pieces.iter().copied()).unwrap()
}

#[test]
fn answer_split_at_any_byte_decodes_the_same() {
    let dialects: [(Box<dyn Dialect>, &str); 3] = [
        (Box::new(AnthropicMessages::default()), MESSAGES),
        (Box::new(ChatCompletions::openai()), CHAT),
        (Box::new(OpenAiResponses::openai()), RESPONSES),
    ];
    for (dialect, body) in dialects {
        let whole = deltas_of(&*dialect, &[body.as_bytes()]);
        assert!(whole.iter().any(Delta::is_content));
        let odd = format!("\u{feff}: comment\n\n{}", body.replace("\n\n", "\n\n: still here\n\n"));
        for body in [body.to_owned(), body.replace('\n', "\r\n"), odd] {
            for at in 0..=body.len() {
                let (begin, end) = body.as_bytes().split_at(at);
                assert_eq!(deltas_of(&*dialect, &[begin, end]), whole, "{} at {at}", dialect.name());
            }
        }
    }
}

#[tokio::test]
async fn answer_interrupted_anywhere_is_truncated() {
    for (endpoint, body, _) in services() {
        let text_ends = body.find(" dich").unwrap();
        for end in (text_ends - 30..text_ends + 60).step_by(7) {
            let (text, error) =
                broken(endpoint.clone(), reply(&endpoint).piece(body.as_bytes()[..end].to_vec())).await;
            assert!("Grüß dich".starts_with(&text));
            assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true), "{end}: {error}");
        }
    }
}

#[tokio::test]
async fn error_inside_the_stream_follows_the_text_before_it() {
    for (endpoint, body, error_event) in services() {
        let begin = body.find("Grüß").unwrap();
        let end = event_end(&endpoint);
        let begin = begin + body[begin..].find(end).unwrap() + end.len();
        let before = match endpoint.name() {
            "ollama" => "",
            "google" => "data: ",
            _ => "event: error\ndata: ",
        };
        let reply = reply(&endpoint).header("x-request-id", "r7");
        let reply = reply.piece(&body[..begin]).piece(format!("{before}{error_event}{end}"));
        let (text, error) = broken(endpoint, reply).await;
        assert_eq!(text, "Grüß");
        assert!(matches!(error.kind, ProviderErrorKind::Overloaded | ProviderErrorKind::Service), "{error}");
        assert!(error.retryable && error.message.contains("Overloaded"));
        assert_eq!(error.request_id.as_deref(), Some("r7"));
    }
}

#[tokio::test]
async fn error_in_place_of_the_stream_is_that_error() {
    for (endpoint, _, error_body) in services() {
        let (_, error) = broken(endpoint, Reply::json(200, error_body)).await;
        assert!(error.retryable && error.message.contains("Overloaded"), "{error}");
    }
}

#[tokio::test]
async fn wrong_key_is_an_auth_error_without_the_key() {
    let body =
        format!(r#"{{"error":{{"type":"authentication_error","message":"invalid x-api-key: {KEY}"}}}}"#);
    for (endpoint, _, _) in services() {
        let (_, error) = broken(endpoint, Reply::json(401, &body)).await;
        assert_eq!((error.kind, error.status, error.retryable), (ProviderErrorKind::Auth, Some(401), false));
        assert!(error.message.contains("invalid x-api-key: [secret]"), "{error}");
        assert!(!format!("{error:#?}").contains("topsecret"));
    }
}

#[tokio::test]
async fn rate_limit_is_waited_for_and_the_request_retried() {
    for (endpoint, body, _) in services() {
        let limited = Reply::json(429, r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#)
            .header("retry-after-ms", "20");
        let server = Server::start([limited, reply(&endpoint).piece(body)]).await;
        let answer = model(endpoint, &server).generate(Request::prompt("Hallo")).await.unwrap();
        assert_eq!(answer.message.text(), "Grüß dich");
        let received = server.received();
        assert_eq!(received.len(), 2);
        assert_eq!(received[0].body, received[1].body);
    }
}

#[tokio::test]
async fn rate_limit_with_a_long_wait_is_reported_without_waiting() {
    for (endpoint, _, _) in services() {
        let reply = Reply::json(429, r#"{"error":{"message":"slow down"}}"#).header("retry-after", "3600");
        let server = Server::start([reply]).await;
        let error = model(endpoint, &server).generate(Request::prompt("Hallo")).await.unwrap_err();
        assert_eq!(
            (error.kind, error.retry_after),
            (ProviderErrorKind::RateLimit, Some(Duration::from_hours(1)))
        );
    }
}

#[test]
fn default_registry_resolves_models_of_known_services() {
    let registry = Registry::default();
    assert_eq!(
        registry.providers().collect::<Vec<_>>(),
        [
            "alibaba",
            "anthropic",
            "google",
            "groq",
            "moonshot",
            "ollama",
            "ollama-cloud",
            "openai",
            "openai_responses",
            "opencode",
            "openrouter",
            "zai"
        ]
    );
    for (endpoint, _, _) in services() {
        let name = format!("{}:any-model", endpoint.name());
        assert_eq!(registry.model(&name).unwrap().name(), name);
    }
}

#[tokio::test]
async fn google_answer_or_error_in_a_list_is_read() {
    let server = Server::start([
        Reply::json(200, r#"[{"candidates":[{"content":{"parts":[{"text":"Hi"}]},"finishReason":"STOP"}]}]"#),
        Reply::json(200, r#"[{"error":{"code":503,"message":"Overloaded","status":"UNAVAILABLE"}}]"#),
    ])
    .await;
    let model = model(Endpoint::google(), &server);
    assert_eq!(model.generate(once()).await.unwrap().message.text(), "Hi");
    let error = model.generate(once()).await.unwrap_err();
    assert_eq!((error.kind, &*error.message), (ProviderErrorKind::Overloaded, "Overloaded"));
}

#[test]
fn ollama_host_is_interpreted_like_ollama_does() {
    for (host, origin) in [
        ("", "http://127.0.0.1:11434"),
        (" 'gpu-box' ", "http://gpu-box:11434"),
        ("gpu-box:8080", "http://gpu-box:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:99", "http://127.0.0.1:99"),
        ("[::]:99", "http://[::1]:99"),
        ("::1", "http://[::1]:11434"),
        ("http://gpu-box", "http://gpu-box"),
        ("https://gpu-box:8443/ollama/", "https://gpu-box:8443"),
        ("gpu-box:none", "http://gpu-box:11434"),
        ("ollama.com", "https://ollama.com"),
    ] {
        let shown = format!("{:?}", Endpoint::ollama_at(host));
        assert!(shown.contains(&format!("origin: {origin:?}")), "{host}: {shown}");
    }
}

#[tokio::test]
async fn ollama_host_with_a_password_is_rejected() {
    let model = Model::new(Arc::new(Endpoint::ollama_at("http://user:pw@127.0.0.1")), "some-model");
    let error = model.generate(once()).await.unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::InvalidRequest, "{error}");
    assert!(!error.to_string().contains("pw"), "{error}");
}

#[test]
fn ollama_key_variable_is_used_only_for_ollamas_own_service() {
    for (endpoint, takes) in [
        (Endpoint::ollama_cloud(), true),
        (Endpoint::ollama_at("https://ollama.com"), true),
        (Endpoint::ollama_at("gpu-box"), false),
        (Endpoint::ollama_at("http://ollama.com"), false),
        (Endpoint::ollama_at("https://ollama.com.example.org"), false),
    ] {
        let shown = format!("{endpoint:?}");
        assert_eq!(shown.contains("OLLAMA_API_KEY"), takes, "{shown}");
    }
}

#[tokio::test]
async fn ollama_host_with_a_path_keeps_it() {
    let server = Server::start([Reply::ndjson().piece(OLLAMA)]).await;
    let endpoint = Endpoint::ollama_at(&format!("{}/proxy/", server.url()));
    let answer = Model::new(Arc::new(endpoint), "m").generate(once()).await.unwrap();
    assert_eq!(answer.message.text(), "Grüß dich");
    let received = server.received().remove(0);
    assert_eq!((&*received.line, received.header("authorization")), ("POST /proxy/api/chat", None));
}

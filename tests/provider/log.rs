//! The log messages that are written for requests.

use base64::Engine;
use omni_agent::provider::{CacheHint, Effort, ModelInfo, Options, Request, http::Endpoint};

use crate::{
    logged::Log,
    server::{Reply, Server},
    services::{CHAT, KEY, model},
};

#[tokio::test]
async fn log_of_an_exchange_and_its_retry_shows_neither_key_nor_content() {
    let log = Log::default();
    let guard = log.listen();
    let echo = format!(r#"{{"error":{{"message":"slow down, {KEY}"}}}}"#);
    let limited = Reply::json(429, &echo).header("retry-after-ms", "20").header("request-id", KEY);
    let server = Server::start([limited, Reply::sse().piece(CHAT)]).await;
    let endpoint = Endpoint::openai().with_header("x-token", "hush-hush-token");
    model(endpoint, &server).generate(Request::prompt("private words")).await.unwrap();
    drop(guard);
    let log = log.text();
    assert!(log.contains("openai") && log.contains("slow down"), "{log}");
    for secret in ["topsecret", "hush", "private", "Grüß"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

#[tokio::test]
async fn warnings_of_an_answer_are_logged_once() {
    let log = Log::default();
    let guard = log.listen();
    let down = Reply::json(503, "{}").header("retry-after-ms", "1");
    let server = Server::start([down, Reply::sse().piece(CHAT)]).await;
    let endpoint = Endpoint::openai_compatible("house", server.url());
    let model = model(endpoint, &server).with_info(ModelInfo::new("m").with_thinking(false));
    let options = Options::default().with_thinking(Effort::High).with_cache(CacheHint::Long);
    let answer = model.generate(Request::prompt("Hi").with_options(options)).await.unwrap();
    drop(guard);
    let log = log.text();
    assert_eq!(answer.warnings.len(), 2, "{:?}", answer.warnings);
    for warning in &answer.warnings {
        assert_eq!(log.matches(warning.as_str()).count(), 1, "{log}");
    }
}

#[tokio::test]
async fn log_of_a_request_id_shows_no_part_of_the_key() {
    let encoded = base64::engine::general_purpose::STANDARD.encode(KEY);
    let percent = KEY.bytes().map(|byte| format!("%{byte:02x}")).collect::<Vec<_>>().concat();
    for id in [&KEY[4..], &KEY[..KEY.len() - 2], &encoded, &percent] {
        let log = Log::default();
        let guard = log.listen();
        let server =
            Server::start([Reply::sse().header("x-request-id", &format!("req-{id}")).piece(CHAT)]).await;
        model(Endpoint::openai(), &server).generate(Request::prompt("Hi")).await.unwrap();
        drop(guard);
        let log = log.text();
        assert!(log.contains("req-[secret]") && !log.contains(id), "{id} in {log}");
    }
}

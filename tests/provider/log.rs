//! What is logged.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fmt::{self, Write},
    sync::{Arc, Mutex},
};

use omni_agent::provider::{CacheHint, Effort, ModelInfo, Options, Request, http::Endpoint};

use crate::{
    server::{Reply, Server},
    services::{CHAT, KEY, model},
};

/// Writes down all that is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl tracing::field::Visit for Log {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        write!(self.0.lock().unwrap(), "{field}={value:?} ").unwrap();
    }
}

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut self.clone());
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut self.clone());
    }

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test]
async fn log_of_an_exchange_and_its_retry_shows_neither_key_nor_content() {
    let log = Log::default();
    let guard = tracing::subscriber::set_default(log.clone());
    let echo = format!(r#"{{"error":{{"message":"slow down, {KEY}"}}}}"#);
    let limited = Reply::json(429, &echo).header("retry-after-ms", "20").header("request-id", KEY);
    let server = Server::start([limited, Reply::sse().piece(CHAT)]).await;
    let endpoint = Endpoint::openai().with_header("x-token", "hush-hush-token");
    model(endpoint, &server).generate(Request::prompt("private words")).await.unwrap();
    drop(guard);
    let log = log.0.lock().unwrap();
    assert!(log.contains("openai") && log.contains("slow down"), "{log}");
    for secret in ["topsecret", "hush", "private", "Grüß"] {
        assert!(!log.contains(secret), "{secret} in {log}");
    }
}

#[tokio::test]
async fn warnings_of_an_answer_are_logged_once() {
    let log = Log::default();
    let guard = tracing::subscriber::set_default(log.clone());
    let down = Reply::json(503, "{}").header("retry-after-ms", "1");
    let server = Server::start([down, Reply::sse().piece(CHAT)]).await;
    let endpoint = Endpoint::openai_compatible("house", server.url());
    let model = model(endpoint, &server).with_info(ModelInfo::new("m").with_thinking(false));
    let options = Options::default().with_thinking(Effort::High).with_cache(CacheHint::Long);
    let answer = model.generate(Request::prompt("Hi").with_options(options)).await.unwrap();
    drop(guard);
    let log = log.0.lock().unwrap();
    assert_eq!(answer.warnings.len(), 2, "{:?}", answer.warnings);
    for warning in &answer.warnings {
        assert_eq!(log.matches(warning.as_str()).count(), 1, "{log}");
    }
}

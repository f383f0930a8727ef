//! A complete request to each known service: address, headers, body and answer. This file also contains helpers for the
//! tests of individual services.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::sync::Arc;

use omni_agent::{
    provider::{Completion, Model, Options, OutputSchema, Provider, ProviderError, Request, http::Endpoint},
    tool::Schema,
};
use serde_json::{Value, json};

use crate::{
    server::{Received, Reply, Server},
    services::{CHAT, GEMINI, KEY, MESSAGES, OLLAMA, RESPONSES},
};

/// Returns a model of `endpoint` with the test server instead of the service's host. The rest of the address stays the
/// same.
pub(crate) fn model(endpoint: &Endpoint, model: &str, server: &Server) -> Model {
    let (_, address) = endpoint.base_url().split_once("://").unwrap();
    let path = address.find('/').map_or("", |at| &address[at..]);
    let endpoint = endpoint.clone().with_base_url(format!("{}{path}", server.url())).with_key(KEY);
    Model::new(Arc::new(endpoint), model)
}

/// Sends one request without retries. Returns the request that the server received, and the answer.
pub(crate) async fn exchange(
    endpoint: &Endpoint,
    id: &str,
    mut request: Request,
    reply: Reply,
) -> (Received, Result<Completion, ProviderError>) {
    let server = Server::start([reply]).await;
    request.options.set_max_retries(Some(0));
    let answer = model(endpoint, id, &server).generate(request).await;
    (server.received().remove(0), answer)
}

/// Returns the body of a request in the Chat Completions format, and the warnings.
pub(crate) async fn body(endpoint: &Endpoint, id: &str, request: Request) -> (Value, Vec<String>) {
    let (received, answer) = exchange(endpoint, id, request, Reply::sse().piece(CHAT)).await;
    (received.json(), answer.unwrap().warnings)
}

/// Returns the members that these options add to the body of a minimal request, and the warnings.
pub(crate) async fn said(endpoint: &Endpoint, id: &str, options: Options) -> (Value, Vec<String>) {
    let (mut body, warnings) = body(endpoint, id, Request::prompt("Hallo").with_options(options)).await;
    let members = body.as_object_mut().unwrap();
    members.retain(|name, _| !["model", "messages", "stream", "stream_options"].contains(&name.as_str()));
    (body, warnings)
}

/// Returns a reply that consists of these chunks.
pub(crate) fn chunks(chunks: &[Value]) -> Reply {
    let events = chunks.iter().map(|chunk| format!("data: {chunk}\n\n"));
    Reply::sse().piece(events.collect::<String>() + "data: [DONE]\n\n")
}

/// Returns a schema for an answer.
pub(crate) fn schema() -> OutputSchema {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    OutputSchema::new("place", Schema::new(schema).unwrap())
}

/// Returns the system prompt that contains the schema.
pub(crate) fn said_schema() -> String {
    let schema = schema().schema.as_value().to_string();
    format!("Answer with one JSON object and nothing else. It must fit this JSON Schema:\n{schema}")
}

/// Returns the output tool. Its input is an answer that fits the schema.
pub(crate) fn output_tool() -> Value {
    let description = "Gives the final answer. Call it once, when everything else is done.";
    json!({"name": "place", "description": description, "parameters": schema().schema})
}

/// Returns the system prompt that asks the model to call the output tool.
pub(crate) fn said_tool() -> &'static str {
    "Give your final answer by calling the tool `place`, and in no other way."
}

struct Case {
    endpoint: Endpoint,
    model: &'static str,
    address: &'static str,
    /// The header that contains the key, and the prefix of the header's value.
    key: (&'static str, &'static str),
    body: Value,
    answer: &'static str,
}

fn cases() -> Vec<Case> {
    let bearer = ("authorization", "Bearer ");
    let chat = |endpoint, address, model| Case {
        endpoint,
        model,
        address,
        key: bearer,
        body: json!({"model": model, "messages": [{"role": "user", "content": "Hallo"}], "stream": true,
            "stream_options": {"include_usage": true}}),
        answer: CHAT,
    };
    let messages = |endpoint, address, model| Case {
        endpoint,
        model,
        address,
        key: ("x-api-key", ""),
        body: json!({"model": model, "max_tokens": 32_000, "stream": true,
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hallo"}]}]}),
        answer: MESSAGES,
    };
    let responses = |endpoint, address, model| Case {
        endpoint,
        model,
        address,
        key: bearer,
        body: json!({"model": model, "input": [{"type": "message", "role": "user", "content": "Hallo"}],
            "stream": true, "store": false, "include": ["reasoning.encrypted_content"]}),
        answer: RESPONSES,
    };
    let gemini = |endpoint, address, model| Case {
        endpoint,
        model,
        address,
        key: ("x-goog-api-key", ""),
        body: json!({"contents": [{"role": "user", "parts": [{"text": "Hallo"}]}]}),
        answer: GEMINI,
    };
    let ollama = |endpoint| Case {
        endpoint,
        model: "gpt-oss:20b",
        address: "/api/chat",
        key: bearer,
        body: json!({"model": "gpt-oss:20b", "messages": [{"role": "user", "content": "Hallo"}], "stream": true,
            "truncate": false, "shift": false}),
        answer: OLLAMA,
    };
    vec![
        messages(Endpoint::anthropic(), "/v1/messages", "claude-sonnet-4-6"),
        chat(Endpoint::openai(), "/v1/chat/completions", "gpt-5.2"),
        responses(Endpoint::openai_responses(), "/v1/responses", "gpt-5.2"),
        gemini(
            Endpoint::google(),
            "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
            "gemini-2.5-flash",
        ),
        ollama(Endpoint::ollama_at("")),
        ollama(Endpoint::ollama_cloud()),
        chat(Endpoint::openrouter(), "/api/v1/chat/completions", "anthropic/claude-sonnet-4.6"),
        chat(Endpoint::groq(), "/openai/v1/chat/completions", "openai/gpt-oss-120b"),
        chat(Endpoint::moonshot(), "/v1/chat/completions", "kimi-k2-0905-preview"),
        chat(Endpoint::zai(), "/api/paas/v4/chat/completions", "glm-4.6"),
        chat(Endpoint::alibaba(), "/compatible-mode/v1/chat/completions", "qwen-plus"),
        messages(Endpoint::opencode(), "/zen/v1/messages", "claude-sonnet-4-6"),
        responses(Endpoint::opencode(), "/zen/v1/responses", "gpt-5.2"),
        gemini(
            Endpoint::opencode(),
            "/zen/v1/models/gemini-3-flash:streamGenerateContent?alt=sse",
            "gemini-3-flash",
        ),
        chat(Endpoint::opencode(), "/zen/v1/chat/completions", "glm-5.1"),
        chat(Endpoint::openai_compatible("mine", "http://localhost/llm"), "/llm/v1/chat/completions", "m"),
        responses(Endpoint::openai_responses_compatible("mine", "http://localhost"), "/v1/responses", "m"),
        messages(Endpoint::anthropic_compatible("mine", "http://localhost"), "/v1/messages", "m"),
    ]
}

#[tokio::test]
async fn request_to_each_service_has_its_address_key_and_body_and_is_answered() {
    for Case { endpoint, model, address, key: (header, before), body, answer } in cases() {
        let name = endpoint.name();
        let reply = if answer == OLLAMA { Reply::ndjson() } else { Reply::sse() };
        let request = Request::prompt("Hallo");
        let (received, answered) = exchange(&endpoint, model, request, reply.piece(answer)).await;
        assert_eq!(received.line, format!("POST {address}"), "{name}");
        assert_eq!(received.header(header), Some(&*format!("{before}{KEY}")), "{name}");
        let others =
            ["authorization", "x-api-key", "x-goog-api-key"].into_iter().filter(|key| *key != header);
        assert!(others.into_iter().all(|key| received.header(key).is_none()), "{name}");
        assert_eq!(received.header("anthropic-version").is_some(), answer == MESSAGES, "{name}");
        assert_eq!(received.json(), body, "{name}");
        let answered = answered.unwrap();
        assert_eq!((answered.message.text(), answered.usage.output), ("Grüß dich".to_owned(), 5), "{name}");
        assert!(answered.warnings.is_empty(), "{name}: {:?}", answered.warnings);
    }
}

#[test]
fn every_known_service_is_in_the_table() {
    let cases = cases();
    for endpoint in Endpoint::all() {
        let known = |case: &&Case| case.endpoint.name() == endpoint.name();
        assert!(cases.iter().any(|case| known(&case)), "{}", endpoint.name());
    }
}

#[test]
fn base_urls_have_the_hosts_of_the_services() {
    for (endpoint, host) in [
        (Endpoint::anthropic(), "https://api.anthropic.com"),
        (Endpoint::openai(), "https://api.openai.com"),
        (Endpoint::openai_responses(), "https://api.openai.com"),
        (Endpoint::google(), "https://generativelanguage.googleapis.com"),
        (Endpoint::openrouter(), "https://openrouter.ai/"),
        (Endpoint::groq(), "https://api.groq.com/"),
        (Endpoint::moonshot(), "https://api.moonshot.ai"),
        (Endpoint::zai(), "https://api.z.ai/"),
        (Endpoint::alibaba(), "https://dashscope-intl.aliyuncs.com/"),
        (Endpoint::opencode(), "https://opencode.ai/"),
    ] {
        assert!(endpoint.base_url().starts_with(host), "{}", endpoint.base_url());
    }
}

#[tokio::test]
async fn debug_of_each_endpoint_shows_the_variable_of_its_key() {
    for endpoint in Endpoint::all() {
        let shown = format!("{endpoint:?}");
        let variable = match endpoint.name() {
            "anthropic" => "ANTHROPIC_API_KEY",
            "openai" | "openai_responses" => "OPENAI_API_KEY",
            "google" => "GEMINI_API_KEY",
            "ollama" => continue,
            "ollama-cloud" => "OLLAMA_API_KEY",
            "openrouter" => "OPENROUTER_API_KEY",
            "groq" => "GROQ_API_KEY",
            "moonshot" => "MOONSHOT_API_KEY",
            "zai" => "ZAI_API_KEY",
            "alibaba" => "DASHSCOPE_API_KEY",
            "opencode" => "OPENCODE_API_KEY",
            other => panic!("{other} is missing in this test"),
        };
        assert!(shown.contains(variable), "{shown}");
    }
}

#[tokio::test]
async fn list_headers_of_a_format_are_merged_with_those_of_the_user() {
    const BETA: &str = "thinking-binding-controls-2026-08-01";
    let beta = |endpoint: Endpoint, id: &'static str, options: Options| async move {
        let request = Request::prompt("Hallo").with_options(options);
        let (received, answer) = exchange(&endpoint, id, request, Reply::sse().piece(MESSAGES)).await;
        answer.unwrap();
        assert_eq!(received.header("anthropic-version"), Some("2023-06-01"));
        received.header("anthropic-beta").map(ToOwned::to_owned)
    };
    let own = |value: &str| {
        Options::default().with_headers([("Anthropic-Beta".to_owned(), value.into())].into_iter().collect())
    };
    let (bound, free) = ("claude-opus-5-5", "claude-opus-5");
    let joined = |more: &str| Some(format!("{more},{BETA}"));
    assert_eq!(beta(Endpoint::anthropic(), free, Options::default()).await, None);
    assert_eq!(beta(Endpoint::anthropic(), bound, Options::default()).await.as_deref(), Some(BETA));
    assert_eq!(beta(Endpoint::opencode(), bound, Options::default()).await.as_deref(), Some(BETA));
    assert_eq!(beta(Endpoint::anthropic(), bound, own("a, b")).await, joined("a, b"));
    let twice = format!("a, {BETA}");
    assert_eq!(beta(Endpoint::anthropic(), bound, own(&twice)).await, Some(twice));
    assert_eq!(beta(Endpoint::anthropic(), free, own("a")).await.as_deref(), Some("a"));
    let with_header = Endpoint::anthropic().with_header("anthropic-beta", "c");
    assert_eq!(beta(with_header, bound, Options::default()).await, joined("c"));
    // The header depends on the final body, which the hooks have already changed.
    let without = Endpoint::anthropic().with_body_hook(|body, _| {
        body.shift_remove("thinking");
        Ok(())
    });
    assert_eq!(beta(without, bound, Options::default()).await, None);
}

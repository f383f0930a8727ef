//! Signatures and encrypted reasoning of earlier answers that the service can't verify, for example after a change of its
//! key or region.

use std::sync::Arc;

use omni_agent::{
    message::{Content, History, Message, Thinking, ToolResult, ToolUse},
    provider::{
        Completion, Effort, Model, Options, ProviderError, ProviderErrorKind, Request, http::Endpoint,
    },
};
use serde_json::{Value, json};

use crate::{
    server::{Received, Reply, Server},
    services::{GEMINI, KEY, MESSAGES, RESPONSES},
};

const OPENAI: &str = r#"{"error":{"message":"The encrypted content gAAA...DQ== could not be verified.","type":"invalid_request_error","param":null,"code":"invalid_encrypted_content"}}"#;
const ANTHROPIC: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: Invalid `signature` in `thinking` block"}}"#;
const CHANGED: &str = r#"{"type":"error","error":{"type":"invalid_request_error","message":"messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified."}}"#;
const GOOGLE: &str =
    r#"{"error":{"code":400,"message":"Corrupted thought signature.","status":"INVALID_ARGUMENT"}}"#;
const VERTEX: &str = r#"{"error":{"code":400,"message":"Unable to submit request because Thought signature is not valid..","status":"INVALID_ARGUMENT"}}"#;

/// Returns a conversation in which the tool that the model has called has just run.
fn history(format: &str, thinking: Option<&str>, call: Option<&str>) -> History {
    let mut tool_use = ToolUse::new("call_1", "look", json!({}));
    tool_use.signature = call.map(str::to_owned);
    let result = Content::from(ToolResult::ok(&tool_use, "seen"));
    let thinking = thinking.map(|signature| Content::from(Thinking::new("Hm.").with_signature(signature)));
    let mut asked = Message::assistant(thinking.into_iter().chain([tool_use.into()]).collect::<Vec<_>>());
    asked.provider_data.insert(format.to_owned(), json!({}));
    History::from_iter([Message::user("Look."), asked, Message::user(vec![result])])
}

/// Sends a request without retries. Returns the bodies that the server has received, and the answer.
async fn exchange(
    endpoint: &Endpoint,
    model: &str,
    history: &History,
    replies: Vec<Reply>,
) -> (Vec<Value>, Result<Completion, ProviderError>) {
    let server = Server::start(replies).await;
    let options = Options::default().with_max_retries(0).with_thinking(Effort::Low);
    let endpoint = endpoint.clone().with_base_url(server.url()).with_key(KEY);
    let request = Request::new(history.clone()).with_options(options);
    let answer = Model::new(Arc::new(endpoint), model).generate(request).await;
    (server.received().iter().map(Received::json).collect(), answer)
}

#[tokio::test]
async fn request_is_repeated_once_without_private_data_that_the_service_cannot_verify() {
    let item =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}).to_string();
    let responses = history("openai_responses", Some(&item), None);
    let messages = history("anthropic_messages", Some("c2ln"), None);
    let gemini = history("google_gemini", None, Some("c2ln"));
    for (endpoint, model, history, refusal, answer, private) in [
        (Endpoint::openai_responses(), "gpt-5.2", &responses, OPENAI, RESPONSES, "gAAA"),
        (Endpoint::anthropic(), "claude-sonnet-4-5", &messages, ANTHROPIC, MESSAGES, "c2ln"),
        (Endpoint::anthropic(), "claude-opus-4-8", &messages, CHANGED, MESSAGES, "c2ln"),
        (Endpoint::google(), "gemini-3-pro", &gemini, GOOGLE, GEMINI, "c2ln"),
        (Endpoint::google(), "gemini-3-pro", &gemini, VERTEX, GEMINI, "c2ln"),
    ] {
        let replies = vec![Reply::json(400, refusal), Reply::sse().piece(answer)];
        let (bodies, answer) = exchange(&endpoint, model, history, replies).await;
        assert_eq!(bodies.len(), 2, "{model}");
        assert!(bodies[0].to_string().contains(private), "{model}: {}", bodies[0]);
        assert!(!bodies[1].to_string().contains(private), "{model}: {}", bodies[1]);
        assert!(bodies[1].to_string().contains("look"), "{model}: {}", bodies[1]);
        let warnings = answer.unwrap().warnings;
        assert!(warnings.iter().any(|warning| warning.contains("can't verify")), "{model}: {warnings:?}");
        // If the second request fails too, its error is returned.
        let replies = vec![Reply::json(400, refusal), Reply::json(400, refusal)];
        let (bodies, answer) = exchange(&endpoint, model, history, replies).await;
        assert_eq!(bodies.len(), 2, "{model}");
        assert_eq!(answer.unwrap_err().kind, ProviderErrorKind::InvalidRequest, "{model}");
    }
}

#[tokio::test]
async fn request_without_private_data_or_with_another_error_is_not_repeated() {
    let other = r#"{"error":{"message":"Invalid value for input","type":"invalid_request_error"}}"#;
    let plain = history("openai_responses", None, None);
    let item =
        json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}).to_string();
    let private = history("openai_responses", Some(&item), None);
    for (history, status, refusal) in [(&plain, 400, OPENAI), (&private, 400, other), (&private, 429, OPENAI)]
    {
        let replies = vec![Reply::json(status, refusal)];
        let (bodies, answer) = exchange(&Endpoint::openai_responses(), "gpt-5.2", history, replies).await;
        assert_eq!((bodies.len(), answer.unwrap_err().status), (1, Some(status)), "{refusal}");
    }
}

//! Conversations that the assistant begins.

use omni_agent::{
    message::{History, Message, ToolResult, ToolUse},
    provider::{CacheHint, Model, Options, Provider, Request, http::Endpoint},
};
use serde_json::{Value, json};

use crate::{server::Server, wires::Wire};

const OPENING: &str = "(The assistant begins the conversation.)";

fn greeted() -> History {
    History::from_iter([Message::assistant("Hello, I am Bo."), Message::user("Who?")])
}

/// Returns the messages of a request with this history, without cache breakpoints.
fn sent(endpoint: &Endpoint, model: &str, history: History) -> Vec<Value> {
    let mut request = Request::new(history).with_system("Be brief.");
    request.model = model.into();
    let mut body = endpoint.preview(&request).unwrap().1.body;
    let messages =
        ["messages", "input", "contents"].into_iter().find_map(|key| body.shift_remove(key)).unwrap();
    let Value::Array(messages) = messages else { panic!("{messages} is not a list") };
    messages
}

#[tokio::test]
async fn conversation_that_the_assistant_begins_is_answered_in_every_format() {
    for wire in Wire::ALL {
        let server = Server::start([wire.reply().piece(wire.body(&wire.text(&["Bo."])))]).await;
        let model = Model::new(std::sync::Arc::new(wire.endpoint(&server.url()).with_key("key")), "m");
        let answer = model.generate(Request::new(greeted())).await.unwrap();
        assert_eq!(answer.message.text(), "Bo.", "{wire:?}");
        let body = server.received().remove(0).json().to_string();
        assert!(body.contains("Hello, I am Bo."), "{wire:?} {body}");
    }
}

#[test]
fn conversation_that_the_assistant_begins_has_a_user_message_first_where_the_service_wants_one() {
    for endpoint in Endpoint::all() {
        let messages = sent(&endpoint, "m", greeted());
        let first: Vec<&Value> = messages
            .iter()
            .filter(|message| message["role"] != "system" && message["role"] != "developer")
            .collect();
        let name = endpoint.name();
        let roles: Vec<&str> = first.iter().map(|message| message["role"].as_str().unwrap()).collect();
        match name {
            "openai" | "openai_responses" | "ollama" | "ollama-cloud" => {
                assert_eq!(roles, ["assistant", "user"], "{name}");
            }
            _ => {
                let assistant = if name == "google" { "model" } else { "assistant" };
                assert_eq!(roles, ["user", assistant, "user"], "{name}");
                assert!(first[0].to_string().contains(OPENING), "{name} {}", first[0]);
            }
        }
    }
    for (wire, placeholder) in [
        (Wire::Chat, json!({"role": "user", "content": OPENING})),
        (Wire::Responses, json!({"type": "message", "role": "user", "content": OPENING})),
        (Wire::Messages, json!({"role": "user", "content": [{"type": "text", "text": OPENING}]})),
        (Wire::Gemini, json!({"role": "user", "parts": [{"text": OPENING}]})),
    ] {
        let messages = sent(&wire.endpoint("http://localhost"), "m", greeted());
        assert!(messages.contains(&placeholder), "{wire:?} {messages:?}");
    }
}

#[test]
fn conversation_that_begins_with_a_tool_call_has_a_user_message_before_the_call() {
    let tool_use = ToolUse::new("a", "look", json!({}));
    let result = ToolResult::ok(&tool_use, "42");
    let history = History::from_iter([Message::assistant(tool_use), Message::user(result)]);
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        let messages = sent(&wire.endpoint("http://localhost"), "m", history.clone());
        let first = messages.iter().find(|message| message["role"] != "system").unwrap();
        assert!(first.to_string().contains(OPENING), "{wire:?} {messages:?}");
    }
}

#[test]
fn conversation_whose_first_user_message_is_left_out_has_a_user_message_first() {
    let history =
        History::from_iter([Message::user(" "), Message::assistant("Hello"), Message::user("Who?")]);
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        let messages = sent(&wire.endpoint("http://localhost"), "m", history.clone());
        let first = messages.iter().find(|message| message["role"] != "system").unwrap();
        assert!(first.to_string().contains(OPENING), "{wire:?} {messages:?}");
    }
}

#[test]
fn conversation_that_the_assistant_begins_keeps_its_beginning_when_it_grows() {
    let longer = History::from_iter([
        Message::assistant("Hello, I am Bo."),
        Message::user("Who?"),
        Message::assistant("Bo."),
        Message::user("Ah."),
    ]);
    for endpoint in Endpoint::all() {
        let short = sent(&endpoint, "m", greeted());
        let long = sent(&endpoint, "m", longer.clone());
        assert_eq!(long[..short.len()], short, "{}", endpoint.name());
    }
    // The breakpoint of the cache stays on the last message.
    let options = Options::default().with_cache(CacheHint::Short);
    let request = Request::new(greeted()).with_options(options);
    let body = Wire::Messages.endpoint("http://localhost").preview(&request).unwrap().1.body;
    let marked: Vec<bool> = body["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["content"][0].get("cache_control").is_some())
        .collect();
    assert_eq!(marked, [false, false, true]);
}

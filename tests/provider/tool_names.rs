//! Names of tools in a conversation: a model may have called what nobody declared, and each request after that must be
//! taken all the same.

use omni_agent::{
    message::{History, Message, ToolResult, ToolUse},
    provider::{
        Request,
        dialect::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OpenAiResponses},
    },
};
use serde_json::{Value, json};

use crate::anthropic::tools;

/// Formats that hold names to rules: how many characters they take, and which beside letters, digits, `_` and `-`.
fn formats() -> [(Box<dyn Dialect>, usize, &'static str); 4] {
    [
        (Box::new(AnthropicMessages), 128, ""),
        (Box::new(ChatCompletions::openai()), 64, ""),
        (Box::new(OpenAiResponses::openai()), 64, ""),
        (Box::new(GoogleGemini), 64, ".:"),
    ]
}

/// A conversation in which these were called, and failed.
fn called(names: &[&str]) -> Request {
    let uses: Vec<ToolUse> = names
        .iter()
        .enumerate()
        .map(|(at, name)| ToolUse::new(format!("call_{at}"), *name, json!({})))
        .collect();
    let results: Vec<ToolResult> =
        uses.iter().map(|tool_use| ToolResult::error(tool_use, format!("no {}", tool_use.id))).collect();
    let history = [Message::user("Go"), Message::assistant(uses), Message::user(results)];
    let mut request = Request::new(History::from_iter(history));
    request.model = "m".into();
    request
}

/// All names of calls and of results in a body, in their order.
fn names(body: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    match body {
        Value::Array(items) => items.iter().for_each(|item| found.extend(names(item))),
        Value::Object(map) => {
            for (key, value) in map {
                match (key.as_str(), value) {
                    ("name", Value::String(name)) => found.push(&**name),
                    (_, value) => found.extend(names(value)),
                }
            }
        }
        _ => {}
    }
    found
}

#[test]
fn made_up_name_goes_back_in_letters_and_length_that_the_service_takes() {
    let long = "x".repeat(200);
    let made_up = ["functions.read", "a b.c", "a.b c", &long, "", "ünïcödé", "7up", "-"];
    for (format, limit, also) in formats() {
        let body = Value::Object(format.encode(&called(&made_up)).unwrap().body);
        let names = names(&body);
        assert!(names.len() >= made_up.len(), "{body}");
        for name in names {
            let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || also.contains(c);
            let all = (1..=limit).contains(&name.len()) && name.chars().all(fits);
            assert!(all, "{}: {name:?}", format.name());
        }
        // Each result stays with its own call, though two names may be one now.
        for at in 0..made_up.len() {
            let (call, result) = (format!("call_{at}\""), format!("no call_{at}"));
            let text = body.to_string();
            assert!(text.matches(&call).count() >= 2 && text.matches(&result).count() == 1, "{text}");
        }
    }
}

#[test]
fn name_that_a_service_takes_goes_back_as_it_was() {
    let fitting = ["look_up", "Read-File", "_x1"];
    for (format, limit, also) in formats() {
        let longest = "y".repeat(limit);
        let mut all = vec![&*longest];
        all.extend(fitting);
        if !also.is_empty() {
            all.push("default_api:fs.read");
        }
        let body = Value::Object(format.encode(&called(&all)).unwrap().body);
        let sent = names(&body);
        assert!(all.iter().all(|name| sent.contains(name)), "{}: {sent:?}", format.name());
    }
}

#[test]
fn declared_tools_name_goes_back_as_it_was_declared() {
    let request = called(&["fs.read"]).with_tools(tools(&[("fs.read", "", json!({"type": "object"}))]));
    for (format, ..) in formats() {
        let body = Value::Object(format.encode(&request).unwrap().body);
        assert!(names(&body).iter().all(|name| *name == "fs.read"), "{body}");
    }
}

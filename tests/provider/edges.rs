//! Content that services reject, such as blank text. No format may send such content.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, History, Message, ToolResult, ToolUse},
    provider::{
        Request,
        custom::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses},
    },
};
use serde_json::{Value, json};

fn dialects() -> [Box<dyn Dialect>; 5] {
    [
        Box::new(AnthropicMessages::default()),
        Box::new(ChatCompletions::default()),
        Box::new(OpenAiResponses::default()),
        Box::new(GoogleGemini::default()),
        Box::new(OllamaChat::default()),
    ]
}

#[test]
fn encode_blank_tool_result_is_replaced() {
    for blank in ["", "\r\n", "  ", "\n\t"] {
        for is_error in [false, true] {
            for dialect in dialects() {
                let call = ToolUse::new("call_1", "f", json!({}));
                let result =
                    if is_error { ToolResult::error(&call, blank) } else { ToolResult::ok(&call, blank) };
                let history = [
                    Message::user("Go."),
                    Message::assistant(Content::from(call)),
                    Message::user(Content::from(result)),
                ];
                let mut request = Request::new(History::from_iter(history));
                request.model = "m".into();
                let body = dialect.encode(&request).unwrap().body;
                assert_no_blank(&Value::Object(body), dialect.name());
            }
        }
    }
}

/// Asserts that no member at any depth contains blank text.
fn assert_no_blank(value: &Value, dialect: &str) {
    match value {
        Value::Object(members) => {
            for (key, value) in members {
                if let (Value::String(text), "text" | "content" | "output") = (value, key.as_str()) {
                    // Gemini's tool results are JSON objects, in which an empty output is valid. Messages with tool
                    // calls may have blank text.
                    let may =
                        (dialect == "google_gemini" && key == "output") || members.contains_key("tool_calls");
                    assert!(may || !text.trim().is_empty(), "{dialect}: {value:?} as {key}");
                }
                assert_no_blank(value, dialect);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| assert_no_blank(item, dialect)),
        _ => {}
    }
}

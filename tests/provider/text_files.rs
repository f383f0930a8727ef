//! Text files as attachments: as documents where the wire format has them, and otherwise as text with their names.

use omni_agent::{
    message::{Attachment, Content, History, Message, ResultBlock, ToolResult, ToolUse},
    provider::{Options, Provider, ProviderError, Request, UnsupportedAttachment, http::Endpoint},
};
use serde_json::{Value, json};

use crate::wires::Wire;

const INLINED: &str =
    "[attachment notes.txt (text/plain; charset=utf-8)]\nWörter\n[end of attachment notes.txt]";

fn notes() -> Attachment {
    Attachment::from_bytes("text/plain; charset=utf-8", "Wörter").named("notes.txt")
}

/// Returns the messages of a request to this model in which the user asks about an attachment.
fn asked(endpoint: &Endpoint, model: &str, attachment: Attachment) -> Result<Value, ProviderError> {
    let mut request = Request::prompt(vec![Content::from("What is it?"), Content::Attachment(attachment)]);
    request.model = model.into();
    sent(endpoint, &request)
}

/// Returns the messages of a request.
fn sent(endpoint: &Endpoint, request: &Request) -> Result<Value, ProviderError> {
    let mut body = endpoint.preview(request)?.1.body;
    Ok(["messages", "input", "contents"].into_iter().find_map(|key| body.shift_remove(key)).unwrap())
}

#[test]
fn text_file_is_sent_by_every_service() {
    for endpoint in Endpoint::all() {
        let messages = asked(&endpoint, "m", notes()).unwrap();
        let expected = match endpoint.name() {
            "anthropic" => json!({
                "type": "document", "title": "notes.txt",
                "source": {"type": "text", "media_type": "text/plain", "data": "Wörter"},
            }),
            "openai_responses" => json!({
                "type": "input_file", "filename": "notes.txt", "file_data": "data:text/plain;base64,V8O2cnRlcg==",
            }),
            "google" => json!({"inlineData": {"mimeType": "text/plain", "data": "V8O2cnRlcg=="}}),
            name => {
                let text = format!("What is it?\n\n{INLINED}");
                assert_eq!(messages, json!([{"role": "user", "content": text}]), "{name}");
                continue;
            }
        };
        let message = &messages[0];
        let parts = message.get("content").or(message.get("parts")).unwrap();
        assert_eq!(parts[1], expected, "{}", endpoint.name());
    }
}

#[test]
fn file_of_each_text_type_is_sent_in_every_format() {
    for media_type in [
        "text/csv",
        "TEXT/Markdown",
        "application/json",
        "application/x-yaml",
        "application/toml",
        "application/x-ndjson",
        "application/sql",
        "application/vnd.api+json",
        "application/atom+xml; charset=utf-8",
    ] {
        for wire in Wire::ALL {
            let file = Attachment::from_bytes(media_type, "{}").named("data");
            let messages = asked(&wire.endpoint("http://localhost"), "m", file).unwrap().to_string();
            let has =
                ["{}", "e30="].iter().any(|data| messages.contains(data)) && !messages.contains("left out");
            assert!(has, "{wire:?} {media_type}: {messages}");
        }
    }
}

#[test]
fn text_file_beside_an_image_keeps_its_place() {
    let request = Request::prompt(vec![
        Content::Attachment(Attachment::base64("image/png", "AAAA")),
        Content::Attachment(notes()),
        "Compare them.".into(),
    ]);
    let messages = sent(&Wire::Chat.endpoint("http://localhost"), &request).unwrap();
    let content = json!([
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": INLINED},
        {"type": "text", "text": "Compare them."},
    ]);
    assert_eq!(messages[0]["content"], content);
}

#[test]
fn text_file_in_a_tool_result_is_sent_in_every_format() {
    let tool_use = ToolUse::new("a", "read", json!({}));
    let result =
        ToolResult::ok(&tool_use, "").with_content(vec![ResultBlock::from("Found:"), notes().into()]);
    let history =
        History::from_iter([Message::user("Hi"), Message::assistant(tool_use), Message::user(result)]);
    for wire in Wire::ALL {
        let mut request = Request::new(history.clone());
        request.model = "m".into();
        let messages = sent(&wire.endpoint("http://localhost"), &request).unwrap();
        let text = messages.to_string();
        assert!(text.contains("Wörter") || text.contains("V8O2cnRlcg=="), "{wire:?}: {text}");
        if matches!(wire, Wire::Chat | Wire::Ollama) {
            assert_eq!(messages[2]["content"], format!("Found:\n{INLINED}"), "{wire:?}");
            assert_eq!(messages.as_array().unwrap().len(), 3, "{wire:?}");
        }
    }
}

#[test]
fn text_file_without_a_name_or_text_is_sent_as_text() {
    let messages = asked(&Wire::Chat.endpoint("http://localhost"), "m", Attachment::base64("text/csv", ""));
    let text = "What is it?\n\n[attachment unnamed (text/csv)]\n\n[end of attachment unnamed]";
    assert_eq!(messages.unwrap()[0]["content"], text);
}

#[test]
fn file_that_is_not_the_text_it_claims_to_be_is_an_error_or_a_placeholder() {
    for (data, why) in [("//8=", "its text is not UTF-8"), ("%%%", "its base64 is invalid")] {
        for wire in [Wire::Chat, Wire::Ollama, Wire::Messages] {
            let endpoint = wire.endpoint("http://localhost");
            let file = Attachment::base64("text/plain", data).named("a.txt");
            let error = asked(&endpoint, "m", file.clone()).unwrap_err();
            assert!(error.message.starts_with(&format!("attachment a.txt (text/plain): {why}")), "{error}");
            let options = Options::default().with_unsupported_attachment(UnsupportedAttachment::Placeholder);
            let request = Request::prompt(Content::Attachment(file)).with_options(options);
            let text = sent(&endpoint, &request).unwrap().to_string();
            assert!(text.contains(&format!("[attachment a.txt (text/plain) left out: {why}]")), "{text}");
        }
    }
}

#[test]
fn text_file_by_url_is_an_error_where_the_service_does_not_read_addresses() {
    let file = || Attachment::url("text/plain", "https://example.org/notes.txt");
    for endpoint in Endpoint::all() {
        let asked = asked(&endpoint, "m", file());
        if matches!(endpoint.name(), "openai_responses" | "google" | "zai") {
            asked.unwrap();
        } else {
            let error = asked.unwrap_err();
            assert!(error.message.contains("by URL") || error.message.contains("as base64"), "{error}");
        }
    }
}

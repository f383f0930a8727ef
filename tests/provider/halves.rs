//! Surrogate pairs whose two halves are in separate escapes. Within one text, the halves are joined. Elsewhere, each
//! half becomes U+FFFD.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::Content,
    provider::{
        ProviderErrorKind,
        custom::{AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses},
    },
};
use serde_json::json;

use crate::wires::Wire;

#[tokio::test]
async fn text_with_halves_of_characters_keeps_each_in_its_place_in_every_format() {
    for wire in Wire::ALL {
        for (pieces, whole) in [
            (&["a\\ud83d", "\\ude00b"][..], "a😀b"),
            (&["a\\ud83d", "XX", "\\ude00b"], "a\u{FFFD}XX\u{FFFD}b"),
            (&["a\\ud83d", "b"], "a\u{FFFD}b"),
            (&["a", "b\\uD83D"], "ab\u{FFFD}"),
            (&["\\ude00", "b"], "\u{FFFD}b"),
            (&["a\\ud83d\\ud83d", "\\ude00\\ude00"], "a\u{FFFD}😀\u{FFFD}"),
            (&["\\\\ud83d", "\\ude00 \\\\"], "\\ud83d\u{FFFD} \\"),
        ] {
            let answer = wire.answer(&wire.body(&wire.text(pieces))).await.unwrap();
            assert_eq!(answer.message.text(), whole, "{wire:?} {pieces:?}");
            assert_eq!(answer.warnings, [""; 0], "{wire:?} {pieces:?}");
        }
    }
}

/// Returns the text or the input of each block of an answer.
async fn blocks(wire: Wire, events: &[&str]) -> Vec<String> {
    let events: Vec<String> = events.iter().map(ToString::to_string).collect();
    let answer = wire.answer(&wire.body(&events)).await.unwrap();
    let texts = answer.message.content.iter().map(|block| match block {
        Content::Text(text) => text.text.clone(),
        Content::Thinking(thinking) => format!("({})", thinking.text),
        Content::ToolUse(call) => format!(
            "{} {}",
            call.name,
            call.malformed.as_ref().map_or(call.input.to_string(), |raw| format!("malformed {raw}"))
        ),
        other => format!("{other:?}"),
    });
    texts.collect()
}

#[tokio::test]
async fn halves_in_two_members_of_an_event_are_joined_only_within_one_text() {
    for (wire, event, expected) in [
        (
            Wire::Ollama,
            r#"{"message":{"thinking":"a\ud83d","content":"\ude00b"}}"#,
            &["(a\u{FFFD})", "\u{FFFD}b"][..],
        ),
        (
            Wire::Gemini,
            r#"{"candidates":[{"content":{"parts":[{"text":"a\ud83d"},{"text":"\ude00b"}]}}]}"#,
            &["a😀b"],
        ),
        (
            Wire::Gemini,
            r#"{"candidates":[{"content":{"parts":[{"text":"a\ud83d","thought":true},{"text":"\ude00b"}]}}]}"#,
            &["(a\u{FFFD})", "\u{FFFD}b"],
        ),
        (
            Wire::Chat,
            r#"{"choices":[{"index":0,"delta":{"reasoning":"a\ud83d","content":"\ude00b"}}]}"#,
            &["(a\u{FFFD})", "\u{FFFD}b"],
        ),
        (
            Wire::Chat,
            r#"{"choices":[{"index":0,"delta":{"content":[{"type":"text","text":"a\ud83d"},{"type":"text","text":"\ude00b"}]}}]}"#,
            &["a😀b"],
        ),
    ] {
        assert_eq!(blocks(wire, &[event]).await, expected, "{wire:?} {event}");
    }
}

#[tokio::test]
async fn halves_in_two_interleaved_calls_are_joined_within_each_call() {
    let fragment = |index: usize, name: &str, arguments: &str| {
        format!(
            r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":[{{"index":{index},"function":{{{name}"arguments":"{arguments}"}}}}]}}}}]}}"#
        )
    };
    let events = [
        fragment(0, r#""name":"f","#, r#"{\"x\":\"\ud83d"#),
        fragment(1, r#""name":"g","#, r#"{\"x\":\"\ud83e"#),
        fragment(0, "", r#"\ude00\"}"#),
        fragment(1, "", r#"\udd80\"}"#),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    assert_eq!(blocks(Wire::Chat, &events).await, ["f {\"x\":\"😀\"}", "g {\"x\":\"🦀\"}"]);
}

#[tokio::test]
async fn half_of_a_character_in_arguments_sent_as_json_is_replaced() {
    for (wire, event) in [
        (
            Wire::Gemini,
            r#"{"candidates":[{"content":{"parts":[{"functionCall":{"name":"f","args":{"x":"a\ud83d"}}}]}}]}"#,
        ),
        (
            Wire::Ollama,
            r#"{"message":{"tool_calls":[{"function":{"name":"f","arguments":{"x":"a\ud83d"}}}]}}"#,
        ),
    ] {
        assert_eq!(blocks(wire, &[event]).await, ["f {\"x\":\"a\u{FFFD}\"}"], "{wire:?}");
    }
}

#[test]
fn error_body_with_half_of_a_character_is_decoded_in_every_format() {
    let formats: [Box<dyn Dialect>; 5] = [
        Box::new(ChatCompletions::default()),
        Box::new(OpenAiResponses::default()),
        Box::new(AnthropicMessages::default()),
        Box::new(GoogleGemini::default()),
        Box::new(OllamaChat::default()),
    ];
    for format in formats {
        let body = r#"{"error":{"message":"prompt is too long: caf\ud83d","type":"invalid_request_error"}}"#;
        let error = format.error(400, body);
        assert_eq!(
            (error.kind, &*error.message),
            (ProviderErrorKind::ContextTooLong, "prompt is too long: caf\u{FFFD}")
        );
    }
}

#[tokio::test]
async fn error_event_with_half_of_a_character_is_decoded_in_every_format() {
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        let error = json!({"error": {"message": "prompt is too long: X", "type": "invalid_request_error"}});
        let error = error.to_string().replace('X', "\\ude00");
        for name in ["", "event: error\n"] {
            let error = wire.answer(&format!("{name}data: {error}\n\n")).await.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{wire:?} {name}: {error}");
            assert_eq!(error.message, "prompt is too long: \u{FFFD}", "{wire:?} {name}");
        }
    }
}

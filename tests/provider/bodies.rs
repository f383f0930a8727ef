//! Response bodies with small faults, and how much of each body can still be read.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::provider::{
    ProviderErrorKind, Request,
    custom::Framing,
    http::{Endpoint, Limits},
};

use crate::{
    endpoints::exchange,
    plain::{Answer, Plain, ask, endpoint},
    server::{Reply, Server},
    wires::Wire,
};

/// Returns events with these texts, followed by the final event. The texts must already be escaped for JSON.
fn events(texts: &[&str]) -> String {
    let events = texts.iter().map(|text| format!("data: {{\"text\":\"{text}\"}}\n\n"));
    events.chain(["data: {\"stop\":true}\n\n".to_owned()]).collect()
}

async fn answer(reply: Reply) -> Answer {
    let server = Server::start([reply]).await;
    ask(&endpoint(&server.url())).await
}

/// A service whose language has UTF-16 strings may split a text between the two halves of a character.
#[tokio::test]
async fn halves_of_a_character_in_two_events_are_joined() {
    for (texts, whole) in [
        (&["a\\ud83d", "\\ude00b"][..], "a😀b"),
        (&["\\uD83D", "\\uDE00"], "😀"),
        (&["\\ud83d", "", "\\ude00\\ud83e", "\\udd80"], "😀🦀"),
        (&["\\ud83d\\ude00\\ud83e", "\\udd80\\ud83d\\ude00"], "😀🦀😀"),
        (&["\\\\ud83d \\ud83d", "\\ude00 \\\\ude00"], "\\ud83d 😀 \\ude00"),
    ] {
        assert_eq!(answer(Reply::sse().piece(events(texts))).await.text(), whole, "{texts:?}");
        let lines = events(texts).replace("data: ", "").replace("\n\n", "\n");
        let server = Server::start([Reply::ndjson().piece(lines)]).await;
        let endpoint = Endpoint::custom("plain", server.url(), Plain(Framing::NdJson));
        assert_eq!(ask(&endpoint).await.text(), whole, "{texts:?}");
    }
}

#[tokio::test]
async fn half_of_a_character_alone_is_replaced_and_the_answer_kept() {
    for (texts, whole) in [
        // A token limit may have cut off the second half of the character.
        (&["a\\ud83d", "b"][..], "a\u{FFFD}b"),
        (&["a\\ud83d"], "a\u{FFFD}"),
        (&["a\\ud83d", "XX", "\\ude00b"], "a\u{FFFD}XX\u{FFFD}b"),
        (&["\\ud83d", "\\ud83d", "\\ude00"], "\u{FFFD}😀"),
        (&["\\ude00b"], "\u{FFFD}b"),
        (&["a\\ud83db", "c\\ude00"], "a\u{FFFD}bc\u{FFFD}"),
        (&["\\ude00\\ud83d", "\\ud83d\\ude00"], "\u{FFFD}\u{FFFD}😀"),
    ] {
        assert_eq!(answer(Reply::sse().piece(events(texts))).await.text(), whole, "{texts:?}");
    }
    let whole = "{\"text\":\"a\\ud83d b\",\"stop\":true}";
    assert_eq!(answer(Reply::json(200, whole)).await.text(), "a\u{FFFD} b");
}

/// The text before the failure ends with the replacement character.
#[tokio::test]
async fn half_of_a_character_before_a_failure_is_replaced() {
    for failure in ["data: nonsense\n\n", "data: {\"error\":\"it broke \\ude00\"}\n\n", ""] {
        let begin = "data: {\"text\":\"a\\ud83d\"}\n\n";
        let answer = answer(Reply::sse().piece(begin).piece(failure)).await;
        assert_eq!(answer.text, "a\u{FFFD}", "{failure}");
        let error = answer.error();
        assert!(!error.message.contains('\u{10FFFF}'), "{error}");
        assert!(!failure.contains("broke") || error.message == "it broke \u{FFFD}", "{error}");
    }
}

#[tokio::test]
async fn half_of_a_character_does_not_hide_another_fault() {
    for bad in ["data: {\"text\":\"\\ud83d\"\n\n", "data: {\"text\":\"\\ud83\"}\n\n", "data: \\ud83d\n\n"] {
        let error = answer(Reply::sse().piece(bad).piece(events(&["x"]))).await.error();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Decoding, false), "{bad}");
    }
}

fn formats(url: &str) -> [Endpoint; 5] {
    [
        Endpoint::openai_compatible("chat", url),
        Endpoint::openai_responses_compatible("responses", url),
        Endpoint::anthropic_compatible("messages", url),
        Endpoint::google().with_base_url(url),
        Endpoint::ollama_at(url),
    ]
}

/// Gateways report failures in their own format and with status 200.
#[tokio::test]
async fn json_that_is_not_an_answer_is_a_decoding_error_that_shows_it() {
    let key = "sk-live-topsecret";
    for body in [
        "{\"detail\":\"You shall not pass\"}",
        "{\"detail\":\"You shall not pass sk-live-topsecret\"}",
        "{\"success\":false,\"info\":{\"why\":\"You shall not pass\"}}",
    ] {
        for at in 0..5 {
            let server = Server::start([Reply::json(200, body)]).await;
            let endpoint = formats(&server.url())[at].clone().with_key(key);
            let error = ask(&endpoint).await.error();
            assert_eq!(
                (error.kind, error.retryable),
                (ProviderErrorKind::Decoding, false),
                "{endpoint:?}: {error}"
            );
            let shown = error.body.unwrap();
            assert!(shown.contains("You shall not pass") && !shown.contains(key), "{endpoint:?}: {shown}");
        }
    }
}

#[tokio::test]
async fn whole_answer_with_an_empty_error_member_is_an_answer() {
    for none in ["null", "false", "{}", "0"] {
        let whole = format!("{{\"text\":\"all\",\"stop\":true,\"error\":{none}}}");
        assert_eq!(answer(Reply::json(200, &whole)).await.text(), "all", "{none}");
    }
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Returns two replies with this body: one in a single piece, and one byte by byte.
fn in_pieces(wire: Wire, body: &[u8]) -> [Reply; 2] {
    [wire.reply().pieces(body, body.len()), wire.reply().pieces(body, 1)]
}

#[tokio::test]
async fn error_on_200_behind_a_byte_order_mark_is_the_error_in_every_format() {
    for wire in Wire::ALL {
        for error in [
            r#"{"error":{"message":"prompt is too long"}}"#,
            "{\n  \"error\": {\n    \"message\": \"prompt is too long\"\n  }\n}\n",
        ] {
            for mark in [BOM, b""] {
                for reply in in_pieces(wire, &[mark, error.as_bytes()].concat()) {
                    let error = wire.answer_to(reply).await.unwrap_err();
                    assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{wire:?} {error:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn answer_behind_a_byte_order_mark_is_read_and_behind_a_part_of_one_is_an_error_in_every_format() {
    for wire in Wire::ALL {
        let body = wire.body(&wire.text(&["Hello"]));
        for reply in in_pieces(wire, &[BOM, body.as_bytes()].concat()) {
            assert_eq!(wire.answer_to(reply).await.unwrap().message.text(), "Hello", "{wire:?}");
        }
        for cut in 1..BOM.len() {
            for rest in ["", &*body] {
                for reply in in_pieces(wire, &[&BOM[..cut], rest.as_bytes()].concat()) {
                    let error = wire.answer_to(reply).await.unwrap_err();
                    let kinds = [ProviderErrorKind::Decoding, ProviderErrorKind::Truncated];
                    assert!(kinds.contains(&error.kind), "{wire:?} {cut}: {error:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn answer_on_several_lines_is_read_in_json_lines() {
    let line = r#"{"message":{"content":"Hello"},"done":true,"done_reason":"stop"}"#;
    let value: serde_json::Value = serde_json::from_str(line).unwrap();
    let pretty = format!("\n \n{value:#}\n\n");
    for reply in in_pieces(Wire::Ollama, pretty.as_bytes()) {
        assert_eq!(Wire::Ollama.answer_to(reply).await.unwrap().message.text(), "Hello");
    }
}

#[tokio::test]
async fn first_line_without_an_end_is_bounded_in_json_lines() {
    for open in ["{", "{\n", " "] {
        let limits =
            Limits::default().with_line(1000).with_event(1000).with_body(10_000).with_error_body(1000);
        let endpoint = Wire::Ollama.endpoint("http://localhost").with_limits(limits);
        let reply = Reply::ndjson().piece(open).forever(vec![b' '; 100]);
        let error = exchange(&endpoint, "m", Request::prompt("Hi"), reply).await.1.unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Decoding, "{error:?}");
        assert!(error.message.contains("longer than the limit"), "{error:?}");
    }
}

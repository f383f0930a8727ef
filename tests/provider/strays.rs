//! Events that are not part of an answer, and a second answer to the same request.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::provider::{ProviderErrorKind, StopReason};

use crate::wires::Wire;

const MANY: &str = "the service sent several alternative responses to one request: only the first is used";

#[tokio::test]
async fn answer_with_unrelated_events_is_read_in_every_format() {
    let strays = [
        "{}",
        r#"{"type":"ping","cost":"0.00006550"}"#,
        r#"{"type":"ping","message":"still here"}"#,
        r#"{"ts":17}"#,
        r#"{"error":null}"#,
        r#"{"event":"progress","error":{}}"#,
        r#"{"type":"tool_result","result":{"error":"file not found"}}"#,
    ];
    for wire in Wire::ALL {
        for stray in strays.map(ToOwned::to_owned) {
            // In Ollama's format, `message` is a member of the answer, so such an event is not a stray.
            if wire == Wire::Ollama && stray.contains("message") {
                continue;
            }
            let mut events = wire.text(&["Hello"]);
            events.insert(0, stray.clone());
            events.push(stray.clone());
            let body = wire.frame(&stray) + &wire.body(&events) + &wire.frame(&stray);
            let answer = wire.answer(&body).await;
            let answer = answer.unwrap_or_else(|error| panic!("{wire:?} {stray}: {error}"));
            assert_eq!(answer.message.text(), "Hello", "{wire:?} {stray}");
            assert_eq!((answer.stop_reason, answer.warnings), (StopReason::Stop, vec![]), "{wire:?} {stray}");
        }
    }
}

#[tokio::test]
async fn event_that_reports_a_failure_in_a_known_shape_is_an_error() {
    for wire in [Wire::Chat, Wire::Gemini, Wire::Ollama] {
        for report in [
            r#"{"error":{"message":"prompt is too long"}}"#,
            r#"{"error":"prompt is too long"}"#,
            r#"{"type":"error","message":"prompt is too long"}"#,
            r#"{"type":"invalid_request_error","message":"prompt is too long"}"#,
            r#"{"object":"error","message":"prompt is too long","code":400}"#,
            r#"{"errors":[{"message":"prompt is too long"}]}"#,
            r#"{"error":{"error":{"message":"prompt is too long"}}}"#,
            r#"{"error":{"error":{"error":{"message":"prompt is too long"}}}}"#,
            r#"{"error":{"message":"upstream failed","error":{"message":"no","code":"context_length_exceeded"}}}"#,
            r#"{"data":{"error":{"message":"prompt is too long"}}}"#,
            r#"{"type":"error","data":{"error":{"message":"prompt is too long"}}}"#,
            r#"{"msg":"prompt is too long","success":false}"#,
        ] {
            for begun in [vec![], wire.text(&["Hel"])] {
                let events = [begun, vec![report.to_owned()]].concat();
                let body: String = events.iter().map(|event| wire.frame(event)).collect();
                let error = wire.answer(&body).await.unwrap_err();
                assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{wire:?} {report}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn error_inside_a_started_answer_is_found_one_level_deeper_in_every_format() {
    let error = r#"{"error":{"message":"prompt is too long","type":"invalid_request_error"}}"#;
    let events = |wire: Wire| match wire {
        Wire::Chat => vec![
            format!(r#"{{"error":{error}}}"#),
            format!(r#"{{"id":"c","choices":[{{"index":0,"error":{error},"delta":{{}}}}]}}"#),
            r#"{"id":"c","choices":[{"index":0,"delta":{"error":{"message":"prompt is too long"}}}]}"#
                .to_owned(),
        ],
        Wire::Responses => vec![
            format!(r#"{{"type":"error","error":{error}}}"#),
            format!(
                r#"{{"type":"response.failed","response":{{"id":"r","status":"failed","error":{error}}}}}"#
            ),
        ],
        Wire::Messages => vec![format!(r#"{{"type":"error","error":{error}}}"#)],
        Wire::Gemini | Wire::Ollama => vec![format!(r#"{{"error":{error}}}"#)],
    };
    for wire in Wire::ALL {
        for event in events(wire) {
            // In the Messages format, nothing can precede the start of the message, except for an error.
            let begun = if wire == Wire::Messages { Vec::new() } else { wire.text(&["Hel"]) };
            let events = [begun, vec![event.clone()]].concat();
            let body: String = events.iter().map(|event| wire.frame(event)).collect();
            let error = wire.answer(&body).await.unwrap_err();
            assert_eq!(error.kind, ProviderErrorKind::ContextTooLong, "{wire:?} {event}: {error}");
            assert_eq!(error.message, "prompt is too long", "{wire:?} {event}");
        }
    }
}

#[tokio::test]
async fn stream_of_one_object_that_is_not_an_answer_is_a_decoding_error_that_shows_it() {
    for wire in [Wire::Chat, Wire::Gemini, Wire::Ollama] {
        let detail = wire.frame(r#"{"detail":"You shall not pass"}"#);
        let error = wire.answer(&format!("\n{detail}")).await.unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Decoding, false), "{wire:?}: {error}");
        assert!(error.message.contains("You shall not pass"), "{wire:?}: {error}");
        // If the answer had already begun, it counts as truncated.
        let begun = wire.frame(&wire.text(&["Hel"])[0]);
        let error = wire.answer(&(begun + &detail)).await.unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true), "{wire:?}: {error}");
        let error = wire.answer(&wire.frame(r#"{"type":"ping"}"#)).await.unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true), "{wire:?}: {error}");
    }
}

#[tokio::test]
async fn event_with_an_unknown_name_and_no_json_is_skipped_in_every_format() {
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        for data in ["still here", "17", "[1, 2]", "<p>", "{oops}", "\"x\""] {
            let named = format!("event: keep-alive\ndata: {data}\n\n");
            let text = wire.text(&["Hello"]);
            let events = [wire.begin(), text, wire.end()].concat();
            let frames: Vec<String> = events.iter().map(|event| wire.frame(event)).collect();
            let body = named.clone() + &frames.join(&named);
            let answer = wire.answer(&body).await;
            let answer = answer.unwrap_or_else(|error| panic!("{wire:?} {data}: {error}"));
            assert_eq!(answer.message.text(), "Hello", "{wire:?} {data}");
        }
        // If the event has no name or the default name, it is part of the format, so its data is malformed.
        for name in ["", "event: message\n"] {
            let body = format!("{name}data: still here\n\n{}", wire.body(&wire.text(&["Hello"])));
            assert_eq!(
                wire.answer(&body).await.unwrap_err().kind,
                ProviderErrorKind::Decoding,
                "{wire:?} {name}"
            );
        }
    }
}

/// A gateway may rename the events. The content of a renamed event must not be lost silently.
#[tokio::test]
async fn event_with_an_unknown_name_and_content_is_read() {
    for wire in [Wire::Chat, Wire::Responses, Wire::Messages, Wire::Gemini] {
        let events = [wire.begin(), wire.text(&["a\\ud83d", "\\ude00b"]), wire.end()].concat();
        let frames: Vec<String> = events.iter().map(|event| wire.frame(event)).collect();
        let named = format!("event: chunk\n{}", frames.join("event: chunk\n"));
        assert_eq!(wire.answer(&named).await.unwrap().message.text(), "a😀b", "{wire:?}");
    }
    for wire in [Wire::Chat, Wire::Gemini] {
        let cut = wire.text(&["Hello"]).remove(0);
        let body = format!("event: chunk\ndata: {}\n\n{}", &cut[..cut.len() - 4], wire.body(&[]));
        assert_eq!(wire.answer(&body).await.unwrap_err().kind, ProviderErrorKind::Decoding, "{wire:?}");
    }
}

#[tokio::test]
async fn answer_with_an_index_other_than_zero_is_read() {
    let chat = [
        r#"{"choices":[{"index":1,"delta":{"content":"Hel"}}]}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"lo"},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    let gemini = [
        r#"{"candidates":[{"index":1,"content":{"parts":[{"text":"Hel"}]}}]}"#,
        r#"{"candidates":[{"index":1,"content":{"parts":[{"text":"lo"}]},"finishReason":"STOP"}]}"#,
    ];
    for (wire, events) in [(Wire::Chat, &chat[..]), (Wire::Gemini, &gemini)] {
        let body: String = events.iter().map(|event| wire.frame(event)).collect();
        let answer = wire.answer(&body).await.unwrap();
        assert_eq!((answer.message.text(), answer.warnings), ("Hello".to_owned(), vec![]), "{wire:?}");
    }
}

#[tokio::test]
async fn further_answers_give_one_warning() {
    let chat = [
        r#"{"choices":[{"index":0,"delta":{"content":"Hello"}},{"index":1,"delta":{"content":"Bye"}}]}"#,
        r#"{"choices":[{"index":1,"delta":{"content":"!"},"finish_reason":"stop"}]}"#,
        r#"{"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]}"#,
        "[DONE]",
    ];
    let gemini = [
        r#"{"candidates":[{"content":{"parts":[{"text":"Hello"}]}},{"index":1,"content":{"parts":[{"text":"Bye"}]}}]}"#,
        r#"{"candidates":[{"index":1,"content":{"parts":[{"text":"!"}]},"finishReason":"STOP"}]}"#,
        r#"{"candidates":[{"index":0,"content":{"parts":[{"text":"."}]},"finishReason":"STOP"}]}"#,
    ];
    for (wire, events) in [(Wire::Chat, &chat[..]), (Wire::Gemini, &gemini)] {
        let body: String = events.iter().map(|event| wire.frame(event)).collect();
        let answer = wire.answer(&body).await.unwrap();
        assert_eq!(
            (answer.message.text(), answer.warnings),
            ("Hello.".to_owned(), vec![MANY.to_owned()]),
            "{wire:?}"
        );
    }
}

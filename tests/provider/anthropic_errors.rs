//! Anthropic's Messages format: answers that fail.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::provider::{
    ProviderError, ProviderErrorKind, Request,
    custom::{AnthropicMessages, Dialect, Frame},
};
use omni_agent::testing::internals::Fold;
use serde_json::{Value, json};

use crate::anthropic::{block, decode, delta, start, stop};

/// Returns the error that this event causes if it follows the start of an answer with an open text block.
fn failure(event: &str, data: &str) -> ProviderError {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    for event in [start(), block(0, json!({"type": "text"}))] {
        decoder.decode(Frame::new("", &event.to_string()), &mut deltas).unwrap();
    }
    let before = deltas.len();
    let error = decoder.decode(Frame::new(event, data), &mut deltas).unwrap_err();
    assert_eq!(deltas.len(), before, "an event that fails emits no delta");
    error
}

#[test]
fn decode_error_events_map_to_their_kind() {
    for (kind, expected) in [
        ("overloaded_error", ProviderErrorKind::Overloaded),
        ("rate_limit_error", ProviderErrorKind::RateLimit),
        ("api_error", ProviderErrorKind::Service),
        ("invalid_request_error", ProviderErrorKind::InvalidRequest),
        ("authentication_error", ProviderErrorKind::Auth),
        ("permission_error", ProviderErrorKind::Auth),
    ] {
        let data = json!({"type": "error", "error": {"type": kind, "message": "So it is."}}).to_string();
        for name in ["error", ""] {
            let error = failure(name, &data);
            assert_eq!(error.kind, expected, "{kind}");
            assert!(error.message.contains("So it is."), "{error}");
        }
    }
}

#[test]
fn decode_errors_in_other_envelopes_are_errors() {
    let other = r#"{"error":{"code":503,"message":"Loading","type":"unavailable_error"}}"#;
    for name in ["", "error"] {
        let error = failure(name, other);
        assert!(error.retryable, "{error:?}");
        assert!(error.message.contains("Loading"), "{error}");
    }
    assert!(failure("error", "upstream went away").message.contains("upstream went away"));
    assert!(failure("error", r#"{"message":"went away"}"#).message.contains("went away"));
    assert!(failure("", r#"{"error":"went away","index":"x"}"#).message.contains("went away"));
}

#[test]
fn decode_bare_error_in_event_named_error_is_that_error() {
    // llama.cpp sends this event. Its `type` is the type of the error and not the type of the event.
    for extra in ["", r#","delta":7"#] {
        let data = format!(r#"{{"code":500,"message":"No match","type":"server_error"{extra}}}"#);
        let error = failure("error", &data);
        assert_eq!((error.kind, error.status), (ProviderErrorKind::Service, Some(500)), "{error:?}");
        assert!(error.message.contains("No match"), "{error}");
    }
}

#[test]
fn decode_error_before_message_start_is_that_error() {
    let overloaded = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
    assert_eq!(decode(&[overloaded]).unwrap_err().kind, ProviderErrorKind::Overloaded);
}

#[test]
fn decode_malformed_events_are_decoding_errors() {
    let text = || json!({"type": "text_delta", "text": "x"});
    let tool = json!({"type": "tool_use", "id": "t", "name": "n"});
    for event in [
        // The index is invalid, or no block has this index.
        json!({"type": "content_block_delta", "delta": text()}),
        json!({"type": "content_block_delta", "index": -1, "delta": text()}),
        json!({"type": "content_block_delta", "index": "0", "delta": text()}),
        json!({"type": "content_block_delta", "index": 0.5, "delta": text()}),
        delta(1, text()),
        delta(u64::MAX, text()),
        json!({"type": "content_block_stop"}),
        block(u64::MAX, tool.clone()),
        block(1 << 32, tool.clone()),
        block(Fold::MAX_BLOCKS as u64, tool.clone()),
        json!({"type": "content_block_start", "content_block": tool}),
        // The block starts a second time, or the start event has an invalid shape.
        block(0, tool.clone()),
        block(1, Value::Null),
        block(1, json!("text")),
        block(1, json!({"text": "x"})),
        block(1, json!({"type": 5})),
        block(1, json!({"type": "text", "text": 5})),
        block(1, json!({"type": "tool_use", "id": {}, "name": "n"})),
        // The delta does not fit the kind of its block, or the delta event has an invalid shape.
        delta(0, json!({"type": "thinking_delta", "thinking": "x"})),
        delta(0, json!({"type": "signature_delta", "signature": "x"})),
        delta(0, json!({"type": "input_json_delta", "partial_json": "{}"})),
        delta(0, json!({"type": "text_delta", "text": 5})),
        delta(0, json!({"text": "x"})),
        delta(0, Value::Null),
        // A second message starts, because a gateway repeated the request. Or a start event has no id that could be
        // compared.
        json!({"type": "message_start", "message": {"id": "msg_2", "content": []}}),
        json!({"type": "message_start"}),
    ] {
        let error = failure("", &event.to_string());
        assert_eq!(error.kind, ProviderErrorKind::Decoding, "{event}");
    }
}

#[test]
fn decode_stop_reason_that_announces_a_tool_use_without_any_block_is_a_retryable_error() {
    let reason = |word: &str| {
        json!({"type": "message_delta",
            "delta": {"stop_reason": word, "stop_sequence": null, "stop_details": null},
            "usage": {"output_tokens": 5}})
    };
    let last = json!({"type": "message_stop"});
    let error = decode(&[start(), reason("tool_use"), last.clone()]).unwrap_err();
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Service, true), "{error}");
    decode(&[start(), reason("end_turn"), last]).unwrap();
}

#[test]
fn decode_delta_for_a_block_that_has_ended_is_a_decoding_error() {
    let late = delta(0, json!({"type": "text_delta", "text": "x"}));
    let events = [start(), block(0, json!({"type": "text"})), stop(0), late];
    assert_eq!(decode(&events).unwrap_err().kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_events_before_message_start_are_decoding_errors() {
    for early in [
        block(0, json!({"type": "text"})),
        delta(0, json!({"type": "text_delta", "text": "x"})),
        stop(0),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        json!({"type": "message_stop"}),
    ] {
        assert_eq!(decode(&[early]).unwrap_err().kind, ProviderErrorKind::Decoding);
    }
}

#[test]
fn decode_more_blocks_than_the_limit_is_a_decoding_error() {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    let mut fold = Fold::default();
    let mut feed = |event: Value| {
        let mut deltas = Vec::new();
        decoder.decode(Frame::new("", &event.to_string()), &mut deltas)?;
        deltas.into_iter().try_for_each(|delta| fold.apply(delta))
    };
    feed(start()).unwrap();
    for index in 0..Fold::MAX_BLOCKS as u64 {
        feed(block(index, json!({"type": "text"}))).unwrap();
    }
    let error = feed(block(0, json!({"type": "text"}))).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_data_that_is_not_a_json_object_is_a_decoding_error_with_the_shortened_data() {
    for data in ["{\"type\":\"message_st", "hello", "[]", "[\"message_stop\"]", "3", "null", "{\"type\":}"] {
        for name in ["", "message_stop"] {
            let error = failure(name, data);
            assert_eq!(error.kind, ProviderErrorKind::Decoding, "{data}");
            assert!(error.message.contains(data), "{error}");
            assert_eq!(error.body.as_deref(), Some(data));
        }
    }
    let long = format!("{{\"é\":{}", "é".repeat(100_000));
    let error = failure("", &long);
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
    assert!(error.message.len() < 500 && error.body.unwrap().len() <= ProviderError::BODY_LIMIT);
}

#[rustfmt::skip] // one line per case
/// The documented errors: status, type, message, kind, and whether a retry can help. Source:
/// <https://platform.claude.com/docs/en/api/errors>.
const DOCUMENTED: &[(u16, &str, &str, ProviderErrorKind, bool)] = &[
    (400, "invalid_request_error", "messages: roles must alternate", ProviderErrorKind::InvalidRequest, false),
    (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", ProviderErrorKind::ContextTooLong, false),
    (400, "invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 2", ProviderErrorKind::ContextTooLong, false),
    (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API.", ProviderErrorKind::Quota, false),
    (401, "authentication_error", "invalid x-api-key", ProviderErrorKind::Auth, false),
    (402, "billing_error", "There is an issue with your billing.", ProviderErrorKind::Quota, false),
    (403, "permission_error", "Your API key does not have permission to use the resource.", ProviderErrorKind::Auth, false),
    (404, "not_found_error", "model: claude-none", ProviderErrorKind::InvalidRequest, false),
    (413, "request_too_large", "Request exceeds the maximum allowed number of bytes.", ProviderErrorKind::InvalidRequest, false),
    (429, "rate_limit_error", "This request would exceed your account's rate limit.", ProviderErrorKind::RateLimit, true),
    (500, "api_error", "Internal server error", ProviderErrorKind::Service, true),
    (504, "timeout_error", "The request timed out while processing.", ProviderErrorKind::Timeout, true),
    (529, "overloaded_error", "Overloaded", ProviderErrorKind::Overloaded, true),
];

#[test]
fn error_bodies_map_to_their_kind_before_and_inside_an_answer() {
    for &(status, word, message, kind, retryable) in DOCUMENTED {
        let error = json!({"type": word, "message": message});
        let body = json!({"type": "error", "error": error, "request_id": "req_1"}).to_string();
        let error = AnthropicMessages::default().error(status, &body);
        assert_eq!((error.kind, error.retryable, error.status), (kind, retryable, Some(status)), "{error:?}");
        assert_eq!((&*error.message, error.request_id.as_deref()), (message, Some("req_1")));
        assert_eq!(error.body.as_deref(), Some(&*body));

        let error = failure("error", &body);
        assert_eq!((error.kind, error.retryable, &*error.message), (kind, retryable, message), "{error:?}");
    }
}

/// `message` is the default event name of server-sent events.
#[test]
fn decode_error_in_event_named_message_is_that_error() {
    let too_long = "prompt is too long: 200001 tokens > 200000 maximum";
    let error = json!({"type": "invalid_request_error", "message": too_long});
    for name in ["message", ""] {
        for data in [
            json!({"type": "error", "error": error}),
            json!({"error": error}),
            json!({"type": "message", "error": error}),
            json!({"type": "message", "role": "assistant", "content": [], "error": error}),
            json!({"error": error, "index": "x"}),
            error.clone(),
        ] {
            let mut decoder = AnthropicMessages::default().decoder(&Request::default());
            let frame = data.to_string();
            let failed = decoder.decode(Frame::new(name, &frame), &mut Vec::new()).unwrap_err();
            assert_eq!(
                (failed.kind, failed.retryable),
                (ProviderErrorKind::ContextTooLong, false),
                "{name:?} {data}"
            );
            assert!(failed.message.contains(too_long), "{failed}");
        }
        let failed = failure(name, &json!({"type": "message", "error": error}).to_string());
        assert_eq!(failed.kind, ProviderErrorKind::ContextTooLong);
        assert_eq!(failure(name, "<html>").kind, ProviderErrorKind::Decoding);
    }
}

#[test]
fn decode_answer_in_events_named_message_is_that_answer() {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    let whole = json!({"type": "message", "role": "assistant", "content": [{"type": "text", "text": "Hi"}], "error": null});
    decoder.decode(Frame::new("message", &whole.to_string()), &mut deltas).unwrap();
    decoder.end(&mut deltas).unwrap();
}

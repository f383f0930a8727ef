use omni_agent::provider::{
    ProviderErrorKind::{self, *},
    Request,
    custom::{Dialect, Frame, OpenAiResponses},
};
use serde_json::{Value, json};

use crate::responses::{added, created, decode, delta, done, message};

#[rustfmt::skip] // one line per case
/// Error replies: the status, the body, the expected kind, whether a retry can help, and a part of the message.
/// Sources: <https://platform.openai.com/docs/guides/error-codes>, and llama.cpp's server.
const BODIES: &[(u16, &str, ProviderErrorKind, bool, &str)] = &[
    (401, r#"{"error":{"message":"Incorrect API key provided: sk-x.","type":"invalid_request_error","param":null,"code":"invalid_api_key"}}"#, Auth, false, "Incorrect"),
    (403, r#"{"error":{"message":"Country, region, or territory not supported","type":"request_forbidden","code":"unsupported_country_region_territory"}}"#, Auth, false, "Country"),
    (429, r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#, Quota, false, "exceeded"),
    (429, r#"{"error":{"message":"Rate limit reached for m","type":"tokens","code":"rate_limit_exceeded"}}"#, RateLimit, true, "Rate limit"),
    (400, r#"{"error":{"message":"Your input exceeds the context window of this model.","type":"invalid_request_error","param":"input","code":"context_length_exceeded"}}"#, ContextTooLong, false, "exceeds"),
    (400, r#"{"error":{"message":"Encrypted content is not supported with this model.","type":"invalid_request_error","param":"include","code":null}}"#, InvalidRequest, false, "Encrypted"),
    (400, r#"{"error":{"message":"Invalid 'input[1].call_id': string too long.","type":"invalid_request_error","param":"input[1].call_id","code":"string_above_max_length"}}"#, InvalidRequest, false, "call_id"),
    (404, r#"{"error":{"message":"Item with id 'rs_1' not found.","type":"invalid_request_error","param":"input","code":null}}"#, InvalidRequest, false, "rs_1"),
    (500, r#"{"error":{"message":"The server had an error","type":"server_error","param":null,"code":"server_error"}}"#, Service, true, "had an error"),
    (503, r#"{"error":{"message":"The engine is currently overloaded","type":"server_error"}}"#, Overloaded, true, "overloaded"),
    (400, r#"{"error":{"code":400,"message":"request (9 tokens) exceeds the available context size (4 tokens)","type":"exceed_context_size_error","n_prompt_tokens":9,"n_ctx":4}}"#, ContextTooLong, false, "9 tokens"),
    (404, r#"{"error":{"message":"File Not Found","type":"not_found_error","code":404}}"#, InvalidRequest, false, "File"),
    (502, "<html><title>Bad Gateway</title></html>", Service, true, "Bad Gateway"),
];

#[test]
fn error_bodies_map_to_their_kind() {
    for &(status, body, kind, retryable, part) in BODIES {
        let error = OpenAiResponses::openai().error(status, body);
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{status} {body}: {error}");
        assert!(error.message.contains(part), "{status} {body}: {error}");
        assert_eq!((error.status, error.body.as_deref()), (Some(status), Some(body)));
    }
}

#[rustfmt::skip] // one line per case
/// Errors inside an answer: the code, the message, the expected kind, and whether a retry can help. The codes are those
/// in <https://platform.openai.com/docs/api-reference/responses/object#responses/object-error>, and undocumented codes
/// that the service sends.
const CODES: &[(&str, &str, ProviderErrorKind, bool)] = &[
    ("server_error", "The model failed to generate a response.", Service, true),
    ("rate_limit_exceeded", "Rate limit reached for m in organization o: please try again in 2s.", RateLimit, true),
    ("insufficient_quota", "You exceeded your current quota.", Quota, false),
    ("context_length_exceeded", "Your input exceeds the context window of this model.", ContextTooLong, false),
    ("server_is_overloaded", "Our servers are currently overloaded.", Overloaded, true),
    ("slow_down", "Slow down.", Overloaded, true),
    ("vector_store_timeout", "Too slow.", Timeout, true),
    ("invalid_prompt", "Your prompt was flagged.", InvalidRequest, false),
    ("invalid_image", "No image.", InvalidRequest, false),
    ("invalid_image_url", "No URL.", InvalidRequest, false),
    ("image_too_large", "Too large.", InvalidRequest, false),
    ("image_parse_error", "No image.", InvalidRequest, false),
    ("image_content_policy_violation", "No.", InvalidRequest, false),
    ("unsupported_image_media_type", "No image.", InvalidRequest, false),
    ("empty_image_file", "Empty.", InvalidRequest, false),
    ("failed_to_download_image", "Gone.", InvalidRequest, false),
    ("image_file_not_found", "Gone.", InvalidRequest, false),
    ("cyber_policy", "No.", InvalidRequest, false),
    ("new_code", "What is this?", Service, true),
];

#[test]
fn error_inside_an_answer_maps_to_its_kind_in_every_shape() {
    for &(code, message, kind, retryable) in CODES {
        let nested = json!({"type": "invalid_or_not", "code": code, "message": message, "param": null});
        for event in [
            json!({"type": "error", "code": code, "message": message, "param": null, "sequence_number": 3}),
            json!({"type": "error", "sequence_number": 3, "error": {"code": code, "message": message}}),
            json!({"error": {"code": code, "message": message}}),
            json!({"type": "response.failed", "response": {"id": "resp_1", "status": "failed",
                "error": {"code": code, "message": message}, "output": [], "usage": null}}),
            json!({"type": "response.failed", "response": {"status": "failed", "error": nested}}),
            json!({"object": "response", "status": "failed", "error": {"code": code, "message": message}}),
        ] {
            let error = decode(&[created(), event.clone()]).unwrap_err();
            let odd = event.to_string().contains("invalid_or_not") && kind == Service;
            if !odd {
                assert_eq!((error.kind, error.retryable), (kind, retryable), "{event}: {error}");
            }
            assert!(error.message.contains(message) && error.body.is_some(), "{event}: {error}");
        }
    }
}

#[test]
fn error_in_an_event_named_response_error_maps_to_its_kind_without_an_error_member() {
    let unavailable = json!({"type": "response.error", "status": 503, "response": {"error":
        {"type": "invalid_request_error", "code": "model_unavailable", "message": "Model unavailable"}}});
    for (event, kind, part) in [
        (
            json!({"type": "response.error", "message": "context_length_exceeded"}),
            ContextTooLong,
            "context_length_exceeded",
        ),
        (unavailable, Overloaded, "Model unavailable"),
        (
            json!({"type": "response.error", "error": {"code": "invalid_prompt", "message": "No."}}),
            InvalidRequest,
            "No.",
        ),
    ] {
        let error = decode(&[created(), event.clone()]).unwrap_err();
        assert_eq!(error.kind, kind, "{event}: {error}");
        assert!(error.message.contains(part), "{event}: {error}");
    }
}

#[test]
fn error_inside_an_answer_keeps_the_wait_that_its_text_states() {
    let message = "Rate limit reached for m on tokens per min (TPM). Please try again in 17.252s.";
    let error = json!({"code": "rate_limit_exceeded", "message": message});
    let event = json!({"type": "response.failed", "response": {"status": "failed", "error": error}});
    let error = decode(&[created(), event]).unwrap_err();
    assert_eq!((error.kind, error.retry_after.map(|wait| wait.as_millis())), (RateLimit, Some(17_252)));
}

#[test]
fn error_without_a_reason_is_a_service_error() {
    for (kind, status) in
        [("failed", "failed"), ("completed", "failed"), ("cancelled", "cancelled"), ("failed", "in_progress")]
    {
        let event =
            json!({"type": format!("response.{kind}"), "response": {"status": status, "error": null}});
        let error = decode(&[created(), event]).unwrap_err();
        assert_eq!((error.kind, error.retryable), (Service, true), "{kind} {status}");
    }
}

#[test]
fn error_event_that_is_not_json_keeps_its_text() {
    let mut decoder = OpenAiResponses::default().decoder(&Request::default());
    let error = decoder.decode(Frame::new("error", "upstream died"), &mut Vec::new()).unwrap_err();
    assert_eq!((error.kind, &*error.message), (Service, "upstream died"));
}

#[test]
fn error_follows_the_text_before_it() {
    let mut decoder = OpenAiResponses::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    let events = [
        created(),
        delta("output_text", 0, "msg_1", "Hel"),
        json!({"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"},
            "usage": {"input_tokens": 4}}}),
    ];
    let results = events.map(|event| decoder.decode(Frame::new("", &event.to_string()), &mut deltas));
    assert!(results[..2].iter().all(Result::is_ok) && results[2].is_err());
    assert!(deltas.iter().any(omni_agent::provider::custom::Delta::is_content));
    assert!(!decoder.is_done());
}

#[test]
fn answer_without_its_terminal_event_is_truncated() {
    let events = [
        created(),
        added(0, json!({"id": "msg_1", "type": "message"})),
        delta("output_text", 0, "msg_1", "Hello"),
        done(0, message("msg_1", "Hello")),
        json!("[DONE]"),
    ];
    for count in 0..=events.len() {
        assert_eq!(decode(&events[..count]).unwrap_err().kind, Truncated, "{count}");
    }
}

#[test]
fn events_that_violate_the_format_are_decoding_errors() {
    for event in [
        json!("no JSON"),
        json!("[1]"),
        json!("{\"type\":"),
        json!({"type": "response.output_item.added", "output_index": 0}),
        json!({"type": "response.output_item.done", "item": "x"}),
        json!({"type": "response.completed"}),
        json!({"type": "response.completed", "response": []}),
    ] {
        assert_eq!(decode(&[created(), event.clone()]).unwrap_err().kind, Decoding, "{event}");
    }
    // No delta fits the kind of its item.
    let call = added(0, json!({"id": "fc_1", "type": "function_call", "name": "f", "call_id": "c"}));
    for (kind, item) in [
        ("output_text", call.clone()),
        ("reasoning_text", call),
        ("function_call_arguments", added(0, Value::Null)),
    ] {
        let item =
            if item["item"].is_null() { added(0, json!({"id": "fc_1", "type": "message"})) } else { item };
        let error = decode(&[created(), item, delta(kind, 0, "fc_1", "x")]).unwrap_err();
        assert_eq!(error.kind, Decoding);
        assert!(error.message.contains("for an item that is"), "{error}");
    }
}

#[test]
fn unfinished_response_is_truncated() {
    for status in ["queued", "in_progress"] {
        let whole = json!({"object": "response", "id": "r", "status": status, "output": []});
        assert_eq!(decode(&[whole]).unwrap_err().kind, ProviderErrorKind::Truncated, "{status}");
    }
}

#[test]
fn error_about_summaries_explains_how_to_disable_them() {
    let body =
        json!({"error": {"message": "Your organization must be verified to generate reasoning summaries.",
        "type": "invalid_request_error", "param": "reasoning.summary", "code": "unsupported_value"}})
        .to_string();
    let error = OpenAiResponses::openai().error(400, &body);
    assert_eq!(error.kind, ProviderErrorKind::InvalidRequest);
    assert!(
        error.message.starts_with("Your organization must") && error.message.contains("without_summaries()")
    );
    let asks_for_none = OpenAiResponses::openai().without_summaries();
    assert!(!asks_for_none.error(400, &body).message.contains("with_summaries"));
}

/// `message` is the default event name of server-sent events.
#[test]
fn decode_events_named_message_are_identified_by_their_data() {
    let decode = |data: Value| {
        let mut decoder = OpenAiResponses::default().decoder(&Request::default());
        let mut deltas = Vec::new();
        decoder.decode(Frame::new("message", &data.to_string()), &mut deltas)?;
        decoder.end(&mut deltas)
    };
    let error = json!({"error": {"type": "invalid_request_error", "message": "prompt is too long"}});
    assert_eq!(decode(error).unwrap_err().kind, ProviderErrorKind::ContextTooLong);
    decode(json!({"object": "response", "status": "completed", "output": []})).unwrap();
}

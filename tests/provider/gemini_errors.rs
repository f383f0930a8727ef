//! Google's Gemini format: errors that replace an answer, and errors inside an answer.

use omni_agent::provider::{
    ProviderErrorKind::{self, *},
    custom::{Dialect, GoogleGemini},
};
use serde_json::json;

use crate::gemini::{answer, deltas_of, finish, parts};

#[rustfmt::skip] // one line per case
/// Error replies: the status, the body, the expected kind, whether a retry can help, and a part of the message.
const BODIES: &[(u16, &str, ProviderErrorKind, bool, &str)] = &[
    (400, r#"{"error":{"code":400,"message":"Invalid JSON payload received. Unknown name \"x\"","status":"INVALID_ARGUMENT"}}"#, InvalidRequest, false, "Unknown name"),
    (400, r#"{"error":{"code":400,"message":"Function call is missing a thought_signature in functionCall parts.","status":"INVALID_ARGUMENT"}}"#, InvalidRequest, false, "thought_signature"),
    (400, r#"{"error":{"code":400,"message":"The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}"#, ContextTooLong, false, "1048576"),
    (400, r#"{"error":{"code":400,"message":"User location is not supported for the API use.","status":"FAILED_PRECONDITION"}}"#, InvalidRequest, false, "location"),
    (400, r#"{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT","details":[{"@type":"type.googleapis.com/google.rpc.ErrorInfo","reason":"API_KEY_INVALID"}]}}"#, Auth, false, "API key"),
    (403, r#"{"error":{"code":403,"message":"Method doesn't allow unregistered callers","status":"PERMISSION_DENIED"}}"#, Auth, false, "unregistered"),
    (404, r#"{"error":{"code":404,"message":"models/nope is not found for API version v1beta","status":"NOT_FOUND"}}"#, InvalidRequest, false, "not found"),
    (429, r#"[{"error":{"code":429,"message":"Resource has been exhausted (e.g. check quota).","status":"RESOURCE_EXHAUSTED"}}]"#, RateLimit, true, "exhausted"),
    (500, r#"{"error":{"code":500,"message":"An internal error has occurred.","status":"INTERNAL"}}"#, Service, true, "internal"),
    (503, r#"{"error":{"code":503,"message":"The model is overloaded. Please try again later.","status":"UNAVAILABLE"}}"#, Overloaded, true, "overloaded"),
    (504, r#"{"error":{"code":504,"message":"Deadline expired before operation could complete.","status":"DEADLINE_EXCEEDED"}}"#, Timeout, true, "Deadline"),
];

#[test]
fn error_bodies_map_to_their_kind_before_and_inside_an_answer() {
    for &(status, body, kind, retryable, part) in BODIES {
        let error = GoogleGemini::default().error(status, body);
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{status} {body}: {error}");
        assert!(error.message.contains(part), "{status} {body}: {error}");
        assert_eq!((error.status, error.body.as_deref()), (Some(status), Some(body)));

        let error = deltas_of(&[parts(json!([{"text": "Hi"}])).to_string(), body.to_owned()]).unwrap_err();
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{body}: {error}");
        assert_eq!((error.status, error.body.as_deref()), (Some(status), Some(body)));
    }
}

#[test]
fn error_for_quota_has_a_wait_per_minute_and_is_final_per_day() {
    let body = |quota: &str| {
        json!({"error": {"code": 429, "message": "You exceeded your current quota.", "status": "RESOURCE_EXHAUSTED",
            "details": [
                {"@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaMetric": "requests", "quotaId": quota}]},
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.5s"}]}})
        .to_string()
    };
    let minute =
        GoogleGemini::default().error(429, &body("GenerateRequestsPerMinutePerProjectPerModel-FreeTier"));
    assert_eq!((minute.kind, minute.retryable), (RateLimit, true));
    assert_eq!(minute.retry_after.map(|wait| wait.as_millis()), Some(34_500));
    let day = body("GenerateRequestsPerDayPerProjectPerModel-FreeTier");
    for error in [GoogleGemini::default().error(429, &day), deltas_of(&[day]).unwrap_err()] {
        assert_eq!((error.kind, error.retryable), (Quota, false));
    }
}

#[test]
fn error_finish_reasons_determine_whether_a_retry_helps() {
    for (word, kind, retryable) in [
        ("MALFORMED_FUNCTION_CALL", Service, true),
        ("MALFORMED_RESPONSE", Service, true),
        ("UNEXPECTED_TOOL_CALL", Service, true),
        ("MISSING_THOUGHT_SIGNATURE", InvalidRequest, false),
    ] {
        let mut last = finish(word);
        last["candidates"][0]["finishMessage"] = "print(f(".into();
        let error = answer(&[last]).unwrap_err();
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{error}");
        assert!(error.message.ends_with(&format!("{word}: print(f(")), "{error}");
    }
}

//! Ollama's chat format: errors that replace an answer, and errors inside an answer.

use omni_agent::provider::{
    ProviderErrorKind::{self, *},
    custom::{Dialect, OllamaChat},
};
use serde_json::json;

use crate::ollama::{deltas_of, line};

#[rustfmt::skip] // one line per case
/// Error replies: the status, the body, the expected kind, whether a retry can help, and a part of the message.
const BODIES: &[(u16, &str, ProviderErrorKind, bool, &str)] = &[
    (404, r#"{"error":"model 'nope' not found"}"#, InvalidRequest, false, "'nope' not found"),
    (400, r#"{"error":"registry.ollama.ai/library/gemma:2b does not support tools"}"#, Unsupported, false, "tools"),
    (400, r#"{"error":"\"llama3.2\" does not support thinking"}"#, Unsupported, false, "thinking"),
    (400, r#"{"error":"json: cannot unmarshal string into Go struct field"}"#, InvalidRequest, false, "Go struct"),
    (400, r#"{"error":"the input length exceeds the context length"}"#, ContextTooLong, false, "context length"),
    (400, r#"{"error":"{\"error\":{\"code\":400,\"message\":\"request (2622 tokens) exceeds the available context size (512 tokens), try increasing it\",\"type\":\"exceed_context_size_error\"}}"}"#, ContextTooLong, false, "context size"),
    (401, r#"{"error":"unauthorized","signin_url":"https://ollama.com/connect"}"#, Auth, false, "unauthorized"),
    (403, r#"{"error":"this model requires a subscription"}"#, Auth, false, "subscription"),
    (429, r#"{"error":"you've reached your hourly usage limit, please upgrade to continue"}"#, Quota, false, "hourly"),
    (429, r#"{"error":"too many concurrent requests"}"#, RateLimit, true, "concurrent"),
    (500, r#"{"error":"model requires more system memory (9 GiB) than is available (4 GiB)"}"#, Service, false, "memory"),
    (500, r#"{"error":"llama runner process has terminated: exit status 2"}"#, Service, true, "terminated"),
    (502, r#"{"error":"upstream error"}"#, Service, true, "upstream"),
    (503, r#"{"error":"server busy, please try again.  maximum pending requests exceeded"}"#, Overloaded, true, "busy"),
    (404, "404 page not found", InvalidRequest, false, "page not found"),
];

#[test]
fn error_bodies_map_to_their_kind() {
    for &(status, body, kind, retryable, part) in BODIES {
        let error = OllamaChat::default().error(status, body);
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{status} {body}: {error}");
        assert!(error.message.contains(part), "{status} {body}: {error}");
        assert_eq!((error.status, error.body.as_deref()), (Some(status), Some(body)));
    }
}

#[test]
fn error_lines_inside_an_answer_end_it() {
    for (text, kind, retryable) in [
        ("an error was encountered while running the model: unexpected EOF", Service, true),
        ("model requires more system memory than is available", Service, false),
        ("you've reached your weekly usage limit", Quota, false),
        ("\"m\" does not support tools", Unsupported, false),
    ] {
        let data = json!({"error": text}).to_string();
        let error = deltas_of(&[line(json!({"content": "Hi"})).to_string(), data.clone()]).unwrap_err();
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{error}");
        assert_eq!((&*error.message, error.body.as_deref()), (text, Some(&*data)));
    }
    let nothing = json!({"error": "", "message": {"content": "x"}, "done": true}).to_string();
    assert!(deltas_of(&[nothing]).is_ok());
}

//! Converts failed requests to errors of a backend.

use agent_client_protocol_schema::v1::{AuthMethod, Error, ErrorCode};
use serde_json::Value;

use crate::{
    process::lines::shown,
    provider::backend::{BackendError, SessionId},
};

/// The maximum length of the agent's text that an error quotes.
const LONGEST: usize = 2000;

/// Returns the error for a request that the agent refused.
pub(super) fn refused(method: &'static str, error: &Error, sign_in: &[AuthMethod]) -> BackendError {
    let words = format!("`{method}`: {}", words(error));
    match error.code {
        ErrorCode::AuthRequired => BackendError::Auth(auth(&words, sign_in)),
        ErrorCode::InvalidParams | ErrorCode::InvalidRequest => BackendError::Invalid(words),
        ErrorCode::MethodNotFound => BackendError::Unsupported(words),
        _ => BackendError::Failed(words),
    }
}

/// Returns the error for a session that the agent did not resume.
pub(super) fn not_resumed(
    method: &'static str,
    error: &Error,
    id: &SessionId,
    sign_in: &[AuthMethod],
) -> BackendError {
    // The protocol defines a code for a missing session, but many agents report a missing session with another code.
    // Therefore, the text of the error is searched for the usual descriptions.
    let text = words(error).to_lowercase();
    let has = |words: &[&str]| words.iter().any(|words| text.contains(words));
    let is_missing = has(&["not found", "no such", "unknown", "not exist", "no session", "invalid session"])
        || (has(&["no "]) && has(&[" found"]));
    // The text must also mention a session, because "not found" can refer to a key, a model or a settings file.
    let is_unknown = is_missing && has(&["session", "thread", "conversation", "rollout"]);
    let unknown = || BackendError::UnknownSession { id: id.clone(), message: words(error) };
    match error.code {
        ErrorCode::AuthRequired => refused(method, error, sign_in),
        ErrorCode::ResourceNotFound => unknown(),
        ErrorCode::MethodNotFound => BackendError::NotResumable(words(error)),
        _ if is_unknown => unknown(),
        _ => refused(method, error, sign_in),
    }
}

fn auth(words: &str, sign_in: &[AuthMethod]) -> String {
    if sign_in.is_empty() {
        return format!("{words}; it offers no method to sign in");
    }
    let ways: Vec<String> = sign_in
        .iter()
        .map(|method| {
            let about = method.description().map(|about| format!(": {about}")).unwrap_or_default();
            format!("{} (`{}`){about}", method.name(), method.id())
        })
        .collect();
    let ways = shown(ways.join("; ").as_bytes(), LONGEST);
    format!("{words}; sign in with the program itself, or set `with_sign_in` to one of: {ways}")
}

fn words(error: &Error) -> String {
    let mut words = error.message.clone();
    let detail = match &error.data {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Object(members)) => ["details", "message", "error", "reason"]
            .iter()
            .find_map(|name| members.get(*name)?.as_str().map(str::to_owned))
            .or_else(|| Some(Value::Object(members.clone()).to_string())),
        _ => None,
    };
    if let Some(detail) = detail.filter(|detail| !detail.is_empty() && *detail != words) {
        words.push_str(": ");
        words.push_str(&detail);
    }
    shown(words.as_bytes(), LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_session_is_recognised_in_each_wording() {
        let id = SessionId::new("s");
        let failure = |code: i32, message: &str, detail: &str| {
            let error = Error::new(code, message).data(serde_json::json!({ "details": detail }));
            not_resumed("session/load", &error, &id, &[])
        };
        for detail in [
            "Session not found: s",
            "Invalid session identifier \"s\".",
            "no rollout found for thread id s",
            "No conversation found with session ID: s",
        ] {
            let message = format!("Internal error: {detail}");
            let unknown = BackendError::UnknownSession { id: id.clone(), message };
            assert_eq!(failure(-32603, "Internal error", detail), unknown);
        }
        let message = "Resource not found".to_owned();
        assert_eq!(
            failure(-32002, "Resource not found", ""),
            BackendError::UnknownSession { id: id.clone(), message }
        );
        for detail in
            ["the disk is full", "No API key found", "model not found: x", "no such file: settings.json"]
        {
            assert!(matches!(failure(-32603, "Internal error", detail), BackendError::Failed(_)), "{detail}");
        }
    }
}

//! The contents of a `ProviderError`, and how it is displayed and stored.

use std::{error::Error, io, time::Duration};

use omni_agent::provider::{ProviderError, ProviderErrorKind};
use proptest::prelude::*;
use serde_json::{from_value, json, to_value};

const KINDS: [(ProviderErrorKind, &str, bool); 12] = [
    (ProviderErrorKind::Auth, "auth", false),
    (ProviderErrorKind::RateLimit, "rate_limit", true),
    (ProviderErrorKind::Quota, "quota", false),
    (ProviderErrorKind::Overloaded, "overloaded", true),
    (ProviderErrorKind::InvalidRequest, "invalid_request", false),
    (ProviderErrorKind::ContextTooLong, "context_too_long", false),
    (ProviderErrorKind::Unsupported, "unsupported", false),
    (ProviderErrorKind::Timeout, "timeout", true),
    (ProviderErrorKind::Transport, "transport", true),
    (ProviderErrorKind::Decoding, "decoding", false),
    (ProviderErrorKind::Truncated, "truncated", true),
    (ProviderErrorKind::Service, "service", true),
];

#[test]
fn error_of_each_kind_has_a_default_for_retryable() {
    for (kind, name, transient) in KINDS {
        let error = ProviderError::new(kind, "why");
        assert_eq!((kind.is_transient(), error.retryable), (transient, transient), "{name}");
        assert_eq!(error.clone().with_retryable(!transient).retryable, !transient);
        assert_eq!(to_value(kind).unwrap(), json!(name));
        assert_eq!(error.to_string(), format!("{kind}: why"));
    }
}

#[test]
fn display_shows_kind_status_message_and_cause() {
    let cause = io::Error::other("the cause");
    let error = ProviderError::new(ProviderErrorKind::RateLimit, "slow down")
        .with_status(429)
        .with_body("the body")
        .with_retry_after(Some(Duration::from_secs(2)))
        .with_source(cause);
    assert_eq!(error.to_string(), "rate limit reached (status 429): slow down: the cause");
    assert_eq!(error.cause().unwrap().to_string(), "the cause");
    assert!(error.source().is_none());
    assert_eq!(ProviderError::new(ProviderErrorKind::Timeout, "").to_string(), "timeout");
    assert!(ProviderError::new(ProviderErrorKind::Timeout, "").source().is_none());
}

#[test]
fn serde_keeps_the_cause_as_text() {
    let mut error = ProviderError::new(ProviderErrorKind::RateLimit, "slow down")
        .with_status(429)
        .with_body("{}")
        .with_retry_after(Some(Duration::from_millis(1_500)))
        .with_source(io::Error::other("the cause"));
    error.request_id = Some("req_1".into());
    let value = to_value(&error).unwrap();
    let expected = json!({
        "kind": "rate_limit",
        "message": "slow down: the cause",
        "retryable": true,
        "retry_after": { "secs": 1, "nanos": 500_000_000 },
        "status": 429,
        "body": "{}",
        "request_id": "req_1",
    });
    assert_eq!(value, expected);
    let read: ProviderError = from_value(value).unwrap();
    assert_eq!(read, error, "compared without the cause");
    assert!(read.cause().is_none());
    let bare = json!({ "kind": "auth", "message": "", "retryable": false });
    assert_eq!(from_value::<ProviderError>(bare).unwrap(), ProviderError::new(ProviderErrorKind::Auth, ""));
}

#[test]
fn errors_that_differ_in_any_field_except_the_cause_are_not_equal() {
    let error = || ProviderError::new(ProviderErrorKind::Service, "a");
    let mut identified = error();
    identified.request_id = Some("b".into());
    let others = [
        ProviderError::new(ProviderErrorKind::Timeout, "a"),
        ProviderError::new(ProviderErrorKind::Service, "b"),
        error().with_retryable(false),
        error().with_status(500),
        error().with_body(""),
        error().with_retry_after(Some(Duration::ZERO)),
        identified,
    ];
    for other in others {
        assert_ne!(other, error());
    }
    assert_eq!(
        error().with_source(io::Error::other("x")),
        ProviderError::new(ProviderErrorKind::Service, "a: x")
    );
}

proptest! {
    #[test]
    fn with_body_keeps_as_many_whole_characters_as_fit(before in 0usize..8, c in any::<char>(), short in "\\PC{0,9}") {
        let long = format!("{}{}", "x".repeat(before), c.to_string().repeat(ProviderError::BODY_LIMIT));
        let body = ProviderError::new(ProviderErrorKind::Service, "").with_body(&long).body.unwrap();
        prop_assert!(long.starts_with(&body));
        prop_assert!(body.len() <= ProviderError::BODY_LIMIT);
        prop_assert!(body.len() + c.len_utf8() > ProviderError::BODY_LIMIT);
        let body = ProviderError::new(ProviderErrorKind::Service, "").with_body(&short).body.unwrap();
        prop_assert_eq!(body, short);
    }
}

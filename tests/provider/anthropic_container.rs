//! Anthropic's Messages format: the container in which the service runs code for a conversation.

use omni_agent::{
    message::{Message, Timestamp},
    provider::{Options, Request, http::Endpoint},
};
use serde_json::{Map, Value, json};

/// 2026-11-21T10:00:00Z.
const NOW: u64 = 1_795_255_200_000;

/// Returns an answer of this service that used this container.
fn answer(service: &str, container: &Value) -> Message {
    let mut answer = Message::assistant("Done.").with_timestamp(Timestamp(1000));
    answer.provider_data.insert("anthropic_messages".to_owned(), json!({"id": "m", "container": container}));
    answer.provider_data.insert("service".to_owned(), service.into());
    answer
}

fn container(id: &str, expires_at: &str) -> Value {
    json!({"id": id, "expires_at": expires_at})
}

/// Returns the container that a request after these answers names.
fn sent(answers: Vec<Message>, options: Options) -> Option<Value> {
    let turns = answers
        .into_iter()
        .flat_map(|answer| [Message::user("Go on.").with_timestamp(Timestamp(1000)), answer]);
    let prompt = Message::user("And now?").with_timestamp(Timestamp(NOW));
    let mut request = Request::new(turns.chain([prompt]).collect()).with_options(options);
    request.model = "claude-opus-4-7".into();
    Endpoint::anthropic().preview(&request).unwrap().1.body.get("container").cloned()
}

#[test]
fn encode_after_code_was_run_names_the_newest_container() {
    let used = |id: &str, at: &str| answer("anthropic", &container(id, at));
    let answers = vec![used("one", "2026-11-21T10:04:30Z"), used("two", "2026-11-21T10:04:30.5Z")];
    let with_plain = [answers.clone(), vec![answer("anthropic", &Value::Null)]].concat();
    assert_eq!(sent(answers, Options::default()), Some("two".into()));
    assert_eq!(sent(with_plain, Options::default()), Some("two".into()));
    assert_eq!(sent(vec![Message::assistant("Hi")], Options::default()), None);
}

#[test]
fn encode_container_that_has_expired_is_omitted() {
    let of = |at: &str| sent(vec![answer("anthropic", &container("one", at))], Options::default());
    // The request needs a moment, so the last minute does not count.
    for at in ["2026-11-21T10:01:00Z", "2026-11-21T09:59:59.999+00:00", "2025-12-31T23:59:59Z"] {
        assert_eq!(of(at), None, "{at}");
    }
    for at in ["2026-11-21T10:01:01Z", "2026-11-21T10:04:30.123456Z", "2027-01-01T00:00:00+00:00"] {
        assert_eq!(of(at), Some("one".into()), "{at}");
    }
    // The service decides about a time that cannot be read.
    assert_eq!(of("2026-11-21T11:00:00+02:00"), Some("one".into()));
    assert_eq!(
        sent(vec![answer("anthropic", &json!({"id": "one"}))], Options::default()),
        Some("one".into())
    );
    let kept = answer("anthropic", &container("kept", "2026-11-21T12:00:00Z"));
    let expired = answer("anthropic", &container("expired", "2026-11-21T09:00:00Z"));
    assert_eq!(sent(vec![kept, expired], Options::default()), Some("kept".into()));
}

#[test]
fn encode_container_that_expires_before_the_newest_message_is_omitted() {
    let used = answer("anthropic", &container("one", "2026-11-21T09:59:00Z"));
    let newest = Message::assistant("Hi").with_timestamp(Timestamp(NOW));
    let imported = Message::user("Hello").with_timestamp(Timestamp(1000));
    let mut request = Request::new(
        [Message::user("Go on.").with_timestamp(Timestamp(1000)), used, newest, imported]
            .into_iter()
            .collect(),
    );
    request.model = "claude-opus-4-7".into();
    assert_eq!(Endpoint::anthropic().preview(&request).unwrap().1.body.get("container"), None);
}

#[test]
fn encode_container_of_another_service_is_omitted() {
    let foreign = answer("other", &container("foreign", "2026-11-21T12:00:00Z"));
    assert_eq!(sent(vec![foreign], Options::default()), None);
}

#[test]
fn encode_container_of_the_user_replaces_that_of_the_conversation() {
    let own = json!({"id": "mine", "skills": []});
    let options = Options::default().with_extra(Map::from_iter([("container".to_owned(), own.clone())]));
    let answers = vec![answer("anthropic", &container("one", "2026-11-21T12:00:00Z"))];
    assert_eq!(sent(answers, options), Some(own));
}

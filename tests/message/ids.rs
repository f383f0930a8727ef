//! Ids of messages, and data of the application.

use std::collections::HashSet;

use omni_agent::message::{History, Message, MessageId, Timestamp, ToolResult, ToolUse};
use proptest::prelude::*;
use serde_json::{from_str, json, to_string};

/// Texts of all kinds, most of which look much like ids that an agent makes.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z0-9_-]{21}[AQgw]-(0|[1-9][0-9]{0,9})",
        "[A-Za-z0-9_-]{21,23}-[0-9+ ]{0,11}",
        "[A-Za-z0-9_-]{22}[-_=]?4294967295",
        "\\PC{0,40}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn message_id_of_any_text_keeps_it(text in text()) {
        let id = MessageId::new(text.as_str());
        prop_assert_eq!(id.to_string(), text.as_str());
        prop_assert_eq!(format!("{id:?}"), format!("{text:?}"));
        let json = to_string(&id).unwrap();
        prop_assert_eq!(&json, &to_string(&text).unwrap());
        prop_assert_eq!(&from_str::<MessageId>(&json).unwrap(), &id);
        prop_assert_eq!(&serde_json::from_value::<MessageId>(json!(text)).unwrap(), &id);
        prop_assert_eq!(MessageId::from(text), id);
    }

    #[test]
    fn message_ids_are_equal_if_their_texts_are(a in text(), b in text()) {
        let (one, other) = (MessageId::new(a.as_str()), MessageId::new(b.as_str()));
        prop_assert_eq!(one == other, a == b);
        let different = HashSet::from([one, other]);
        prop_assert_eq!(different.len(), if a == b { 1 } else { 2 });
    }
}

#[test]
fn message_id_that_is_not_a_text_is_an_error() {
    let error = from_str::<MessageId>("7").unwrap_err().to_string();
    assert!(error.contains("expected a string"), "{error}");
}

#[test]
fn message_with_an_id_and_data_encodes_to_the_stored_format() {
    let message = Message::user("hi").with_timestamp(Timestamp(1));
    let json = r#"{"role":"user","content":[{"type":"text","text":"hi"}],"timestamp":1"#;
    assert_eq!(to_string(&message).unwrap(), format!("{json}}}"), "earlier messages keep their bytes");

    let message = message.with_id("m-1").with_app_data(json!({ "z": 1, "a": [null, 0.5] }));
    let json = format!(r#"{json},"id":"m-1","app_data":{{"z":1,"a":[null,0.5]}}}}"#);
    assert_eq!(to_string(&message).unwrap(), json);
    assert_eq!(from_str::<Message>(&json).unwrap(), message);
}

#[test]
fn with_app_data_null_is_no_data() {
    assert_eq!(Message::user("hi").with_app_data(json!(null)).app_data, None);
}

#[test]
fn repair_of_a_message_keeps_its_id_and_data() {
    let stray = ToolUse::new("a", "b", json!({}));
    let message =
        Message::user([ToolResult::ok(&stray, "c").into(), "d".into()] as [omni_agent::message::Content; 2]);
    let message = message.with_id("m-1").with_app_data(json!({ "n": 1 }));
    let repaired = History::from_iter([message.clone()]).repair();
    let kept = repaired.get(0).unwrap();
    assert_eq!(kept.content, ["d".into()]);
    assert_eq!((&kept.id, &kept.app_data), (&message.id, &message.app_data));
}

#[test]
fn weight_of_a_message_includes_its_data() {
    let message = Message::user("hi");
    let data = "x".repeat(1000);
    assert!(message.clone().with_app_data(json!(data)).weight() >= message.weight() + 1000);
}

//! The stored format of messages: its exact bytes, its lossless reading, and its tolerance of unknown members.

use omni_agent::message::{
    Attachment, Blocks, Content, History, Message, ProviderItem, Text, Thinking, Timestamp, ToolResult,
    ToolUse, Usage,
};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, from_str, json, to_string};

use crate::strategies;

proptest! {
    #[test]
    fn history_of_any_content_survives(messages in vec(strategies::message(), 0..4)) {
        let history: History = messages.iter().cloned().collect();
        let json = to_string(&history).unwrap();
        let read: History = from_str(&json).unwrap();
        prop_assert_eq!(&read, &history);
        prop_assert_eq!(to_string(&read).unwrap(), json.as_str());
        prop_assert_eq!(to_string(&messages).unwrap(), json);
    }

    #[test]
    fn message_through_a_value_survives(message in strategies::message()) {
        let value = serde_json::to_value(&message).unwrap();
        prop_assert_eq!(serde_json::from_value::<Message>(value).unwrap(), message);
    }

    #[test]
    fn float_of_any_value_survives(float in strategies::float()) {
        let block = Content::from(ToolUse::new("a", "b", json!({ "float": float })));
        let json = to_string(&block).unwrap();
        let read: Content = from_str(&json).unwrap();
        prop_assert_eq!(to_string(&read).unwrap(), json);
        prop_assert_eq!(read, block);
    }
}

/// Each kind of block in the format of the stores, with as few fields as possible and with as many as possible. A
/// change to these texts is a change to the stored format.
fn golden() -> Vec<(Content, &'static str)> {
    let signed = |mut text: Text| {
        text.signature = Some("sig".into());
        text
    };
    let thinking = Thinking::new("hm").with_signature("sig").with_redacted("xyz");
    let mut noted = Attachment::base64("image/png", "aGk=").named("hi.png");
    noted.metadata.insert("width".into(), json!(2));
    let tool_use = ToolUse::new("t1", "add", json!({ "z": 1, "a": [2.5, null], "m": { "y": 1, "b": 2 } }));
    let mut malformed = ToolUse::new("t2", "add", json!({}));
    malformed.malformed = Some("{\"a\":".into());
    malformed.signature = Some("sig".into());
    let mut result = ToolResult::ok(&tool_use, "3");
    result.content.push(Attachment::url("image/png", "https://example.com/x.png").into());
    vec![
        (Text::new("hi").into(), r#"{"type":"text","text":"hi"}"#),
        (signed(Text::new("hi")).into(), r#"{"type":"text","text":"hi","signature":"sig"}"#),
        (Thinking::new("hm").into(), r#"{"type":"thinking","text":"hm"}"#),
        (thinking.into(), r#"{"type":"thinking","text":"hm","signature":"sig","redacted":"xyz"}"#),
        (
            noted.into(),
            r#"{"type":"attachment","source":{"type":"base64","data":"aGk="},"media_type":"image/png","name":"hi.png","metadata":{"width":2}}"#,
        ),
        (
            Attachment::url("image/png", "https://example.com/x.png").into(),
            r#"{"type":"attachment","source":{"type":"url","url":"https://example.com/x.png"},"media_type":"image/png"}"#,
        ),
        (
            tool_use.clone().into(),
            r#"{"type":"tool_use","id":"t1","name":"add","input":{"z":1,"a":[2.5,null],"m":{"y":1,"b":2}}}"#,
        ),
        (
            malformed.into(),
            r#"{"type":"tool_use","id":"t2","name":"add","input":{},"malformed":"{\"a\":","signature":"sig"}"#,
        ),
        (
            result.into(),
            r#"{"type":"tool_result","tool_use_id":"t1","name":"add","content":[{"type":"text","text":"3"},{"type":"attachment","source":{"type":"url","url":"https://example.com/x.png"},"media_type":"image/png"}],"is_error":false}"#,
        ),
        (
            ToolResult::error(&tool_use, "no").into(),
            r#"{"type":"tool_result","tool_use_id":"t1","name":"add","content":[{"type":"text","text":"no"}],"is_error":true}"#,
        ),
        (
            ProviderItem::new("responses", json!({ "type": "reasoning", "id": 7 })).into(),
            r#"{"type":"provider_item","format":"responses","data":{"type":"reasoning","id":7}}"#,
        ),
    ]
}

#[test]
fn block_of_each_kind_encodes_to_the_stored_format() {
    for (block, json) in golden() {
        assert_eq!(to_string(&block).unwrap(), json);
        assert_eq!(from_str::<Content>(json).unwrap(), block);
    }
}

#[test]
fn message_encodes_to_the_stored_format() {
    let mut message = Message::assistant("hi");
    message.timestamp = Timestamp(1_700_000_000_000);
    let json = r#"{"role":"assistant","content":[{"type":"text","text":"hi"}],"timestamp":1700000000000}"#;
    assert_eq!(to_string(&message).unwrap(), json);
    assert_eq!(from_str::<Message>(json).unwrap(), message);

    message.provider_data.insert("responses".into(), json!({ "id": "r1" }));
    let json = r#"{"role":"assistant","content":[{"type":"text","text":"hi"}],"timestamp":1700000000000,"provider_data":{"responses":{"id":"r1"}}}"#;
    assert_eq!(to_string(&message).unwrap(), json);
    assert_eq!(from_str::<Message>(json).unwrap(), message);
}

#[test]
fn usage_encodes_to_the_stored_format() {
    let usage = Usage::default()
        .with_input(1)
        .with_cache_read(2)
        .with_cache_write(3)
        .with_output(4)
        .with_reasoning(1)
        .with_cost(0.5);
    let json = r#"{"input":1,"cache_read":2,"cache_write":3,"output":4,"reasoning":1,"cost":0.5}"#;
    assert_eq!(to_string(&usage).unwrap(), json);
    assert_eq!(from_str::<Usage>(json).unwrap(), usage);
    assert_eq!(from_str::<Usage>(r#"{"output":4,"new":{}}"#).unwrap(), Usage::default().with_output(4));
}

#[test]
fn message_with_unknown_members_is_read_without_them() {
    for (block, json) in golden() {
        let mut value: Value = from_str(json).unwrap();
        value["a_later_member"] = json!({ "type": "text", "deep": [1, { "x": null }] });
        let message = json!({ "role": "user", "content": [value], "a_later_member": [1] });
        let read: Message = serde_json::from_value(message.clone()).unwrap();
        let read_text: Message = from_str(&message.to_string()).unwrap();
        assert_eq!(read.content, read_text.content);
        assert_eq!(read.content, [block]);
    }
}

#[test]
fn message_without_a_timestamp_is_read_as_of_the_epoch() {
    let message: Message = from_str(r#"{"content":[],"role":"user"}"#).unwrap();
    assert_eq!(message.timestamp, Timestamp(0));
}

#[test]
fn block_of_an_unknown_type_is_an_error_that_names_it() {
    let json = r#"[{"role":"user","content":[{"type":"hologram","text":"x"}]}]"#;
    let error = from_str::<History>(json).unwrap_err().to_string();
    assert!(error.contains("hologram"), "{error}");
    let error = from_str::<Content>(r#"{"text":"x"}"#).unwrap_err().to_string();
    assert!(error.contains("type"), "{error}");
}

#[test]
fn message_of_an_unknown_role_is_an_error_that_names_it() {
    let error = from_str::<Message>(r#"{"role":"system","content":[]}"#).unwrap_err().to_string();
    assert!(error.contains("system"), "{error}");
}

#[test]
fn history_that_is_not_a_list_is_an_error() {
    let error = from_str::<History>(r#"{"role":"user"}"#).unwrap_err().to_string();
    assert!(error.contains("a list of messages"), "{error}");
}

#[test]
fn block_with_its_type_last_is_read() {
    let read: Content = from_str(r#"{"text":"hi","signature":null,"type":"text"}"#).unwrap();
    assert_eq!(read, Content::from("hi"));
}

#[test]
fn tool_input_keeps_the_order_of_its_keys() {
    let json =
        r#"{"type":"tool_use","id":"a","name":"b","input":{"z":1,"b":{"y":0,"x":1},"a":[{"d":1,"c":2}]}}"#;
    let block: Content = from_str(json).unwrap();
    assert_eq!(to_string(&block).unwrap(), json);
    let again: Content = serde_json::from_value(serde_json::to_value(&block).unwrap()).unwrap();
    assert_eq!(to_string(&again).unwrap(), json);
}

#[test]
fn blocks_encode_as_a_list() {
    let blocks = Blocks::from("hi");
    assert_eq!(to_string(&blocks).unwrap(), r#"[{"type":"text","text":"hi"}]"#);
    assert_eq!(from_str::<Blocks>(&to_string(&blocks).unwrap()).unwrap(), blocks);
}

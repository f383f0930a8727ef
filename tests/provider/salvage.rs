//! The parts of an interrupted answer that are kept.

use omni_agent::{
    message::{Attachment, Content, Role, Thinking, ToolUse},
    provider::custom::{BlockStart, MessageDelta, Part},
    testing::internals::Fold,
};
use serde_json::json;

use crate::deltas::{NOW, data, end, extend, fold, input, item, signature, start, text, tool};

#[test]
fn salvage_keeps_complete_blocks_and_texts() {
    let message = fold([
        start(0, BlockStart::Thinking),
        text(0, "signed"),
        signature(0, "s"),
        end(0),
        start(1, BlockStart::Thinking),
        extend(1, Part::Redacted("r".into())),
        end(1),
        start(2, BlockStart::Thinking),
        text(2, "unsigned"),
        end(2),
        start(3, BlockStart::Text),
        text(3, "hi"),
        end(3),
        start(4, BlockStart::Text),
        text(4, " \n"),
        end(4),
        tool(5, "ended without input"),
        end(5),
        tool(6, "ended malformed"),
        input(6, "{\"a\""),
        end(6),
        tool(7, "whole but not ended"),
        input(7, "{\"a\":1}"),
        tool(8, "half"),
        input(8, "{\"a\":"),
        tool(9, "begun"),
        start(10, BlockStart::ProviderItem(item(json!(1)))),
        end(10),
        start(11, BlockStart::ProviderItem(item(json!(2)))),
        start(12, BlockStart::Attachment(Attachment::url("image/png", "u"))),
        start(13, BlockStart::Text),
        text(13, "and th"),
    ])
    .salvage(NOW)
    .unwrap();
    let expected: [Content; 8] = [
        Thinking::new("signed").with_signature("s").into(),
        Thinking::default().with_redacted("r").into(),
        "hi".into(),
        ToolUse::new("ended without input", "tool", json!({})).into(),
        ToolUse::new("whole but not ended", "tool", json!({ "a": 1 })).into(),
        item(json!(1)).into(),
        Attachment::url("image/png", "u").into(),
        "and th".into(),
    ];
    assert_eq!(message.content, expected);
    assert_eq!(message.timestamp, NOW);
}

#[test]
fn salvage_drops_blocks_whose_signature_may_be_incomplete() {
    let message = fold([
        start(0, BlockStart::Thinking),
        signature(0, "hal"),
        start(1, BlockStart::Thinking),
        extend(1, Part::Redacted("hal".into())),
        start(2, BlockStart::Text),
        text(2, "hi"),
        signature(2, "hal"),
        tool(3, "a"),
        input(3, "{}"),
        signature(3, "hal"),
    ])
    .salvage(NOW)
    .unwrap();
    assert_eq!(message.content, [Content::from("hi")]);
}

#[test]
fn salvage_without_any_complete_content_is_none() {
    assert_eq!(Fold::default().salvage(NOW), None);
    let thinking = [start(0, BlockStart::Thinking), text(0, "hm"), signature(0, "s"), end(0)];
    assert_eq!(fold(thinking.clone()).salvage(NOW), None, "reasoning alone");
    let blank = [start(1, BlockStart::Text), text(1, "\n\n")];
    assert_eq!(fold(thinking.into_iter().chain(blank)).salvage(NOW), None, "and blank text");
    assert_eq!(fold([tool(0, "a"), input(0, "{\"a\"")]).salvage(NOW), None, "half a tool use");
}

#[test]
fn salvage_keeps_provider_data() {
    let mut delta = MessageDelta::default();
    delta.provider_data.insert("responses".into(), json!({ "id": 1 }));
    let message = fold([data(delta), start(0, BlockStart::Text), text(0, "hi")]).salvage(NOW).unwrap();
    assert_eq!(message.provider_data["responses"], json!({ "id": 1 }));
}

#[test]
fn cut_returns_every_block() {
    let message = fold([
        start(0, BlockStart::Thinking),
        text(0, "unsigned"),
        start(1, BlockStart::Text),
        text(1, "hi"),
        tool(2, "whole"),
        input(2, "{\"a\":1}"),
        tool(3, "half"),
        input(3, "{\"a\":"),
        tool(4, "begun"),
    ])
    .cut(NOW);
    let malformed = |id: &str, raw: &str| ToolUse::new(id, "tool", json!({})).with_malformed(raw.to_owned());
    let expected: [Content; 5] = [
        Thinking::new("unsigned").into(),
        "hi".into(),
        ToolUse::new("whole", "tool", json!({ "a": 1 })).into(),
        malformed("half", "{\"a\":").into(),
        malformed("begun", "").into(),
    ];
    assert_eq!(message.content, expected);
    assert_eq!((message.role, message.timestamp), (Role::Assistant, NOW));
}

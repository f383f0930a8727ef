//! Anthropic's Messages format as other services speak it.
#![allow(clippy::needless_pass_by_value, clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, ProviderItem, Text, Thinking, ToolUse, Usage},
    provider::StopReason,
};
use serde_json::{Value, json};

use crate::anthropic::{decode, end, fold, start};

/// A message in one object.
fn whole(content: Value, stop_reason: Value) -> Value {
    json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": content,
        "stop_reason": stop_reason, "stop_sequence": null, "usage": {"input_tokens": 5, "output_tokens": 9}})
}

#[test]
fn decode_whole_answer_in_one_object_is_complete() {
    let message = whole(
        json!([
            {"type": "thinking", "thinking": "Hm.", "signature": "s"},
            {"type": "text", "text": "Let me see."},
            {"type": "server_tool_use", "id": "st", "name": "web_search", "input": {"query": "x"}},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": "t2", "name": "now", "input": {}},
        ]),
        json!("tool_use"),
    );
    let folded = fold(decode(&[message]).unwrap());
    let search =
        json!({"type": "server_tool_use", "id": "st", "name": "web_search", "input": {"query": "x"}});
    assert_eq!(
        folded.message.content,
        [
            Content::from(Thinking { signature: Some("s".into()), ..Thinking::new("Hm.") }),
            Text::new("Let me see.").into(),
            ProviderItem::new("anthropic_messages", search).into(),
            ToolUse::new("t1", "weather", json!({"city": "Rome"})).into(),
            ToolUse::new("t2", "now", json!({})).into(),
        ]
    );
    assert_eq!((folded.stop_reason, folded.model.as_deref()), (StopReason::ToolUse, Some("m")));
    assert_eq!(folded.usage, Usage { input: 5, output: 9, ..Usage::default() });
    assert_eq!(folded.message.provider_data["anthropic_messages"]["id"], "msg_1");
}

#[test]
fn decode_whole_answer_without_content_or_reason_is_a_stop() {
    for content in [json!([]), json!(null)] {
        let folded = fold(decode(&[whole(content, json!(null))]).unwrap());
        assert_eq!((folded.stop_reason, folded.message.content.len()), (StopReason::Stop, 0));
    }
    let folded =
        fold(decode(&[whole(json!([{"type": "text", "text": "cut"}]), json!("max_tokens"))]).unwrap());
    assert_eq!((folded.stop_reason, folded.message.text().as_str()), (StopReason::Length, "cut"));
}

#[test]
fn decode_whole_answer_within_a_stream_is_no_event_of_it() {
    let [last, over] = end("end_turn");
    let message = whole(json!([{"type": "text", "text": "again"}]), json!("end_turn"));
    assert_eq!(fold(decode(&[start(), message, last, over]).unwrap()).message.text(), "");
}

//! Anthropic's Messages format with the deviations of other services.
#![allow(clippy::needless_pass_by_value, clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, ProviderItem, Text, Thinking, ToolUse, Usage},
    provider::{
        Completion, ProviderError, ProviderErrorKind, Request, StopReason,
        custom::{AnthropicMessages, Dialect, Frame},
    },
};
use serde_json::{Value, json};

use crate::anthropic::{answer, block, decode, delta, end, fold, start, stop};

/// Returns a whole message as a single JSON object.
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
            Content::from(Thinking::new("Hm.").with_signature("s")),
            Text::new("Let me see.").into(),
            ProviderItem::new("anthropic_messages", search).into(),
            ToolUse::new("t1", "weather", json!({"city": "Rome"})).into(),
            ToolUse::new("t2", "now", json!({})).into(),
        ]
    );
    assert_eq!((folded.stop_reason, folded.model.as_deref()), (StopReason::ToolUse, Some("m")));
    assert_eq!(folded.usage, Usage::default().with_input(5).with_output(9));
    assert_eq!(folded.message.provider_data["anthropic_messages"]["id"], "msg_1");
}

#[test]
fn decode_whole_answer_without_content_or_reason_has_stop_as_its_reason() {
    for content in [json!([]), json!(null)] {
        let folded = fold(decode(&[whole(content, json!(null))]).unwrap());
        assert_eq!((folded.stop_reason, folded.message.content.len()), (StopReason::Stop, 0));
    }
    let folded =
        fold(decode(&[whole(json!([{"type": "text", "text": "cut"}]), json!("max_tokens"))]).unwrap());
    assert_eq!((folded.stop_reason, folded.message.text().as_str()), (StopReason::Length, "cut"));
}

#[test]
fn decode_whole_answer_within_a_stream_is_ignored() {
    let [last, over] = end("end_turn");
    let message = whole(json!([{"type": "text", "text": "again"}]), json!("end_turn"));
    assert_eq!(fold(decode(&[start(), message, last, over]).unwrap()).message.text(), "");
}

#[test]
fn decode_usage_in_any_form_keeps_the_answer() {
    let folded_usage = |input: Value, output: Value| {
        let mut begin = start();
        begin["message"]["usage"] = json!({"input_tokens": input, "output_tokens": 1});
        let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": output}});
        fold(decode(&[begin, end, json!({"type": "message_stop"})]).unwrap())
    };
    for (input, output) in [(json!(10.0), json!(20)), (json!("10"), json!(20.0)), (json!(10), json!(" 20 "))]
    {
        let folded = folded_usage(input, output);
        assert_eq!((folded.usage.input, folded.usage.output, folded.warnings.len()), (10, 20, 0));
    }
    for bad in [json!(-1), json!(2.5), json!("n/a"), json!([]), json!({}), json!(true), json!(1e300)] {
        let folded = folded_usage(bad.clone(), bad.clone());
        assert_eq!(
            (folded.stop_reason, folded.usage.input, folded.usage.output),
            (StopReason::Stop, 0, 1),
            "{bad}"
        );
        assert_eq!(folded.warnings.len(), 1, "{bad}");
        assert!(folded.warnings[0].contains("`input_tokens`"), "{:?}", folded.warnings);
    }
    for bad in
        [json!("n/a"), json!(7), json!([1]), json!({"output_tokens_details": "none", "output_tokens": 9})]
    {
        let mut answer = whole(json!([{"type": "text", "text": "Hi"}]), json!("end_turn"));
        answer["usage"] = bad.clone();
        let folded = fold(decode(&[answer]).unwrap());
        assert_eq!((folded.message.text().as_str(), folded.warnings.len()), ("Hi", 1), "{bad}");
        assert_eq!(folded.usage.output, if bad.is_object() { 9 } else { 0 });
    }
    for none in [json!(null), json!({}), json!({"input_tokens": null})] {
        let mut answer = whole(json!([]), json!("end_turn"));
        answer["usage"] = none;
        assert_eq!(fold(decode(&[answer]).unwrap()).warnings, [""; 0]);
    }
}

#[test]
fn decode_empty_delta_of_another_kind_is_skipped() {
    let empty = |index: u64| {
        [
            delta(index, json!({"type": "text_delta", "text": ""})),
            delta(index, json!({"type": "thinking_delta", "thinking": ""})),
            delta(index, json!({"type": "signature_delta", "signature": ""})),
            delta(index, json!({"type": "input_json_delta", "partial_json": ""})),
        ]
    };
    let mut events = vec![block(0, json!({"type": "thinking", "thinking": "", "signature": "s"}))];
    events.extend(empty(0));
    events.extend([delta(0, json!({"type": "thinking_delta", "thinking": "Hm."})), stop(0)]);
    events.push(block(1, json!({"type": "text", "text": ""})));
    events.extend(empty(1));
    events.extend([delta(1, json!({"type": "text_delta", "text": "Hi"})), stop(1)]);
    events.push(block(2, json!({"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}})));
    events.extend(empty(2));
    events.push(stop(2));
    assert_eq!(
        answer(events, "tool_use").message.content,
        [
            Content::from(Thinking::new("Hm.").with_signature("s")),
            Text::new("Hi").into(),
            ToolUse::new("t", "n", json!({"a": 1})).into(),
        ]
    );
}

#[test]
fn decode_block_with_the_index_of_an_ended_block_is_another_block() {
    let search = json!({"type": "server_tool_use", "id": "st", "name": "web_search", "input": {}});
    let found = json!({"type": "web_search_tool_result", "tool_use_id": "st", "content": []});
    let text = |text: &str| delta(1, json!({"type": "text_delta", "text": text}));
    let events = [
        block(0, search),
        delta(0, json!({"type": "input_json_delta", "partial_json": "{\"query\": \"x\"}"})),
        block(1, found.clone()),
        stop(1),
        block(1, json!({"type": "text", "text": ""})),
        text("De"),
        stop(0),
        text("ep."),
        stop(1),
        // A repeated stop does not concern a block that has ended.
        stop(1),
    ];
    let search =
        json!({"type": "server_tool_use", "id": "st", "name": "web_search", "input": {"query": "x"}});
    assert_eq!(
        answer(events, "end_turn").message.content,
        [
            Content::from(ProviderItem::new("anthropic_messages", search)),
            ProviderItem::new("anthropic_messages", found).into(),
            Text::new("Deep.").into(),
        ]
    );
}

#[test]
fn decode_stop_of_a_block_that_never_started_is_skipped() {
    for index in [1, 7, u64::MAX] {
        let events = [
            stop(index),
            block(0, json!({"type": "text", "text": "a"})),
            stop(index),
            delta(0, json!({"type": "text_delta", "text": "b"})),
            stop(0),
            stop(index),
        ];
        assert_eq!(answer(events, "end_turn").message.text(), "ab", "{index}");
    }
}

#[test]
fn decode_signature_in_a_thinking_delta_is_kept_unless_another_delta_has_it() {
    let thinking = |text: &str, signature: &str| {
        delta(0, json!({"type": "thinking_delta", "thinking": text, "signature": signature}))
    };
    let signed = delta(0, json!({"type": "signature_delta", "signature": "Eq"}));
    for deltas in [
        vec![thinking("Hm.", ""), thinking("", "Eq")],
        vec![thinking("Hm.", "Eq")],
        vec![thinking("Hm.", "Eq"), thinking("", "Eq")],
        vec![thinking("Hm.", "Eq"), signed.clone()],
        vec![thinking("Hm.", ""), signed, thinking("", "Eq")],
    ] {
        let events =
            [vec![block(0, json!({"type": "thinking", "thinking": ""}))], deltas, vec![stop(0)]].concat();
        let expected = Content::from(Thinking::new("Hm.").with_signature("Eq"));
        assert_eq!(answer(events.clone(), "end_turn").message.content, [expected], "{events:?}");
    }
}

/// Decodes an answer whose body ends after these events.
fn ended(events: &[Value]) -> Result<Completion, ProviderError> {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    for event in [start()].iter().chain(events) {
        decoder.decode(Frame::new("", &event.to_string()), &mut deltas)?;
    }
    decoder.end(&mut deltas)?;
    Ok(fold(deltas))
}

#[test]
fn end_after_a_stop_reason_without_message_stop_is_complete_if_no_block_is_open() {
    let [reason, _] = end("tool_use");
    let tool = block(0, json!({"type": "tool_use", "id": "t", "name": "n", "input": {"a": 1}}));
    let folded = ended(&[tool.clone(), stop(0), reason.clone()]).unwrap();
    assert_eq!((folded.stop_reason, folded.usage.output), (StopReason::ToolUse, 20));
    assert_eq!(folded.message.content, [Content::from(ToolUse::new("t", "n", json!({"a": 1})))]);
    let nothing = json!({"type": "message_delta", "delta": {"stop_reason": null}});
    let next = block(1, json!({"type": "text", "text": "and"}));
    for cut in [
        vec![tool.clone(), reason.clone()],
        vec![tool.clone(), stop(0)],
        vec![tool.clone(), stop(0), nothing],
        // A block that follows the stop reason shows that the answer continues.
        vec![tool.clone(), stop(0), reason.clone(), next.clone()],
        vec![tool, stop(0), reason, next, stop(1)],
    ] {
        assert_eq!(ended(&cut).unwrap_err().kind, ProviderErrorKind::Truncated, "{cut:?}");
    }
}

//! Anthropic's Messages format: decoding of answers.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, ProviderItem, Text, Thinking, ToolUse, Usage},
    provider::{
        ProviderErrorKind, Request, StopReason,
        custom::{AnthropicMessages, BlockStart, Decoder, Delta, Dialect, Frame, MessageDelta, Part},
    },
    testing::internals::Fold,
};
use serde_json::{Map, Value, json};

use crate::anthropic::{answer, block, decode, delta, end, fold, start, stop};

fn feed(decoder: &mut dyn Decoder, event: &str, data: &str) -> Vec<Delta> {
    let mut deltas = Vec::new();
    decoder.decode(Frame::new(event, data), &mut deltas).unwrap();
    deltas
}

/// Returns a decoder that has already read the beginning of an answer.
fn begun() -> Box<dyn Decoder> {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    feed(&mut *decoder, "message_start", &start().to_string());
    decoder
}

fn extend(index: usize, part: Part) -> Delta {
    Delta::Extend { index, part }
}

fn text_block() -> [Value; 3] {
    [
        block(0, json!({"type": "text", "text": ""})),
        delta(0, json!({"type": "text_delta", "text": "Hi"})),
        stop(0),
    ]
}

#[test]
fn decode_plain_answer_gives_one_delta_per_event() {
    let [opened, grown, ended] = text_block();
    let [reason, last] = end("end_turn");
    let usage = Usage::default().with_input(10).with_output(1);
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    let mut next = |event: &Value| feed(&mut *decoder, event["type"].as_str().unwrap(), &event.to_string());
    let message = MessageDelta::default()
        .with_model("claude-sonnet-4-5")
        .with_usage(usage)
        .with_provider_data(Map::from_iter([("anthropic_messages".into(), json!({"id": "msg_1"}))]));
    assert_eq!(next(&start()), [Delta::Message(Box::new(message))]);
    assert_eq!(next(&json!({"type": "ping"})), []);
    assert_eq!(next(&opened), [Delta::Start { index: 0, block: BlockStart::Text }]);
    assert_eq!(next(&grown), [extend(0, Part::Text("Hi".into()))]);
    assert_eq!(next(&ended), [Delta::End { index: 0 }]);
    let message =
        MessageDelta::default().with_stop_reason(StopReason::Stop).with_usage(usage.with_output(20));
    assert_eq!(next(&reason), [Delta::Message(Box::new(message))]);
    assert_eq!(next(&last), []);
    assert!(decoder.is_done());
    decoder.end(&mut Vec::new()).unwrap();
}

#[test]
fn decode_stop_reason_maps_to_its_meaning() {
    for (word, reason) in [
        ("end_turn", StopReason::Stop),
        ("stop_sequence", StopReason::StopSequence),
        ("max_tokens", StopReason::Length),
        ("tool_use", StopReason::ToolUse),
        ("pause_turn", StopReason::Pause),
        ("refusal", StopReason::Refusal),
        ("model_context_window_exceeded", StopReason::ContextLength),
        ("compaction", StopReason::Pause),
        ("new_reason", StopReason::Other("new_reason".into())),
    ] {
        assert_eq!(answer(text_block(), word).stop_reason, reason);
    }
}

#[test]
fn decode_whole_answer_without_a_stop_reason_is_not_truncated() {
    for nothing in [json!({"stop_reason": null}), json!({"stop_reason": ""}), json!({})] {
        let silent = [json!({"type": "message_delta", "delta": nothing}), json!({"type": "message_stop"})];
        let events: Vec<Value> = [start()].into_iter().chain(text_block()).chain(silent.clone()).collect();
        assert_eq!(fold(decode(&events).unwrap()).stop_reason, StopReason::Stop);
        let tool = block(0, json!({"type": "tool_use", "id": "t", "name": "n"}));
        let events: Vec<Value> = [start(), tool, stop(0)].into_iter().chain(silent).collect();
        assert_eq!(fold(decode(&events).unwrap()).stop_reason, StopReason::ToolUse);
    }
}

#[test]
fn decode_block_that_starts_with_content_keeps_it() {
    let folded = answer(
        [
            block(0, json!({"type": "thinking", "thinking": "Hm", "signature": "s1"})),
            delta(0, json!({"type": "thinking_delta", "thinking": "m"})),
            stop(0),
            block(1, json!({"type": "thinking", "thinking": "", "signature": "old"})),
            delta(1, json!({"type": "signature_delta", "signature": "ne"})),
            delta(1, json!({"type": "signature_delta", "signature": "w"})),
            block(2, json!({"type": "text", "text": "He"})),
            delta(2, json!({"type": "text_delta", "text": "llo"})),
            block(3, json!({"type": "redacted_thinking", "data": "x"})),
        ],
        "end_turn",
    );
    let thinking = |text: &str, signature: &str| Thinking::new(text).with_signature(signature);
    assert_eq!(
        folded.message.content,
        [
            Content::from(thinking("Hmm", "s1")),
            thinking("", "new").into(),
            Text::new("Hello").into(),
            Thinking::default().with_redacted("x").into(),
        ]
    );
}

#[test]
fn decode_tool_input_may_arrive_whole_in_pieces_or_not_at_all() {
    let tool = |index: u64, input: Option<Value>| {
        let mut tool = json!({"type": "tool_use", "id": format!("t{index}"), "name": "n"});
        if let Some(input) = input {
            tool["input"] = input;
        }
        block(index, tool)
    };
    let json_delta =
        |index, json: &str| delta(index, json!({"type": "input_json_delta", "partial_json": json}));
    let folded = answer(
        [
            tool(0, Some(json!({"whole": 1}))),
            stop(0),
            tool(1, Some(json!({"old": 1}))),
            json_delta(1, ""),
            json_delta(1, "{\"new\":"),
            json_delta(1, "2}"),
            stop(1),
            tool(2, None),
            stop(2),
            tool(3, Some(Value::Null)),
            json_delta(3, "{\"cut\": tr"),
            stop(3),
            tool(4, Some(json!("{\"text\": 3}"))),
            tool(5, Some(json!({"unstopped": 4}))),
        ],
        "tool_use",
    );
    let inputs: Vec<(&Value, Option<&str>)> =
        folded.message.tool_uses().map(|tool_use| (&tool_use.input, tool_use.malformed.as_deref())).collect();
    assert_eq!(
        inputs,
        [
            (&json!({"whole": 1}), None),
            (&json!({"new": 2}), None),
            (&json!({}), None),
            (&json!({}), Some("{\"cut\": tr")),
            (&json!({"text": 3}), None),
            (&json!({"unstopped": 4}), None),
        ]
    );
}

#[test]
fn decode_tool_use_with_a_direct_caller_has_no_signature() {
    let caller = json!({"type": "direct"});
    let tool = json!({"type": "tool_use", "id": "t", "name": "n", "input": {}, "caller": caller});
    let folded = answer([block(0, tool), stop(0)], "tool_use");
    assert_eq!(folded.message.content, [Content::from(ToolUse::new("t", "n", json!({})))]);
}

#[test]
fn decode_unknown_blocks_become_items_with_the_content_of_their_deltas() {
    let item = |data: Value| Content::from(ProviderItem::new("anthropic_messages", data));
    let folded = answer(
        [
            block(
                0,
                json!({"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "s", "input": {}}),
            ),
            delta(0, json!({"type": "input_json_delta", "partial_json": "{\"q\""})),
            delta(0, json!({"type": "input_json_delta", "partial_json": ": 1}"})),
            stop(0),
            block(1, json!({"type": "container_upload", "file_id": "f"})),
            stop(1),
            block(2, json!({"type": "compaction", "content": null})),
            delta(2, json!({"type": "compaction_delta", "content": "Before, ", "encrypted_content": "e"})),
            delta(2, json!({"type": "compaction_delta", "content": "that.", "odd": [1]})),
            delta(2, json!({"type": "odd_delta", "text": {"no": "text"}, "odd": [2]})),
            stop(2),
            block(3, json!({"type": "story", "text": "Once"})),
            delta(3, json!({"type": "text_delta", "text": " upon"})),
            delta(3, json!({"type": "citations_delta", "citation": {"page": 1}})),
            delta(3, json!({"type": "citations_delta", "citation": {"page": 2}})),
            block(4, json!({"type": "server_tool_use", "input": {"given": 1}})),
            delta(4, json!({"type": "input_json_delta", "partial_json": "{\"cut"})),
            stop(4),
        ],
        "end_turn",
    );
    assert_eq!(
        folded.message.content,
        [
            item(
                json!({"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "s", "input": {"q": 1}})
            ),
            item(json!({"type": "container_upload", "file_id": "f"})),
            item(json!({"type": "compaction", "content": "Before, that.", "encrypted_content": "e",
                "odd": [1, 2], "text": {"no": "text"}})),
            item(json!({"type": "story", "text": "Once upon", "citations": [{"page": 1}, {"page": 2}]})),
            item(json!({"type": "server_tool_use", "input": {"given": 1}})),
        ]
    );
}

#[test]
fn decode_start_with_content_contributes_its_blocks_and_stop_reason() {
    let result = json!({"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1",
        "content": {"type": "code_execution_result", "stdout": "7", "return_code": 0}});
    let caller = json!({"type": "code_execution_20250825", "tool_id": "srvtoolu_1"});
    let tool =
        json!({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"id": 1}, "caller": caller});
    let mut begin = start();
    begin["message"]["content"] =
        json!([result, tool, {"type": "tool_use", "id": "toolu_2", "name": "list"}]);
    begin["message"]["stop_reason"] = json!("tool_use");
    begin["message"]["container"] = json!({"id": "container_1"});
    let stop = json!({"type": "message_stop"});

    let folded = fold(decode(&[begin.clone(), stop.clone()]).unwrap());
    assert_eq!(folded.stop_reason, StopReason::ToolUse);
    let look = ToolUse::new("toolu_1", "look", json!({"id": 1})).with_signature(caller.to_string());
    let expected = [
        Content::from(ProviderItem::new("anthropic_messages", result)),
        look.into(),
        ToolUse::new("toolu_2", "list", json!({})).into(),
    ];
    assert_eq!(folded.message.content, expected);
    let data = &folded.message.provider_data["anthropic_messages"];
    assert_eq!(data, &json!({"id": "msg_1", "container": {"id": "container_1"}}));

    // The indices of blocks that are streamed afterwards start at zero again.
    let [opened, grown, ended] = text_block();
    let folded = fold(decode(&[begin, opened, grown, ended, stop]).unwrap());
    assert_eq!(folded.message.content[..3], expected);
    assert_eq!(folded.message.text(), "Hi");
}

#[test]
fn decode_repeated_start_of_the_same_message_counts_once() {
    let mut again = start();
    again["message"]["usage"]["input_tokens"] = json!(11);
    again["message"]["content"] = json!([{"type": "text", "text": "not twice"}]);
    let [opened, grown, ended] = text_block();
    let [reason, last] = end("end_turn");
    let folded = fold(decode(&[start(), again, opened, grown, ended, reason, last]).unwrap());
    assert_eq!(folded.message.text(), "Hi");
    assert_eq!(folded.usage, Usage::default().with_input(11).with_output(20));
}

#[test]
fn decode_indices_with_gaps_and_interleaved_blocks_become_dense() {
    let folded = answer(
        [
            block(7, json!({"type": "text", "text": ""})),
            block(2, json!({"type": "text", "text": ""})),
            delta(7, json!({"type": "text_delta", "text": "a"})),
            delta(2, json!({"type": "text_delta", "text": "b"})),
            delta(7, json!({"type": "text_delta", "text": "c"})),
            stop(2),
            delta(7, json!({"type": "text_delta", "text": "d"})),
        ],
        "end_turn",
    );
    assert_eq!(folded.message.content, [Content::from("acd"), "b".into()]);
}

#[test]
fn decode_usage_takes_totals_and_keeps_omitted_counts() {
    let mut begin = start();
    begin["message"]["usage"] = json!({
        "input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_5m_input_tokens": 30}, "output_tokens": 2, "server_tool_use": null,
    });
    let usage_delta = |usage: Value| json!({"type": "message_delta", "delta": {}, "usage": usage});
    let deltas = decode(&[
        begin,
        usage_delta(json!({"input_tokens": null, "cache_read_input_tokens": null, "output_tokens": 9})),
        usage_delta(
            json!({"input_tokens": 7, "output_tokens": 40, "output_tokens_details": {"thinking_tokens": 25}}),
        ),
        usage_delta(Value::Null),
        json!({"type": "message_stop"}),
    ])
    .unwrap();
    let reported: Vec<Usage> = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Message(message) => message.usage,
            _ => None,
        })
        .collect();
    let first = Usage::default().with_input(5).with_cache_read(100).with_cache_write(30).with_output(2);
    let last = first.with_input(7).with_output(40).with_reasoning(25);
    assert_eq!(reported, [first, first.with_output(9), last]);
}

#[test]
fn decode_usage_with_zeros_at_the_end_keeps_the_counts_of_the_start() {
    let mut begin = start();
    let counts = json!({
        "input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 30,
        "cache_creation": {"ephemeral_1h_input_tokens": 20}, "output_tokens": 2,
    });
    begin["message"]["usage"] = counts;
    let zeros = json!({
        "input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_1h_input_tokens": 0}, "output_tokens": 9,
    });
    let end = json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": zeros});
    let usage = fold(decode(&[begin, end, json!({"type": "message_stop"})]).unwrap()).usage;
    let expected = Usage::default().with_input(5).with_cache_read(100).with_cache_write(30).with_output(9);
    assert_eq!(usage, expected);
}

#[test]
fn decode_provider_data_names_the_format_and_keeps_message_data() {
    let details = json!({"type": "refusal", "category": "bio", "explanation": null});
    let container = json!({"id": "c1", "expires_at": "2026-01-01T00:00:00Z"});
    let reason = json!({"type": "message_delta",
        "delta": {"stop_reason": "refusal", "stop_details": details, "container": container}});
    let events = [start(), reason, json!({"type": "message_stop"})];
    let folded = fold(decode(&events).unwrap());
    assert_eq!(
        Value::Object(folded.message.provider_data),
        json!({"anthropic_messages": {"id": "msg_1", "container": container, "stop_details": details}})
    );
    let bare = [json!({"type": "message_start", "message": {}}), json!({"type": "message_stop"})];
    let folded = fold(decode(&bare).unwrap());
    assert_eq!(Value::Object(folded.message.provider_data), json!({"anthropic_messages": {}}));
}

#[test]
fn decode_unknown_events_and_deltas_are_skipped() {
    let mut decoder = begun();
    for data in [
        r#"{"type":"heartbeat","delta":"x","index":"y","usage":[],"message":3}"#,
        r#"{"type":"vendor.event","error":null}"#,
        "{}",
        "[DONE]",
        " ",
        "",
    ] {
        assert_eq!(feed(&mut *decoder, "", data), []);
    }
    assert_eq!(feed(&mut *decoder, "heartbeat", "still here"), []);
    feed(&mut *decoder, "", &block(0, json!({"type": "text"})).to_string());
    for odd in [json!({"type": "glow_delta", "glow": 1}), json!({"type": "glow_delta", "text": 1})] {
        assert_eq!(feed(&mut *decoder, "", &delta(0, odd).to_string()), []);
    }
    assert!(!decoder.is_done());
}

#[test]
fn decode_events_without_a_name_or_with_a_wrong_one_use_their_type() {
    let grown = delta(0, json!({"type": "text_delta", "text": "Hi"})).to_string();
    for name in ["", "message_stop", "error", "unheard_of"] {
        let mut decoder = begun();
        feed(&mut *decoder, name, &block(0, json!({"type": "text"})).to_string());
        assert_eq!(feed(&mut *decoder, name, &grown), [extend(0, Part::Text("Hi".into()))]);
    }
}

#[test]
fn decode_events_without_a_type_use_their_name() {
    let mut decoder = begun();
    feed(&mut *decoder, "content_block_start", r#"{"index":0,"content_block":{"type":"text","text":"Hi"}}"#);
    feed(&mut *decoder, "message_stop", "{}");
    assert!(decoder.is_done());
}

#[test]
fn decode_escapes_and_empty_pieces_give_exact_text() {
    let mut decoder = begun();
    feed(&mut *decoder, "", &block(0, json!({"type": "text", "text": null})).to_string());
    let escaped = r#" {"index":0,"delta":{"text":"\u00e9\n\ud83d\ude00\"","type":"text_delta"},"type":"content_block_delta"}  "#;
    assert_eq!(feed(&mut *decoder, "", escaped), [extend(0, Part::Text("é\n😀\"".into()))]);
    for empty in [json!({"type": "text_delta", "text": ""}), json!({"type": "text_delta", "text": null})] {
        assert_eq!(feed(&mut *decoder, "", &delta(0, empty).to_string()), []);
    }
}

#[test]
fn decode_after_message_stop_ignores_events() {
    let mut decoder = begun();
    feed(&mut *decoder, "message_stop", r#"{"type":"message_stop"}"#);
    for data in ["no json", r#"{"type":"error","error":{}}"#, &start().to_string()] {
        assert_eq!(feed(&mut *decoder, "", data), []);
    }
    decoder.end(&mut Vec::new()).unwrap();
}

#[test]
fn end_before_the_stop_reason_is_truncated() {
    let mut decoder = AnthropicMessages::default().decoder(&Request::default());
    assert_eq!(decoder.end(&mut Vec::new()).unwrap_err().kind, ProviderErrorKind::Truncated);
    // A stop reason in the start of the message does not mean that the message is complete.
    let mut early = start();
    early["message"]["stop_reason"] = json!("end_turn");
    for start in [start(), early] {
        let mut decoder = AnthropicMessages::default().decoder(&Request::default());
        for event in [start].into_iter().chain(text_block()) {
            feed(&mut *decoder, "", &event.to_string());
        }
        assert!(!decoder.is_done());
        assert_eq!(decoder.end(&mut Vec::new()).unwrap_err().kind, ProviderErrorKind::Truncated);
    }
}

#[test]
fn decode_answer_cut_by_its_limit_keeps_the_raw_input_of_its_last_tool_use() {
    let folded = answer(
        [
            block(0, json!({"type": "tool_use", "id": "t", "name": "n", "input": {}})),
            delta(0, json!({"type": "input_json_delta", "partial_json": "{\"a\": "})),
        ],
        "max_tokens",
    );
    let tool_use = folded.message.tool_uses().next().unwrap();
    assert_eq!((&tool_use.input, tool_use.malformed.as_deref()), (&json!({}), Some("{\"a\": ")));
}

#[test]
fn decode_opaque_item_above_the_limit_is_an_error_and_emits_nothing() {
    let mut decoder = begun();
    feed(&mut *decoder, "", &block(0, json!({"type": "server_tool_use"})).to_string());
    let piece = "x".repeat(1024 * 1024);
    let event = delta(0, json!({"type": "input_json_delta", "partial_json": piece})).to_string();
    let mut deltas = Vec::new();
    let failed = (0..=Fold::LIMIT / piece.len())
        .find_map(|_| decoder.decode(Frame::new("", &event), &mut deltas).err());
    assert_eq!(failed.unwrap().kind, ProviderErrorKind::Decoding);
    assert_eq!(deltas, []);
}

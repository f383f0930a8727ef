#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, Usage},
    provider::{
        Completion, ProviderErrorKind, Request, StopReason,
        custom::{Delta, Dialect, Frame, OpenAiResponses, Part},
    },
    testing::internals::Fold,
};
use serde_json::{Value, json};

use crate::responses::{
    added, answer, call, calls, completed, created, decode, delta, done, fold, message, reasoning,
};

fn thinking(folded: &Completion) -> (&str, Value) {
    let Content::Thinking(thinking) = &folded.message.content[0] else { panic!("{folded:?}") };
    let signature =
        thinking.signature.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
    (&thinking.text, signature)
}

fn args(id: &str, more: &str) -> Value {
    delta("function_call_arguments", 0, id, more)
}

#[test]
fn decode_text_stream_emits_each_delta_and_folds() {
    let deltas = decode(&[
        created(),
        added(0, json!({"id": "msg_1", "type": "message", "content": []})),
        json!({"type": "response.content_part.added", "item_id": "msg_1", "part": {"type": "output_text", "text": ""}}),
        delta("output_text", 0, "msg_1", "Hel"),
        delta("output_text", 0, "msg_1", "lo \"é\""),
        json!({"type": "response.output_text.done", "item_id": "msg_1", "content_index": 0, "text": "Hello \"é\""}),
        json!({"type": "response.content_part.done", "item_id": "msg_1", "part": {"type": "output_text", "text": "Hello \"é\""}}),
        done(0, message("msg_1", "Hello \"é\"")),
        completed(json!([message("msg_1", "Hello \"é\"")])),
    ])
    .unwrap();
    let texts: Vec<_> = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Extend { index: 0, part: Part::Text(text) } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["Hel", "lo \"é\""]);
    let folded = fold(deltas);
    assert_eq!(folded.message.text(), "Hello \"é\"");
    assert_eq!((folded.message.content.len(), folded.stop_reason), (1, StopReason::Stop));
    assert_eq!(folded.model.as_deref(), Some("gpt-5"));
    assert_eq!(Value::Object(folded.message.provider_data), json!({"openai_responses": {"id": "resp_1"}}));
    let usage = Usage::default().with_input(20).with_cache_read(10).with_output(25).with_reasoning(5);
    assert_eq!(folded.usage, usage);
}

/// No matter which events are missing, the answer is the same, and nothing occurs in it twice.
#[test]
fn decode_with_any_events_missing_gives_the_same_answer() {
    let thought = reasoning("rs_1", &["Hm.", "Well."], "ZW5j");
    let summary = |part: u64, text: &str| {
        json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0,
            "summary_index": part, "delta": text})
    };
    let said = message("msg_1", "Yes, so.");
    let called = call("fc_1", "call_1", "f", "{\"x\":1}");
    let events = [
        created(),
        added(0, json!({"id": "rs_1", "type": "reasoning", "summary": []})),
        summary(0, "Hm."),
        summary(1, "Well."),
        done(0, thought.clone()),
        added(1, json!({"id": "msg_1", "type": "message", "content": []})),
        delta("output_text", 1, "msg_1", "Yes, "),
        delta("output_text", 1, "msg_1", "so."),
        json!({"type": "response.output_text.done", "item_id": "msg_1", "output_index": 1, "content_index": 0, "text": "Yes, so."}),
        done(1, said.clone()),
        added(2, call("fc_1", "call_1", "f", "")),
        delta("function_call_arguments", 2, "fc_1", "{\"x\""),
        delta("function_call_arguments", 2, "fc_1", ":1}"),
        json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "output_index": 2, "arguments": "{\"x\":1}"}),
        done(2, called.clone()),
    ];
    let end = completed(json!([thought, said, called]));
    let whole = answer(&[&events[..], std::slice::from_ref(&end)].concat());
    assert_eq!(whole.message.text(), "Yes, so.");
    assert_eq!(whole.stop_reason, StopReason::ToolUse);
    // The deltas of one text are either all kept or all dropped. If only some were missing, the decoder could not tell
    // the text after the gap from the missing text.
    for left_out in 0_u32..1 << 11 {
        let bit = |at: u32| left_out >> at & 1 == 0;
        let keep = [
            bit(0),
            bit(1),
            bit(2),
            bit(2),
            bit(3),
            bit(4),
            bit(5),
            bit(5),
            bit(6),
            bit(7),
            bit(8),
            bit(9),
            bit(9),
            bit(10),
            true,
        ];
        let kept = events.iter().zip(keep).filter(|(_, keep)| *keep).map(|(event, _)| event.clone());
        let kept: Vec<Value> = kept.chain([end.clone()]).collect();
        let folded = answer(&kept);
        let mut content = folded.message.content;
        // If only the last event contains the reasoning, its block is placed where it arrives. The blocks are therefore
        // sorted before they are compared.
        content.sort_by_key(|block| match block {
            Content::Thinking(_) => 0,
            Content::Text(_) => 1,
            _ => 2,
        });
        assert_eq!(content, whole.message.content, "{left_out:b}");
        assert_eq!(folded.usage, whole.usage);
    }
}

#[test]
fn decode_answer_that_was_not_streamed_gives_the_same_answer() {
    let items = json!([
        reasoning("rs_1", &["Hm."], "ZW5j"),
        message("msg_1", "Yes."),
        call("fc_1", "call_1", "f", "{}")
    ]);
    let mut whole = completed(items.clone())["response"].clone();
    let streamed = answer(&[created(), completed(items)]);
    assert_eq!(answer(&[whole.clone()]), streamed);
    whole.as_object_mut().unwrap().shift_remove("status");
    assert_eq!(answer(&[whole]), streamed);
    assert_eq!(streamed.message.content.len(), 3);
}

#[test]
fn decode_repeated_terminal_event_counts_once() {
    let end = completed(json!([message("msg_1", "Hi")]));
    let folded = answer(&[created(), end.clone(), end, created(), json!("[DONE]"), json!("odd")]);
    assert_eq!(folded.message.text(), "Hi");
}

#[test]
fn decode_stream_without_ids_and_indices_keeps_items_separate() {
    let bare = |kind: &str, delta: &str| json!({"type": format!("response.{kind}.delta"), "delta": delta});
    let done = |item: Value| json!({"type": "response.output_item.done", "item": item});
    let call = |name: &str, call_id: &str| json!({"type": "function_call", "name": name, "call_id": call_id});
    let added = |item: Value| json!({"type": "response.output_item.added", "item": item});
    let folded = answer(&[
        bare("reasoning_text", "Hm"),
        done(
            json!({"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}),
        ),
        bare("output_text", "So"),
        bare("output_text", " it is"),
        done(json!({"type": "message", "content": [{"type": "output_text", "text": "So it is"}]})),
        added(call("f", "a")),
        bare("function_call_arguments", "{\"x\":"),
        bare("function_call_arguments", "1}"),
        done(json!({"type": "function_call", "name": "f", "call_id": "a", "arguments": "{\"x\":1}"})),
        added(call("g", "b")),
        bare("function_call_arguments", "{}"),
        json!({"type": "response.completed", "response": {"output": [
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "message", "content": [{"type": "output_text", "text": "So it is"}]},
            {"type": "function_call", "name": "f", "call_id": "a", "arguments": "{\"x\":1}"},
            {"type": "function_call", "name": "g", "call_id": "b", "arguments": "{}"},
        ]}}),
    ]);
    assert_eq!(thinking(&folded).0, "Hm.");
    assert_eq!(folded.message.text(), "So it is");
    assert_eq!(folded.message.content.len(), 4);
    assert_eq!(
        calls(&folded),
        [("a".to_owned(), "f".to_owned(), json!({"x": 1})), ("b".to_owned(), "g".to_owned(), json!({}))]
    );
}

#[test]
fn decode_ids_that_change_with_each_event_uses_the_index() {
    let folded = answer(&[
        created(),
        added(0, json!({"id": "id-1", "type": "message"})),
        delta("output_text", 0, "id-2", "Hel"),
        delta("output_text", 0, "id-3", "lo"),
        done(0, message("id-4", "Hello")),
        added(1, call("id-5", "call_1", "f", "")),
        delta("function_call_arguments", 1, "id-6", "{\"x\":1}"),
        done(1, call("id-7", "call_1", "f", "{\"x\":1}")),
        completed(json!([message("id-8", "Hello"), call("id-9", "call_1", "f", "{\"x\":1}")])),
    ]);
    assert_eq!(folded.message.text(), "Hello");
    assert_eq!(calls(&folded), [("call_1".to_owned(), "f".to_owned(), json!({"x": 1}))]);
}

#[test]
fn decode_equal_index_of_all_items_uses_the_id() {
    let folded = answer(&[
        created(),
        added(0, call("fc_1", "a", "f", "")),
        args("fc_1", "{\"x\":1}"),
        done(0, call("fc_1", "a", "f", "{\"x\":1}")),
        added(0, call("fc_2", "b", "f", "")),
        args("fc_2", "{\"y\":2}"),
        done(0, call("fc_2", "b", "f", "{\"y\":2}")),
        delta("output_text", 0, "msg_1", "Hi"),
        completed(json!([])),
    ]);
    let inputs: Vec<_> = calls(&folded).into_iter().map(|(_, _, input)| input).collect();
    assert_eq!(inputs, [json!({"x": 1}), json!({"y": 2})]);
    assert_eq!(folded.message.text(), "Hi");
}

#[test]
fn decode_arguments_may_arrive_in_any_shape() {
    let item = |arguments: Value| json!({"id": "fc_1", "type": "function_call", "call_id": "a", "name": "f", "arguments": arguments});
    for (what, events) in [
        ("whole at the start", vec![added(0, item(json!("{\"x\":1}"))), completed(json!([]))]),
        (
            "whole at the start and again",
            vec![added(0, item(json!("{\"x\":1}"))), args("fc_1", "{\"x\":1}"), completed(json!([]))],
        ),
        (
            "as an object",
            vec![added(0, item(json!(""))), done(0, item(json!({"x": 1}))), completed(json!([]))],
        ),
        (
            "before the item of the call",
            vec![
                args("fc_1", "{\"x\":"),
                args("fc_1", "1}"),
                added(0, item(json!(""))),
                completed(json!([item(json!(null))])),
            ],
        ),
        (
            "before the last event only",
            vec![args("fc_1", "{\"x\":1}"), completed(json!([item(json!("{\"x\":1}"))]))],
        ),
        (
            "in the event that ends the arguments",
            vec![
                added(0, item(json!(""))),
                json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": "{\"x\":1}"}),
                completed(json!([])),
            ],
        ),
    ] {
        let folded = answer(&events);
        assert_eq!(calls(&folded), [("a".to_owned(), "f".to_owned(), json!({"x": 1}))], "{what}");
        assert_eq!(folded.stop_reason, StopReason::ToolUse);
    }
    for empty in [json!(""), json!(null), json!("{}"), json!({})] {
        assert_eq!(calls(&answer(&[completed(json!([item(empty.clone())]))]))[0].2, json!({}), "{empty}");
    }
}

#[test]
fn decode_call_without_an_id_uses_the_item_id_and_without_a_name_fails() {
    let only = json!({"id": "fc_1", "type": "function_call", "name": "f", "arguments": "{}"});
    assert_eq!(calls(&answer(&[completed(json!([only]))]))[0].0, "fc_1");
    let error = decode(&[args("fc_1", "{}"), completed(json!([]))]).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
    assert!(error.message.contains("has no name"), "{error}");
}

#[test]
fn decode_refusal_becomes_text_and_a_stop_reason() {
    let item =
        json!({"id": "msg_1", "type": "message", "content": [{"type": "refusal", "refusal": "I can't."}]});
    for events in [
        vec![
            delta("refusal", 0, "msg_1", "I "),
            delta("refusal", 0, "msg_1", "can't."),
            completed(json!([])),
        ],
        vec![
            json!({"type": "response.refusal.done", "item_id": "msg_1", "refusal": "I can't."}),
            completed(json!([])),
        ],
        vec![done(0, item.clone()), completed(json!([]))],
        vec![completed(json!([item]))],
    ] {
        let folded = answer(&events);
        assert_eq!((folded.message.text(), folded.stop_reason), ("I can't.".to_owned(), StopReason::Refusal));
    }
}

#[test]
fn decode_incomplete_answers_map_their_reason() {
    for (reason, expected) in [
        (json!({"reason": "max_output_tokens"}), StopReason::Length),
        (json!({"reason": "content_filter"}), StopReason::Refusal),
        (json!({"reason": "new_reason"}), StopReason::Other("new_reason".to_owned())),
        (json!(null), StopReason::Other("incomplete".to_owned())),
    ] {
        let end = json!({"type": "response.incomplete", "response": {"status": "incomplete",
            "incomplete_details": reason, "output": [message("msg_1", "Hel"), call("fc_1", "a", "f", "{\"x\":")]}});
        let folded = answer(&[created(), end]);
        assert_eq!(folded.stop_reason, expected);
        assert_eq!(folded.message.tool_uses().next().unwrap().malformed.as_deref(), Some("{\"x\":"));
    }
}

#[test]
fn decode_reasoning_keeps_what_must_be_sent_back() {
    let kept = |item: Value| {
        let folded = answer(&[done(0, item), completed(json!([]))]);
        let (text, signature) = thinking(&folded);
        (text.to_owned(), signature)
    };
    assert_eq!(
        kept(
            json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "ZW5j", "status": null})
        ),
        (
            String::new(),
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "ZW5j"})
        )
    );
    // If there is only one part, its text is stored only in the block.
    assert_eq!(kept(reasoning("rs_1", &["Hm."], "ZW5j")).1["summary"], json!([{"type": "summary_text"}]));
    assert_eq!(
        kept(json!({"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "",
            "content": [{"type": "reasoning_text", "text": "Long."}]})),
        (
            "Long.".to_owned(),
            json!({"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text"}]})
        )
    );
    assert_eq!(kept(reasoning("rs_1", &["Hm."], "")), ("Hm.".to_owned(), Value::Null));
    let nothing = json!({"id": "rs_1", "type": "reasoning", "summary": []});
    assert!(
        answer(&[added(0, nothing.clone()), done(0, nothing), completed(json!([]))])
            .message
            .content
            .is_empty()
    );
}

#[test]
fn decode_encrypted_reasoning_only_in_the_last_event_is_kept() {
    let folded = answer(&[
        done(0, reasoning("rs_1", &["Hm."], "")),
        delta("output_text", 1, "msg_1", "Yes."),
        completed(json!([reasoning("rs_1", &["Hm."], "ZW5j"), message("msg_1", "Yes.")])),
    ]);
    assert_eq!(thinking(&folded).1["encrypted_content"], "ZW5j");
    assert_eq!(folded.message.content.len(), 2);
}

#[test]
fn decode_interrupted_stream_salvages_only_complete_reasoning_and_items() {
    let mut decoder = OpenAiResponses::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    let search = json!({"id": "ws_1", "type": "web_search_call", "status": "completed"});
    for event in [
        done(0, reasoning("rs_1", &["Hm."], "ZW5j")),
        done(1, search),
        delta("output_text", 2, "msg_1", "Yes"),
        added(3, json!({"id": "ws_2", "type": "web_search_call", "status": "in_progress"})),
        json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_2", "output_index": 4, "delta": "More"}),
    ] {
        decoder.decode(Frame::new("", &event.to_string()), &mut deltas).unwrap();
    }
    let mut fold = Fold::default();
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    assert_eq!(fold.blocks().len(), 5);
    let kept = fold.salvage(omni_agent::message::Timestamp(0)).unwrap();
    assert_eq!(kept.content.len(), 3);
    assert_eq!(kept.text(), "Yes");
}

#[test]
fn decode_members_of_unexpected_types_are_ignored() {
    let folded = answer(&[
        json!({"type": "response.created", "response": null}),
        json!({"type": "response.in_progress", "response": {"id": 7, "model": []}}),
        json!({"type": "response.new_event", "item": 5, "delta": {"x": []}, "error": null}),
        json!({"type": "response.output_text.delta", "item_id": null, "output_index": "x", "content_index": {}, "delta": null}),
        json!({"type": "response.output_text.delta", "item_id": "m", "output_index": -1, "delta": "a", "logprobs": {}}),
        json!({"type": "response.output_text.delta", "item_id": "m", "output_index": 1e99, "content_index": null, "delta": "b"}),
        json!({"type": "response.completed", "response": {"output": null, "usage": [], "error": false, "model": "m-1"}}),
    ]);
    assert_eq!((folded.message.text(), folded.usage), ("ab".to_owned(), Usage::default()));
    assert_eq!(folded.model.as_deref(), Some("m-1"));
}

#[test]
fn decode_usage_with_the_users_own_key_counts_the_cost_at_the_service() {
    let end = |own_key: bool| {
        json!({"type": "response.completed", "response": {"usage": {"input_tokens": 5, "cost": 0,
            "is_byok": own_key, "cost_details": {"upstream_inference_cost": 0.036}}}})
    };
    assert_eq!(answer(&[end(true)]).usage.cost, Some(0.036));
    assert_eq!(answer(&[end(false)]).usage.cost, Some(0.0));
}

#[test]
fn decode_contradictory_usage_stays_in_bounds() {
    let end = json!({"type": "response.completed", "response": {"usage": {"input_tokens": 5, "cost": 0.25,
        "input_tokens_details": {"cached_tokens": 9, "cache_write_tokens": 3},
        "output_tokens": 1, "output_tokens_details": {"reasoning_tokens": 4}}}});
    let usage = Usage::default()
        .with_input(0)
        .with_cache_read(5)
        .with_cache_write(0)
        .with_output(4)
        .with_reasoning(4)
        .with_cost(0.25);
    assert_eq!(answer(&[end]).usage, usage);
}

#[test]
fn decode_usage_with_reasoning_outside_the_output_counts_both() {
    let end = json!({"type": "response.completed", "response": {"usage": {"input_tokens": 20,
        "output_tokens": 198, "output_tokens_details": {"reasoning_tokens": 405}, "total_tokens": 623}}});
    let usage = answer(&[end]).usage;
    assert_eq!((usage.input, usage.output, usage.reasoning), (20, 603, 405));
}

#[test]
fn decode_events_after_the_end_of_an_item_change_nothing() {
    let folded = answer(&[
        done(0, message("msg_1", "Hello")),
        delta("output_text", 0, "msg_1", "Hello"),
        done(0, message("msg_1", "Hello, you")),
        added(0, json!({"id": "msg_1", "type": "message"})),
        added(u64::MAX, call("fc_1", "a", "f", "")),
        done(u64::MAX, call("fc_1", "a", "f", "{}")),
        args("fc_1", "{}"),
        completed(json!([message("msg_1", "Hello"), call("fc_1", "a", "f", "{}")])),
    ]);
    assert_eq!(folded.message.text(), "Hello");
    assert_eq!((calls(&folded).len(), folded.message.content.len()), (1, 2));
}

#[test]
fn decode_calls_with_the_same_id_stay_separate() {
    let folded = answer(&[
        added(0, call("fc_1", "a", "f", "")),
        args("fc_1", "{\"x\":1}"),
        added(1, call("fc_2", "a", "f", "")),
        delta("function_call_arguments", 1, "fc_2", "{\"y\":2}"),
        completed(json!([call("fc_1", "a", "f", "{\"x\":1}"), call("fc_2", "a", "f", "{\"y\":2}")])),
    ]);
    let made = calls(&folded);
    assert_eq!((&made[0].2, &made[1].2), (&json!({"x": 1}), &json!({"y": 2})));
    assert_ne!(made[0].0, made[1].0);
}

#[test]
fn decode_complete_call_with_another_item_id_is_found_by_its_call_id() {
    let event =
        |kind: &str, item: Value| json!({"type": format!("response.output_item.{kind}"), "item": item});
    let folded = answer(&[
        created(),
        event("added", call("a1", "call_1", "f", "")),
        event("added", call("b1", "call_2", "g", "")),
        event("done", call("a2", "call_1", "f", "{\"x\":1}")),
        event("done", call("b2", "call_2", "g", "{\"y\":2}")),
        completed(json!([])),
    ]);
    let expected = [("call_1", "f", json!({"x": 1})), ("call_2", "g", json!({"y": 2}))];
    assert_eq!(calls(&folded), expected.map(|(id, name, input)| (id.to_owned(), name.to_owned(), input)));
}

#[test]
fn decode_complete_calls_with_one_call_id_are_found_by_their_indexes() {
    let event = |kind: &str, index: u64, item: Value| json!({"type": format!("response.output_item.{kind}"), "output_index": index, "item": item});
    let folded = answer(&[
        created(),
        event("added", 0, call("a1", "c", "f", "")),
        event("added", 1, call("b1", "c", "g", "")),
        event("done", 1, call("b2", "c", "g", "{\"y\":2}")),
        event("done", 0, call("a2", "c", "f", "{\"x\":1}")),
        completed(json!([])),
    ]);
    let calls = calls(&folded);
    let inputs: Vec<_> = calls.iter().map(|(_, name, input)| (name.as_str(), input.clone())).collect();
    assert_eq!(inputs, [("f", json!({"x": 1})), ("g", json!({"y": 2}))]);
}

#[test]
fn decode_calls_whose_items_have_the_same_id_stay_separate() {
    let (a, b) = (call("x", "a", "f", "{\"x\":1}"), call("x", "b", "g", "{\"y\":2}"));
    let folded = answer(&[
        added(0, call("x", "a", "f", "")),
        done(0, a.clone()),
        added(1, call("x", "b", "g", "")),
        done(1, b.clone()),
        completed(json!([a, b])),
    ]);
    let made = calls(&folded);
    assert_eq!((made.len(), &made[0].2, &made[1].2), (2, &json!({"x": 1}), &json!({"y": 2})));
}

#[test]
fn decode_arguments_of_megabytes_are_complete() {
    let text = "x".repeat(4 * 1024 * 1024);
    let arguments = json!({"text": text}).to_string();
    let mut events = vec![added(0, call("fc_1", "a", "f", ""))];
    events.extend(
        arguments.as_bytes().chunks(64 * 1024).map(|part| args("fc_1", std::str::from_utf8(part).unwrap())),
    );
    events.push(completed(json!([call("fc_1", "a", "f", &arguments)])));
    assert_eq!(calls(&answer(&events))[0].2["text"].as_str().map(str::len), Some(text.len()));
}

#[test]
fn decode_content_only_in_the_last_event_is_emitted() {
    let folded = answer(&[
        added(0, json!({"id": "msg_1", "type": "message"})),
        done(0, json!({"id": "msg_1", "type": "message"})),
        json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": "{\"x\":1}"}),
        completed(
            json!([message("msg_1", "Hi"), {"id": "fc_1", "type": "function_call", "call_id": "a", "name": "f"}]),
        ),
    ]);
    assert_eq!(folded.message.text(), "Hi");
    assert_eq!(calls(&folded), [("a".to_owned(), "f".to_owned(), json!({"x": 1}))]);
}

/// Feeds events to a decoder until it returns an error, and returns this error.
fn flood(event: impl Fn(u64) -> Value, most: u64) -> omni_agent::provider::ProviderError {
    let mut decoder = OpenAiResponses::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    for n in 0..most {
        deltas.clear();
        if let Err(error) = decoder.decode(Frame::new("", &event(n).to_string()), &mut deltas) {
            return error;
        }
    }
    panic!("{most} events were accepted");
}

#[test]
fn decode_endless_items_parts_and_early_arguments_are_an_error() {
    let big = "x".repeat(1024 * 1024);
    let many: Vec<Value> = (0..5000).map(|_| json!({"type": "output_text", "text": "x"})).collect();
    for error in [
        flood(|_| completed(json!(many)), 1),
        flood(|_| completed(json!([{"type": "message", "content": many}])), 1),
        flood(|_| done(0, json!({"type": "message", "content": many})), 1),
        flood(|n| added(n, json!({"id": n.to_string(), "type": "message"})), 5000),
        flood(|n| added(0, json!({"id": n.to_string(), "type": "new_kind"})), 5000),
        // Without the first event, the item is unknown, and without the second, each delta continues the same part.
        flood(
            |n| match n % 2 {
                _ if n == 0 => added(0, json!({"id": "m", "type": "message"})),
                1 => json!({"type": "response.content_part.added", "item_id": "m", "content_index": n / 2}),
                _ => {
                    json!({"type": "response.output_text.delta", "item_id": "m", "content_index": n / 2 - 1, "delta": "x"})
                }
            },
            10_000,
        ),
        flood(
            |n| match n {
                0 => added(0, json!({"id": "m", "type": "message"})),
                n => json!({"type": "response.content_part.added", "item_id": "m", "content_index": n}),
            },
            5000,
        ),
        flood(|n| delta("output_text", n, &n.to_string(), "x"), 5000),
        flood(
            |_| json!({"type": "response.function_call_arguments.delta", "item_id": "f", "delta": big}),
            70,
        ),
        flood(|n| added(n, json!({"id": format!("{n}{big}"), "type": "message"})), 70),
    ] {
        assert_eq!(error.kind, ProviderErrorKind::Decoding);
        assert!(error.message.contains("more than") || error.message.contains("longer than"), "{error}");
    }
}

/// The final text of an item is used only if it continues the text of the received deltas.
#[test]
fn decode_final_text_that_differs_from_its_deltas_keeps_the_deltas() {
    let begun = || {
        added(0, json!({"id": "fc_1", "type": "function_call", "call_id": "a", "name": "f", "arguments": ""}))
    };
    let arguments_done = |whole: &str| json!({"type": "response.function_call_arguments.done", "item_id": "fc_1", "arguments": whole});
    for whole in ["{\"a\": 1}", "{\n  \"a\": 1\n}", "{\"b\":2,\"c\":3}", "{}", ""] {
        for events in [
            vec![
                begun(),
                args("fc_1", "{\"a\""),
                args("fc_1", ":1}"),
                arguments_done(whole),
                completed(json!([])),
            ],
            vec![
                begun(),
                args("fc_1", "{\"a\":1}"),
                done(0, call("fc_1", "a", "f", whole)),
                completed(json!([])),
            ],
            vec![begun(), args("fc_1", "{\"a\":1}"), completed(json!([call("fc_1", "a", "f", whole)]))],
        ] {
            let folded = answer(&events);
            assert_eq!(calls(&folded)[0].2, json!({"a": 1}), "{whole}");
        }
    }
    let text_done = |whole: &str| json!({"type": "response.output_text.done", "item_id": "m", "content_index": 0, "text": whole});
    let said = |text: &str| delta("output_text", 0, "m", text);
    for (whole, missing) in
        [("Hallo, world!", true), ("Hell", false), ("hello", false), ("  Hello", true), ("Hélloo", true)]
    {
        for events in [
            vec![said("Hel"), said("lo"), text_done(whole), completed(json!([]))],
            vec![
                said("Hel"),
                said("lo"),
                done(0, message("m", whole)),
                completed(json!([message("m", whole)])),
            ],
            vec![
                said("Hello"),
                text_done(whole),
                done(0, message("m", whole)),
                completed(json!([message("m", whole)])),
            ],
        ] {
            let folded = answer(&events);
            assert_eq!(
                (folded.message.text().as_str(), folded.warnings.len()),
                ("Hello", usize::from(missing)),
                "{whole}"
            );
        }
    }
    let folded = answer(&[said("Hel"), text_done("Hello, world!"), completed(json!([]))]);
    assert_eq!((folded.message.text().as_str(), folded.warnings.len()), ("Hello, world!", 0));
}

#[test]
fn decode_parts_with_other_indices_in_the_last_event_are_not_mixed() {
    let parts = json!({"id": "m", "type": "message", "content": [
        {"type": "output_text", "text": "Hello "}, {"type": "output_text", "text": "world"}]});
    let folded = answer(&[delta("output_text", 0, "m", "Hello wor"), completed(json!([parts]))]);
    assert_eq!((folded.message.text().as_str(), folded.warnings.len()), ("Hello wor", 1));
    let folded = answer(&[delta("output_text", 0, "m", "Hello world"), completed(json!([parts]))]);
    assert_eq!((folded.message.text().as_str(), folded.warnings.len()), ("Hello world", 0));
    let folded = answer(&[delta("output_text", 0, "m", "Hello"), completed(json!([parts]))]);
    assert_eq!((folded.message.text().as_str(), folded.warnings.len()), ("Hello world", 0));
}

#[test]
fn decode_reasoning_that_differs_from_its_deltas_keeps_both() {
    let summary = |text: &str| json!({"type": "response.reasoning_summary_text.delta", "item_id": "rs_1", "output_index": 0, "delta": text});
    // Without an index, the parts can't be told apart, so the text of the block has no separator between them.
    let whole = reasoning("rs_1", &["Hm, hm.", "Well."], "ZW5j");
    let folded = answer(&[summary("Hm, hm."), summary("We"), completed(json!([whole]))]);
    let (text, kept) = thinking(&folded);
    assert_eq!((text, &kept["summary"]), ("Hm, hm.We", &whole["summary"]));
    let whole = reasoning("rs_1", &["Another text."], "ZW5j");
    let folded = answer(&[summary("Hm."), completed(json!([whole]))]);
    let (text, kept) = thinking(&folded);
    assert_eq!((text, &kept["summary"]), ("Hm.", &whole["summary"]), "the text of the service is sent back");
}

#[test]
fn decode_usage_in_any_form_keeps_the_answer() {
    let folded_usage = |usage: Value| {
        let mut end = completed(json!([message("m", "Hi")]));
        end["response"]["usage"] = usage;
        answer(&[end])
    };
    for (input, output, cost) in [
        (json!(30.0), json!(25), json!(0.5)),
        (json!("30"), json!("25"), json!("0.5")),
        (json!(30), json!(25.0), json!(0.5)),
    ] {
        let folded = folded_usage(json!({"input_tokens": input, "output_tokens": output, "cost": cost}));
        let usage = Usage::default().with_input(30).with_output(25).with_cost(0.5);
        assert_eq!((folded.usage, folded.warnings.len()), (usage, 0));
    }
    for (bad, member) in [
        (json!({"input_tokens": -3, "output_tokens": 25}), "`input_tokens`"),
        (json!({"input_tokens": 1.5, "output_tokens": 25, "cost": []}), "`input_tokens`"),
        (json!({"output_tokens": 25, "input_tokens_details": 7}), "`input_tokens_details`"),
        (
            json!({"output_tokens": 25, "output_tokens_details": {"reasoning_tokens": "few"}}),
            "`output_tokens_details.reasoning_tokens`",
        ),
        (json!({"output_tokens": 25, "cost": "free"}), "`cost`"),
        (json!({"output_tokens": 25, "cost": "NaN"}), "`cost`"),
        (json!({"output_tokens": 25, "cost": -1.0}), "`cost`"),
        (json!("n/a"), "`usage`"),
        (json!([]), "`usage`"),
    ] {
        let folded = folded_usage(bad.clone());
        assert_eq!(folded.message.text(), "Hi");
        let output = if bad.is_object() { 25 } else { 0 };
        assert_eq!(folded.usage, Usage::default().with_output(output), "{bad}");
        assert!(
            folded.warnings.len() == 1 && folded.warnings[0].contains(member),
            "{bad}: {:?}",
            folded.warnings
        );
    }
    for none in [json!(null), json!({}), json!({"input_tokens_details": null})] {
        assert_eq!(folded_usage(none).warnings, [""; 0]);
    }
}

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::HashSet;

use omni_agent::{
    message::{History, Message},
    provider::{
        ProviderErrorKind, Request, StopReason,
        custom::{BlockStart, ChatCompletions, Delta},
    },
};
use serde_json::{Value, json};

use crate::chat::{answer, calls, delta, deltas_of, encode, finish};

/// Returns the calls that result from these chunks. Each chunk is a list of call fragments.
fn made(chunks: &[Value]) -> Vec<(String, String, Value)> {
    let mut events: Vec<Value> = chunks.iter().map(|calls| delta(json!({"tool_calls": calls}))).collect();
    events.extend([finish("tool_calls"), json!("[DONE]")]);
    let folded = answer(&events).unwrap();
    assert_eq!(folded.stop_reason, StopReason::ToolUse);
    calls(&folded)
}

fn call(id: &str, name: &str, input: Value) -> (String, String, Value) {
    (id.to_owned(), name.to_owned(), input)
}

fn two() -> Vec<(String, String, Value)> {
    vec![call("a", "f", json!({"x": 1})), call("b", "g", json!({"y": 2}))]
}

#[test]
fn calls_in_regular_fragments_are_assembled() {
    let made = made(&[
        json!([{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]),
        json!([{"index": 0, "function": {"arguments": "{\"x\""}}]),
        json!([{"index": 0, "function": {"arguments": ":1}"}}]),
        json!([{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]),
        json!([{"index": 1, "function": {"arguments": "{\"y\":2}"}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn calls_interleaved_with_gaps_in_the_index_stay_separate() {
    let made = made(&[
        json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}},
            {"index": 2, "id": "b", "function": {"name": "g", "arguments": "{\"y\""}}]),
        json!([{"index": 2, "function": {"arguments": ":2}"}}, {"index": 0, "function": {"arguments": ":1}"}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn calls_with_odd_indices_stay_separate() {
    for (first, second) in [
        (json!(null), json!(null)),
        (json!("0"), json!("1")),
        (json!(u64::MAX), json!(0)),
        (json!(-1), json!(-2)),
        (json!(1e99), json!(1.5)),
        (json!(0), json!(0)),
        (json!({"odd": []}), json!(true)),
    ] {
        // The calls arrive in three ways: both complete in one chunk, each complete in its own chunk, and each in one
        // chunk followed by its arguments in another.
        let f = json!({"index": first, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}});
        let g = json!({"index": second, "id": "b", "function": {"name": "g", "arguments": "{\"y\":2}"}});
        assert_eq!(made(&[json!([f, g])]), two(), "{first} {second}");
        assert_eq!(made(&[json!([f]), json!([g])]), two(), "{first} {second}");
        let streamed = made(&[
            json!([{"index": first, "id": "a", "function": {"name": "f", "arguments": ""}}]),
            json!([{"index": first, "function": {"arguments": "{\"x\":1}"}}]),
            json!([{"index": second, "id": "b", "function": {"name": "g", "arguments": ""}}]),
            json!([{"index": second, "function": {"arguments": "{\"y\":2}"}}]),
        ]);
        assert_eq!(streamed, two(), "{first} {second}");
    }
}

#[test]
fn calls_without_index_are_identified_by_id() {
    let made = made(&[
        json!([{"id": "a", "function": {"name": "f", "arguments": "{"}}, {"id": "b", "function": {"name": "g"}}]),
        json!([{"id": "a", "function": {"arguments": "\"x\":1}"}}]),
        json!([{"id": "b", "function": {"arguments": "{\"y\":2}"}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn calls_without_index_continue_by_their_position_in_the_chunk() {
    let made = made(&[
        json!([{"id": "a", "function": {"name": "f", "arguments": ""}},
            {"id": "b", "function": {"name": "g", "arguments": ""}}]),
        json!([{"function": {"arguments": "{\"x\""}}, {"function": {"arguments": "{\"y\""}}]),
        json!([{"function": {"arguments": ":1}"}}, {"function": {"arguments": ":2}"}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn calls_with_id_and_name_on_each_fragment_are_assembled() {
    let made = made(&[
        json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
        json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}}]),
        json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ":1}"}}]),
        json!([{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{\"y\":2}"}}]),
        json!([{"index": 1, "id": "b", "function": {"name": "", "arguments": ""}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn calls_with_a_new_id_on_each_fragment_are_assembled() {
    let made = made(&[
        json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}}]),
        json!([{"index": 0, "id": "z1", "function": {"name": null, "arguments": "{\"x\""}}]),
        json!([{"index": 0, "id": "z2", "function": {"arguments": ":1}"}}]),
    ]);
    assert_eq!(made, [call("a", "f", json!({"x": 1}))]);
}

#[test]
fn calls_whose_first_index_differs_from_the_rest_are_assembled() {
    let made = made(&[
        json!([{"index": 3, "id": "a", "function": {"name": "f", "arguments": ""}}]),
        json!([{"index": 0, "function": {"arguments": "{\"x\":"}}]),
        json!([{"index": 0, "function": {"arguments": "1}"}}]),
    ]);
    assert_eq!(made, [call("a", "f", json!({"x": 1}))]);
}

#[test]
fn calls_whose_first_index_is_that_of_another_call_are_assembled() {
    let made = made(&[
        json!([{"index": 1, "id": "a", "function": {"name": "f", "arguments": ""}}]),
        json!([{"index": 0, "function": {"arguments": "{\"x\":1}"}}]),
        json!([{"index": 0, "id": "b", "function": {"name": "g", "arguments": ""}}]),
        json!([{"index": 1, "function": {"arguments": "{\"y\""}}]),
        json!([{"index": 1, "function": {"arguments": ":2}"}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn call_repeated_under_another_index_is_one_call() {
    let head = |index: u64, name: &str, arguments: &str| json!([{"index": index, "id": "a", "function": {"name": name, "arguments": arguments}}]);
    let rest = json!([{"index": 0, "function": {"arguments": "{\"x\":1}"}}]);
    let f = |id: &str, input: Value| call(id, "f", input);
    for arguments in ["{\"x\":1}", "{\"x\": 1}"] {
        let made = made(&[head(0, "f", ""), rest.clone(), head(1, "f", arguments)]);
        assert_eq!(made, [f("a", json!({"x": 1}))], "{arguments}");
    }
    assert_eq!(made(&[head(0, "f", ""), head(1, "f", "{\"x\":1}")]), [f("a", json!({"x": 1}))]);
    for (name, arguments) in [("g", "{\"x\":1}"), ("f", "{\"x\":2}")] {
        let made = made(&[head(0, "f", ""), rest.clone(), head(1, name, arguments)]);
        assert_eq!(made.len(), 2, "{name} {arguments}");
    }
    // Two calls of one chunk are no repetition, and neither is a call that begins with a part of its arguments.
    let both = json!([head(0, "f", "{\"x\":1}")[0], head(1, "f", "{\"x\":1}")[0]]);
    assert_eq!(made(&[both]).len(), 2);
    let part = json!([{"index": 2, "function": {"arguments": ":1}"}}]);
    let made = made(&[head(0, "f", ""), head(2, "f", "{\"x\""), part]);
    assert_eq!(made.iter().map(|(_, _, input)| input).collect::<Vec<_>>(), [&json!({}), &json!({"x": 1})]);
}

#[test]
fn calls_without_ids_get_stable_and_distinct_ids() {
    for chunks in [
        // The same calls arrive in four ways: in one chunk without indices, in one chunk in which both calls have the
        // same index, in several chunks with the same index, and in several chunks without indices.
        vec![
            json!([{"function": {"name": "f", "arguments": {"x": 1}}}, {"function": {"name": "f", "arguments": {"y": 2}}}]),
        ],
        vec![json!([{"index": 0, "id": "", "function": {"name": "f", "arguments": "{\"x\":1}"}},
            {"index": 0, "id": "", "function": {"name": "f", "arguments": "{\"y\":2}"}}])],
        vec![
            json!([{"index": 0, "function": {"name": "f", "arguments": "{\"x\":1}"}}]),
            json!([{"index": 0, "function": {"name": "f", "arguments": "{\"y\":2}"}}]),
        ],
        vec![
            json!([{"function": {"name": "f"}}]),
            json!([{"function": {"arguments": "{\"x\":1}"}}]),
            json!([{"function": {"name": "f"}}]),
            json!([{"function": {"arguments": "{\"y\":2}"}}]),
        ],
    ] {
        let first = made(&chunks);
        let [(one, _, x), (two, _, y)] = &first[..] else { panic!("{first:?}") };
        assert_eq!((x, y), (&json!({"x": 1}), &json!({"y": 2})));
        assert!(!one.is_empty() && !two.is_empty() && one != two, "{one} {two}");
        assert!(one.len() <= 40 && two.len() <= 40);
        assert_eq!(made(&chunks), first);
    }
}

#[test]
fn calls_without_ids_in_different_answers_get_different_ids() {
    let id = |answer_id: &str| {
        let chunk = json!({"id": answer_id, "choices": [{"delta": {"tool_calls": [
            {"function": {"name": "f", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]});
        calls(&answer(&[chunk]).unwrap())[0].0.clone()
    };
    assert_ne!(id("chatcmpl-1"), id("chatcmpl-2"));
}

#[test]
fn calls_with_the_same_id_get_distinct_ids_in_deltas_too() {
    let chunk = delta(json!({"tool_calls": [
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}},
        {"index": 1, "id": "a", "function": {"name": "g", "arguments": "{"}}]}));
    let rest = delta(json!({"tool_calls": [{"index": 1, "id": "a", "function": {"arguments": "}"}}]}));
    let events = [chunk.to_string(), rest.to_string(), finish("tool_calls").to_string()];
    let deltas = deltas_of(&ChatCompletions::default(), &events).unwrap();
    let ids: Vec<_> = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Start { block: BlockStart::ToolUse { id, .. }, .. } => Some(id.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 2);
    let inputs: Vec<_> = calls(&crate::chat::fold(deltas)).into_iter().map(|(_, _, input)| input).collect();
    assert_eq!(inputs, [json!({"x": 1}), json!({})]);
}

#[test]
fn calls_with_the_same_id_and_index_stay_separate() {
    let f = |arguments: &str| json!({"function": {"name": "f", "arguments": arguments}});
    let g = |arguments: &str| json!({"function": {"name": "g", "arguments": arguments}});
    let rest = |arguments: &str| json!({"function": {"arguments": arguments}});
    let (x, y) = (json!({"x": 1}), json!({"y": 2}));
    for (index, chunks, expected) in [
        (json!(0), vec![f("{\"x\":1}"), g("{\"y\":2}")], [("f", &x), ("g", &y)]),
        (json!(null), vec![f("{\"x\":1}"), g("{\"y\":2}")], [("f", &x), ("g", &y)]),
        (json!(0), vec![f("{\"x\":1}"), f("{\"y\":2}")], [("f", &x), ("f", &y)]),
        (json!(null), vec![f("{\"x\":1}"), f("{\"y\":2}")], [("f", &x), ("f", &y)]),
        (json!(0), vec![f("{\"x\":1}"), g("{\"x\":1}")], [("f", &x), ("g", &x)]),
        (json!(0), vec![f("{}"), g("{\"y\":2}")], [("f", &json!({})), ("g", &y)]),
        (json!(0), vec![f("{\"x\":"), rest("1}"), g("{\"y\":"), rest("2}")], [("f", &x), ("g", &y)]),
    ] {
        let chunks: Vec<Value> = chunks
            .into_iter()
            .map(|mut call| {
                (call["index"], call["id"]) = (index.clone(), json!("c"));
                json!([call])
            })
            .collect();
        let made = made(&chunks);
        let named: Vec<_> = made.iter().map(|(_, name, input)| (name.as_str(), input)).collect();
        assert_eq!(named, expected, "{chunks:?}");
        assert_ne!(made[0].0, made[1].0);
    }
}

#[test]
fn calls_that_repeat_their_id_and_name_with_the_same_arguments_count_once() {
    let f =
        |arguments: &str| json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}]);
    for pieces in [
        vec!["{\"x\":1}", "{\"x\":1}"],
        vec!["{\"x\":1}", ""],
        vec!["{\"x\":1}", "\n"],
        vec!["{\"x\"", "{\"x\":1}", "{\"x\":1}"],
        vec!["{}", "{\"x\":1}"],
        vec!["{\"x\":1}", "{\"x\": 1}"],
        vec!["{\"x\":1}", " {\"x\":1}"],
        vec!["{\"x\":1}\n", "{\"x\":1}"],
    ] {
        let chunks: Vec<Value> = pieces.iter().map(|arguments| f(arguments)).collect();
        assert_eq!(made(&chunks).len(), 1, "{pieces:?}");
        if pieces[1].contains('x') {
            assert_eq!(made(&chunks), [call("a", "f", json!({"x": 1}))], "{pieces:?}");
        }
    }
}

#[test]
fn calls_with_arguments_before_the_name_wait_for_the_name() {
    let made = made(&[
        json!([{"index": 0, "function": {"arguments": "{\"x\""}}]),
        json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": ":1}"}}]),
        json!([{"index": 1, "id": "b", "function": {"arguments": "{\"y\":2}"}}]),
        json!([{"index": 1, "function": {"name": "g"}}]),
    ]);
    assert_eq!(made, two());
}

#[test]
fn calls_with_a_name_in_pieces_get_the_whole_name() {
    let made = made(&[
        json!([{"index": 0, "id": "a", "function": {"name": "get_", "arguments": ""}}]),
        json!([{"index": 0, "function": {"name": "weather"}}]),
        json!([{"index": 0, "function": {"arguments": "{}"}}]),
    ]);
    assert_eq!(made, [call("a", "get_weather", json!({}))]);
}

#[test]
fn calls_without_arguments_have_an_empty_input() {
    for arguments in [json!(""), json!(null), json!("{}"), json!({}), json!("null")] {
        let made = made(&[
            json!([{"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}]),
            json!([{"index": 1, "id": "b", "function": {"name": "g", "arguments": arguments}}]),
        ]);
        assert_eq!(made, [call("a", "f", json!({})), call("b", "g", json!({}))], "{arguments}");
    }
}

#[test]
fn calls_with_arguments_that_are_not_an_object_are_malformed() {
    let chunk = delta(
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":"}}]}),
    );
    let folded = answer(&[chunk, finish("tool_calls")]).unwrap();
    let call = folded.message.tool_uses().next().unwrap();
    assert_eq!((&call.input, call.malformed.as_deref()), (&json!({}), Some("{\"x\":")));
}

#[test]
fn calls_with_finish_reason_stop_want_tools_and_with_length_are_cut() {
    let chunk =
        delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}));
    let reason = |word: &str| answer(&[chunk.clone(), finish(word)]).unwrap().stop_reason;
    assert_eq!(reason("stop"), StopReason::ToolUse);
    assert_eq!(reason("function_call"), StopReason::ToolUse);
    assert_eq!(reason("length"), StopReason::Length);
    assert_eq!(reason("content_filter"), StopReason::Refusal);
    assert_eq!(answer(&[chunk.clone(), json!("[DONE]")]).unwrap().stop_reason, StopReason::ToolUse);
}

#[test]
fn calls_without_a_name_are_an_error() {
    let chunk =
        delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{\"x\":1}"}}]}));
    let error = answer(&[chunk.clone(), finish("tool_calls")]).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
    // If an answer is cut off, it may end before the name of the call.
    assert!(answer(&[chunk, finish("length")]).unwrap().message.content.is_empty());
}

#[test]
fn endless_calls_are_an_error() {
    let many = |id: bool| -> Vec<Value> {
        let call = |n: u32| {
            json!({"index": n, "id": if id { n.to_string() } else { String::new() },
            "function": {"name": "f", "arguments": "{}"}})
        };
        (0..5000).map(|n| delta(json!({"tool_calls": [call(n)]}))).collect()
    };
    for chunks in [many(true), many(false)] {
        assert_eq!(answer(&chunks).unwrap_err().kind, ProviderErrorKind::Decoding);
    }
    let name =
        delta(json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "n".repeat(100_000)}}]}));
    assert_eq!(answer(&[name]).unwrap_err().kind, ProviderErrorKind::Decoding);
}

#[test]
fn calls_in_the_old_single_form_are_read() {
    let folded = answer(&[
        delta(json!({"function_call": {"name": "f", "arguments": ""}})),
        delta(json!({"function_call": {"arguments": "{\"x\":1}"}})),
        finish("function_call"),
    ])
    .unwrap();
    let made = calls(&folded);
    assert_eq!((made.len(), made[0].1.as_str(), &made[0].2), (1, "f", &json!({"x": 1})));
    assert_eq!(folded.stop_reason, StopReason::ToolUse);
}

#[test]
fn calls_with_extra_content_send_it_back_only_to_its_own_service() {
    let extra = |text: &str| json!({"google": {"thought_signature": text}});
    let signed = |mut call: Value, text: &str| {
        call["extra_content"] = extra(text);
        call
    };
    let whole = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\":1}"}});
    let begun = json!({"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}});
    let rest = json!({"index": 0, "function": {"arguments": "{\"x\":1}"}});
    let nothing = json!({"index": 0});
    let second = json!({"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}});
    for chunks in [
        vec![json!([signed(whole.clone(), "sig")])],
        vec![json!([signed(begun.clone(), "sig")]), json!([rest])],
        vec![json!([begun]), json!([signed(rest.clone(), "sig")])],
        // A signature that is sent twice counts once. A signature that arrives after the arguments still belongs to its
        // call.
        vec![json!([signed(begun.clone(), "sig")]), json!([signed(rest, "sig")])],
        vec![json!([whole]), json!([signed(nothing, "sig")])],
    ] {
        let mut events: Vec<Value> = chunks.iter().map(|calls| delta(json!({"tool_calls": calls}))).collect();
        events.extend([delta(json!({"tool_calls": [second]})), finish("tool_calls"), json!("[DONE]")]);
        let message = answer(&events).unwrap().message;
        let sent = |message: Message| {
            let request = Request::new(History::from_iter([message]));
            encode(&ChatCompletions::default(), &request)["messages"][0]["tool_calls"].clone()
        };
        let calls = sent(message.clone());
        assert_eq!(calls[0]["extra_content"], extra("sig"), "{chunks:?}");
        assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": "{\"x\":1}"}));
        assert_eq!(calls[1].get("extra_content"), None);

        let mut foreign = message;
        foreign.provider_data.clear();
        let mut other = foreign.clone();
        other.provider_data.insert("google_gemini".to_owned(), json!({}));
        assert_eq!(sent(other)[0].get("extra_content"), None);
    }
}

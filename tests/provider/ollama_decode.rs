//! Ollama's chat format: decoding of answers.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, Timestamp, Usage},
    provider::{
        ProviderErrorKind, Request, StopReason,
        custom::{Delta, Dialect, Frame, OllamaChat, Part},
    },
    testing::internals::Fold,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::ollama::{answer, deltas_of, last, line};

#[test]
fn decode_text_stream_emits_each_delta_and_folds() {
    let lines = [
        line(json!({"role": "assistant", "content": "Hel"})).to_string(),
        line(json!({"role": "assistant", "content": "lo\n\"you\" é"})).to_string(),
        last("stop").to_string(),
    ];
    let deltas = deltas_of(&lines).unwrap();
    let texts: Vec<_> = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Extend { index: 0, part: Part::Text(text) } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["Hel", "lo\n\"you\" é"]);
    let folded = crate::ollama::fold(deltas);
    assert_eq!((folded.stop_reason, folded.model.as_deref()), (StopReason::Stop, Some("m-1")));
    assert_eq!(folded.usage, Usage::default().with_input(20).with_output(22));
    assert_eq!(Value::Object(folded.message.provider_data), json!({"ollama_chat": {}}));
}

#[test]
fn decode_thinking_text_and_calls_of_one_line_keep_this_order() {
    let folded = answer(&[
        line(json!({"content": "b", "thinking": "a",
            "tool_calls": [{"function": {"name": "f", "arguments": {"z": 1, "a": 2}}}]})),
        line(json!({"content": "d"})),
        last("stop"),
    ])
    .unwrap();
    let [Content::Thinking(thinking), Content::Text(text), Content::ToolUse(call), Content::Text(after)] =
        &folded.message.content[..]
    else {
        panic!("{:?}", folded.message.content);
    };
    assert_eq!((&*thinking.text, &*text.text, &*after.text), ("a", "b", "d"));
    assert_eq!(call.input.to_string(), r#"{"z":1,"a":2}"#);
}

#[test]
fn decode_calls_without_ids_get_stable_and_distinct_ids() {
    let call = |id: &str| json!({"id": id, "function": {"name": "f", "arguments": {}}});
    let ids = || {
        let lines = [
            line(json!({"tool_calls": [call(""), call("")]})),
            line(json!({"tool_calls": [call("x"), call("x"), {"function": {"name": "f"}}]})),
            last("stop"),
        ];
        let folded = answer(&lines).unwrap();
        folded.message.tool_uses().map(|call| call.id.to_string()).collect::<Vec<_>>()
    };
    let first = ids();
    assert_eq!(first, ids());
    let mut distinct = first.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!((first.len(), distinct.len(), &*first[2]), (5, 5, "x"));
}

#[test]
fn decode_arguments_as_text_or_absent_are_read() {
    for (arguments, input) in
        [(json!("{\"x\": 1}"), json!({"x": 1})), (json!(null), json!({})), (json!(""), json!({}))]
    {
        let call = json!({"function": {"name": "f", "arguments": arguments}});
        let folded = answer(&[line(json!({"tool_calls": [call]})), last("stop")]).unwrap();
        assert_eq!(folded.message.tool_uses().next().unwrap().input, input, "{arguments}");
    }
}

#[test]
fn decode_done_reason_maps_to_stop_reason() {
    for (word, expected) in [
        ("stop", StopReason::Stop),
        ("", StopReason::Stop),
        ("load", StopReason::Stop),
        ("length", StopReason::Length),
        ("weird", StopReason::Other("weird".into())),
    ] {
        assert_eq!(answer(&[line(json!({"content": "x"})), last(word)]).unwrap().stop_reason, expected);
    }
    let calls = line(json!({"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}));
    assert_eq!(answer(&[calls.clone(), last("stop")]).unwrap().stop_reason, StopReason::ToolUse);
    assert_eq!(answer(&[calls, last("length")]).unwrap().stop_reason, StopReason::Length);
}

#[test]
fn decode_whole_answer_on_one_line_is_complete() {
    let whole = json!({"model": "m", "message": {"role": "assistant", "content": "Hi"}, "done": true,
        "done_reason": "stop", "prompt_eval_count": null, "eval_count": 3});
    let folded = answer(&[whole]).unwrap();
    assert_eq!((folded.message.text(), folded.usage.output), ("Hi".to_owned(), 3));
}

#[test]
fn decode_usage_separates_cached_tokens() {
    for (prompt, cached, input, cache_read) in [(28, 27, 1, 27), (28, 0, 28, 0), (5, 9, 0, 5)] {
        let whole = json!({"message": {"content": "Hi"}, "done": true, "done_reason": "stop",
            "prompt_eval_count": prompt, "prompt_eval_cached_count": cached, "eval_count": 3});
        let usage = answer(&[whole]).unwrap().usage;
        assert_eq!((usage.input, usage.cache_read, usage.output), (input, cache_read, 3));
    }
}

#[test]
fn decode_lines_after_done_are_ignored() {
    let mut decoder = OllamaChat::default().decoder(&Request::default());
    let mut deltas = Vec::new();
    decoder.decode(Frame::new("", &last("stop").to_string()), &mut deltas).unwrap();
    assert!(decoder.is_done());
    let len_before = deltas.len();
    decoder.decode(Frame::new("", "no JSON"), &mut deltas).unwrap();
    decoder.end(&mut deltas).unwrap();
    assert_eq!(deltas.len(), len_before);
}

#[test]
fn decode_end_without_done_is_truncated() {
    for lines in [vec![], vec![line(json!({"content": "Hi"}))]] {
        let error = answer(&lines).unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true));
    }
}

#[test]
fn decode_data_that_is_not_an_answer_is_a_decoding_error_that_shows_it() {
    for data in ["404 page not found", "[]", "\"x\"", r#"{"message":"hi"}"#, r#"{"done":"yes"}"#] {
        let error = deltas_of(&[data]).unwrap_err();
        assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::Decoding, Some(data)));
    }
    let nameless = line(json!({"tool_calls": [{"function": {"arguments": {}}}]}));
    assert_eq!(answer(&[nameless]).unwrap_err().kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_hostile_answers_stay_within_the_limits_of_a_message() {
    let mut lines = vec![line(json!({"thinking": "r", "content": "t"})); 5000];
    lines.push(last("stop"));
    let folded = answer(&lines).unwrap();
    assert_eq!(folded.message.text(), "t".repeat(5000));
    assert!(folded.message.content.len() <= 300);

    let calls = vec![json!({"function": {"name": "f", "arguments": {}}}); 5000];
    let error = answer(&[line(json!({"tool_calls": calls})), last("stop")]).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);

    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let nested =
        format!(r#"{{"message":{{"tool_calls":[{{"function":{{"name":"f","arguments":{deep}}}}}]}}}}"#);
    let folded = crate::ollama::fold(deltas_of(&[nested, last("stop").to_string()]).unwrap());
    assert_eq!(folded.message.tool_uses().next().unwrap().malformed.as_deref(), Some(&*deep));
}

#[cfg(feature = "http")]
#[test]
fn decode_bytes_split_anywhere_give_the_same_deltas() {
    let lines = [
        line(json!({"content": "", "thinking": "Größe"})),
        line(json!({"content": "Grüß \u{1F600}\n"})),
        line(json!({"tool_calls": [{"function": {"name": "f", "arguments": {"é": "\r\n"}}}]})),
        last("stop"),
    ];
    let body = lines.map(|line| format!("{line}\r\n")).concat();
    let deltas = |pieces: Vec<&[u8]>| {
        omni_agent::testing::decode(&OllamaChat::default(), &Request::default(), pieces).unwrap()
    };
    let bytes = body.as_bytes();
    let whole = deltas(vec![bytes]);
    assert_eq!(deltas(bytes.chunks(1).collect()), whole);
    for at in 0..bytes.len() {
        assert_eq!(deltas(vec![&bytes[..at], &bytes[at..]]), whole, "{at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn decode_odd_lines_never_panic_and_their_deltas_fold(
        texts in prop::collection::vec(("[a-z]{0,2}", "[a-z]{0,2}", "[ab]?", 0_u8..8), 0..12),
        done: bool,
    ) {
        let odd = [json!(null), json!(3), json!([]), json!({}), json!("x"), json!(true)];
        let mut lines: Vec<Value> = texts.into_iter().map(|(content, thinking, id, n)| {
            let arguments = odd.get(usize::from(n)).cloned().unwrap_or(json!({"x": 1}));
            line(json!({"content": content, "thinking": thinking,
                "tool_calls": [{"id": id, "function": {"name": "f", "arguments": arguments}}]}))
        }).collect();
        lines.extend(done.then(|| last("stop")));
        let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
        match deltas_of(&lines) {
            Ok(deltas) => {
                let mut fold = Fold::default();
                for delta in deltas {
                    fold.apply(delta).unwrap();
                }
                prop_assert!(fold.finish(Timestamp(0)).is_ok());
            }
            Err(error) => prop_assert!(!done && error.kind == ProviderErrorKind::Truncated),
        }
    }

    #[test]
    fn decode_any_text_never_panics(data in "\\PC{0,40}") {
        let _ = deltas_of(&[data]);
    }
}

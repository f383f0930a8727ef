//! Google's Gemini format: decoding of answers.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "helpers of tests")]

use omni_agent::{
    message::{Content, Timestamp, Usage},
    provider::{
        ProviderErrorKind, Request, StopReason,
        custom::{Delta, Dialect, Frame, GoogleGemini, Part},
    },
    testing::internals::Fold,
};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::gemini::{answer, deltas_of, finish, fold, parts};

fn text(text: &str) -> Value {
    parts(json!([{ "text": text }]))
}

#[test]
fn decode_text_stream_emits_each_delta_and_folds() {
    let events = [text("Hel"), text("lo\n\"you\" é"), finish("STOP")].map(|chunk| chunk.to_string());
    let deltas = deltas_of(&events).unwrap();
    let texts: Vec<_> = deltas
        .iter()
        .filter_map(|delta| match delta {
            Delta::Extend { index: 0, part: Part::Text(text) } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(texts, ["Hel", "lo\n\"you\" é"]);
    let folded = fold(deltas);
    assert_eq!((folded.stop_reason, folded.message.content.len()), (StopReason::Stop, 1));
    assert_eq!(folded.model.as_deref(), Some("gemini-test"));
    assert_eq!(Value::Object(folded.message.provider_data), json!({"google_gemini": {"responseId": "r-1"}}));
}

#[test]
fn decode_null_or_absent_members_are_ignored() {
    let folded = answer(&[
        json!({"candidates": null, "usageMetadata": {"promptTokenCount": null}, "modelVersion": null}),
        json!({"candidates": [], "responseId": "r"}),
        json!({"candidates": [null, {}]}),
        json!({"candidates": [{"content": null, "finishReason": null}], "promptFeedback": {}}),
        json!({"candidates": [{"content": {"parts": null}}]}),
        json!({"candidates": [{"content": {"parts": [null, {}, {"text": null, "thought": null}]}}]}),
        json!({"candidates": [{"content": {"parts": [{"text": "a", "functionCall": null, "executableCode": null,
            "partMetadata": {"x": 1}}]}}]}),
        json!({"candidates": [{"index": 1, "content": {"parts": [{"text": "another"}]}}]}),
        json!({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP"}]}),
    ])
    .unwrap();
    assert_eq!((folded.message.text(), folded.message.content.len()), ("a".to_owned(), 1));
    assert_eq!(folded.usage, Usage::default());
}

#[test]
fn decode_signed_parts_become_separate_blocks() {
    let folded = answer(&[
        parts(
            json!([{"text": "a", "thought": true}, {"text": "b", "thought": true, "thoughtSignature": "s1"}]),
        ),
        parts(json!([{"text": "c"}, {"text": "d", "thoughtSignature": "s2"}, {"text": "e"}])),
        parts(json!([{"thoughtSignature": "s3"}])),
        finish("STOP"),
    ])
    .unwrap();
    let blocks = folded.message.content.iter().map(|block| match block {
        Content::Thinking(thinking) => ("thinking", &*thinking.text, thinking.signature.as_deref()),
        Content::Text(text) => ("text", &*text.text, text.signature.as_deref()),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        blocks.collect::<Vec<_>>(),
        [
            ("thinking", "a", None),
            ("thinking", "b", Some("s1")),
            ("text", "c", None),
            ("text", "d", Some("s2")),
            ("text", "e", None),
            ("text", "", Some("s3")),
        ]
    );
}

#[test]
fn decode_calls_without_ids_get_stable_and_distinct_ids() {
    let call = |id: &str| json!({"functionCall": {"id": id, "name": "f", "args": {"z": 1, "a": 2}}});
    let ids = || {
        let chunks =
            [parts(json!([call(""), call("")])), parts(json!([call("x"), call("x")])), finish("STOP")];
        let folded = answer(&chunks).unwrap();
        assert_eq!(folded.stop_reason, StopReason::ToolUse);
        for call in folded.message.tool_uses() {
            assert_eq!(serde_json::to_string(&call.input).unwrap(), r#"{"z":1,"a":2}"#);
        }
        folded.message.tool_uses().map(|call| call.id.to_string()).collect::<Vec<_>>()
    };
    let first = ids();
    assert_eq!(first, ids());
    let mut distinct = first.clone();
    distinct.sort();
    distinct.dedup();
    assert_eq!((first.len(), distinct.len(), &*first[2]), (4, 4, "x"));
    let bare = answer(&[parts(json!([{"functionCall": {"name": "f"}}])), finish("STOP")]).unwrap();
    assert_eq!(bare.message.tool_uses().next().unwrap().input, json!({}));
}

#[test]
fn decode_usage_separates_cached_tokens_and_adds_thoughts() {
    let usage = |usage: Value| {
        let mut last = finish("STOP");
        last["usageMetadata"] = usage;
        answer(&[text("x"), last]).unwrap().usage
    };
    assert_eq!(
        usage(json!({"promptTokenCount": 100, "cachedContentTokenCount": 60, "toolUsePromptTokenCount": 7,
            "candidatesTokenCount": 20, "thoughtsTokenCount": 30, "totalTokenCount": 157})),
        Usage::default()
            .with_input(47)
            .with_cache_read(60)
            .with_cache_write(0)
            .with_output(50)
            .with_reasoning(30)
    );
    let absurd = json!({"promptTokenCount": 1, "cachedContentTokenCount": 9, "thoughtsTokenCount": u64::MAX,
        "candidatesTokenCount": u64::MAX});
    assert_eq!(usage(absurd).output, u64::MAX);
}

#[test]
fn decode_finish_reason_maps_to_stop_reason_and_is_kept() {
    for (word, expected) in [
        ("STOP", StopReason::Stop),
        ("MAX_TOKENS", StopReason::Length),
        ("SAFETY", StopReason::Refusal),
        ("RECITATION", StopReason::Refusal),
        ("LANGUAGE", StopReason::Refusal),
        ("BLOCKLIST", StopReason::Refusal),
        ("PROHIBITED_CONTENT", StopReason::Refusal),
        ("SPII", StopReason::Refusal),
        ("IMAGE_SAFETY", StopReason::Refusal),
        ("OTHER", StopReason::Other("OTHER".into())),
    ] {
        let folded = answer(&[text("x"), finish(word)]).unwrap();
        assert_eq!(folded.stop_reason, expected);
        let kept = folded.message.provider_data["google_gemini"].get("finishReason");
        let is_kept = !matches!(expected, StopReason::Stop | StopReason::Length);
        assert_eq!(kept.and_then(Value::as_str), is_kept.then_some(word));
    }
    let calls = parts(json!([{"functionCall": {"name": "f", "args": {}}}]));
    assert_eq!(answer(&[calls, finish("MAX_TOKENS")]).unwrap().stop_reason, StopReason::Length);
}

#[test]
fn decode_blocked_prompt_is_a_refusal_with_its_reason() {
    let blocked = json!({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"},
        "usageMetadata": {"promptTokenCount": 7}, "modelVersion": "gemini-test", "responseId": "r-1"});
    let folded = answer(&[blocked]).unwrap();
    assert_eq!((folded.stop_reason, folded.usage.input), (StopReason::Refusal, 7));
    assert!(folded.message.content.is_empty());
    assert_eq!(
        folded.message.provider_data["google_gemini"],
        json!({"responseId": "r-1", "promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}})
    );
}

#[test]
fn decode_chunks_after_the_finish_reason_are_read() {
    let late = json!({"usageMetadata": {"promptTokenCount": 3, "candidatesTokenCount": 4}});
    let folded = answer(&[text("x"), finish("STOP"), text("y"), late, finish("STOP")]).unwrap();
    assert_eq!((folded.message.text(), folded.usage.output), ("xy".to_owned(), 4));
    let done = deltas_of(&[finish("STOP").to_string(), "[DONE]".to_owned(), "no JSON".to_owned()]).unwrap();
    assert_eq!(fold(done).stop_reason, StopReason::Stop);
}

#[test]
fn decode_whole_answer_as_a_list_is_read() {
    let list = json!([text("Hel"), text("lo"), finish("STOP")]).to_string();
    assert_eq!(fold(deltas_of(&[list]).unwrap()).message.text(), "Hello");
}

#[test]
fn decode_end_without_finish_reason_is_truncated() {
    for chunks in [vec![], vec![text("Hi")], vec![json!({"usageMetadata": {"promptTokenCount": 1}})]] {
        let error = answer(&chunks).unwrap_err();
        assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Truncated, true));
    }
    let error = deltas_of(&["[DONE]"]).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Truncated);
}

#[test]
fn decode_data_that_is_not_an_answer_is_a_decoding_error_that_shows_it() {
    for data in ["nonsense", "[]", "[1]", "3", r#"{"candidates":7}"#, r#"{"candidates":{}}"#] {
        let error = deltas_of(&[data]).unwrap_err();
        assert_eq!((error.kind, error.body.as_deref()), (ProviderErrorKind::Decoding, Some(data)), "{data}");
    }
    let nameless = parts(json!([{"functionCall": {"args": {}}}]));
    assert_eq!(answer(&[nameless]).unwrap_err().kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_hostile_answers_stay_within_the_limits_of_a_message() {
    let mut chunks = vec![parts(json!([{"text": "r", "thought": true}, {"text": "t"}])); 5000];
    chunks.push(finish("STOP"));
    let folded = answer(&chunks).unwrap();
    assert_eq!(folded.message.text(), "t".repeat(5000));
    assert!(folded.message.content.len() <= 300);

    let calls = vec![json!({"functionCall": {"name": "f"}}); 5000];
    assert_eq!(answer(&[parts(json!(calls)), finish("STOP")]).unwrap_err().kind, ProviderErrorKind::Decoding);

    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let nested = format!(r#"{{"candidates":[{{"content":{{"parts":[{{"executableCode":{deep}}}]}}}}]}}"#);
    assert_eq!(deltas_of(&[nested]).unwrap_err().kind, ProviderErrorKind::Decoding);

    // A JSON reader accepts this depth, but a message does not. The fold therefore fails.
    let deep = format!("{}1{}", "[".repeat(90), "]".repeat(90));
    let nested = format!(r#"{{"candidates":[{{"content":{{"parts":[{{"executableCode":{deep}}}]}}}}]}}"#);
    let deltas = deltas_of(&[nested, finish("STOP").to_string()]).unwrap();
    let mut fold = Fold::default();
    let error = deltas.into_iter().find_map(|delta| fold.apply(delta).err()).unwrap();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
}

#[test]
fn decode_repeated_finish_reason_is_kept_once() {
    let reason =
        |message: &str| json!({"candidates": [{"finishReason": "SAFETY", "finishMessage": message}]});
    let mut chunks = vec![reason(&"x".repeat(1000))];
    chunks.extend(vec![reason(""); 1000]);
    let deltas = deltas_of(&[json!(chunks).to_string()]).unwrap();
    let matching = deltas.iter().filter(|delta| {
        matches!(delta, omni_agent::provider::custom::Delta::Message(data) if data.provider_data.values()
            .any(|data| data.get("finishMessage").is_some()))
    });
    assert_eq!(matching.count(), 1);
}

#[cfg(feature = "http")]
#[test]
fn decode_bytes_split_anywhere_give_the_same_deltas() {
    let chunks = [
        parts(json!([{"text": "Größe", "thought": true, "thoughtSignature": "s"}])),
        text("Grüß \u{1F600}\n"),
        parts(json!([{"functionCall": {"name": "f", "args": {"é": "\r\n"}}, "thoughtSignature": "s"}])),
        finish("STOP"),
    ];
    let body = chunks.map(|chunk| format!("data: {chunk}\r\n\r\n")).concat();
    let deltas = |pieces: Vec<&[u8]>| {
        omni_agent::testing::decode(&GoogleGemini::default(), &Request::default(), pieces).unwrap()
    };
    let bytes = body.as_bytes();
    let whole = deltas(vec![bytes]);
    assert_eq!(deltas(bytes.chunks(1).collect()), whole);
    for at in 0..bytes.len() {
        assert_eq!(deltas(vec![&bytes[..at], &bytes[at..]]), whole, "{at}");
    }
}

/// Small values of every type. The tests use them for members in which broken servers send arbitrary values.
fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(json!(null)),
        Just(json!(3)),
        Just(json!([])),
        Just(json!({})),
        Just(json!(true)),
        "[a-z]?".prop_map(Value::from)
    ]
}

fn odd_or(usual: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
    prop_oneof![15 => usual, 1 => odd()]
}

fn any_part() -> impl Strategy<Value = Value> {
    let signature = odd_or(prop_oneof![Just(Value::Null), Just(json!("s"))]);
    let thought = odd_or(any::<bool>().prop_map(Value::from));
    let call =
        odd_or(prop_oneof![Just(Value::Null), Just(json!({"name": "f", "id": "a", "args": {"x": 1}}))]);
    let other = prop_oneof![Just("executableCode"), Just("toolCall"), Just("unheardOf")];
    (odd_or("[a-z]{0,2}".prop_map(Value::from)), thought, signature, call, other, odd()).prop_map(
        |(text, thought, signature, call, key, other)| {
            json!({"text": text, "thought": thought, "thoughtSignature": signature, "functionCall": call, key: other})
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn decode_any_parts_never_panics_and_its_deltas_fold(
        chunks in prop::collection::vec(odd_or(prop::collection::vec(any_part(), 0..3).prop_map(Value::from)), 0..12),
        done: bool,
    ) {
        let mut events: Vec<String> = chunks.into_iter().map(|chunk| parts(chunk).to_string()).collect();
        events.extend(done.then(|| finish("STOP").to_string()));
        let mut decoder = GoogleGemini::default().decoder(&Request::default());
        let mut deltas = Vec::new();
        let mut result = Ok(());
        for data in &events {
            result = result.and_then(|()| decoder.decode(Frame::new("", data), &mut deltas));
        }
        result = result.and_then(|()| decoder.end(&mut deltas));
        let mut fold = Fold::default();
        for delta in deltas {
            fold.apply(delta).unwrap();
        }
        match result {
            Ok(()) => prop_assert!(fold.finish(Timestamp(0)).is_ok()),
            Err(error) => prop_assert!(matches!(error.kind, ProviderErrorKind::Truncated | ProviderErrorKind::Decoding)),
        }
    }

    #[test]
    fn decode_any_text_never_panics(event in "(error)?", data in "\\PC{0,40}") {
        let mut deltas = Vec::new();
        let mut decoder = GoogleGemini::default().decoder(&Request::default());
        let _ = decoder.decode(Frame::new(&event, &data), &mut deltas);
        let _ = decoder.end(&mut deltas);
    }
}

/// Returns the name and the input of each tool use of an answer.
fn inputs(chunks: &[Value]) -> Vec<(String, Value)> {
    let folded = answer(chunks).unwrap();
    assert_eq!(folded.stop_reason, StopReason::ToolUse);
    folded.message.tool_uses().map(|call| (call.name.clone(), call.input.clone())).collect()
}

#[test]
fn decode_call_whose_arguments_arrive_in_parts_is_assembled() {
    let call = |call: Value| parts(json!([{ "functionCall": call }]));
    let more = |args: Value| call(json!({"partialArgs": args, "willContinue": true}));
    let signed = json!([{"functionCall": {"id": "c-1", "name": "book", "willContinue": true}, "thoughtSignature": "s"}]);
    let chunks = [
        parts(signed),
        more(json!([{"jsonPath": "$.city", "stringValue": "Os", "willContinue": true}])),
        more(
            json!([{"jsonPath": "$.city", "stringValue": "lo"}, {"jsonPath": "$.nights", "numberValue": 2}]),
        ),
        more(
            json!([{"jsonPath": "$.rooms[0].beds", "numberValue": 1.5}, {"jsonPath": "$.rooms[0].view", "boolValue": true}]),
        ),
        more(
            json!([{"jsonPath": "$.rooms[1]['a.b']", "nullValue": "NULL_VALUE"}, {"jsonPath": "$.none", "nullValue": null}, {"jsonPath": "$[\"x\"]", "stringValue": ""}]),
        ),
        more(json!([{"jsonPath": "$.city"}])),
        call(json!({})),
        call(json!({"name": "look", "args": {"a": 1}})),
        call(
            json!({"name": "take", "args": {"a": 1}, "partialArgs": [{"jsonPath": "$.b", "stringValue": "x"}]}),
        ),
        call(json!({"name": "stay", "willContinue": true})),
        finish("STOP"),
    ];
    let booked = json!({"city": "Oslo", "nights": 2, "rooms": [{"beds": 1.5, "view": true}, {"a.b": null}], "none": null, "x": ""});
    assert_eq!(
        inputs(&chunks),
        [
            ("book".to_owned(), booked),
            ("look".to_owned(), json!({"a": 1})),
            ("take".to_owned(), json!({"a": 1, "b": "x"})),
            ("stay".to_owned(), json!({})),
        ]
    );
    let folded = answer(&chunks).unwrap();
    let first = folded.message.tool_uses().next().unwrap();
    assert_eq!((first.id.as_str(), first.signature.as_deref()), ("c-1", Some("s")));
}

#[test]
fn decode_parts_of_arguments_that_do_not_fit_are_an_error() {
    let nested = "$".to_owned() + &".a".repeat(200);
    for path in ["city", "$.a[7]", "$.a[", "$['a", "$..a", "$.s.t", &nested] {
        let args = json!([{"jsonPath": "$.s", "numberValue": 1}, {"jsonPath": path, "stringValue": "x"}]);
        let call = json!({"name": "f", "partialArgs": args});
        let error = answer(&[parts(json!([{ "functionCall": call }])), finish("STOP")]).unwrap_err();
        assert_eq!(error.kind, ProviderErrorKind::Decoding, "{path}: {error}");
    }
}

#[test]
fn decode_stop_without_parts_causes_a_warning() {
    let empty = json!({"candidates": [{"content": {"role": "model"}, "finishReason": "STOP", "index": 0}]});
    let folded = answer(std::slice::from_ref(&empty)).unwrap();
    assert_eq!((folded.stop_reason, folded.message.content.len()), (StopReason::Stop, 0));
    assert_eq!(folded.warnings.len(), 1, "{:?}", folded.warnings);
    assert!(folded.warnings[0].contains("STOP"), "{:?}", folded.warnings);
    assert!(answer(&[text("Hi"), empty]).unwrap().warnings.is_empty());
}

use omni_agent::{
    message::Timestamp,
    provider::{
        ProviderErrorKind, Request,
        custom::{ChatCompletions, Delta, Dialect, Frame, ReasoningReturn},
    },
    testing::internals::Fold,
};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Small values of every type. The tests use them for members in which broken servers send arbitrary values.
fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop_oneof!["", "a", "b", "stop", "\\PC{0,4}"].prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]|text|name|thinking", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn odd_or(usual: impl Strategy<Value = Value> + 'static) -> impl Strategy<Value = Value> {
    prop_oneof![12 => usual, 1 => any_value()]
}

fn text() -> impl Strategy<Value = Value> {
    odd_or(prop_oneof![Just(Value::Null), "[a-z ]{0,3}".prop_map(Value::from)])
}

fn fragment() -> impl Strategy<Value = Value> {
    let index = odd_or(prop_oneof![Just(Value::Null), (0..3).prop_map(Value::from)]);
    let id = odd_or(prop_oneof![Just(Value::Null), "[ab]?".prop_map(Value::from)]);
    let name = odd_or(prop_oneof![Just(Value::Null), "[fg]?".prop_map(Value::from)]);
    let arguments = odd_or(prop_oneof!["", "\\{", "\\}", "\\{\\}", "\"x\":", "1"].prop_map(Value::from));
    (index, id, name, arguments).prop_map(|(index, id, name, arguments)| {
        json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}})
    })
}

fn chunk() -> impl Strategy<Value = Value> {
    let calls = odd_or(prop::collection::vec(fragment(), 0..3).prop_map(Value::from));
    let reason = odd_or(prop_oneof![
        6 => Just(Value::Null),
        1 => prop_oneof!["stop", "length", "tool_calls", "content_filter"].prop_map(Value::from),
    ]);
    let details = odd_or(Just(json!([{"type": "reasoning.text", "index": 0, "text": "r"}])));
    let delta = (text(), text(), text(), calls, details);
    (delta, reason, any_value(), prop_oneof![Just("delta"), Just("message")]).prop_map(
        |((content, reasoning, refusal, calls, details), reason, usage, place)| {
            let delta = json!({"content": content, "reasoning": reasoning, "refusal": refusal,
                "tool_calls": calls, "reasoning_details": details});
            json!({"id": "c", "model": "m", "choices": [{"index": 0, place: delta, "finish_reason": reason}],
                "usage": {"prompt_tokens": usage}})
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn decode_any_chunks_never_panics_and_its_deltas_fold(
        chunks in prop::collection::vec(odd_or(chunk()), 0..20),
        done: bool,
    ) {
        let chat = ChatCompletions::default().with_reasoning(ReasoningReturn::Details);
        let mut decoder = chat.decoder(&Request::default());
        let mut deltas = Vec::new();
        let mut result = Ok(());
        let mut events: Vec<String> = chunks.iter().map(Value::to_string).collect();
        events.extend(done.then(|| "[DONE]".to_owned()));
        for data in &events {
            result = result.and_then(|()| decoder.decode(Frame::new("", data), &mut deltas));
        }
        result = result.and_then(|()| decoder.end(&mut deltas));

        let mut fold = Fold::default();
        for delta in deltas {
            fold.apply(delta).unwrap();
        }
        match result {
            // A complete answer always has a stop reason and distinct ids.
            Ok(()) => {
                let folded = fold.finish(Timestamp(0)).unwrap();
                let mut ids: Vec<_> = folded.message.tool_uses().map(|call| call.id.clone()).collect();
                ids.sort();
                ids.dedup();
                prop_assert_eq!(ids.len(), folded.message.tool_uses().count());
            }
            Err(error) => prop_assert_ne!(error.kind, ProviderErrorKind::Transport),
        }
    }

    #[test]
    fn decode_any_text_never_panics(event in "(error)?", data in "\\PC{0,40}") {
        let mut deltas: Vec<Delta> = Vec::new();
        let mut decoder = ChatCompletions::default().decoder(&Request::default());
        let _ = decoder.decode(Frame::new(&event, &data), &mut deltas);
        let _ = decoder.end(&mut deltas);
    }

    #[test]
    fn error_with_any_body_respects_its_limits(status: u16, body in any_value(), key in "error|errors|detail|message|metadata") {
        for body in [body.to_string(), json!({key: body}).to_string()] {
            let error = ChatCompletions::default().error(status, &body);
            prop_assert_eq!(error.status, Some(status));
            prop_assert!(error.message.len() < 1100 && !error.message.is_empty());
        }
    }

    /// The arguments give the same input no matter where their text is cut.
    #[test]
    fn calls_cut_anywhere_give_the_same_input(
        text in "[a-z\"\\\\{}é]{0,12}",
        cuts in prop::collection::vec(0usize..200, 0..6),
        whole_first: bool,
    ) {
        let input = json!({"text": text, "list": [{"x": text}]});
        let arguments = input.to_string();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| arguments.is_char_boundary(*cut)).collect();
        cuts.extend([0, arguments.len()]);
        cuts.sort_unstable();
        let mut chunks = Vec::new();
        for (n, (id, name)) in [("a", "f"), ("b", "g")].into_iter().enumerate() {
            let first = if whole_first { "" } else { &arguments[..cuts[1]] };
            chunks.push(json!({"index": n, "id": id, "function": {"name": name, "arguments": first}}));
            for pair in cuts.windows(2).skip(usize::from(!whole_first)) {
                chunks.push(json!({"index": n, "function": {"arguments": arguments[pair[0]..pair[1]]}}));
            }
        }
        let mut events: Vec<Value> =
            chunks.into_iter().map(|call| crate::chat::delta(json!({"tool_calls": [call]}))).collect();
        events.push(crate::chat::finish("tool_calls"));
        let calls = crate::chat::calls(&crate::chat::answer(&events).unwrap());
        let inputs: Vec<&Value> = calls.iter().map(|(_, _, input)| input).collect();
        prop_assert_eq!(inputs, [&input, &input]);
    }
}

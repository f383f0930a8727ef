//! Anthropic's Messages format: decoding of arbitrary events in any order.

use omni_agent::{
    message::{History, Message, Timestamp},
    provider::{
        Request,
        custom::{AnthropicMessages, Dialect, Frame},
    },
    testing::internals::Fold,
};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::anthropic::{block, delta, end, start, stop};

fn any_index() -> impl Strategy<Value = u64> {
    prop_oneof![9 => 0_u64..4, 1 => select(vec![4095, 4096, u64::MAX])]
}

fn any_block() -> impl Strategy<Value = Value> {
    select(vec![
        json!({"type": "text", "text": ""}),
        json!({"type": "text", "text": "a", "citations": [{"page": 1}]}),
        json!({"type": "thinking", "thinking": "", "signature": "s"}),
        json!({"type": "redacted_thinking", "data": "d"}),
        json!({"type": "tool_use", "id": "t", "name": "n", "input": {}}),
        json!({"type": "tool_use", "name": "n", "input": {"a": 1}}),
        json!({"type": "server_tool_use", "id": "s", "input": {}}),
        json!({"type": 3}),
        json!([]),
    ])
}

fn any_delta() -> impl Strategy<Value = Value> {
    select(vec![
        json!({"type": "text_delta", "text": "é"}),
        json!({"type": "thinking_delta", "thinking": "b"}),
        json!({"type": "signature_delta", "signature": "c"}),
        json!({"type": "input_json_delta", "partial_json": "{\"a\":"}),
        json!({"type": "input_json_delta", "partial_json": "1}"}),
        json!({"type": "citations_delta", "citation": {"page": 2}}),
        json!({"type": "other_delta", "text": [1]}),
        json!({"text": "x"}),
        Value::Null,
    ])
}

fn any_event() -> impl Strategy<Value = Value> {
    let [reason, last] = end("tool_use");
    prop_oneof![
        6 => (any_index(), any_block()).prop_map(|(index, it)| block(index, it)),
        20 => (any_index(), any_delta()).prop_map(|(index, it)| delta(index, it)),
        5 => any_index().prop_map(stop),
        1 => select(vec![start(), reason, last, json!({"type": "ping"}), json!({"type": "new"}), json!({})]),
    ]
}

proptest! {
    #[test]
    fn decode_any_events_gives_deltas_that_fold_and_encode_again(
        events in vec(any_event(), 0..60),
        named in any::<bool>(),
    ) {
        let mut decoder = AnthropicMessages::default().decoder(&Request::default());
        let mut fold = Fold::default();
        let mut sent = 0;
        for event in [start()].iter().chain(&events) {
            let data = event.to_string();
            sent += data.len();
            let name = if named { event["type"].as_str().unwrap_or_default() } else { "" };
            let mut deltas = Vec::new();
            // If an event is invalid, the decoder returns an error. The test then continues, to reach more states of
            // the decoder.
            let _ = decoder.decode(Frame::new(name, &data), &mut deltas);
            for delta in deltas {
                prop_assert_eq!(fold.apply(delta), Ok(()));
            }
        }
        let (over, mut deltas) = (decoder.is_done(), Vec::new());
        let ended = decoder.end(&mut deltas).is_ok();
        prop_assert!(ended || !over);
        for delta in deltas {
            prop_assert_eq!(fold.apply(delta), Ok(()));
        }

        let message = if ended {
            Some(fold.finish(Timestamp::default()).unwrap().message)
        } else {
            fold.salvage(Timestamp::default())
        };
        let weight = message.as_ref().map_or(0, Message::weight);
        prop_assert!(weight <= sent + 64, "{weight} bytes out of {sent}");
        let history: History = [Message::user("a")].into_iter().chain(message).collect();
        let request = Request::new(history.repair());
        let encode = || serde_json::to_string(&AnthropicMessages::default().encode(&request).unwrap().body).unwrap();
        prop_assert_eq!(encode(), encode());
    }

    #[test]
    fn decode_any_text_does_not_panic(
        frames in vec((select(vec!["", "message_stop", "error", "x"]), "\\PC{0,40}"), 0..20),
    ) {
        let mut decoder = AnthropicMessages::default().decoder(&Request::default());
        for (event, data) in frames {
            let _ = decoder.decode(Frame::new(event, &data), &mut Vec::new());
        }
    }

    #[test]
    fn decode_text_in_any_pieces_gives_the_text(pieces in vec("\\PC{0,10}", 0..10)) {
        let grown = pieces.iter().map(|piece| delta(3, json!({"type": "text_delta", "text": piece})));
        let events = [block(3, json!({"type": "text", "text": ""}))].into_iter().chain(grown);
        prop_assert_eq!(crate::anthropic::answer(events, "end_turn").message.text(), pieces.concat());
    }
}

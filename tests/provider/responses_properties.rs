//! The Responses format: decoding of arbitrary events in any order and in any pieces.

use omni_agent::{
    message::{History, Message, Timestamp},
    provider::{
        ProviderErrorKind, Request,
        custom::{Dialect, Frame, OpenAiResponses},
    },
    testing::internals::Fold,
};
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Value, json};

use crate::responses::{added, answer, call, completed, delta};

fn any_index() -> impl Strategy<Value = Value> {
    prop_oneof![
        9 => (0..4).prop_map(Value::from),
        1 => select(vec![Value::Null, json!(u64::MAX), json!(-1), json!("1"), json!({})]),
    ]
}

fn any_id() -> impl Strategy<Value = Value> {
    select(vec![json!("a"), json!("b"), json!("c"), json!(""), Value::Null])
}

fn any_item() -> impl Strategy<Value = Value> {
    let item = select(vec![
        json!({"type": "message"}),
        json!({"type": "message", "phase": "x", "content": [{"type": "output_text", "text": "aé", "annotations": [1]}]}),
        json!({"type": "message", "content": [{"type": "refusal", "refusal": "no"}, {"type": "output_text", "text": "b"}]}),
        json!({"type": "reasoning", "summary": []}),
        json!({"type": "reasoning", "summary": [{"text": "s"}, {"text": "t"}], "encrypted_content": "e"}),
        json!({"type": "reasoning", "content": [{"type": "reasoning_text", "text": "r"}]}),
        json!({"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}),
        json!({"type": "function_call", "name": "f", "arguments": {"x": 1}}),
        json!({"type": "function_call", "arguments": "{}"}),
        json!({"type": "web_search_call", "status": "completed"}),
        json!({"type": 3, "content": "x"}),
    ]);
    (item, any_id()).prop_map(|(mut item, id)| {
        item["id"] = id;
        item
    })
}

fn any_event() -> impl Strategy<Value = Value> {
    let deltas = select(vec![
        "response.output_text.delta",
        "response.refusal.delta",
        "response.function_call_arguments.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_text.delta",
        "response.output_text.done",
        "response.refusal.done",
        "response.function_call_arguments.done",
        "response.new.delta",
    ]);
    let more = (deltas, any_id(), any_index(), any_index(), select(vec!["", "é", "{", "}"])).prop_map(
        |(kind, id, index, part, text)| {
            json!({"type": kind, "item_id": id, "output_index": index, "content_index": part, "summary_index": part,
                "delta": text, "text": text, "refusal": text, "arguments": text})
        },
    );
    let items = (any::<bool>(), any_item(), any_index()).prop_map(|(start, item, index)| {
        let kind = if start { "response.output_item.added" } else { "response.output_item.done" };
        json!({"type": kind, "item": item, "output_index": index})
    });
    let end = (vec(any_item(), 0..4), select(vec!["completed", "incomplete", "failed"])).prop_map(|(output, status)| {
        json!({"type": format!("response.{status}"), "response": {"status": status, "output": output}})
    });
    prop_oneof![20 => more, 12 => items, 1 => end, 1 => Just(json!({}))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn decode_any_events_gives_deltas_that_fold_and_encode_again(events in vec(any_event(), 0..40)) {
        let mut decoder = OpenAiResponses::default().decoder(&Request::default());
        let mut fold = Fold::default();
        for event in &events {
            let mut deltas = Vec::new();
            // If an event is invalid, the decoder returns an error. The test then continues, to reach more states of
            // the decoder.
            let _ = decoder.decode(Frame::new("", &event.to_string()), &mut deltas);
            for delta in deltas {
                prop_assert_eq!(fold.apply(delta), Ok(()));
            }
        }
        prop_assert_eq!(decoder.is_done(), decoder.end(&mut Vec::new()).is_ok());
        let message = if decoder.is_done() {
            Some(fold.finish(Timestamp::default()).unwrap().message)
        } else {
            fold.salvage(Timestamp::default())
        };
        let history: History = [Message::user("a")].into_iter().chain(message).collect();
        let request = Request::new(history.repair());
        let encode = || serde_json::to_string(&OpenAiResponses::default().encode(&request).unwrap().body).unwrap();
        prop_assert_eq!(encode(), encode());
    }

    #[test]
    fn decode_any_text_does_not_panic(frames in vec((select(vec!["", "response.completed", "error", "x"]), "\\PC{0,40}"), 0..20)) {
        let mut decoder = OpenAiResponses::default().decoder(&Request::default());
        for (event, data) in frames {
            let _ = decoder.decode(Frame::new(event, &data), &mut Vec::new());
        }
    }

    #[test]
    fn error_with_any_code_keeps_its_message(code in "[a-z_]{0,20}", message in "[a-z ]{1,20}") {
        let event = json!({"type": "error", "code": code, "message": message}).to_string();
        let error = OpenAiResponses::default().decoder(&Request::default()).decode(Frame::new("", &event), &mut Vec::new());
        let error = error.unwrap_err();
        prop_assert!(error.kind != ProviderErrorKind::Decoding);
        prop_assert!(message.trim().is_empty() || error.message.contains(message.trim()));
    }

    /// Text and arguments are the same no matter how they are divided into deltas, and whether or not the last event
    /// repeats them.
    #[test]
    fn decode_any_pieces_give_the_same_answer(
        pieces in vec("[a-z\"\\\\{}é]{0,6}", 0..8),
        cut in 0_usize..40,
        whole: bool,
    ) {
        let text = pieces.concat();
        let arguments = json!({"text": text}).to_string();
        let cut = arguments.floor_char_boundary(cut.min(arguments.len()));
        let mut events: Vec<Value> = pieces.iter().map(|piece| delta("output_text", 0, "m", piece)).collect();
        events.push(added(1, call("f", "c", "f", "")));
        events.push(delta("function_call_arguments", 1, "f", &arguments[..cut]));
        events.push(delta("function_call_arguments", 1, "f", &arguments[cut..]));
        let output = json!([{"id": "m", "type": "message", "content": [{"type": "output_text", "text": text}]},
            call("f", "c", "f", &arguments)]);
        events.push(completed(if whole { output } else { json!([]) }));
        let folded = answer(&events);
        prop_assert_eq!(folded.message.text(), text.clone());
        prop_assert_eq!(&folded.message.tool_uses().next().unwrap().input, &json!({"text": text}));
    }
}

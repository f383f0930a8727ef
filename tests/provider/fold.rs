//! Folding deltas into a message.

use std::collections::HashSet;

use omni_agent::{
    message::{Attachment, Content, Text, Thinking, ToolUse, Usage},
    provider::{
        ProviderErrorKind, StopReason,
        custom::{BlockStart, Delta, MessageDelta, Part},
    },
    testing::internals::Fold,
};
use proptest::{collection::vec, option, prelude::*, sample::Index};
use serde_json::{Value, json};

use crate::deltas::{
    NOW, assert_sound, data, end, extend, finish, fold, input, item, signature, start, text, tool,
};

fn any_part() -> impl Strategy<Value = Part> {
    let piece = prop_oneof!["[a-z{}\":, ]{0,4}", Just("{\"x\":".to_owned()), Just("{}".to_owned())];
    prop_oneof![
        piece.clone().prop_map(Part::Text),
        piece.clone().prop_map(Part::Input),
        piece.clone().prop_map(Part::Signature),
        piece.prop_map(Part::Redacted),
        any::<u8>().prop_map(|n| Part::Item(json!({ "n": [n] }))),
    ]
}

fn any_start() -> impl Strategy<Value = BlockStart> {
    prop_oneof![
        Just(BlockStart::Text),
        Just(BlockStart::Thinking),
        "(|a|b|a_[0-3]|call_[0-3])".prop_map(|id| BlockStart::ToolUse { id: id.into(), name: "tool".into() }),
        Just(BlockStart::Attachment(Attachment::url("image/png", "u"))),
        Just(BlockStart::ProviderItem(item(json!(1)))),
    ]
}

fn any_data() -> impl Strategy<Value = MessageDelta> {
    let reason = prop_oneof![
        Just(StopReason::Stop),
        Just(StopReason::Length),
        Just(StopReason::ToolUse),
        Just(StopReason::Other("odd".into())),
    ];
    (
        option::of("[a-c]"),
        option::of(reason),
        option::of(0u64..9),
        vec(("[ab]", 0u8..9), 0..2),
        vec("w", 0..2),
        proptest::bool::ANY,
    )
        .prop_map(|(model, stop_reason, output, provider_data, warnings, output_enforced)| {
            let mut data =
                MessageDelta::default().with_warnings(warnings).with_output_enforced(output_enforced);
            (data.model, data.stop_reason) = (model, stop_reason);
            data.usage = output.map(|output| Usage::default().with_output(output));
            data.provider_data = provider_data.into_iter().map(|(key, n)| (key, json!(n))).collect();
            data
        })
}

/// Sequences of deltas. Most of the deltas are valid.
fn any_deltas() -> impl Strategy<Value = Vec<Delta>> {
    let delta = prop_oneof![
        4 => any_start().prop_map(|block| start(usize::MAX, block)),
        8 => (0usize..4, any_part()).prop_map(|(index, part)| extend(index, part)),
        2 => (0usize..5).prop_map(end),
        2 => any_data().prop_map(data),
        1 => (0usize..4, any_start()).prop_map(|(index, block)| start(index, block)),
    ];
    vec(delta, 0..40).prop_map(|mut deltas| {
        let mut count = 0;
        for delta in &mut deltas {
            if let Delta::Start { index, .. } = delta {
                if *index == usize::MAX {
                    *index = count;
                }
                count += usize::from(*index == count);
            }
        }
        deltas
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_deltas_fold_without_panic_and_errors_change_nothing(deltas in any_deltas()) {
        let mut fold = Fold::default();
        for delta in deltas {
            let before = fold.clone();
            if let Err(error) = fold.apply(delta) {
                prop_assert_eq!(error.kind, ProviderErrorKind::Decoding);
                prop_assert_eq!(&fold, &before);
            }
        }
        let stop_reason = fold.message().stop_reason.clone();
        let (blocks, usage) = (fold.blocks().to_vec(), fold.usage());
        match fold.clone().finish(NOW) {
            Ok(folded) => {
                prop_assert_eq!(Some(folded.stop_reason), stop_reason);
                prop_assert_eq!(folded.usage, usage);
                prop_assert_eq!(folded.message.content.len(), blocks.len());
                assert_sound(&folded.message);
                // The tool use ids that subscribers see during the stream must equal the ids in the final message.
                let seen = blocks.iter().filter_map(|block| match &block.content {
                    Content::ToolUse(tool_use) => Some(&tool_use.id),
                    _ => None,
                });
                prop_assert!(seen.eq(folded.message.tool_uses().map(|tool_use| &tool_use.id)));
            }
            Err(error) => {
                prop_assert_eq!(error.kind, ProviderErrorKind::Truncated);
                prop_assert_eq!(stop_reason, None);
            }
        }
        if let Some(message) = fold.salvage(NOW) {
            assert_sound(&message);
            prop_assert!(message.tool_uses().all(|tool_use| tool_use.malformed.is_none()));
            let thinking = message.content.iter().filter_map(|block| match block {
                Content::Thinking(thinking) => Some(thinking),
                _ => None,
            });
            prop_assert!(thinking.into_iter().all(Thinking::is_signed));
        }
    }

    #[test]
    fn fold_stored_half_way_and_loaded_continues_unchanged(deltas in any_deltas(), at in any::<Index>()) {
        let mut whole = Fold::default();
        let mut stored = Fold::default();
        let at = at.index(deltas.len() + 1);
        for (index, delta) in deltas.into_iter().enumerate() {
            if index == at {
                let json = serde_json::to_string(&stored).unwrap();
                stored = serde_json::from_str(&json).unwrap();
            }
            prop_assert_eq!(whole.apply(delta.clone()), stored.apply(delta));
        }
        prop_assert_eq!(&whole, &stored);
        prop_assert_eq!(whole.finish(NOW), stored.finish(NOW));
    }

    #[test]
    fn interleaved_blocks_are_assembled(
        pieces in vec(vec("[a-zé]{1,5}", 0..8), 1..6),
        order in vec(any::<Index>(), 64),
    ) {
        // Blocks with an even index contain text. The other blocks are tool uses.
        let mut deltas = Vec::new();
        let mut expected = Vec::new();
        for (index, pieces) in pieces.iter().enumerate() {
            let whole = pieces.concat();
            if index % 2 == 0 {
                deltas.push(start(index, BlockStart::Text));
                expected.push(Content::from(whole));
            } else {
                let id = format!("use_{index}");
                deltas.push(tool(index, &id));
                expected.push(ToolUse::new(id, "tool", json!({ "x": whole })).into());
            }
        }
        let mut waiting: Vec<(usize, Vec<Delta>)> = pieces.into_iter().enumerate().map(|(index, pieces)| {
            let mut parts = if index % 2 == 0 {
                pieces.into_iter().map(|piece| text(index, piece)).collect::<Vec<_>>()
            } else {
                let mut json = vec!["{\"x".to_owned(), "\":\"".to_owned()];
                json.extend(pieces);
                json.push("\"}".to_owned());
                json.into_iter().map(|piece| input(index, piece)).collect()
            };
            parts.push(end(index));
            parts.reverse();
            (index, parts)
        }).collect();
        let mut turn = 0;
        while !waiting.is_empty() {
            let pick = order[turn % order.len()].index(waiting.len());
            turn += 1;
            match waiting[pick].1.pop() {
                Some(delta) => deltas.push(delta),
                None => { waiting.remove(pick); }
            }
        }
        prop_assert_eq!(finish(deltas, StopReason::ToolUse).message.content, expected);
    }
}

#[test]
fn finish_of_each_kind_of_block_gives_its_content() {
    let picture = Attachment::base64("image/png", "aGk=");
    let message = finish(
        [
            start(0, BlockStart::Thinking),
            text(0, "h"),
            text(0, "m"),
            signature(0, "s1"),
            signature(0, "s2"),
            extend(0, Part::Redacted("r".into())),
            end(0),
            start(1, BlockStart::Text),
            text(1, "hi"),
            signature(1, "s"),
            end(1),
            tool(2, "a"),
            input(2, "{\"x\""),
            input(2, ":1}"),
            signature(2, "s"),
            end(2),
            start(3, BlockStart::Attachment(picture.clone())),
            end(3),
            start(4, BlockStart::ProviderItem(item(json!(1)))),
            extend(4, Part::Item(json!({ "n": 2 }))),
            end(4),
        ],
        StopReason::ToolUse,
    )
    .message;
    let thinking = Thinking::new("hm").with_signature("s1s2").with_redacted("r");
    let mut tool_use = ToolUse::new("a", "tool", json!({ "x": 1 }));
    tool_use.signature = Some("s".into());
    let mut signed = Text::new("hi");
    signed.signature = Some("s".into());
    let expected: [Content; 5] =
        [thinking.into(), signed.into(), tool_use.into(), picture.into(), item(json!({ "n": 2 })).into()];
    assert_eq!(message.content, expected);
}

#[test]
fn finish_with_a_stop_reason_and_nothing_else_is_an_empty_message() {
    let folded = finish([], StopReason::Refusal);
    assert_eq!(folded.message.content, []);
    assert_eq!(
        (folded.stop_reason, folded.usage, folded.model),
        (StopReason::Refusal, Usage::default(), None)
    );
}

#[test]
fn finish_without_a_stop_reason_is_truncated() {
    let error = fold([start(0, BlockStart::Text), text(0, "hi"), end(0)]).finish(NOW).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Truncated);
    assert_eq!(Fold::default().finish(NOW).unwrap_err().kind, ProviderErrorKind::Truncated);
}

#[test]
fn later_message_data_replaces_earlier_data() {
    let usage = |output| Usage::default().with_output(output);
    let object = |value: Value| value.as_object().unwrap().clone();
    let folded = finish(
        [
            data(
                MessageDelta::default()
                    .with_model("first")
                    .with_usage(usage(1))
                    .with_provider_data(object(json!({ "a": { "x": 1 }, "b": 1 })))
                    .with_warnings(vec!["one".into()]),
            ),
            data(MessageDelta::default().with_model("second")),
            data(MessageDelta::default().with_usage(usage(5))),
            data(
                MessageDelta::default()
                    .with_provider_data(object(json!({ "a": { "y": 2 } })))
                    .with_warnings(vec!["two".into()]),
            ),
            Delta::stop(StopReason::Length),
            data(MessageDelta::default()),
        ],
        StopReason::Stop,
    );
    assert_eq!(folded.model.as_deref(), Some("second"));
    assert_eq!(folded.usage, usage(5));
    assert_eq!(folded.stop_reason, StopReason::Stop);
    assert_eq!(folded.warnings, ["one", "two"]);
    assert_eq!(Value::Object(folded.message.provider_data), json!({ "a": { "y": 2 }, "b": 1 }));
}

#[test]
fn clashing_or_missing_ids_become_distinct_immediately() {
    let fold =
        fold(["a", "a", "", "a_1", "a", "", "b"].iter().enumerate().map(|(index, id)| tool(index, id)));
    let ids: Vec<String> = fold
        .blocks()
        .iter()
        .map(|block| match &block.content {
            Content::ToolUse(tool_use) => tool_use.id.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 7, "{ids:?}");
    assert_eq!((ids[0].as_str(), ids[6].as_str()), ("a", "b"), "an id without a clash is kept");
    assert!(ids.iter().all(|id| !id.is_empty()));
}

#[test]
fn ids_chosen_to_clash_become_distinct_quickly() {
    let half = Fold::MAX_BLOCKS / 2;
    let taken = (half..Fold::MAX_BLOCKS).map(|n| format!("a_{n}"));
    let clashing = std::iter::repeat_n("a".to_owned(), half);
    let deltas: Vec<Delta> = taken.chain(clashing).enumerate().map(|(index, id)| tool(index, &id)).collect();
    let message = finish(deltas, StopReason::ToolUse).message;
    assert_eq!(message.content.len(), Fold::MAX_BLOCKS);
    assert_sound(&message);
}

#[test]
fn empty_parts_change_nothing() {
    let deltas = [
        start(0, BlockStart::Thinking),
        text(0, ""),
        signature(0, ""),
        extend(0, Part::Redacted(String::new())),
        start(1, BlockStart::Text),
        signature(1, ""),
    ];
    let content = finish(deltas, StopReason::Stop).message.content;
    assert_eq!(content, [Thinking::default().into(), Content::from("")]);
}

#[test]
fn fold_is_stored_without_derived_data() {
    let fold = fold([tool(0, "a"), input(0, "{\"x\""), Delta::stop(StopReason::Stop)]);
    assert_eq!(
        serde_json::to_value(&fold).unwrap(),
        json!({
            "blocks": [{
                "content": { "type": "tool_use", "id": "a", "name": "tool", "input": {} },
                "input": "{\"x\"",
                "ended": false,
            }],
            "message": { "stop_reason": "stop" },
        })
    );
}

//! Folding deltas into a message.

use std::collections::HashSet;

use omni_agent::{
    message::{Attachment, Content, Message, ProviderItem, Text, Thinking, Timestamp, ToolUse, Usage},
    provider::{BlockStart, Delta, ErrorKind, Fold, Folded, MessageDelta, Part, StopReason},
};
use proptest::{collection::vec, option, prelude::*, sample::Index};
use serde_json::{Map, Value, json};

const NOW: Timestamp = Timestamp(7);

fn start(index: usize, block: BlockStart) -> Delta {
    Delta::Start { index, block }
}

fn tool(index: usize, id: &str) -> Delta {
    start(index, BlockStart::ToolUse { id: id.into(), name: "tool".into() })
}

fn extend(index: usize, part: Part) -> Delta {
    Delta::Extend { index, part }
}

fn text(index: usize, text: impl Into<String>) -> Delta {
    extend(index, Part::Text(text.into()))
}

fn input(index: usize, text: impl Into<String>) -> Delta {
    extend(index, Part::Input(text.into()))
}

fn signature(index: usize, text: &str) -> Delta {
    extend(index, Part::Signature(text.into()))
}

fn end(index: usize) -> Delta {
    Delta::End { index }
}

fn data(data: MessageDelta) -> Delta {
    Delta::Message(Box::new(data))
}

fn item(data: Value) -> ProviderItem {
    ProviderItem::new("responses", data)
}

fn fold(deltas: impl IntoIterator<Item = Delta>) -> Fold {
    let mut fold = Fold::default();
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    fold
}

fn finish(deltas: impl IntoIterator<Item = Delta>, reason: StopReason) -> Folded {
    let mut fold = fold(deltas);
    fold.apply(Delta::stop(reason)).unwrap();
    fold.finish(NOW).unwrap()
}

/// The one tool use of an answer with this input, ended or not.
fn tool_use(json: &str, ended: bool, reason: StopReason) -> ToolUse {
    let mut deltas = vec![tool(0, "a"), input(0, json)];
    if ended {
        deltas.push(end(0));
    }
    finish(deltas, reason).message.tool_uses().next().unwrap().clone()
}

/// That `delta` is refused, without a trace in the fold.
fn assert_refused(fold: &mut Fold, delta: Delta) -> String {
    let before = fold.clone();
    let error = fold.apply(delta).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Decoding);
    assert!(*fold == before, "a refused delta left its mark: {error}");
    assert!(error.message.len() < 200, "the error repeats the delta: {} bytes", error.message.len());
    error.message
}

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
    )
        .prop_map(|(model, stop_reason, output, provider_data, warnings)| {
            let mut data = MessageDelta::default();
            data.model = model;
            data.stop_reason = stop_reason;
            data.usage = output.map(|output| Usage { output, ..Usage::default() });
            data.provider_data = provider_data.into_iter().map(|(key, n)| (key, json!(n))).collect();
            data.warnings = warnings;
            data
        })
}

/// Deltas most of which fit.
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
    fn any_deltas_fold_without_panic_and_errors_leave_no_trace(deltas in any_deltas()) {
        let mut fold = Fold::default();
        for delta in deltas {
            let before = fold.clone();
            if let Err(error) = fold.apply(delta) {
                prop_assert_eq!(error.kind, ErrorKind::Decoding);
                prop_assert_eq!(&fold, &before);
            }
        }
        let told = fold.message().stop_reason.clone();
        let (blocks, usage) = (fold.blocks().to_vec(), fold.usage());
        match fold.clone().finish(NOW) {
            Ok(folded) => {
                prop_assert_eq!(Some(folded.stop_reason), told);
                prop_assert_eq!(folded.usage, usage);
                prop_assert_eq!(folded.message.content.len(), blocks.len());
                assert_sound(&folded.message);
                // What subscribers saw of a tool use is what it is in the end.
                let seen = blocks.iter().filter_map(|block| match &block.content {
                    Content::ToolUse(tool_use) => Some(&tool_use.id),
                    _ => None,
                });
                prop_assert!(seen.eq(folded.message.tool_uses().map(|tool_use| &tool_use.id)));
            }
            Err(error) => {
                prop_assert_eq!(error.kind, ErrorKind::Truncated);
                prop_assert_eq!(told, None);
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
    fn stored_half_way_and_read_again_a_fold_goes_on_as_before(deltas in any_deltas(), at in any::<Index>()) {
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
    fn interleaved_blocks_come_out_whole(
        pieces in vec(vec("[a-zé]{1,5}", 0..8), 1..6),
        order in vec(any::<Index>(), 64),
    ) {
        // Even blocks are text, odd ones tool uses.
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

/// What holds of every message that comes out of a fold.
fn assert_sound(message: &Message) {
    let mut ids = HashSet::new();
    for tool_use in message.tool_uses() {
        assert!(!tool_use.id.as_str().is_empty());
        assert!(ids.insert(&tool_use.id), "{:?} twice", tool_use.id);
        assert!(tool_use.input.is_object());
        if tool_use.malformed.is_some() {
            assert_eq!(tool_use.input, json!({}));
        }
    }
    assert_eq!(message.timestamp, NOW);
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
    let thinking = Thinking { text: "hm".into(), signature: Some("s1s2".into()), redacted: Some("r".into()) };
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
    assert_eq!(error.kind, ErrorKind::Truncated);
    assert_eq!(Fold::default().finish(NOW).unwrap_err().kind, ErrorKind::Truncated);
}

#[test]
fn message_data_told_later_replaces_what_was_told_before() {
    let with = |change: &dyn Fn(&mut MessageDelta)| {
        let mut delta = MessageDelta::default();
        change(&mut delta);
        data(delta)
    };
    let usage = |output| Usage { output, ..Usage::default() };
    let folded = finish(
        [
            with(&|d| d.model = Some("first".into())),
            with(&|d| d.usage = Some(usage(1))),
            with(&|d| d.model = Some("second".into())),
            with(&|d| {
                d.provider_data = Map::from_iter([("a".into(), json!({ "x": 1 })), ("b".into(), json!(1))])
            }),
            with(&|d| d.warnings = vec!["one".into()]),
            with(&|d| d.usage = Some(usage(5))),
            with(&|d| d.provider_data = Map::from_iter([("a".into(), json!({ "y": 2 }))])),
            with(&|d| d.warnings = vec!["two".into()]),
            Delta::stop(StopReason::Length),
            with(&|_| ()),
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
fn start_out_of_order_is_refused() {
    let mut fold = fold([start(0, BlockStart::Text)]);
    for index in [0, 2, usize::MAX] {
        assert_refused(&mut fold, start(index, BlockStart::Text));
    }
}

#[test]
fn extend_of_a_block_that_is_not_open_is_refused() {
    let mut fold = fold([start(0, BlockStart::Text), end(0)]);
    assert_refused(&mut fold, text(0, "x"));
    assert_refused(&mut fold, end(0));
    assert_refused(&mut fold, text(1, "x"));
    assert_refused(&mut fold, end(usize::MAX));
}

#[test]
fn extend_by_a_part_of_another_kind_is_refused_without_repeating_it() {
    let long = "x".repeat(100_000);
    let parts = [
        Part::Text(long.clone()),
        Part::Input(long.clone()),
        Part::Signature(long.clone()),
        Part::Redacted(long.clone()),
        Part::Item(json!([long])),
    ];
    let kinds: [(BlockStart, &[usize]); 5] = [
        (BlockStart::Text, &[0, 2]),
        (BlockStart::Thinking, &[0, 2, 3]),
        (BlockStart::ToolUse { id: "a".into(), name: "tool".into() }, &[1, 2]),
        (BlockStart::Attachment(Attachment::url("image/png", "u")), &[]),
        (BlockStart::ProviderItem(item(json!(1))), &[4]),
    ];
    for (kind, fitting) in kinds {
        let mut fold = fold([start(0, kind)]);
        for (index, part) in parts.iter().enumerate() {
            if fitting.contains(&index) {
                fold.apply(extend(0, part.clone())).unwrap();
            } else {
                assert_refused(&mut fold, extend(0, part.clone()));
            }
        }
    }
}

#[test]
fn input_that_is_no_object_is_kept_raw() {
    let deep = format!("{{\"x\":{}{}}}", "[".repeat(10_000), "]".repeat(10_000));
    let bad = [
        "{\"a\":",
        "{\"a\":1",
        "[1]",
        "\"{}\"",
        "5",
        "null",
        "true",
        "{} {}",
        "{}x",
        "{a:1}",
        "{\"a\":1,}",
        "{\"a\":1e999}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":1,\"\\u0061\":2}",
        "{\"x\":[{\"a\":{},\"b\":1,\"a\":{}}]}",
        "NaN",
        "{'a':1}",
        &deep,
    ];
    for json in bad {
        for ended in [true, false] {
            let tool_use = tool_use(json, ended, StopReason::ToolUse);
            assert_eq!(tool_use.malformed.as_deref(), Some(json));
            assert_eq!(tool_use.input, json!({}));
        }
    }
}

#[test]
fn input_that_is_an_object_is_kept_with_its_order() {
    let good = [
        "{}",
        " {\"z\":1,\"a\":[1.5,null,true]}\n",
        "{\"a:b\":\"x:\\\"y\\\":\\\\\",\"c\":{\"a:b\":\":\"},\"d\":[{\"c\":1},{\"c\":2}]}",
        "{\"\":\"\",\"big\":18446744073709551615,\"neg\":-9223372036854775808}",
    ];
    for json in good {
        let tool_use = tool_use(json, false, StopReason::ToolUse);
        assert_eq!(tool_use.malformed, None, "{json}");
        assert_eq!(tool_use.input.to_string(), json.trim());
    }
}

#[test]
fn input_as_deep_as_is_accepted_can_be_read_again_within_much_more() {
    let nested = |levels: usize| format!("{}1{}", "{\"x\":".repeat(levels), "}".repeat(levels));
    let accepted = (1..200)
        .map(|levels| tool_use(&nested(levels), true, StopReason::ToolUse))
        .take_while(|tool_use| tool_use.malformed.is_none())
        .last()
        .unwrap();
    // A state in a commit in a list of commits, say.
    let mut value = serde_json::to_value(Message::assistant(accepted.clone())).unwrap();
    for _ in 0..16 {
        value = json!([{ "around": value }]);
    }
    assert!(serde_json::from_str::<Value>(&value.to_string()).is_ok());
    assert!(nested(32).len() <= accepted.input.to_string().len(), "32 levels are a tool's good right");
}

#[test]
fn opaque_data_too_deep_to_be_read_again_is_refused() {
    let mut deep = json!(1);
    for _ in 0..100 {
        deep = json!([deep]);
    }
    let mut fold = fold([start(0, BlockStart::ProviderItem(item(json!(1))))]);
    assert_refused(&mut fold, extend(0, Part::Item(deep.clone())));
    assert_refused(&mut fold, start(1, BlockStart::ProviderItem(item(deep.clone()))));
    let mut message = MessageDelta::default();
    message.provider_data.insert("a".into(), deep);
    assert_refused(&mut fold, data(message));
}

#[test]
fn no_input_at_all_is_an_empty_object() {
    for reason in [StopReason::ToolUse, StopReason::Stop, StopReason::Pause] {
        for ended in [true, false] {
            for json in ["", " \n"] {
                let tool_use = tool_use(json, ended, reason.clone());
                assert_eq!((tool_use.input, tool_use.malformed), (json!({}), None), "{reason}");
            }
        }
    }
}

#[test]
fn no_input_in_an_answer_that_was_cut_is_malformed() {
    // Services end the block that they cut, so that its end says nothing.
    for reason in
        [StopReason::Length, StopReason::ContextLength, StopReason::Refusal, StopReason::Other("?".into())]
    {
        for ended in [true, false] {
            let tool_use = tool_use("", ended, reason.clone());
            assert_eq!((tool_use.input, tool_use.malformed.as_deref()), (json!({}), Some("")), "{reason}");
        }
    }
    // Blocks beside each other: each that has not ended may be the one that was cut.
    let uses = finish([tool(0, "a"), tool(1, "b"), end(1)], StopReason::Length).message;
    assert!(uses.tool_uses().all(|tool_use| tool_use.malformed.is_some()));
}

#[test]
fn input_of_a_tool_use_before_the_cut_is_whole() {
    let message =
        finish([tool(0, "a"), end(0), start(1, BlockStart::Text), text(1, "and th")], StopReason::Length)
            .message;
    assert_eq!(message.tool_uses().next().unwrap().malformed, None);
    assert_eq!(tool_use("{\"a\":1}", false, StopReason::Length).malformed, None);
    assert_eq!(tool_use("{\"a\":1", true, StopReason::Length).malformed.as_deref(), Some("{\"a\":1"));
}

#[test]
fn ids_that_clash_or_lack_are_told_apart_from_the_start() {
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
    assert_eq!((ids[0].as_str(), ids[6].as_str()), ("a", "b"), "what clashes with nothing stays");
    assert!(ids.iter().all(|id| !id.is_empty()));
}

#[test]
fn ids_that_were_made_to_clash_are_told_apart_without_much_ado() {
    let half = Fold::MAX_BLOCKS / 2;
    let taken = (half..Fold::MAX_BLOCKS).map(|n| format!("a_{n}"));
    let clashing = std::iter::repeat_n("a".to_owned(), half);
    let deltas: Vec<Delta> = taken.chain(clashing).enumerate().map(|(index, id)| tool(index, &id)).collect();
    let message = finish(deltas, StopReason::ToolUse).message;
    assert_eq!(message.content.len(), Fold::MAX_BLOCKS);
    assert_sound(&message);
}

#[test]
fn salvage_keeps_what_can_stand() {
    let message = fold([
        start(0, BlockStart::Thinking),
        text(0, "signed"),
        signature(0, "s"),
        end(0),
        start(1, BlockStart::Thinking),
        extend(1, Part::Redacted("r".into())),
        end(1),
        start(2, BlockStart::Thinking),
        text(2, "unsigned"),
        end(2),
        start(3, BlockStart::Text),
        text(3, "hi"),
        end(3),
        start(4, BlockStart::Text),
        text(4, " \n"),
        end(4),
        tool(5, "ended without input"),
        end(5),
        tool(6, "ended malformed"),
        input(6, "{\"a\""),
        end(6),
        tool(7, "whole but not ended"),
        input(7, "{\"a\":1}"),
        tool(8, "half"),
        input(8, "{\"a\":"),
        tool(9, "begun"),
        start(10, BlockStart::ProviderItem(item(json!(1)))),
        end(10),
        start(11, BlockStart::ProviderItem(item(json!(2)))),
        start(12, BlockStart::Attachment(Attachment::url("image/png", "u"))),
        start(13, BlockStart::Text),
        text(13, "and th"),
    ])
    .salvage(NOW)
    .unwrap();
    let expected: [Content; 8] = [
        Thinking { signature: Some("s".into()), ..Thinking::new("signed") }.into(),
        Thinking { redacted: Some("r".into()), ..Thinking::default() }.into(),
        "hi".into(),
        ToolUse::new("ended without input", "tool", json!({})).into(),
        ToolUse::new("whole but not ended", "tool", json!({ "a": 1 })).into(),
        item(json!(1)).into(),
        Attachment::url("image/png", "u").into(),
        "and th".into(),
    ];
    assert_eq!(message.content, expected);
    assert_eq!(message.timestamp, NOW);
}

#[test]
fn salvage_drops_what_may_be_half_a_signature() {
    let message = fold([
        start(0, BlockStart::Thinking),
        signature(0, "hal"),
        start(1, BlockStart::Thinking),
        extend(1, Part::Redacted("hal".into())),
        start(2, BlockStart::Text),
        text(2, "hi"),
        signature(2, "hal"),
        tool(3, "a"),
        input(3, "{}"),
        signature(3, "hal"),
    ])
    .salvage(NOW)
    .unwrap();
    assert_eq!(message.content, [Content::from("hi")]);
}

#[test]
fn empty_parts_leave_no_mark() {
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
fn salvage_of_nothing_that_could_stand_is_none() {
    assert_eq!(Fold::default().salvage(NOW), None);
    let thinking = [start(0, BlockStart::Thinking), text(0, "hm"), signature(0, "s"), end(0)];
    assert_eq!(fold(thinking.clone()).salvage(NOW), None, "reasoning alone");
    let blank = [start(1, BlockStart::Text), text(1, "\n\n")];
    assert_eq!(fold(thinking.into_iter().chain(blank)).salvage(NOW), None, "and blank text");
    assert_eq!(fold([tool(0, "a"), input(0, "{\"a\"")]).salvage(NOW), None, "half a tool use");
}

#[test]
fn salvage_keeps_provider_data() {
    let mut told = MessageDelta::default();
    told.provider_data.insert("responses".into(), json!({ "id": 1 }));
    let message = fold([data(told), start(0, BlockStart::Text), text(0, "hi")]).salvage(NOW).unwrap();
    assert_eq!(message.provider_data["responses"], json!({ "id": 1 }));
}

#[test]
fn blocks_beyond_the_limit_are_refused() {
    let mut fold = fold((0..Fold::MAX_BLOCKS).map(|index| start(index, BlockStart::Text)));
    let error = assert_refused(&mut fold, start(Fold::MAX_BLOCKS, BlockStart::Text));
    assert!(error.contains(&Fold::MAX_BLOCKS.to_string()), "{error}");
}

#[test]
fn bytes_beyond_the_limit_are_refused_wherever_they_come() {
    let long = || "x".repeat(Fold::LIMIT);
    let mut fold =
        fold([start(0, BlockStart::Text), tool(1, "a"), start(2, BlockStart::ProviderItem(item(json!(1))))]);
    let with = |change: &dyn Fn(&mut MessageDelta)| {
        let mut delta = MessageDelta::default();
        change(&mut delta);
        data(delta)
    };
    let too_much = [
        text(0, long()),
        extend(0, Part::Signature(long())),
        input(1, long()),
        extend(2, Part::Item(json!([long()]))),
        tool(3, &long()),
        start(3, BlockStart::ToolUse { id: "b".into(), name: long() }),
        start(3, BlockStart::Attachment(Attachment::base64("image/png", long()))),
        start(3, BlockStart::Attachment(Attachment::url("image/png", "u").named(long()))),
        start(3, BlockStart::ProviderItem(ProviderItem::new(long(), json!(1)))),
        with(&|delta| delta.model = Some(long())),
        with(&|delta| delta.stop_reason = Some(StopReason::Other(long()))),
        with(&|delta| delta.warnings = vec![long()]),
        with(&|delta| {
            delta.provider_data.insert("a".into(), json!(long()));
        }),
    ];
    for delta in too_much {
        let error = assert_refused(&mut fold, delta);
        assert!(error.contains(&Fold::LIMIT.to_string()), "{error}");
    }
    fold.apply(text(0, "x".repeat(Fold::LIMIT / 2))).unwrap();
    assert_refused(&mut fold, input(1, "x".repeat(Fold::LIMIT / 2)));
    fold.apply(input(1, "{}")).unwrap();
    assert_refused(&mut fold, text(9, "refused, and not counted: ".repeat(Fold::LIMIT / 100)));
    fold.apply(text(0, "x".repeat(Fold::LIMIT / 3))).unwrap();
}

#[test]
fn what_was_replaced_counts_no_more() {
    let mebibyte = || "x".repeat(1024 * 1024);
    let mut fold = fold([start(0, BlockStart::ProviderItem(item(json!(1))))]);
    for n in 0..100 {
        fold.apply(extend(0, Part::Item(json!([n, mebibyte()])))).unwrap();
        let mut told = MessageDelta::default();
        told.model = Some(mebibyte());
        told.stop_reason = Some(StopReason::Other(mebibyte()));
        told.provider_data.insert("a".into(), json!(mebibyte()));
        fold.apply(data(told)).unwrap();
    }
}

#[test]
fn fold_is_stored_without_what_can_be_derived() {
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

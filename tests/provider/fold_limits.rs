//! Deltas that a fold rejects.

use omni_agent::{
    message::{Attachment, ProviderItem},
    provider::{
        ProviderErrorKind, StopReason,
        custom::{BlockStart, Delta, MessageDelta, Part},
    },
    testing::internals::Fold,
};
use serde_json::json;

use crate::deltas::{data, end, extend, fold, input, item, start, text, tool};

/// Asserts that `delta` is rejected without changing the fold. Returns the message of the error.
fn assert_refused(fold: &mut Fold, delta: Delta) -> String {
    let before = fold.clone();
    let error = fold.apply(delta).unwrap_err();
    assert_eq!(error.kind, ProviderErrorKind::Decoding);
    assert!(*fold == before, "a rejected delta changed the fold: {error}");
    assert!(error.message.len() < 200, "the error repeats the delta: {} bytes", error.message.len());
    error.message
}

#[test]
fn start_out_of_order_is_rejected() {
    let mut fold = fold([start(0, BlockStart::Text)]);
    for index in [0, 2, usize::MAX] {
        assert_refused(&mut fold, start(index, BlockStart::Text));
    }
}

#[test]
fn extend_of_a_block_that_is_not_open_is_rejected() {
    let mut fold = fold([start(0, BlockStart::Text), end(0)]);
    assert_refused(&mut fold, text(0, "x"));
    assert_refused(&mut fold, end(0));
    assert_refused(&mut fold, text(1, "x"));
    assert_refused(&mut fold, end(usize::MAX));
}

#[test]
fn extend_by_a_part_of_another_kind_is_rejected_without_repeating_it() {
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
fn opaque_data_too_deep_to_be_read_again_is_rejected() {
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
fn blocks_above_the_limit_are_rejected() {
    let mut fold = fold((0..Fold::MAX_BLOCKS).map(|index| start(index, BlockStart::Text)));
    let error = assert_refused(&mut fold, start(Fold::MAX_BLOCKS, BlockStart::Text));
    assert!(error.contains(&Fold::MAX_BLOCKS.to_string()), "{error}");
}

#[test]
fn bytes_above_the_limit_are_rejected_in_any_delta() {
    let long = || "x".repeat(Fold::LIMIT);
    let mut fold =
        fold([start(0, BlockStart::Text), tool(1, "a"), start(2, BlockStart::ProviderItem(item(json!(1))))]);
    let default = MessageDelta::default;
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
        data(default().with_model(long())),
        data(default().with_stop_reason(StopReason::Other(long()))),
        data(default().with_warnings(vec![long()])),
        data(default().with_provider_data([("a".to_owned(), json!(long()))].into_iter().collect())),
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
fn replaced_data_does_not_count_towards_the_limit() {
    let mebibyte = || "x".repeat(1024 * 1024);
    let mut fold = fold([start(0, BlockStart::ProviderItem(item(json!(1))))]);
    for n in 0..100 {
        fold.apply(extend(0, Part::Item(json!([n, mebibyte()])))).unwrap();
        let delta = MessageDelta::default()
            .with_model(mebibyte())
            .with_stop_reason(StopReason::Other(mebibyte()))
            .with_provider_data([("a".to_owned(), json!(mebibyte()))].into_iter().collect());
        fold.apply(data(delta)).unwrap();
    }
}

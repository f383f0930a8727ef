//! Short constructors for deltas, and the invariants of every folded message.

use std::collections::HashSet;

use omni_agent::{
    message::{Message, ProviderItem, Timestamp},
    provider::{
        Completion, StopReason,
        custom::{BlockStart, Delta, MessageDelta, Part},
    },
    testing::internals::Fold,
};
use serde_json::{Value, json};

pub(crate) const NOW: Timestamp = Timestamp(7);

pub(crate) fn start(index: usize, block: BlockStart) -> Delta {
    Delta::Start { index, block }
}

pub(crate) fn tool(index: usize, id: &str) -> Delta {
    start(index, BlockStart::ToolUse { id: id.into(), name: "tool".into() })
}

pub(crate) fn extend(index: usize, part: Part) -> Delta {
    Delta::Extend { index, part }
}

pub(crate) fn text(index: usize, text: impl Into<String>) -> Delta {
    extend(index, Part::Text(text.into()))
}

pub(crate) fn input(index: usize, text: impl Into<String>) -> Delta {
    extend(index, Part::Input(text.into()))
}

pub(crate) fn signature(index: usize, text: &str) -> Delta {
    extend(index, Part::Signature(text.into()))
}

pub(crate) fn end(index: usize) -> Delta {
    Delta::End { index }
}

pub(crate) fn data(data: MessageDelta) -> Delta {
    Delta::Message(Box::new(data))
}

pub(crate) fn item(data: Value) -> ProviderItem {
    ProviderItem::new("responses", data)
}

pub(crate) fn fold(deltas: impl IntoIterator<Item = Delta>) -> Fold {
    let mut fold = Fold::default();
    for delta in deltas {
        fold.apply(delta).unwrap();
    }
    fold
}

pub(crate) fn finish(deltas: impl IntoIterator<Item = Delta>, reason: StopReason) -> Completion {
    let mut fold = fold(deltas);
    fold.apply(Delta::stop(reason)).unwrap();
    fold.finish(NOW).unwrap()
}

/// Asserts the invariants of every message that a fold returns.
pub(crate) fn assert_sound(message: &Message) {
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

//! Decoding of reasoning items. All parts of an item become one thinking block.

use serde_json::{Map, Value};

use super::{
    item::Blocks,
    received::Received,
    wire::{list, text},
};
use crate::provider::{BlockStart, Part};

/// The text between two parts in a thinking block.
const GAP: &str = "\n\n";

/// A reasoning item. All of its parts form one block, which starts with the first part.
#[derive(Debug, Default)]
pub(super) struct Reasoning {
    block: Option<usize>,
    /// The kind of text that the block contains: the summary or the reasoning itself. If a service sends both, the
    /// block contains the kind that arrives first.
    shown: Option<Shown>,
    part: Option<u64>,
    received: Received,
    ended: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Summary,
    Content,
}

impl Shown {
    const fn key(self) -> &'static str {
        match self {
            Self::Summary => "summary",
            Self::Content => "content",
        }
    }
}

impl Reasoning {
    /// Returns whether the item was received completely, with all data that has to be sent back.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Appends text to the summary or to the reasoning itself. `part` is the index of the part, if the service sends
    /// it.
    pub(super) fn grow(&mut self, shown: Shown, part: Option<u64>, more: &str, blocks: &mut Blocks<'_>) {
        if more.is_empty() || *self.shown.get_or_insert(shown) != shown {
            return;
        }
        let next = part.is_some() && self.part.is_some() && part != self.part;
        self.part = part.or(self.part);
        let gap = if next && self.received.bytes() > 0 { GAP } else { "" };
        let more = format!("{gap}{more}");
        self.received.add(&more);
        let block = *self.block.get_or_insert_with(|| blocks.start(BlockStart::Thinking));
        blocks.extend(block, Part::Text(more));
    }

    /// Appends the part of the complete text that was not received yet, and the signature, if the item can be sent
    /// back.
    pub(super) fn complete(&mut self, item: &Value, blocks: &mut Blocks<'_>) {
        let there = |shown: Shown| !list(item, shown.key()).is_empty();
        let shown = self.shown.or_else(|| [Shown::Summary, Shown::Content].into_iter().find(|it| there(*it)));
        let texts: Vec<&str> = match shown {
            Some(shown) => list(item, shown.key()).iter().map(|part| text(part, "text")).collect(),
            None => Vec::new(),
        };
        let whole = texts.join(GAP);
        let is_block = self.received.rest(&whole).is_some();
        let kept = keep(item, if is_block && texts.len() == 1 { Some(&whole) } else { None });
        if self.block.is_none() && whole.is_empty() && kept.is_none() {
            return;
        }
        let block = *self.block.get_or_insert_with(|| blocks.start(BlockStart::Thinking));
        self.shown = shown;
        blocks.append_rest(block, &mut self.received, &whole, Part::Text);
        if let Some(kept) = kept {
            blocks.extend(block, Part::Signature(kept));
            blocks.end(block);
            self.ended = true;
        }
    }
}

/// Encodes a reasoning item for the signature of its block, if the item can be sent back. A part whose text equals the
/// block's text is stored without its text.
fn keep(item: &Value, of_block: Option<&str>) -> Option<String> {
    let encrypted = item.get("encrypted_content").and_then(Value::as_str).filter(|it| !it.is_empty());
    let readable = list(item, "content");
    if encrypted.is_none() && readable.is_empty() {
        return None;
    }
    let mut kept = Map::from_iter([("type".to_owned(), Value::from("reasoning"))]);
    if !text(item, "id").is_empty() {
        kept.insert("id".to_owned(), text(item, "id").into());
    }
    kept.insert("summary".to_owned(), list(item, "summary").into());
    if !readable.is_empty() {
        kept.insert("content".to_owned(), readable.into());
    }
    kept.extend(encrypted.map(|payload| ("encrypted_content".to_owned(), payload.into())));
    if let Some(whole) = of_block {
        for key in ["summary", "content"] {
            for part in kept.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Value::Object(part) = part
                    && part.get("text").is_some_and(|text| text == whole)
                {
                    part.shift_remove("text");
                }
            }
        }
    }
    Some(Value::Object(kept).to_string())
}

//! The blocks of an answer whose format does not name them.

use crate::provider::{BlockStart, Delta};

/// Kinds of blocks that grow without being named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
}

/// The blocks of the answer so far.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) count: usize,
    /// The block that grows.
    open: Option<Kind>,
    text: Option<usize>,
    thinking: Option<usize>,
}

impl Blocks {
    /// Beyond this number, text and thinking go on in their last blocks instead of making ever new ones: a
    /// service that alternates with each token would run into the limit of a message.
    const MANY: usize = 256;

    pub(super) fn of(&mut self, kind: Kind, deltas: &mut Vec<Delta>) -> usize {
        let last = if kind == Kind::Text { self.text } else { self.thinking };
        match last {
            Some(index) if self.open == Some(kind) || self.count >= Self::MANY => index,
            _ => {
                let index = self.item();
                self.open = Some(kind);
                let (block, last) = match kind {
                    Kind::Text => (BlockStart::Text, &mut self.text),
                    Kind::Thinking => (BlockStart::Thinking, &mut self.thinking),
                };
                *last = Some(index);
                deltas.push(Delta::Start { index, block });
                index
            }
        }
    }

    /// The place of a block that comes whole and stands beside what grows, which goes on.
    pub(super) fn aside(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    /// The place of a block that comes whole or by name. What grows behind it makes a block of its own.
    pub(super) fn item(&mut self) -> usize {
        self.open = None;
        self.count += 1;
        self.count - 1
    }
}

//! The blocks of a response whose wire format does not identify them.

use crate::provider::{BlockStart, Delta};

/// The kinds of growing blocks that the wire format does not identify.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
}

/// The blocks of the response so far.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) count: usize,
    /// The kind of the block that is growing.
    open: Option<Kind>,
    text: Option<usize>,
    thinking: Option<usize>,
}

impl Blocks {
    /// After this many blocks, text and thinking are appended to the last block of their kind instead of starting new
    /// blocks. Otherwise, a service that alternates between text and thinking with each token would exceed the limit of
    /// blocks in a message.
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

    /// Returns the index for a new block that is already complete. The block that is growing stays open.
    pub(super) fn aside(&mut self) -> usize {
        self.count += 1;
        self.count - 1
    }

    /// Returns the index for a block that arrives complete or that the wire format identifies. Text or thinking after
    /// this block starts a new block.
    pub(super) fn item(&mut self) -> usize {
        self.open = None;
        self.count += 1;
        self.count - 1
    }
}

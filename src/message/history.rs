use std::{fmt, iter::FusedIterator, ops::Range, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Message;
use crate::chunks::{Chunks, WIDTH};

/// A sequence of shared messages. Cloning it is O(1) and extending it is amortized O(1), regardless of its length and
/// of the number of clones.
///
/// Clones share all messages that they have in common. Iterators borrow the messages. To get a shorter history, collect
/// the wanted part of an iterator. The new history shares the messages with the original.
///
/// ```
/// use omni_agent::message::{History, Message};
///
/// let mut history = History::from_iter([Message::user("Hello")]);
/// let before = history.clone();
/// history.push(Message::assistant("Hi!"));
/// assert_eq!((before.len(), history.len()), (1, 2));
/// assert_eq!(history.last().map(|message| message.text()), Some("Hi!".to_owned()));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "Vec<Message>", description = "The messages of a conversation, in order.")
)]
pub struct History(Chunks<Arc<Message>>);

impl History {
    /// Returns an empty history.
    pub const fn new() -> Self {
        Self(Chunks::new())
    }

    /// Returns the number of messages.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the history has no messages.
    pub const fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Appends a message.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) {
        self.0.push(message.into());
    }

    /// Returns the message at `index`, counted from 0.
    pub fn get(&self, index: usize) -> Option<&Arc<Message>> {
        self.0.get(index)
    }

    /// Returns the first message.
    pub fn first(&self) -> Option<&Arc<Message>> {
        self.get(0)
    }

    /// Returns the last message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        self.0.last()
    }

    /// Iterates over the messages in order.
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = &Arc<Message>> + ExactSizeIterator + Clone + fmt::Debug {
        self.into_iter()
    }

    /// Returns whether both histories are identical. Histories are identical if they are clones of the same history and
    /// nothing was pushed since. O(1). Equal histories that were built separately are not identical.
    pub fn same(&self, other: &Self) -> bool {
        self.0.same(&other.0)
    }
}

/// An iterator that borrows the messages of a [`History`].
#[derive(Clone)]
pub struct Iter<'a> {
    history: &'a History,
    /// The leaf of the sequence that contains the next message. If the leaf must be looked up first, this slice is
    /// empty.
    leaf: &'a [Arc<Message>],
    range: Range<usize>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Arc<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.range.next()?;
        if index % WIDTH == 0 || self.leaf.is_empty() {
            self.leaf = self.history.0.leaf(index / WIDTH);
        }
        self.leaf.get(index % WIDTH)
    }

    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        self.leaf = &[];
        self.range.nth(n).and_then(|index| self.history.get(index))
    }

    fn last(mut self) -> Option<Self::Item> {
        self.next_back()
    }

    fn count(self) -> usize {
        self.len()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl FusedIterator for Iter<'_> {}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().and_then(|index| self.history.get(index))
    }

    fn nth_back(&mut self, n: usize) -> Option<Self::Item> {
        self.range.nth_back(n).and_then(|index| self.history.get(index))
    }
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<'a> IntoIterator for &'a History {
    type Item = &'a Arc<Message>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        Iter { history: self, leaf: &[], range: 0..self.len() }
    }
}

impl<M: Into<Arc<Message>>> FromIterator<M> for History {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        let mut history = Self::new();
        history.extend(messages);
        history
    }
}

impl<M: Into<Arc<Message>>> Extend<M> for History {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        messages.into_iter().for_each(|message| self.push(message));
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Arc::as_ref))
    }
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = History;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<History, A::Error> {
                let mut history = History::new();
                while let Some(message) = seq.next_element::<Message>()? {
                    history.push(message);
                }
                Ok(history)
            }
        }

        deserializer.deserialize_seq(Visitor)
    }
}

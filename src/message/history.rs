use std::{fmt, iter::FusedIterator, ops::Range, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Message;

/// The number of messages in a leaf, and of children in a branch.
const WIDTH: usize = 32;
const BITS: u32 = 5;

/// A sequence of shared messages that is O(1) to clone and amortized O(1) to extend, regardless of its length and of
/// the number of clones.
///
/// Clones share everything that they have in common. Iterators borrow the messages. To get a shorter history, collect
/// the wanted part of an iterator: the new history shares the messages.
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
// A radix trie of full leaves, plus the last leaf, which grows separately. An empty history allocates no memory.
#[derive(Clone, Default)]
pub struct History {
    root: Option<Arc<Node>>,
    tail: Option<Arc<Vec<Arc<Message>>>>,
    len: usize,
    /// The number of branch levels above the leaves in `root`.
    height: u32,
}

#[derive(Clone)]
enum Node {
    Branch(Vec<Arc<Node>>),
    Leaf(Vec<Arc<Message>>),
}

impl History {
    /// Returns an empty history.
    pub const fn new() -> Self {
        Self { root: None, tail: None, len: 0, height: 0 }
    }

    /// Returns the number of messages.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the history has no messages.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a message.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) {
        let tail = Arc::make_mut(self.tail.get_or_insert_default());
        tail.push(message.into());
        self.len += 1;
        if tail.len() == WIDTH {
            let mut messages = std::mem::take(tail);
            // A tail that was cloned while it grew has spare capacity.
            messages.shrink_to_fit();
            self.tail = None;
            self.push_leaf(Node::Leaf(messages));
        }
    }

    /// Adds a full leaf after the others. `len` already includes its messages.
    fn push_leaf(&mut self, leaf: Node) {
        let index = self.len / WIDTH - 1;
        let Some(root) = &mut self.root else {
            self.root = Some(Arc::new(leaf));
            return;
        };
        if index >> (self.height * BITS) != 0 {
            let old = Arc::clone(root);
            *root = Arc::new(Node::Branch(vec![old]));
            self.height += 1;
        }
        insert(root, self.height, index, leaf);
    }

    /// Returns the message at `index`, counted from 0.
    pub fn get(&self, index: usize) -> Option<&Arc<Message>> {
        (index < self.len).then(|| &self.leaf(index / WIDTH)[index % WIDTH])
    }

    /// Returns the first message.
    pub fn first(&self) -> Option<&Arc<Message>> {
        self.get(0)
    }

    /// Returns the last message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        self.get(self.len.checked_sub(1)?)
    }

    /// Iterates over the messages in order.
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = &Arc<Message>> + ExactSizeIterator + Clone + fmt::Debug {
        self.into_iter()
    }

    /// Returns whether both histories are identical: clones of the same history, with nothing pushed since. O(1). Equal
    /// histories that were built separately are not identical.
    pub fn same(&self, other: &Self) -> bool {
        fn same_arc<T>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                _ => false,
            }
        }
        self.len == other.len
            && same_arc(self.root.as_ref(), other.root.as_ref())
            && same_arc(self.tail.as_ref(), other.tail.as_ref())
    }

    /// Returns the leaf with number `index`: up to [`WIDTH`] messages.
    fn leaf(&self, index: usize) -> &[Arc<Message>] {
        if index == self.len / WIDTH {
            return self.tail.as_deref().map_or(&[], Vec::as_slice);
        }
        let mut node = self.root.as_deref();
        let mut level = self.height;
        loop {
            match node {
                Some(Node::Branch(children)) => {
                    level -= 1;
                    node = children.get((index >> (level * BITS)) % WIDTH).map(Arc::as_ref);
                }
                Some(Node::Leaf(messages)) => return messages,
                None => return &[],
            }
        }
    }
}

/// Inserts `leaf` at leaf index `index` below `node`, which is `height` levels above the leaves.
fn insert(node: &mut Arc<Node>, height: u32, index: usize, leaf: Node) {
    let Node::Branch(children) = Arc::make_mut(node) else {
        return;
    };
    let child = (index >> ((height - 1) * BITS)) % WIDTH;
    if let Some(existing) = children.get_mut(child) {
        insert(existing, height - 1, index, leaf);
    } else {
        // The first leaf of a new subtree needs a chain of branches with one child each above it.
        let chain = (1..height).fold(leaf, |node, _| Node::Branch(vec![Arc::new(node)]));
        children.push(Arc::new(chain));
    }
}

/// An iterator that borrows the messages of a [`History`].
#[derive(Clone)]
pub struct Iter<'a> {
    history: &'a History,
    /// The leaf that holds the next message. Empty if the leaf must be looked up first.
    leaf: &'a [Arc<Message>],
    range: Range<usize>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Arc<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.range.next()?;
        if index % WIDTH == 0 || self.leaf.is_empty() {
            self.leaf = self.history.leaf(index / WIDTH);
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
        Iter { history: self, leaf: &[], range: 0..self.len }
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

impl Eq for History {}

impl PartialEq for History {
    /// Compares the messages. Shared messages are compared by identity alone.
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && (self.same(other) || self.iter().eq(other.iter()))
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

//! A persistent sequence, for histories and trees.

use std::sync::Arc;

/// The number of values in a leaf, and of children in a branch.
pub(crate) const WIDTH: usize = 32;
const BITS: u32 = 5;

/// A sequence whose clones share common parts: O(1) to clone, amortized O(1) to extend, and changeable at any index. A
/// change copies the leaf that holds the value and the branches above it, each at most once after a clone.
// The sequence is a radix trie of full leaves, plus the last, growing leaf. This leaf is separate, so that a push after
// a clone copies no branches. An empty sequence allocates no memory.
pub(crate) struct ChunkedList<T> {
    /// The trie of the full leaves, in an `Arc`, so that an empty sequence is small.
    root: Option<Arc<ChunkTrieNode<T>>>,
    tail: Option<Arc<Vec<T>>>,
    len: usize,
    /// The number of branch levels above the leaves in `root`.
    height: u32,
    /// A number that a history keeps with its messages, in room that would be unused.
    pub(crate) mark: u32,
}

/// The variants hold slices instead of vectors, so that the content is one pointer away.
enum ChunkTrieNode<T> {
    Branch(Arc<[ChunkTrieNode<T>]>),
    Leaf(Arc<[T]>),
}

impl<T> Clone for ChunkTrieNode<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Branch(children) => Self::Branch(Arc::clone(children)),
            Self::Leaf(values) => Self::Leaf(Arc::clone(values)),
        }
    }
}

/// Returns the index of the child that contains a leaf, in a branch `level` levels above the leaves.
const fn child(leaf: usize, level: u32) -> usize {
    (leaf >> ((level - 1) * BITS)) % WIDTH
}

impl<T> ChunkedList<T> {
    pub(crate) const fn new() -> Self {
        Self { root: None, tail: None, len: 0, height: 0, mark: 0 }
    }

    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        self.leaf(index / WIDTH).get(index % WIDTH)
    }

    pub(crate) fn last(&self) -> Option<&T> {
        self.get(self.len.checked_sub(1)?)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> + Clone {
        self.iter_from(0)
    }

    /// Iterates over the values from `index` on.
    pub(crate) fn iter_from(&self, index: usize) -> impl Iterator<Item = &T> + Clone {
        (index / WIDTH..=self.len / WIDTH).flat_map(|leaf| self.leaf(leaf)).skip(index % WIDTH)
    }

    /// Returns whether both sequences are identical: clones of one sequence, with no change since. O(1).
    pub(crate) fn same(&self, other: &Self) -> bool {
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

    /// Returns the leaf with number `index`: up to [`WIDTH`] values.
    pub(crate) fn leaf(&self, index: usize) -> &[T] {
        if index >= self.len / WIDTH {
            let is_tail = index == self.len / WIDTH;
            return self.tail.as_deref().filter(|_| is_tail).map_or(&[], Vec::as_slice);
        }
        let mut tier = self.root.as_deref();
        let mut level = self.height;
        loop {
            match tier {
                Some(ChunkTrieNode::Branch(children)) => {
                    tier = children.get(child(index, level));
                    level -= 1;
                }
                Some(ChunkTrieNode::Leaf(values)) => return values,
                None => return &[],
            }
        }
    }

    /// Calls `visit` with every leaf that may differ between this sequence and `earlier`, up to the length of
    /// `earlier`. The arguments are the index of the first value, the current values and the earlier values. Subtrees
    /// that the two sequences share are skipped.
    pub(crate) fn differing<'a>(
        &'a self,
        earlier: &'a Self,
        visit: &mut impl FnMut(usize, &'a [T], &'a [T]),
    ) {
        if let (Some(mut now), Some(before)) = (self.root.as_deref(), earlier.root.as_deref()) {
            // When a sequence grows by a level, the old root becomes the first child of the new root.
            for _ in earlier.height..self.height {
                if let ChunkTrieNode::Branch(children) = now {
                    now = &children[0];
                }
            }
            differing(now, before, 0, earlier.height, visit);
        }
        let (leaf, first) = (earlier.len / WIDTH, earlier.len / WIDTH * WIDTH);
        let (now, before) = (self.leaf(leaf), earlier.leaf(leaf));
        if !std::ptr::eq(now, before) {
            visit(first, now, before);
        }
    }
}

fn differing<'a, T>(
    now: &'a ChunkTrieNode<T>,
    before: &'a ChunkTrieNode<T>,
    first: usize,
    height: u32,
    visit: &mut impl FnMut(usize, &'a [T], &'a [T]),
) {
    match (now, before) {
        (ChunkTrieNode::Branch(now), ChunkTrieNode::Branch(before)) if !Arc::ptr_eq(now, before) => {
            for (child, (now, before)) in now.iter().zip(before.iter()).enumerate() {
                differing(now, before, first + (child << (height * BITS)), height - 1, visit);
            }
        }
        (ChunkTrieNode::Leaf(now), ChunkTrieNode::Leaf(before)) if !Arc::ptr_eq(now, before) => {
            visit(first, now, before);
        }
        _ => {}
    }
}

impl<T: Clone> ChunkedList<T> {
    pub(crate) fn push(&mut self, value: T) {
        let tail = self.tail.get_or_insert_default();
        if Arc::get_mut(tail).is_none() {
            // If a clone shares the tail (the last, growing leaf), the copy gets spare capacity, so that the push does
            // not allocate again. The capacity never exceeds `WIDTH`, which is a power of two.
            let mut copy = Vec::with_capacity((tail.len() + 1).next_power_of_two().max(4));
            copy.extend_from_slice(tail);
            *tail = Arc::new(copy);
        }
        let tail = Arc::make_mut(tail);
        tail.push(value);
        if tail.len() == WIDTH {
            let leaf = ChunkTrieNode::Leaf(std::mem::take(tail).into());
            self.tail = None;
            self.push_leaf(leaf);
        }
        self.len += 1;
    }

    /// Adds a full leaf after the leaves in `root`.
    fn push_leaf(&mut self, leaf: ChunkTrieNode<T>) {
        let index = self.len / WIDTH;
        self.root = Some(Arc::new(match self.root.as_deref() {
            None => leaf,
            Some(root) if index >> (self.height * BITS) == 0 => with_leaf(root, self.height, index, leaf),
            Some(root) => {
                let next = chain(leaf, self.height);
                self.height += 1;
                ChunkTrieNode::Branch([root.clone(), next].into())
            }
        }));
    }

    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        let leaf = index / WIDTH;
        if leaf >= self.len / WIDTH {
            let is_tail = leaf == self.len / WIDTH;
            let tail = self.tail.as_mut().filter(|_| is_tail)?;
            return Arc::make_mut(tail).get_mut(index % WIDTH);
        }
        let mut tier = Arc::make_mut(self.root.as_mut()?);
        let mut level = self.height;
        loop {
            match tier {
                ChunkTrieNode::Branch(children) => {
                    tier = Arc::make_mut(children).get_mut(child(leaf, level))?;
                }
                ChunkTrieNode::Leaf(values) => return Arc::make_mut(values).get_mut(index % WIDTH),
            }
            level -= 1;
        }
    }
}

/// Returns a single leaf below `height` branches.
fn chain<T>(leaf: ChunkTrieNode<T>, height: u32) -> ChunkTrieNode<T> {
    (0..height).fold(leaf, |tier, _| ChunkTrieNode::Branch([tier].into()))
}

/// Returns a copy of `tier` with `leaf` as its last leaf, at leaf index `index`. The tier is `height` levels above the
/// leaves.
fn with_leaf<T>(
    tier: &ChunkTrieNode<T>,
    height: u32,
    index: usize,
    leaf: ChunkTrieNode<T>,
) -> ChunkTrieNode<T> {
    let ChunkTrieNode::Branch(children) = tier else {
        return leaf;
    };
    let at = child(index, height);
    let new = match children.get(at) {
        Some(last) => with_leaf(last, height - 1, index, leaf),
        None => chain(leaf, height - 1),
    };
    ChunkTrieNode::Branch(children[..at].iter().cloned().chain([new]).collect())
}

impl<T> Default for ChunkedList<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Clone for ChunkedList<T> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), tail: self.tail.clone(), ..*self }
    }
}

impl<T: PartialEq> PartialEq for ChunkedList<T> {
    fn eq(&self, other: &Self) -> bool {
        let mut equal = self.len == other.len;
        if equal {
            self.differing(other, &mut |_, ours, theirs| equal &= ours == theirs);
        }
        equal
    }
}

impl<T: Eq> Eq for ChunkedList<T> {}

impl<T: Clone> FromIterator<T> for ChunkedList<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut chunks = Self::new();
        values.into_iter().for_each(|value| chunks.push(value));
        chunks
    }
}

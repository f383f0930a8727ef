//! The slots of nodes, the links between slots, the lookup of a slot by id, and the iterators that follow the links.

use std::{fmt, iter::FusedIterator, num::NonZeroU32, sync::Arc};

use super::{Node, NodeId, Tree};

/// The position of a node in the order of ids. A slot is half the size of an id and needs no search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodePosition(NonZeroU32);

impl NodePosition {
    pub(super) fn new(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a tree holds fewer than 2^32 nodes"))
    }

    pub(super) const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// The links of a node. They are stored separately because nodes never change. Changing a link therefore copies only
/// plain numbers and no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeLinks {
    pub(super) parent: Option<NodePosition>,
    /// The child that was active last. `Some` if the node has a child.
    pub(super) cursor: Option<NodePosition>,
    pub(super) newest: Option<NodePosition>,
    /// The next newer sibling. The newest sibling links to the oldest sibling, so the oldest child can be reached from
    /// the newest child.
    pub(super) next: NodePosition,
}

impl NodeLinks {
    pub(super) const fn alone(slot: NodePosition, parent: Option<NodePosition>) -> Self {
        Self { parent, cursor: None, newest: None, next: slot }
    }
}

/// A lookup of the index of an id. If the ids have no gaps, this needs no memory. Otherwise each gap needs some memory.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeIdIndex {
    /// The runs of consecutive ids, or `None` if the ids begin at 1 and have no gaps.
    runs: Option<Arc<[NodeIdRun]>>,
}

/// A run of consecutive ids. The first id of the run is at `index`.
#[derive(Clone, Copy, Debug)]
struct NodeIdRun {
    first: NodeId,
    index: usize,
}

impl NodeIdIndex {
    pub(super) const fn new() -> Self {
        Self { runs: None }
    }

    /// Returns the lookup for these ids, which must be in ascending order.
    pub(super) fn of(ids: impl Iterator<Item = NodeId>) -> Self {
        let mut runs = Vec::new();
        let mut last = None;
        for (index, id) in ids.enumerate() {
            if id != NodeId::after(last) {
                runs.push(NodeIdRun { first: id, index });
            }
            last = Some(id);
        }
        Self { runs: (!runs.is_empty()).then(|| runs.into()) }
    }

    /// Returns the same lookup with this id for the next node. `least` is the lowest possible id, and `len` is the
    /// number of nodes. A gap before the next node is an empty run at the end.
    pub(super) fn with_next(&self, next: NodeId, least: NodeId, len: usize) -> Self {
        let runs = self.runs.iter().flat_map(|runs| runs.iter().copied()).filter(|run| run.index < len);
        let next = (next != least).then_some(NodeIdRun { first: next, index: len });
        let runs: Vec<NodeIdRun> = runs.chain(next).collect();
        Self { runs: (!runs.is_empty()).then(|| runs.into()) }
    }

    /// Returns the id of the next node, if a gap precedes it.
    pub(super) fn next(&self, len: usize) -> Option<NodeId> {
        let last = self.runs.as_deref()?.last()?;
        (last.index == len).then_some(last.first)
    }

    /// Returns the index of `id` among `len` nodes. O(log gaps).
    pub(super) fn index(&self, id: NodeId, len: usize) -> Option<usize> {
        let runs = self.runs.as_deref().unwrap_or_default();
        let after = runs.partition_point(|run| run.first <= id);
        let (first, index) = match after.checked_sub(1) {
            Some(run) => (runs[run].first.get(), runs[run].index),
            None => (1, 0),
        };
        let end = runs.get(after).map_or(len, |run| run.index);
        let index = index.checked_add(usize::try_from(id.get() - first).ok()?)?;
        (index < end).then_some(index)
    }
}

/// The nodes of a [`Tree`]'s path, from its root to the head.
#[derive(Clone)]
pub struct Path<'a> {
    tree: &'a Tree,
    /// The first and the last of the remaining nodes, or `None` if no node remains.
    ends: Option<(NodePosition, NodePosition)>,
    left: usize,
}

impl<'a> Path<'a> {
    pub(super) fn new(tree: &'a Tree, ends: Option<(NodePosition, NodePosition)>, len: usize) -> Self {
        Self { tree, ends, left: len }
    }

    /// Takes the node at `slot`. `rest` contains the first and the last node that remain afterwards, if any remain.
    fn take(&mut self, slot: NodePosition, rest: Option<(NodePosition, NodePosition)>) -> &'a Node {
        self.left -= 1;
        self.ends = rest.filter(|_| self.left > 0);
        self.tree.at(slot)
    }
}

impl<'a> Iterator for Path<'a> {
    type Item = &'a Node;

    fn next(&mut self) -> Option<&'a Node> {
        let (first, last) = self.ends?;
        let below = self.tree.links(first).cursor;
        Some(self.take(first, below.map(|below| (below, last))))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl DoubleEndedIterator for Path<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        let (first, last) = self.ends?;
        let above = self.tree.links(last).parent;
        Some(self.take(last, above.map(|above| (first, above))))
    }
}

impl ExactSizeIterator for Path<'_> {}

impl FusedIterator for Path<'_> {}

impl fmt::Debug for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// The nodes of a [`Tree`] that have the same parent, or the tree's roots, oldest first.
#[derive(Clone)]
pub(super) struct Children<'a> {
    tree: &'a Tree,
    /// The next and the last of the remaining nodes, or `None` if no node remains.
    ends: Option<(NodePosition, NodePosition)>,
}

impl<'a> Children<'a> {
    pub(super) fn new(tree: &'a Tree, newest: Option<NodePosition>) -> Self {
        Self { tree, ends: newest.map(|newest| (tree.links(newest).next, newest)) }
    }
}

impl<'a> Iterator for Children<'a> {
    type Item = &'a Node;

    fn next(&mut self) -> Option<&'a Node> {
        let (first, last) = self.ends?;
        self.ends = (first != last).then(|| (self.tree.links(first).next, last));
        Some(self.tree.at(first))
    }
}

impl FusedIterator for Children<'_> {}

impl fmt::Debug for Children<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

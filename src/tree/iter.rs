use std::{fmt, iter::FusedIterator};

use super::{Node, Tree, links::Slot};

/// The nodes of a [`Tree`]'s path, from its root to the head.
#[derive(Clone)]
pub struct Path<'a> {
    tree: &'a Tree,
    /// The first and the last of the remaining nodes, or `None` if no node remains.
    ends: Option<(Slot, Slot)>,
    left: usize,
}

impl<'a> Path<'a> {
    pub(super) fn new(tree: &'a Tree, ends: Option<(Slot, Slot)>, len: usize) -> Self {
        Self { tree, ends, left: len }
    }

    /// Takes the node at `slot`. `rest` contains the first and the last node that remain afterwards, if any remain.
    fn take(&mut self, slot: Slot, rest: Option<(Slot, Slot)>) -> &'a Node {
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
    ends: Option<(Slot, Slot)>,
}

impl<'a> Children<'a> {
    pub(super) fn new(tree: &'a Tree, newest: Option<Slot>) -> Self {
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

//! Where nodes stand: slots, the links between them, and the way from an id to its slot.

use std::{num::NonZeroU32, sync::Arc};

use super::NodeId;

/// The place of a node in the order of ids, counted from 0. Half the size of an id, and no search away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot(NonZeroU32);

impl Slot {
    pub(super) fn new(index: usize) -> Self {
        let number = u32::try_from(index + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("a tree holds fewer than 2^32 nodes"))
    }

    pub(super) const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// What a node is linked to. Kept apart from the node, which never changes: a change of a link then copies
/// plain numbers and touches no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Links {
    pub(super) parent: Option<Slot>,
    /// The child that was active last: present as soon as there is a child.
    pub(super) cursor: Option<Slot>,
    pub(super) newest: Option<Slot>,
    /// The next younger sibling; after the youngest, the oldest: so the newest child is the way to the first.
    pub(super) next: Slot,
}

impl Links {
    pub(super) const fn alone(slot: Slot, parent: Option<Slot>) -> Self {
        Self { parent, cursor: None, newest: None, next: slot }
    }
}

/// Finds the index of an id. Ids without gaps need no memory for it, others some for each gap.
#[derive(Clone, Debug, Default)]
pub(super) struct Ids {
    /// `None` where ids begin at 1 and have no gaps.
    runs: Option<Arc<[Run]>>,
}

/// Ids that follow one another, the first of them at `index`.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: NodeId,
    index: usize,
}

impl Ids {
    pub(super) const fn new() -> Self {
        Self { runs: None }
    }

    /// Of ids in ascending order.
    pub(super) fn of(ids: impl Iterator<Item = NodeId>) -> Self {
        let mut runs = Vec::new();
        let mut last = None;
        for (index, id) in ids.enumerate() {
            if id != NodeId::after(last) {
                runs.push(Run { first: id, index });
            }
            last = Some(id);
        }
        Self { runs: (!runs.is_empty()).then(|| runs.into()) }
    }

    /// The index of `id` among `len` nodes. O(log gaps).
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

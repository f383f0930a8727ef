//! A list that is usually empty.

use std::ops::{Deref, DerefMut};

/// A list that takes 8 bytes while it is empty, because an idle agent has to be small.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::box_collection, reason = "the empty list is small")]
pub(super) struct RareList<T>(Option<Box<Vec<T>>>);

impl<T> Default for RareList<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> RareList<T> {
    /// Returns the list for changes. This allocates memory even if the list is empty.
    pub(super) fn list(&mut self) -> &mut Vec<T> {
        self.0.get_or_insert_default()
    }

    /// Returns a list of these items.
    pub(super) fn of(items: Vec<T>) -> Self {
        Self((!items.is_empty()).then(|| Box::new(items)))
    }

    /// Takes all items and frees the memory of the list.
    pub(super) fn take(&mut self) -> Vec<T> {
        self.0.take().map(|list| *list).unwrap_or_default()
    }

    /// Removes an item. When the last item is removed, the memory of the list is freed.
    pub(super) fn remove(&mut self, index: usize) -> T {
        let removed = self.list().remove(index);
        self.0.take_if(|list| list.is_empty());
        removed
    }
}

impl<T> Deref for RareList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

impl<T> DerefMut for RareList<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.0.as_deref_mut().map_or(&mut [], Vec::as_mut_slice)
    }
}

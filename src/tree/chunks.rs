use std::sync::Arc;

/// Values a leaf holds, and children a branch holds.
const WIDTH: usize = 32;
const BITS: u32 = 5;

/// A sequence whose clones share what they have in common: O(1) to clone, amortised O(1) to extend, and a
/// value can be changed at any place. A change copies the leaf that holds it and the branches above, each at
/// most once after a clone.
// A radix trie of leaves, all full but the last. An empty sequence owns no memory.
pub(super) struct Chunks<T> {
    root: Option<Arc<Tier<T>>>,
    len: usize,
    /// Levels of branches above the leaves.
    height: u32,
}

/// A branch, which has only children, or a leaf, which has only values.
#[derive(Clone)]
struct Tier<T> {
    children: Vec<Arc<Tier<T>>>,
    values: Vec<T>,
}

impl<T> Tier<T> {
    const fn new() -> Self {
        Self { children: Vec::new(), values: Vec::new() }
    }
}

impl<T> Chunks<T> {
    pub(super) const fn new() -> Self {
        Self { root: None, len: 0, height: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        self.leaf(index / WIDTH)?.get(index % WIDTH)
    }

    pub(super) fn last(&self) -> Option<&T> {
        self.get(self.len.checked_sub(1)?)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.iter_from(0)
    }

    /// The values from `index` on.
    pub(super) fn iter_from(&self, index: usize) -> impl Iterator<Item = &T> {
        (index / WIDTH..).map_while(|leaf| self.leaf(leaf)).flatten().skip(index % WIDTH)
    }

    /// The `index`th run of up to [`WIDTH`] values.
    fn leaf(&self, index: usize) -> Option<&[T]> {
        if index >= self.len.div_ceil(WIDTH) {
            return None;
        }
        let mut tier = self.root.as_deref()?;
        for level in (0..self.height).rev() {
            tier = &tier.children[(index >> (level * BITS)) % WIDTH];
        }
        Some(&tier.values)
    }

    /// Hands over every run of values in which this sequence may differ from `earlier`, as far as `earlier`
    /// goes: the index of its first value, the values here, and those of `earlier`. Runs that both share are
    /// passed over whole.
    pub(super) fn differing<'a>(
        &'a self,
        earlier: &'a Self,
        visit: &mut impl FnMut(usize, &'a [T], &'a [T]),
    ) {
        let (Some(mut now), Some(before)) = (self.root.as_ref(), earlier.root.as_ref()) else {
            return;
        };
        // What a sequence was before it grew a level is the first child of what it is now.
        for _ in earlier.height..self.height {
            now = &now.children[0];
        }
        differing(now, before, 0, earlier.height, visit);
    }
}

fn differing<'a, T>(
    now: &'a Arc<Tier<T>>,
    before: &'a Arc<Tier<T>>,
    first: usize,
    height: u32,
    visit: &mut impl FnMut(usize, &'a [T], &'a [T]),
) {
    if Arc::ptr_eq(now, before) {
        return;
    }
    if height == 0 {
        visit(first, &now.values, &before.values);
    }
    for (child, (now, before)) in now.children.iter().zip(&before.children).enumerate() {
        differing(now, before, first + (child << (height * BITS)), height - 1, visit);
    }
}

impl<T: Clone> Chunks<T> {
    pub(super) fn push(&mut self, value: T) {
        let root = self.root.get_or_insert_with(|| Arc::new(Tier::new()));
        if self.len == WIDTH << (self.height * BITS) {
            let old = std::mem::replace(root, Arc::new(Tier::new()));
            Arc::make_mut(root).children.push(old);
            self.height += 1;
        }
        let mut tier = Arc::make_mut(root);
        for level in (1..=self.height).rev() {
            let child = (self.len >> (level * BITS)) % WIDTH;
            if child == tier.children.len() {
                tier.children.push(Arc::new(Tier::new()));
            }
            tier = Arc::make_mut(&mut tier.children[child]);
        }
        let held = tier.values.len();
        if held == tier.values.capacity() && held >= WIDTH / 2 {
            // A leaf that was copied has no room; doubling it would give it more than it can use.
            tier.values.reserve_exact(WIDTH - held);
        }
        tier.values.push(value);
        self.len += 1;
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Option<&mut T> {
        if index >= self.len {
            return None;
        }
        let mut tier = Arc::make_mut(self.root.as_mut()?);
        for level in (1..=self.height).rev() {
            tier = Arc::make_mut(&mut tier.children[(index >> (level * BITS)) % WIDTH]);
        }
        tier.values.get_mut(index % WIDTH)
    }
}

impl<T> Clone for Chunks<T> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len, height: self.height }
    }
}

impl<T: PartialEq> PartialEq for Chunks<T> {
    fn eq(&self, other: &Self) -> bool {
        let same = match (&self.root, &other.root) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        self.len == other.len && (same || self.iter().eq(other.iter()))
    }
}

impl<T: Clone> FromIterator<T> for Chunks<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        let mut chunks = Self::new();
        values.into_iter().for_each(|value| chunks.push(value));
        chunks
    }
}

use crc32fast::Hasher;

/// The received text of a block, stored as its length and its digest. They are compared with the whole text that the
/// service repeats at the end, so that the text itself need not be stored twice.
#[derive(Clone, Debug, Default)]
pub(super) struct Received {
    bytes: usize,
    digest: Hasher,
}

impl Received {
    pub(super) fn add(&mut self, more: &str) {
        self.bytes += more.len();
        self.digest.update(more.as_bytes());
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the part of `whole` after the received text, if `whole` begins with that text.
    pub(super) fn rest<'w>(&self, whole: &'w str) -> Option<&'w str> {
        let (begin, rest) = whole.split_at_checked(self.bytes)?;
        (crc32fast::hash(begin.as_bytes()) == self.digest.clone().finalize()).then_some(rest)
    }

    /// Returns whether `whole` is longer than the received text and does not continue it.
    pub(super) fn differs(&self, whole: &str) -> bool {
        whole.len() > self.bytes && self.rest(whole).is_none()
    }
}

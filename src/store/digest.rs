use std::io;

use serde::Serialize;

use super::WriteId;

/// A 128-bit hash of the bytes that are written to it (FNV-1a: draft-eastlake-fnv, 2 and 5).
#[derive(Clone, Copy)]
pub(crate) struct ContentHasher {
    hash: u128,
    /// The number of bytes that were added so far.
    len: usize,
}

impl Default for ContentHasher {
    fn default() -> Self {
        Self { hash: 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, len: 0 }
    }
}

impl ContentHasher {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash =
                (self.hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        self.len += bytes.len();
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.add(bytes);
        // Neither an id nor JSON contains a zero byte, so a zero byte separates the parts.
        self.add(&[0]);
    }

    /// Adds the value's JSON text and returns the length of the text.
    pub(super) fn json<T: Serialize>(&mut self, value: &T) -> Result<usize, serde_json::Error> {
        let before = self.len;
        serde_json::to_writer(&mut *self, value)?;
        let len = self.len - before;
        self.add(&[0]);
        Ok(len)
    }

    pub(crate) fn value(self) -> u128 {
        self.hash
    }

    pub(super) fn write_id(self) -> WriteId {
        WriteId::from_bytes(self.hash.to_be_bytes())
    }
}

impl io::Write for ContentHasher {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

//! Splitting an answer into pieces, as networks do.

use std::hash::{DefaultHasher, Hasher};

/// Splits `body` into pieces whose lengths depend only on its bytes. An input therefore always fails in the same way,
/// and every change of the input changes the split.
pub(crate) fn pieces(body: &[u8]) -> Vec<&[u8]> {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    let mut state = hasher.finish() | 1;
    let mut pieces = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        // Marsaglia's xorshift generator.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // The pieces are as long as a few bytes, a line or several events, and sometimes empty.
        let most = [4, 64, 1024][(state >> 8) as usize % 3];
        let (piece, after) = rest.split_at(((state >> 16) as usize % most).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

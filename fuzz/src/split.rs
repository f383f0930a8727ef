//! Cutting an answer into pieces, as networks do.

use std::hash::{DefaultHasher, Hasher};

/// `body` in pieces whose lengths follow from its bytes alone, so that an input fails the same way each time and
/// every change to it is another split.
pub(crate) fn pieces(body: &[u8]) -> Vec<&[u8]> {
    let mut hasher = DefaultHasher::new();
    hasher.write(body);
    let mut state = hasher.finish() | 1;
    let mut pieces = Vec::new();
    let mut rest = body;
    while !rest.is_empty() {
        // Marsaglia's xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Pieces of a few bytes, of a line and of several events, an empty one now and then.
        let most = [4, 64, 1024][(state >> 8) as usize % 3];
        let (piece, after) = rest.split_at(((state >> 16) as usize % most).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

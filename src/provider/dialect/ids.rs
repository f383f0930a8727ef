//! Ids of tool calls, for services that send none.

use std::collections::HashSet;

use crate::provider::{ProviderError, ProviderErrorKind};

/// The maximum number of tool calls in one response. Only a broken server sends more.
pub(super) const MAX_CALLS: usize = 1024;

/// The ids of the tool calls of one response.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    taken: HashSet<String>,
    count: usize,
}

impl CallIds {
    /// Returns whether the response has no tool call yet. Used for wire formats that get the ids from
    /// [`next`](Self::next).
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the [id](Self::at) of the next call. Used for wire formats in which calls arrive complete.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Decoding`] if the response has more than [`MAX_CALLS`] calls.
    pub(super) fn next(&mut self, given: &str, answer: &str) -> Result<String, ProviderError> {
        if self.count >= MAX_CALLS {
            let message = format!("more than {MAX_CALLS} tool calls in one response");
            return Err(ProviderError::new(ProviderErrorKind::Decoding, message));
        }
        let at = self.count;
        self.count += 1;
        Ok(self.at(at, given, answer))
    }

    /// Returns the id of the call at this position. If the service sent an id, `given`, this id is returned. Otherwise,
    /// the id is made from the position and from `answer`, a text that identifies the response. The same response
    /// always gets the same ids, and each id is unique.
    pub(super) fn at(&mut self, at: usize, given: &str, answer: &str) -> String {
        let wanted = match given {
            "" if answer.is_empty() => format!("call_{at}"),
            "" => format!("call_{:016x}_{at}", hash(answer)),
            id => id.to_owned(),
        };
        let mut id = wanted.clone();
        let mut n = at;
        while !self.taken.insert(id.clone()) {
            id = format!("{wanted}_{n}");
            n += 1;
        }
        id
    }
}

/// The FNV-1a hash. The function must never change, because its results are part of stored conversations.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

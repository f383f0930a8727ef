//! Ids of tool calls, for services that give none.

use std::collections::HashSet;

use crate::provider::{ErrorKind, ProviderError};

/// Calls that one answer may make; more are a broken server.
pub(super) const MAX_CALLS: usize = 1024;

/// The ids of the calls of one answer, for formats in which calls come whole.
#[derive(Debug, Default)]
pub(super) struct CallIds {
    taken: HashSet<String>,
    count: usize,
}

impl CallIds {
    /// Whether the answer has made no call yet.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The [id](Self::at) of the next call.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Decoding`] if the answer makes more calls than anybody would.
    pub(super) fn next(&mut self, given: &str, answer: &str) -> Result<String, ProviderError> {
        if self.count >= MAX_CALLS {
            let message = format!("more than {MAX_CALLS} tool calls in one answer");
            return Err(ProviderError::new(ErrorKind::Decoding, message));
        }
        let at = self.count;
        self.count += 1;
        Ok(self.at(at, given, answer))
    }

    /// The id of the call at this place: the one `given` by the service, else one made from what is particular about
    /// the `answer` and the place. The same answer gives the same ids, each once.
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

/// FNV-1a: stable for ever, since it ends up in stored conversations.
pub(super) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

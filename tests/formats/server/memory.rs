//! What a service has said, and the rules on what comes back of it.

use std::collections::HashSet;

use serde_json::Value;

use super::{Read, must};

/// The answers of a service so far, in its format's terms.
#[derive(Default)]
pub(crate) struct Memory {
    answers: Vec<Issued>,
}

struct Issued {
    blocks: Vec<Value>,
    /// Whether the answer came to its end.
    whole: bool,
}

/// What a format can tell of a block.
pub(crate) struct Traits {
    /// What makes a block known again, though its signature were another: its text, or the id of a call.
    pub(crate) anchor: fn(&Value) -> Option<String>,
    /// Whether nobody but the service itself can have written it.
    pub(crate) private: fn(&Value) -> bool,
}

impl Memory {
    pub(super) fn keep(&mut self, blocks: Vec<Value>, whole: bool) {
        self.answers.push(Issued { blocks, whole });
    }

    /// Checks an answer that a request holds. The service's own comes back as it was, block by block. Another's
    /// holds nothing that only the service could have written, unless it is what is left of an answer that
    /// was cut off.
    pub(crate) fn check(&self, turn: &[Value], traits: &Traits) -> Read<()> {
        let anchors: HashSet<String> = turn.iter().filter_map(|block| (traits.anchor)(block)).collect();
        let is_it = |issued: &&Issued| {
            let mut known = issued.blocks.iter().filter_map(|block| (traits.anchor)(block));
            issued.whole && known.any(|anchor| anchors.contains(&anchor))
        };
        match self.answers.iter().find(is_it) {
            Some(issued) => must(issued.blocks == turn, || {
                format!("an answer came back changed: {} for {}", show(turn), show(&issued.blocks))
            }),
            None => turn.iter().filter(|block| (traits.private)(block)).try_for_each(|block| {
                let known = self.answers.iter().any(|issued| issued.blocks.contains(block));
                must(known, || format!("this was never said here: {block}"))
            }),
        }
    }
}

fn show(blocks: &[Value]) -> String {
    Value::from(blocks).to_string()
}

/// The tool calls of a conversation, which are answered right after they were made, each once.
#[derive(Default)]
pub(crate) struct Calls {
    open: Vec<String>,
    all: HashSet<String>,
}

impl Calls {
    pub(crate) fn make(&mut self, id: &str) -> Read<()> {
        must(self.all.insert(id.to_owned()), || format!("the call id {id} is there twice"))?;
        self.open.push(id.to_owned());
        Ok(())
    }

    pub(crate) fn answer(&mut self, id: &str) -> Read<()> {
        let at = self.open.iter().position(|open| open == id);
        let at = at.ok_or_else(|| format!("a result for {id}, which is no open call"))?;
        self.open.remove(at);
        Ok(())
    }

    pub(crate) fn must_be_answered(&self) -> Read<()> {
        must(self.open.is_empty(), || format!("calls without a result: {:?}", self.open))
    }
}

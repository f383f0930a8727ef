//! The earlier answers of a service, and the rules for sending them back.

use std::collections::HashSet;

use serde_json::Value;

use super::{Read, must};

/// The answers of a service so far, encoded in its format.
#[derive(Default)]
pub(crate) struct Memory {
    answers: Vec<Issued>,
    /// Whether a compaction may have replaced the thinking of earlier answers.
    pub(super) is_cleared: bool,
}

struct Issued {
    blocks: Vec<Value>,
    /// Whether the service sent the complete answer.
    whole: bool,
}

/// Functions that describe the blocks of a format.
pub(crate) struct Traits {
    /// Returns the part that identifies a block independently of its signature: its text, or the id of a call.
    pub(crate) anchor: fn(&Value) -> Option<String>,
    /// Returns whether the block is of a kind that only the service itself can write.
    pub(crate) private: fn(&Value) -> bool,
    /// Returns whether the block is only thinking. The services accept earlier answers without their thinking.
    pub(crate) thinking: fn(&Value) -> bool,
}

/// The beginning of the note that replaces thinking in an earlier answer.
const NOTE: &str = "[Not shown: ";

impl Memory {
    pub(super) fn keep(&mut self, blocks: Vec<Value>, whole: bool) {
        self.answers.push(Issued { blocks, whole });
    }

    /// Checks an answer in a request. A complete answer of this service must be unchanged, block by block. If a compaction
    /// has cleared the conversation, a note may replace all of its thinking. In any other answer, such as an interrupted
    /// one, each block of a kind that only the service can write must be a block that the service has sent.
    pub(crate) fn check(&self, turn: &[Value], traits: &Traits) -> Read<()> {
        let anchors: HashSet<String> = turn.iter().filter_map(|block| (traits.anchor)(block)).collect();
        let is_it = |issued: &&Issued| {
            let mut known = issued.blocks.iter().filter_map(|block| (traits.anchor)(block));
            issued.whole && known.any(|anchor| anchors.contains(&anchor))
        };
        match self.answers.iter().find(is_it) {
            Some(issued) if self.is_cleared && issued.is_without_thinking(turn, traits) => Ok(()),
            Some(issued) => must(issued.blocks == turn, || {
                format!("an answer was sent back changed: {} for {}", show(turn), show(&issued.blocks))
            }),
            None => turn.iter().filter(|block| (traits.private)(block)).try_for_each(|block| {
                let known = self.answers.iter().any(|issued| issued.blocks.contains(block));
                must(known, || format!("no answer contained this: {block}"))
            }),
        }
    }
}

impl Issued {
    /// Returns whether these are the answer's blocks, but with a note in place of all of its thinking.
    fn is_without_thinking(&self, turn: &[Value], traits: &Traits) -> bool {
        let mut rest = turn.iter();
        // The note is a block, or the beginning of the text that follows it.
        let is_sent = |block: &Value| {
            rest.by_ref().any(|own| {
                let text = (traits.anchor)(own).zip((traits.anchor)(block));
                let is_noted = |(own, text): (String, String)| {
                    own.contains(NOTE) && own.ends_with(text.trim_start_matches('['))
                };
                own == block || text.is_some_and(is_noted)
            })
        };
        let mut kept = self.blocks.iter().filter(|block| !(traits.thinking)(block));
        kept.all(is_sent)
            && !turn.iter().any(|block| (traits.thinking)(block))
            && turn.iter().all(|block| self.blocks.contains(block) || block.to_string().contains(NOTE))
    }
}

fn show(blocks: &[Value]) -> String {
    Value::from(blocks).to_string()
}

/// The tool calls of a conversation. Each call must be answered exactly once, and the answer must directly follow the
/// call.
#[derive(Default)]
pub(crate) struct Calls {
    open: Vec<String>,
    all: HashSet<String>,
}

impl Calls {
    pub(crate) fn make(&mut self, id: &str) -> Read<()> {
        must(self.all.insert(id.to_owned()), || format!("the call id {id} is used twice"))?;
        self.open.push(id.to_owned());
        Ok(())
    }

    pub(crate) fn answer(&mut self, id: &str) -> Read<()> {
        let at = self.open.iter().position(|open| open == id);
        let at = at.ok_or_else(|| format!("a result for {id}, which is not an open call"))?;
        self.open.remove(at);
        Ok(())
    }

    pub(crate) fn must_be_answered(&self) -> Read<()> {
        must(self.open.is_empty(), || format!("calls without a result: {:?}", self.open))
    }
}

//! Unique ids of tool uses, so that a late `resume` never applies to another tool use.
//!
//! Some services number their calls anew in each answer. With such a service, a second `resume` that arrives late could
//! otherwise approve a call that nobody has seen.

use std::sync::Arc;

use crate::{
    agent::{
        PendingUse,
        phase::{OpNumber, StreamQuestion, ToolUseSlot, Turn},
    },
    message::{Content, ToolUseId},
    provider::{BlockStart, Delta, Fold},
};

/// The ids of tool uses that waited for `resume`, with the latest id last. Some services use the same ids again in each
/// response. The agent never uses an id again after a tool use with that id has waited, so a late `resume` is detected
/// as stale.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PastPauseIds(Vec<ToolUseId>);

/// The number of ids that are kept of tool uses that have waited. A `resume` with an older id is not expected.
const MAX_WAITED: usize = 256;

/// What follows the id of a call in the id of a pause that asks whether the call's tool may run again, before a number.
const AGAIN: &str = "?again";

impl PastPauseIds {
    /// Stores the ids of pauses that begin to wait, and counts them in their turn.
    pub(super) fn add_all<'a>(
        &mut self,
        pauses: impl IntoIterator<Item = &'a Arc<PendingUse>>,
        turn: &mut Turn,
    ) {
        for pause in pauses {
            if !self.contains(&pause.tool_use.id) {
                self.add(pause.tool_use.id.clone());
                turn.waits += 1;
            }
        }
    }

    /// Stores the id of a tool use that begins to wait.
    fn add(&mut self, id: ToolUseId) {
        if self.0.len() >= MAX_WAITED {
            self.0.remove(0);
        }
        self.0.push(id);
    }

    /// Returns the last `count` ids, or all if there are fewer.
    pub(super) fn last(&self, count: usize) -> &[ToolUseId] {
        &self.0[self.0.len().saturating_sub(count)..]
    }

    /// Restores the ids of a recorded turn.
    pub(super) fn restored(mut ids: Vec<ToolUseId>) -> Self {
        ids.drain(..ids.len().saturating_sub(MAX_WAITED));
        Self(ids)
    }

    /// Returns an id for a question of a call of a step, and the number in it, which is greater than `asked`. No other
    /// pause has had this id.
    pub(super) fn question_id(&self, call: &ToolUseId, asked: u32, step: &[ToolUseSlot]) -> (ToolUseId, u32) {
        self.numbered(&format!("{call}?"), asked, step)
    }

    /// Returns an id for a pause that asks whether the tool of a call may run again. No other pause has had this id. It
    /// differs from the ids of all questions of the call, because the process may have ended before the last ones were
    /// recorded.
    pub(super) fn repetition_id(&self, call: &ToolUseId, step: &[ToolUseSlot]) -> ToolUseId {
        self.numbered(&format!("{call}{AGAIN}"), 0, step).0
    }

    fn numbered(&self, start: &str, mut number: u32, step: &[ToolUseSlot]) -> (ToolUseId, u32) {
        loop {
            number += 1;
            let id = ToolUseId::from(format!("{start}{number}"));
            if !self.contains(&id) && step.iter().all(|slot| slot.tool_use.id != id) {
                return (id, number);
            }
        }
    }

    /// Returns the id under which a tool use has waited for a decision on whether its tool may run, or may run again.
    pub(super) fn waited_as(&self, call: &ToolUseId) -> Option<&ToolUseId> {
        let is_about = |id: &&ToolUseId| {
            id.as_str()
                .strip_prefix(call.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(AGAIN))
        };
        self.0.iter().rfind(is_about)
    }

    /// Returns whether a tool use with this id has waited for a decision.
    pub(super) fn contains(&self, id: &ToolUseId) -> bool {
        self.0.contains(id)
    }

    /// Gives a tool use that begins in `fold` another id, if its id is already used. An id is already used if a tool
    /// use with that id has waited, or if the tool use in the provider's question has that id.
    pub(super) fn freshen(
        &self,
        delta: Delta,
        op: OpNumber,
        fold: &Fold,
        question: Option<&StreamQuestion>,
    ) -> Delta {
        match delta {
            Delta::Start { index, block: BlockStart::ToolUse { id, name } } => {
                let asked = question.map(|question| &question.tool_use.id);
                // If no id is used yet, `fold` alone ensures that the ids within the response differ.
                let id = if self.0.is_empty() && asked.is_none() {
                    id
                } else {
                    self.fresh(id, op, |id| asked == Some(id) || holds(fold, id))
                };
                Delta::Start { index, block: BlockStart::ToolUse { id, name } }
            }
            other => other,
        }
    }

    /// Returns the id for a question that the provider asks while `fold` is being streamed.
    pub(super) fn of_question(&self, id: ToolUseId, op: OpNumber, fold: &Fold) -> ToolUseId {
        self.fresh(id, op, |id| holds(fold, id))
    }

    /// Returns `id`, or an id derived from it if `id` is empty, has waited before, or satisfies `taken`.
    fn fresh(&self, id: ToolUseId, op: OpNumber, taken: impl Fn(&ToolUseId) -> bool) -> ToolUseId {
        let is_free = |id: &ToolUseId| !id.as_str().is_empty() && !self.0.contains(id) && !taken(id);
        if is_free(&id) {
            return id;
        }
        let stem = if id.as_str().is_empty() { "call" } else { id.as_str() };
        let mut fresh = ToolUseId::from(format!("{stem}_{op}"));
        let mut tries = 0;
        while !is_free(&fresh) {
            tries += 1;
            fresh = format!("{stem}_{op}_{tries}").into();
        }
        fresh
    }
}

fn holds(fold: &Fold, id: &ToolUseId) -> bool {
    fold.blocks().iter().any(|block| matches!(&block.content, Content::ToolUse(own) if own.id == *id))
}

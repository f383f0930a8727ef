//! Ids that a late `resume` can't be taken for.

use serde::{Deserialize, Serialize};

use crate::{
    agent::phase::{Op, Question},
    message::{Content, ToolUseId},
    provider::{BlockStart, Delta, Fold},
};

/// Tool uses that waited for `resume`, the latest last. Some services count their ids anew in each answer:
/// one that waited does not come again under the same id, so that a late `resume` is stale.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Waited(Vec<ToolUseId>);

/// Tool uses that are remembered. A `resume` that is late by more than this has long been answered.
const MAX_WAITED: usize = 256;

impl Waited {
    /// Subscribers are told that this one waits.
    pub(super) fn add(&mut self, id: ToolUseId) {
        if self.0.len() >= MAX_WAITED {
            self.0.remove(0);
        }
        self.0.push(id);
    }

    /// Gives a tool use that begins in `fold` another id, if its own may be taken for one that waited, or for
    /// the one that the provider asks about.
    pub(super) fn freshen(&self, delta: Delta, op: Op, fold: &Fold, question: Option<&Question>) -> Delta {
        match delta {
            Delta::Start { index, block: BlockStart::ToolUse { id, name } } => {
                let asked = question.map(|question| &question.tool_use.id);
                // Else the fold sees to it that ids differ within the answer.
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

    /// The id for a question of the provider while `fold` streams in.
    pub(super) fn of_question(&self, id: ToolUseId, op: Op, fold: &Fold) -> ToolUseId {
        self.fresh(id, op, |id| holds(fold, id))
    }

    /// `id`, or one made of it if it is empty, waited once or is `taken`.
    fn fresh(&self, id: ToolUseId, op: Op, taken: impl Fn(&ToolUseId) -> bool) -> ToolUseId {
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

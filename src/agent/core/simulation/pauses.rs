//! Checks the tool uses that wait for decisions, and the decisions.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use serde_json::Value;

use super::{Check, ensure};
use crate::{
    agent::{Decided, Pause, core::Core},
    message::ToolUseId,
    tool::Decision,
};

/// The pauses of an agent.
#[derive(Default)]
pub(super) struct Pauses {
    /// The ids of the tool uses that wait for decisions.
    pub(super) waiting: Vec<ToolUseId>,
    /// The ids of all tool uses for which a pause was emitted.
    pub(super) spent: HashSet<ToolUseId>,
    /// The decisions that must be emitted at once.
    pub(super) decided: VecDeque<Made>,
    /// The decisions that were made before their pauses were reported. They must be emitted after the pauses.
    pub(super) early: Vec<Made>,
    /// The inputs with which `handle_tool_use` has replaced the inputs from the model.
    pub(super) replaced: HashMap<ToolUseId, Value>,
    /// A question of a running tool that must be emitted at once: the id of its call, and the question.
    pub(super) asking: Option<(ToolUseId, Value)>,
    /// The questions of running tools whose withdrawal must be emitted at once.
    pub(super) withdrawing: Vec<ToolUseId>,
    /// The decision that applies to each tool use when the time limit of its pause ends.
    pub(super) on_expiry: HashMap<ToolUseId, Decision>,
}

/// A decision: the tool use, the decision, the name of who decided, and whether the decision applies because a time
/// limit is over.
pub(super) type Made = (ToolUseId, Decision, Option<Arc<str>>, bool);

impl Pauses {
    pub(super) fn pause(&mut self, pause: &Pause) -> Check {
        let id = &pause.tool_use.id;
        let is_fresh = self.spent.insert(id.clone());
        ensure!(is_fresh, "a late resume of {id} would apply to a newer call");
        let asking = self.asking.take();
        let asked = pause.asked_by.clone().map(|call| (call, pause.reason.clone()));
        ensure!(asking == asked, "a pause for the question {asked:?}, not {asking:?}");
        let is_of = |call: &ToolUseId| id.as_str().starts_with(&format!("{call}?"));
        ensure!(
            pause.asked_by.as_ref().is_none_or(is_of),
            "a question of {:?} waits as {id}",
            pause.asked_by
        );
        self.waiting.push(id.clone());
        Ok(())
    }

    pub(super) fn decide(&mut self, decided: &Decided) -> Check {
        let Decided { tool_use_id, decision, by, expired, .. } = decided.clone();
        self.waiting.retain(|id| *id != tool_use_id);
        let given = (tool_use_id, decision, by, expired);
        let expected = self.decided.pop_front();
        ensure!(expected.as_ref() == Some(&given), "{given:?} is emitted, not {expected:?}");
        Ok(())
    }

    pub(super) fn withdraw(&mut self, id: &ToolUseId) -> Check {
        let index = self.withdrawing.iter().position(|withdrawn| withdrawn == id);
        self.withdrawing.remove(index.ok_or_else(|| format!("{id} is withdrawn"))?);
        self.waiting.retain(|waiting| waiting != id);
        Ok(())
    }

    pub(super) fn check_rest(&self, core: &Core) -> Check {
        ensure!(self.decided.is_empty(), "the decisions {:?} were not emitted", self.decided);
        ensure!(self.asking.is_none(), "the question {:?} was not emitted", self.asking);
        ensure!(self.withdrawing.is_empty(), "the withdrawal of {:?} was not emitted", self.withdrawing);
        let waiting: Vec<_> = core.phase().pauses().map(|pause| &pause.tool_use.id).collect();
        ensure!(
            self.waiting.iter().eq(waiting.iter().copied()),
            "the core waits for {waiting:?}, but {:?} was emitted",
            self.waiting
        );
        Ok(())
    }
}

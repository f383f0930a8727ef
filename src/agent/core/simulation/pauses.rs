//! Checks the tool uses that wait for decisions, and the decisions.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use serde_json::Value;

use super::{Check, ensure};
use crate::{
    agent::{Decided, PendingUse, core::AgentCore},
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
    /// The pauses of sub-agents that must be emitted at once, in this order.
    pub(super) delegating: Vec<ToolUseId>,
    /// The questions of running tools whose withdrawal must be emitted at once.
    pub(super) withdrawing: Vec<ToolUseId>,
    /// The decision that applies to each tool use when the time limit of its pause ends.
    pub(super) on_expiry: HashMap<ToolUseId, Decision>,
}

/// A decision: the tool use, the decision, the name of who decided, and whether the decision applies because a time
/// limit is over.
pub(super) type Made = (ToolUseId, Decision, Option<Arc<str>>, bool);

impl Pauses {
    /// Checks the complete list of pauses after a change. A pause leaves the list because of a decision or because its
    /// question is withdrawn. The decisions of one command are emitted next, so all their pauses leave at once. If nothing
    /// waits any more, all pauses are withdrawn.
    pub(super) fn change(&mut self, pauses: &[Arc<PendingUse>]) -> Check {
        let waiting = pauses.iter().map(|pause| pause.tool_use.id.clone()).collect();
        let before = std::mem::replace(&mut self.waiting, waiting);
        for id in before.iter().filter(|id| !self.waiting.contains(id)) {
            let is_withdrawn = self.withdrawing.extract_if(.., |withdrawn| withdrawn == id).next().is_some();
            let is_decided = self.decided.iter().any(|decided| decided.0 == *id);
            ensure!(is_withdrawn || is_decided || pauses.is_empty(), "{id} no longer waits");
        }
        let has_new = pauses.iter().any(|pause| !before.contains(&pause.tool_use.id));
        let late = self.decided.iter().find(|decided| self.waiting.contains(&decided.0) && !has_new);
        ensure!(late.is_none(), "{late:?} is decided, but its pause is emitted again");
        pauses.iter().filter(|pause| !before.contains(&pause.tool_use.id)).try_for_each(|new| self.pause(new))
    }

    fn pause(&mut self, pause: &PendingUse) -> Check {
        let id = &pause.tool_use.id;
        let is_fresh = self.spent.insert(id.clone());
        ensure!(is_fresh, "a late resume of {id} would apply to a newer call");
        if pause.sub_agent.is_some() {
            let is_next = self.delegating.first() == Some(id);
            ensure!(is_next, "the pause {id} of a sub-agent is emitted, not {:?}", self.delegating);
            self.delegating.remove(0);
            return Ok(());
        }
        let asking = self.asking.take();
        let asked = pause.asked_by.clone().map(|call| (call, pause.reason.clone()));
        ensure!(asking == asked, "a pause for the question {asked:?}, not {asking:?}");
        let is_of = |call: &ToolUseId| id.as_str().starts_with(&format!("{call}?"));
        ensure!(
            pause.asked_by.as_ref().is_none_or(is_of),
            "a question of {:?} waits as {id}",
            pause.asked_by
        );
        Ok(())
    }

    pub(super) fn decide(&mut self, decided: &Decided) -> Check {
        let Decided { tool_use_id, decision, by, expired, .. } = decided.clone();
        ensure!(!self.waiting.contains(&tool_use_id), "{tool_use_id} is decided, but it waits");
        let given = (tool_use_id, decision, by, expired);
        let expected = self.decided.pop_front();
        ensure!(expected.as_ref() == Some(&given), "{given:?} is emitted, not {expected:?}");
        Ok(())
    }

    pub(super) fn check_rest(&self, core: &AgentCore) -> Check {
        ensure!(self.decided.is_empty(), "the decisions {:?} were not emitted", self.decided);
        ensure!(self.delegating.is_empty(), "the pauses {:?} were not emitted", self.delegating);
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

//! The invariants of the core. They hold before and after each input.

use super::AgentCore;
use crate::agent::phase::{AgentPhase, AgentTurnStage, ToolUseSlot, Turn};

impl AgentCore {
    /// Checks the invariants. O(n).
    pub(in crate::agent) fn check(&self) -> Result<(), String> {
        self.history.check().map_err(|error| format!("committed history: {error}"))?;
        let status = self.phase.status();
        if status != self.emitted_status {
            return Err(format!("status {:?} was emitted, but it is {status:?}", self.emitted_status));
        }
        let idle = matches!(self.phase, AgentPhase::Idle);
        if idle && (!self.staged.is_empty() || self.notices > 0) {
            return Err("something is queued although the agent is idle".into());
        }
        let waits = Some(&AgentTurnStage::Noticing { begun: false }) == self.phase.stage()
            || matches!(self.phase, AgentPhase::Noticing { begun: false, .. });
        if waits && self.notices == 0 {
            return Err("handle_event is called without an event".into());
        }
        if self.staged.iter().any(|prompt| prompt.id.is_none()) {
            return Err("a staged prompt has no id".into());
        }
        if self.fallback.is_some() && self.phase.turn().is_none() {
            return Err("a fallback history without a turn".into());
        }
        match &self.phase {
            AgentPhase::InTurn { stage: AgentTurnStage::Executing { slots, .. }, .. }
                if self.leaving_since.is_none()
                    && slots.iter().all(|slot| slot.queued || slot.result.is_some()) =>
            {
                Err("no tool runs, so no result can arrive".into())
            }
            AgentPhase::InTurn { turn, stage, .. } => self.check_turn(turn, stage),
            AgentPhase::Idle | AgentPhase::Noticing { .. } => Ok(()),
        }
    }

    fn check_turn(&self, turn: &Turn, stage: &AgentTurnStage) -> Result<(), String> {
        let working = turn.working.all();
        let pending = turn.working.pending_len();
        if working.len() != self.history.len() + pending
            || !working.iter().take(self.history.len()).eq(self.history.iter())
        {
            return Err("the working history does not begin with the committed one".into());
        }
        if turn.compaction.is_some() {
            return working.check().map_err(|error| format!("a compaction after an open turn: {error}"));
        }
        if pending == 0 || turn.step_start == 0 || turn.step_start > pending {
            return Err(format!("the step began with {} messages of {pending}", turn.step_start));
        }
        if turn.step == 0 || turn.origin.max_steps.is_some_and(|max| turn.step > max) {
            return Err(format!("{} requests, {:?} allowed", turn.step, turn.origin.max_steps));
        }
        match stage {
            AgentTurnStage::Recovering(recovering) => return self.check_turn(turn, &recovering.stage),
            AgentTurnStage::Preparing
            | AgentTurnStage::Compacting { .. }
            | AgentTurnStage::Streaming { .. }
            | AgentTurnStage::Delaying { .. } => {
                return turn.conversation().check_sendable().map_err(|error| format!("request: {error}"));
            }
            AgentTurnStage::Deciding { tools } | AgentTurnStage::Paused { tools }
                if !working.open_tool_uses().eq(&tools.uses) =>
            {
                return Err("the tool uses to decide on are not the open ones".into());
            }
            AgentTurnStage::Deciding { tools }
                if tools.next().is_none() && !(turn.recorded && tools.pauses().next().is_some()) =>
            {
                return Err("all tool uses have answers, but one is awaited".into());
            }
            AgentTurnStage::Paused { tools } if tools.next().is_some() || tools.pauses().next().is_none() => {
                return Err("the turn is paused, but no tool use waits or one was not asked about".into());
            }
            AgentTurnStage::Executing { slots, questions }
                if questions.iter().any(|own| !slots.get(own.slot).is_some_and(ToolUseSlot::is_running)) =>
            {
                return Err("a question waits, but its tool does not run".into());
            }
            AgentTurnStage::Executing { slots, .. } if slots.iter().all(|slot| slot.result.is_some()) => {
                return Err("the stage waits for tools that have finished".into());
            }
            AgentTurnStage::Reviewing { slots, reviewed }
                if reviewed.len() >= slots.len()
                    || slots[reviewed.len()..].iter().any(|slot| slot.result.is_none()) =>
            {
                return Err("no result is left to review".into());
            }
            _ => {}
        }
        working.check_pairs().map_err(|error| format!("working history: {error}"))
    }
}

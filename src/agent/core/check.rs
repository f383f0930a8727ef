//! The invariants that hold between any two inputs.

use super::Core;
use crate::agent::phase::{Phase, Turn};

impl Core {
    /// Checks the invariants. O(n).
    pub(in crate::agent) fn check(&self) -> Result<(), String> {
        self.history.check().map_err(|error| format!("committed history: {error}"))?;
        let status = self.phase.status();
        if status != self.emitted_status {
            return Err(format!("status {:?} was emitted, but it is {status:?}", self.emitted_status));
        }
        let idle = matches!(self.phase, Phase::Idle);
        if idle && (self.staged.is_some() || self.notices > 0) {
            return Err("something is queued although the agent is idle".into());
        }
        if matches!(self.phase, Phase::Noticing { begun: false, .. }) && self.notices == 0 {
            return Err("handle_event is called without an event".into());
        }
        if self.behind.is_some() && self.staged.is_none() {
            return Err("a prompt waits behind a missing one".into());
        }
        if self.fallback.is_some() && self.phase.turn().is_none() {
            return Err("a fallback history without a turn".into());
        }
        self.phase.turn().map_or(Ok(()), |turn| self.check_turn(turn))
    }

    fn check_turn(&self, turn: &Turn) -> Result<(), String> {
        let working = turn.working.all();
        let pending = turn.working.pending_len();
        if working.len() != self.history.len() + pending
            || !working.iter().take(self.history.len()).eq(self.history.iter())
        {
            return Err("the working history does not begin with the committed one".into());
        }
        if pending == 0 || turn.step_start == 0 || turn.step_start > pending {
            return Err(format!("the step began with {} messages of {pending}", turn.step_start));
        }
        if turn.step == 0 || turn.origin.max_steps.is_some_and(|max| turn.step > max) {
            return Err(format!("{} requests, {:?} allowed", turn.step, turn.origin.max_steps));
        }
        match &self.phase {
            Phase::Preparing { .. } | Phase::Streaming { .. } | Phase::Delaying { .. } => {
                return turn.conversation().check_sendable().map_err(|error| format!("request: {error}"));
            }
            Phase::Deciding { tools, .. } | Phase::Paused { tools, .. }
                if tools.next().is_none() || !working.open_tool_uses().eq(&tools.uses) =>
            {
                return Err("the tool uses to decide on are not the open ones".into());
            }
            Phase::Executing { slots, .. } if slots.iter().all(|slot| slot.result.is_some()) => {
                return Err("the phase waits for tools that have finished".into());
            }
            Phase::Reviewing { slots, reviewed, .. }
                if slots.iter().any(|slot| slot.result.is_none()) || reviewed.len() >= slots.len() =>
            {
                return Err("no result is left to review".into());
            }
            _ => {}
        }
        working.check_pairs().map_err(|error| format!("working history: {error}"))
    }
}

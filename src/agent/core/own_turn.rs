//! Turns that consist of a compaction alone: by size at the end of a run, and by request.
//!
//! Such a turn has no prompt, no step and no callback. It follows the committed turn of a run, or it is a run alone. The
//! response of its event is that of the answered turn, with another turn, usage and messages. So the last event of a run
//! shows the answer in each case.

use std::sync::Arc;

use super::{
    AgentCore, AgentEffect, CoreInputContext,
    compacting::{self, AutomaticCompactionReason},
    origin,
    response::respond,
};
use crate::{
    agent::{
        Compact, Durable, Event, Failure, Prompt, Response, RunOutcome, Status,
        phase::{AgentPhase, CompactionAttemptState, CompactionPlan, CompactionTurn, RunPromptState, Turn},
    },
    message::RequestEnd,
    provider::StopReason,
    run::Error,
};

impl AgentCore {
    /// Compacts the conversation by request. The caller gets the response of the turn, as the caller of `ask` does.
    pub(in crate::agent) fn compact_on_request(
        &mut self,
        compact: &Compact,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<(), Error> {
        if !matches!(self.phase, AgentPhase::Idle) {
            return Err(Error::busy("agent", Status::Busy));
        }
        let own = CompactionTurn { is_alone: true, stop_reason: StopReason::Stop, answered: None };
        let recorded = cx.records == Durable::InFlight;
        let mut turn =
            self.compaction_turn(origin(Prompt::default(), true, cx), self.step, recorded, own, cx);
        let plan = compacting::requested(&turn, compact, cx)?;
        turn.origin.first_turn = turn.id;
        (self.runs, self.first_turn) = (self.runs.wrapping_add(1), Some(turn.id));
        turn.run = self.runs;
        // Without a request, the turn is recorded only at its end, before the caller gets its answer.
        if recorded && plan.ready.is_none() {
            cx.push(AgentEffect::Record);
        }
        self.emit_status(Status::Busy, cx);
        self.begin_compaction(turn, plan, cx);
        Ok(())
    }

    /// Compacts the conversation after `turn`, which is committed and would end its run, if the size requires it. Returns
    /// whether the run continues with the compaction.
    pub(super) fn compact_after(
        &mut self,
        turn: &Turn,
        response: &Arc<Response>,
        cx: &mut CoreInputContext<'_>,
    ) -> bool {
        let is_open = !response.open_tool_uses.is_empty();
        let acts = cx.config.compactor().is_some_and(|compactor| compactor.acts_at_end);
        let has_failed =
            matches!(turn.compacted, CompactionAttemptState::Failed | CompactionAttemptState::NotBySize);
        if !acts || is_open || has_failed || self.leaving_since.is_some() {
            return false;
        }
        let (stop_reason, answered) = (response.stop_reason.clone(), Some(Arc::clone(response)));
        let own = CompactionTurn { is_alone: false, stop_reason: stop_reason.clone(), answered };
        let next = self.compaction_turn(turn.origin.clone(), turn.step, turn.recorded, own, cx);
        let Some(plan) = compacting::plan(&next, &AutomaticCompactionReason::EndOfRun, cx) else {
            return false;
        };
        if (cx.hold)().is_some() {
            return false;
        }
        self.end_prompts(&RunOutcome::stopped(&stop_reason), cx);
        if turn.recorded {
            cx.push(AgentEffect::Record);
        }
        cx.emit(Event::Turn { response: Arc::clone(response), continues: true });
        self.begin_compaction(next, plan, cx);
        true
    }

    fn compaction_turn(
        &self,
        origin: RunPromptState,
        step: u32,
        recorded: bool,
        own: CompactionTurn,
        cx: &CoreInputContext<'_>,
    ) -> Box<Turn> {
        let turn = self.turn((cx.turn_id)(), origin, step, recorded);
        Box::new(Turn { compaction: Some(Box::new(own)), ..turn })
    }

    fn begin_compaction(&mut self, turn: Box<Turn>, plan: CompactionPlan, cx: &mut CoreInputContext<'_>) {
        cx.push(AgentEffect::Watch(turn.origin.prompt.turn_timeout.or(cx.config.settings.turn_timeout)));
        self.compact(turn, plan, cx);
    }

    /// Ends a turn that consists of a compaction alone. If it has no message, `failure` is the reason. A staged prompt
    /// starts the next turn, unless the turn `is_cut` short.
    pub(super) fn end_compaction(
        &mut self,
        mut turn: Box<Turn>,
        failure: Option<Failure>,
        is_cut: bool,
        cx: &mut CoreInputContext<'_>,
    ) {
        let Some(own) = turn.compaction.take() else { unreachable!("the turn consists of a compaction") };
        let mut response = match own.answered {
            Some(answered) => Arc::unwrap_or_clone(answered),
            None => respond(&turn, own.stop_reason, cx.config),
        };
        (response.turn, response.usage, response.delegated) = (Some(turn.id), turn.usage, turn.delegated());
        response.messages = turn.working.pending().cloned().collect();
        let response = Arc::new(response);
        let answer = turn.origin.asked.as_ref().map(|asked| match (asked.response(), failure) {
            (Some(kept), _) => Ok(kept),
            (None, _) if !response.messages.is_empty() => Ok(Arc::clone(&response)),
            (None, Some(failure)) => Err(Error::failed(failure, Arc::clone(&response))),
            (None, None) => Err(Error::cancelled(Arc::clone(&response))),
        });
        self.commit(&turn);
        cx.push(AgentEffect::Watch(None));
        let continues = !is_cut && !self.staged.is_empty();
        if continues {
            if turn.recorded {
                cx.push(AgentEffect::Record);
            }
            cx.emit(Event::Turn { response, continues });
        } else {
            self.emit_status(Status::Idle, cx);
            self.end_run(Event::Turn { response, continues }, turn.recorded, cx);
        }
        if let Some(answer) = answer {
            cx.hold_back(turn.recorded, AgentEffect::Resolve(answer));
        }
        if continues {
            if own.is_alone {
                // The prompt starts a run, although the agent was not idle.
                self.first_turn = None;
            }
            let staged = self.staged.remove(0);
            let begun = self.begin_run(Arc::unwrap_or_clone(staged), false, turn.recorded, cx);
            debug_assert!(begun.is_ok(), "a staged prompt contains no tool results");
        } else {
            self.settle(cx);
        }
    }

    /// Ends the turn in flight without its compaction, if it consists of a compaction alone. The request for the summary
    /// ends with `end`. Returns whether the turn was ended.
    pub(super) fn cut_compaction(
        &mut self,
        failure: Option<Failure>,
        end: RequestEnd,
        cx: &mut CoreInputContext<'_>,
    ) -> bool {
        if self.phase.turn().is_none_or(|turn| turn.compaction.is_none()) {
            return false;
        }
        cx.push(AgentEffect::Abort);
        self.cut_summary(end, cx);
        if let Some((turn, _)) = self.phase.take_turn() {
            self.end_compaction(turn, failure, true, cx);
        }
        true
    }
}

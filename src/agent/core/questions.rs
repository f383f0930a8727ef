//! The questions that running tools ask the user.
//!
//! The questions arrive through the channel of progress reports, so a step without questions has no extra cost. They
//! are ordered by the time when they were asked.
//!
//! The pauses of a call's sub-agents are questions of the call. Their list is a state that the call sets, so a report
//! that comes late or twice does no harm. A decision about such a pause changes nothing here: it is forwarded to the
//! sub-agent, whose next list withdraws the question. These questions do not count towards [`MAX_QUESTIONS`], because
//! each is a pause of a sub-agent already, and a person must see it.

use std::sync::Arc;

use serde_json::Value;

use super::{AgentCore, AgentEffect, CoreInputContext};
use crate::{
    agent::{
        Durable, Event, PendingUse,
        phase::{AgentPhase, AgentTurnStage, OpNumber, RunningToolQuestion, ToolUseSlot},
    },
    json::is_shallow,
    message::{Purpose, ToolUse, ToolUseId, UsageRow, UsageSum},
    provider::Fold,
    tool::{Answer, Decision, Replay},
};

/// The maximum number of questions from running tools that can wait at the same time.
const MAX_QUESTIONS: usize = 32;

impl AgentCore {
    /// Called when a running tool asks a question. Returns the id under which the question waits, or the reason why the
    /// question cannot wait.
    pub(in crate::agent) fn tool_asked(
        &mut self,
        op: OpNumber,
        slot: usize,
        question: Value,
        cx: &mut CoreInputContext<'_>,
    ) -> Result<ToolUseId, String> {
        if !is_shallow(&question) {
            return Err(format!(
                "the question has more than {} levels of arrays and objects",
                Fold::MAX_DEPTH
            ));
        }
        let ended = || "the call has ended".to_owned();
        let Some((turn, AgentTurnStage::Executing { slots, questions })) = self.phase.awaited(op) else {
            return Err(ended());
        };
        let Some(place) = slots.get(slot).filter(|place| place.is_running()) else {
            return Err(ended());
        };
        if questions.iter().filter(|question| question.pause.sub_agent.is_none()).count() >= MAX_QUESTIONS {
            return Err(format!("{MAX_QUESTIONS} questions of running tools wait already; ask again later"));
        }
        let call = place.tool_use.clone();
        let (id, asked) = self.waited.question_id(&call.id, place.asked, slots);
        let place = &mut slots[slot];
        place.asked = asked;
        let (asked_by, input) = (call.id.clone(), place.input.clone());
        let input_replaced = input.is_some();
        let tool_use = ToolUse { id: id.clone(), input: input.unwrap_or_else(|| call.input.clone()), ..call };
        let mut pause = PendingUse::new(turn.id, tool_use)
            .with_input_replaced(input_replaced)
            .with_reason(question)
            .with_asked_by(asked_by)
            .with_survives(false);
        pause.begin(cx.now());
        let pause = Arc::new(pause);
        self.waited.add_all([&pause], turn);
        questions.push(RunningToolQuestion { slot, pause });
        cx.record_soon(turn.recorded);
        self.emit_pauses(cx);
        self.start_queued(cx);
        Ok(id)
    }

    /// Called when the pauses of the sub-agents of a running tool have changed. `pauses` are all that wait.
    pub(in crate::agent) fn tool_delegated(
        &mut self,
        op: OpNumber,
        slot: usize,
        pauses: Vec<PendingUse>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let Some((turn, AgentTurnStage::Executing { slots, questions })) = self.phase.awaited(op) else {
            return;
        };
        let Some(place) = slots.get(slot).filter(|place| place.is_running()) else {
            return;
        };
        let is_session =
            |pause: &PendingUse| pause.sub_agent.as_ref().is_some_and(|own| own.conversation.is_some());
        let waits = pauses.iter().any(is_session);
        let below = |pause: PendingUse| Arc::new(pause.below(&place.tool_use.id, turn.id));
        let mut pauses: Vec<_> = pauses.into_iter().map(below).collect();
        let before = questions.len();
        questions.retain(|question| {
            let is_own = question.slot == slot && question.pause.sub_agent.is_some();
            let waits = |pause: &Arc<PendingUse>| pause.tool_use.id == question.pause.tool_use.id;
            !is_own || pauses.extract_if(.., |pause| waits(pause)).next().is_some()
        });
        if pauses.is_empty() && questions.len() == before {
            return;
        }
        self.waited.add_all(&pauses, turn);
        questions.extend(pauses.into_iter().map(|pause| RunningToolQuestion { slot, pause }));
        let waited = std::mem::replace(&mut slots[slot].waits, waits);
        if waits && !waited && (turn.recorded || cx.records >= Durable::Approvals) {
            // The session of the sub-agent has stored the pause. After a restart, this turn repeats the call.
            turn.recorded = true;
            cx.push(AgentEffect::Record);
        } else {
            cx.record_soon(turn.recorded);
        }
        self.emit_pauses(cx);
        self.start_queued(cx);
    }

    /// Called when a running tool is about to run a sub-agent that does not survive the process. After a restart, the tool
    /// must not run again.
    pub(in crate::agent) fn tool_unrepeatable(
        &mut self,
        op: OpNumber,
        slot: usize,
        cx: &mut CoreInputContext<'_>,
    ) {
        let Some((turn, AgentTurnStage::Executing { slots, .. })) = self.phase.awaited(op) else { return };
        let recorded = turn.recorded;
        let is_meant = |place: &&mut ToolUseSlot| place.result.is_none() && place.replay != Replay::Never;
        let Some(place) = slots.get_mut(slot).filter(is_meant) else { return };
        place.replay = Replay::Never;
        if recorded {
            cx.push(AgentEffect::Record);
        }
    }

    /// Called when a request of the sub-agent of the call with this key, or of one below it, has ended. The rows of
    /// sub-agents that are sessions are stored there.
    pub(in crate::agent) fn delegated(
        &mut self,
        key: &Arc<str>,
        row: UsageRow,
        cx: &mut CoreInputContext<'_>,
    ) {
        let mut row = UsageRow { purpose: Purpose::SubAgent, message: None, turn: None, step: None, ..row };
        if let AgentPhase::InTurn { turn, .. } = &mut self.phase {
            if row.conversation.is_some() {
                turn.call_mut(key).add(1, row.usage);
            } else {
                turn.usage += row.usage;
                turn.origin.delegated = turn.origin.delegated.saturating_add(1);
            }
            (row.turn, row.step) = (Some(turn.id), Some(turn.step));
            cx.record_soon(turn.recorded);
        }
        cx.emit(Event::Usage(Box::new(row)));
    }

    /// Called when a repeated call has read what its sub-agent, and those below it, have stored so far.
    pub(in crate::agent) fn delegated_before(
        &mut self,
        key: &Arc<str>,
        stored: UsageSum,
        cx: &mut CoreInputContext<'_>,
    ) {
        if let AgentPhase::InTurn { turn, .. } = &mut self.phase {
            *turn.call_mut(key) = stored;
            cx.record_soon(turn.recorded);
        }
    }

    /// Called when a running tool no longer waits for the answer to its question.
    pub(in crate::agent) fn tool_question_withdrawn(
        &mut self,
        op: OpNumber,
        id: &ToolUseId,
        cx: &mut CoreInputContext<'_>,
    ) {
        if self.phase.awaited(op).is_some() {
            self.withdraw_questions(|question| question.pause.tool_use.id == *id, cx);
        }
    }

    /// Withdraws the questions of running tools for which `is_meant` returns true.
    pub(super) fn withdraw_questions(
        &mut self,
        is_meant: impl Fn(&RunningToolQuestion) -> bool,
        cx: &mut CoreInputContext<'_>,
    ) {
        let AgentPhase::InTurn { stage: AgentTurnStage::Executing { questions, .. }, .. } = &mut self.phase
        else {
            return;
        };
        let before = questions.len();
        questions.retain(|question| !is_meant(question));
        if questions.len() < before {
            self.emit_pauses(cx);
        }
    }

    /// Carries out the decision about a question that the running tool of this slot has asked.
    pub(super) fn answer_tool(
        &mut self,
        slot: usize,
        id: ToolUseId,
        decision: Decision,
        cx: &mut CoreInputContext<'_>,
    ) {
        let answer = match decision {
            Decision::Execute => Answer::Accepted(None),
            Decision::ExecuteWith(value) => Answer::Accepted(Some(value)),
            Decision::Reject(reason) => Answer::Declined(reason),
            Decision::Provide(result) => {
                cx.push(AgentEffect::EndTool(slot));
                if let Some(op) = self.phase.op() {
                    self.tool_done(op, slot, result, cx);
                }
                // The reply to the decision waits until the result is stored.
                return self.record_now(cx);
            }
        };
        cx.push(AgentEffect::AnswerTool(id, answer));
    }
}

//! The continuation of a recorded turn after a restart.
//!
//! One pure function covers all stages. It follows the declarations of tools and providers about repetition. If the
//! recorded and the current declaration differ, the stricter one counts.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{
    AgentCore, AgentEffect, CallbackCall, CoreInputContext,
    tools::{start, tool_call},
};
use crate::{
    agent::{
        Event, Failure, MAX_LIVES, OnUncertain, PendingUse, RecordedStage, Recovery, RecoveryDecision,
        UncertainUse,
        durable::RecoveryFacts,
        phase::{
            AfterEventCallback, AgentPhase, AgentTurnStage, DecisionOrPause, DispatchedToolCall, OpNumber,
            RequestReplaySafety, StepToolUses, ToolUseDecisionDetails, ToolUseSlot, Turn, TurnRecoveryStage,
            UnfinishedStep,
        },
    },
    message::{RequestEnd, Timestamp, ToolResult, ToolUse, ToolUseId, Usage, UsageRow},
    tool::{Decision, Replay, ToolSet},
};

/// The result of a tool use whose outcome is not known.
pub(in crate::agent) const UNCERTAIN: &str =
    "Interrupted by a restart. It is not known whether the tool took effect.";

impl AgentCore {
    /// Starts the continuation of a recorded turn, and asks `handle_recovery`. A turn that was restarted too often
    /// without progress is interrupted.
    pub(in crate::agent) fn take_up(&mut self, facts: &RecoveryFacts, cx: &mut CoreInputContext<'_>) {
        let Some(recovery) = self.recovery(facts, cx.tools) else { return };
        let uncertain = recovery.uncertain.iter().filter(|own| own.replay == Replay::Never);
        let uncertain = uncertain.map(|own| own.tool_use.id.clone()).collect();
        cx.emit(Event::Resumed { turn: recovery.turn, lives: facts.lives, uncertain });
        if let AgentPhase::InTurn { turn, stage: AgentTurnStage::Recovering(recovering), .. } =
            &mut self.phase
        {
            recovering.set_waits(facts);
            let RequestReplaySafety { sent, lost, .. } = turn.request;
            // A record that is made before `handle_recovery` returns contains this report, and repeats the stage.
            if matches!(recovering.stage, AgentTurnStage::Streaming { .. }) && sent && !lost {
                turn.request.lost = true;
                lose_request(turn, cx);
            }
        }
        if facts.lives > MAX_LIVES {
            return self.abandon(cx);
        }
        let op = self.next_op();
        match &mut self.phase {
            AgentPhase::InTurn { op: awaited, .. } | AgentPhase::Noticing { op: awaited, .. } => {
                *awaited = op;
            }
            AgentPhase::Idle => {}
        }
        cx.push(AgentEffect::Call(op, CallbackCall::HandleRecovery(Box::new(recovery))));
    }

    /// Returns the activity at which a recorded turn continues.
    pub(in crate::agent) fn recorded_stage(&self) -> RecordedStage {
        match &self.phase {
            AgentPhase::InTurn { turn, stage: AgentTurnStage::Recovering(recovering), .. } => {
                recovering.recorded_stage(turn)
            }
            _ => RecordedStage::Preparing,
        }
    }

    /// Returns whether the recorded turn only waits at the time `now`: for decisions, also about tools of sub-agents, or for
    /// the end of a delay.
    pub(in crate::agent) fn only_waits(&self, now: Timestamp) -> bool {
        match (self.recorded_stage(), self.phase.stage()) {
            (RecordedStage::Paused, _) => true,
            (_, Some(AgentTurnStage::Recovering(recovering))) => match &recovering.stage {
                AgentTurnStage::Delaying { until, .. } => *until > now,
                // A tool that does not wait can be the cause of the restart.
                stage => stage.only_delegates(),
            },
            _ => false,
        }
    }

    /// Returns the description of the recorded turn for `handle_recovery`.
    fn recovery(&self, facts: &RecoveryFacts, tools: &ToolSet) -> Option<Recovery> {
        let (turn, pending, uncertain) = match &self.phase {
            AgentPhase::InTurn { op: 0, turn, stage: AgentTurnStage::Recovering(recovering) } => {
                let pending = turn.working.pending().cloned().collect();
                let uncertain = recovering.uncertain(turn, facts.recover.on_uncertain, tools);
                (turn.id, pending, uncertain)
            }
            AgentPhase::Noticing { op: 0, then: AfterEventCallback::Continue(between), .. } => {
                (between.turn, Vec::new(), Vec::new())
            }
            _ => return None,
        };
        let (lives, decision, stage) = (facts.lives, facts.recover.decision, self.recorded_stage());
        Some(Recovery { turn, stage, age: facts.age, lives, pending, uncertain, decision })
    }

    /// Called when `handle_recovery` has returned. `provider` is the declaration of the provider to which the next
    /// request would go.
    pub(in crate::agent) fn recovered(
        &mut self,
        op: OpNumber,
        decision: RecoveryDecision,
        recovery: &Recovery,
        provider: Replay,
        cx: &mut CoreInputContext<'_>,
    ) {
        if self.phase.op() != Some(op) {
            return;
        }
        // A run is in flight, so neither an interrupt nor a cancel fails.
        match decision {
            RecoveryDecision::Resume => {}
            RecoveryDecision::Interrupt => return drop(self.interrupt(cx)),
            RecoveryDecision::Discard => return drop(self.cancel(cx)),
        }
        match std::mem::take(&mut self.phase) {
            AgentPhase::Noticing { then: AfterEventCallback::Continue(between), .. } => {
                self.continue_run(between, cx);
            }
            AgentPhase::InTurn { turn, stage: AgentTurnStage::Recovering(recovering), .. } => {
                self.continue_turn(turn, *recovering, recovery, provider, cx);
            }
            other => self.phase = other,
        }
    }

    fn continue_turn(
        &mut self,
        turn: Box<Turn>,
        recovering: TurnRecoveryStage,
        recovery: &Recovery,
        provider: Replay,
        cx: &mut CoreInputContext<'_>,
    ) {
        if turn.compaction.is_some() {
            // The next request makes the compaction.
            return self.end_compaction(turn, None, false, cx);
        }
        let TurnRecoveryStage { stage, spent } = recovering;
        if let Some(limit) = turn.origin.prompt.turn_timeout.or(cx.config.settings.turn_timeout) {
            cx.push(AgentEffect::WatchOn { limit, spent });
        }
        match stage {
            AgentTurnStage::Streaming { .. } => self.stream_again(turn, provider, cx),
            AgentTurnStage::Deciding { tools } | AgentTurnStage::Paused { tools } => {
                if tools.next().is_some() {
                    return self.decide_next(turn, tools, cx);
                }
                if tools.pauses().next().is_none() {
                    return self.answered_all(turn, tools, cx);
                }
                self.wait(turn, tools, cx);
            }
            AgentTurnStage::Executing { slots, .. } => self.execute_again(turn, slots, recovery, cx),
            AgentTurnStage::Reviewing { slots, reviewed } => {
                emit_runs(&slots[reviewed.len()..], cx);
                self.review_next(turn, slots, reviewed, cx);
            }
            AgentTurnStage::Concluding { end } => self.ask_handle_turn(turn, end, cx),
            AgentTurnStage::Failing { failure, remains } => {
                emit_runs(&remains.slots[remains.reviewed.len()..], cx);
                self.recover(turn, failure, *remains, cx);
            }
            AgentTurnStage::Delaying { delay, until } => {
                let left = until.since(cx.now()).min(delay);
                let op = self.enter(turn, AgentTurnStage::Delaying { delay, until });
                cx.push(AgentEffect::Delay(op, left));
            }
            AgentTurnStage::Noticing { .. }
            | AgentTurnStage::Preparing
            | AgentTurnStage::Compacting { .. }
            | AgentTurnStage::Recovering(_) => {
                self.prepare(turn, cx);
            }
        }
    }

    /// Sends the request again, unless it must not be repeated.
    fn stream_again(&mut self, mut turn: Box<Turn>, provider: Replay, cx: &mut CoreInputContext<'_>) {
        if !turn.request.sent {
            return self.prepare(turn, cx);
        }
        if turn.request.is_uncertain(provider) {
            return self.recover(turn, Failure::Uncertain, UnfinishedStep::default(), cx);
        }
        turn.answer = None;
        // Tools of the interrupted step may have started without a record. The repetition is a new step, so that its
        // tools have other keys. It does not count towards the limit of requests.
        turn.step += 1;
        turn.origin.max_steps = turn.origin.max_steps.map(|max| max.saturating_add(1));
        let pending = turn.working.pending_len();
        cx.emit(Event::Retry {
            failure: Failure::Interrupted,
            delay: Duration::ZERO,
            pending,
            complete: false,
            step: turn.step,
            model: None,
        });
        self.prepare(turn, cx);
    }

    /// Runs the tools again that may run again. The others get an error result, or wait for a decision.
    fn execute_again(
        &mut self,
        mut turn: Box<Turn>,
        mut slots: Vec<ToolUseSlot>,
        recovery: &Recovery,
        cx: &mut CoreInputContext<'_>,
    ) {
        let choice = |slot: &ToolUseSlot| {
            recovery
                .uncertain
                .iter()
                .find(|own| own.tool_use.id == slot.tool_use.id)
                .filter(|_| slot.result.is_none() && !slot.queued)
        };
        let asks = |slot: &ToolUseSlot| {
            choice(slot)
                .is_some_and(|own| own.replay == Replay::Never && own.on_uncertain == OnUncertain::Ask)
        };
        if slots.iter().any(asks) {
            let open = slots.iter().enumerate().filter(|(_, slot)| slot.result.is_none());
            let was_started =
                |(place, slot): &(usize, &ToolUseSlot)| !slot.queued || turn.uncertain.contains(place);
            turn.uncertain = open.filter(was_started).map(|(place, _)| place).collect();
            let now = cx.now();
            let id = |slot: &ToolUseSlot| self.waited.repetition_id(&slot.tool_use.id, &slots);
            let answer = |slot| answer_again(slot, choice(slot), id(slot), &turn, now);
            let answers = slots.iter().map(answer).collect();
            let uses = slots.into_iter().map(|slot| slot.tool_use).collect();
            return self.answered_all(turn, Box::new(StepToolUses { uses, answers, early: Vec::new() }), cx);
        }
        let mut calls = Vec::new();
        let mut reported = Vec::new();
        for (place, slot) in slots.iter_mut().enumerate().filter(|(_, slot)| slot.result.is_none()) {
            if slot.queued {
                slot.replay = slot.replay.max(cx.tools.replay(&slot.tool_use.name));
                continue;
            }
            let own = recovery.uncertain.iter().find(|own| own.tool_use.id == slot.tool_use.id);
            match own.map_or(Replay::Never, |own| own.replay) {
                Replay::Never => reported.push(place),
                replay => {
                    (slot.replay, slot.waits) = (replay, false);
                    let call = tool_call(&turn, place, &slot.tool_use, slot.input.as_ref());
                    calls.push(DispatchedToolCall { is_repeated: true, ..call });
                }
            }
        }
        for place in &reported {
            let slot = &mut slots[*place];
            slot.result = Some(ToolResult::error(&slot.tool_use, UNCERTAIN));
            slot.decided = Some(Box::new(ToolUseDecisionDetails::cut_off(slot.decided.take(), cx.now())));
        }
        emit_runs(&slots, cx);
        // The tools that have started had their places, so all of them run again.
        let queued = start(&mut slots, &[], &turn, cx);
        let is_recorded = reported.is_empty() && queued.is_empty();
        calls.extend(queued);
        if !reported.is_empty() {
            cx.push(AgentEffect::Record);
        }
        if is_recorded && !calls.is_empty() {
            // The record from which the turn was restored already contains the step in this state, so no new record is
            // needed.
            let op = self.enter(turn, AgentTurnStage::Executing { slots, questions: Vec::new() });
            return cx.hold_back(true, AgentEffect::RunTools(op, calls));
        }
        self.run_tools(turn, slots, calls, cx);
    }
}

impl TurnRecoveryStage {
    fn set_waits(&mut self, facts: &RecoveryFacts) {
        let AgentTurnStage::Deciding { tools } = &mut self.stage else { return };
        for pause in tools.pauses_mut() {
            let known = facts.waits.iter().find(|(id, ..)| *id == pause.tool_use.id);
            if let Some((_, since, expires)) = known {
                let pause = Arc::make_mut(pause);
                (pause.since, pause.expires) = (Some(*since), *expires);
            }
        }
    }

    /// Returns the tool uses whose tools were running.
    fn uncertain(&self, turn: &Turn, on_uncertain: OnUncertain, tools: &ToolSet) -> Vec<UncertainUse> {
        let AgentTurnStage::Executing { slots, .. } = &self.stage else { return Vec::new() };
        let open = slots.iter().enumerate().filter(|(_, slot)| slot.result.is_none() && !slot.queued);
        let uncertain = open.map(|(place, slot)| {
            let call = tool_call(turn, place, &slot.tool_use, slot.input.as_ref());
            UncertainUse {
                replay: slot.replay.max(tools.replay(&slot.tool_use.name)),
                tool_use: call.tool_use,
                idempotency_key: call.idempotency_key,
                on_uncertain,
            }
        });
        uncertain.collect()
    }

    fn recorded_stage(&self, turn: &Turn) -> RecordedStage {
        match &self.stage {
            AgentTurnStage::Streaming { .. } if turn.request.sent => RecordedStage::Streaming,
            AgentTurnStage::Noticing { .. }
            | AgentTurnStage::Preparing
            | AgentTurnStage::Compacting { .. }
            | AgentTurnStage::Streaming { .. }
            | AgentTurnStage::Recovering(_) => RecordedStage::Preparing,
            AgentTurnStage::Deciding { tools }
                if tools.next().is_none() && tools.undecided().next().is_some() =>
            {
                RecordedStage::Paused
            }
            AgentTurnStage::Deciding { .. } => RecordedStage::Deciding,
            AgentTurnStage::Paused { .. } => RecordedStage::Paused,
            AgentTurnStage::Executing { .. } => RecordedStage::Executing,
            AgentTurnStage::Reviewing { .. } => RecordedStage::Reviewing,
            AgentTurnStage::Concluding { .. } => RecordedStage::Concluding,
            AgentTurnStage::Failing { .. } => RecordedStage::Failing,
            AgentTurnStage::Delaying { .. } => RecordedStage::Delaying,
        }
    }
}

/// Emits the usage of a request whose response was lost.
fn lose_request(turn: &Turn, cx: &mut CoreInputContext<'_>) {
    let row = UsageRow::new(RequestEnd::Lost, Usage::default())
        .with_turn(turn.id)
        .with_step(turn.step)
        .with_message(turn.answer.clone())
        .with_at(cx.now())
        .with_model(turn.requested.as_deref().map(str::to_owned));
    cx.emit(Event::Usage(Box::new(row)));
}

/// Returns the answer about one tool use of an interrupted step. At least one tool use of this step waits for a
/// decision on whether its tool runs again. The pause has the id `again`, so a late copy of the decision that has started
/// the tool does not start it again.
fn answer_again(
    slot: &ToolUseSlot,
    uncertain: Option<&UncertainUse>,
    again: ToolUseId,
    turn: &Turn,
    now: Timestamp,
) -> DecisionOrPause {
    // The result states the input with which the tool ran. The input is not part of a provided result.
    let mut decided = slot.decided.clone();
    if let (Some(own), Some(input)) = (&mut decided, &slot.input) {
        own.decision.input = Some(input.clone());
    }
    if let Some(result) = slot.result.as_ref().filter(|_| !slot.is_open) {
        return DecisionOrPause::Decided(Decision::Provide(result.clone()), decided);
    }
    let Some(own) = uncertain.filter(|own| own.replay == Replay::Never) else {
        return DecisionOrPause::Decided(
            slot.input.clone().map_or(Decision::Execute, Decision::ExecuteWith),
            decided,
        );
    };
    match own.on_uncertain {
        OnUncertain::Report => DecisionOrPause::Decided(
            Decision::Provide(ToolResult::error(&slot.tool_use, UNCERTAIN)),
            Some(Box::new(ToolUseDecisionDetails::cut_off(decided, now))),
        ),
        OnUncertain::Ask => {
            let pause = PendingUse::new(turn.id, ToolUse { id: again, ..ToolUse::clone(&own.tool_use) });
            let pause = pause.with_asked_by(slot.tool_use.id.clone());
            let reason = json!({ "uncertain": { "idempotency_key": &*own.idempotency_key } });
            let pause = pause.with_input_replaced(slot.input.is_some()).with_reason(reason);
            DecisionOrPause::Waits(Arc::new(pause), decided)
        }
    }
}

/// Emits again the start and the end of each tool of a step, which subscribers expect before the results.
fn emit_runs(slots: &[ToolUseSlot], cx: &mut CoreInputContext<'_>) {
    for slot in slots.iter().filter(|slot| slot.has_started()) {
        let tool_use_id = slot.tool_use.id.clone();
        cx.emit(Event::ToolStart { tool_use_id: tool_use_id.clone(), input: slot.input.clone() });
        if let Some(result) = &slot.result {
            cx.emit(Event::ToolEnd { tool_use_id, is_error: result.is_error });
        }
    }
}

//! How turns and runs end: by conclusion, failure, cancel or interrupt.

use std::{sync::Arc, time::Duration};

use super::{
    AgentCore, AgentEffect, CallbackCall, CoreInputContext, add_message, callback_failure,
    recovery::UNCERTAIN,
    response::{StructuredOutputResult, conclusion, discarded, parse_output, respond},
    spending::emit_partial_usage,
    streaming::{close_tool_uses, end_event},
    tools::decided_result,
};
use crate::{
    agent::{
        ErrorDecision, Event, Failure, Response, RunOutcome, Status, TurnDecision,
        phase::{
            AfterEventCallback, AgentPhase, AgentTurnStage, AskTurnResponses, DecisionOrPause, NextTurnOfRun,
            OpNumber, ProposedTurnEnd, ToolUseDecisionDetails, ToolUseSlot, Turn, UnfinishedStep, in_stage,
        },
    },
    message::{ClearingReason, Message, RequestEnd, Role, ToolResult, answer_open_tool_uses, cleared},
    provider::{Fold, StopReason},
    run::Error,
    tool::Decision,
};

/// The result that the caller of `ask` gets.
type AskResult = Result<Arc<Response>, Error>;

impl AgentCore {
    /// Calls `handle_turn` for a turn whose model needs no more tools. `read` is the output that was read from the last
    /// response.
    pub(super) fn conclude(
        &mut self,
        turn: Box<Turn>,
        reason: StopReason,
        read: Option<StructuredOutputResult>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let end =
            ProposedTurnEnd { stop_reason: reason, output: read, open: Vec::new(), decided: Vec::new() };
        self.ask_handle_turn(turn, Box::new(end), cx);
    }

    /// Calls `handle_turn`.
    pub(super) fn ask_handle_turn(
        &mut self,
        turn: Box<Turn>,
        end: Box<ProposedTurnEnd>,
        cx: &mut CoreInputContext<'_>,
    ) {
        cx.record_soon(turn.recorded);
        let response = conclusion(&turn, &end, cx.config);
        let op = self.enter(turn, AgentTurnStage::Concluding { end });
        cx.push(AgentEffect::Call(op, CallbackCall::HandleTurn(Arc::new(response))));
    }

    /// Called when `handle_turn` has returned. Commits the turn and starts the next turn, if there is one.
    pub(in crate::agent) fn turn_decided(
        &mut self,
        op: OpNumber,
        decision: TurnDecision,
        cx: &mut CoreInputContext<'_>,
    ) {
        let concluding = in_stage!(AgentTurnStage::Concluding { end } => end);
        let Some((mut turn, end)) = self.phase.take_awaited(op, concluding) else {
            return;
        };
        let mut response = Arc::new(conclusion(&turn, &end, cx.config));
        let mut next = match decision {
            TurnDecision::Stop => None,
            TurnDecision::Continue(content) => Some(content),
        };
        if turn.is_exhausted() && next.take().is_some() && self.staged.is_empty() {
            Arc::make_mut(&mut response).stop_reason = StopReason::MaxSteps;
        }
        if let (Some(content), true) = (&next, self.staged.is_empty()) {
            let checked = if content.is_blank() {
                Err("handle_turn returned a continuation without content".to_owned())
            } else {
                answer_open_tool_uses(turn.working.all(), content.clone())
                    .map(|_| ())
                    .map_err(|e| e.to_string())
            };
            if let Err(message) = checked {
                let failure = callback_failure(CallbackCall::HandleTurn(response).name(), message);
                self.enter(turn, AgentTurnStage::Preparing);
                return self.end_in_error(failure, cx);
            }
        }

        self.keep_decided(&mut turn, &mut response);
        self.keep_end(&mut turn, &mut response);
        self.commit(&turn);
        let recorded = turn.recorded;
        if let Some(asked) = &mut turn.origin.asked {
            asked.add(&response);
        }
        let used = turn.spent();
        turn.origin.spent += used;
        turn.join_calls(|_| false);
        cx.push(AgentEffect::Watch(None));
        if self.staged.is_empty() && next.is_none() {
            if !self.compact_after(&turn, &response, cx) {
                self.end_committed(&turn, None, response, cx);
            }
            return;
        }
        let stop_reason = response.stop_reason.clone();
        if !self.staged.is_empty() {
            self.end_prompts(&RunOutcome::Stopped { stop_reason: stop_reason.clone() }, cx);
        }
        if recorded {
            cx.push(AgentEffect::Record);
        }
        cx.emit(Event::Turn { response, continues: true });
        let Turn { origin, step, .. } = *turn;
        let content = next.unwrap_or_default();
        let turn = (cx.turn_id)();
        self.continue_run(Box::new(NextTurnOfRun { content, origin, step, stop_reason, turn, recorded }), cx);
    }

    /// Makes the turn's messages part of the history.
    pub(super) fn commit(&mut self, turn: &Turn) {
        self.history = turn.working.all().clone();
        self.counted_by.clone_from(&turn.counted_by);
        (self.fallback, self.lives) = (None, 0);
        self.step = turn.step;
    }

    /// Ends the run, whose last turn is committed: with `failure` if there is one.
    fn end_committed(
        &mut self,
        turn: &Turn,
        failure: Option<Failure>,
        response: Arc<Response>,
        cx: &mut CoreInputContext<'_>,
    ) {
        self.emit_status(Status::Idle, cx);
        let kept = turn.origin.asked.as_ref().and_then(AskTurnResponses::response);
        let (event, answer) = match failure {
            None => (Event::Turn { response, continues: false }, kept.map(Ok)),
            Some(failure) => {
                let error = kept.map(|kept| Err(Error::failed(failure.clone(), kept)));
                (Event::Error { failure, response, committed: true }, error)
            }
        };
        self.end_run(event, turn.recorded, cx);
        if let Some(answer) = answer {
            cx.hold_back(turn.recorded, AgentEffect::Resolve(answer));
        }
        self.settle(cx);
    }

    /// Called when `handle_error` has returned.
    pub(in crate::agent) fn error_decided(
        &mut self,
        op: OpNumber,
        decision: ErrorDecision,
        cx: &mut CoreInputContext<'_>,
    ) {
        let failing = in_stage!(AgentTurnStage::Failing { failure, remains } => (failure, *remains));
        let Some((mut turn, (failure, remains))) = self.phase.take_awaited(op, failing) else {
            return;
        };
        let delay = match decision {
            ErrorDecision::Stop => return self.fail(turn, failure, remains, cx),
            ErrorDecision::Discard => {
                self.enter(
                    turn,
                    AgentTurnStage::Failing { failure: failure.clone(), remains: Box::new(remains) },
                );
                return self.end_in_error(failure, cx);
            }
            ErrorDecision::Retry => Duration::ZERO,
            ErrorDecision::RetryAfter(delay) => delay,
        };
        if turn.is_exhausted() {
            return self.fail(turn, failure, remains, cx);
        }
        if !remains.has_run() {
            return self.repeat(turn, failure, remains.partial, delay, None, cx);
        }
        // Only the time limit cuts a step whose tools have started. Its repetition would run these tools again.
        let results = cut_results(&turn, remains, None, cx);
        let emitted = results.len();
        self.end_step(&mut turn, results, emitted, cx);
        self.prepare_after(turn, matches!(failure, Failure::TimeLimit { .. }), delay, cx);
    }

    /// Repeats the step after `delay`, without its partial response. `model` is the name of the model, if it is another
    /// one.
    pub(super) fn repeat(
        &mut self,
        mut turn: Box<Turn>,
        failure: Failure,
        partial: Option<Box<Fold>>,
        delay: Duration,
        model: Option<Arc<str>>,
        cx: &mut CoreInputContext<'_>,
    ) {
        // The partial response is discarded, but its usage counts.
        if let Some(partial) = partial {
            turn.usage += partial.usage();
            emit_partial_usage(&turn, &partial, RequestEnd::Void, cx);
        }
        turn.step += 1;
        turn.answer = None;
        turn.uncertain = Vec::new();
        let pending = turn.step_start;
        let complete = turn.working.pending_len() > pending;
        turn.working.rebase(&self.history, pending);
        let is_late = matches!(failure, Failure::TimeLimit { .. });
        cx.emit(Event::Retry { failure, delay, pending, complete, step: turn.step, model });
        self.prepare_after(turn, is_late, delay, cx);
    }

    /// Prepares the next request after `delay`. If the turn is late, because it has reached its time limit, its time begins
    /// again.
    fn prepare_after(
        &mut self,
        turn: Box<Turn>,
        is_late: bool,
        delay: Duration,
        cx: &mut CoreInputContext<'_>,
    ) {
        if is_late {
            cx.push(AgentEffect::Watch(turn.origin.prompt.turn_timeout.or(cx.config.settings.turn_timeout)));
        }
        if delay.is_zero() {
            return self.prepare(turn, cx);
        }
        cx.record_soon(turn.recorded);
        let until = cx.now().after(delay);
        let op = self.enter(turn, AgentTurnStage::Delaying { delay, until });
        cx.push(AgentEffect::Delay(op, delay));
    }

    /// Called when the delay before a repetition has passed.
    pub(in crate::agent) fn delay_over(&mut self, op: OpNumber, cx: &mut CoreInputContext<'_>) {
        if let Some((turn, ())) =
            self.phase.take_awaited(op, in_stage!(AgentTurnStage::Delaying { .. } => ()))
        {
            self.prepare(turn, cx);
        }
    }

    /// Called when the turn has reached its time limit.
    pub(in crate::agent) fn time_over(&mut self, limit: Duration, cx: &mut CoreInputContext<'_>) {
        let failure = Failure::TimeLimit { limit };
        if self.cut_compaction(Some(failure.clone()), RequestEnd::Failed, cx) {
            return;
        }
        self.cut_summary(RequestEnd::Failed, cx);
        let Some((mut turn, stage)) = self.phase.take_turn() else {
            return;
        };
        if let AgentTurnStage::Compacting { plan, .. } = &stage {
            turn.end_failed_compaction(plan, &failure, cx);
        }
        let already_failing = matches!(stage, AgentTurnStage::Failing { .. });
        let remains = stage.into_remains(&turn);
        cx.push(AgentEffect::Abort);
        if already_failing {
            self.fail(turn, failure, remains, cx);
        } else {
            // The turn's time limit also applies to `handle_error`, which may hang.
            cx.push(AgentEffect::Watch(Some(limit)));
            self.recover(turn, failure, remains, cx);
        }
    }

    /// Called when a callback panicked or returned an unusable value.
    pub(in crate::agent) fn call_failed(
        &mut self,
        op: OpNumber,
        callback: &'static str,
        message: String,
        cx: &mut CoreInputContext<'_>,
    ) {
        if self.phase.callback() != Some(op) {
            return;
        }
        cx.push(AgentEffect::Abort);
        self.end_in_error(callback_failure(callback, message), cx);
    }

    /// Ends the run with an error, and keeps as much of the turn as possible. If only the prompt could be kept, the
    /// turn is discarded. If a budget has refused a later request of the turn, the turn is complete and the run has not
    /// failed.
    pub(super) fn fail(
        &mut self,
        turn: Box<Turn>,
        failure: Failure,
        remains: UnfinishedStep,
        cx: &mut CoreInputContext<'_>,
    ) {
        self.enter(turn, AgentTurnStage::Failing { failure: failure.clone(), remains: Box::new(remains) });
        let (reason, failed) = match &failure {
            Failure::Budget { .. } => (StopReason::Budget, None),
            failed => (StopReason::Failed, Some(failed)),
        };
        if !self.keep(reason, failed, cx) {
            self.end_in_error(failure, cx);
        }
    }

    /// Ends all work in progress with an error, and discards the pending messages.
    pub(super) fn end_in_error(&mut self, failure: Failure, cx: &mut CoreInputContext<'_>) {
        self.discard(StopReason::Failed, cx, |response| {
            let error = Error::failed(failure.clone(), Arc::clone(&response));
            (Event::Error { failure, response, committed: false }, Err(error))
        });
    }

    /// Ends the run at once and discards the pending messages.
    pub(in crate::agent) fn cancel(&mut self, cx: &mut CoreInputContext<'_>) -> Result<(), Error> {
        match self.phase {
            // An application event whose `handle_event` has not begun is not cancelled. It stays queued.
            AgentPhase::Idle | AgentPhase::Noticing { begun: false, then: AfterEventCallback::Rest, .. } => {
                return Err(Error::idle());
            }
            // No run is active, so only the callback is dropped, together with its event.
            AgentPhase::Noticing { begun: true, then: AfterEventCallback::Rest, .. } => {
                cx.push(AgentEffect::Abort);
                self.phase = AgentPhase::Idle;
                self.settle(cx);
            }
            _ => {
                if !self.cut_compaction(None, RequestEnd::Cancelled, cx) {
                    self.cancel_run(StopReason::Cancelled, None, cx);
                }
            }
        }
        Ok(())
    }

    /// Cancels the active run. If `kept` is `Some`, the caller of `ask` gets that response.
    fn cancel_run(&mut self, reason: StopReason, kept: Option<Arc<Response>>, cx: &mut CoreInputContext<'_>) {
        cx.push(AgentEffect::Abort);
        self.discard(reason, cx, |response| {
            let answer = kept.ok_or_else(|| Error::cancelled(Arc::clone(&response)));
            (Event::Cancelled { response }, answer)
        });
    }

    /// Ends all work in progress without a commit. `end` returns an event and a result: the event is emitted, and the
    /// result is sent to the caller of `ask`.
    fn discard(
        &mut self,
        reason: StopReason,
        cx: &mut CoreInputContext<'_>,
        end: impl FnOnce(Arc<Response>) -> (Event, AskResult),
    ) {
        let (asked, recorded) = (self.phase.asked().is_some(), self.phase.is_recorded());
        let is_cancelled = reason == StopReason::Cancelled;
        let end_of_request = if is_cancelled { RequestEnd::Cancelled } else { RequestEnd::Failed };
        self.cut_summary(end_of_request, cx);
        let response = match self.phase.take_turn() {
            Some((turn, stage)) => {
                self.step = turn.step;
                let partial = stage.into_remains(&turn).partial;
                if let Some(partial) = &partial {
                    emit_partial_usage(&turn, partial, end_of_request, cx);
                }
                discarded(&turn, partial, reason, cx)
            }
            None => Response::empty(cx.config.model.id(), reason, self.step, self.runs),
        };
        let response = Arc::new(response);
        self.phase = AgentPhase::Idle;
        cx.push(AgentEffect::Watch(None));
        self.emit_status(Status::Idle, cx);
        let (event, answer) = end(response);
        self.end_run(event, recorded, cx);
        self.fall_back(cx);
        if asked {
            cx.hold_back(recorded, AgentEffect::Resolve(answer));
        }
        self.settle(cx);
    }

    /// Ends the run at once and keeps as much of the turn as possible. If only the prompt could be kept, the run is
    /// cancelled instead.
    pub(in crate::agent) fn interrupt(&mut self, cx: &mut CoreInputContext<'_>) -> Result<(), Error> {
        self.cut_short(StopReason::Interrupted, cx)
    }

    /// Ends the run as [`interrupt`](Self::interrupt) does, because it was restarted too often without progress.
    pub(super) fn abandon(&mut self, cx: &mut CoreInputContext<'_>) {
        // A run is in flight, so this succeeds.
        let _ = self.cut_short(StopReason::Abandoned, cx);
    }

    /// Ends the run at once and keeps as much of the turn as possible. `reason` is the stop reason of the kept turn.
    fn cut_short(&mut self, reason: StopReason, cx: &mut CoreInputContext<'_>) -> Result<(), Error> {
        if matches!(self.phase, AgentPhase::Idle) {
            return Err(Error::idle());
        }
        if self.cut_compaction(None, RequestEnd::Interrupted, cx) || self.keep(reason.clone(), None, cx) {
            return Ok(());
        }
        if self.is_at_rest() {
            return self.cancel(cx);
        }
        let kept = self.phase.asked().and_then(AskTurnResponses::response);
        let reason = if reason == StopReason::Interrupted { StopReason::Cancelled } else { reason };
        self.cancel_run(reason, kept, cx);
        Ok(())
    }

    /// Ends the run at once and commits as much of the turn as possible. `reason` is the stop reason of the kept turn.
    /// `failure` is set if the run fails. If only the prompt could be kept, returns `false` and changes nothing.
    fn keep(&mut self, reason: StopReason, failure: Option<&Failure>, cx: &mut CoreInputContext<'_>) -> bool {
        let salvaged = self.phase.partial().and_then(|fold| fold.clone().salvage(cx.now()));
        let has_more = self.phase.turn().is_some_and(|turn| turn.working.own_len() > 1);
        if !has_more && salvaged.is_none() {
            return false;
        }
        cx.effects.extend([AgentEffect::Abort, AgentEffect::Watch(None)]);
        let end_of_request = if failure.is_some() { RequestEnd::Failed } else { RequestEnd::Interrupted };
        self.cut_summary(end_of_request, cx);
        let Some((mut turn, stage)) = self.phase.take_turn() else {
            unreachable!("a turn is in flight, as checked above");
        };
        let mut remains = stage.into_remains(&turn);
        let is_refused = turn.refused && !remains.has_begun();
        let partial = remains.partial.take();
        if let Some(partial) = &partial {
            turn.usage += partial.usage();
            emit_partial_usage(&turn, partial, end_of_request, cx);
        }
        if salvaged.is_none() {
            self.leave_step(&mut turn);
            if is_refused {
                self.clear_results(&mut turn);
            }
        }
        if let (Some(fold), Some(mut message)) = (partial, salvaged) {
            message.id = turn.answer.take();
            emit_ends(&fold, &message, cx);
            add_message(&mut turn, message, cx);
        }
        if turn.working.all().open_tool_uses().next().is_some() {
            let results = cut_results(&turn, remains, failure, cx);
            let emitted = results.len();
            close_tool_uses(&mut turn, results, emitted, cx);
        }
        let mut response = respond(&turn, reason, cx.config);
        if failure.is_none() {
            parse_output(&mut response, &turn);
        }
        let mut response = Arc::new(response);
        self.keep_end(&mut turn, &mut response);
        self.commit(&turn);
        if let Some(asked) = &mut turn.origin.asked {
            asked.add(&response);
        }
        self.end_committed(&turn, failure.cloned(), response, cx);
        true
    }

    /// Clears the results of the last step, because a service has refused the request with them. Otherwise, the service
    /// would refuse all later requests too.
    fn clear_results(&self, turn: &mut Turn) {
        if let Some(last) = turn.working.last().filter(|last| last.role == Role::User) {
            let cleared = cleared(last, ClearingReason::Refusal);
            turn.working.replace_last(&self.history, Arc::new(cleared));
        }
    }
}

pub(super) const NOT_RUN: &str = "The tool was not run.";
const RUNNING: &str = "Interrupted while the tool was running. It may have had an effect.";

/// Returns the texts of the results for a tool that was not run, and for one that was running.
fn texts(failure: Option<&Failure>) -> (String, String) {
    match failure.map(Failure::summary) {
        None => (format!("Interrupted. {NOT_RUN}"), RUNNING.to_owned()),
        Some(failure) => (
            format!("The run failed ({failure}). {NOT_RUN}"),
            format!("The run failed while the tool was running ({failure}). It may have had an effect."),
        ),
    }
}

/// Returns the results of a step that is cut short, one for each open tool use, and emits the results that subscribers have
/// not seen. `failure` is `None` after an interrupt, and if the run continues. Existing results are kept, because the tool
/// has already had its effect or the application gave the result.
fn cut_results(
    turn: &Turn,
    remains: UnfinishedStep,
    failure: Option<&Failure>,
    cx: &mut CoreInputContext<'_>,
) -> Vec<ToolResult> {
    let UnfinishedStep { answers, slots, reviewed: mut results, .. } = remains;
    let (mut answers, mut slots) = (answers.into_iter(), slots.into_iter());
    let (not_run, running) = texts(failure);
    for (place, tool_use) in turn.working.all().open_tool_uses().enumerate() {
        let (answer, slot) = (answers.next(), slots.next());
        if place < results.len() {
            continue;
        }
        let is_uncertain = turn.uncertain.contains(&place);
        let has_started = slot.as_ref().is_some_and(|slot| !slot.queued && !slot.is_open);
        let (result, input, decided) = match (slot, answer) {
            // As below: the decision contains the input of the earlier call.
            (Some(ToolUseSlot { queued: true, decided, .. }), _) if is_uncertain => (None, None, decided),
            (Some(ToolUseSlot { is_open: true, input, decided, .. }), _) => (None, input, decided),
            (Some(ToolUseSlot { result, input, decided, .. }), _) => (result, input, decided),
            // The decision contains the input with which the tool may have run before the restart.
            (None, Some(DecisionOrPause::Decided(Decision::ExecuteWith(_), decided))) if is_uncertain => {
                (None, None, decided)
            }
            (None, Some(DecisionOrPause::Decided(Decision::ExecuteWith(input), decided))) => {
                (None, Some(input), decided)
            }
            // The result of a concluded step already states its decision.
            (None, Some(DecisionOrPause::Decided(Decision::Provide(result), None))) => {
                let decision = result.decision.clone();
                (Some(ToolResult { decision, ..result.answering(tool_use) }), None, None)
            }
            (None, Some(DecisionOrPause::Decided(decision, decided))) => {
                (decided_result(tool_use, decision), None, decided)
            }
            (None, Some(DecisionOrPause::Waits(_, earlier))) => (None, None, earlier),
            (None, None) => (None, None, None),
        };
        let text = match has_started {
            true => &running,
            false if is_uncertain => UNCERTAIN,
            false => &not_run,
        };
        let ran = has_started || is_uncertain || result.is_some();
        let decided = if result.is_some() {
            decided
        } else {
            Some(Box::new(ToolUseDecisionDetails::cut_off(decided, cx.now())))
        };
        let result = result.unwrap_or_else(|| ToolResult::error(tool_use, text));
        let result = ToolUseDecisionDetails::state(decided, result, tool_use, input.clone(), ran);
        let input = input.filter(|_| has_started);
        cx.emit(Event::ToolResult { result: Box::new(result.clone()), input });
        results.push(result);
    }
    results
}

/// Emits the missing end events of the blocks that are kept from an interrupted response.
fn emit_ends(fold: &Fold, kept: &Message, cx: &mut CoreInputContext<'_>) {
    let places = (0..).zip(fold.blocks()).filter(|(_, block)| (*block).clone().salvage().is_some());
    for ((index, block), content) in places.zip(&kept.content) {
        if !block.ended {
            cx.effects.extend(end_event(index, content).map(AgentEffect::Emit));
        }
    }
}

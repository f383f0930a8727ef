//! The processing of tool uses, from the response to the message with the results.

use std::{fmt::Write, sync::Arc};

use serde_json::Value;

use super::{
    AgentCore, AgentEffect, CallbackCall, CoreInputContext,
    pauses::{NEEDS_APPROVAL, answer, answer_provider, problem_of},
    streaming::close_tool_uses,
};
use crate::{
    agent::{
        Decided, Durable, Event, PendingUse, Response, ToolDecision,
        phase::{
            AgentPhase, AgentTurnStage, DecisionOrPause, DispatchedToolCall, OpNumber, ProposedTurnEnd,
            RunningToolQuestion, StepToolUses, ToolUseDecisionDetails, ToolUseSlot, Turn, in_stage,
        },
    },
    message::{Content, DecisionKind, Message, Role, ToolResult, ToolUse, TurnId},
    provider::{Fold, StopReason},
    tool::{Decision, Replay},
};

/// The result of a tool use that stays open, if the step is cut short before the turn ends.
const LEFT_OPEN: &str = "No result: the step was cut short before the tool could be left to the application.";

impl AgentCore {
    /// Starts processing the tool uses of a response.
    pub(super) fn decide(&mut self, turn: Box<Turn>, uses: Vec<ToolUse>, cx: &mut CoreInputContext<'_>) {
        self.decide_next(turn, Box::new(StepToolUses { uses, answers: Vec::new(), early: Vec::new() }), cx);
    }

    /// Asks `handle_tool_use` about the next tool use. After the last tool use, the agent pauses if the callback left a
    /// decision to the application. Otherwise, the step continues with the decisions.
    pub(super) fn decide_next(
        &mut self,
        turn: Box<Turn>,
        tools: Box<StepToolUses>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let Some(tool_use) = tools.next().cloned() else {
            return self.answered_all(turn, tools, cx);
        };
        let op = self.enter(turn, AgentTurnStage::Deciding { tools });
        cx.push(AgentEffect::Call(op, CallbackCall::HandleToolUse(Box::new(tool_use))));
    }

    /// Called when `handle_tool_use` has returned, for a tool use of the response or for a question of the provider.
    pub(in crate::agent) fn tool_decided(
        &mut self,
        op: OpNumber,
        decision: ToolDecision,
        cx: &mut CoreInputContext<'_>,
    ) {
        if let Some(problem) = problem_of(&decision) {
            return self.call_failed(op, CallbackCall::HANDLE_TOOL_USE, problem, cx);
        }
        let deciding = in_stage!(AgentTurnStage::Deciding { tools } => tools);
        let Some((turn, mut tools)) = self.phase.take_awaited(op, deciding) else {
            return self.question_decided(op, decision, cx);
        };
        let Some(tool_use) = tools.next() else {
            unreachable!("a decision was requested, so a tool use has none yet");
        };
        // A person can't usefully approve a call that its tool refuses. The model gets the reason at once.
        let waits = decision == ToolDecision::Execute && cx.requires_approval(&tool_use.name);
        let answer = match waits.then(|| cx.tools.refused_input(tool_use)).flatten() {
            Some(result) => DecisionOrPause::Decided(Decision::Provide(result), None),
            None => answer(decision, tool_use, &turn, cx),
        };
        tools.answers.push(answer);
        self.decide_next(turn, tools, cx);
    }

    /// Called when `handle_tool_use` has returned for a question of the provider.
    fn question_decided(&mut self, op: OpNumber, decision: ToolDecision, cx: &mut CoreInputContext<'_>) {
        let AgentPhase::InTurn { turn, stage: AgentTurnStage::Streaming { question, .. }, .. } =
            &mut self.phase
        else {
            return;
        };
        let Some(asked) = question.as_mut().filter(|asked| asked.op == op && asked.paused.is_none()) else {
            return;
        };
        match answer(decision, &asked.tool_use, turn, cx) {
            DecisionOrPause::Decided(decision, _) => {
                *question = None;
                answer_provider(turn, decision, cx);
            }
            DecisionOrPause::Waits(mut pause, _) => {
                Arc::make_mut(&mut pause).survives = false;
                asked.paused = Some(pause);
                cx.record_soon(turn.recorded);
                self.pause(cx);
            }
        }
    }

    /// Called when each tool use of the step has an answer. If some of them wait for decisions, the agent pauses.
    /// Otherwise, the decisions are carried out.
    pub(super) fn answered_all(
        &mut self,
        mut turn: Box<Turn>,
        tools: Box<StepToolUses>,
        cx: &mut CoreInputContext<'_>,
    ) {
        if tools.pauses().next().is_some() {
            if cx.records >= Durable::Approvals {
                turn.recorded = true;
            }
            if !turn.recorded {
                return self.wait(turn, tools, cx);
            }
            // Whoever reads the store sees these ids from now on, so no later tool use of the turn may have them.
            self.waited.add_all(tools.pauses(), &mut turn);
            let op = self.enter(turn, AgentTurnStage::Deciding { tools });
            return cx.gate(true, AgentEffect::Return(op));
        }
        let StepToolUses { uses, answers, .. } = *tools;
        let decisions: Vec<_> = answers.into_iter().filter_map(DecisionOrPause::into_decision).collect();
        self.decided_all(turn, uses, decisions, cx);
    }

    /// Waits for the decisions about the tool uses that need one. Decisions that were made earlier are applied.
    pub(super) fn wait(
        &mut self,
        turn: Box<Turn>,
        mut tools: Box<StepToolUses>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let early = std::mem::take(&mut tools.early);
        self.enter(turn, AgentTurnStage::Paused { tools });
        self.pause(cx);
        self.decide_waiting(early, cx);
    }

    /// Called when the pause is stored, so that it can be reported.
    pub(in crate::agent) fn paused(&mut self, op: OpNumber, cx: &mut CoreInputContext<'_>) {
        if let Some((turn, tools)) =
            self.phase.take_awaited(op, in_stage!(AgentTurnStage::Deciding { tools } => tools))
        {
            self.wait(turn, tools, cx);
        }
    }

    fn decided_all(
        &mut self,
        turn: Box<Turn>,
        uses: Vec<ToolUse>,
        decisions: Vec<(Decision, Option<Box<ToolUseDecisionDetails>>)>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let has_no_handler = |tool_use: &ToolUse, (decision, _): &(Decision, _)| {
            matches!(decision, Decision::Execute | Decision::ExecuteWith(_))
                && cx.tools.is_only_declared(&tool_use.name)
        };
        let is_open: Vec<_> = uses
            .iter()
            .zip(&decisions)
            .map(|(tool_use, decision)| has_no_handler(tool_use, decision))
            .collect();
        if is_open.contains(&true) && !turn.origin.prompt.mixed_steps {
            return self.leave_to_application(turn, uses, decisions, cx);
        }
        let mut slots = Vec::with_capacity(uses.len());
        for ((tool_use, (decision, decided)), is_open) in uses.into_iter().zip(decisions).zip(is_open) {
            let (input, result) = match decision {
                Decision::Execute => (None, None),
                Decision::ExecuteWith(input) => {
                    let changed = ToolUse { input, malformed: None, ..tool_use.clone() };
                    let refused = cx.tools.refused_input(&changed);
                    (Some(changed.input), refused)
                }
                other => (None, decided_result(&tool_use, other)),
            };
            let result = result.or_else(|| is_open.then(|| ToolResult::error(&tool_use, LEFT_OPEN)));
            let replay = cx.tools.replay(&tool_use.name);
            let runs = result.is_none();
            let slot = ToolUseSlot {
                tool_use,
                input,
                decided,
                runs,
                queued: runs,
                asked: 0,
                replay,
                is_open,
                waits: false,
                result,
            };
            slots.push(slot);
        }
        let calls = start(&mut slots, &[], &turn, cx);
        self.run_tools(turn, slots, calls, cx);
        self.decided = self.last_op;
    }

    /// Returns the tool uses of a step whose tools do not start any more, because the turn is left to another process. If
    /// a decision was made about a tool use that had waited, this tool use waits again, together with its decision, as
    /// if the decision had been made while no process had the conversation open. Otherwise, `handle_tool_use` decides
    /// again.
    pub(super) fn withdrawn(&self) -> Option<StepToolUses> {
        let at = self.leaving_since?;
        let AgentPhase::InTurn { op, turn, stage: AgentTurnStage::Executing { slots, .. } } = &self.phase
        else {
            return None;
        };
        if *op != self.decided {
            return None;
        }
        // A repetition of an earlier step says nothing about a tool use that has the same id.
        let waited = |(place, slot): (usize, &ToolUseSlot)| {
            let id = self.waited.waited_as(&slot.tool_use.id)?;
            (*id == slot.tool_use.id || turn.uncertain.contains(&place)).then(|| (place, id.clone()))
        };
        let waited = slots.iter().enumerate().find_map(waited);
        let kept = match waited {
            Some(_) => slots.len(),
            None => slots.iter().position(|slot| slot.result.is_none())?,
        };
        let decision = |slot: &ToolUseSlot| match (&slot.result, &slot.input) {
            (Some(result), _) if !slot.is_open => Decision::Provide(result.clone()),
            (_, Some(input)) => Decision::ExecuteWith(input.clone()),
            (_, None) => Decision::Execute,
        };
        let answer = |slot: &ToolUseSlot| DecisionOrPause::Decided(decision(slot), slot.decided.clone());
        let mut answers: Vec<_> = slots[..kept].iter().map(answer).collect();
        let early = waited.map(|(place, id)| {
            let ToolUseSlot { tool_use, decided, result, .. } = &slots[place];
            let own = decided.as_deref().map(|own| &own.decision);
            let kind = own.map(|own| own.kind);
            let decision = match result {
                Some(result) if kind == Some(DecisionKind::Reject) => Decision::Reject(result.text()),
                _ => decision(&slots[place]),
            };
            let is_repetition = id != tool_use.id;
            let asked_by = is_repetition.then(|| tool_use.id.clone());
            let pause = PendingUse::new(turn.id, ToolUse { id: id.clone(), ..tool_use.clone() });
            let pause = PendingUse { asked_by, ..pause.with_reason(NEEDS_APPROVAL.into()) };
            let stands = decided.clone().map(|own| Box::new(ToolUseDecisionDetails { stands: true, ..*own }));
            answers[place] = DecisionOrPause::Waits(Arc::new(pause), stands);
            let (by, expired) = (own.and_then(|own| own.by.clone()), kind == Some(DecisionKind::Expired));
            let at = own.map_or(at, |own| own.at);
            Decided { turn: turn.id, tool_use_id: id, decision, by, expired, at }
        });
        let uses = slots.iter().map(|slot| slot.tool_use.clone()).collect();
        Some(StepToolUses { uses, answers, early: early.into_iter().collect() })
    }

    /// Runs the tools of a step. If the turn is recorded and one of the tools must not run twice, or only with its key,
    /// the tools start when the step is stored.
    pub(super) fn run_tools(
        &mut self,
        turn: Box<Turn>,
        slots: Vec<ToolUseSlot>,
        calls: Vec<DispatchedToolCall>,
        cx: &mut CoreInputContext<'_>,
    ) {
        if calls.is_empty() {
            return self.review_next(turn, slots, Vec::new(), cx);
        }
        let recorded = turn.recorded;
        let is_safe = are_safe(&calls, &slots);
        let op = self.enter(turn, AgentTurnStage::Executing { slots, questions: Vec::new() });
        let is_held = recorded && (!is_safe || self.leaving_since.is_some());
        cx.record_soon(recorded && is_safe);
        cx.gate(is_held, AgentEffect::RunTools(op, calls));
    }

    /// Starts the next tools of a step if fewer than the limit run.
    pub(super) fn start_queued(&mut self, cx: &mut CoreInputContext<'_>) {
        let AgentPhase::InTurn { op, turn, stage: AgentTurnStage::Executing { slots, questions } } =
            &mut self.phase
        else {
            return;
        };
        if self.leaving_since.is_some() {
            return;
        }
        let calls = start(slots, questions, turn, cx);
        if !calls.is_empty() {
            let is_safe = are_safe(&calls, slots);
            // The first tools of the step have started, so the step is not withdrawn any more.
            self.decided = 0;
            cx.record_soon(turn.recorded && is_safe);
            cx.gate(turn.recorded && !is_safe, AgentEffect::RunTools(*op, calls));
        }
    }

    /// Returns the stage in which the tools wait that were about to start when the turn was left to another process.
    pub(super) fn without_withheld(&self) -> Option<AgentTurnStage> {
        let mut stage = self.phase.stage().filter(|_| !self.withheld.is_empty())?.clone();
        let AgentTurnStage::Executing { slots, .. } = &mut stage else { return None };
        let withheld = |place: &usize| self.withheld.contains(place);
        let own = slots.iter_mut().enumerate().filter(|(place, _)| withheld(place));
        own.for_each(|(_, slot)| slot.queued = slot.is_running());
        Some(stage)
    }

    /// Ends the turn because tools have no handlers. The tools that have one have run: see
    /// [`Prompt::mixed_steps`](crate::run::Prompt::mixed_steps).
    fn leave_open(
        &mut self,
        mut turn: Box<Turn>,
        slots: Vec<ToolUseSlot>,
        reviewed: Vec<ToolResult>,
        cx: &mut CoreInputContext<'_>,
    ) {
        turn.uncertain = Vec::new();
        let (mut open, mut decided) = (Vec::new(), Vec::new());
        for (slot, result) in slots.into_iter().zip(reviewed) {
            match (slot.is_open, slot.input) {
                (false, _) => decided.push(result),
                (true, Some(input)) => open.push(ToolUse { input, malformed: None, ..slot.tool_use }),
                (true, None) => open.push(slot.tool_use),
            }
        }
        let end = ProposedTurnEnd { stop_reason: StopReason::ToolUse, output: None, open, decided };
        self.ask_handle_turn(turn, Box::new(end), cx);
    }

    /// Ends the turn because a tool has no handler. None of the step's tools are run.
    fn leave_to_application(
        &mut self,
        turn: Box<Turn>,
        uses: Vec<ToolUse>,
        decisions: Vec<(Decision, Option<Box<ToolUseDecisionDetails>>)>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let mut open = Vec::new();
        let mut decided = Vec::new();
        for (tool_use, (decision, own)) in uses.into_iter().zip(decisions) {
            if let Decision::ExecuteWith(input) = decision {
                open.push(ToolUse { input, malformed: None, ..tool_use });
                continue;
            }
            match decided_result(&tool_use, decision) {
                Some(result) => {
                    decided.push(ToolUseDecisionDetails::state(own, result, &tool_use, None, true));
                }
                None => open.push(tool_use),
            }
        }
        let end = ProposedTurnEnd { stop_reason: StopReason::ToolUse, output: None, open, decided };
        self.ask_handle_turn(turn, Box::new(end), cx);
    }

    /// Stores each decided result in its tool use. The tool uses are in the message that is about to be committed.
    pub(super) fn keep_decided(&self, turn: &mut Turn, response: &mut Arc<Response>) {
        let Some(answer) = turn.working.all().last().filter(|_| !response.decided.is_empty()) else {
            return;
        };
        let answer = with_decided(answer, &response.decided);
        self.replace_last(turn, response, answer);
    }

    /// States in the last message of a turn that is about to be committed why the turn ended, unless the model has
    /// finished or left tool uses open.
    pub(super) fn keep_end(&self, turn: &mut Turn, response: &mut Arc<Response>) {
        let reason = &response.stop_reason;
        let Some(last) = turn.working.last() else { return };
        if matches!(reason, StopReason::Stop | StopReason::ToolUse) || last.ended.as_deref() == Some(reason) {
            return;
        }
        let last = Message { ended: Some(Box::new(reason.clone())), ..Message::clone(last) };
        self.replace_last(turn, response, Arc::new(last));
    }

    /// Replaces the last message, apart from compactions, of a turn that is about to be committed.
    fn replace_last(&self, turn: &mut Turn, response: &mut Arc<Response>, message: Arc<Message>) {
        turn.working.replace_last(&self.history, Arc::clone(&message));
        let response = Arc::make_mut(response);
        if let Some(last) = response.messages.iter_mut().rfind(|last| last.compaction.is_none()) {
            *last = Arc::clone(&message);
        }
        if message.role == Role::Assistant {
            response.message = Some(message);
        }
    }

    /// Stores the result of a tool. Either the tool has finished, or its question was answered with a result, which ends
    /// the tool.
    pub(in crate::agent) fn tool_done(
        &mut self,
        op: OpNumber,
        slot: usize,
        result: ToolResult,
        cx: &mut CoreInputContext<'_>,
    ) {
        let Some((turn, AgentTurnStage::Executing { slots, questions })) = self.phase.awaited(op) else {
            return;
        };
        let recorded = turn.recorded;
        let Some(place) = slots.get_mut(slot).filter(|place| place.result.is_none() && !place.queued) else {
            return;
        };
        let is_safe = place.replay == Replay::Safe;
        let result = place.result.insert(answering(result, &place.tool_use));
        let ended = Event::ToolEnd { tool_use_id: result.tool_use_id.clone(), is_error: result.is_error };
        let all_ended = slots.iter().all(|slot| slot.result.is_some());
        if !questions.is_empty() {
            self.withdraw_questions(|question| question.slot == slot, cx);
        }
        cx.record_soon(recorded && is_safe);
        if recorded && !is_safe {
            cx.push(AgentEffect::Record);
        }
        cx.emit(ended);
        if !all_ended {
            return self.start_queued(cx);
        }
        if let Some((turn, AgentTurnStage::Executing { slots, .. })) = self.phase.take_turn() {
            self.review_next(turn, slots, Vec::new(), cx);
        }
    }

    pub(super) fn review_next(
        &mut self,
        mut turn: Box<Turn>,
        slots: Vec<ToolUseSlot>,
        mut reviewed: Vec<ToolResult>,
        cx: &mut CoreInputContext<'_>,
    ) {
        let is_first = reviewed.is_empty();
        let left = slots[reviewed.len()..].iter().take_while(|slot| slot.is_open);
        reviewed.extend(left.filter_map(|slot| slot.result.clone()));
        if let Some(result) = slots.get(reviewed.len()).and_then(|slot| slot.result.clone()) {
            // If a tool is not declared as safe to run twice, the results are reviewed only after they are stored.
            let is_held = turn.recorded && is_first && slots.iter().any(ToolUseSlot::is_unsafe_result);
            let op = self.enter(turn, AgentTurnStage::Reviewing { slots, reviewed });
            cx.hold_back(is_held, AgentEffect::Call(op, CallbackCall::HandleToolResult(Box::new(result))));
            return;
        }
        if slots.iter().any(|slot| slot.is_open) {
            return self.leave_open(turn, slots, reviewed, cx);
        }
        let emitted = reviewed.len();
        if turn.origin.max_steps.is_some_and(|max| turn.step >= max) {
            // A callback has lowered the limit of requests since the response arrived. No further request may be made,
            // so the turn ends.
            close_tool_uses(&mut turn, reviewed, emitted, cx);
            return self.conclude(turn, StopReason::MaxSteps, None, cx);
        }
        self.next_step(turn, reviewed, emitted, cx);
    }

    /// Sends the results of the last message's tool uses to the model. The first `emitted` results were already emitted.
    pub(super) fn next_step(
        &mut self,
        mut turn: Box<Turn>,
        results: Vec<ToolResult>,
        emitted: usize,
        cx: &mut CoreInputContext<'_>,
    ) {
        self.end_step(&mut turn, results, emitted, cx);
        self.prepare(turn, cx);
    }

    /// Adds the results of the last message's tool uses, and the staged prompts that join the next step.
    pub(super) fn end_step(
        &mut self,
        turn: &mut Turn,
        results: Vec<ToolResult>,
        emitted: usize,
        cx: &mut CoreInputContext<'_>,
    ) {
        turn.step += 1;
        close_tool_uses(turn, results, emitted, cx);
        self.join_step(turn, cx);
    }

    /// Called when `handle_tool_result` has returned.
    pub(in crate::agent) fn result_reviewed(
        &mut self,
        op: OpNumber,
        result: ToolResult,
        cx: &mut CoreInputContext<'_>,
    ) {
        let reviewing = in_stage!(AgentTurnStage::Reviewing { slots, reviewed } => (slots, reviewed));
        let Some((turn, (mut slots, mut reviewed))) = self.phase.take_awaited(op, reviewing) else {
            return;
        };
        let Some(slot) = slots.get_mut(reviewed.len()) else {
            unreachable!("a result was reviewed, so it has a slot");
        };
        let (result, input) = (answering(result, &slot.tool_use), slot.input.take());
        // A tool that has refused its changed input has not run.
        let (decided, ran) = (slot.decided.take(), slot.runs || input.is_none());
        let result = ToolUseDecisionDetails::state(decided, result, &slot.tool_use, input.clone(), ran);
        slot.result = None;
        cx.emit(Event::ToolResult { result: Box::new(result.clone()), input });
        reviewed.push(result);
        self.review_next(turn, slots, reviewed, cx);
    }
}

/// Returns the result with the id and the name of its tool use. A result that is nested too deeply becomes an error,
/// because a store could not read it back.
fn answering(result: ToolResult, tool_use: &ToolUse) -> ToolResult {
    if result.is_shallow() {
        return result.answering(tool_use);
    }
    let limit = Fold::MAX_DEPTH;
    let text = format!(
        "The tool has run, but an attachment in its result has metadata of more than {limit} levels."
    );
    ToolResult::error(tool_use, text)
}

/// Marks the next tools of a step as started, in the order of their uses, until the limit of tools at once is reached.
/// Returns their calls. A tool with an open question leaves its place to another tool, because its answer can take long.
pub(super) fn start(
    slots: &mut [ToolUseSlot],
    questions: &[RunningToolQuestion],
    turn: &Turn,
    cx: &mut CoreInputContext<'_>,
) -> Vec<DispatchedToolCall> {
    let waits = |place: usize| questions.iter().any(|question| question.slot == place);
    let running =
        slots.iter().enumerate().filter(|(place, slot)| slot.is_running() && !waits(*place)).count();
    let free = cx.at_once.max(1).saturating_sub(running);
    let queued = slots.iter_mut().enumerate().filter(|(_, slot)| slot.queued).take(free);
    let mut calls = Vec::new();
    for (place, slot) in queued {
        slot.queued = false;
        let call = tool_call(turn, place, &slot.tool_use, slot.input.as_ref());
        cx.emit(Event::ToolStart { tool_use_id: call.tool_use.id.clone(), input: slot.input.clone() });
        calls.push(call);
    }
    calls
}

/// Returns whether each of the calls may be repeated.
fn are_safe(calls: &[DispatchedToolCall], slots: &[ToolUseSlot]) -> bool {
    calls.iter().all(|call| slots[call.slot].replay == Replay::Safe)
}

/// Returns the call of the tool in this slot. All calls of one slot have the same idempotency key.
pub(super) fn tool_call(
    turn: &Turn,
    slot: usize,
    tool_use: &ToolUse,
    input: Option<&Value>,
) -> DispatchedToolCall {
    let tool_use = match input {
        Some(input) => ToolUse { input: input.clone(), malformed: None, ..tool_use.clone() },
        None => tool_use.clone(),
    };
    let is_repeated = turn.uncertain.contains(&slot);
    let idempotency_key = idempotency_key(turn.id, turn.step, slot).into();
    DispatchedToolCall { slot, tool_use, idempotency_key, is_repeated }
}

/// Returns the idempotency key of the call in a slot of a step.
pub(super) fn idempotency_key(turn: TurnId, step: u32, slot: usize) -> String {
    let mut key = String::with_capacity(48);
    // Writing to a string never fails.
    let _ = write!(key, "{turn}-{step}-{slot}");
    key
}

/// Returns the message with each decided result stored in its tool use.
fn with_decided(answer: &Message, decided: &[ToolResult]) -> Arc<Message> {
    let mut answer = answer.clone();
    for block in &mut answer.content {
        if let Content::ToolUse(tool_use) = block {
            let own = decided.iter().find(|result| result.tool_use_id == tool_use.id);
            tool_use.decided = own.cloned().map(Box::new);
        }
    }
    Arc::new(answer)
}

/// Returns the result of a decision that does not run the tool.
pub(super) fn decided_result(tool_use: &ToolUse, decision: Decision) -> Option<ToolResult> {
    match decision {
        Decision::Execute | Decision::ExecuteWith(_) => None,
        Decision::Reject(reason) => Some(ToolResult::error(tool_use, reason)),
        Decision::Provide(result) => Some(result.answering(tool_use)),
    }
}

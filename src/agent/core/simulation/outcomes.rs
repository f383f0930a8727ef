//! Random outcomes of the work in progress.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{Check, budgets::random_budget, commands::random_decision, ensure, model::Input, world::World};
use crate::{
    agent::{
        ErrorDecision, Failure, Prompt, Status, ToolDecision, TurnDecision,
        core::CallbackCall,
        phase::{AgentTurnStage, OpNumber},
    },
    message::{Blocks, DecisionKind, Text, Timestamp, ToolResult, ToolUse, UseDecision},
    tool::{Decision, Replay},
};

impl World {
    pub(super) fn has_outcome(&self) -> bool {
        let is_busy = self.call.is_some() || self.stream.is_some() || self.tasks.is_some();
        is_busy || self.delay.is_some() || self.held.is_some()
    }

    /// Finishes or advances a random part of the work in progress.
    pub(super) fn outcome(&mut self) -> Check {
        if let Some((limit, false)) = self.watch
            && !self.friendly
            && self.rng.percent(3)
        {
            self.note(|| "time over".to_owned());
            self.watch = None;
            if matches!(self.core.phase().stage(), Some(AgentTurnStage::Failing { .. })) {
                self.model.failure = Some(Failure::TimeLimit { limit });
                self.model.input = Input::GivesUp;
            }
            return self.input(|core, cx| core.time_over(limit, cx));
        }
        if !self.expiries.is_empty() && self.rng.percent(if self.friendly { 50 } else { 5 }) {
            return self.expires();
        }
        if self.friendly && !self.model.pauses.waiting.is_empty() {
            return self.resume();
        }
        if let Some(effect) = self.held.take() {
            self.note(|| format!("stored, so {effect:?}"));
            return self.perform_all(vec![effect]);
        }
        // While the provider waits for an answer, a callback and a stream run concurrently, so choose at random which
        // of them continues first.
        let stream_first = self.rng.percent(50);
        if self.stream.is_some() && (self.call.is_none() || stream_first) {
            return self.stream_outcome();
        }
        if let Some((op, call)) = self.call.take() {
            if matches!(call, CallbackCall::HandleEvent) && !self.begun {
                self.call = Some((op, call));
                return self.event_begins(op);
            }
            return self.returned(op, call);
        }
        if self.tasks.is_some() {
            return self.tool_outcome();
        }
        let op =
            self.delay.take().ok_or_else(|| format!("nothing is in progress at {:?}", self.core.phase()))?;
        self.note(|| "delay over".to_owned());
        self.input(|core, cx| core.delay_over(op, cx))
    }

    fn tool_outcome(&mut self) -> Check {
        if !self.friendly && self.rng.percent(40) {
            return self.tool_asks();
        }
        let (op, mut calls) = self.tasks.take().ok_or("no tool runs")?;
        let index = self.rng.below(calls.len());
        let call = calls.swap_remove(index);
        if !calls.is_empty() {
            self.tasks = Some((op, calls));
        }
        let other = ToolUse::new("other", "other", json!({}));
        let tool_use = if self.rng.percent(10) { &other } else { &call.tool_use };
        let long = if self.rng.percent(30) { "!".repeat(600) } else { String::new() };
        let text = Text::new(format!("done at {}{long}", self.rng.below(1000)));
        let result = if self.rng.percent(20) {
            ToolResult::error(tool_use, text.text)
        } else {
            ToolResult::ok(tool_use, text)
        };
        self.note(|| format!("tool done {} {result:?}", call.slot));
        self.desk.done(call.slot, &result);
        self.model.pauses.withdrawing = self.questions.end(call.slot);
        self.input(|core, cx| core.tool_done(op, call.slot, result, cx))
    }

    /// Lets a callback return or fail.
    fn returned(&mut self, op: OpNumber, call: CallbackCall) -> Check {
        if !self.friendly && self.rng.percent(self.panics) {
            self.note(|| format!("{} panics", call.name()));
            if matches!(call, CallbackCall::HandleEvent) {
                self.model.input = Input::EventFails;
            }
            return self.input(|core, cx| core.call_failed(op, call.name(), "boom".into(), cx));
        }
        let model = self.core.phase().turn().map(|turn| Arc::clone(turn.model_in(&self.config).id()));
        self.edit();
        match call {
            CallbackCall::PrepareStep if !self.friendly && self.rng.percent(3) => {
                self.note(|| "preparing the request fails".to_owned());
                let failure = Failure::ProviderPanicked { message: "boom".into() };
                self.input(|core, cx| core.stream_failed(op, failure, cx))
            }
            CallbackCall::PrepareStep => {
                let wanted = self.random_wanted();
                self.note(|| format!("prepared, wanted: {wanted:?}"));
                self.model.prepared(wanted.clone());
                let model = model.ok_or("a step without a turn")?;
                let replay = self.rng.pick(&[Replay::Safe, Replay::Safe, Replay::Never]);
                let turn = self.model.turn()?;
                turn.refused &= turn.requested == model;
                (turn.requested, turn.replay) = (Arc::clone(&model), replay);
                self.input(|core, cx| core.prepared(op, wanted, model, replay, cx))
            }
            CallbackCall::HandleToolUse(tool_use) => self.tool_decided(op, *tool_use),
            CallbackCall::HandleToolResult(result) => self.result_reviewed(op, *result),
            CallbackCall::HandleRecovery(_) => Err("a recovery without a restart".to_owned()),
            CallbackCall::HandleTurn(_) => self.turn_decided(op),
            CallbackCall::HandleError(_) => {
                let decision = match self.rng.below(10) {
                    _ if self.friendly => ErrorDecision::Stop,
                    0..2 => ErrorDecision::Stop,
                    2 => ErrorDecision::Discard,
                    3..6 => ErrorDecision::Retry,
                    6 => ErrorDecision::RetryAfter(Duration::ZERO),
                    _ => ErrorDecision::RetryAfter(Duration::from_secs(1)),
                };
                self.note(|| format!("handle_error: {decision:?}"));
                let retries = matches!(decision, ErrorDecision::Retry | ErrorDecision::RetryAfter(_));
                self.retry_after = match decision {
                    ErrorDecision::RetryAfter(delay) => Some(delay).filter(|delay| !delay.is_zero()),
                    _ => None,
                };
                let timed_out = matches!(self.model.failure, Some(Failure::TimeLimit { .. }));
                let (limit, step) = (self.model.limit, self.model.step);
                let goes_on = retries && limit.is_none_or(|limit| step < limit);
                if !goes_on {
                    let discards = decision == ErrorDecision::Discard;
                    self.model.input = if discards { Input::Discards } else { Input::GivesUp };
                } else if timed_out && self.desk.has_run() {
                    self.model.input = Input::EndsStep;
                }
                self.input(|core, cx| core.error_decided(op, decision, cx))?;
                ensure!(goes_on == self.model.is_running(), "a retry at {step} of {limit:?}: {decision:?}");
                ensure!(!timed_out || !goes_on || self.watch.is_some(), "the clock is not restarted");
                let delayed = self.retry_after.is_some() == self.delay.is_some();
                ensure!(!goes_on || delayed, "{decision:?}, delay {:?}", self.delay);
                Ok(())
            }
            CallbackCall::HandleEvent => {
                let prompt = (!self.friendly && self.rng.percent(40)).then(|| self.random_prompt());
                self.event_handled(op, prompt)
            }
        }
    }

    /// Edits the configuration as a callback does.
    fn edit(&mut self) {
        if self.friendly || !self.rng.percent(8) {
            return;
        }
        // Another model can have less room.
        if self.rng.percent(30) && !self.is_uncompacted {
            self.note(|| "another model".to_owned());
            self.core.set_model();
            self.model.named_for_run = None;
            self.config.model = super::world::model(self.rng.pick(&["model", "other"]));
            (self.model.backups.first, self.model.backups.place) = (Some(self.config.model.clone()), 0);
            self.kept.configured(&self.config);
        }
        if self.budgets.are_on && self.rng.percent(40) {
            let budget = random_budget(&mut self.rng);
            self.note(|| format!("another budget: {budget:?}"));
            self.core.set_budget();
            self.config.set_budget(budget);
        }
        let max_steps = self.rng.pick(&[None, Some(1), Some(2), Some(3), Some(5)]);
        if max_steps == self.config.settings.max_steps {
            return;
        }
        self.note(|| format!("max_steps: {max_steps:?}"));
        self.core.set_max_steps(max_steps);
        self.config.settings.max_steps = max_steps;
        self.model.limited(max_steps);
        self.kept.configured(&self.config);
    }

    fn tool_decided(&mut self, op: OpNumber, tool_use: ToolUse) -> Check {
        let decision = self.random_tool_decision();
        self.note(|| format!("handle_tool_use: {decision:?}"));
        self.model.pauses.replaced.remove(&tool_use.id);
        self.model.pauses.on_expiry.remove(&tool_use.id);
        let approved = !self.config.requires_approval(&tool_use.name);
        let is_deciding = matches!(self.core.phase().stage(), Some(AgentTurnStage::Deciding { .. }));
        let refused = || self.tools.refused_input(&tool_use).filter(|_| is_deciding).map(Decision::Provide);
        let decided = match decision.clone() {
            ToolDecision::Execute if approved => Some(Decision::Execute),
            ToolDecision::Execute => refused(),
            ToolDecision::ExecuteWith(input) => {
                self.model.pauses.replaced.insert(tool_use.id.clone(), input.clone());
                approved.then_some(Decision::ExecuteWith(input))
            }
            ToolDecision::Approve => Some(Decision::Execute),
            ToolDecision::Reject(reason) => Some(Decision::Reject(reason)),
            ToolDecision::Provide(result) => Some(Decision::Provide(result)),
            ToolDecision::Pause(_) => None,
            ToolDecision::PauseFor { on_expiry, .. } => {
                self.model.pauses.on_expiry.insert(tool_use.id.clone(), on_expiry);
                None
            }
        };
        let plain = decision == ToolDecision::Execute;
        if let Some(decision) = decided.clone().filter(|_| !plain) {
            self.model.pauses.decided.push_back((tool_use.id, decision, None, false));
        }
        if is_deciding {
            self.desk.decided(decided)?;
        } else {
            self.answer = decided;
        }
        self.input(|core, cx| core.tool_decided(op, decision, cx))
    }

    fn random_tool_decision(&mut self) -> ToolDecision {
        let pauses = !self.friendly && self.rng.percent(35);
        let reason = json!({ "reason": self.rng.below(100) });
        match self.rng.below(10) {
            0..7 if pauses => ToolDecision::Pause(reason),
            _ if pauses => {
                let on_expiry = random_decision(&mut self.rng);
                ToolDecision::PauseFor { reason, expires_in: Duration::from_mins(1), on_expiry }
            }
            0 => ToolDecision::Approve,
            _ => random_decision(&mut self.rng).into(),
        }
    }

    /// Lets the time limit of a pause end.
    fn expires(&mut self) -> Check {
        let in_stream = matches!(self.core.phase().stage(), Some(AgentTurnStage::Streaming { .. }));
        let index = self.rng.below(self.expiries.len());
        let id = self.expiries.swap_remove(index);
        self.note(|| format!("the pause of {id} expires"));
        ensure!(
            self.model.pauses.waiting.contains(&id) || self.core.status() != Status::Idle,
            "a timer is left"
        );
        if self.model.pauses.waiting.contains(&id) {
            let decision =
                self.model.pauses.on_expiry.get(&id).cloned().ok_or("a pause without a limit expires")?;
            self.expect_decision(&id, decision, None, true, in_stream)?;
        }
        self.input(|core, cx| core.pause_expired(&id, cx))
    }

    fn result_reviewed(&mut self, op: OpNumber, mut result: ToolResult) -> Check {
        if self.rng.percent(20) {
            let other = ToolUse::new("changed", "changed", json!({}));
            result = ToolResult::ok(&other, Text::new("changed"));
            result.decision = Some(Box::new(UseDecision::new(DecisionKind::Execute, Timestamp(1))));
        }
        self.note(|| format!("handle_tool_result: {result:?}"));
        self.desk.reviewed(&result);
        self.input(|core, cx| core.result_reviewed(op, result, cx))
    }

    fn turn_decided(&mut self, op: OpNumber) -> Check {
        let stray = ToolUse::new("stray", "search", json!({}));
        self.prompts += 1;
        let text = format!("continue {}", self.prompts);
        let content = match self.rng.below(20) {
            _ if self.friendly => None,
            0..12 => None,
            12 => Some(Blocks::from("")),
            13 => Some(ToolResult::ok(&stray, Text::new("stray")).into()),
            14 => Some(stray.into()),
            _ => Some(Blocks::from(text)),
        };
        self.note(|| format!("handle_turn: {content:?}"));
        let (limit, step) = (self.model.limit, self.model.step);
        let exhausted = limit.is_some_and(|limit| step >= limit);
        if exhausted && content.is_some() {
            self.model.input = Input::Ignored;
        }
        self.model.continuation = content.clone().filter(|_| !exhausted);
        let decision = content.map_or(TurnDecision::Stop, TurnDecision::Continue);
        self.input(|core, cx| core.turn_decided(op, decision, cx))
    }

    /// Simulates the first poll of `handle_event`, after which the application event is no longer queued.
    fn event_begins(&mut self, op: OpNumber) -> Check {
        self.note(|| "handle_event begins".to_owned());
        self.begun = true;
        self.notices -= 1;
        self.input(|core, _| core.event_begun(op))
    }

    fn event_handled(&mut self, op: OpNumber, prompt: Option<Prompt>) -> Check {
        self.note(|| format!("handle_event: {prompt:?}"));
        // While the session accepts no prompts, a prompt that `handle_event` returns becomes part of the error event.
        let holds = self.rng.percent(20);
        self.hold = holds.then_some("the store is behind");
        // A known prompt is dropped.
        let is_held = holds && prompt.as_ref().is_some_and(|prompt| self.known(prompt).is_none());
        if let (Some(prompt), true) = (&prompt, is_held) {
            self.model.input = Input::EventFails;
            self.model.queue.staged.push(Arc::new(prompt.clone()));
        } else if let Some(prompt) = &prompt {
            match self.expect(prompt, false, 4) {
                Err(_) => self.model.input = Input::EventFails,
                Ok(accepted) => self.accepted(prompt.clone(), &accepted),
            }
        }
        let fails = self.model.input == Input::EventFails;
        self.input(|core, cx| core.event_handled(op, prompt, cx))?;
        self.hold = None;
        ensure!(
            !fails || !self.model.is_running(),
            "a run continues after an invalid prompt of handle_event"
        );
        Ok(())
    }
}

//! The outcomes of effects: what callbacks, the provider and tools return.

use std::time::Duration;

use serde_json::json;

use super::{
    AgentEffect, Asking, CallbackCall, Check, Condition, DispatchedToolCall, OpNumber, Outside, Process,
    script::{QUESTION, Said},
};
use crate::{
    agent::{
        ErrorDecision, Recovery, RecoveryDecision, TurnDecision,
        phase::{AgentTurnStage, OutputRequirement},
    },
    message::{History, Role, Text, ToolResult, ToolUse},
    provider::{BlockStart, Delta, Part, ProviderError, ProviderErrorKind, StopReason},
};

impl Process {
    /// Returns whether something that is not scripted may happen now.
    pub(crate) fn may_disturb(&self, outside: &mut Outside, chance: usize) -> bool {
        !outside.script.is_plain && self.condition == Condition::MayCrash && outside.rng.percent(chance)
    }

    /// Reports the next outcome. Returns whether something was in progress.
    pub(crate) fn proceed(&mut self, outside: &mut Outside) -> Check<bool> {
        let is_due =
            |held: &mut (u64, AgentEffect)| held.0 <= self.written && self.core.leaving_since.is_none();
        if let Some((_, effect)) = self.held.take_if(is_due) {
            self.perform_all(outside, vec![effect])?;
        } else if let Some((op, call)) = self.call.take() {
            self.returned(outside, op, call)?;
        } else if let Some(op) = self.permit.take() {
            self.input(outside, |core, cx| core.admitted(op, cx))?;
        } else if let Some(op) = self.stream.filter(|_| !self.waits_for_an_answer()) {
            self.answer(outside, op)?;
        } else if let Some((op, calls)) = self.tasks.take_if(|_| self.question != Asking::Waits) {
            self.tool_done(outside, op, calls)?;
        } else if let Some((op, delay)) = self.delay.take() {
            outside.pass(delay);
            self.input(outside, |core, cx| core.delay_over(op, cx))?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// Returns whether the provider waits for the answer to its question.
    fn waits_for_an_answer(&self) -> bool {
        matches!(self.core.phase().stage(), Some(AgentTurnStage::Streaming { question: Some(_), .. }))
            || matches!(self.held, Some((_, AgentEffect::Answer(_))))
    }

    fn tool_done(
        &mut self,
        outside: &mut Outside,
        op: OpNumber,
        mut calls: Vec<DispatchedToolCall>,
    ) -> Check {
        if outside.script.plot.tools_ask && self.question == Asking::No {
            let slot = calls[0].slot;
            self.tasks = Some((op, calls));
            self.question = Asking::Waits;
            let asked = self.input(outside, |core, cx| core.tool_asked(op, slot, json!("which?"), cx))?;
            return asked.map(drop);
        }
        let call = calls.swap_remove(outside.rng.below(calls.len()));
        self.tasks = (!calls.is_empty()).then_some((op, calls));
        let text = Text::new(format!("{} {}", call.tool_use.name, call.tool_use.input));
        let result = ToolResult::ok(&call.tool_use, text);
        self.input(outside, |core, cx| core.tool_done(op, call.slot, result, cx))
    }

    fn answer(&mut self, outside: &mut Outside, op: OpNumber) -> Check {
        if self.is_summarising() {
            return self.summarise(outside, op);
        }
        if outside.script.plot.question.is_some() && self.question == Asking::No {
            self.question = Asking::Waits;
            let tool_use = ToolUse::new(QUESTION, "put", json!({}));
            return self.input(outside, |core, cx| core.asked(op, tool_use, cx));
        }
        let fails = outside.script.plot.failures > 0;
        outside.script.plot.failures = outside.script.plot.failures.saturating_sub(1);
        if fails || self.may_disturb(outside, 5) {
            self.stream = None;
            let kind = outside.rng.pick(&[ProviderErrorKind::Truncated, ProviderErrorKind::ContextTooLong]);
            let error = ProviderError::new(kind, "gone");
            return self.input(outside, |core, cx| core.stream_failed(op, error.into(), cx));
        }
        // A request may contain a summary in place of earlier responses.
        let all = self.core.phase().turn().map(|turn| turn.working.all().clone()).unwrap_or_default();
        let responses = all.iter().filter(|message| message.role == Role::Assistant).count();
        let mut deltas = Vec::new();
        let reason = match outside.script.said(responses) {
            Said::Text => {
                deltas.push(Delta::Start { index: 0, block: BlockStart::Text });
                deltas.push(Delta::Extend { index: 0, part: Part::Text(format!("answer {responses}")) });
                StopReason::Stop
            }
            Said::Tools(uses) => {
                for (index, (name, _)) in uses.iter().enumerate() {
                    let (id, name) = (format!("{responses}-{index}").into(), (*name).to_owned());
                    deltas.push(Delta::Start { index, block: BlockStart::ToolUse { id, name } });
                }
                StopReason::ToolUse
            }
        };
        deltas.push(Delta::stop(reason));
        for delta in deltas {
            self.input(outside, |core, cx| core.delta(op, delta, cx))?;
            if self.is_dead() {
                return Ok(());
            }
        }
        self.stream = None;
        self.input(outside, |core, cx| core.stream_ended(op, cx))
    }

    fn returned(&mut self, outside: &mut Outside, op: OpNumber, call: CallbackCall) -> Check {
        match call {
            CallbackCall::PrepareStep => {
                let (model, replay) = ("model".into(), outside.script.provider);
                self.input(outside, |core, cx| {
                    core.prepared(op, OutputRequirement::default(), model, replay, cx);
                })
            }
            CallbackCall::HandleToolUse(tool_use) => {
                let decision = outside.script.decision(&tool_use);
                self.input(outside, |core, cx| core.tool_decided(op, decision, cx))
            }
            CallbackCall::HandleToolResult(mut result) => {
                if outside.script.plot.replaces_results {
                    result.content = vec![Text::new("reviewed").into()];
                }
                self.input(outside, |core, cx| core.result_reviewed(op, *result, cx))
            }
            CallbackCall::HandleTurn(_) => {
                let working = self.core.phase().turn().map(|turn| turn.working.all().clone());
                let texts = working.iter().flat_map(History::iter).map(|message| message.text());
                let count = texts.filter(|text| text.starts_with("continue")).count();
                let decision = if count < outside.script.continuations {
                    TurnDecision::continue_with(format!("continue {count}").as_str())
                } else {
                    TurnDecision::Stop
                };
                self.input(outside, |core, cx| core.turn_decided(op, decision, cx))
            }
            CallbackCall::HandleError(_) => {
                let after = ErrorDecision::RetryAfter(Duration::from_secs(1));
                let decisions = [ErrorDecision::Stop, ErrorDecision::Discard, ErrorDecision::Retry, after];
                let random = outside.rng.pick(&decisions);
                let decision = outside.script.plot.on_error.unwrap_or(random);
                self.input(outside, |core, cx| core.error_decided(op, decision, cx))
            }
            CallbackCall::HandleRecovery(recovery) => self.recovered(outside, op, &recovery),
            CallbackCall::HandleEvent => {
                let prompt = outside.script.plot.on_event.clone();
                self.input(outside, |core, cx| {
                    core.event_begun(op);
                    core.event_handled(op, prompt, cx);
                })
            }
        }
    }

    fn recovered(&mut self, outside: &mut Outside, op: OpNumber, recovery: &Recovery) -> Check {
        let decision = if self.may_disturb(outside, 10) {
            outside.rng.pick(&[RecoveryDecision::Interrupt, RecoveryDecision::Discard])
        } else {
            outside.script.plot.on_recovery.unwrap_or(recovery.decision)
        };
        let replay = outside.script.provider;
        self.input(outside, |core, cx| core.recovered(op, decision, recovery, replay, cx))
    }
}

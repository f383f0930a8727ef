//! Outcomes of operations that have already ended or never existed.

use std::time::Duration;

use serde_json::json;

use super::{Check, commands::random_decision, ensure, world::World};
use crate::{
    agent::{
        ErrorDecision, Failure, PendingUse, Prompt, ToolDecision, TurnDecision,
        phase::{AgentTurnStage, OpNumber, OutputRequirement},
    },
    message::{Text, ToolResult, ToolUse, TurnId},
    provider::{BlockStart, Delta, ProviderError, ProviderErrorKind, StopReason},
    tool::Replay,
};

impl World {
    /// Checks that the core ignores the outcome of an operation for which it does not wait.
    pub(super) fn ghost(&mut self) -> Check {
        let before = self.core.clone();
        let (op, live) = (self.rng.next() % (self.core.last_op + 2), self.live());
        let (mut op, mut kind) = (op, self.rng.below(18));
        if let Some(AgentTurnStage::Streaming { question: Some(question), .. }) = self.core.phase().stage()
            && self.rng.percent(50)
        {
            // If the provider's question waits for the application, `handle_tool_use` has already returned. The core
            // must ignore a second outcome of this callback.
            (op, kind) = (question.op, self.rng.pick(&[6, 12]));
        }
        let tool_use = ToolUse::new("a", "search", json!({}));
        let result = ToolResult::ok(&tool_use, Text::new("ghost"));
        let slot = self.rng.below(4);
        // While the core waits for the tools of an operation, report the result of a tool that has finished, never ran
        // or does not exist.
        if let Some((op, calls)) = &self.tasks
            && kind < 7
        {
            let (op, running) = (*op, calls.iter().any(|call| call.slot == slot));
            if !running {
                self.note(|| format!("ghost of tool {slot}"));
                let is_question = self.rng.percent(30);
                let (refused, effects) = self.feed(|core, cx| {
                    if is_question {
                        return core.tool_asked(op, slot, json!("ghost"), cx).is_err();
                    }
                    core.tool_done(op, slot, result, cx);
                    true
                });
                ensure!(refused && effects.is_empty() && before == self.core, "a late tool: {effects:?}");
            }
            return Ok(());
        }
        if live.contains(&op) {
            return Ok(());
        }
        self.note(|| format!("ghost {kind} of {op}"));
        let decision: ToolDecision = random_decision(&mut self.rng).into();
        let ((), effects) = self.feed(|core, cx| match kind {
            0 => core.prepared(op, OutputRequirement::default(), "model".into(), Replay::Safe, cx),
            1 => core.delta(op, Delta::Start { index: 0, block: BlockStart::Text }, cx),
            2 => core.delta(op, Delta::stop(StopReason::Stop), cx),
            3 => core.asked(op, tool_use, cx),
            4 => core.stream_ended(op, cx),
            5 => {
                let error = ProviderError::new(ProviderErrorKind::Service, "ghost");
                core.stream_failed(op, Failure::from(error), cx);
            }
            6 => core.tool_decided(op, decision, cx),
            7 => core.tool_done(op, slot, result, cx),
            8 => core.result_reviewed(op, result, cx),
            9 => core.turn_decided(op, TurnDecision::continue_with("ghost"), cx),
            10 => core.error_decided(op, ErrorDecision::RetryAfter(Duration::from_secs(1)), cx),
            11 => core.delay_over(op, cx),
            12 => core.call_failed(op, "prepare_step", "ghost".into(), cx),
            13 => core.event_begun(op),
            14 => core.tool_question_withdrawn(op, &"a?1".into(), cx),
            15 => drop(core.tool_asked(op, slot, json!("ghost"), cx)),
            16 => {
                let pause = PendingUse::new(TurnId::new(7), tool_use).of_sub_agent("ghost".into(), None);
                core.tool_delegated(op, slot, vec![pause], cx);
            }
            _ => core.event_handled(op, Some(Prompt::new("ghost")), cx),
        });
        ensure!(effects.is_empty(), "a ghost has effects: {effects:?}");
        ensure!(before == self.core, "a ghost changes {before:?} to {:?}", self.core);
        Ok(())
    }

    /// Returns the operations whose outcomes the core waits for.
    fn live(&self) -> Vec<OpNumber> {
        let phase = self.core.phase();
        let question = match phase.stage() {
            Some(AgentTurnStage::Streaming { question: Some(question), .. }) if question.paused.is_none() => {
                Some(question.op)
            }
            _ => None,
        };
        phase.op().into_iter().chain(question).collect()
    }
}

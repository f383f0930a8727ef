//! The questions that running tools ask the user: random questions and withdrawals, and the checks of the answers.

use std::{collections::VecDeque, sync::Arc};

use serde_json::json;

use super::{Check, ensure, world::World};
use crate::{
    agent::{
        PendingUse,
        core::SubAgentDecision,
        phase::{DispatchedToolCall, OpNumber},
    },
    message::{RequestEnd, ToolUse, ToolUseId, TurnId, Usage, UsageRow},
    tool::{Answer, Decision},
};

/// The questions of the running tools.
#[derive(Default)]
pub(super) struct Questions {
    /// The questions that wait, with the slots of their calls.
    pub(super) open: Vec<(ToolUseId, usize)>,
    /// The answers that tools must get at once, in this order.
    answers: VecDeque<(ToolUseId, Answer)>,
    /// The slot of the tool call that a decision must end at once.
    ending: Option<usize>,
    /// The pauses of sub-agents that wait, each with the slot of its call and the id under which it waits.
    delegated: Vec<(usize, ToolUseId, PendingUse)>,
    /// The number of pauses of sub-agents so far.
    nested: usize,
}

impl Questions {
    /// Returns the slot of the call whose question has this id.
    pub(super) fn slot_of(&self, id: &ToolUseId) -> Option<usize> {
        self.open.iter().find(|(open, _)| open == id).map(|(_, slot)| *slot)
    }

    /// Removes the questions of a call that has ended, and returns their ids.
    pub(super) fn end(&mut self, slot: usize) -> Vec<ToolUseId> {
        let own = self.open.extract_if(.., |(_, of)| *of == slot).map(|(id, _)| id);
        own.chain(self.delegated.extract_if(.., |(of, ..)| *of == slot).map(|(_, id, _)| id)).collect()
    }

    /// Removes all questions, because the tools are dropped.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.delegated.clear();
    }

    /// Returns the decision as the core must forward it, if the pause is that of a sub-agent.
    pub(super) fn forward(&self, id: &ToolUseId, decision: &Decision) -> Option<SubAgentDecision> {
        let (slot, _, pause) = self.delegated.iter().find(|(_, own, _)| own == id)?;
        let own = pause.sub_agent.as_ref()?;
        let (turn, tool_use, decision) = (own.turn, own.tool_use.clone(), decision.clone());
        Some(SubAgentDecision { slot: *slot, turn, tool_use, decision })
    }

    /// Checks an answer.
    pub(super) fn answered(&mut self, id: &ToolUseId, answer: &Answer) -> Check {
        let (given, expected) = (Some((id.clone(), answer.clone())), self.answers.pop_front());
        ensure!(given == expected, "the answer is {given:?}, not {expected:?}");
        Ok(())
    }

    /// Checks that every expected answer was given, and that every expected end of a call has happened.
    pub(super) fn check_rest(&self) -> Check {
        ensure!(self.answers.is_empty(), "the answers {:?} were not given", self.answers);
        ensure!(self.ending.is_none(), "the call {:?} was not ended", self.ending);
        Ok(())
    }
}

impl World {
    /// Lets a running tool ask a question, or withdraw one.
    pub(super) fn tool_asks(&mut self) -> Check {
        let (op, calls) = self.tasks.clone().ok_or("no tool runs")?;
        if self.rng.percent(40) {
            return self.tool_delegates(op, &calls);
        }
        if !self.questions.open.is_empty() && self.rng.percent(40) {
            let index = self.rng.below(self.questions.open.len());
            let (id, _) = self.questions.open.swap_remove(index);
            self.note(|| format!("the question {id} is withdrawn"));
            self.model.pauses.withdrawing = vec![id.clone()];
            return self.input(|core, cx| core.tool_question_withdrawn(op, &id, cx));
        }
        let call = self.rng.pick(&calls);
        let question = json!({ "question": self.rng.below(100) });
        self.note(|| format!("{} asks {question}", call.tool_use.id));
        let (asked, effects) = self.feed(|core, cx| core.tool_asked(op, call.slot, question.clone(), cx));
        match asked {
            Ok(id) => {
                self.model.pauses.asking = Some((call.tool_use.id, question));
                self.questions.open.push((id, call.slot));
            }
            Err(reason) => {
                let is_full = self.questions.open.len() >= 32;
                ensure!(is_full && effects.is_empty(), "a question is refused: {reason}");
            }
        }
        self.perform_all(effects)
    }

    /// Lets sub-agents carry out decisions, so that their pauses are over.
    pub(super) fn sub_agents_continue(&mut self, forwards: &[SubAgentDecision]) -> Check {
        let (op, _) = self.tasks.clone().ok_or("no tool runs")?;
        for SubAgentDecision { slot, tool_use, .. } in forwards {
            let delegated = &mut self.questions.delegated;
            let over =
                delegated.extract_if(.., |(of, _, pause)| of == slot && pause.tool_use.id == *tool_use);
            self.model.pauses.withdrawing = over.map(|(_, id, _)| id).collect();
            let left = self.questions.delegated.iter().filter(|(of, ..)| of == slot);
            let left = left.map(|(.., pause)| pause.clone()).collect();
            self.input(|core, cx| core.tool_delegated(op, *slot, left, cx))?;
        }
        Ok(())
    }

    /// Reports other pauses of the sub-agents of a running tool, or the usage of a request of one.
    fn tool_delegates(&mut self, op: OpNumber, calls: &[DispatchedToolCall]) -> Check {
        if self.rng.percent(30) {
            let usage = Usage::default().with_input(1 + self.rng.next() % 100);
            let row = UsageRow::new(RequestEnd::Answered, usage);
            let conversation = self.rng.percent(50).then(|| "child".into());
            self.note(|| format!("a sub-agent uses {usage:?} {conversation:?}"));
            self.model.delegating = Some((usage, conversation.is_some()));
            let key = Arc::clone(&self.rng.pick(calls).idempotency_key);
            return self.input(|core, cx| core.delegated(&key, UsageRow { conversation, ..row }, cx));
        }
        let call = self.rng.pick(calls);
        let before: Vec<_> =
            self.questions.delegated.extract_if(.., |(slot, ..)| *slot == call.slot).collect();
        let (mut kept, withdrawn): (Vec<_>, Vec<_>) = before.into_iter().partition(|_| self.rng.percent(60));
        self.model.pauses.withdrawing = withdrawn.into_iter().map(|(_, id, _)| id).collect();
        for _ in 0..self.rng.below(3) {
            self.questions.nested += 1;
            let tool_use = ToolUse::new(format!("n{}", self.questions.nested), "nested", json!({}));
            let pause = PendingUse::new(TurnId::new(7), tool_use).of_sub_agent("child".into(), None);
            let id = ToolUseId::from(format!("{}?{}/{}", call.tool_use.id, pause.turn, pause.tool_use.id));
            self.model.pauses.delegating.push(id.clone());
            kept.push((call.slot, id, pause));
        }
        let pauses: Vec<_> = kept.iter().map(|(_, _, pause)| pause.clone()).collect();
        self.note(|| format!("{} delegates {}", call.tool_use.id, pauses.len()));
        self.questions.delegated.extend(kept);
        self.input(|core, cx| core.tool_delegated(op, call.slot, pauses, cx))
    }

    /// Records that this decision about the question of a tool must be applied.
    pub(super) fn expect_answer(&mut self, id: &ToolUseId, slot: usize, decision: Decision) {
        self.questions.open.retain(|(open, _)| open != id);
        let answer = match decision {
            Decision::Execute => Answer::Accepted(None),
            Decision::ExecuteWith(value) => Answer::Accepted(Some(value)),
            Decision::Reject(reason) => Answer::Declined(reason),
            Decision::Provide(result) => {
                self.desk.done(slot, &result);
                self.questions.ending = Some(slot);
                self.model.pauses.withdrawing = self.questions.end(slot);
                return;
            }
        };
        self.questions.answers.push_back((id.clone(), answer));
    }

    /// Checks that a decision has given the result of a tool call, and ends this call.
    pub(super) fn tool_ends(&mut self, slot: usize) -> Check {
        let ending = self.questions.ending.take();
        ensure!(ending == Some(slot), "the call {slot} is ended, not {ending:?}");
        let (op, mut calls) = self.tasks.take().ok_or("no tool runs")?;
        let before = calls.len();
        calls.retain(|call| call.slot != slot);
        ensure!(calls.len() + 1 == before, "the call {slot} does not run");
        if !calls.is_empty() {
            self.tasks = Some((op, calls));
        }
        Ok(())
    }
}

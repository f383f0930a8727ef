//! The questions that running tools ask the user: random questions and withdrawals, and the checks of the answers.

use std::collections::VecDeque;

use serde_json::json;

use super::{Check, ensure, world::World};
use crate::{
    message::ToolUseId,
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
}

impl Questions {
    /// Returns the slot of the call whose question has this id.
    pub(super) fn slot_of(&self, id: &ToolUseId) -> Option<usize> {
        self.open.iter().find(|(open, _)| open == id).map(|(_, slot)| *slot)
    }

    /// Removes the questions of a call that has ended, and returns their ids.
    pub(super) fn end(&mut self, slot: usize) -> Vec<ToolUseId> {
        self.open.extract_if(.., |(_, of)| *of == slot).map(|(id, _)| id).collect()
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

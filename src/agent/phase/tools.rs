//! The tool uses of a step, as data.

use std::sync::Arc;

use serde_json::Value;

use super::Op;
use crate::{
    agent::{Decided, PendingUse, ToolRun},
    message::{ToolResult, ToolUse, ToolUseId},
    tool::{Decision, Replay},
};

/// A question that the provider asks while it streams a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Question {
    pub(crate) op: Op,
    pub(crate) tool_use: ToolUse,
    /// The pause, if the question waits for `resume`.
    pub(crate) paused: Option<Arc<PendingUse>>,
}

/// The tool uses of a step, and the answers of `handle_tool_use` for the first of them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tools {
    pub(crate) uses: Vec<ToolUse>,
    pub(crate) answers: Vec<Answer>,
    /// The decisions about pauses that are recorded but not reported yet. Each one is applied when its pause is
    /// reported.
    pub(crate) early: Vec<Decided>,
}

/// The answer about one tool use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    /// The decision was made.
    Decided(Decision),
    /// The tool use waits for `resume`. Its pause is emitted when all tool uses of the step have answers.
    Waits(Arc<PendingUse>),
}

impl Answer {
    pub(crate) fn pause(&self) -> Option<&Arc<PendingUse>> {
        match self {
            Self::Decided(_) => None,
            Self::Waits(pause) => Some(pause),
        }
    }

    pub(crate) fn into_decision(self) -> Option<Decision> {
        match self {
            Self::Decided(decision) => Some(decision),
            Self::Waits(_) => None,
        }
    }
}

impl Tools {
    /// Returns the tool use that `handle_tool_use` is asked about next.
    pub(crate) fn next(&self) -> Option<&ToolUse> {
        self.uses.get(self.answers.len())
    }

    /// Returns the pauses of the tool uses that wait for `resume`.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = &Arc<PendingUse>> {
        self.answers.iter().filter_map(Answer::pause)
    }

    /// Returns the pauses for which no decision was made yet.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = &Arc<PendingUse>> {
        let is_open =
            |pause: &&Arc<PendingUse>| self.early.iter().all(|own| own.tool_use_id != pause.tool_use.id);
        self.pauses().filter(is_open)
    }

    /// Returns the answers, with the decisions that were made before their pauses were reported.
    pub(crate) fn into_answers(mut self) -> Vec<Answer> {
        for Decided { tool_use_id, decision, .. } in std::mem::take(&mut self.early) {
            self.decide(&tool_use_id, decision);
        }
        self.answers
    }

    /// Stores the decision about a tool use that waits.
    pub(crate) fn decide(&mut self, tool_use: &ToolUseId, decision: Decision) {
        let waits = |answer: &&mut Answer| answer.pause().is_some_and(|pause| pause.tool_use.id == *tool_use);
        if let Some(answer) = self.answers.iter_mut().find(waits) {
            *answer = Answer::Decided(decision);
        }
    }

    pub(crate) fn pauses_mut(&mut self) -> impl Iterator<Item = &mut Arc<PendingUse>> {
        self.answers.iter_mut().filter_map(|answer| match answer {
            Answer::Decided(_) => None,
            Answer::Waits(pause) => Some(pause),
        })
    }
}

/// A question of a running tool that waits for `resume`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolQuestion {
    /// The index of the tool's slot.
    pub(crate) slot: usize,
    pub(crate) pause: Arc<PendingUse>,
}

/// A tool use and its result, if the result exists yet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) tool_use: ToolUse,
    /// The input with which the tool is run, if it differs from the input that the model sent.
    pub(crate) input: Option<Value>,
    /// Whether the tool is run. Otherwise a decision gave the result.
    pub(crate) runs: bool,
    /// The number of the last question that the running tool has asked.
    pub(crate) asked: u32,
    /// The tool's declaration of whether it may run again, if the turn is recorded. Otherwise `Never`.
    pub(crate) replay: Replay,
    /// The result. `None` until the result exists, and again after it was reviewed.
    pub(crate) result: Option<ToolResult>,
    /// The part of the slot that the last record contains.
    pub(crate) recorded: RecordedSlot,
}

/// The part of a slot that the last record contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RecordedSlot {
    #[default]
    Open,
    Settled,
    Reviewed,
}

impl Slot {
    /// Returns whether the slot has the result of a tool that is not declared as [`Replay::Safe`].
    pub(crate) fn is_unsafe_result(&self) -> bool {
        self.runs && self.replay != Replay::Safe && self.result.is_some()
    }

    pub(super) fn run(&self) -> ToolRun {
        let is_error = self.result.as_ref().map(|result| result.is_error);
        ToolRun { tool_use_id: self.tool_use.id.clone(), input: self.input.clone(), is_error }
    }
}

/// A tool call that the shell performs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    /// The index of the slot for the result.
    pub(crate) slot: usize,
    /// The tool use, with the input with which the tool is run.
    pub(crate) tool_use: ToolUse,
    /// The idempotency key. A repetition of this call has the same key, and every other call has a different key.
    pub(crate) idempotency_key: Arc<str>,
}

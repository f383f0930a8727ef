//! The tool uses of a step, as data.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::OpNumber;
use crate::{
    agent::{Decided, PendingUse, ToolRun},
    message::{DecisionKind, Timestamp, ToolResult, ToolUse, ToolUseId, UseDecision},
    tool::{Decision, Replay},
};

/// A question that the provider asks while it streams a response.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StreamQuestion {
    pub(crate) op: OpNumber,
    pub(crate) tool_use: ToolUse,
    /// The pause, if the question waits for `resume`.
    pub(crate) paused: Option<Arc<PendingUse>>,
}

/// The tool uses of a step, and the answers of `handle_tool_use` for the first of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StepToolUses {
    #[serde(skip)]
    pub(crate) uses: Vec<ToolUse>,
    pub(crate) answers: Vec<DecisionOrPause>,
    /// The decisions about pauses that are recorded but not reported yet. Each one is applied when its pause is
    /// reported. A record has them at another place.
    #[serde(skip)]
    pub(crate) early: Vec<Decided>,
}

/// The answer about one tool use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DecisionOrPause {
    /// The decision was made. The second value is `None` if `handle_tool_use` has just let the tool run.
    Decided(Decision, Option<Box<ToolUseDecisionDetails>>),
    /// The tool use waits for `resume`. Its pause is emitted when all tool uses of the step have answers. The second
    /// value is the decision that was made earlier, if the tool use waits again.
    Waits(#[serde(serialize_with = "without_use")] Arc<PendingUse>, Option<Box<ToolUseDecisionDetails>>),
}

/// Writes a pause. Its tool use is filled in from the turn's messages, so only an input that replaces theirs is written,
/// and the id of a pause that asks whether the tool may run again.
fn without_use<S: Serializer>(pause: &Arc<PendingUse>, serializer: S) -> Result<S::Ok, S::Error> {
    let mut bare = PendingUse::clone(pause);
    let own = std::mem::replace(&mut bare.tool_use, unknown());
    bare.tool_use.input = if bare.input_replaced { own.input } else { Value::Null };
    if bare.asked_by.is_some() {
        bare.tool_use.id = own.id;
    }
    bare.serialize(serializer)
}

impl DecisionOrPause {
    pub(crate) fn pause(&self) -> Option<&Arc<PendingUse>> {
        match self {
            Self::Decided(..) => None,
            Self::Waits(pause, _) => Some(pause),
        }
    }

    pub(crate) fn into_decision(self) -> Option<(Decision, Option<Box<ToolUseDecisionDetails>>)> {
        match self {
            Self::Decided(decision, decided) => Some((decision, decided)),
            Self::Waits(..) => None,
        }
    }
}

/// How a tool use was decided, until its result states it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ToolUseDecisionDetails {
    pub(crate) decision: UseDecision,
    /// Whether a person has set the input, if the model's input was replaced. Otherwise a callback has set it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) by_person: bool,
    /// Whether the decision applies unchanged, because its tool use waits again only until another process continues the
    /// turn.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) stands: bool,
}

impl ToolUseDecisionDetails {
    pub(crate) fn new(decided: &Decided, by_person: bool) -> Self {
        Self { by_person, ..Self::of(decided.as_use_decision()) }
    }

    /// Returns a decision that has set no input.
    pub(crate) const fn of(decision: UseDecision) -> Self {
        Self { decision, by_person: false, stands: false }
    }

    /// Returns the decision of a tool use that is cut off at the time `at`, after it was decided in this way.
    pub(crate) fn cut_off(decided: Option<Box<Self>>, at: Timestamp) -> Self {
        let new = || Self::of(UseDecision::new(DecisionKind::Interrupted, at));
        let mut cut = decided.map_or_else(new, |own| *own);
        (cut.decision.kind, cut.decision.at) = (DecisionKind::Interrupted, at);
        cut
    }

    /// States in the result how its tool use was decided. `input` is the input that the decision has set.
    pub(crate) fn state(
        decided: Option<Box<Self>>,
        result: ToolResult,
        tool_use: &ToolUse,
        input: Option<Value>,
        ran: bool,
    ) -> ToolResult {
        let Some(Self { mut decision, by_person, .. }) = decided.map(|decided| *decided) else {
            return result;
        };
        let is_other = |input: &Value| tool_use.malformed.is_some() || *input != tool_use.input;
        decision.input = input.or(decision.input).filter(is_other);
        result.decided(decision, ran, by_person)
    }
}

impl StepToolUses {
    /// Returns the tool use that `handle_tool_use` is asked about next.
    pub(crate) fn next(&self) -> Option<&ToolUse> {
        self.uses.get(self.answers.len())
    }

    /// Returns the pauses of the tool uses that wait for `resume`.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = &Arc<PendingUse>> {
        self.answers.iter().filter_map(DecisionOrPause::pause)
    }

    /// Returns the pauses for which no decision was made yet.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = &Arc<PendingUse>> {
        let is_open =
            |pause: &&Arc<PendingUse>| self.early.iter().all(|own| own.tool_use_id != pause.tool_use.id);
        self.pauses().filter(is_open)
    }

    /// Returns the answers, with the decisions that were made before their pauses were reported.
    pub(crate) fn into_answers(mut self) -> Vec<DecisionOrPause> {
        for own in std::mem::take(&mut self.early) {
            let by_person = !own.expired && own.decision != Decision::Execute;
            let decided = Box::new(ToolUseDecisionDetails::new(&own, by_person));
            self.decide(&own.tool_use_id, own.decision, decided);
        }
        self.answers
    }

    /// Stores the decision about a tool use that waits. If the tool use was decided earlier, the decision also states the
    /// input with which the tool may have run.
    pub(crate) fn decide(
        &mut self,
        tool_use: &ToolUseId,
        decision: Decision,
        mut decided: Box<ToolUseDecisionDetails>,
    ) {
        for answer in &mut self.answers {
            let DecisionOrPause::Waits(pause, earlier) = answer else { continue };
            if pause.tool_use.id != *tool_use {
                continue;
            }
            let shown = &pause.tool_use.input;
            let decision = match decision {
                Decision::Execute if pause.input_replaced => Decision::ExecuteWith(shown.clone()),
                decision => decision,
            };
            match earlier.take() {
                Some(earlier) if earlier.stands => {
                    *decided = ToolUseDecisionDetails { stands: false, ..*earlier }
                }
                Some(earlier) => {
                    let is_other = matches!(&decision, Decision::ExecuteWith(input) if input != shown);
                    decided.by_person |= earlier.by_person && !is_other;
                    decided.decision.input = earlier.decision.input;
                }
                None => {}
            }
            *answer = DecisionOrPause::Decided(decision, Some(decided));
            return;
        }
    }

    pub(crate) fn pauses_mut(&mut self) -> impl Iterator<Item = &mut Arc<PendingUse>> {
        self.answers.iter_mut().filter_map(|answer| match answer {
            DecisionOrPause::Decided(..) => None,
            DecisionOrPause::Waits(pause, _) => Some(pause),
        })
    }
}

/// A question of a running tool that waits for `resume`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RunningToolQuestion {
    /// The index of the tool's slot.
    pub(crate) slot: usize,
    pub(crate) pause: Arc<PendingUse>,
}

/// A tool use and its result, if the result exists yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(crate) struct ToolUseSlot {
    #[serde(skip, default = "unknown")]
    pub(crate) tool_use: ToolUse,
    /// The input with which the tool is run, if it differs from the input that the model sent.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub(crate) input: Option<Value>,
    /// How the tool use was decided, if somebody decided. `None` after its result was reviewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decided: Option<Box<ToolUseDecisionDetails>>,
    /// Whether the tool is run. Otherwise a decision gave the result.
    pub(crate) runs: bool,
    /// Whether the tool is run, but has not started, because others run first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) queued: bool,
    /// The number of the last question that the running tool has asked.
    pub(crate) asked: u32,
    /// The tool's declaration of whether it may run again.
    pub(crate) replay: Replay,
    /// Whether the tool has no handler. Then the result is a placeholder: the tool use stays open when the turn ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_open: bool,
    /// Whether the tool waits for a decision about a tool of a sub-agent that is a session.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) waits: bool,
    /// The result. `None` until the result exists, and again after it was reviewed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<ToolResult>,
}

/// Returns the tool use of a slot until it is filled in from the turn's messages.
fn unknown() -> ToolUse {
    ToolUse::new("", "", Value::Null)
}

/// Reads an input that is present. Otherwise, the input `null` would count as missing.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl ToolUseSlot {
    /// Returns whether the tool was started.
    pub(crate) fn has_started(&self) -> bool {
        self.runs && !self.queued
    }

    /// Returns whether the tool was started and has no result.
    pub(crate) fn is_running(&self) -> bool {
        self.has_started() && self.result.is_none()
    }

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
pub(crate) struct DispatchedToolCall {
    /// The index of the slot for the result.
    pub(crate) slot: usize,
    /// The tool use, with the input with which the tool is run.
    pub(crate) tool_use: ToolUse,
    /// The idempotency key. A repetition of this call has the same key, and every other call has a different key.
    pub(crate) idempotency_key: Arc<str>,
    /// Whether the call was running when an earlier process ended.
    pub(crate) is_repeated: bool,
}

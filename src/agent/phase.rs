//! The phases of an agent, as data: they contain no clock, no channel and no trait object. `core/bare.rs` records them.

mod tools;
mod turn;

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;
pub(crate) use tools::{
    DecisionOrPause, DispatchedToolCall, RunningToolQuestion, StepToolUses, StreamQuestion,
    ToolUseDecisionDetails, ToolUseSlot,
};
pub(crate) use turn::{
    AskTurnResponses, CompactionAttemptState, CompactionPlan, CompactionTurn, HistoryWithPendingMessages,
    OutputRequirement, RequestReplaySafety, RunPromptState, Turn,
};

use super::{Failure, PendingUse, Status, ToolRun};
use crate::{
    message::{Blocks, Timestamp, ToolResult, ToolUse, TurnId},
    provider::{Fold, StopReason},
    tool::{Decision, Replay},
};

/// Identifies an effect and its outcome. If a phase waits for another number than that of the outcome, the outcome is
/// late and is dropped.
pub(crate) type OpNumber = u64;

/// The current activity of the agent. Each phase owns its data, which is dropped when the phase ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum AgentPhase {
    /// Nothing is in progress.
    #[default]
    Idle,
    /// `handle_event` is running, between two runs or between two turns of a run. Until `handle_event` has `begun`, its
    /// event is still queued.
    Noticing { op: OpNumber, begun: bool, then: AfterEventCallback },
    /// A turn is in flight. `op` is the number of the outcome for which the turn's stage waits.
    InTurn { op: OpNumber, turn: Box<Turn>, stage: AgentTurnStage },
}

/// The activity during a turn. After a restart, a turn never continues as `Noticing`, `Compacting` or `Paused`, so these
/// are recorded as the stages from which the turn continues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub(crate) enum AgentTurnStage {
    /// `handle_event` is running, as in [`AgentPhase::Noticing`], but a prompt has started the turn in the meantime. The
    /// turn's request is prepared when `handle_event` has returned.
    #[serde(rename = "preparing", skip_deserializing)]
    Noticing {
        #[serde(skip)]
        begun: bool,
    },
    /// `prepare_step` runs.
    Preparing,
    /// A summary is being streamed, which becomes a compaction before the request.
    #[serde(rename = "preparing", skip_deserializing)]
    Compacting {
        #[serde(skip)]
        fold: Box<Fold>,
        #[serde(skip)]
        plan: Box<CompactionPlan>,
    },
    /// The response is being streamed.
    Streaming {
        #[serde(skip)]
        fold: Box<Fold>,
        #[serde(skip)]
        question: Option<Box<StreamQuestion>>,
    },
    /// `handle_tool_use` runs for the first tool use that has no answer yet. If all have answers, the pause is reported
    /// when it is stored.
    Deciding { tools: Box<StepToolUses> },
    /// At least one tool use waits for `resume`. Every other tool use of the step has a decision.
    #[serde(rename = "deciding", skip_deserializing)]
    Paused { tools: Box<StepToolUses> },
    /// The tools run. The questions are those that wait for `resume`, in the order in which they were asked.
    Executing {
        slots: Vec<ToolUseSlot>,
        #[serde(skip)]
        questions: Vec<RunningToolQuestion>,
    },
    /// `handle_tool_result` is running for the slot that follows the reviewed slots.
    Reviewing { slots: Vec<ToolUseSlot>, reviewed: Vec<ToolResult> },
    /// `handle_turn` runs.
    Concluding { end: Box<ProposedTurnEnd> },
    /// `handle_error` runs.
    Failing { failure: Failure, remains: Box<UnfinishedStep> },
    /// The step is repeated after `delay`, which ends at the time `until` of the system clock.
    Delaying { delay: Duration, until: Timestamp },
    /// The turn continues after a restart as soon as `handle_recovery` has returned. A record has the recorded stage.
    #[serde(skip)]
    Recovering(Box<TurnRecoveryStage>),
}

/// The stage at which a recorded turn continues after a restart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TurnRecoveryStage {
    pub(crate) stage: AgentTurnStage,
    /// The time that the turn has taken so far.
    pub(crate) spent: Duration,
}

/// The continuation after `handle_event` has returned.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum AfterEventCallback {
    /// Nothing follows. The agent counts as idle.
    Rest,
    /// The run continues with another turn after the committed one.
    Continue(Box<NextTurnOfRun>),
}

/// A continuation between two turns that waits until `handle_event` has returned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct NextTurnOfRun {
    pub(crate) content: Blocks,
    pub(crate) origin: RunPromptState,
    pub(crate) step: u32,
    /// The stop reason of the committed turn.
    pub(crate) stop_reason: StopReason,
    /// The id of the next turn.
    #[serde(skip)]
    pub(crate) turn: TurnId,
    /// Whether the turns of the run are recorded.
    #[serde(skip)]
    pub(crate) recorded: bool,
}

/// The end of a turn on which `handle_turn` decides. The response is made from it and from the turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProposedTurnEnd {
    pub(crate) stop_reason: StopReason,
    /// The output of the response, or the problem with it, if an output schema was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<Result<Value, String>>,
    /// The tool uses that are left to the application, each with the input that was decided.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) open: Vec<ToolUse>,
    /// The results of the other tool uses of the step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decided: Vec<ToolResult>,
}

/// The parts of an unfinished step. An interrupt or a failure keeps them where possible.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct UnfinishedStep {
    /// The partial response.
    #[serde(skip)]
    pub(crate) partial: Option<Box<Fold>>,
    /// The answers given so far, in the order of the tool uses. Empty if the tools have started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) answers: Vec<DecisionOrPause>,
    /// The tool uses and the results so far. Empty before the tools have started.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<ToolUseSlot>,
    /// The reviewed results. Subscribers have seen these results.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) reviewed: Vec<ToolResult>,
}

impl UnfinishedStep {
    pub(crate) fn of(partial: Box<Fold>) -> Self {
        Self { partial: Some(partial), ..Self::default() }
    }

    /// Returns whether the response has begun.
    pub(crate) fn has_begun(&self) -> bool {
        self.partial.as_ref().is_some_and(|fold| !fold.blocks().is_empty())
    }

    /// Returns whether the step has the result of a tool that was run.
    pub(crate) fn has_run(&self) -> bool {
        let mut slots = self.slots.iter().enumerate();
        slots.any(|(place, slot)| slot.runs && (slot.result.is_some() || place < self.reviewed.len()))
    }
}

impl AgentPhase {
    /// Returns the agent's status in this phase.
    pub(crate) fn status(&self) -> Status {
        match self {
            _ if self.is_at_rest() => Status::Idle,
            _ if self.pauses().next().is_some() => Status::Paused,
            _ => Status::Busy,
        }
    }

    /// Returns whether no run is active.
    pub(crate) fn is_at_rest(&self) -> bool {
        matches!(self, Self::Idle | Self::Noticing { then: AfterEventCallback::Rest, .. })
    }

    /// Returns the turn in flight, if there is one.
    pub(crate) fn turn(&self) -> Option<&Turn> {
        match self {
            Self::InTurn { turn, .. } => Some(turn),
            Self::Idle | Self::Noticing { .. } => None,
        }
    }

    /// Returns the turn in flight and its stage, to change them.
    pub(crate) fn in_turn(&mut self) -> Option<(&mut Turn, &mut AgentTurnStage)> {
        match self {
            Self::InTurn { turn, stage, .. } => Some((turn, stage)),
            Self::Idle | Self::Noticing { .. } => None,
        }
    }

    /// Returns the stage of the turn in flight, if there is one.
    pub(crate) fn stage(&self) -> Option<&AgentTurnStage> {
        match self {
            Self::InTurn { stage, .. } => Some(stage),
            Self::Idle | Self::Noticing { .. } => None,
        }
    }

    /// Takes the turn and its stage, and sets the phase to idle. A phase without a turn remains unchanged.
    pub(crate) fn take_turn(&mut self) -> Option<(Box<Turn>, AgentTurnStage)> {
        match std::mem::take(self) {
            Self::InTurn { turn, stage, .. } => Some((turn, stage)),
            other => {
                *self = other;
                None
            }
        }
    }

    /// If the phase waits for `op`, takes the turn and the data that `take` extracts from its stage, and sets the phase
    /// to idle. Otherwise the outcome is late, and the phase remains unchanged.
    pub(crate) fn take_awaited<T>(
        &mut self,
        op: OpNumber,
        take: impl FnOnce(AgentTurnStage) -> Result<T, AgentTurnStage>,
    ) -> Option<(Box<Turn>, T)> {
        match std::mem::take(self) {
            Self::InTurn { op: awaited, turn, stage } if awaited == op => match take(stage) {
                Ok(data) => return Some((turn, data)),
                Err(stage) => *self = Self::InTurn { op, turn, stage },
            },
            other => *self = other,
        }
        None
    }

    /// Returns the stage of the turn in flight, if the phase waits for `op`.
    pub(crate) fn awaited(&mut self, op: OpNumber) -> Option<(&mut Turn, &mut AgentTurnStage)> {
        match self {
            Self::InTurn { op: awaited, turn, stage } if *awaited == op => Some((turn, stage)),
            _ => None,
        }
    }

    /// Returns whether the run's turns are recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        match self {
            Self::InTurn { turn, .. } => turn.recorded,
            Self::Noticing { then: AfterEventCallback::Continue(between), .. } => between.recorded,
            Self::Idle | Self::Noticing { .. } => false,
        }
    }

    /// Returns the partial response, if the turn has one that is still valid.
    pub(crate) fn partial(&self) -> Option<&Fold> {
        match self.stage()? {
            AgentTurnStage::Streaming { fold, .. } => Some(fold),
            AgentTurnStage::Failing { remains, .. } => remains.partial.as_deref(),
            _ => None,
        }
    }

    /// Returns the part of the response to the request in flight, also of a summary.
    pub(crate) fn received(&self) -> Option<&Fold> {
        match self.stage()? {
            AgentTurnStage::Compacting { fold, .. } => Some(fold),
            _ => self.partial(),
        }
    }

    /// Returns the origin of the run, if one is active.
    pub(crate) fn origin(&self) -> Option<&RunPromptState> {
        match self {
            Self::Noticing { then: AfterEventCallback::Continue(between), .. } => Some(&between.origin),
            other => Some(&other.turn()?.origin),
        }
    }

    /// Returns the responses of the `ask` that started the run, if any.
    pub(crate) fn asked(&self) -> Option<&AskTurnResponses> {
        self.origin()?.asked.as_ref()
    }

    /// Returns the run's origin, and the number of requests that were made or announced for the prompt. If a
    /// continuation follows a committed turn, its first request counts as announced.
    pub(crate) fn origin_mut(&mut self) -> Option<(&mut RunPromptState, u32)> {
        match self {
            Self::Noticing { then: AfterEventCallback::Continue(between), .. } => {
                Some((&mut between.origin, between.step + 1))
            }
            Self::InTurn { turn, .. } => Some((&mut turn.origin, turn.step)),
            Self::Idle | Self::Noticing { .. } => None,
        }
    }

    /// Returns the number of the operation for which the phase waits.
    pub(crate) fn op(&self) -> Option<OpNumber> {
        match self {
            Self::Idle | Self::InTurn { stage: AgentTurnStage::Paused { .. }, .. } => None,
            Self::Noticing { op, .. } | Self::InTurn { op, .. } => Some(*op),
        }
    }

    /// Returns the number of the running callback. Returns `None` if the callback is a `handle_event` that was not
    /// polled yet.
    pub(crate) fn callback(&self) -> Option<OpNumber> {
        match self {
            Self::InTurn { stage: AgentTurnStage::Streaming { question, .. }, .. } => {
                question.as_ref().filter(|question| question.paused.is_none()).map(|question| question.op)
            }
            Self::Noticing { begun: false, .. }
            | Self::InTurn { stage: AgentTurnStage::Noticing { begun: false }, .. } => None,
            other => other.op(),
        }
    }

    /// If the phase waits for `handle_event` with the number `op`, returns the flag that states whether `handle_event`
    /// has begun.
    pub(crate) fn event_begun(&mut self, op: OpNumber) -> Option<&mut bool> {
        match self {
            Self::Noticing { op: awaited, begun, .. }
            | Self::InTurn { op: awaited, stage: AgentTurnStage::Noticing { begun }, .. }
                if *awaited == op =>
            {
                Some(begun)
            }
            _ => None,
        }
    }

    /// Returns the pauses that wait for a decision: in the order of the tool uses, or, if running tools ask, in the
    /// order of the questions.
    pub(crate) fn pauses(&self) -> impl Iterator<Item = &Arc<PendingUse>> {
        let (asked, tools, questions) = match self.stage() {
            Some(AgentTurnStage::Paused { tools }) => (None, Some(tools), None),
            Some(AgentTurnStage::Streaming { question: Some(question), .. }) => {
                (question.paused.as_ref(), None, None)
            }
            Some(AgentTurnStage::Executing { questions, .. }) => (None, None, Some(questions)),
            _ => (None, None, None),
        };
        let questions = questions.into_iter().flatten().map(|question| &question.pause);
        asked.into_iter().chain(tools.into_iter().flat_map(|tools| tools.pauses())).chain(questions)
    }

    /// Returns the pauses of the provider's question and of the tool uses of a step, to change them.
    pub(crate) fn pauses_mut(&mut self) -> impl Iterator<Item = &mut Arc<PendingUse>> {
        let (asked, tools) = match self {
            Self::InTurn { stage: AgentTurnStage::Paused { tools }, .. } => (None, Some(tools)),
            Self::InTurn { stage: AgentTurnStage::Streaming { question: Some(question), .. }, .. } => {
                (question.paused.as_mut(), None)
            }
            _ => (None, None),
        };
        asked.into_iter().chain(tools.into_iter().flat_map(|tools| tools.pauses_mut()))
    }

    /// Returns the tool runs whose results were not emitted yet.
    pub(crate) fn tool_runs(&self) -> Vec<ToolRun> {
        let (slots, reviewed) = match self.stage() {
            Some(AgentTurnStage::Executing { slots, .. }) => (slots, 0),
            Some(AgentTurnStage::Reviewing { slots, reviewed }) => (slots, reviewed.len()),
            Some(AgentTurnStage::Failing { remains, .. }) => (&remains.slots, remains.reviewed.len()),
            _ => return Vec::new(),
        };
        slots[reviewed..].iter().filter(|slot| slot.has_started()).map(ToolUseSlot::run).collect()
    }
}

impl AgentTurnStage {
    /// Returns the tool uses of a step whose pauses are recorded but not reported yet.
    pub(crate) fn unreported(&self) -> Option<&StepToolUses> {
        match self {
            Self::Deciding { tools } => {
                Some(tools).filter(|tools| tools.next().is_none()).map(|tools| &**tools)
            }
            Self::Recovering(recovering) => recovering.stage.unreported(),
            _ => None,
        }
    }

    /// Like [`unreported`](Self::unreported), to add a decision.
    pub(crate) fn unreported_mut(&mut self) -> Option<&mut StepToolUses> {
        match self {
            Self::Deciding { tools } => Some(&mut **tools).filter(|tools| tools.next().is_none()),
            Self::Recovering(recovering) => recovering.stage.unreported_mut(),
            _ => None,
        }
    }

    /// Returns whether tools run, and each of them waits for a decision about a tool of a sub-agent that is a session, and
    /// can be repeated to continue this sub-agent.
    pub(crate) fn only_delegates(&self) -> bool {
        let Self::Executing { slots, .. } = self else { return false };
        let mut open = slots.iter().filter(|slot| slot.result.is_none()).peekable();
        open.peek().is_some() && open.all(|slot| slot.waits && slot.replay != Replay::Never)
    }

    /// Returns the number of results that the stage contains. A reviewed result counts twice, because it is one step
    /// further.
    pub(crate) fn results(&self) -> usize {
        let (slots, reviewed) = match self {
            Self::Executing { slots, .. } => (slots, 0),
            Self::Reviewing { slots, reviewed } => (slots, reviewed.len()),
            Self::Failing { remains, .. } => (&remains.slots, remains.reviewed.len()),
            Self::Concluding { end } => return end.decided.len(),
            Self::Recovering(recovering) => return recovering.stage.results(),
            _ => return 0,
        };
        slots.iter().filter(|slot| slot.result.is_some()).count() + 2 * reviewed
    }

    /// Returns the parts of the step that are not part of the turn's messages yet.
    pub(crate) fn into_remains(self, turn: &Turn) -> UnfinishedStep {
        match self {
            Self::Streaming { fold, .. } => UnfinishedStep::of(fold),
            Self::Deciding { tools } | Self::Paused { tools } => {
                UnfinishedStep { answers: tools.into_answers(), ..UnfinishedStep::default() }
            }
            Self::Executing { slots, .. } => UnfinishedStep { slots, ..UnfinishedStep::default() },
            Self::Reviewing { slots, reviewed } => {
                UnfinishedStep { slots, reviewed, ..UnfinishedStep::default() }
            }
            Self::Concluding { end } if !end.decided.is_empty() => {
                let decided = |tool_use: &ToolUse| {
                    let mut decided = end.decided.iter();
                    let own = decided.find(|result| result.tool_use_id == tool_use.id);
                    let Some(result) = own else { return DecisionOrPause::Decided(Decision::Execute, None) };
                    DecisionOrPause::Decided(Decision::Provide(result.clone()), None)
                };
                let answers = turn.working.all().open_tool_uses().map(decided).collect();
                UnfinishedStep { answers, ..UnfinishedStep::default() }
            }
            Self::Failing { remains, .. } => *remains,
            Self::Recovering(recovering) => recovering.stage.into_remains(turn),
            _ => UnfinishedStep::default(),
        }
    }
}

/// Returns a function for [`AgentPhase::take_awaited`]. The function takes the data of a stage that matches a pattern.
macro_rules! in_stage {
    ($stage:pat => $data:expr) => {
        |stage| match stage {
            $stage => Ok($data),
            other => Err(other),
        }
    };
}
pub(super) use in_stage;

//! The phases of an agent, as data. Everything here can be written down and taken up again: no clock, no
//! channel, no trait object.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeSeq};
use serde_json::Value;

#[cfg(any(test, debug_assertions))]
use super::Status;
use super::{Config, Failure, Prompt, Response};
use crate::{
    message::{Blocks, History, Message, ToolResult, ToolUse, Usage},
    provider::{Corrections, Fold, Model, Options, OutputSchema},
    tool::Decision,
};

/// Names one effect whose outcome comes back; an outcome of another is a ghost, and dropped.
pub(crate) type Op = u64;

/// What the agent is in the middle of. Each phase owns what it needs, and drops it by being left.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Phase {
    /// Nothing.
    #[default]
    Idle,
    /// `handle_event` runs: between runs, or between two turns of one. Before it has `begun`, its event still waits.
    Noticing { op: Op, begun: bool, then: AfterEvent },
    /// `prepare_step` runs.
    Preparing { op: Op, turn: Box<Turn> },
    /// The answer streams in.
    Streaming { op: Op, turn: Box<Turn>, fold: Box<Fold>, question: Option<Box<Question>> },
    /// `handle_tool_use` runs for the use after the decided ones.
    Deciding { op: Op, turn: Box<Turn>, tools: Box<Tools> },
    /// The use after the decided ones waits for `resume`.
    Paused { turn: Box<Turn>, tools: Box<Tools>, reason: Value },
    /// The tools run.
    Executing { op: Op, turn: Box<Turn>, slots: Vec<Slot> },
    /// `handle_tool_result` runs for the slot after the reviewed ones.
    Reviewing { op: Op, turn: Box<Turn>, slots: Vec<Slot>, reviewed: Vec<ToolResult> },
    /// `handle_turn` runs.
    Concluding { op: Op, turn: Box<Turn>, response: Arc<Response> },
    /// `handle_error` runs.
    Failing { op: Op, turn: Box<Turn>, failure: Failure, remains: Box<Remains> },
    /// The step is repeated after a delay.
    Delaying { op: Op, turn: Box<Turn> },
}

/// What follows when `handle_event` is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum AfterEvent {
    /// Nothing: the agent is idle meanwhile.
    Rest,
    /// The continuation of the turn that was committed before.
    Continue(Box<Between>),
    /// The turn that a prompt began meanwhile.
    Prepare(Box<Turn>),
}

/// A continuation that waits while `handle_event` runs between two turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Between {
    pub(crate) content: Blocks,
    pub(crate) origin: Origin,
    pub(crate) step: u32,
}

/// A question of the provider, in mid-stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) op: Op,
    pub(crate) tool_use: ToolUse,
    /// Why it waits for `resume`, if it does.
    pub(crate) paused: Option<Value>,
}

/// The tool uses of a step, and the decisions on the first of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tools {
    pub(crate) uses: Vec<ToolUse>,
    pub(crate) decisions: Vec<Decision>,
}

impl Tools {
    /// The use that waits for its decision.
    pub(crate) fn next(&self) -> Option<&ToolUse> {
        self.uses.get(self.decisions.len())
    }
}

/// The place of one tool use's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Slot {
    pub(crate) tool_use: ToolUse,
    /// What the tool is run with, where that is not what the model sent.
    pub(crate) input: Option<Value>,
    pub(crate) result: Option<ToolResult>,
}

/// What a step that broke off leaves, for an interrupt to keep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remains {
    /// The answer as far as it came.
    pub(crate) partial: Option<Box<Fold>>,
    /// The decisions on the first tool uses, if the rest was not decided yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) decisions: Vec<Decision>,
    /// The places of the results, if all tool uses were decided.
    pub(crate) slots: Vec<Slot>,
    /// The reviewed results, which subscribers have seen.
    pub(crate) reviewed: Vec<ToolResult>,
}

impl Remains {
    pub(crate) fn of(partial: Box<Fold>) -> Self {
        Self { partial: Some(partial), ..Self::default() }
    }
}

/// One call of a tool that the shell is to make.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ToolCall {
    /// The place of its result.
    pub(crate) slot: usize,
    /// The tool use, with the input to run it with.
    pub(crate) tool_use: ToolUse,
    /// The same for a repetition of this call, and for no other call.
    pub(crate) idempotency_key: Arc<str>,
}

/// Where a run of turns comes from: a prompt, its options, and who waits for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Origin {
    /// The prompt's options; its content has become a message.
    pub(crate) prompt: Arc<Prompt>,
    /// The provider that the prompt's key and headers are for, if it brought some.
    #[serde(skip)]
    pub(crate) secrets_of: Option<Box<str>>,
    /// The limit of requests in force for it.
    pub(crate) max_steps: Option<u32>,
    /// What `ask` has gathered, if somebody asked.
    pub(crate) asked: Option<Box<Asked>>,
}

/// What the turns of an `ask` brought so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Asked {
    turns: Vec<Arc<Response>>,
}

impl Asked {
    pub(crate) fn add(&mut self, response: &Arc<Response>) {
        self.turns.push(Arc::clone(response));
    }

    /// The last turn's response, with the messages and the usage of all; none before a turn is complete.
    pub(crate) fn response(&self) -> Option<Arc<Response>> {
        Some(match &*self.turns {
            [] => return None,
            [only] => Arc::clone(only),
            [.., last] => Arc::new(Response {
                messages: self.turns.iter().flat_map(|turn| turn.messages.iter().cloned()).collect(),
                usage: self.turns.iter().map(|turn| turn.usage).sum(),
                ..Response::clone(last)
            }),
        })
    }
}

/// The turn in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Turn {
    /// Tells this turn from every other, across restarts.
    #[serde(with = "hex")]
    pub(crate) id: u128,
    pub(crate) origin: Origin,
    /// The committed history and what is pending.
    pub(crate) working: Working,
    /// Requests made since the prompt was taken.
    pub(crate) step: u32,
    /// How many messages were pending when the current request began.
    pub(crate) step_start: usize,
    pub(crate) usage: Usage,
    /// The model that answered last, as the service names it.
    pub(crate) model: Option<String>,
    pub(crate) warnings: Vec<String>,
    /// Answers that did not fit the output schema.
    #[serde(default, skip_serializing_if = "Corrections::is_empty")]
    pub(crate) corrections: Corrections,
    /// What the last request's answer has to be like.
    #[serde(default, skip_serializing_if = "OutputRequirement::is_nothing")]
    pub(crate) wanted: OutputRequirement,
    /// Whether the service held the last answer to the output schema.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) output_enforced: bool,
}

/// What an answer has to be like, as its request said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OutputRequirement {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) output: Option<OutputSchema>,
    /// How often it may be asked for again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retries: Option<u32>,
}

impl OutputRequirement {
    pub(crate) fn of(options: &Options) -> Self {
        Self { output: options.output.clone(), retries: options.output_retries }
    }

    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// A number as text: JSON readers round or refuse one of this size.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(number: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        u128::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
    }
}

impl Turn {
    /// The conversation as the next request has it.
    pub(crate) fn conversation(&self) -> History {
        self.corrections.after(self.working.all())
    }

    /// The model of the next request.
    pub(crate) fn model_in<'a>(&'a self, config: &'a Config) -> &'a Model {
        self.origin.prompt.model.as_ref().unwrap_or(&config.model)
    }

    /// Whether the prompt's requests are used up.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.origin.max_steps.is_some_and(|max| self.step >= max)
    }
}

/// The committed history with the pending messages after it. Written down, it is the pending ones only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Working {
    all: History,
    committed: usize,
}

impl Working {
    pub(crate) fn new(committed: &History) -> Self {
        Self { all: committed.clone(), committed: committed.len() }
    }

    pub(crate) fn push(&mut self, message: Arc<Message>) {
        self.all.push(message);
    }

    /// Everything, committed and pending.
    pub(crate) fn all(&self) -> &History {
        &self.all
    }

    pub(crate) fn pending(&self) -> impl DoubleEndedIterator<Item = &Arc<Message>> {
        (self.committed..self.all.len()).filter_map(|index| self.all.get(index))
    }

    pub(crate) fn pending_len(&self) -> usize {
        self.all.len() - self.committed
    }

    /// Puts the pending messages after `committed`, all of them or the first `keep`.
    pub(crate) fn rebase(&mut self, committed: &History, keep: usize) {
        let mut all = committed.clone();
        all.extend(self.pending().take(keep).cloned());
        *self = Self { all, committed: committed.len() };
    }
}

impl Working {
    /// Puts `message` in the place of the last pending one.
    pub(crate) fn replace_last(&mut self, committed: &History, message: Arc<Message>) {
        self.rebase(committed, self.pending_len().saturating_sub(1));
        self.push(message);
    }
}

impl PartialEq for Working {
    fn eq(&self, other: &Self) -> bool {
        self.pending().eq(other.pending())
    }
}

impl Serialize for Working {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.pending_len()))?;
        self.pending().try_for_each(|message| seq.serialize_element(message))?;
        seq.end()
    }
}

impl<'de> Deserialize<'de> for Working {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self { all: History::deserialize(deserializer)?, committed: 0 })
    }
}

impl Phase {
    /// What the agent tells of itself in this phase.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn status(&self) -> Status {
        match self {
            Self::Idle | Self::Noticing { then: AfterEvent::Rest, .. } => Status::Idle,
            Self::Paused { .. } => Status::Paused,
            Self::Streaming { question: Some(question), .. } if question.paused.is_some() => Status::Paused,
            _ => Status::Busy,
        }
    }

    /// The turn in flight, if one is.
    pub(crate) fn turn(&self) -> Option<&Turn> {
        match self {
            Self::Idle | Self::Noticing { then: AfterEvent::Rest | AfterEvent::Continue(_), .. } => None,
            Self::Noticing { then: AfterEvent::Prepare(turn), .. }
            | Self::Preparing { turn, .. }
            | Self::Streaming { turn, .. }
            | Self::Deciding { turn, .. }
            | Self::Paused { turn, .. }
            | Self::Executing { turn, .. }
            | Self::Reviewing { turn, .. }
            | Self::Concluding { turn, .. }
            | Self::Failing { turn, .. }
            | Self::Delaying { turn, .. } => Some(turn),
        }
    }

    fn turn_mut(&mut self) -> Option<&mut Turn> {
        match self {
            Self::Idle | Self::Noticing { then: AfterEvent::Rest | AfterEvent::Continue(_), .. } => None,
            Self::Noticing { then: AfterEvent::Prepare(turn), .. }
            | Self::Preparing { turn, .. }
            | Self::Streaming { turn, .. }
            | Self::Deciding { turn, .. }
            | Self::Paused { turn, .. }
            | Self::Executing { turn, .. }
            | Self::Reviewing { turn, .. }
            | Self::Concluding { turn, .. }
            | Self::Failing { turn, .. }
            | Self::Delaying { turn, .. } => Some(turn),
        }
    }

    /// Puts what was read of a turn in flight after the committed history, which is stored apart.
    #[cfg(test)]
    pub(crate) fn rebase(&mut self, committed: &History) {
        if let Some(turn) = self.turn_mut() {
            turn.working.rebase(committed, usize::MAX);
        }
    }

    /// Takes the turn out; the phase is idle then. A phase without a turn stays.
    pub(crate) fn take_turn(&mut self) -> Option<Box<Turn>> {
        match std::mem::take(self) {
            Self::Noticing { then: AfterEvent::Prepare(turn), .. }
            | Self::Preparing { turn, .. }
            | Self::Streaming { turn, .. }
            | Self::Deciding { turn, .. }
            | Self::Paused { turn, .. }
            | Self::Executing { turn, .. }
            | Self::Reviewing { turn, .. }
            | Self::Concluding { turn, .. }
            | Self::Failing { turn, .. }
            | Self::Delaying { turn, .. } => Some(turn),
            other @ (Self::Idle | Self::Noticing { .. }) => {
                *self = other;
                None
            }
        }
    }

    /// The answer that was streaming in, and is not void yet.
    pub(crate) fn partial(&self) -> Option<&Fold> {
        match self {
            Self::Streaming { fold, .. } => Some(fold),
            Self::Failing { remains, .. } => remains.partial.as_deref(),
            _ => None,
        }
    }

    /// Takes out what the step has brought beside the turn's messages.
    pub(crate) fn take_remains(&mut self) -> Remains {
        match self {
            Self::Streaming { fold, .. } => Remains::of(std::mem::take(fold)),
            Self::Deciding { tools, .. } | Self::Paused { tools, .. } => {
                Remains { decisions: std::mem::take(&mut tools.decisions), ..Remains::default() }
            }
            Self::Executing { slots, .. } => Remains { slots: std::mem::take(slots), ..Remains::default() },
            Self::Reviewing { slots, reviewed, .. } => {
                let (slots, reviewed) = (std::mem::take(slots), std::mem::take(reviewed));
                Remains { slots, reviewed, ..Remains::default() }
            }
            Self::Concluding { turn, response, .. } if !response.decided.is_empty() => {
                let decided = |tool_use: &ToolUse| {
                    let mut decided = response.decided.iter();
                    let own = decided.find(|result| result.tool_use_id == tool_use.id);
                    own.map_or(Decision::Execute, |result| Decision::Provide(result.clone()))
                };
                let decisions = turn.working.all().open_tool_uses().map(decided).collect();
                Remains { decisions, ..Remains::default() }
            }
            Self::Failing { remains, .. } => std::mem::take(&mut **remains),
            _ => Remains::default(),
        }
    }

    /// Who asked, if the run answers an `ask`.
    pub(crate) fn asked(&self) -> Option<&Asked> {
        let origin = match self {
            Self::Noticing { then: AfterEvent::Continue(between), .. } => &between.origin,
            other => &other.turn()?.origin,
        };
        origin.asked.as_deref()
    }

    /// Where the run comes from, and the requests made for it so far, or announced: a turn that follows the
    /// committed one has been told.
    pub(crate) fn origin_mut(&mut self) -> Option<(&mut Origin, u32)> {
        if let Self::Noticing { then: AfterEvent::Continue(between), .. } = self {
            return Some((&mut between.origin, between.step + 1));
        }
        let turn = self.turn_mut()?;
        Some((&mut turn.origin, turn.step))
    }

    /// The operation that the phase waits for.
    pub(crate) fn op(&self) -> Option<Op> {
        match self {
            Self::Idle | Self::Paused { .. } => None,
            Self::Noticing { op, .. }
            | Self::Preparing { op, .. }
            | Self::Streaming { op, .. }
            | Self::Deciding { op, .. }
            | Self::Executing { op, .. }
            | Self::Reviewing { op, .. }
            | Self::Concluding { op, .. }
            | Self::Failing { op, .. }
            | Self::Delaying { op, .. } => Some(*op),
        }
    }

    /// What the agent waits for, if it is paused.
    pub(crate) fn waiting(&self) -> Option<(&ToolUse, &Value)> {
        match self {
            Self::Paused { tools, reason, .. } => Some((tools.next()?, reason)),
            Self::Streaming { question: Some(question), .. } => {
                Some((&question.tool_use, question.paused.as_ref()?))
            }
            _ => None,
        }
    }
}

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Failure, KnownPrompt, Prompt};
use crate::{
    message::{Message, TurnId, id::NodeId},
    provider::StopReason,
    setters::setters,
    subscription::EventId,
};

/// The end of a run, with the prompts that got no answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RunEnd {
    /// The outcome of the run.
    #[serde(flatten)]
    pub outcome: RunOutcome,
    /// The last turn of the run. `None` if the run was ended between two turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The prompts of the last turn, if the turn was discarded because the run was cancelled or has failed. The history
    /// does not contain them. If the run has failed or was about a message of the tree, a session's tree contains them. Empty
    /// if the turn was committed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered: Vec<Arc<Message>>,
    /// The staged prompts that were not used, without their models, API keys and headers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staged: Vec<Arc<Prompt>>,
    /// The last node of the history that belongs to the run. `None` if the node was not recorded with the end, or if
    /// the run has added no node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub through: Option<NodeId>,
    /// The last prompts of the conversation that have an id, with the latest prompt at the end. Empty if no prompts were
    /// recorded with the end of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<KnownPrompt>,
    /// The last event of the session's feed that changed anything. Stores keep it only until the next write, and return
    /// it as [`Stored::mark`](crate::store::custom::Stored::mark).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<EventId>,
}

setters! {
    RunEnd: with_turn(turn: some TurnId), with_unanswered(unanswered: Vec<Arc<Message>>),
        with_staged(staged: Vec<Arc<Prompt>>), with_through(through: some NodeId),
        with_prompts(prompts: Vec<KnownPrompt>), with_mark(mark: some EventId)
}

impl RunEnd {
    /// Returns the end of a run with this outcome, without prompts.
    pub fn new(outcome: RunOutcome) -> Self {
        Self {
            outcome,
            turn: None,
            unanswered: Vec::new(),
            staged: Vec::new(),
            through: None,
            prompts: Vec::new(),
            mark: None,
        }
    }

    /// Returns the same end without the messages of prompts, or `None` if it contains none.
    pub(crate) fn without_messages(&self) -> Option<Self> {
        let has_messages = !self.unanswered.is_empty() || !self.staged.is_empty();
        has_messages.then(|| Self { unanswered: Vec::new(), staged: Vec::new(), ..self.clone() })
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        self.unanswered.iter().map(|message| message.weight()).sum::<usize>()
            + self.staged.iter().map(|prompt| prompt.weight()).sum::<usize>()
            + size_of_val(self.prompts.as_slice())
    }

    /// Returns whether every prompt of the run got an answer.
    pub fn is_complete(&self) -> bool {
        matches!(self.outcome, RunOutcome::Stopped { .. }) && self.staged.is_empty()
    }
}

/// The outcome of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunOutcome {
    /// The run ended with [`Event::Turn`](crate::agent::Event::Turn). Its last turn is part of the
    /// history.
    Stopped {
        /// The stop reason of the last turn.
        stop_reason: StopReason,
    },
    /// The run ended with [`Event::Cancelled`](crate::agent::Event::Cancelled).
    Cancelled,
    /// The run ended with [`Event::Error`](crate::agent::Event::Error). If its last turn was committed,
    /// [`RunEnd::unanswered`] is empty.
    Failed {
        /// The reason for the failure.
        failure: Failure,
    },
    /// The run was ended after too many restarts without progress. It ended with
    /// [`Event::Turn`](crate::agent::Event::Turn) or [`Event::Cancelled`](crate::agent::Event::Cancelled), and
    /// the stop reason of its last turn is [`StopReason::Abandoned`].
    Abandoned,
    /// The recorded turn of the run was dropped when its conversation was opened again.
    Discarded,
}

impl RunOutcome {
    pub(crate) fn stopped(stop_reason: &StopReason) -> Self {
        Self::Stopped { stop_reason: stop_reason.clone() }
    }

    /// Replaces the texts that may quote messages, because these messages are erased.
    pub(crate) fn erase_texts(&mut self) {
        if let Self::Failed { failure } = self {
            failure.erase_texts();
        }
    }
}

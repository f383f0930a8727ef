//! The right to change an agent's history.

use std::{fmt, sync::Arc};

use super::{
    AgentError, Prompt, Snapshot, Status, WeakAgent,
    command::{Command, Outcome, Reply},
};
use crate::{
    message::{History, Message},
    subscription::{End, EventId},
};

/// The right to change the history of an agent that was started with
/// [`start_owned`](super::AgentBuilder::start_owned). It does not keep the agent alive.
///
/// # Cancel safety
///
/// As for the operations of [`Agent`](super::Agent): dropping the future of an operation before it is done does
/// not take the operation back.
pub struct HistoryOwner {
    agent: WeakAgent,
}

/// Where an agent is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Moment {
    /// The last event that was told.
    pub last: EventId,
    /// What the agent is doing.
    pub status: Status,
}

impl HistoryOwner {
    pub(super) fn new(agent: WeakAgent) -> Self {
        Self { agent }
    }

    /// Where the agent is: what came before this moment, whoever asked for it, is told up to `last`.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`].
    pub async fn moment(&self) -> Result<Moment, AgentError> {
        self.agent.call(Command::Moment).await.map_err(stopped)
    }

    /// Replaces the history and fires a `state` event, whose id it gives.
    ///
    /// # Errors
    ///
    /// [`AgentError::Busy`] unless the agent is idle; [`AgentError::InvalidHistory`].
    pub async fn set(&self, history: History) -> Result<EventId, AgentError> {
        self.change(|reply| Command::SetHistory(Box::new((history, reply)))).await
    }

    /// Begins a run on another history, in one step. The first event is a `state` with `base`, whose id this
    /// gives; then the run tells of itself as any other.
    ///
    /// If the run ends in `cancelled` or `error` before a turn of it is committed, the history of before is back:
    /// another `state` event follows at once, before anything else begins. After the first commit nothing is
    /// taken back.
    ///
    /// # Errors
    ///
    /// [`AgentError::Busy`] unless the agent is idle; [`AgentError::InvalidHistory`] for `base`; for the prompt
    /// as [`Agent::prompt`](super::Agent::prompt).
    pub async fn prompt(&self, base: History, prompt: impl Into<Prompt>) -> Result<EventId, AgentError> {
        let prompt = prompt.into();
        self.change(|reply| Command::PromptOn(Box::new((base, prompt, reply)))).await
    }

    /// As [`prompt`](Self::prompt), with `message` as it is, its time included, so that it is answered anew.
    ///
    /// # Errors
    ///
    /// As [`prompt`](Self::prompt), and [`AgentError::NotAPrompt`] unless it is a user message without tool
    /// results.
    pub async fn answer(&self, base: History, message: Arc<Message>) -> Result<EventId, AgentError> {
        self.change(|reply| Command::Answer(Box::new((base, message, reply)))).await
    }

    async fn change(
        &self,
        command: impl FnOnce(Reply<Outcome<EventId>>) -> Command,
    ) -> Result<EventId, AgentError> {
        self.agent.call(command).await.map_err(stopped)?
    }
}

fn stopped(end: End<Snapshot>) -> AgentError {
    AgentError::Stopped(end.reason)
}

impl fmt::Debug for HistoryOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HistoryOwner").finish_non_exhaustive()
    }
}

//! The right to change an agent's history.

use std::{fmt, sync::Arc};

use tokio::sync::oneshot;

use super::{
    AgentError, Prompt, Response, Snapshot, Status, WeakAgent,
    command::{Change, Command},
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

/// The message that a run on another history begins with.
#[derive(Debug, PartialEq)]
pub(crate) enum Opening {
    /// A new one.
    Prompt(Prompt),
    /// This one, unchanged, with the settings of a prompt.
    Message(Arc<Message>, Prompt),
}

/// The place that the response of a run goes to.
pub(crate) type Asker = oneshot::Sender<Result<Arc<Response>, AgentError>>;

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

    /// Replaces the history and fires a `state` event, whose id it gives. With `at`, only if that is the last event
    /// that was told: the owner has seen it, and nothing happened since.
    ///
    /// # Errors
    ///
    /// [`AgentError::Busy`] unless the agent is idle; [`AgentError::Moved`]; [`AgentError::InvalidHistory`].
    pub async fn set(&self, at: Option<EventId>, history: History) -> Result<EventId, AgentError> {
        self.change(at, Change::Set(history)).await
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
    /// As [`set`](Self::set), with [`AgentError::InvalidHistory`] for `base`; for the prompt as
    /// [`Agent::prompt`](super::Agent::prompt).
    pub async fn prompt(
        &self,
        at: Option<EventId>,
        base: History,
        prompt: impl Into<Prompt>,
    ) -> Result<EventId, AgentError> {
        self.begin(at, base, Opening::Prompt(prompt.into()), None).await
    }

    /// As [`prompt`](Self::prompt), with `message` as it is, its time included, so that it is answered anew.
    ///
    /// # Errors
    ///
    /// As [`prompt`](Self::prompt), and [`AgentError::NotAPrompt`] unless it is a user message. Its tool results must
    /// answer the open tool uses of `base`, all of them.
    pub async fn answer(
        &self,
        at: Option<EventId>,
        base: History,
        message: Arc<Message>,
    ) -> Result<EventId, AgentError> {
        self.begin(at, base, Opening::Message(message, Prompt::default()), None).await
    }

    /// As [`prompt`](Self::prompt) and [`answer`](Self::answer). `asker` gets the response, as from
    /// [`Agent::ask`](super::Agent::ask).
    pub(crate) async fn begin(
        &self,
        at: Option<EventId>,
        base: History,
        opening: Opening,
        asker: Option<Asker>,
    ) -> Result<EventId, AgentError> {
        self.change(at, Change::Begin(base, opening, asker)).await
    }

    /// Ends the agent if nothing goes on and nothing waits to, not even an application event; tells whether it did.
    /// With `at`, only if that is the last event that was told.
    ///
    /// # Errors
    ///
    /// [`AgentError::Stopped`] if it has ended already.
    pub async fn retire(&self, at: Option<EventId>) -> Result<bool, AgentError> {
        self.agent.call(|reply| Command::Retire(Box::new((at, reply)))).await.map_err(stopped)
    }

    async fn change(&self, at: Option<EventId>, change: Change) -> Result<EventId, AgentError> {
        let command = |reply| Command::Change(Box::new((at, change, reply)));
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

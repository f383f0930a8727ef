//! The right to change an agent's history.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{LastStoredRecordNumber, Prompt, Response, Status, WeakAgent, command::AgentCommand};
use crate::{
    message::{History, Message, TurnId},
    run::Error,
    subscription::EventId,
    telemetry::CallerSpan,
};

/// The right to change the history of an agent that was started with [`start_owned`](super::AgentBuilder::start_owned).
/// The owner does not keep the agent alive.
///
/// # Cancel safety
///
/// Dropping the future of an operation does not withdraw the operation. The same applies to the operations of
/// [`Agent`](super::Agent).
pub(crate) struct HistoryChangeRight {
    agent: WeakAgent,
    /// `None` if the agent makes no records.
    written: Option<Arc<LastStoredRecordNumber>>,
}

/// The first message of a run on another history.
#[derive(Debug, PartialEq)]
pub(crate) enum FirstMessageOfRun {
    /// A new message with the prompt's content.
    Prompt(Prompt),
    /// This message, unchanged, with the settings of a prompt.
    Message(Arc<Message>, Prompt),
}

/// The sender that delivers the response of a run to the caller of `ask`.
pub(crate) type AskResponseTx = oneshot::Sender<Result<Arc<Response>, Error>>;

/// The agent's last event, its last record and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub(crate) struct LatestEventAndStatus {
    /// The id of the last event that was emitted.
    pub(crate) last: EventId,
    /// The number of the last record, or 0 if the agent has made none.
    pub(crate) record: u64,
    /// The status of the agent.
    pub(crate) status: Status,
}

impl HistoryChangeRight {
    pub(super) fn new(agent: WeakAgent, written: Option<Arc<LastStoredRecordNumber>>) -> Self {
        Self { agent, written }
    }

    /// Returns the agent's last event, its last record and its status. The effects of all earlier calls, from any
    /// handle, are included in the events up to `last` and in the records up to `record`.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the agent has ended.
    pub(crate) async fn position(&self) -> Result<LatestEventAndStatus, Error> {
        self.agent.call(AgentCommand::Position).await.map_err(|end| Error::ended("agent", &end.reason))
    }

    /// Replaces the history, emits a `state` event, and returns the event's id. If `at` is given, the operation
    /// succeeds only if `at` is the last emitted event. Success then means that the owner has seen every event.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`](crate::ErrorKind::Busy) if the agent is not idle. Returns
    /// [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) if `at` is not the last event. Returns
    /// [`ErrorKind::Config`](crate::ErrorKind::Config) if the history is invalid.
    pub(crate) async fn set(&self, at: Option<EventId>, history: History) -> Result<EventId, Error> {
        self.change(at, history, false).await
    }

    /// Replaces the history like [`set`](Self::set), and removes all earlier events from memory, because they may
    /// contain erased messages. Subscribers that have not seen all events get a new snapshot.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`set`](Self::set).
    pub(crate) async fn erase(&self, at: Option<EventId>, history: History) -> Result<EventId, Error> {
        self.change(at, history, true).await
    }

    /// Replaces the history and starts a run on it, in one step. The first event is a `state` event with `base`. The
    /// operation returns this event's id and the first turn. The run's own events follow. `asker` receives the response,
    /// as from [`Agent::ask`](super::Agent::ask). The run's span is a child of the `caller`'s span.
    ///
    /// If the run ends with `cancelled` or `error` before it has committed a turn, the previous history is restored.
    /// Another `state` event then follows directly, before anything else starts. After the first commit, nothing is
    /// restored.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`set`](Self::set), with [`ErrorKind::Config`](crate::ErrorKind::Config) for `base`. For a
    /// prompt, also returns the errors of [`Agent::prompt`](super::Agent::prompt). A message is sent unchanged, so the
    /// model can respond to the same message again. Therefore, the operation fails with
    /// [`ErrorKind::NotAPrompt`](crate::ErrorKind::NotAPrompt) if the message is not a user message, and with
    /// [`ErrorKind::InvalidPrompt`](crate::ErrorKind::InvalidPrompt) if the tool results in the message do not cover
    /// all open tool uses of `base`.
    pub(crate) async fn begin(
        &self,
        at: Option<EventId>,
        base: History,
        opening: FirstMessageOfRun,
        asker: Option<AskResponseTx>,
        caller: CallerSpan,
    ) -> Result<(EventId, TurnId), Error> {
        let command = |reply| AgentCommand::Begin(at, base, opening, asker, caller, reply);
        self.agent.call(command).await.map_err(|end| Error::ended("agent", &end.reason))?
    }

    /// Ends the agent if nothing is in progress, no prompt and no application event is queued, and all emitted events
    /// are delivered. Also ends the agent if it is paused and its turn in flight is stored. The turn then stays in
    /// flight. Returns whether the agent ends. If `at` is given, the agent ends only if `at` is the last emitted event.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the agent has already ended.
    pub(crate) async fn retire(&self, at: Option<EventId>) -> Result<bool, Error> {
        self.agent
            .call(|reply| AgentCommand::Retire(at, reply))
            .await
            .map_err(|end| Error::ended("agent", &end.reason))
    }

    /// Reports that all records up to this number are stored, together with the events up to them. This releases the
    /// effects and replies that wait for them.
    pub(crate) fn written(&self, number: u64) {
        if let Some(written) = &self.written {
            written.report(number);
        }
    }

    /// Starts the recovery of a turn in flight that was given to [`in_flight`](super::AgentBuilder::in_flight). Does
    /// nothing if there is none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the agent has ended.
    pub(crate) async fn take_up(&self) -> Result<(), Error> {
        self.agent.call(AgentCommand::TakeUp).await.map_err(|end| Error::ended("agent", &end.reason))
    }

    /// Leaves the turn in flight to another process, and records it, even if nothing has required a record so far. The
    /// record is the one whose number a later [`moment`](Self::moment) returns, or an earlier one. From now on, no
    /// effect that waits for a record is performed, and the records state that it has not started. Does nothing if the
    /// agent makes no records.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Ended`](crate::ErrorKind::Ended) if the agent has ended.
    pub(crate) async fn leave(&self) -> Result<(), Error> {
        self.agent.call(AgentCommand::Leave).await.map_err(|end| Error::ended("agent", &end.reason))
    }

    async fn change(&self, at: Option<EventId>, history: History, erases: bool) -> Result<EventId, Error> {
        let command = |reply| AgentCommand::Change(at, history, erases, reply);
        self.agent.call(command).await.map_err(|end| Error::ended("agent", &end.reason))?
    }
}

crate::debug::impl_debug!(HistoryChangeRight { .. });

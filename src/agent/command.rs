//! The commands that a handle sends to its agent's task.

use std::{any::Any, error::Error as StdError, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Accepted, AskResponseTx, Compact, Event, FirstMessageOfRun, LatestEventAndStatus, Prompt, PromptId,
    Snapshot, State, StateEdit, Status, core::ResumeDecisions,
};
use crate::{
    message::{History, TurnId},
    run::Error,
    subscription::{EventId, SubscriptionStart},
    telemetry::CallerSpan,
};

pub(super) type AgentReplyTx<T> = oneshot::Sender<T>;
pub(super) type AgentCommandResult<T> = Result<T, Error>;
pub(super) type StateEditFn =
    Box<dyn FnOnce(&mut StateEdit) -> Result<(), Box<dyn StdError + Send + Sync>> + Send>;

/// The command that ends the agent.
pub(super) struct StopAgentCommand {
    pub(super) deadline: Duration,
    pub(super) in_flight: AgentStopTurnPolicy,
    pub(super) reply: AgentReplyTx<AgentCommandResult<()>>,
}

/// The treatment of the turn in flight when the agent ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AgentStopTurnPolicy {
    /// The turn is interrupted, so its completed steps are committed.
    #[default]
    Keep,
    /// The turn is cancelled, so the history stays as it was before the turn.
    Discard,
    /// The turn stays in flight, because it is stored and the next owner of the conversation continues it. Its work is
    /// aborted without an event.
    Leave,
}

/// The reply to a subscriber: the point in the stream of events at which its subscription begins.
pub(super) type AgentSubscriptionReply = AgentReplyTx<SubscriptionStart<Snapshot, Event>>;

/// An event of the application.
type AppEvent = Box<dyn Any + Send>;

/// A command of a handle or of the history's owner.
///
/// Commands are sent in a box to keep the channel's slots small: tokio allocates the slots in blocks of 32, and even an
/// idle agent holds one block.
pub(super) enum AgentCommand {
    Prompt(Prompt, CallerSpan, AgentReplyTx<AgentCommandResult<Accepted>>),
    Ask(Prompt, CallerSpan, AskResponseTx),
    Compact(Compact, CallerSpan, AskResponseTx),
    Unstage(PromptId, AgentReplyTx<AgentCommandResult<Arc<Prompt>>>),
    Resume(ResumeDecisions, AgentReplyTx<AgentCommandResult<()>>),
    /// If a turn is given, the run is cancelled only while this turn is in flight.
    Cancel(Option<TurnId>, AgentReplyTx<AgentCommandResult<()>>),
    /// If a turn is given, the run is interrupted only while this turn is in flight.
    Interrupt(Option<TurnId>, AgentReplyTx<AgentCommandResult<()>>),
    Notify(AppEvent, AgentReplyTx<AgentCommandResult<()>>),
    SetState(StateEditFn, AgentReplyTx<AgentCommandResult<()>>),
    State(AgentReplyTx<State>),
    Status(AgentReplyTx<Status>),
    Snapshot(AgentReplyTx<Snapshot>),
    Subscribe(Option<EventId>, AgentSubscriptionReply),
    WaitIdle(AgentReplyTx<()>),
    Position(AgentReplyTx<LatestEventAndStatus>),
    /// Replaces the history, for its owner. The flag states whether messages were erased.
    Change(Option<EventId>, History, bool, AgentReplyTx<AgentCommandResult<EventId>>),
    /// Starts a run on another history, for the history's owner.
    Begin(
        Option<EventId>,
        History,
        FirstMessageOfRun,
        Option<AskResponseTx>,
        CallerSpan,
        AgentReplyTx<AgentCommandResult<(EventId, TurnId)>>,
    ),
    TakeUp(AgentReplyTx<()>),
    Leave(AgentReplyTx<()>),
    Retire(Option<EventId>, AgentReplyTx<bool>),
    Stop(StopAgentCommand),
}

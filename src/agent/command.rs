//! The commands that a handle sends to its agent's task.

use std::{any::Any, error::Error as StdError, sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{
    Accepted, AgentPosition, Asker, Compact, Event, FirstMessage, Prompt, PromptId, Snapshot, State,
    StateEdit, Status, core::Resume,
};
use crate::{
    message::{History, TurnId},
    run::Error,
    subscription::{EventId, SubscriptionStart},
    telemetry::Caller,
};

pub(super) type Reply<T> = oneshot::Sender<T>;
pub(super) type CommandResult<T> = Result<T, Error>;
pub(super) type Edit = Box<dyn FnOnce(&mut StateEdit) -> Result<(), Box<dyn StdError + Send + Sync>> + Send>;

/// The command that ends the agent.
pub(super) struct Stop {
    pub(super) deadline: Duration,
    pub(super) in_flight: InFlight,
    pub(super) reply: Reply<CommandResult<()>>,
}

/// The treatment of the turn in flight when the agent ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InFlight {
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
pub(super) type AttachmentReply = Reply<SubscriptionStart<Snapshot, Event>>;

/// An event of the application.
type AppEvent = Box<dyn Any + Send>;

/// A command of a handle or of the history's owner.
///
/// Commands are sent in a box to keep the channel's slots small: tokio allocates the slots in blocks of 32, and even an
/// idle agent holds one block.
pub(super) enum Command {
    Prompt(Prompt, Caller, Reply<CommandResult<Accepted>>),
    Ask(Prompt, Caller, Asker),
    Compact(Compact, Caller, Asker),
    Unstage(PromptId, Reply<CommandResult<Arc<Prompt>>>),
    Resume(Resume, Reply<CommandResult<()>>),
    Cancel(Reply<CommandResult<()>>),
    /// If a turn is given, the run is interrupted only while this turn is in flight.
    Interrupt(Option<TurnId>, Reply<CommandResult<()>>),
    Notify(AppEvent, Reply<CommandResult<()>>),
    SetState(Edit, Reply<CommandResult<()>>),
    State(Reply<State>),
    Status(Reply<Status>),
    Snapshot(Reply<Snapshot>),
    Subscribe(Option<EventId>, AttachmentReply),
    WaitIdle(Reply<()>),
    Position(Reply<AgentPosition>),
    /// Replaces the history, for its owner. The flag states whether messages were erased.
    Change(Option<EventId>, History, bool, Reply<CommandResult<EventId>>),
    /// Starts a run on another history, for the history's owner.
    Begin(
        Option<EventId>,
        History,
        FirstMessage,
        Option<Asker>,
        Caller,
        Reply<CommandResult<(EventId, TurnId)>>,
    ),
    TakeUp(Reply<()>),
    Leave(Reply<()>),
    Retire(Option<EventId>, Reply<bool>),
    Stop(Stop),
}

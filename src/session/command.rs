//! The commands that a handle sends to the session's task.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{Regenerate, SessionError, SessionEvent, SessionSnapshot};
use crate::{
    agent::{AgentError, InFlight, Prompt, Response},
    subscription::{Attachment, EventId},
    tree::{NodeId, Tree},
};

pub(super) type Reply<T> = oneshot::Sender<T>;
pub(super) type CommandResult<T> = Result<T, SessionError>;

/// A command to end the session.
pub(super) struct Stop {
    pub(super) deadline: Duration,
    pub(super) in_flight: InFlight,
    pub(super) reply: Reply<CommandResult<()>>,
}

/// The reply to a subscriber: its place in the stream of events.
pub(super) type AttachmentReply = Reply<Attachment<SessionSnapshot, SessionEvent>>;

/// The data that is not in the store.
#[derive(Clone, Debug)]
pub(super) struct Unsaved {
    /// The number of messages. With 0, only the path or the state is unsaved.
    pub(super) nodes: usize,
    pub(super) error: Option<String>,
}

impl Unsaved {
    /// Converts it into the error after a wait of this length.
    pub(super) fn after(self, waited: Duration) -> SessionError {
        SessionError::Unsaved { nodes: self.nodes, waited, error: self.error }
    }
}

/// The run that a command starts, and the node where it starts.
#[derive(Clone, Debug)]
pub(super) enum RunStart {
    Regenerate(Regenerate),
    Edit(NodeId, Prompt),
    Branch(Option<NodeId>, Prompt),
}

/// The response of a run, for a command that waits for it.
pub(super) type PendingResponse = oneshot::Receiver<Result<Arc<Response>, AgentError>>;

/// Whether a command waits for the response of the run that it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    ForStart,
    ForResponse,
}

/// Sent in a box: tokio allocates a channel's slots in blocks of 32, and an idle session keeps one block.
pub(super) enum Command {
    Begin(RunStart, Wait, Reply<CommandResult<Option<PendingResponse>>>),
    Navigate(Option<NodeId>, Reply<CommandResult<()>>),
    SetTitle(Option<Arc<str>>, Reply<()>),
    SuggestTitle(Arc<str>, Reply<bool>),
    Title(Reply<Option<Arc<str>>>),
    Sleep(Reply<bool>),
    Tree(Reply<Tree>),
    Snapshot(Reply<Box<SessionSnapshot>>),
    Subscribe(Option<EventId>, AttachmentReply),
    /// The deadline, or `None` if it is too far away for the clock.
    Flush(Option<Instant>, Reply<()>),
    Unsaved(Reply<Option<Unsaved>>),
    Stop(Stop),
}

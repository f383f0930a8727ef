//! The commands that a handle sends to the session's task.

use std::{sync::Arc, time::Duration};

use tokio::{sync::oneshot, time::Instant};

use super::{PromptOutcome, SessionEvent, SessionSnapshot};
use crate::{
    agent::AgentStopTurnPolicy,
    message::{TurnId, UsageRow},
    run::{Error, ErrorKind, PromptId, Response, RunSpec},
    store::Labels,
    subscription::{EventId, SubscriptionStart},
    telemetry::CallerSpan,
    tree::{NodeId, Tree},
};

pub(super) type SessionReplyTx<T> = oneshot::Sender<T>;
pub(super) type SessionCommandResult<T> = Result<T, Error>;
/// The sender of the reply to a caller that waits for the outcome of a prompt.
pub(super) type OutcomeReply = SessionReplyTx<SessionCommandResult<PromptOutcome>>;

/// The parameters of a command that ends the session.
pub(super) struct StopSessionCommand {
    pub(super) deadline: Duration,
    pub(super) in_flight: AgentStopTurnPolicy,
    pub(super) reply: SessionReplyTx<SessionCommandResult<()>>,
}

/// The sender of the reply to a subscriber: the point in the stream of events at which the subscription begins.
pub(super) type SessionSubscriptionReply = SessionReplyTx<SubscriptionStart<SessionSnapshot, SessionEvent>>;

/// The changes that are not in the store.
#[derive(Clone, Debug)]
pub(super) struct UnsavedChangesReport {
    /// The number of unsaved messages. If it is 0, only the path or the state is unsaved.
    pub(super) nodes: usize,
    pub(super) error: Option<String>,
}

impl UnsavedChangesReport {
    /// Converts the unsaved changes into the error of a call that has waited this long.
    pub(super) fn after(self, waited: Duration) -> Error {
        let nodes = match self.nodes {
            0 => "the path or the state is not in the store".to_owned(),
            1 => "1 message is not in the store".to_owned(),
            many => format!("{many} messages are not in the store"),
        };
        let why = self.error.as_ref().map(|error| format!("; saving fails: {error}")).unwrap_or_default();
        let error = Error::new(ErrorKind::Unsaved, format!("after {waited:?} {nodes}{why}"));
        let error = error.with_member("nodes", self.nodes).with_member("waited", waited);
        match self.error {
            Some(cause) => error.with_member("error", cause),
            None => error,
        }
    }
}

/// The first turn of a run, and the response for a caller that waits for it.
pub(super) type StartedRun = (TurnId, Option<oneshot::Receiver<Result<Arc<Response>, Error>>>);

/// Commands are sent in a box to keep the channel's slots small: tokio allocates the slots in blocks of 32, and even an
/// idle session holds one block.
pub(super) enum SessionTaskCommand {
    /// Starts a run at another place than the end of the path.
    Begin(RunSpec, CallerSpan, SessionReplyTx<SessionCommandResult<StartedRun>>),
    Navigate(Option<NodeId>, SessionReplyTx<SessionCommandResult<()>>),
    Erase(NodeId, SessionReplyTx<SessionCommandResult<()>>),
    SetLabels(Labels, SessionReplyTx<()>),
    Store(SessionReplyTx<()>),
    Labels(SessionReplyTx<Labels>),
    Spent(UsageRow, SessionReplyTx<()>),
    SetTitle(Option<Arc<str>>, SessionReplyTx<()>),
    SuggestTitle(Arc<str>, Option<NodeId>, SessionReplyTx<bool>),
    Title(SessionReplyTx<Option<Arc<str>>>),
    Sleep(SessionReplyTx<bool>),
    Tree(SessionReplyTx<Tree>),
    Snapshot(SessionReplyTx<SessionSnapshot>),
    Subscribe(Option<EventId>, SessionSubscriptionReply),
    /// Waits for everything to be saved, up to the deadline. The deadline is `None` if it is too far away for the
    /// clock.
    Flush(Option<Instant>, SessionReplyTx<()>),
    /// Waits for the outcome of a prompt.
    Outcome(PromptId, OutcomeReply),
    Unsaved(SessionReplyTx<Option<UnsavedChangesReport>>),
    Stop(StopSessionCommand),
}

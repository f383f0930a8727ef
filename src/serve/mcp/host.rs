//! The conversations that a client may use.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{BoxError, StartRequest};
use crate::{
    error_chain,
    manager::{Listed, Manager, OpenOptions, OpenedSession},
    panics::contained,
    run::Error,
    session::{Mode, Session, SessionSubscription},
    store::{ConversationId, Filter, Labels, Page},
};

/// The maximum number of concurrent calls of a client that is connected over standard input and output.
pub(super) const MOST_CALLS: usize = 64;

/// The reason why an operation is refused, in words for the client.
pub(super) type Refusal = String;

/// The operation for which a conversation is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Prompt,
    /// Follows a prompt until it is answered.
    Follow,
    Decide,
    Stop,
}

/// The conversations of one client, and what it may do with them.
#[async_trait]
pub(super) trait Host: Send + Sync {
    /// Returns the name that is recorded with decisions of the client. `client` is the name of the client's program.
    fn decider(&self, client: Option<&str>) -> Option<Arc<str>>;

    /// Counts a call of the client until the permit is dropped. Fails if the client has too many calls.
    fn permit(&self) -> Result<Box<dyn Send>, Refusal>;

    /// Creates a conversation and subscribes to it.
    async fn create(&self) -> Result<OpenedSession, Refusal>;

    /// Opens a conversation and subscribes to it.
    async fn open(&self, id: &ConversationId, purpose: Purpose) -> Result<OpenedSession, Refusal>;

    /// Returns the session of a conversation, or `None` if the conversation is not open.
    async fn running(&self, id: &ConversationId, purpose: Purpose) -> Result<Option<Session>, Refusal>;

    /// Returns a page of the list of conversations. The caller removes the conversations that the client may not see.
    async fn list(&self, page: Page) -> Result<Vec<Listed>, Refusal>;

    /// Returns whether the client may see a conversation with these labels in the list.
    fn may_list(&self, labels: &Labels) -> bool;

    /// Checks whether the client may use a conversation with these labels for this purpose.
    fn check(&self, purpose: Purpose, labels: &Labels) -> Result<(), Refusal>;

    /// Returns the token that is cancelled when the server is about to stop.
    fn draining(&self) -> CancellationToken;
}

/// Opens a conversation for this purpose. The labels of the snapshot are checked too, because they may have changed
/// while the conversation was opened.
pub(super) async fn open(
    host: &dyn Host,
    id: &ConversationId,
    purpose: Purpose,
) -> Result<(Session, SessionSubscription), Refusal> {
    let (session, events) = parts(host.open(id, purpose).await?)?;
    let snapshot = events.snapshot().ok_or("the conversation has no snapshot")?;
    host.check(purpose, &snapshot.labels)?;
    Ok((session, events))
}

/// Returns the session and the subscription of an opened conversation.
pub(super) fn parts(opened: OpenedSession) -> Result<(Session, SessionSubscription), Refusal> {
    let OpenedSession { session, subscription, .. } = opened;
    Ok((session, subscription.ok_or("the session has no subscription")?))
}

/// The error for a conversation that does not exist, or that the client may not use.
pub(super) fn unknown() -> Refusal {
    "there is no such conversation".to_owned()
}

type Started = std::pin::Pin<Box<dyn Future<Output = Result<OpenOptions, BoxError>> + Send>>;

/// The conversations of a manager with certain labels, for a client over a pipe.
pub(super) struct Local {
    pub(super) manager: Manager,
    pub(super) labels: Labels,
    pub(super) calls: Arc<Semaphore>,
    pub(super) start: Box<dyn Fn(StartRequest) -> Started + Send + Sync>,
}

impl Local {
    /// Asks the application for the agent of a conversation.
    async fn options(&self, conversation: Option<&ConversationId>) -> Result<OpenOptions, Refusal> {
        let failed = |why: String| format!("the agent can't be started: {why}");
        let request = StartRequest { conversation: conversation.cloned() };
        let started = contained(|| (self.start)(request)).map_err(failed)?;
        let options = started.await.map_err(|error| failed(error_chain(&*error)))?;
        let options = options.add_labels(&self.labels).map_err(|error| failed(error_chain(&error)))?;
        Ok(options.subscribe(Some(Mode::Controller)))
    }

    async fn known(&self, id: &ConversationId, purpose: Purpose) -> Result<(), Refusal> {
        // Without labels, the store need not support labels.
        if self.labels.is_empty() {
            return Ok(());
        }
        self.check(purpose, &self.manager.labels_of(id).await.map_err(|error| refused(&error))?)
    }
}

fn refused(error: &Error) -> Refusal {
    if error.is_not_found() { unknown() } else { error_chain(error) }
}

#[async_trait]
impl Host for Local {
    fn decider(&self, client: Option<&str>) -> Option<Arc<str>> {
        client.map(Arc::from)
    }

    fn permit(&self) -> Result<Box<dyn Send>, Refusal> {
        match Arc::clone(&self.calls).try_acquire_owned() {
            Ok(permit) => Ok(Box::new(permit)),
            Err(_) => Err(format!("{MOST_CALLS} calls are running already; wait for some of them")),
        }
    }

    async fn create(&self) -> Result<OpenedSession, Refusal> {
        self.manager.create(self.options(None).await?).await.map_err(|error| refused(&error))
    }

    async fn open(&self, id: &ConversationId, purpose: Purpose) -> Result<OpenedSession, Refusal> {
        self.known(id, purpose).await?;
        self.manager.open(id, self.options(Some(id)).await?).await.map_err(|error| refused(&error))
    }

    async fn running(&self, id: &ConversationId, purpose: Purpose) -> Result<Option<Session>, Refusal> {
        self.known(id, purpose).await?;
        Ok(self.manager.get(id))
    }

    async fn list(&self, page: Page) -> Result<Vec<Listed>, Refusal> {
        self.manager.list((Filter::with(self.labels.clone()), page)).await.map_err(|error| refused(&error))
    }

    fn may_list(&self, _: &Labels) -> bool {
        true
    }

    fn check(&self, _: Purpose, labels: &Labels) -> Result<(), Refusal> {
        let is_own = Filter::with(self.labels.clone()).matches(labels);
        if is_own { Ok(()) } else { Err(unknown()) }
    }

    fn draining(&self) -> CancellationToken {
        // A client over a pipe is served until its pipe ends.
        CancellationToken::new()
    }
}

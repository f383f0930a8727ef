//! The conversations that a client may use.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{
    access::{Agents, Principal, StartRequest, Via},
    error_chain,
    manager::{Listed, Manager, OpenOptions, OpenedSession},
    panics::contained_async,
    run::Error,
    session::{Mode, Session, SessionSubscription},
    store::{ConversationId, Labels, Page},
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

/// The conversations of a manager with certain labels, for a client over a pipe.
pub(super) struct Local {
    pub(super) manager: Manager,
    /// The owner of all conversations with the labels of the server.
    pub(super) principal: Principal,
    pub(super) calls: Arc<Semaphore>,
    pub(super) agents: Box<dyn Agents>,
}

impl Local {
    /// Asks the application for the agent of a conversation.
    async fn options(
        &self,
        conversation: Option<&ConversationId>,
        labels: &Labels,
    ) -> Result<OpenOptions, Refusal> {
        let failed = |why: String| format!("the agent can't be started: {why}");
        let (conversation, labels) = (conversation.cloned(), labels.clone());
        let request = StartRequest { conversation, labels, via: Via::Mcp, ..StartRequest::default() };
        let started = contained_async(self.agents.start(&self.principal, &request)).await.map_err(failed)?;
        let labelled = started.and_then(|options| options.add_labels(self.principal.labels()));
        let options = labelled.map_err(|error| failed(error_chain(&error)))?;
        Ok(options.subscribe(Some(Mode::Controller)))
    }

    /// Returns the labels of a conversation, if the client may use it.
    async fn known(&self, id: &ConversationId, purpose: Purpose) -> Result<Labels, Refusal> {
        // Without labels, the store need not support labels.
        if self.principal.is_operator() {
            return Ok(Labels::default());
        }
        let labels = self.manager.labels_of(id).await.map_err(|error| refused(&error))?;
        self.check(purpose, &labels).map(|()| labels)
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
        let options = self.options(None, self.principal.labels()).await?;
        self.manager.create(options).await.map_err(|error| refused(&error))
    }

    async fn open(&self, id: &ConversationId, purpose: Purpose) -> Result<OpenedSession, Refusal> {
        let labels = self.known(id, purpose).await?;
        self.manager.open(id, self.options(Some(id), &labels).await?).await.map_err(|error| refused(&error))
    }

    async fn running(&self, id: &ConversationId, purpose: Purpose) -> Result<Option<Session>, Refusal> {
        self.known(id, purpose).await?;
        Ok(self.manager.get(id))
    }

    async fn list(&self, page: Page) -> Result<Vec<Listed>, Refusal> {
        self.manager.list((self.principal.filter(), page)).await.map_err(|error| refused(&error))
    }

    fn may_list(&self, _: &Labels) -> bool {
        true
    }

    fn check(&self, _: Purpose, labels: &Labels) -> Result<(), Refusal> {
        if self.principal.owns(labels) { Ok(()) } else { Err(unknown()) }
    }

    fn draining(&self) -> CancellationToken {
        // A client over a pipe is served until its pipe ends.
        CancellationToken::new()
    }
}

//! Closes, deletes, renames and labels conversations, and ends all sessions.

use std::{collections::BTreeMap, future::ready, sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};
use tracing::Instrument;

use super::{
    Manager, ManagerShared,
    opening::{aborted, in_a_task},
};
use crate::{
    actor::FairYield,
    agent::AgentStopTurnPolicy,
    run::{Error, ErrorKind},
    session::{ConversationLease, Session},
    store::{Change, ConversationId, Labels, Lease, StateChange, StoreError, Summary, TitleBy, Write},
};

/// A change of the title or the labels of a conversation.
#[derive(Clone)]
pub(crate) enum TitleOrLabels {
    Title(Option<Arc<str>>),
    Labels(Labels),
}

impl From<TitleOrLabels> for StateChange {
    fn from(change: TitleOrLabels) -> Self {
        match change {
            TitleOrLabels::Title(title) => {
                Self::Title { title: title.as_deref().map(str::to_owned), by: TitleBy::Person }
            }
            TitleOrLabels::Labels(labels) => Self::Labels(labels),
        }
    }
}

/// The treatment of turns in flight when all sessions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownTurnPolicy {
    /// The turns are interrupted.
    Stop,
    /// Recorded turns are left to the next owners of their conversations. Other turns are interrupted.
    HandOver,
}

/// The maximum number of times that a title or labels are written again after a conflict.
const RENAME_TRIES: usize = 8;

/// The time limit for ending a session is divided into this number of equal parts. The last part is reserved for
/// stopping the session. During the other parts, the manager waits for the session's title.
const SHARE_FOR_STOPPING: u32 = 8;

/// The number of sessions that a shutdown starts to end together. They form a portion.
const PORTION: usize = 64;

/// The number of scheduler rounds in which a portion can end before the next portion starts. An idle session needs
/// about a dozen rounds.
const ROUNDS: usize = 64;

impl ManagerShared {
    /// Ends the session with this id, if there is one.
    pub(super) async fn close(
        self: &Arc<Self>,
        id: &ConversationId,
        in_flight: AgentStopTurnPolicy,
    ) -> Result<(), Error> {
        let (claim, session) = self.claim(id).await;
        let Some(session) = session else {
            return Ok(());
        };
        let inner = Arc::clone(self);
        in_a_task(self.patience(), async move {
            let begun = Instant::now();
            let ended = inner.end(&session, Duration::ZERO, inner.close_timeout, in_flight).await;
            inner.calls_left(&claim.id, None, inner.close_timeout.saturating_sub(begun.elapsed())).await;
            drop(claim);
            ended
        })
        .await
        .unwrap_or_else(|reason| Err(aborted(id, &reason)))
    }

    /// Deletes a conversation after ending its session.
    pub(super) async fn delete(
        self: &Arc<Self>,
        id: &ConversationId,
        check: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let (claim, session) = self.claim(id).await;
        check.await?;
        let entered = self.registry().calls.entered();
        let below = self.descendants(id).await?;
        // A call can store another sub-agent after the list was read.
        let are_at_work = self.registry().calls.are_at_work(id, &below);
        // Nothing is deleted if a part can't be.
        let elsewhere = |child: &Summary| {
            let owner = child.owner.clone().filter(|owner| owner.name != self.owner.name)?;
            Some(StoreError::Owned { id: child.id.clone(), owner })
        };
        if let Some(error) = below.iter().find_map(elsewhere) {
            return Err(error.into());
        }
        let (inner, id, limit) = (Arc::clone(self), id.clone(), self.close_timeout);
        let gone = id.clone();
        in_a_task(self.patience(), async move {
            let begun = Instant::now();
            if let Some(session) = session {
                // Unsaved changes would be deleted anyway, so an error does not matter.
                let _ = session.stop_discarding(limit).await;
            }
            // The session may have ended before its calls.
            inner.calls_left(&id, None, limit.saturating_sub(begun.elapsed())).await;
            let is_complete = !are_at_work && inner.registry().calls.entered() == entered;
            if !is_complete || !below.is_empty() {
                inner.discard_deleted(&id).await?;
            }
            let first = async {
                let mut below = if is_complete { below } else { inner.descendants(&id).await? };
                while !below.is_empty() {
                    for child in below.into_iter().rev() {
                        Box::pin(inner.delete_one(&child.id)).await?;
                    }
                    below = if is_complete { Vec::new() } else { inner.descendants(&id).await? };
                }
                Ok(())
            };
            inner.delete_stored(&id, first).await?;
            inner.registry().emit_deleted(&id);
            drop(claim);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(aborted(&gone, &reason)))
    }

    /// Deletes the conversation of a sub-agent without those below it.
    async fn delete_one(self: &Arc<Self>, id: &ConversationId) -> Result<(), Error> {
        let (_claim, session) = self.claim(id).await;
        match session {
            Some(session) => drop(session.stop_discarding(self.close_timeout).await),
            // The end of its call has deleted it.
            None if matches!(self.store.summary(id).await, Err(StoreError::NotFound { .. })) => return Ok(()),
            None => {}
        }
        self.calls_left(id, None, self.close_timeout).await;
        self.delete_stored(id, ready(Ok(()))).await?;
        self.registry().emit_deleted(id);
        Ok(())
    }

    /// Sets the title or the labels of a conversation, whether it is open or not, and stores the change. Labels are also
    /// set for all sub-agents below it.
    pub(super) async fn describe<F: Future<Output = Result<(), Error>>>(
        self: &Arc<Self>,
        id: &ConversationId,
        change: TitleOrLabels,
        check: impl Fn() -> F,
    ) -> Result<(), Error> {
        if let TitleOrLabels::Title(_) = &change {
            return self.describe_one(id, change, check).await;
        }
        if id.is_of_sub_agent() && self.own_labels(id).await?.get(Labels::PARENT).is_some() {
            check().await?;
            return Err(Error::labels_of_a_sub_agent(id));
        }
        let described = self.describe_one(id, change, check).await;
        let is_shown = described.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::ChangeUnsaved);
        if !is_shown || !self.store.traits().labels {
            return described;
        }
        let (inner, root) = (Arc::clone(self), id.clone());
        let labelled = in_a_task(self.patience(), async move {
            // A call that begins now reads the new labels of the root.
            inner.calls_labelled(&root).await;
            inner.label_descendants(&root).await
        });
        described.and(labelled.await.unwrap_or_else(|reason| Err(aborted(id, &reason))))
    }

    pub(super) async fn describe_one<F: Future<Output = Result<(), Error>>>(
        self: &Arc<Self>,
        id: &ConversationId,
        change: TitleOrLabels,
        check: impl Fn() -> F,
    ) -> Result<(), Error> {
        let claim = loop {
            let (claim, session) = self.claim(id).await;
            check().await?;
            let Some(session) = session else { break claim };
            let described = match &change {
                TitleOrLabels::Title(title) => session.set_title(title.as_deref()).await,
                TitleOrLabels::Labels(labels) => session.relabel(labels.clone()).await,
            };
            match described {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Ended => {
                    session.ended().await;
                    check().await?;
                    break claim;
                }
                Err(error) => return Err(error),
            }
            // Release the id, so that other callers can open and close the session while the store is writing.
            drop(claim);
            match self.is_flushed(&session).await {
                Ok(true) => return Ok(()),
                // The loop continues, and the change is written directly to the store.
                Ok(false) => {}
                Err(cause) => {
                    let text = format!(
                        "the new title or labels of conversation {id} are not stored yet; the open session keeps \
                         them and stores them later: {cause}"
                    );
                    let error = Error::new(ErrorKind::ChangeUnsaved, text).with_source(cause);
                    return Err(error.with_member("conversation", id));
                }
            }
        };
        let (inner, id) = (Arc::clone(self), id.clone());
        let cut_off = id.clone();
        let described = in_a_task(self.patience(), async move {
            inner.describe_stored(&id, change.clone().into()).await?;
            match change {
                TitleOrLabels::Title(title) => inner.registry().set_stored_title(&id, title),
                TitleOrLabels::Labels(labels) => inner.registry().set_stored_labels(&id, labels),
            }
            drop(claim);
            Ok(())
        });
        described.await.unwrap_or_else(|reason| Err(aborted(&cut_off, &reason)))
    }

    /// Waits until the store has all changes of a session. Returns `false` if the session has ended before.
    pub(super) async fn is_flushed(&self, session: &Session) -> Result<bool, Error> {
        match session.flush(self.close_timeout).await {
            Err(error) if error.kind() == ErrorKind::Ended => {
                session.ended().await;
                let stopped = session.stop(Duration::ZERO).await;
                Ok(stopped.err().is_none_or(|error| error.kind() == ErrorKind::Deadline))
            }
            flushed => flushed.map(|()| true),
        }
    }

    /// Deletes a conversation that is not open, after `first`. Until then, no other process can open it.
    async fn delete_stored(
        &self,
        id: &ConversationId,
        first: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let tenure = match self.setup.acquire(&self.store, id).await {
            Ok(tenure) => tenure,
            // The conversation does not exist, but a crash may have left parts of it in the store, so let the store
            // delete them.
            Err(StoreError::NotFound { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        first.await?;
        let lease = tenure.as_ref().map(ConversationLease::lease).transpose()?;
        let deleted = self.store.delete(id, lease.as_ref()).await;
        if let Some(tenure) = tenure {
            tenure.end(None).await;
        }
        Ok(deleted?)
    }

    /// Sets the title or the labels of a conversation that is not open in this manager. If another manager or process
    /// has the conversation open, there are two cases: if the store supports owners, the operation fails. Otherwise,
    /// the other session adopts the title or the labels.
    async fn describe_stored(&self, id: &ConversationId, change: StateChange) -> Result<(), StoreError> {
        let tenure = self.setup.acquire(&self.store, id).await?;
        let lease = tenure.as_ref().map(ConversationLease::lease).transpose()?;
        let described = self.describe_under(lease.as_ref(), id, change).await;
        if let Some(tenure) = tenure {
            tenure.end(None).await;
        }
        described
    }

    async fn describe_under(
        &self,
        lease: Option<&Lease>,
        id: &ConversationId,
        change: StateChange,
    ) -> Result<(), StoreError> {
        let change = Change::State(change);
        let mut version = self.store.summary(id).await?.version;
        let mut tries = 0;
        loop {
            let write = Write::on(version);
            let write = lease.map_or(write, |lease| write.under(lease));
            match self.store.write(id, &write, &change).await {
                // A title and labels do not depend on the changes of other writers, so after a conflict, write them on
                // the current version.
                Err(StoreError::Conflict { current, .. }) if tries < RENAME_TRIES => version = current,
                described => return described.map(|_| ()),
            }
            tries += 1;
        }
    }

    /// Ends a session cleanly. A run may continue for the time `grace`, and is then interrupted or cancelled. After
    /// that, the generation of a title and the saving may take up to `limit` together.
    async fn end(
        &self,
        session: &Session,
        grace: Duration,
        limit: Duration,
        in_flight: AgentStopTurnPolicy,
    ) -> Result<(), Error> {
        let is_idle = !grace.is_zero() && timeout(grace, session.wait_until_idle()).await.is_ok();
        let begun = Instant::now();
        let titled = async {
            if !is_idle {
                // If the turn has nothing to keep, the interrupt cancels the turn. If the turn is already complete, the
                // interrupt does nothing.
                let _ = match in_flight {
                    AgentStopTurnPolicy::Keep => session.interrupt().await,
                    AgentStopTurnPolicy::Discard => session.cancel().await,
                    AgentStopTurnPolicy::Leave => Ok(()),
                };
            }
            self.titled(session).await;
        };
        // Wait only for the title. The session saves its turns by itself in the meantime.
        let _ = timeout(limit.saturating_sub(limit / SHARE_FOR_STOPPING), titled).await;
        session.end_within(limit.saturating_sub(begun.elapsed()), in_flight).await
    }

    /// Ends these sessions, and returns those that ended with unsaved changes or another error. A run in flight is
    /// ended when the grace period has passed since `begun`.
    ///
    /// Each session is ended in its own task, because a single task that polls very many futures uses up its tokio
    /// budget and then polls all of them in vain, again and again. The sessions are ended in portions, so that the data
    /// of a session is still in the processor's cache when its task is polled again. If a portion is slow, the next
    /// portion starts anyway.
    async fn end_all(
        self: &Arc<Self>,
        sessions: Vec<Session>,
        begun: Instant,
        limits: Shutdown,
        ending: ShutdownTurnPolicy,
    ) -> Vec<(ConversationId, Error)> {
        let mut ends = JoinSet::new();
        let mut failed = Vec::new();
        for portion in sessions.chunks(PORTION) {
            let others = ends.len();
            for session in portion {
                let (inner, session) = (Arc::clone(self), session.clone());
                let (grace, limit) = (limits.grace.saturating_sub(begun.elapsed()), limits.deadline);
                let one = async move {
                    let ended = match ending {
                        ShutdownTurnPolicy::Stop => {
                            inner.end(&session, grace, limit, AgentStopTurnPolicy::Keep).await
                        }
                        ShutdownTurnPolicy::HandOver => session.hand_over(grace, limit).await,
                    };
                    ended.err().map(|error| (session.id().clone(), error))
                };
                ends.spawn(one.in_current_span());
            }
            for _ in 0..ROUNDS {
                FairYield::begin().over().await;
                while let Some(ended) = ends.try_join_next() {
                    failed.extend(or_panic(ended));
                }
                if ends.len() <= others {
                    break;
                }
            }
        }
        while let Some(ended) = ends.join_next().await {
            failed.extend(or_panic(ended));
        }
        failed
    }
}

/// Returns the outcome of a task. If the task panicked, this panics too.
fn or_panic<T>(outcome: Result<Option<T>, JoinError>) -> Option<T> {
    match outcome.map_err(JoinError::try_into_panic) {
        Ok(value) => value,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime is shutting down and has cancelled the task. The session ends with the runtime.
        Err(Err(_)) => None,
    }
}

// Ends a manager with all its sessions.

impl Manager {
    /// Shuts the manager down and ends all sessions.
    ///
    /// As soon as the call starts, no more conversations are opened and prompts are refused. Active runs may continue
    /// for the [grace period](Shutdown::with_grace), and are interrupted after it. Each session may then use the time
    /// up to the [deadline](Shutdown::within) to finish the title that is being generated for it and to save its
    /// changes. Openings are given up, also those of a [sweep](super::ManagerBuilder::sweep), and the call waits until
    /// their leases are released. A second shutdown succeeds. If a [`Duration`] is given instead of a [`Shutdown`], it is
    /// the deadline, and there is no grace period.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::EndedIncomplete`] lists the sessions that are not completely saved or whose aborted tools are
    /// still running. All sessions are closed in any case.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, some sessions may remain open, but they refuse prompts. Call `shutdown` again to end
    /// them.
    pub async fn shutdown(&self, limits: impl Into<Shutdown>) -> Result<(), Error> {
        self.end_with(limits.into(), ShutdownTurnPolicy::Stop).await
    }

    /// Shuts the manager down like [`shutdown`](Self::shutdown), and leaves turns in flight to the next owners of their
    /// conversations, for example when a new version of a service is deployed.
    ///
    /// In a session with a level above [`Durable::Turns`](crate::agent::Durable::Turns), a run gets the grace period to
    /// end or to pause. After it, the session records its turn and ends its requests and tools. Another manager
    /// continues the turn when it opens the conversation, for instance in its next
    /// [sweep](super::ManagerBuilder::sweep). The restart does not count as a crash. If the turn can't be recorded before
    /// the deadline, it continues from its last record. The runs of other sessions are interrupted, as by `shutdown`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`shutdown`](Self::shutdown).
    ///
    /// # Cancel safety
    ///
    /// As for [`shutdown`](Self::shutdown). A later call of either method ends the remaining sessions.
    pub async fn hand_over(&self, limits: impl Into<Shutdown>) -> Result<(), Error> {
        self.end_with(limits.into(), ShutdownTurnPolicy::HandOver).await
    }

    async fn end_with(&self, limits: Shutdown, ending: ShutdownTurnPolicy) -> Result<(), Error> {
        let Shutdown { grace, deadline } = limits;
        let inner = &self.0;
        inner.registry().is_shut = true;
        inner.shutting.cancel();
        let begun = tokio::time::Instant::now();
        let mut failed = Vec::new();
        loop {
            // The end of a session ends its calls, and these close the sessions of their sub-agents. What is still open
            // at the deadline is ended directly.
            let is_late = begun.elapsed() >= grace.saturating_add(deadline);
            let (sessions, claims) = {
                let registry = inner.registry();
                (registry.sessions(is_late), registry.claims())
            };
            sessions.iter().for_each(Session::drain);
            if sessions.is_empty() && claims.is_empty() {
                break;
            }
            failed.extend(inner.end_all(sessions, begun, limits, ending).await);
            // Also wait until no session is being opened or closed and no call runs, but not beyond the deadline, because a
            // store may hang.
            let left = grace.saturating_add(deadline).saturating_sub(begun.elapsed());
            let claims = async {
                for claim in &claims {
                    claim.cancelled().await;
                }
            };
            if tokio::time::timeout(left, claims).await.is_err() && inner.registry().sessions(true).is_empty()
            {
                break;
            }
            tokio::task::yield_now().await;
        }
        // An opening that was given up may still get its lease from the store, and then releases it. The process may
        // exit after this call, so wait for the release.
        let left = grace.saturating_add(deadline).saturating_sub(begun.elapsed());
        let _ = tokio::time::timeout(left, inner.setup.all_released()).await;
        inner.registry().finish();
        if failed.is_empty() {
            return Ok(());
        }
        let mut named: Vec<_> =
            failed.iter().take(NAMED).map(|(id, error)| format!("{id}: {error}")).collect();
        if failed.len() > NAMED {
            named.push(format!("and {} more", failed.len() - NAMED));
        }
        let text =
            format!("{} of the sessions could not be ended completely: {}", failed.len(), named.join("; "));
        let sessions: BTreeMap<_, _> = failed.into_iter().collect();
        Err(Error::new(ErrorKind::EndedIncomplete, text).with_member("sessions", sessions))
    }
}

/// The number of sessions that the error of a shutdown names in its text.
const NAMED: usize = 3;

impl Error {
    /// Returns the sessions that a shutdown [could not end completely](ErrorKind::EndedIncomplete), with their errors,
    /// which have kinds, texts and members, but no causes.
    pub fn sessions(&self) -> Vec<(ConversationId, Self)> {
        self.typed::<BTreeMap<_, _>>("sessions").into_iter().flatten().collect()
    }
}

/// The time limits of a [shutdown](Manager::shutdown) or a [hand-over](Manager::hand_over).
///
/// ```
/// use std::{collections::BTreeMap, time::Duration};
/// use omni_agent::manager::Shutdown;
///
/// let limits = Shutdown::within(Duration::from_secs(10)).with_grace(Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    grace: Duration,
    deadline: Duration,
}

impl Shutdown {
    /// Returns limits without a grace period: runs end at once, and each session has the time `deadline` to save its
    /// changes.
    pub fn within(deadline: Duration) -> Self {
        Self { grace: Duration::ZERO, deadline }
    }

    /// Returns the same limits with a grace period: active runs have the time `grace` to finish before they are ended.
    /// The time of the deadline begins after the grace period.
    pub fn with_grace(self, grace: Duration) -> Self {
        Self { grace, ..self }
    }
}

impl From<Duration> for Shutdown {
    fn from(deadline: Duration) -> Self {
        Self::within(deadline)
    }
}

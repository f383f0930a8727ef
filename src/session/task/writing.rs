//! Performs writes to the store, concurrently with the session's other work.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{task::JoinHandle, time::timeout};
use tracing::{Instrument, Span};

use super::SessionTask;
use crate::{
    session::{
        core::{ConversationAfterConflict, SessionCore, StoredTurnFingerprint, WriteJob},
        tenure::{ConversationLease, LeaseKeeper, LeaseShared},
    },
    store::{Change, ConversationId, Lease, Owner, Store, StoreError, Stored, Version},
    telemetry::SaveTraces,
    tree::Tree,
};

/// The result of an attempt at a write.
pub(in crate::session) type WriteAttemptResult = Result<WriteOutcome, StoreError>;

/// The outcome of a write that the store has performed or rejected because of a conflict.
pub(in crate::session) enum WriteOutcome {
    /// The write succeeded. If it created the conversation and the store supports owners, the session now owns the
    /// conversation.
    Done(Version, Option<ConversationLease>),
    /// Another writer was first. The store now has this content.
    Conflict(StoreError, Box<ConversationAfterConflict>),
}

/// An attempt at a write.
type WriteFuture = Pin<Box<dyn Future<Output = WriteAttemptResult> + Send>>;

/// The attempts in flight for one write: at most the first attempt and the latest attempt. Both have the same write id,
/// so either attempt may take effect.
#[derive(Default)]
pub(in crate::session) struct InFlightWriteAttempts {
    futures: Vec<WriteFuture>,
    /// The keeper for the lease of a conversation that is being created.
    keeper: Option<Arc<LeaseKeeper>>,
    /// The spans of this write and the next one.
    pub(super) traces: SaveTraces,
}

impl InFlightWriteAttempts {
    fn add(&mut self, attempt: WriteFuture) {
        // The first attempt is kept, because it started earliest and a slow store is likely to finish it first.
        self.futures.truncate(1);
        self.futures.push(attempt);
    }

    /// Waits for the outcome of the write in flight. If no write is in flight, waits forever.
    pub(super) async fn outcome(&mut self) -> WriteAttemptResult {
        poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns the first success, the first permanent failure, or the last of the transient failures.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<WriteAttemptResult> {
        let mut index = 0;
        while let Some(attempt) = self.futures.get_mut(index) {
            let Poll::Ready(written) = attempt.as_mut().poll(cx) else {
                index += 1;
                continue;
            };
            drop(self.futures.remove(index));
            match written {
                Err(error) if error.is_transient() && !self.futures.is_empty() => {}
                written => return Poll::Ready(written),
            }
        }
        Poll::Pending
    }
}

impl SessionTask {
    /// Starts an attempt at a write in a separate task, so that the session is not affected if the store blocks, hangs
    /// or panics. An attempt that takes too long is aborted. An aborted attempt may still have taken effect. The
    /// repetition of the write shows whether it has.
    pub(super) fn begin_write(&mut self, job: Arc<WriteJob>) {
        self.retry = None;
        if matches!(job.1, Change::Create(_)) {
            // The creation of a conversation also acquires it. A second acquisition would end the lease of the first,
            // so the earlier attempt is aborted. The store may still perform its acquisition later. All attempts share
            // a keeper, which gives the lease of such an acquisition to this session.
            self.attempts.futures.clear();
            let keeper = &self.shared.setup.keeper;
            let new = || Arc::new(LeaseKeeper::new(Arc::clone(&self.store)));
            self.attempts.keeper.get_or_insert_with(|| keeper.clone().unwrap_or_else(new));
        }
        let (store, id) = (Arc::clone(&self.store), self.shared.id.clone());
        let place = id.clone();
        let ownership = match (&self.tenure, &*job) {
            (Some(tenure), _) => WriteOwnership::Held(tenure.held()),
            (None, (write, Change::Create(_))) => {
                let setup = &self.shared.setup;
                WriteOwnership::New(setup.creator(write.id), self.attempts.keeper.clone())
            }
            (None, _) => WriteOwnership::Free,
        };
        let attempts = &mut self.attempts;
        // Only commits contain turns, so other writes have no span.
        let span = if matches!(job.1, Change::Commit(_)) { attempts.traces.begin() } else { None };
        let span = span.cloned().unwrap_or_else(Span::none);
        let write = contained(span, perform(store, id, job, ownership));
        let limit = self.shared.setup.write_timeout;
        let attempt = Box::pin(async move {
            timeout(limit, write).await.unwrap_or_else(|_| {
                Err(StoreError::failed(format!("writing conversation {place}"), StoreTimeoutError(limit)))
            })
        });
        attempts.add(attempt);
    }

    /// Closes the spans of writes, because everything is saved.
    pub(super) fn close_traces(&mut self) {
        self.attempts.traces = SaveTraces::default();
    }

    /// Processes the outcome of the write in flight.
    pub(super) fn written(&mut self, mut outcome: WriteAttemptResult) {
        if matches!(outcome, Ok(WriteOutcome::Done(..))) {
            self.attempts.traces.saved();
            self.attempts.keeper = None;
        }
        // The spans of writes that are still to be made or repeated stay open.
        self.attempts.futures.clear();
        self.retry = None;
        if let Ok(WriteOutcome::Done(_, tenure)) = &mut outcome
            && let Some(tenure) = tenure.take()
        {
            self.shared.owns(&tenure);
            self.tenure = Some(tenure);
        }
        self.step(|core, env, effects| match outcome {
            Ok(WriteOutcome::Done(version, _)) => core.written(Ok(version), env, effects),
            Ok(WriteOutcome::Conflict(error, found)) => core.conflicted(&error, *found, env, effects),
            Err(error) => core.written(Err(error), env, effects),
        });
        if self.is_saved() {
            self.close_traces();
        }
        self.answer_flushes();
        if self.is_saved() {
            if std::mem::take(&mut self.idle_when_saved) {
                self.consider_idle_shutdown();
            }
            self.notify_settled();
        }
    }

    /// Repeats a write that failed or has no result.
    pub(super) fn retry(&mut self) {
        self.retry = None;
        self.step(SessionCore::retry);
    }
}

/// Starts a call of the store in a separate task, inside `span`. If the store panics, the call fails with an error.
pub(in crate::session) fn contained<T: Send + 'static>(
    span: Span,
    write: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> impl Future<Output = Result<T, StoreError>> + Send {
    let mut write = AbortOnDrop(tokio::spawn(write.instrument(span)));
    async move {
        let written = (&mut write.0).await;
        written.unwrap_or_else(|panicked| Err(StoreError::failed("a write in the store", panicked)))
    }
}

/// A task that is aborted when nobody waits for it any more. This ensures that a session writes nothing after it has
/// ended.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The ownership under which a write is made.
enum WriteOwnership {
    /// The session owns the conversation.
    Held(Arc<LeaseShared>),
    /// The conversation does not exist yet. This owner will own the conversation after it is created, and the keeper
    /// renews the lease.
    New(Owner, Option<Arc<LeaseKeeper>>),
    /// The session holds no lease, because the store has no owners.
    Free,
}

/// Performs an attempt at a write. If another writer was first, loads the conversation as that writer left it.
// The futures of rare operations are boxed, here and in `write`, because the future of each write is moved into a task.
async fn perform(
    store: Arc<dyn Store>,
    id: ConversationId,
    job: Arc<WriteJob>,
    ownership: WriteOwnership,
) -> WriteAttemptResult {
    match write(&store, &id, &job, ownership).await {
        Err(error @ StoreError::Conflict { .. }) => match Box::pin(find(&*store, &id)).await {
            Ok(found) => Ok(WriteOutcome::Conflict(error, Box::new(found))),
            // The write is repeated after this error. The repetition will fail with the same conflict, and loading the
            // conversation may succeed then.
            Err(failure) if failure.is_transient() => Err(failure),
            Err(_) => Err(error),
        },
        written => written.map(|(version, tenure)| WriteOutcome::Done(version, tenure)),
    }
}

async fn find(store: &dyn Store, id: &ConversationId) -> Result<ConversationAfterConflict, StoreError> {
    let Stored { version, state, nodes, head, cursors, next, turn, .. } = store.load(id).await?;
    let flight = StoredTurnFingerprint::of_stored(turn.as_deref(), head);
    let tree = Tree::restored(nodes, head, cursors, next)
        .map_err(|error| StoreError::damaged(format!("conversation {id}"), error.to_string()))?;
    Ok(ConversationAfterConflict { version, tree, state, flight })
}

async fn write(
    store: &Arc<dyn Store>,
    id: &ConversationId,
    job: &WriteJob,
    ownership: WriteOwnership,
) -> Result<(Version, Option<ConversationLease>), StoreError> {
    let version = match (job, ownership) {
        ((write, change @ Change::Create(_)), WriteOwnership::New(owner, keeper)) => {
            let version = store.write(id, write, change).await?;
            let tenure = Box::pin(ConversationLease::begin(store, keeper.as_ref(), id, &owner)).await?;
            return Ok((version, tenure));
        }
        (job, WriteOwnership::New(..) | WriteOwnership::Free) => attempt(&**store, id, job, None).await?,
        (job, WriteOwnership::Held(held)) => {
            let mut lease = held.lease()?;
            loop {
                match attempt(&**store, id, job, Some(&lease)).await {
                    Err(StoreError::LeaseLost { .. }) => {
                        lease = Box::pin(held.lease_after(lease.epoch)).await?;
                    }
                    written => break written?,
                }
            }
        }
    };
    Ok((version, None))
}

async fn attempt(
    store: &dyn Store,
    id: &ConversationId,
    job: &WriteJob,
    lease: Option<&Lease>,
) -> Result<Version, StoreError> {
    let (write, change) = job;
    store.write(id, &lease.map_or(*write, |lease| write.under(lease)), change).await
}

#[derive(Debug, thiserror::Error)]
#[error("the store did not respond within {0:?}")]
struct StoreTimeoutError(Duration);

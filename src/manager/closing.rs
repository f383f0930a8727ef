//! Closes, deletes, renames and labels conversations, and ends all sessions.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};
use tracing::Instrument;

use super::{
    Inner, Shutdown,
    opening::{aborted, in_a_task},
};
use crate::{
    actor::OwnWake,
    agent::InFlight,
    run::{Error, ErrorKind},
    session::{Session, Tenure},
    store::{Change, ConversationId, Labels, Lease, StateChange, StoreError, TitleBy, Write},
};

/// A change of the title or the labels of a conversation.
#[derive(Clone)]
pub(crate) enum Description {
    Title(Option<Arc<str>>),
    Labels(Labels),
}

impl From<Description> for StateChange {
    fn from(change: Description) -> Self {
        match change {
            Description::Title(title) => {
                Self::Title { title: title.as_deref().map(str::to_owned), by: TitleBy::Person }
            }
            Description::Labels(labels) => Self::Labels(labels),
        }
    }
}

/// The treatment of turns in flight when all sessions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
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

impl Inner {
    /// Ends the session with this id, if there is one.
    pub(super) async fn close(
        self: &Arc<Self>,
        id: &ConversationId,
        in_flight: InFlight,
    ) -> Result<(), Error> {
        let (claim, session) = self.claim(id).await;
        let Some(session) = session else {
            return Ok(());
        };
        let inner = Arc::clone(self);
        in_a_task(self.patience(), async move {
            let ended = inner.end(&session, Duration::ZERO, inner.close_timeout, in_flight).await;
            drop(claim);
            ended
        })
        .await
        .unwrap_or_else(|reason| Err(aborted(id, &reason)))
    }

    /// Deletes a conversation after ending its session.
    pub(super) async fn delete<E: From<Error>>(
        self: &Arc<Self>,
        id: &ConversationId,
        check: impl Future<Output = Result<(), E>>,
    ) -> Result<(), E> {
        let (claim, session) = self.claim(id).await;
        check.await?;
        let (inner, id, limit) = (Arc::clone(self), id.clone(), self.close_timeout);
        let gone = id.clone();
        in_a_task(self.patience(), async move {
            if let Some(session) = session {
                // Unsaved changes would be deleted anyway, so an error does not matter.
                let _ = session.stop_discarding(limit).await;
            }
            inner.delete_stored(&id).await?;
            inner.registry().emit_deleted(&id);
            drop(claim);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(aborted(&gone, &reason)))
        .map_err(E::from)
    }

    /// Sets the title or the labels of a conversation, whether it is open or not, and stores the change.
    pub(super) async fn describe<E: From<Error>, F: Future<Output = Result<(), E>>>(
        self: &Arc<Self>,
        id: &ConversationId,
        change: Description,
        check: impl Fn() -> F,
    ) -> Result<(), E> {
        let claim = loop {
            let (claim, session) = self.claim(id).await;
            check().await?;
            let Some(session) = session else { break claim };
            let described = match &change {
                Description::Title(title) => session.set_title(title.as_deref()).await,
                Description::Labels(labels) => session.set_labels(labels.clone()).await,
            };
            match described {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Ended => {
                    session.ended().await;
                    check().await?;
                    break claim;
                }
                Err(error) => return Err(error.into()),
            }
            // Release the id, so that other callers can open and close the session while the store is writing.
            drop(claim);
            match session.flush(self.close_timeout).await {
                Ok(()) => return Ok(()),
                // The session has ended. If it did not store the change, the loop continues and the change
                // is written directly to the store.
                Err(error) if error.kind() == ErrorKind::Ended => {
                    session.ended().await;
                    let stopped = session.stop(Duration::ZERO).await;
                    if stopped.err().is_none_or(|error| error.kind() == ErrorKind::Deadline) {
                        return Ok(());
                    }
                }
                Err(cause) => {
                    let text = format!(
                        "the new title or labels of conversation {id} are not stored yet; the open session keeps \
                         them and stores them later: {cause}"
                    );
                    let error = Error::new(ErrorKind::ChangeUnsaved, text).with_source(cause);
                    return Err(error.with_member("conversation", id).into());
                }
            }
        };
        let (inner, id) = (Arc::clone(self), id.clone());
        let cut_off = id.clone();
        let described = in_a_task(self.patience(), async move {
            inner.describe_stored(&id, change.clone().into()).await?;
            match change {
                Description::Title(title) => inner.registry().set_stored_title(&id, title),
                Description::Labels(labels) => inner.registry().set_stored_labels(&id, labels),
            }
            drop(claim);
            Ok(())
        });
        Ok(described.await.unwrap_or_else(|reason| Err(aborted(&cut_off, &reason)))?)
    }

    /// Deletes a conversation that is not open.
    async fn delete_stored(&self, id: &ConversationId) -> Result<(), StoreError> {
        let tenure = match self.setup.acquire(&self.store, id).await {
            Ok(tenure) => tenure,
            // The conversation does not exist, but a crash may have left parts of it in the store, so let the store
            // delete them.
            Err(StoreError::NotFound { .. }) => return self.store.delete(id, None).await,
            Err(error) => return Err(error),
        };
        let Some(tenure) = tenure else { return self.store.delete(id, None).await };
        let deleted = self.store.delete(id, Some(&tenure.lease()?)).await;
        tenure.end(None).await;
        deleted
    }

    /// Sets the title or the labels of a conversation that is not open in this manager. If another manager or process
    /// has the conversation open, there are two cases: if the store supports owners, the operation fails. Otherwise,
    /// the other session adopts the title or the labels.
    async fn describe_stored(&self, id: &ConversationId, change: StateChange) -> Result<(), StoreError> {
        let tenure = self.setup.acquire(&self.store, id).await?;
        let lease = tenure.as_ref().map(Tenure::lease).transpose()?;
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
        in_flight: InFlight,
    ) -> Result<(), Error> {
        let is_idle = !grace.is_zero() && timeout(grace, session.wait_until_idle()).await.is_ok();
        let begun = Instant::now();
        let titled = async {
            if !is_idle {
                // If the turn has nothing to keep, the interrupt cancels the turn. If the turn is already complete, the
                // interrupt does nothing.
                let _ = match in_flight {
                    InFlight::Keep => session.interrupt().await,
                    InFlight::Discard => session.cancel().await,
                    InFlight::Leave => Ok(()),
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
    pub(super) async fn end_all(
        self: &Arc<Self>,
        sessions: Vec<Session>,
        begun: Instant,
        limits: Shutdown,
        ending: Ending,
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
                        Ending::Stop => inner.end(&session, grace, limit, InFlight::Keep).await,
                        Ending::HandOver => session.hand_over(grace, limit).await,
                    };
                    ended.err().map(|error| (session.id().clone(), error))
                };
                ends.spawn(one.in_current_span());
            }
            for _ in 0..ROUNDS {
                OwnWake::begin().over().await;
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

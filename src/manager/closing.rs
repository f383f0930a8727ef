//! Closes, deletes and renames conversations, and ends all sessions.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::{JoinError, JoinSet},
    time::{Instant, timeout},
};

use super::{Inner, ManagerError, opening::in_a_task};
use crate::{
    actor::OwnWake,
    agent::InFlight,
    session::{Session, SessionError},
    store::{ConversationId, Lease, StateChange, StoreError, Write},
};

/// The number of times that a title is written again after a conflict.
const RENAME_TRIES: usize = 8;

/// The share of an end's time that is reserved for stopping the session. The rest is for a title.
const SHARE_FOR_STOPPING: u32 = 8;

/// The number of sessions that a shutdown ends together.
const PORTION: usize = 64;

/// The number of rounds of the runtime that a portion has to end before the next portion starts. An idle session needs
/// about a dozen.
const ROUNDS: usize = 64;

impl Inner {
    /// Ends the session with this id, if there is one.
    pub(super) async fn close(
        self: &Arc<Self>,
        id: &ConversationId,
        in_flight: InFlight,
    ) -> Result<(), ManagerError> {
        // An opening that waits for room has no session yet, and may wait for a long time.
        if self.registry().is_waiting(id) {
            return Ok(());
        }
        let (hold, session) = self.hold(id).await.split();
        let Some(session) = session else {
            return Ok(());
        };
        let inner = Arc::clone(self);
        in_a_task(self.patience(), async move {
            let ended = inner.end(&session, Duration::ZERO, inner.close_timeout, in_flight).await;
            drop(hold);
            Ok(ended?)
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: id.clone(), reason }))
    }

    /// Deletes a conversation after ending its session.
    pub(super) async fn delete(self: &Arc<Self>, id: &ConversationId) -> Result<(), ManagerError> {
        let (hold, session) = self.hold(id).await.split();
        let (inner, id, limit) = (Arc::clone(self), id.clone(), self.close_timeout);
        let gone = id.clone();
        in_a_task(self.patience(), async move {
            if let Some(session) = session {
                // Unsaved changes are deleted in any case.
                let _ = session.stop_discarding(limit).await;
            }
            inner.delete_stored(&id).await?;
            inner.registry().emit_deleted(&id);
            drop(hold);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: gone, reason }))
    }

    /// Sets the title of a conversation, whether it is open or not, and stores it.
    pub(super) async fn rename(
        self: &Arc<Self>,
        id: &ConversationId,
        title: Option<&str>,
    ) -> Result<(), ManagerError> {
        let hold = loop {
            let (hold, session) = self.hold(id).await.split();
            let Some(session) = session else { break hold };
            match session.set_title(title).await {
                Ok(()) => {}
                Err(SessionError::Ended(_)) => {
                    session.ended().await;
                    break hold;
                }
                Err(error) => return Err(error.into()),
            }
            // The store may be slow. Meanwhile, other callers can open and close the session.
            drop(hold);
            match session.flush(self.close_timeout).await {
                Ok(()) => return Ok(()),
                // If the end of the session did not store the title, the stored conversation is changed directly.
                Err(SessionError::Ended(_)) => {
                    session.ended().await;
                    if let Ok(()) | Err(SessionError::Agent(_)) = session.stop(Duration::ZERO).await {
                        return Ok(());
                    }
                }
                Err(cause) => {
                    return Err(ManagerError::TitleUnsaved { id: id.clone(), cause: Box::new(cause) });
                }
            }
        };
        let (inner, id, title) = (Arc::clone(self), id.clone(), title.map(str::to_owned));
        let cut_off = id.clone();
        in_a_task(self.patience(), async move {
            inner.rename_stored(&id, title.clone()).await?;
            inner.registry().set_stored_title(&id, title.map(Arc::from));
            drop(hold);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: cut_off, reason }))
    }

    /// Deletes a conversation that is not open.
    async fn delete_stored(&self, id: &ConversationId) -> Result<(), StoreError> {
        let lease = match self.store.acquire(id, &self.owner).await {
            Ok(lease) => lease,
            // A crash may have left parts of the conversation.
            Err(StoreError::NotFound { .. }) => return self.store.delete(id).await,
            Err(error) => return Err(error),
        };
        let deleted = self.store.delete_under(id, &lease).await;
        if deleted.is_err() {
            self.release_lease(id, &lease).await;
        }
        deleted
    }

    /// Sets the title of a conversation that is not open here. If it is open elsewhere and the store has owners, this
    /// fails. Without owners, the other session takes over the title.
    async fn rename_stored(&self, id: &ConversationId, title: Option<String>) -> Result<(), StoreError> {
        let lease = self.store.acquire(id, &self.owner).await?;
        let renamed = self.rename_under(&lease, id, StateChange::Title(title)).await;
        self.release_lease(id, &lease).await;
        renamed
    }

    async fn rename_under(
        &self,
        lease: &Lease,
        id: &ConversationId,
        change: StateChange,
    ) -> Result<(), StoreError> {
        let mut version = self.store.summary(id).await?.version;
        let mut tries = 0;
        loop {
            let write = Write::on(version);
            let write = if lease.lasts.is_some() { write.under(lease) } else { write };
            match self.store.save_state(id, &write, &change).await {
                // Setting a title does not depend on the changes of other writers.
                Err(StoreError::Conflict { current, .. }) if tries < RENAME_TRIES => version = current,
                renamed => return renamed.map(|_| ()),
            }
            tries += 1;
        }
    }

    /// Ends a session in order. Its run may finish until `grace`, and is interrupted or cancelled then. After that, a
    /// title that is being generated and saving may take until `limit`.
    async fn end(
        &self,
        session: &Session,
        grace: Duration,
        limit: Duration,
        in_flight: InFlight,
    ) -> Result<(), SessionError> {
        let is_idle = !grace.is_zero() && timeout(grace, session.wait_until_idle()).await.is_ok();
        let begun = Instant::now();
        let titled = async {
            if !is_idle {
                // If a turn has nothing to keep, the interrupt cancels it. If the turn is complete by now, nothing is
                // interrupted.
                let _ = match in_flight {
                    InFlight::Keep => session.interrupt().await,
                    InFlight::Discard => session.cancel().await,
                };
            }
            self.titled(session).await;
        };
        // Turns are saved at the same time, so the time left is for the title.
        let _ = timeout(limit.saturating_sub(limit / SHARE_FOR_STOPPING), titled).await;
        session.end_within(limit.saturating_sub(begun.elapsed()), in_flight).await
    }

    /// Ends all sessions, and returns those that ended with something unsaved. A run in flight is ended when `grace`
    /// has passed since `begun`.
    ///
    /// Each end has a task: a task that polls very many futures uses up tokio's budget and then polls all of them in
    /// vain, again and again. Ends are started in portions, so that the data of each end is still in the processor's
    /// cache in its next step. A slow portion does not delay the next ones.
    pub(super) async fn end_all(
        self: &Arc<Self>,
        sessions: Vec<Session>,
        begun: Instant,
        grace: Duration,
        limit: Duration,
    ) -> Vec<(ConversationId, SessionError)> {
        let mut ends = JoinSet::new();
        let mut failed = Vec::new();
        for portion in sessions.chunks(PORTION) {
            let others = ends.len();
            for session in portion {
                let (inner, session) = (Arc::clone(self), session.clone());
                let grace = grace.saturating_sub(begun.elapsed());
                ends.spawn(async move {
                    let ended = inner.end(&session, grace, limit, InFlight::Keep).await;
                    ended.err().map(|error| (session.id().clone(), error))
                });
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

    async fn release_lease(&self, id: &ConversationId, lease: &Lease) {
        if let Err(error) = self.store.release(id, lease).await {
            tracing::warn!(%id, %error, "releasing a conversation failed; it is owned until its lease expires");
        }
    }
}

/// Returns the outcome of a task. If the task panicked, this panics too.
fn or_panic<T>(outcome: Result<Option<T>, JoinError>) -> Option<T> {
    match outcome.map_err(JoinError::try_into_panic) {
        Ok(value) => value,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime shuts down, and the session with it.
        Err(Err(_)) => None,
    }
}

//! Closing, deleting, renaming, and the end of all.

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

/// How often a title is written again behind another writer.
const RENAME_TRIES: usize = 8;

/// The part of an end's time that a title in the making leaves for stopping the session.
const SHARE_FOR_STOPPING: u32 = 8;

/// How many sessions a shutdown ends before it looks at the next ones.
const PORTION: usize = 64;

/// How many rounds of the runtime a portion has to end before the next one is started. An idle session needs a dozen.
const ROUNDS: usize = 64;

impl Inner {
    /// Ends the session with this id, if there is one.
    pub(super) async fn close(
        self: &Arc<Self>,
        id: &ConversationId,
        in_flight: InFlight,
    ) -> Result<(), ManagerError> {
        // Whoever waits for room has nothing open, and may wait for long.
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

    /// Removes a conversation, and ends its session first.
    pub(super) async fn delete(self: &Arc<Self>, id: &ConversationId) -> Result<(), ManagerError> {
        let (hold, session) = self.hold(id).await.split();
        let (inner, id, limit) = (Arc::clone(self), id.clone(), self.close_timeout);
        let gone = id.clone();
        in_a_task(self.patience(), async move {
            if let Some(session) = session {
                // What is not saved is removed in any case.
                let _ = session.stop_discarding(limit).await;
            }
            inner.delete_stored(&id).await?;
            inner.registry().tell_deleted(&id);
            drop(hold);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: gone, reason }))
    }

    /// Gives a conversation another title, open or not, and stores it.
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
            // The store may take long. Others can open and close the session meanwhile.
            drop(hold);
            match session.flush(self.close_timeout).await {
                Ok(()) => return Ok(()),
                // Unless its end stored the title, the title of the stored conversation is changed.
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
            inner.registry().tell_title(&id, title.map(Arc::from));
            drop(hold);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: cut_off, reason }))
    }

    /// Removes a conversation that nobody has open.
    async fn delete_stored(&self, id: &ConversationId) -> Result<(), StoreError> {
        let lease = match self.store.acquire(id, &self.owner).await {
            Ok(lease) => lease,
            // What a crash left of it may be there.
            Err(StoreError::NotFound { .. }) => return self.store.delete(id).await,
            Err(error) => return Err(error),
        };
        let deleted = self.store.delete_under(id, &lease).await;
        if deleted.is_err() {
            self.give_back(id, &lease).await;
        }
        deleted
    }

    /// Gives a conversation that is not open here another title. If it is open elsewhere and the store knows owners, it is
    /// refused. Without owners, the session there takes the title over.
    async fn rename_stored(&self, id: &ConversationId, title: Option<String>) -> Result<(), StoreError> {
        let lease = self.store.acquire(id, &self.owner).await?;
        let renamed = self.rename_under(&lease, id, StateChange::Title(title)).await;
        self.give_back(id, &lease).await;
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
                // A title builds on nothing that others have written.
                Err(StoreError::Conflict { current, .. }) if tries < RENAME_TRIES => version = current,
                renamed => return renamed.map(|_| ()),
            }
            tries += 1;
        }
    }

    /// Ends a session in order. Its run has `grace` to end, and is interrupted or cancelled then. After that the title in
    /// the making, if there is one, and saving have `limit`.
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
                // A turn that keeps nothing is cancelled by that, and one that is complete by now needs none.
                let _ = match in_flight {
                    InFlight::Keep => session.interrupt().await,
                    InFlight::Discard => session.cancel().await,
                };
            }
            self.titled(session).await;
        };
        // Turns are saved meanwhile. The time that is left is for the title itself.
        let _ = timeout(limit.saturating_sub(limit / SHARE_FOR_STOPPING), titled).await;
        session.end_within(limit.saturating_sub(begun.elapsed()), in_flight).await
    }

    /// Ends all sessions. Returns those that could not be ended with everything saved. Runs in flight have until `grace` has
    /// passed since `begun`.
    ///
    /// Each end has a task, since a task that polls very many futures runs out of tokio's budget and then polls all of them
    /// in vain, again and again. Ends are started in portions, so that what one touches is still in the processor's cache in
    /// its next step. A portion that takes its time does not hold the next ones up.
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

    async fn give_back(&self, id: &ConversationId, lease: &Lease) {
        if let Err(error) = self.store.release(id, lease).await {
            tracing::warn!(%id, %error, "a conversation could not be released; other processes can open it when its lease expires");
        }
    }
}

/// The outcome of a task. If the task panicked, so does this.
fn or_panic<T>(outcome: Result<Option<T>, JoinError>) -> Option<T> {
    match outcome.map_err(JoinError::try_into_panic) {
        Ok(value) => value,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The runtime ends, and the session with it.
        Err(Err(_)) => None,
    }
}

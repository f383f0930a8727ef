//! Closing, deleting, renaming, and the end of all.

use std::{sync::Arc, time::Duration};

use super::{Inner, ManagerError, opening::in_a_task};
use crate::{
    session::{Session, SessionError},
    store::{ConversationId, StateChange, StoreError, Write},
};

/// How often a title is written again behind another writer.
const RENAME_TRIES: usize = 8;

impl Inner {
    /// Ends the session with this id, if there is one.
    pub(super) async fn close(self: &Arc<Self>, id: &ConversationId) -> Result<(), ManagerError> {
        // Whoever waits for room has nothing open, and may wait for long.
        if self.registry().is_waiting(id) {
            return Ok(());
        }
        let (claim, session) = self.claim_in_time(id).await;
        let Some(session) = session else {
            return Ok(());
        };
        let limit = self.close_timeout;
        in_a_task(self.patience(), async move {
            let stopped = session.stop(limit).await;
            drop(claim);
            Ok(stopped?)
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: id.clone(), reason }))
    }

    /// Removes a conversation, and ends its session first.
    pub(super) async fn delete(self: &Arc<Self>, id: &ConversationId) -> Result<(), ManagerError> {
        let (claim, session) = self.claim_in_time(id).await;
        let (inner, limit) = (Arc::clone(self), self.close_timeout);
        in_a_task(self.patience(), async move {
            if let Some(session) = session {
                // What is not saved is to be removed in any case.
                let _ = session.stop(limit).await;
            }
            inner.store.delete(&claim.id).await?;
            inner.registry().tell_deleted(&claim.id);
            drop(claim);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: id.clone(), reason }))
    }

    /// Gives a conversation another title, open or not.
    pub(super) async fn rename(
        self: &Arc<Self>,
        id: &ConversationId,
        title: Option<&str>,
    ) -> Result<(), ManagerError> {
        let (claim, session) = self.claim_in_time(id).await;
        if let Some(session) = session {
            match session.set_title(title).await {
                Err(SessionError::Ended(_)) => {}
                renamed => return Ok(renamed?),
            }
            session.ended().await;
        }
        let (inner, title) = (Arc::clone(self), title.map(str::to_owned));
        in_a_task(self.patience(), async move {
            inner.rename_stored(&claim.id, title.clone()).await?;
            inner.registry().tell_title(&claim.id, title.map(Arc::from));
            drop(claim);
            Ok(())
        })
        .await
        .unwrap_or_else(|reason| Err(ManagerError::CutOff { id: id.clone(), reason }))
    }

    async fn rename_stored(&self, id: &ConversationId, title: Option<String>) -> Result<(), StoreError> {
        let change = StateChange::Title(title);
        let mut version = self.store.summary(id).await?.version;
        for _ in 0..RENAME_TRIES {
            match self.store.save_state(id, &Write::on(version), &change).await {
                // A title builds on nothing that others have written.
                Err(StoreError::Conflict { current, .. }) => version = current,
                renamed => return renamed.map(|_| ()),
            }
        }
        self.store.save_state(id, &Write::on(version), &change).await.map(|_| ())
    }
}

/// Ends all sessions; those that could not be ended with everything saved are given back.
pub(super) async fn end_all(
    sessions: Vec<Session>,
    grace: Duration,
    limit: Duration,
) -> Vec<(ConversationId, SessionError)> {
    let ends = sessions.into_iter().map(|session| async move {
        if tokio::time::timeout(grace, session.wait_until_idle()).await.is_err() {
            // A turn that keeps nothing is cancelled by that, and one that is complete by now needs none.
            let _ = session.interrupt().await;
        }
        let stopped = session.stop(limit).await;
        stopped.err().map(|error| (session.id().clone(), error))
    });
    futures_util::future::join_all(ends).await.into_iter().flatten().collect()
}

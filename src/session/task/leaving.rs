//! Leaves a turn in flight to the next owner of the conversation.

use std::{sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::time::timeout;
use tracing::Span;

use super::{Deliveries, StreamExt, Task, writing};
use crate::{
    agent::{Durable, Status},
    session::core::Core,
};

impl Task {
    /// Ends an agent that waits for decisions about a recorded turn. Returns whether it has ended. If it can't be
    /// ended, nothing changes.
    pub(super) async fn retire_paused(&mut self) -> bool {
        self.core.is_recorded()
            && self.catch_up().await.is_ok()
            && self.is_saved()
            && matches!(self.owner.retire(Some(self.core.seen())).await, Ok(true))
    }

    /// Stores the turn in flight within the limit. If the turn is paused, the agent is ended. Otherwise, the task stops
    /// listening to the agent, so that its later events change nothing. If the turn can't be stored, or is not
    /// recorded, it is interrupted later.
    pub(super) async fn leave_turn(&mut self, limit: Duration) {
        let is_stored = timeout(limit, self.store_turn()).await.unwrap_or_default();
        if !is_stored || self.core.status() == Status::Paused && self.retire_paused().await {
            return;
        }
        self.core.leave_turn();
        let (_, ended): (_, Deliveries) = futures_channel::mpsc::channel(0);
        self.deliveries = ended;
    }

    /// Stores the current state of the turn in flight. Returns whether there is such a turn, and it is stored.
    async fn store_turn(&mut self) -> bool {
        let is_kept = self.core.is_recorded() || self.shared.setup.durable > Durable::Turns;
        if !is_kept || self.owner.record_now().await.is_err() || self.catch_up().await.is_err() {
            return false;
        }
        // The record may come after the last event, in a delivery without an event.
        while let Some(Some(delivery)) = self.deliveries.next().now_or_never() {
            self.take(delivery);
        }
        if !self.core.is_recorded() {
            return false;
        }
        self.step(Core::hurry);
        while !self.is_saved() && !self.core.is_lost() {
            tokio::select! {
                outcome = writing::outcome(&mut self.attempts) => self.written(outcome),
                () = crate::actor::passed(&mut self.retry) => self.retry(),
            }
        }
        !self.core.is_lost()
    }

    /// Marks the stored turn as handed over, so that the next owner does not count a restart. If this fails, the
    /// restart is counted.
    pub(super) async fn mark_handed_over(&mut self) {
        let Some((write, commit)) = self.core.handed_over() else { return };
        let (store, id) = (Arc::clone(&self.store), self.shared.id.clone());
        let write = match self.tenure.as_ref().map(|tenure| tenure.held().lease()) {
            Some(Ok(lease)) => write.under(&lease),
            Some(Err(_)) => return,
            None => write,
        };
        let written =
            writing::contained(Span::none(), async move { store.commit(&id, &write, &commit).await });
        match written.await {
            Ok(version) => self.core.rewritten(version),
            Err(error) => {
                let id = &self.shared.id;
                tracing::warn!(%id, %error, "a turn was handed over, but is not marked as such");
            }
        }
    }
}

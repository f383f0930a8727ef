//! Leaves a turn in flight to the next owner of the conversation.

use std::sync::Arc;

use tokio::time::timeout_at;
use tracing::Span;

use super::{CommitReceiver, SessionTask, writing};
use crate::{
    actor::passed,
    agent::{AgentStopTurnPolicy, Durable, Status},
    run::Error,
    session::core::SessionCore,
    store::Change,
};

/// The turns that a session leaves to the next owner when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnsToLeave {
    /// A turn that waits for decisions, and is recorded anyway.
    Paused,
    /// Any turn of a session that may record turns.
    All,
}

/// The outcome of an attempt to store the turn in flight.
enum TurnStoringOutcome {
    /// The store has the current state of the turn, and the agent still runs.
    Stored,
    /// The store has the turn, which waits for decisions. The agent has ended.
    Retired,
    /// The session has nothing to leave, or the conversation is lost.
    Nothing,
}

impl SessionTask {
    /// Leaves the turn in flight to the next owner of the conversation, if its state can be stored before the session
    /// has to end. If it can't be stored in time, leaves the last state that is stored. Returns the treatment of the
    /// turn by an agent that still runs.
    ///
    /// If the turn is left, the task stops listening to the agent, so that the agent's later events change nothing.
    pub(super) async fn leave_turn(&mut self, leaves: TurnsToLeave) -> AgentStopTurnPolicy {
        if self.shared.setup.durable == Durable::Turns && !self.core.is_recorded() {
            return AgentStopTurnPolicy::Keep;
        }
        let storing = match self.ends_by {
            Some(ends_by) => timeout_at(ends_by, self.store_turn(leaves)).await.ok(),
            None => Some(self.store_turn(leaves).await),
        };
        let is_left = match storing {
            Some(Ok(TurnStoringOutcome::Stored)) => true,
            Some(Ok(TurnStoringOutcome::Retired | TurnStoringOutcome::Nothing) | Err(_)) => false,
            None => {
                let is_meant = leaves == TurnsToLeave::All || self.core.status() == Status::Paused;
                is_meant && self.core.is_recorded() && self.core.has_stored_turn()
            }
        };
        if !is_left {
            return AgentStopTurnPolicy::Keep;
        }
        self.core.leave_turn();
        let (_, ended): (_, CommitReceiver) = futures_channel::mpsc::channel(0);
        self.deliveries = ended;
        AgentStopTurnPolicy::Leave
    }

    /// Stores the current state of the turn in flight. If the turn only waits for decisions, ends the agent.
    async fn store_turn(&mut self, leaves: TurnsToLeave) -> Result<TurnStoringOutcome, Error> {
        let mut before = None;
        loop {
            if leaves == TurnsToLeave::All {
                self.owner.leave().await?;
            }
            let is_paused = self.catch_up().await? == Status::Paused;
            if !self.core.is_recorded() || leaves == TurnsToLeave::Paused && !is_paused {
                return Ok(TurnStoringOutcome::Nothing);
            }
            self.save_all().await;
            if self.core.is_lost() {
                return Ok(TurnStoringOutcome::Nothing);
            }
            if is_paused && self.owner.retire(Some(self.core.seen())).await? {
                return Ok(TurnStoringOutcome::Retired);
            }
            if leaves == TurnsToLeave::All {
                return Ok(TurnStoringOutcome::Stored);
            }
            // The agent has continued, or its pause can't outlive it. In the second case, nothing has changed since the
            // previous attempt.
            let now = (self.core.seen(), self.core.last_number());
            if before.replace(now) == Some(now) {
                return Ok(TurnStoringOutcome::Nothing);
            }
        }
    }

    /// Waits until all changes are in the store, or the conversation is lost.
    async fn save_all(&mut self) {
        self.step(SessionCore::hurry);
        while !self.is_saved() && !self.core.is_lost() {
            tokio::select! {
                outcome = self.attempts.outcome() => self.written(outcome),
                () = passed(&mut self.retry) => self.retry(),
            }
        }
    }

    /// Marks the stored turn as handed over, so that the next owner does not count a restart. If this fails, or if the
    /// store has only an older state of the turn, the restart is counted.
    pub(super) async fn mark_handed_over(&mut self) {
        if !self.is_saved() {
            return;
        }
        let Some((write, commit)) = self.core.handed_over() else { return };
        let (store, id) = (Arc::clone(&self.store), self.shared.id.clone());
        let write = match self.tenure.as_ref().map(|tenure| tenure.held().lease()) {
            Some(Ok(lease)) => write.under(&lease),
            Some(Err(_)) => return,
            None => write,
        };
        let written = writing::contained(Span::none(), async move {
            store.write(&id, &write, &Change::Commit(commit)).await
        });
        match written.await {
            Ok(version) => self.core.rewritten(version),
            Err(error) => {
                let id = &self.shared.id;
                tracing::warn!(%id, %error, "a turn was handed over, but is not marked as such");
            }
        }
    }
}

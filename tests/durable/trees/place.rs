//! The store, as a process of a schedule reaches it.

use std::{ops::Range, sync::Arc};

use async_trait::async_trait;
use omni_agent::{
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        ConversationId, Listing, MemoryStore, Page, Store, StoreError, Summary, TurnSummary,
        custom::{Change, Lease, StoreTraits, Stored, StoredTurn, TurnChange, Turns, Version, Write},
    },
};
use tokio::time::sleep;

use super::{team::Life, world::Dice};

/// The time at which the first life begins, by the clock of the store.
const BEGINNING: u64 = 1_700_000_000_000;

/// A store that delays each call. The process can die before each call, and after each write. Times are those of the
/// paused clock, and lists are in an order that does not depend on random ids.
pub(crate) struct Place {
    pub(crate) store: MemoryStore,
    pub(crate) life: Arc<Life>,
}

impl Place {
    fn now(&self) -> Timestamp {
        Timestamp(BEGINNING + self.life.passed())
    }

    fn name(&self, id: &ConversationId) -> String {
        let name = self.life.world.facts().names.get(id).cloned();
        // A random id must not have an effect.
        name.unwrap_or_else(|| if id.as_str().starts_with("sub-") { "new" } else { "root" }.to_owned())
    }

    async fn pass(&self, id: Option<&ConversationId>, call: &str) {
        self.life.point(call).await;
        let name = format!("{} {call}", id.map(|id| self.name(id)).unwrap_or_default());
        let count = {
            let mut facts = self.life.world.facts();
            let count = facts.counts.entry(name.clone()).or_default();
            *count += 1;
            *count
        };
        let shape = &self.life.world.shape;
        let mut dice = Dice::new(shape.seed, &format!("{name} {count}"));
        let most = if dice.percent(5) { shape.slow * 10 } else { shape.slow };
        sleep(dice.time(most)).await;
        self.life.point(call).await;
    }

    fn recorded(&self, id: &ConversationId) -> Timestamp {
        Timestamp(BEGINNING + self.life.world.facts().recorded.get(id).copied().unwrap_or_default())
    }

    fn timed(&self, id: &ConversationId, turn: StoredTurn) -> StoredTurn {
        let mut turn = turn;
        (turn.now, turn.recorded) = (self.now(), self.recorded(id));
        turn
    }

    /// Records what was written.
    fn wrote(&self, id: &ConversationId, change: &Change, is_new: bool) {
        let now = self.life.passed();
        let mut facts = self.life.world.facts();
        match change {
            Change::Create(state) if is_new => {
                let name = state.labels.get("omni.call").unwrap_or("root").to_owned();
                if facts.names.insert(id.clone(), name.clone()).is_some() {
                    drop(facts);
                    self.life.world.breach(format!("{name} was created twice"));
                }
            }
            Change::Commit(commit) if matches!(commit.turn.as_deref(), Some(TurnChange::Record(_))) => {
                facts.recorded.insert(id.clone(), now);
            }
            _ => {}
        }
    }
}

#[async_trait]
impl Store for Place {
    fn traits(&self) -> StoreTraits {
        self.store.traits()
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let call = match change {
            Change::Create(_) => "create",
            Change::Commit(_) => "commit",
            Change::State(_) => "state",
            _ => "erase",
        };
        self.pass(Some(id), call).await;
        let is_new = self.store.summary(id).await.is_err();
        let written = self.store.write(id, write, change).await;
        if written.is_ok() {
            self.wrote(id, change, is_new);
            self.life.world.note(&self.life, format!("stored {} {}", call, self.name(id)));
        }
        self.life.point(call).await;
        written
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.pass(Some(id), "load").await;
        let mut stored = self.store.load(id).await?;
        stored.turn = stored.turn.map(|turn| Box::new(self.timed(id, *turn)));
        Ok(stored)
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.pass(Some(id), "summary").await;
        self.store.summary(id).await
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        self.pass(Some(id), "turn").await;
        Ok(self.store.turn(id).await?.map(|turn| self.timed(id, turn)))
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.pass(None, "list").await;
        let mut list = self.store.list(listing).await?;
        list.sort_by_key(|summary| self.name(&summary.id));
        Ok(list)
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.pass(None, "turns").await;
        let mut turns = self.store.turns(which, listing).await?;
        for turn in &mut turns {
            (turn.now, turn.recorded) = (self.now(), self.recorded(&turn.id));
        }
        turns.sort_by_key(|turn| self.name(&turn.id));
        Ok(turns)
    }

    async fn usage(&self, id: &ConversationId, page: &Page) -> Result<Vec<UsageRow>, StoreError> {
        self.store.usage(id, page).await
    }

    async fn used(
        &self,
        filter: &omni_agent::store::Filter,
        period: Range<Timestamp>,
    ) -> Result<Vec<UsageSum>, StoreError> {
        self.store.used(filter, period).await
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.pass(Some(id), "delete").await;
        let deleted = self.store.delete(id, lease).await;
        self.life.world.facts().has_deleted = true;
        self.life.world.note(&self.life, format!("deleted {}", self.name(id)));
        self.life.point("delete").await;
        deleted
    }
}

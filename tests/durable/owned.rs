//! Decisions about a conversation that another owner holds for a time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    manager::{ApprovalId, Decided, Manager, ManagerError},
    store::{
        Commit, ConversationId, Lease, MemoryStore, Owner, Page, StateChange, Store, StoreError, Stored,
        StoredState, StoredTurn, Summary, Version, Write, WriteId,
    },
    tool::Decision,
};
use tokio::time::Instant;

use crate::stores::{id, leave, paused, turn_id, waiting};

/// A store whose conversations belong to another owner until a certain time.
struct HeldStore {
    store: MemoryStore,
    until: Instant,
    reads: AtomicUsize,
}

#[async_trait]
impl Store for HeldStore {
    async fn create(
        &self,
        id: &ConversationId,
        write: WriteId,
        state: &StoredState,
    ) -> Result<Version, StoreError> {
        self.store.create(id, write, state).await
    }

    async fn commit(
        &self,
        id: &ConversationId,
        write: &Write,
        commit: &Commit,
    ) -> Result<Version, StoreError> {
        self.store.commit(id, write, commit).await
    }

    async fn save_state(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &StateChange,
    ) -> Result<Version, StoreError> {
        self.store.save_state(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.store.load(id).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.store.summary(id).await
    }

    async fn list(&self, page: Page) -> Result<Vec<Summary>, StoreError> {
        self.store.list(page).await
    }

    async fn delete(&self, id: &ConversationId) -> Result<(), StoreError> {
        self.store.delete(id).await
    }

    fn keeps_turns(&self) -> bool {
        true
    }

    async fn turn(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.store.turn(id).await
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        if Instant::now() < self.until {
            return Err(StoreError::Owned { id: id.clone(), owner: Owner::new("another") });
        }
        self.store.acquire(id, owner).await
    }
}

/// Decides on a tool use of a conversation that another owner holds for this time. Returns the result, and the number
/// of times that the turn was read.
async fn decide_while_held(hold: Duration) -> (Result<Decided, ManagerError>, usize) {
    let store = MemoryStore::new();
    leave(&store, "a", "ann", paused(vec![waiting("1")])).await;
    let place = Arc::new(HeldStore { store, until: Instant::now() + hold, reads: AtomicUsize::new(0) });
    let manager = Manager::builder(Arc::clone(&place) as Arc<dyn Store>).build();
    let wanted = ApprovalId::new(id("a"), turn_id(7), "1");
    let decided = manager.decide(&wanted, Decision::Execute, None).await;
    (decided, place.reads.load(Ordering::SeqCst))
}

#[tokio::test(start_paused = true)]
async fn decide_waits_for_another_owner_that_releases_the_conversation() {
    for hold in [0, 5, 200, 900].map(Duration::from_millis) {
        let (decided, reads) = decide_while_held(hold).await;
        assert_eq!((decided.unwrap(), reads), (Decided::InStore, 1), "{hold:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn decide_on_a_conversation_that_stays_owned_is_open_elsewhere() {
    let (decided, reads) = decide_while_held(Duration::from_mins(1)).await;
    let Err(ManagerError::OpenElsewhere { owner, .. }) = decided else { panic!("{decided:?}") };
    assert_eq!((&*owner.name, reads), ("another", 1));
}

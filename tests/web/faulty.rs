//! A store whose operations can be made to fail. It has no filters, no search, no usage ledger, and no records of turns
//! in flight, and it erases nothing.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use omni_agent::{
    async_trait,
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        ConversationId, Filter, Found, Listing, MemoryStore, Page, Query, Store, StoreError, Summary,
        TurnSummary,
        custom::{Change, Lease, StoreTraits, Stored, Turns, Version, Write},
    },
    testing::Gate,
};

/// An operation of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Create,
    Commit,
    Save,
    Load,
    Summary,
    Delete,
    List,
    Search,
    Usage,
    Sums,
    Turns,
}

#[derive(Clone, Default)]
pub(crate) struct FaultyStore {
    beneath: Arc<MemoryStore>,
    fault: Arc<Mutex<Option<(Operation, StoreError)>>>,
    summaries: Arc<AtomicUsize>,
    hangs: Arc<AtomicBool>,
    loading: Arc<Mutex<Option<Gate>>>,
}

impl FaultyStore {
    /// Makes this operation fail with this error from now on. All other operations work.
    pub(crate) fn fail(&self, operation: Operation, error: StoreError) {
        *self.fault.lock().unwrap() = Some((operation, error));
    }

    /// Makes all operations work.
    pub(crate) fn mend(&self) {
        *self.fault.lock().unwrap() = None;
    }

    /// Returns how many summaries were read.
    pub(crate) fn summaries(&self) -> usize {
        self.summaries.load(Ordering::Relaxed)
    }

    /// Makes all further readings of summaries wait forever.
    pub(crate) fn hang(&self) {
        self.hangs.store(true, Ordering::Relaxed);
    }

    /// Makes all further loads wait at this gate.
    pub(crate) fn load_slowly(&self, gate: &Gate) {
        *self.loading.lock().unwrap() = Some(gate.clone());
    }

    fn act(&self, operation: Operation) -> Result<(), StoreError> {
        match &*self.fault.lock().unwrap() {
            Some((failing, error)) if *failing == operation => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    // So each list reaches the store.
    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_labels(true)
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        self.act(match change {
            Change::Create(_) => Operation::Create,
            Change::Commit(_) => Operation::Commit,
            _ => Operation::Save,
        })?;
        self.beneath.write(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.act(Operation::Load)?;
        let gate = self.loading.lock().unwrap().clone();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.beneath.load(id).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.summaries.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        self.act(Operation::Summary)?;
        self.beneath.summary(id).await
    }

    async fn list(&self, _: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.act(Operation::List)?;
        Err(StoreError::unsupported("lists by labels"))
    }

    async fn search(&self, _: &Query, _: &Listing) -> Result<Found, StoreError> {
        self.act(Operation::Search)?;
        Err(StoreError::unsupported("searches"))
    }

    async fn usage(&self, _: &ConversationId, _: &Page) -> Result<Vec<UsageRow>, StoreError> {
        self.act(Operation::Usage)?;
        Err(StoreError::unsupported("a usage ledger"))
    }

    async fn used(&self, _: &Filter, _: Range<Timestamp>) -> Result<Vec<UsageSum>, StoreError> {
        self.act(Operation::Sums)?;
        Err(StoreError::unsupported("a usage ledger"))
    }

    async fn turns(&self, _: Turns, _: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.act(Operation::Turns)?;
        Err(StoreError::unsupported("lists of turns in flight"))
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.act(Operation::Delete)?;
        self.beneath.delete(id, lease).await
    }
}

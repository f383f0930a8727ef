//! A store with leases. A lease expires only when the test makes it expire.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    store::{
        ConversationId, Listing, MemoryStore, Owner, Store, StoreError, Summary,
        custom::{Change, Epoch, Lease, StoreTraits, Version, Write},
    },
    subscription::EventId,
    testing::Gate,
};
use tokio::sync::watch;

/// The reported duration of a lease. Leases are renewed after a third of this duration.
const LASTS: Duration = Duration::from_millis(30);

/// The behaviour of calls that concern ownership.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum Mood {
    #[default]
    Work,
    Fail,
    Hang,
    Panic,
    /// A conversation is acquired immediately, but the call returns only after the test has set another `Mood`.
    Late,
}

/// A handle to the store. Clones share one store.
#[derive(Clone)]
pub(crate) struct LeasingStore(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    rows: Mutex<Rows>,
    /// Notifies threads that have no runtime.
    changed: Condvar,
    /// Notifies tasks of the number of renewals and calls so far.
    count: watch::Sender<Count>,
}

#[derive(Default)]
struct Rows {
    leases: HashMap<ConversationId, Row>,
    mood: Mood,
    renewals: u64,
    /// The gate at which the next acquisition waits before it begins.
    gate: Option<Gate>,
    /// The epochs of the accepted writes. A write without a lease is recorded as `None`.
    writes: Vec<Option<Epoch>>,
}

#[derive(Clone, Copy, Default, PartialEq)]
struct Count {
    renewals: u64,
    tries: u64,
    releases: u64,
}

#[derive(Clone, Default)]
struct Row {
    owner: Option<Owner>,
    epoch: u64,
    ran_out: bool,
}

fn broken() -> StoreError {
    StoreError::failed("the test's store", fmt::Error)
}

impl LeasingStore {
    pub(crate) fn new() -> Self {
        Self::over(Arc::new(MemoryStore::new()))
    }

    pub(crate) fn over(store: Arc<dyn Store>) -> Self {
        Self(Arc::new(Inner {
            store,
            rows: Mutex::default(),
            changed: Condvar::new(),
            count: watch::Sender::new(Count::default()),
        }))
    }

    pub(crate) fn as_dyn(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    /// Returns the current owner of the conversation.
    pub(crate) fn owner(&self, id: &ConversationId) -> Option<Owner> {
        let row = self.rows().leases.get(id).cloned()?;
        row.owner.filter(|_| !row.ran_out)
    }

    pub(crate) fn epoch(&self, id: &ConversationId) -> u64 {
        self.rows().leases.get(id).map_or(0, |row| row.epoch)
    }

    /// Returns the epochs of all accepted writes except creations.
    pub(crate) fn writes(&self) -> Vec<Option<u64>> {
        self.rows().writes.iter().map(|epoch| epoch.map(|Epoch(epoch)| epoch)).collect()
    }

    /// Makes the lease of this conversation expire.
    pub(crate) fn run_out(&self, id: &ConversationId) {
        self.rows().leases.get_mut(id).expect("the conversation has a lease").ran_out = true;
    }

    /// Makes the lease expire, and gives the conversation to another owner before the first owner notices.
    pub(crate) fn take(&self, id: &ConversationId, owner: &Owner) -> Lease {
        let mut rows = self.rows();
        let row = rows.leases.get_mut(id).expect("the conversation has a lease");
        *row = Row { owner: Some(owner.clone()), epoch: row.epoch + 1, ran_out: false };
        Lease::lasting(Epoch(row.epoch), LASTS)
    }

    /// Sets the behaviour of calls that concern ownership from now on.
    pub(crate) fn ownership(&self, mood: Mood) {
        self.rows().mood = mood;
        self.0.count.send_modify(|_| {});
    }

    /// Lets the next acquisition wait at this gate before it begins.
    pub(crate) fn hold_acquisition(&self, gate: &Gate) {
        self.rows().gate = Some(gate.clone());
    }

    /// Waits until the conversation has been acquired this many times.
    pub(crate) async fn acquired(&self, id: &ConversationId, times: u64) {
        let mut count = self.0.count.subscribe();
        while self.epoch(id) < times {
            count.changed().await.expect("the store still exists");
        }
    }

    /// Waits until the conversation has an owner.
    pub(crate) async fn owned(&self, id: &ConversationId) {
        let mut count = self.0.count.subscribe();
        while self.owner(id).is_none() {
            count.changed().await.expect("the store still exists");
        }
    }

    /// Waits for this many renewals, counted from now on. A renewal of any lease counts.
    pub(crate) async fn renewed(&self, times: u64) {
        self.until(|count| count.renewals, times).await;
    }

    /// Waits for this many calls that concern ownership, counted from now on. Failed calls also count.
    pub(crate) async fn tried(&self, times: u64) {
        self.until(|count| count.tries, times).await;
    }

    /// Waits until the conversation has no owner.
    pub(crate) async fn released(&self, id: &ConversationId) {
        let mut count = self.0.count.subscribe();
        while self.owner(id).is_some() {
            count.changed().await.expect("the store still exists");
        }
    }

    async fn until(&self, of: fn(&Count) -> u64, times: u64) {
        let mut count = self.0.count.subscribe();
        let goal = of(&count.borrow()) + times;
        count.wait_for(|count| of(count) >= goal).await.expect("the store still exists");
    }

    /// Blocks the current thread until this many further renewals have taken place. A renewal of any lease counts.
    pub(crate) fn block_until_renewed(&self, times: u64) {
        let rows = self.rows();
        let goal = rows.renewals + times;
        drop(self.0.changed.wait_while(rows, |rows| rows.renewals < goal));
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.0.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn act(&self) -> Result<(), StoreError> {
        let mood = self.rows().mood;
        self.0.count.send_modify(|count| count.tries += 1);
        match mood {
            Mood::Work | Mood::Late => Ok(()),
            Mood::Fail => Err(broken()),
            Mood::Hang => std::future::pending().await,
            Mood::Panic => panic!("the store broke"),
        }
    }

    /// Refuses a write if its lease was released or replaced. The underlying test store writes immediately, so
    /// nothing can happen between this check and the write.
    fn fence(&self, id: &ConversationId, epoch: Option<Epoch>) -> Result<(), StoreError> {
        let mut rows = self.rows();
        if let Some(epoch) = epoch {
            let row = rows.leases.get(id).cloned().unwrap_or_default();
            if row.owner.is_none() || row.epoch != epoch.0 {
                return Err(StoreError::LeaseLost { id: id.clone() });
            }
        }
        rows.writes.push(epoch);
        Ok(())
    }
}

#[async_trait]
impl Store for LeasingStore {
    forward!(self.0.store: load);

    fn traits(&self) -> StoreTraits {
        StoreTraits::default().with_turns(self.0.store.traits().turns)
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        if !matches!(change, Change::Create(_)) {
            self.fence(id, write.epoch)?;
        }
        self.0.store.write(id, write, change).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        let mut summary = self.0.store.summary(id).await?;
        summary.owner = self.owner(id);
        Ok(summary)
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        let mut list = self.0.store.list(listing).await?;
        for summary in &mut list {
            summary.owner = self.owner(&summary.id);
        }
        Ok(list)
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        if let Some(lease) = lease {
            self.fence(id, Some(lease.epoch))?;
        }
        self.0.store.delete(id, None).await?;
        self.rows().leases.remove(id);
        Ok(())
    }

    async fn acquire(&self, id: &ConversationId, owner: &Owner) -> Result<Lease, StoreError> {
        self.act().await?;
        let gate = self.rows().gate.take();
        if let Some(gate) = gate {
            gate.pass().await;
        }
        self.0.store.summary(id).await?;
        let lease = {
            let mut rows = self.rows();
            let row = rows.leases.entry(id.clone()).or_default();
            if let Some(other) = &row.owner
                && other.name != owner.name
                && !row.ran_out
            {
                return Err(StoreError::Owned { id: id.clone(), owner: other.clone() });
            }
            *row = Row { owner: Some(owner.clone()), epoch: row.epoch + 1, ran_out: false };
            Lease::lasting(Epoch(row.epoch), LASTS)
        };
        let mut count = self.0.count.subscribe();
        self.0.count.send_modify(|_| {});
        while self.rows().mood == Mood::Late {
            count.changed().await.expect("the store still exists");
        }
        Ok(lease)
    }

    async fn renew(&self, leases: &[(ConversationId, Lease)]) -> Result<Vec<ConversationId>, StoreError> {
        let (mut lost, mut failed) = (Vec::new(), None);
        for (id, lease) in leases {
            if let Err(error) = self.act().await {
                failed = failed.or(Some(error));
                continue;
            }
            let mut rows = self.rows();
            let row = rows.leases.get_mut(id).filter(|row| row.owner.is_some() && row.epoch == lease.epoch.0);
            let Some(row) = row else {
                lost.push(id.clone());
                continue;
            };
            row.ran_out = false;
            rows.renewals += 1;
            drop(rows);
            self.0.changed.notify_all();
            self.0.count.send_modify(|count| count.renewals += 1);
        }
        failed.map_or(Ok(lost), Err)
    }

    async fn release(
        &self,
        id: &ConversationId,
        lease: &Lease,
        mark: Option<EventId>,
    ) -> Result<(), StoreError> {
        self.act().await?;
        let holds = self.rows().leases.get(id).is_some_and(|row| row.epoch == lease.epoch.0);
        if holds {
            self.0.store.release(id, lease, mark).await?;
        }
        let mut rows = self.rows();
        if let Some(row) = rows.leases.get_mut(id)
            && row.epoch == lease.epoch.0
        {
            row.owner = None;
        }
        drop(rows);
        self.0.count.send_modify(|count| count.releases += 1);
        Ok(())
    }
}

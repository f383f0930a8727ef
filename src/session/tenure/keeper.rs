//! Renews leases on a separate thread, so that the conversations are not lost if an application blocks the threads of
//! its runtime.
//!
//! All sessions of a manager share one keeper. A session without a manager has its own keeper. When a third of the
//! lease time has passed, a keeper renews all its leases together. A lease can expire if the store can't be reached or
//! the process is suspended. As long as nobody else acquires the conversation, its epoch stays valid, and the next renewal
//! extends the lease.
//!
//! The caller of an acquisition may give up, and acquire the conversation again under the same name. If the store performs
//! the first acquisition after the second one, it ends the second lease. The session that holds the second lease then
//! continues with the lease of the first acquisition. So before a session loses its place, the keeper waits for the
//! acquisitions in flight.
//!
//! All keepers of a process run on one thread, which starts with the first lease. A store without leases starts none.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rand::seq::SliceRandom;
use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until, timeout},
};

use super::{LeaseShared, PATIENCE};
use crate::{
    panics::contained_async,
    store::{ConversationId, Epoch, Lease, Store, StoreError},
    subscription::EventId,
    sync::lock,
    time::moment_after,
};

/// The maximum number of leases that are renewed in one call.
const TOGETHER: usize = 500;

/// The minimum time between renewals. It applies even if a lease is shorter.
const OFTEN: Duration = Duration::from_millis(2);

/// The maximum wait after a failed renewal.
const AGAIN: Duration = Duration::from_secs(1);

/// The runtime of all keepers. Its thread runs until the process ends.
static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);

/// Renews the leases of one store. Its task ends after the keeper is dropped.
pub(in crate::session) struct LeaseKeeper {
    store: Arc<dyn Store>,
    /// The channel for orders to the task. The task is started for the first lease. The channel is unbounded, because a
    /// session must be able to send an order while it is dropped. A session sends only a few orders in its life.
    orders: OnceLock<mpsc::UnboundedSender<LeaseKeeperCommand>>,
    /// Has a receiver for each lease that is being acquired, or is not released yet.
    leases: watch::Sender<()>,
    acquisitions: Arc<watch::Sender<Acquisitions>>,
}

/// The acquisitions of a keeper that are in flight, and the leases of abandoned ones.
type Acquisitions = HashMap<ConversationId, ConversationAcquisitions>;

#[derive(Default)]
struct ConversationAcquisitions {
    in_flight: usize,
    /// The lease that the store has granted after its caller had given up.
    late: Option<Arc<LeaseShared>>,
}

/// Counts an acquisition until it is dropped.
pub(super) struct AcquisitionInFlight {
    keeper: Arc<LeaseKeeper>,
    id: ConversationId,
}

impl AcquisitionInFlight {
    pub(super) fn new(keeper: &Arc<LeaseKeeper>, id: &ConversationId) -> Self {
        keeper.acquisitions.send_modify(|all| all.entry(id.clone()).or_default().in_flight += 1);
        Self { keeper: Arc::clone(keeper), id: id.clone() }
    }

    /// Gives a lease to the keeper whose caller has given up.
    pub(super) fn arrived_late(self, held: Arc<LeaseShared>) {
        self.keeper.acquisitions.send_modify(|all| {
            let late = &mut all.entry(self.id.clone()).or_default().late;
            // Of two leases, only the later one is valid.
            if late.as_ref().is_none_or(|other| epoch(other) < epoch(&held)) {
                *late = Some(held);
            }
        });
    }
}

impl Drop for AcquisitionInFlight {
    fn drop(&mut self) {
        let mut is_late = false;
        self.keeper.acquisitions.send_modify(|all| {
            if let Some(own) = all.get_mut(&self.id) {
                own.in_flight -= 1;
                is_late = own.in_flight == 0 && own.late.is_some();
                if own.in_flight == 0 && !is_late {
                    all.remove(&self.id);
                }
            }
        });
        if is_late {
            self.keeper.send(LeaseKeeperCommand::Late(self.id.clone()));
        }
    }
}

/// Returns the epoch of a lease, or `None` if the lease is lost.
fn epoch(held: &LeaseShared) -> Option<Epoch> {
    held.lease().ok().map(|lease| lease.epoch)
}

pub(super) enum LeaseKeeperCommand {
    /// Renew this lease from now on.
    Keep(Arc<LeaseShared>),
    /// The store has rejected a write with this epoch of the lease. Find out why, and set the lease or the reason.
    Refused(Arc<LeaseShared>, Epoch),
    /// Release this lease and record the last event of the session's feed, then drop the sender. The caller waits for
    /// that.
    Release(Arc<LeaseShared>, Option<EventId>, Option<oneshot::Sender<()>>),
    /// A lease of this conversation has arrived late, and no acquisition is in flight any more.
    Late(ConversationId),
}

impl LeaseKeeper {
    pub(in crate::session) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, orders: OnceLock::new(), leases: watch::Sender::new(()), acquisitions: Arc::default() }
    }

    /// Starts the task, unless it is already running.
    ///
    /// # Errors
    ///
    /// Fails if the thread of the keepers or its runtime can't be started.
    pub(super) fn start(&self) -> Result<(), StoreError> {
        if self.orders.get().is_none() {
            let runtime = runtime()?;
            self.orders.get_or_init(|| {
                let (orders, received) = mpsc::unbounded_channel();
                let (store, acquisitions) = (Arc::clone(&self.store), Arc::clone(&self.acquisitions));
                runtime.spawn(LeaseKeeperTask::new(store, acquisitions).run(received));
                orders
            });
        }
        Ok(())
    }

    /// Counts a lease until the receiver is dropped.
    pub(super) fn count(&self) -> watch::Receiver<()> {
        self.leases.subscribe()
    }

    /// Waits until each lease is released, and none is being acquired.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing changes.
    pub(in crate::session) async fn all_released(&self) {
        self.leases.closed().await;
    }

    pub(super) fn send(&self, order: LeaseKeeperCommand) {
        if let Some(orders) = self.orders.get() {
            // Sending cannot fail, because the task ends only after the last sender is dropped.
            let _ = orders.send(order);
        }
    }
}

crate::debug::impl_debug!(LeaseKeeper { .. });

/// Returns the runtime of all keepers. The first call starts its thread.
fn runtime() -> Result<Handle, StoreError> {
    let mut started = lock(&RUNTIME);
    if let Some(runtime) = &*started {
        return Ok(runtime.clone());
    }
    let failed = |error| StoreError::failed("starting the thread that renews leases", error);
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("omni-agent-leases".to_owned()).spawn(run).map_err(failed)?;
    Ok(started.insert(handle).clone())
}

/// Identifies a lease. A process owns a conversation at most once at a time. But the id alone is not enough, because
/// the next session may acquire its lease before the release of the previous lease arrives.
type LeaseKey = (ConversationId, Epoch);

/// The task of a keeper. It accepts orders while its calls to the store are in progress.
struct LeaseKeeperTask {
    store: Arc<dyn Store>,
    acquisitions: Arc<watch::Sender<Acquisitions>>,
    /// The leases that are renewed regularly.
    held: BTreeMap<LeaseKey, Arc<LeaseShared>>,
    /// The leases whose epochs the store no longer accepts, while the keeper waits for acquisitions in flight.
    lost: BTreeSet<LeaseKey>,
    work: FuturesUnordered<BoxFuture<'static, LeaseCallOutcome>>,
    is_renewing: bool,
    /// The time of the next renewal.
    due: Option<Instant>,
}

/// The outcome of a call to the store.
enum LeaseCallOutcome {
    /// The listed leases are lost, and the other leases were renewed. If there is an error, the outcome for the other
    /// leases is unknown.
    Renewed(Vec<LeaseKey>, Result<(), StoreError>),
    /// The store no longer accepts this epoch of the lease, for this reason, and no acquisition is in flight.
    Lost(Arc<LeaseShared>, Epoch, StoreError),
    Released,
}

impl LeaseKeeperTask {
    fn new(store: Arc<dyn Store>, acquisitions: Arc<watch::Sender<Acquisitions>>) -> Self {
        Self {
            store,
            acquisitions,
            held: BTreeMap::new(),
            lost: BTreeSet::new(),
            work: FuturesUnordered::new(),
            is_renewing: false,
            due: None,
        }
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<LeaseKeeperCommand>) {
        let mut open = true;
        while open || !self.work.is_empty() {
            let due = self.due.filter(|_| !self.is_renewing && !self.held.is_empty());
            tokio::select! {
                order = orders.recv(), if open => match order {
                    Some(order) => self.obey(order),
                    None => open = false,
                },
                Some(done) = self.work.next() => self.done(done),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => self.renew(),
            }
        }
    }

    /// Returns the time between renewals.
    fn pace(&self) -> Duration {
        let leases = self.held.values().filter_map(|held| held.lease().ok()?.lasts);
        third(leases.min().unwrap_or(AGAIN))
    }

    fn obey(&mut self, order: LeaseKeeperCommand) {
        match order {
            LeaseKeeperCommand::Keep(held) => self.keep(held),
            LeaseKeeperCommand::Refused(held, refused) => {
                if self.held.contains_key(&(held.id.clone(), refused)) {
                    self.examine(held, refused);
                } else if epoch(&held) == Some(refused) {
                    let id = held.id.clone();
                    drop(held.lease.send_replace(Err(StoreError::LeaseLost { id })));
                }
            }
            LeaseKeeperCommand::Release(held, mark, reply) => self.release(&held, mark, reply),
            LeaseKeeperCommand::Late(id) => self.settle_late(&id),
        }
    }

    /// Takes the late lease of a conversation, if it has one that is later than this epoch.
    fn take_late(&self, id: &ConversationId, after: Option<Epoch>) -> Option<Arc<LeaseShared>> {
        let mut taken = None;
        self.acquisitions.send_if_modified(|all| {
            if let Some(own) = all.get_mut(id) {
                taken = own.late.take_if(|late| epoch(late) > after);
                if own.in_flight == 0 && own.late.is_none() {
                    all.remove(id);
                }
            }
            false
        });
        taken
    }

    /// Gives the late lease of a conversation to the session that has acquired the conversation meanwhile. If there is
    /// none, releases the lease.
    fn settle_late(&mut self, id: &ConversationId) {
        if let Some(late) = self.take_late(id, None) {
            if let Ok(lease) = late.lease() {
                self.held.insert((id.clone(), lease.epoch), Arc::clone(&late));
            }
            self.release(&late, None, None);
        }
    }

    fn keep(&mut self, held: Arc<LeaseShared>) {
        if let Some(Ok(late)) = self.take_late(&held.id, epoch(&held)).map(|late| late.lease()) {
            drop(held.lease.send_replace(Ok(late)));
        }
        if let Ok(lease) = held.lease() {
            self.held.insert((held.id.clone(), lease.epoch), held);
            // Only the new lease can make the next renewal earlier, because `due` already takes account of all other
            // leases.
            let due = moment_after(third(lease.lasts.unwrap_or(AGAIN)));
            self.due = Some(self.due.map_or(due, |other| other.min(due)));
        }
    }

    fn release(
        &mut self,
        held: &Arc<LeaseShared>,
        mark: Option<EventId>,
        reply: Option<oneshot::Sender<()>>,
    ) {
        let Ok(lease) = held.lease() else {
            return;
        };
        if self.held.remove(&(held.id.clone(), lease.epoch)).is_none() {
            return;
        }
        // This lease has ended the earlier lease of a session of this process. If the session is still open, it needs
        // this lease.
        let mut earlier = self.held.range((held.id.clone(), Epoch(0))..(held.id.clone(), lease.epoch));
        if let Some(key) = earlier.next().map(|(key, _)| key.clone())
            && let Some(earlier) = self.held.remove(&key)
        {
            drop(earlier.lease.send_replace(Ok(lease)));
            self.keep(earlier);
            return;
        }
        let (store, held) = (Arc::clone(&self.store), Arc::clone(held));
        self.work.push(Box::pin(async move {
            release_lease(&*store, &held.id, &lease, mark).await;
            drop((reply, held));
            LeaseCallOutcome::Released
        }));
    }

    /// Starts to renew all leases.
    fn renew(&mut self) {
        let limit = self.pace();
        let leases = self.held.iter().filter(|(key, _)| !self.lost.contains(*key));
        let leases = leases.filter_map(|(_, held)| Some((held.id.clone(), held.lease().ok()?)));
        let mut leases: Vec<(ConversationId, Lease)> = leases.collect();
        // If there is too little time to renew all leases, the random order prevents the same leases from being skipped
        // each time.
        leases.shuffle(&mut rand::rng());
        let store = Arc::clone(&self.store);
        self.due = Some(moment_after(limit));
        self.is_renewing = true;
        self.work.push(Box::pin(async move {
            let (mut lost, mut failed) = (Vec::new(), Ok(()));
            let end = moment_after(limit.saturating_mul(2));
            for some in leases.chunks(TOGETHER) {
                let left = end.saturating_duration_since(Instant::now());
                match in_time(limit.min(left), store.renew(some)).await {
                    Ok(ids) => {
                        let lease = |id: &ConversationId| some.iter().find(|(other, _)| other == id);
                        lost.extend(
                            ids.iter().filter_map(lease).map(|(id, lease)| (id.clone(), lease.epoch)),
                        );
                    }
                    // Continue with the other groups of leases, because the store may fail only for some leases.
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
            LeaseCallOutcome::Renewed(lost, failed)
        }));
    }

    /// Starts to find out why the store no longer accepts an epoch of a lease.
    fn examine(&mut self, held: Arc<LeaseShared>, refused: Epoch) {
        if !self.lost.insert((held.id.clone(), refused)) {
            return;
        }
        let (store, mut acquisitions) = (Arc::clone(&self.store), self.acquisitions.subscribe());
        self.work.push(Box::pin(async move {
            // An abandoned acquisition may have ended the lease. Its own lease then arrives late.
            let none_in_flight = |all: &Acquisitions| all.get(&held.id).is_none_or(|own| own.in_flight == 0);
            let _ = timeout(PATIENCE, acquisitions.wait_for(none_in_flight)).await;
            let error = lost(&*store, held.id.clone()).await;
            LeaseCallOutcome::Lost(held, refused, error)
        }));
    }

    fn done(&mut self, done: LeaseCallOutcome) {
        match done {
            LeaseCallOutcome::Renewed(lost, outcome) => {
                self.is_renewing = false;
                for (id, epoch) in lost {
                    if let Some(held) = self.held.get(&(id, epoch)) {
                        self.examine(Arc::clone(held), epoch);
                    }
                }
                if let Err(error) = outcome {
                    let leases = self.held.len();
                    tracing::warn!(%error, leases, "leases could not be renewed; another attempt follows");
                    self.due = Some(Instant::now() + self.pace().min(AGAIN));
                }
            }
            LeaseCallOutcome::Lost(held, refused, error) => self.lose(held, refused, error),
            LeaseCallOutcome::Released => {}
        }
    }

    /// Ends a lease for this reason, unless a late lease has replaced it or replaces it now.
    fn lose(&mut self, held: Arc<LeaseShared>, refused: Epoch, error: StoreError) {
        let key = (held.id.clone(), refused);
        self.lost.remove(&key);
        if self.held.remove(&key).is_some() {
            if let Some(Ok(late)) = self.take_late(&held.id, Some(refused)).map(|late| late.lease()) {
                drop(held.lease.send_replace(Ok(late)));
                self.keep(held);
            } else {
                drop(held.lease.send_replace(Err(error)));
            }
        } else if epoch(&held) == Some(refused) {
            // It was released in the meantime.
            drop(held.lease.send_replace(Err(error)));
        }
    }
}

/// Returns how long to wait before a lease of this length is renewed.
fn third(lasts: Duration) -> Duration {
    (lasts / 3).max(OFTEN)
}

/// Returns the error for a lost lease. If the conversation has an owner now, the error names this owner.
async fn lost(store: &dyn Store, id: ConversationId) -> StoreError {
    match in_time(PATIENCE, store.summary(&id)).await.map(|summary| summary.owner) {
        Ok(Some(owner)) => StoreError::Owned { id, owner },
        _ => StoreError::LeaseLost { id },
    }
}

/// Releases a conversation. If the release fails, the conversation remains owned until its lease expires.
async fn release_lease(store: &dyn Store, id: &ConversationId, lease: &Lease, mark: Option<EventId>) {
    if let Err(error) = in_time(PATIENCE, store.release(id, lease, mark)).await {
        tracing::warn!(%id, %error, "releasing a conversation failed; it is owned until its lease expires");
    }
}

/// Waits for a call to the store, up to the limit. The call may hang or panic.
async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(limit, contained_async(call)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(StoreError::failed("a call to the store", io::Error::other("the store panicked"))),
        Err(_) => Err(StoreError::Busy { place: "the store".to_owned(), waited: limit }),
    }
}

//! Renews leases, on a separate thread, so that an application that blocks its own threads does not lose conversations.
//!
//! The sessions of a manager share one keeper. A session without a manager has its own. A keeper renews its leases
//! together when a third of their time has passed. A lease can expire if the store can't be reached or the process is
//! suspended. An expired lease is renewed if its epoch shows that nobody else has acquired the conversation in the
//! meantime.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, OnceLock, atomic::Ordering},
    thread,
    time::Duration,
};

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rand::seq::SliceRandom;
use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{Held, PATIENCE};
use crate::{
    panics::contained_async,
    store::{ConversationId, Epoch, Lease, Store, StoreError},
    sync::lock,
};

/// The number of leases that are renewed in one call.
const TOGETHER: usize = 500;

/// The shortest time between renewals. It applies even to shorter leases.
const OFTEN: Duration = Duration::from_millis(2);

/// The longest wait after a failed renewal.
const AGAIN: Duration = Duration::from_secs(1);

/// The runtime of all keepers. Its thread runs as long as the process.
static RUNTIME: Mutex<Option<Handle>> = Mutex::new(None);

/// Renews leases of one store. Its task ends when the keeper is dropped.
pub(in crate::session) struct Keeper {
    store: Arc<dyn Store>,
    /// The orders for the task, which starts with the first lease. Unbounded, because a session must be able to send
    /// when it is dropped. It sends only a few orders in its life.
    orders: OnceLock<mpsc::UnboundedSender<Order>>,
}

type Reply = oneshot::Sender<Result<Lease, StoreError>>;

pub(super) enum Order {
    /// Renew this lease from now on.
    Keep(Arc<Held>),
    /// The lease with this epoch was rejected: find out why and reply.
    Check(Arc<Held>, Epoch, Reply),
    /// Release this lease, then reply.
    Release(Arc<Held>, Option<oneshot::Sender<()>>),
}

impl Keeper {
    pub(in crate::session) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, orders: OnceLock::new() }
    }

    /// Starts the task, unless it runs.
    ///
    /// # Errors
    ///
    /// The thread can't be started.
    pub(super) fn start(&self) -> Result<(), StoreError> {
        if self.orders.get().is_none() {
            let runtime = runtime()?;
            self.orders.get_or_init(|| {
                let (orders, received) = mpsc::unbounded_channel();
                runtime.spawn(Watch::new(Arc::clone(&self.store)).run(received));
                orders
            });
        }
        Ok(())
    }

    pub(super) fn send(&self, order: Order) {
        if let Some(orders) = self.orders.get() {
            // The receiver is dropped only when no sender is left.
            let _ = orders.send(order);
        }
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

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

/// Identifies a lease. A process has at most one owner of a conversation at a time. But the next owner may start before
/// the release of the previous lease arrives.
type Key = (ConversationId, Epoch);

/// The task of a keeper. Its calls to the store do not delay its orders.
struct Watch {
    store: Arc<dyn Store>,
    /// The leases to renew.
    held: HashMap<Key, Arc<Held>>,
    /// The leases that are being revived, each with the senders for the callers that wait for the outcome.
    lapsed: HashMap<Key, Vec<Reply>>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    is_renewing: bool,
    /// The time of the next renewal.
    due: Option<Instant>,
}

/// A finished call to the store.
enum Done {
    /// The leases were renewed, except these leases, which are lost. After an error, the outcome for the other leases
    /// is unknown.
    Renewed(Vec<Key>, Result<(), StoreError>),
    /// The renewal of an expired lease succeeded or failed.
    Revived(Arc<Held>, Epoch, Result<Lease, StoreError>),
    Released,
}

impl Watch {
    fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            held: HashMap::new(),
            lapsed: HashMap::new(),
            work: FuturesUnordered::new(),
            is_renewing: false,
            due: None,
        }
    }

    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
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

    fn obey(&mut self, order: Order) {
        match order {
            Order::Keep(held) => self.keep(held),
            Order::Check(held, refused, reply) => {
                let key = (held.id.clone(), refused);
                if let Some(waiting) = self.lapsed.get_mut(&key) {
                    waiting.push(reply);
                } else if self.held.remove(&key).is_some() {
                    self.revive(held, refused, vec![reply]);
                } else {
                    let lost = || StoreError::LeaseLost { id: key.0 };
                    let lease = held.lease();
                    let _ = reply.send(match lease {
                        Ok(lease) if lease.epoch == refused => Err(lost()),
                        other => other,
                    });
                }
            }
            Order::Release(held, reply) => self.release(&held, reply),
        }
    }

    fn keep(&mut self, held: Arc<Held>) {
        if let Ok(lease) = held.lease() {
            self.held.insert((held.id.clone(), lease.epoch), held);
            // The other leases are already considered in `due`, and there may be many.
            let due = Instant::now() + third(lease.lasts.unwrap_or(AGAIN));
            self.due = Some(self.due.map_or(due, |other| other.min(due)));
        }
    }

    fn release(&mut self, held: &Arc<Held>, reply: Option<oneshot::Sender<()>>) {
        held.is_over.store(true, Ordering::Release);
        let Ok(lease) = held.lease() else {
            return;
        };
        if self.held.remove(&(held.id.clone(), lease.epoch)).is_none() {
            return;
        }
        let (store, id) = (Arc::clone(&self.store), held.id.clone());
        self.work.push(Box::pin(async move {
            release_lease(&*store, &id, &lease).await;
            drop(reply);
            Done::Released
        }));
    }

    /// Starts to renew all leases.
    fn renew(&mut self) {
        let limit = self.pace();
        let leases = self.held.values().filter_map(|held| Some((held.id.clone(), held.lease().ok()?)));
        let mut leases: Vec<(ConversationId, Lease)> = leases.collect();
        // If there is not enough time for all leases, the order ensures that different leases are left out each time.
        leases.shuffle(&mut rand::rng());
        let store = Arc::clone(&self.store);
        self.due = Some(Instant::now() + limit);
        self.is_renewing = true;
        self.work.push(Box::pin(async move {
            let (mut lost, mut failed) = (Vec::new(), Ok(()));
            let end = Instant::now() + limit * 2;
            for some in leases.chunks(TOGETHER) {
                let left = end.saturating_duration_since(Instant::now());
                match in_time(limit.min(left), store.renew_all(some)).await {
                    Ok(ids) => {
                        let lease = |id: &ConversationId| some.iter().find(|(other, _)| other == id);
                        lost.extend(
                            ids.iter().filter_map(lease).map(|(id, lease)| (id.clone(), lease.epoch)),
                        );
                    }
                    // Some leases may be renewed although others fail.
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
            Done::Renewed(lost, failed)
        }));
    }

    /// Starts to find out whether a lease has expired or has passed to another owner. A renewal shows this. A renewal
    /// does not harm another owner of the conversation, and it can be repeated.
    fn revive(&mut self, held: Arc<Held>, refused: Epoch, waiting: Vec<Reply>) {
        self.lapsed.insert((held.id.clone(), refused), waiting);
        let store = Arc::clone(&self.store);
        self.work.push(Box::pin(async move {
            let revived = match held.lease() {
                Ok(lease) => in_time(PATIENCE, store.renew(&held.id, &lease)).await,
                lost => lost,
            };
            let revived = match revived {
                Err(StoreError::LeaseLost { id }) => Err(lost(&*store, id).await),
                revived => revived,
            };
            Done::Revived(held, refused, revived)
        }));
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Renewed(lost, outcome) => {
                self.is_renewing = false;
                for (id, epoch) in lost {
                    if let Some(held) = self.held.remove(&(id, epoch)) {
                        self.revive(held, epoch, Vec::new());
                    }
                }
                if let Err(error) = outcome {
                    let leases = self.held.len();
                    tracing::warn!(%error, leases, "leases could not be renewed; another attempt follows");
                    self.due = Some(Instant::now() + self.pace().min(AGAIN));
                }
            }
            Done::Revived(held, refused, revived) => self.revived(held, refused, revived),
            Done::Released => {}
        }
    }

    fn revived(&mut self, held: Arc<Held>, refused: Epoch, revived: Result<Lease, StoreError>) {
        let waiting = self.lapsed.remove(&(held.id.clone(), refused)).unwrap_or_default();
        for reply in waiting {
            let _ = reply.send(revived.clone());
        }
        let is_over = held.is_over.load(Ordering::Acquire);
        match revived {
            Ok(lease) => {
                tracing::warn!(id = %held.id, "the lease of a conversation had expired and was renewed");
                drop(held.lease.send_replace(Ok(lease)));
                self.keep(Arc::clone(&held));
                if is_over {
                    self.release(&held, None);
                }
            }
            // The outcome is unknown. The next renewal shows it.
            Err(error) if error.is_transient() && !matches!(error, StoreError::Owned { .. }) => {
                if !is_over {
                    self.held.insert((held.id.clone(), refused), held);
                    self.due = Some(Instant::now() + self.pace().min(AGAIN));
                }
            }
            Err(error) => drop(held.lease.send_replace(Err(error))),
        }
    }
}

/// Returns the time after which a lease of this length is renewed.
fn third(lasts: Duration) -> Duration {
    (lasts / 3).max(OFTEN)
}

/// Returns the reason why a lease is lost. It names the present owner of the conversation, if there is one.
async fn lost(store: &dyn Store, id: ConversationId) -> StoreError {
    match in_time(PATIENCE, store.summary(&id)).await.map(|summary| summary.owner) {
        Ok(Some(owner)) => StoreError::Owned { id, owner },
        _ => StoreError::LeaseLost { id },
    }
}

/// Releases a conversation. If that fails, its lease expires.
async fn release_lease(store: &dyn Store, id: &ConversationId, lease: &Lease) {
    if let Err(error) = in_time(PATIENCE, store.release(id, lease)).await {
        tracing::warn!(%id, %error, "releasing a conversation failed; it is owned until its lease expires");
    }
}

/// Waits for a call to the store, which may hang or panic.
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

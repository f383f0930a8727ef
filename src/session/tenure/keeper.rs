//! Renews leases, on a thread of its own: an application that keeps its own threads busy loses no conversation by it.
//!
//! A store has one keeper for all sessions on it, which renews their leases together when a third of their time has
//! passed. A lease that ran out — the store could not be reached, or the process stood still — goes on if nobody else has
//! had the conversation since, which its epoch tells.

use std::{
    collections::HashMap,
    io,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError, Weak, atomic::Ordering},
    thread,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use rand::seq::SliceRandom;
use tokio::{
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout},
};

use super::{Held, PATIENCE};
use crate::store::{ConversationId, Epoch, Lease, Store, StoreError};

/// Leases that are renewed with one call.
const TOGETHER: usize = 500;

/// Leases are not renewed more often, however short they are.
const OFTEN: Duration = Duration::from_millis(2);

/// The wait after a renewal that failed, at most.
const AGAIN: Duration = Duration::from_secs(1);

/// The runtime that all keepers share, and the keeper of each store.
static KEEPERS: Mutex<Keepers> = Mutex::new(Keepers { runtime: None, of: None });

struct Keepers {
    runtime: Option<Handle>,
    /// By the store's address, which is the store's for as long as its keeper is there.
    of: Option<HashMap<usize, Weak<Keeper>>>,
}

/// Renews the leases of one store. Goes when the last of them has.
pub(super) struct Keeper {
    /// Held so that its address stays its own.
    _store: Arc<dyn Store>,
    /// Unbounded: a session sends a handful in its life, and must be able to when it is dropped.
    orders: mpsc::UnboundedSender<Order>,
}

type Reply = oneshot::Sender<Result<Lease, StoreError>>;

pub(super) enum Order {
    /// Renew this lease from now on.
    Keep(Arc<Held>),
    /// The lease with this epoch was refused: see what can be done, and tell.
    Check(Arc<Held>, Epoch, Reply),
    /// Give this one back, and say so.
    Release(Arc<Held>, Option<oneshot::Sender<()>>),
}

impl Keeper {
    /// The keeper of a store.
    ///
    /// # Errors
    ///
    /// There is no thread to be had.
    pub(super) fn of(store: &Arc<dyn Store>) -> Result<Arc<Self>, StoreError> {
        let mut keepers = KEEPERS.lock().unwrap_or_else(PoisonError::into_inner);
        let runtime = match &keepers.runtime {
            Some(runtime) => runtime.clone(),
            None => keepers.runtime.insert(start()?).clone(),
        };
        let address = Arc::as_ptr(store).cast::<()>() as usize;
        let of = keepers.of.get_or_insert_default();
        if let Some(keeper) = of.get(&address).and_then(Weak::upgrade) {
            return Ok(keeper);
        }
        of.retain(|_, keeper| keeper.strong_count() > 0);
        let (orders, received) = mpsc::unbounded_channel();
        let keeper = Arc::new(Self { _store: Arc::clone(store), orders });
        of.insert(address, Arc::downgrade(&keeper));
        runtime.spawn(Watch::new(Arc::clone(store)).run(received));
        Ok(keeper)
    }

    pub(super) fn send(&self, order: Order) {
        // The receiver goes only when no sender is left.
        let _ = self.orders.send(order);
    }
}

/// Starts the thread, which stays for as long as the process.
fn start() -> Result<Handle, StoreError> {
    let failed = |error| StoreError::failed("starting the thread that renews leases", error);
    let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    let run = move || runtime.block_on(std::future::pending::<()>());
    thread::Builder::new().name("omni-agent-leases".to_owned()).spawn(run).map_err(failed)?;
    Ok(handle)
}

/// Names a lease. In a process a conversation has one owner at a time, but the next may come before the last one's word
/// that it has gone.
type Key = (ConversationId, Epoch);

/// A keeper's task. Nothing that it does with the store keeps it from its orders.
struct Watch {
    store: Arc<dyn Store>,
    /// What is to be renewed.
    held: HashMap<Key, Arc<Held>>,
    /// What is being revived, and who asked for it.
    lapsed: HashMap<Key, Vec<Reply>>,
    work: FuturesUnordered<BoxFuture<'static, Done>>,
    is_renewing: bool,
    /// When to renew.
    due: Option<Instant>,
}

/// What the store has done.
enum Done {
    /// Renewed leases, and these are lost; of others it is not known.
    Renewed(Vec<Key>, Result<(), StoreError>),
    /// Renewed this lease, which had run out; or not.
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

    /// How often leases are renewed.
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
            // The others have been looked at: there may be many.
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
            give_back(&*store, &id, &lease).await;
            drop(reply);
            Done::Released
        }));
    }

    /// Begins to renew all leases.
    fn renew(&mut self) {
        let limit = self.pace();
        let leases = self.held.values().filter_map(|held| Some((held.id.clone(), held.lease().ok()?)));
        let mut leases: Vec<(ConversationId, Lease)> = leases.collect();
        // Should time be too short for all, it is others each time.
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
                    // Some may be renewed where others can't.
                    Err(error) => failed = failed.and(Err(error)),
                }
            }
            Done::Renewed(lost, failed)
        }));
    }

    /// A lease ran out, or passed to another: begins to see which. Renewing says so, and does no harm to whoever has the
    /// conversation now, nor when it is repeated.
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
                    tracing::warn!(%error, leases, "leases are not renewed; it is tried again");
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
                tracing::warn!(id = %held.id, "the lease of a conversation had run out, and goes on");
                drop(held.lease.send_replace(Ok(lease)));
                self.keep(Arc::clone(&held));
                if is_over {
                    self.release(&held, None);
                }
            }
            // Nobody knows yet: the next renewal shows.
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

/// When a lease of this length is renewed.
fn third(lasts: Duration) -> Duration {
    (lasts / 3).max(OFTEN)
}

/// Why a lease is lost: whose the conversation is now, if anybody's.
async fn lost(store: &dyn Store, id: ConversationId) -> StoreError {
    match in_time(PATIENCE, store.summary(&id)).await.map(|summary| summary.owner) {
        Ok(Some(owner)) => StoreError::Owned { id, owner },
        _ => StoreError::LeaseLost { id },
    }
}

/// Gives a conversation back; should that fail, its lease runs out.
async fn give_back(store: &dyn Store, id: &ConversationId, lease: &Lease) {
    if let Err(error) = in_time(PATIENCE, store.release(id, lease)).await {
        tracing::warn!(%id, %error, "a conversation is not given back; its lease runs out");
    }
}

/// Awaits a call of the store's, which may hang or panic.
async fn in_time<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let call = AssertUnwindSafe(call).catch_unwind();
    match timeout(limit, call).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(StoreError::failed("the store's own code", io::Error::other("it panicked"))),
        Err(_) => Err(StoreError::Busy { place: "the store".to_owned(), waited: limit }),
    }
}

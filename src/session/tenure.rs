//! The ownership of a conversation. It is based on a lease from the store, which is renewed as long as the session is
//! open.
//!
//! The lease is acquired before the conversation is loaded, or right after it is created, and released when the session
//! has ended in any way.
//!
//! # Races
//!
//! - **A write and a take-over.** The store compares the epoch of the write in the row that the take-over changes. So the
//!   new owner loads what was written before, and everything that is written after is rejected. The end of the lease does
//!   not matter for a write: it only permits the take-over. A process that was frozen continues if nobody has taken over.
//! - **A lost answer of a write.** The write is repeated with its id. If the write had taken effect, the store returns its
//!   first result, even to a former owner.
//! - **A lost answer of an acquisition**: see the keeper.

mod keeper;

use std::{sync::Arc, thread, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
pub(super) use keeper::LeaseKeeper;
use keeper::{AcquisitionInFlight, LeaseKeeperCommand};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::timeout,
};
use tracing::Instrument;

use crate::{
    store::{ConversationId, Epoch, Lease, Owner, Store, StoreError},
    subscription::EventId,
};

/// The time limit of the calls to the store that concern one conversation, such as its release. If the session that
/// requested a lease is gone, the store has the same time to grant the lease.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ownership of one conversation. The conversation is released shortly after this is dropped.
pub(crate) struct ConversationLease {
    held: Arc<LeaseShared>,
    /// Completes with the reason when the conversation is lost. The future is boxed once, so that a session without a
    /// lease needs no space for it.
    loss: BoxFuture<'static, StoreError>,
}

/// The state of a lease, shared by a session and the keeper.
pub(super) struct LeaseShared {
    id: ConversationId,
    /// The lease, or the reason why it is lost permanently.
    lease: watch::Sender<Result<Lease, StoreError>>,
    keeper: Arc<LeaseKeeper>,
    /// Counts the lease until it is released. See [`LeaseKeeper::all_released`].
    _counted: watch::Receiver<()>,
}

impl ConversationLease {
    /// Makes `owner` the owner of the conversation. The lease is renewed by `keeper`, or by a new keeper if `keeper` is
    /// `None`. Returns `None` if the store does not support owners and only checks versions.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::acquire`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the store may still grant the lease later. Then a session that shares `keeper` and has
    /// acquired the conversation meanwhile continues with this lease. Otherwise, the conversation is released.
    pub(super) async fn begin(
        store: &Arc<dyn Store>,
        keeper: Option<&Arc<LeaseKeeper>>,
        id: &ConversationId,
        owner: &Owner,
    ) -> Result<Option<Self>, StoreError> {
        let keeper = keeper.cloned().unwrap_or_else(|| Arc::new(LeaseKeeper::new(Arc::clone(store))));
        let in_flight = AcquisitionInFlight::new(&keeper, id);
        let acquiring = LeaseShared::acquire(Arc::clone(store), keeper, id.clone(), owner.clone());
        let mut begun = PendingAcquisition(Some((Box::pin(acquiring), in_flight)));
        let (acquiring, _) = begun.0.as_mut().expect("the acquisition was just set");
        let acquired = acquiring.await;
        // The acquisition is in flight until the keeper has the lease.
        let _in_flight = begun.0.take();
        Ok(acquired?.map(|held| {
            held.keeper.send(LeaseKeeperCommand::Keep(Arc::clone(&held)));
            let loss = Arc::clone(&held).loss().fuse().boxed();
            Self { held, loss }
        }))
    }

    /// Returns the lease.
    ///
    /// # Errors
    ///
    /// Returns the error that states why the conversation is lost.
    pub(crate) fn lease(&self) -> Result<Lease, StoreError> {
        self.held.lease()
    }

    pub(super) fn held(&self) -> Arc<LeaseShared> {
        Arc::clone(&self.held)
    }

    /// Returns the epoch with which the conversation is owned. After the conversation is lost, returns the default
    /// epoch.
    pub(super) fn epoch(&self) -> Epoch {
        self.held.lease().map(|lease| lease.epoch).unwrap_or_default()
    }

    /// Waits until the conversation is lost, for example to another owner, and returns the reason. After it has
    /// returned, it must not be called again.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing changes.
    pub(super) async fn lost(&mut self) -> StoreError {
        (&mut self.loss).await
    }

    /// Releases the conversation. `mark` is the last event of the session's feed, if readers may continue from it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release continues.
    pub(crate) async fn end(self, mark: Option<EventId>) {
        let (reply, answer) = oneshot::channel();
        self.held.keeper.send(LeaseKeeperCommand::Release(self.held(), mark, Some(reply)));
        // The keeper drops the sender after the release of the lease. The release in `drop` then has no effect.
        let _ = answer.await;
    }
}

type AcquireFuture = BoxFuture<'static, Result<Option<Arc<LeaseShared>>, StoreError>>;

/// An acquisition in flight. If it is dropped, the store may still grant the lease. A separate task therefore waits for
/// the lease, at most for [`PATIENCE`], and gives it to the keeper as a late lease.
struct PendingAcquisition(Option<(AcquireFuture, AcquisitionInFlight)>);

impl Drop for PendingAcquisition {
    fn drop(&mut self) {
        let Some((acquiring, in_flight)) = self.0.take() else {
            return;
        };
        // A future that has panicked must not be polled again. Without a runtime, the lease is not released and expires
        // later.
        if let (false, Ok(runtime)) = (thread::panicking(), Handle::try_current()) {
            let late = async move {
                if let Ok(Ok(Some(held))) = timeout(PATIENCE, acquiring).await {
                    in_flight.arrived_late(held);
                }
            };
            runtime.spawn(late.in_current_span());
        }
    }
}

impl Drop for ConversationLease {
    fn drop(&mut self) {
        self.held.keeper.send(LeaseKeeperCommand::Release(self.held(), None, None));
    }
}

impl LeaseShared {
    async fn acquire(
        store: Arc<dyn Store>,
        keeper: Arc<LeaseKeeper>,
        id: ConversationId,
        owner: Owner,
    ) -> Result<Option<Arc<Self>>, StoreError> {
        let counted = keeper.count();
        let lease = store.acquire(&id, &owner).await?;
        if lease.lasts.is_none() {
            return Ok(None);
        }
        keeper.start()?;
        Ok(Some(Arc::new(Self { id, lease: watch::Sender::new(Ok(lease)), keeper, _counted: counted })))
    }

    async fn loss(self: Arc<Self>) -> StoreError {
        let mut lease = self.lease.subscribe();
        loop {
            if let Err(error) = &*lease.borrow_and_update() {
                return error.clone();
            }
            // Waiting cannot fail, because `self` owns the sender.
            let _ = lease.changed().await;
        }
    }

    /// Returns the lease under which a write is made.
    ///
    /// # Errors
    ///
    /// Returns the error that states why the conversation is lost.
    pub(super) fn lease(&self) -> Result<Lease, StoreError> {
        self.lease.borrow().clone()
    }

    /// Waits for the lease with which a write can be repeated, after the store has rejected the epoch `refused` of the
    /// write. There is one if a late acquisition of this process has ended the lease.
    ///
    /// # Errors
    ///
    /// Returns the error that states why the conversation is lost.
    pub(super) async fn lease_after(self: &Arc<Self>, refused: Epoch) -> Result<Lease, StoreError> {
        self.keeper.send(LeaseKeeperCommand::Refused(Arc::clone(self), refused));
        let mut lease = self.lease.subscribe();
        let is_settled =
            |lease: &Result<Lease, StoreError>| lease.as_ref().map_or(true, |lease| lease.epoch != refused);
        let settled = lease.wait_for(is_settled).await;
        settled.map_or_else(|_| Err(StoreError::LeaseLost { id: self.id.clone() }), |lease| lease.clone())
    }
}

//! The ownership of a conversation: a lease from the store, which is renewed as long as the session is open.

mod keeper;

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
pub(super) use keeper::Keeper;
use keeper::Order;
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::timeout,
};

use crate::store::{ConversationId, Epoch, Lease, Owner, Store, StoreError};

/// The time that the store may take to release a conversation, or to grant a lease after its requester has gone.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ownership of one conversation. Dropping it releases the conversation soon after.
pub(super) struct Tenure {
    held: Arc<Held>,
    /// Ready with the reason when the conversation is lost. Boxed once, so that a session without a lease needs no room
    /// for the future.
    loss: BoxFuture<'static, StoreError>,
}

/// The state of a lease, shared by a session and the keeper.
pub(super) struct Held {
    id: ConversationId,
    /// The lease, or the reason of its permanent loss.
    lease: watch::Sender<Result<Lease, StoreError>>,
    /// Whether the session has released the lease.
    is_over: AtomicBool,
    keeper: Arc<Keeper>,
}

impl Tenure {
    /// Makes `owner` the owner of the conversation. The lease is renewed by `keeper`, or by a new keeper if that is
    /// `None`. Returns `None` if the store has no owners and relies on versions.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the conversation after the store has returned the lease.
    pub(super) async fn begin(
        store: &Arc<dyn Store>,
        keeper: Option<&Arc<Keeper>>,
        id: &ConversationId,
        owner: &Owner,
    ) -> Result<Option<Self>, StoreError> {
        let (store, keeper, id, owner) = (Arc::clone(store), keeper.cloned(), id.clone(), owner.clone());
        let mut begun = PendingAcquisition(Some(Box::pin(Self::acquire(store, keeper, id, owner))));
        let tenure = begun.0.as_mut().expect("the acquisition was just set").await;
        begun.0 = None;
        tenure
    }

    async fn acquire(
        store: Arc<dyn Store>,
        keeper: Option<Arc<Keeper>>,
        id: ConversationId,
        owner: Owner,
    ) -> Result<Option<Self>, StoreError> {
        let lease = store.acquire(&id, &owner).await?;
        if lease.lasts.is_none() {
            return Ok(None);
        }
        let keeper = keeper.unwrap_or_else(|| Arc::new(Keeper::new(store)));
        keeper.start()?;
        let held = Arc::new(Held {
            id,
            lease: watch::Sender::new(Ok(lease)),
            is_over: AtomicBool::new(false),
            keeper,
        });
        held.keeper.send(Order::Keep(Arc::clone(&held)));
        let loss = Arc::clone(&held).loss().fuse().boxed();
        Ok(Some(Self { held, loss }))
    }

    pub(super) fn held(&self) -> Arc<Held> {
        Arc::clone(&self.held)
    }

    /// Waits until the conversation is lost to another owner, and returns the reason. It must not be called again
    /// afterwards.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn lost(&mut self) -> StoreError {
        (&mut self.loss).await
    }

    /// Releases the conversation.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop the release.
    pub(super) async fn end(self) {
        let (reply, answer) = oneshot::channel();
        self.held.keeper.send(Order::Release(self.held(), Some(reply)));
        // After that, the release in `drop` has nothing left to do.
        let _ = answer.await;
    }
}

/// An acquisition in flight. If it is dropped, the store may still grant the lease. A task then waits a little longer
/// for the lease and releases it.
struct PendingAcquisition(Option<BoxFuture<'static, Result<Option<Tenure>, StoreError>>>);

impl Drop for PendingAcquisition {
    fn drop(&mut self) {
        let Some(acquiring) = self.0.take() else {
            return;
        };
        // A future that panicked must not be polled again. Without a runtime, the lease expires.
        if let (false, Ok(runtime)) = (thread::panicking(), Handle::try_current()) {
            runtime.spawn(timeout(PATIENCE, acquiring));
        }
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        self.held.keeper.send(Order::Release(self.held(), None));
    }
}

impl Held {
    async fn loss(self: Arc<Self>) -> StoreError {
        let mut lease = self.lease.subscribe();
        loop {
            if let Err(error) = &*lease.borrow_and_update() {
                return error.clone();
            }
            // `self` has the sender, so it is not closed.
            let _ = lease.changed().await;
        }
    }

    /// Returns the lease for a write.
    ///
    /// # Errors
    ///
    /// The reason why the conversation is lost.
    pub(super) fn lease(&self) -> Result<Lease, StoreError> {
        self.lease.borrow().clone()
    }

    /// Returns the lease for a write after the store has rejected the lease with the epoch `refused`. The rejected
    /// lease has expired. It is renewed if nobody else has acquired the conversation in the meantime.
    ///
    /// # Errors
    ///
    /// The reason why the conversation is lost, or an error if the store can't be reached.
    pub(super) async fn lease_after(self: &Arc<Self>, refused: Epoch) -> Result<Lease, StoreError> {
        let lease = self.lease()?;
        if lease.epoch != refused {
            return Ok(lease);
        }
        let (reply, answer) = oneshot::channel();
        self.keeper.send(Order::Check(Arc::clone(self), refused, reply));
        answer.await.unwrap_or_else(|_| Err(StoreError::LeaseLost { id: self.id.clone() }))
    }
}

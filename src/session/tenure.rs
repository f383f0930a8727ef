//! That a conversation is this session's: a lease from the store, kept up beside the session for as long as it lives.

mod keeper;

use std::{
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use keeper::{Keeper, Order};
use tokio::{
    runtime::Handle,
    sync::{oneshot, watch},
    time::timeout,
};

use crate::store::{ConversationId, Epoch, Lease, Owner, Store, StoreError};

/// How long the store may take to give a conversation that nobody waits for any more, or to take one back.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ownership of one conversation. Dropped, it is given back, a moment later.
pub(super) struct Tenure {
    held: Arc<Held>,
    /// Done when the conversation is lost, with the reason. Made once, and apart: a session without a tenure has no room
    /// for it.
    loss: BoxFuture<'static, StoreError>,
}

/// What a session and its keeper know of a lease.
pub(super) struct Held {
    id: ConversationId,
    /// The lease; or why it is lost, for good.
    lease: watch::Sender<Result<Lease, StoreError>>,
    /// Whether the session has given it back.
    is_over: AtomicBool,
    keeper: Arc<Keeper>,
}

impl Tenure {
    /// Makes `owner` the owner of the conversation; `None` from a store that leaves ownership to versions.
    ///
    /// # Errors
    ///
    /// As [`Store::acquire`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the conversation back, once the store has given it.
    pub(super) async fn begin(
        store: &Arc<dyn Store>,
        id: &ConversationId,
        owner: &Owner,
    ) -> Result<Option<Self>, StoreError> {
        let (store, id, owner) = (Arc::clone(store), id.clone(), owner.clone());
        let mut begun = PendingAcquisition(Some(Box::pin(Self::acquire(store, id, owner))));
        let tenure = begun.0.as_mut().expect("it is begun").await;
        begun.0 = None;
        tenure
    }

    async fn acquire(
        store: Arc<dyn Store>,
        id: ConversationId,
        owner: Owner,
    ) -> Result<Option<Self>, StoreError> {
        let lease = store.acquire(&id, &owner).await?;
        if lease.lasts.is_none() {
            return Ok(None);
        }
        let keeper = Keeper::of(&store)?;
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

    /// Waits until the conversation is lost to another, and tells why, once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub(super) async fn lost(&mut self) -> StoreError {
        (&mut self.loss).await
    }

    /// Gives the conversation back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not stop it.
    pub(super) async fn end(self) {
        let (reply, answer) = oneshot::channel();
        self.held.keeper.send(Order::Release(self.held(), Some(reply)));
        // Told or not, the second word that `drop` says finds nothing to do.
        let _ = answer.await;
    }
}

/// A tenure that is being acquired. When nobody waits for it any more, the store may give it all the same: it is waited
/// for a little longer, to be given back.
struct PendingAcquisition(Option<BoxFuture<'static, Result<Option<Tenure>, StoreError>>>);

impl Drop for PendingAcquisition {
    fn drop(&mut self) {
        let Some(acquiring) = self.0.take() else {
            return;
        };
        // One that panicked can't be asked again; without a runtime, the lease runs out.
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
            // The sender is in `self`.
            let _ = lease.changed().await;
        }
    }

    /// The lease to write under.
    ///
    /// # Errors
    ///
    /// Why the conversation is lost.
    pub(super) fn lease(&self) -> Result<Lease, StoreError> {
        self.lease.borrow().clone()
    }

    /// The lease to write under after the store has refused the one of `refused`: it ran out, which is set right if
    /// nobody had the conversation meanwhile.
    ///
    /// # Errors
    ///
    /// Why the conversation is lost; or that the store can't be reached.
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

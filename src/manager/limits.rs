//! Limits on concurrent requests.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{Inner, registry::Key};
use crate::{
    agent::{Admission, Permit},
    store::ConversationId,
    sync::lock,
};

/// The configured limits, as semaphores. Each semaphore serves waiting sessions in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Limits {
    turns: Option<Arc<Semaphore>>,
    per_tenant: Option<usize>,
    tenants: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

impl Limits {
    pub(super) fn new(turns: Option<usize>, per_tenant: Option<usize>) -> Self {
        let semaphore = |limit: usize| Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            turns: turns.map(semaphore),
            per_tenant: per_tenant.map(|limit| limit.clamp(1, Semaphore::MAX_PERMITS)),
            tenants: Mutex::default(),
        }
    }

    /// Returns the [`Admission`] that limits a session's requests, if a limit applies to them.
    pub(super) fn admission(
        &self,
        tenant: Option<Arc<str>>,
        inner: &Arc<Inner>,
        id: &ConversationId,
        key: Key,
    ) -> Option<Arc<dyn Admission>> {
        let tenant = tenant.zip(self.per_tenant).map(|(tenant, limit)| self.tenant(tenant, limit));
        if tenant.is_none() && self.turns.is_none() {
            return None;
        }
        let turns = self.turns.clone();
        Some(Arc::new(Gate { tenant, turns, inner: Arc::downgrade(inner), id: id.clone(), key }))
    }

    /// Returns the number of requests that could start at once.
    pub(super) fn room(&self) -> usize {
        self.turns.as_ref().map_or(usize::MAX, |turns| turns.available_permits())
    }

    fn tenant(&self, tenant: Arc<str>, limit: usize) -> Arc<Semaphore> {
        let mut tenants = lock(&self.tenants);
        if let Some(known) = tenants.get(&tenant).and_then(Weak::upgrade) {
            return known;
        }
        // Keeps the map small: before a tenant is added, tenants without sessions are removed.
        tenants.retain(|_, known| known.strong_count() > 0);
        let fresh = Arc::new(Semaphore::new(limit));
        tenants.insert(tenant, Arc::downgrade(&fresh));
        fresh
    }
}

/// The admission for the requests of one session.
struct Gate {
    tenant: Option<Arc<Semaphore>>,
    turns: Option<Arc<Semaphore>>,
    inner: Weak<Inner>,
    id: ConversationId,
    key: Key,
}

impl Admission for Gate {
    fn admit(&self) -> Pin<Box<dyn Future<Output = Permit> + Send>> {
        // The tenant's semaphore is acquired first, so that a session that waits for its own tenant's limit takes no
        // place from other tenants.
        let semaphores = [self.tenant.clone(), self.turns.clone()];
        let mut queue =
            Queue { inner: Weak::clone(&self.inner), id: self.id.clone(), key: self.key, is_in: false };
        Box::pin(async move {
            let mut permits: [Option<OwnedSemaphorePermit>; 2] = [None, None];
            for (permit, semaphore) in permits.iter_mut().zip(semaphores) {
                let Some(semaphore) = semaphore else { continue };
                *permit = Arc::clone(&semaphore).try_acquire_owned().ok();
                if permit.is_none() {
                    queue.enter();
                    // This never fails, because the semaphores are never closed.
                    *permit = semaphore.acquire_owned().await.ok();
                }
            }
            drop(queue);
            Box::new(permits) as Permit
        })
    }
}

/// A guard that reports a run as waiting, from `enter` until the guard is dropped.
struct Queue {
    inner: Weak<Inner>,
    id: ConversationId,
    key: Key,
    is_in: bool,
}

impl Queue {
    fn enter(&mut self) {
        if !std::mem::replace(&mut self.is_in, true) {
            self.report_queued(true);
        }
    }

    fn report_queued(&self, is_queued: bool) {
        if let Some(inner) = self.inner.upgrade() {
            inner.registry().act(&self.id, self.key, None, Some(is_queued));
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.is_in {
            self.report_queued(false);
        }
    }
}

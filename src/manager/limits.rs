//! Limits on concurrent requests.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use futures_util::future::BoxFuture;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep},
};

use super::{
    ManagerShared,
    opening::{SessionOpeningGuard, shut_down},
    registry::{OpeningQueueTicket, QueuedOpeningCommand, SessionLifeKey},
};
use crate::{
    actor::passed,
    agent::{RequestConcurrencyLimiter, RequestPermit},
    run::{Error, ErrorKind},
    store::ConversationId,
    sync::lock,
};

/// The configured limits, as semaphores. Each semaphore serves waiting sessions in order of arrival.
#[derive(Debug, Default)]
pub(super) struct TurnLimits {
    turns: Option<Arc<Semaphore>>,
    per_tenant: Option<usize>,
    tenants: Mutex<HashMap<Arc<str>, Weak<Semaphore>>>,
}

impl TurnLimits {
    pub(super) fn new(turns: Option<usize>, per_tenant: Option<usize>) -> Self {
        let semaphore = |limit: usize| Arc::new(Semaphore::new(limit.clamp(1, Semaphore::MAX_PERMITS)));
        Self {
            turns: turns.map(semaphore),
            per_tenant: per_tenant.map(|limit| limit.clamp(1, Semaphore::MAX_PERMITS)),
            tenants: Mutex::default(),
        }
    }

    /// Returns the [`RequestConcurrencyLimiter`] that limits a session's requests, if a limit applies to them.
    pub(super) fn admission(
        &self,
        tenant: Option<Arc<str>>,
        inner: &Arc<ManagerShared>,
        id: &ConversationId,
        key: SessionLifeKey,
    ) -> Option<Arc<dyn RequestConcurrencyLimiter>> {
        let tenant = tenant.zip(self.per_tenant).map(|(tenant, limit)| self.tenant(tenant, limit));
        if tenant.is_none() && self.turns.is_none() {
            return None;
        }
        let turns = self.turns.clone();
        Some(Arc::new(SessionRequestLimiter {
            tenant,
            turns,
            inner: Arc::downgrade(inner),
            id: id.clone(),
            key,
        }))
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
struct SessionRequestLimiter {
    tenant: Option<Arc<Semaphore>>,
    turns: Option<Arc<Semaphore>>,
    inner: Weak<ManagerShared>,
    id: ConversationId,
    key: SessionLifeKey,
}

impl RequestConcurrencyLimiter for SessionRequestLimiter {
    fn admit(&self) -> Pin<Box<dyn Future<Output = RequestPermit> + Send>> {
        // The tenant's semaphore is acquired first, so that a session that waits for its own tenant's limit takes no
        // place from other tenants.
        let semaphores = [self.tenant.clone(), self.turns.clone()];
        let mut queue = RunQueuedStatusGuard {
            inner: Weak::clone(&self.inner),
            id: self.id.clone(),
            key: self.key,
            is_in: false,
        };
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
            Box::new(permits) as RequestPermit
        })
    }
}

/// A guard that reports a run as waiting, from `enter` until the guard is dropped.
struct RunQueuedStatusGuard {
    inner: Weak<ManagerShared>,
    id: ConversationId,
    key: SessionLifeKey,
    is_in: bool,
}

impl RunQueuedStatusGuard {
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

impl Drop for RunQueuedStatusGuard {
    fn drop(&mut self) {
        if self.is_in {
            self.report_queued(false);
        }
    }
}

// Waits until there is room for one more open session.
//
// An opening that waits for sessions with running tools fails after a time limit, because such a tool may wait for
// this very opening.

impl ManagerShared {
    /// Waits until there is room for one more session, if the number of open sessions is limited.
    pub(super) async fn room(self: &Arc<Self>, opening: &SessionOpeningGuard) -> Result<(), Error> {
        let Some(line) = self.registry().take_place(&opening.id, opening.number) else {
            return Ok(());
        };
        tokio::select! {
            biased;
            // The shutdown is checked first, because the shutdown itself may free the place.
            () = self.shutting.cancelled() => Err(shut_down()),
            () = self.wait_in_line(line) => Ok(()),
            error = self.stuck(&opening.id) => Err(error),
        }
    }

    /// Waits for a place. Meanwhile, asks sessions to sleep when it receives such errands.
    async fn wait_in_line(&self, line: OpeningQueueTicket) {
        let OpeningQueueTicket { number, mut errands } = line;
        let mut asking: Option<BoxFuture<'_, ()>> = None;
        loop {
            tokio::select! {
                biased;
                errand = errands.recv() => match errand {
                    Some(QueuedOpeningCommand::PutToSleep { key, session }) => {
                        asking = Some(Box::pin(async move {
                            // If `sleep` fails, the session has ended, which makes room too.
                            let ends = session.sleep().await.unwrap_or(true);
                            self.registry().answered(session.id(), key, number, ends);
                        }));
                    }
                    Some(QueuedOpeningCommand::Enter) | None => return,
                },
                () = passed(&mut asking) => asking = None,
            }
        }
    }

    /// Returns an error when an opening has waited too long and some places are held by sessions whose tools are
    /// running. These tools may be waiting for the opening.
    async fn stuck(&self, id: &ConversationId) -> Error {
        let Some(limit) = self.room_timeout else {
            return std::future::pending().await;
        };
        let begun = Instant::now();
        loop {
            sleep(limit.max(SHORTEST_ROOM_TIMEOUT)).await;
            let parents = self.registry().parents();
            if !parents.is_empty() {
                let waited = begun.elapsed();
                let list = parents.iter().take(SHOWN).map(ToString::to_string).collect::<Vec<_>>().join(", ");
                let more = parents.len().saturating_sub(SHOWN);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let text = format!(
                    "there is no room to open conversation {id}: after {waited:?}, places are still held by sessions \
                     whose tools run: {list}{more}; raise `max_open`, or set a time limit for tools"
                );
                let error = Error::new(ErrorKind::NoRoom, text).with_member("conversation", id);
                return error.with_member("waited", waited).with_member("running", parents);
            }
        }
    }
}

/// The number of sessions that an error names.
const SHOWN: usize = 5;

/// The minimum interval between two checks for tools that hold places.
const SHORTEST_ROOM_TIMEOUT: Duration = Duration::from_millis(1);

//! Opening: one at a time for each id, whoever asks how often.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

use super::{
    Inner, ManagerError, OpenOptions, OpenedSession,
    registry::{Claimed, Key, Lent},
    watching::Watch,
};
use crate::{
    session::{Guard, Mode, Session, SessionError},
    store::ConversationId,
};

/// An id that nobody else works on. Let go of when it is dropped, whatever happens.
pub(super) struct Claim {
    inner: Arc<Inner>,
    pub(super) id: ConversationId,
    pub(super) key: Key,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.inner.registry().release(&self.id, self.key);
    }
}

/// An id that was borrowed from somebody who waits for room to open it. Given back when it is dropped.
pub(super) struct Loan {
    inner: Arc<Inner>,
    id: ConversationId,
    key: Key,
}

impl Drop for Loan {
    fn drop(&mut self) {
        self.inner.registry().give_back(&self.id, self.key);
    }
}

/// What keeps an id for whoever closes, renames or deletes it.
pub(super) enum Hold {
    Claim(Claim, Option<Session>),
    Loan(Loan),
}

impl Hold {
    /// The session, if one is open, and what to hold on to.
    pub(super) fn split(self) -> (Self, Option<Session>) {
        match self {
            Self::Claim(claim, session) => (Self::Claim(claim, None), session),
            Self::Loan(loan) => (Self::Loan(loan), None),
        }
    }
}

/// What a session begins from.
#[derive(Clone, Copy)]
pub(super) enum Beginning {
    /// The store.
    Stored,
    /// Nothing, under an id that may be taken.
    Named,
    /// Nothing, under an id that is not.
    Generated,
    /// The store if it is there, else nothing.
    Either,
}

impl Beginning {
    /// Whether a session that runs already will do.
    fn takes_running(self) -> bool {
        matches!(self, Self::Stored | Self::Either)
    }
}

impl Inner {
    /// The session with this id: the one that runs, or a new one.
    pub(super) async fn open(
        self: &Arc<Self>,
        id: ConversationId,
        start: OpenOptions,
        from: Beginning,
    ) -> Result<OpenedSession, ManagerError> {
        let mode = start.mode;
        loop {
            let running = {
                let registry = self.registry();
                if registry.is_shut {
                    return Err(ManagerError::ShutDown);
                }
                registry.look(&id)
            };
            if from.takes_running() {
                self.registry().touch(&id);
            }
            match running {
                Some(Ok(_)) if !from.takes_running() => return Err(ManagerError::AlreadyExists { id }),
                Some(Ok(session)) => match subscribe(session, mode, false).await {
                    // It ended this moment: another one takes its place.
                    Err(SessionError::Ended(_)) => self.settled(&id).await,
                    opened => return Ok(opened?),
                },
                Some(Err(claim)) => claim.cancelled().await,
                None => match self.claim(&id) {
                    Err(claim) => claim.cancelled().await,
                    Ok((claim, Some(_))) => drop(claim),
                    // Looked at once more: a shutdown that began before the claim does not wait for it.
                    Ok((_, None)) if self.registry().is_shut => return Err(ManagerError::ShutDown),
                    Ok((claim, None)) => return self.start(claim, start, from).await,
                },
            }
        }
    }

    /// Claims an id, and gives the session that is open there; or who is to be waited for.
    fn claim(
        self: &Arc<Self>,
        id: &ConversationId,
    ) -> Result<(Claim, Option<Session>), tokio_util::sync::CancellationToken> {
        match self.registry().claim(id) {
            Claimed::Mine { key, session } => {
                Ok((Claim { inner: Arc::clone(self), id: id.clone(), key }, session))
            }
            Claimed::Wait(claim) => Err(claim),
        }
    }

    /// Claims an id as soon as nobody else works on it, or borrows it from somebody who waits for room to open it.
    pub(super) async fn hold(self: &Arc<Self>, id: &ConversationId) -> Hold {
        let joined = Arc::clone(&self.registry().joined);
        loop {
            let mut joined = pin!(joined.notified());
            joined.as_mut().enable();
            let claim = match self.claim(id) {
                Ok((claim, session)) => return Hold::Claim(claim, session),
                Err(claim) => claim,
            };
            let lent = self.registry().borrow(id);
            match lent {
                Lent::Mine(key) => return Hold::Loan(Loan { inner: Arc::clone(self), id: id.clone(), key }),
                Lent::Wait(loan) => loan.cancelled().await,
                Lent::No => tokio::select! {
                    () = claim.cancelled() => {}
                    () = joined => {}
                },
            }
        }
    }

    /// Waits until a session that has ended is known to have.
    async fn settled(self: &Arc<Self>, id: &ConversationId) {
        let session = self.registry().look(id).and_then(Result::ok);
        if let Some(session) = session {
            session.ended().await;
            // It is told of a moment later.
            tokio::task::yield_now().await;
        }
    }

    /// Starts a session in a task of its own, which a caller that goes away does not take with it.
    async fn start(
        self: &Arc<Self>,
        claim: Claim,
        start: OpenOptions,
        from: Beginning,
    ) -> Result<OpenedSession, ManagerError> {
        let id = claim.id.clone();
        let (reply, mut answer) = oneshot::channel();
        let inner = Arc::clone(self);
        let task = tokio::spawn(async move {
            let mode = start.mode;
            let mut reply = reply;
            let room = tokio::select! {
                biased;
                room = inner.room(&claim) => room,
                // Whoever wanted it is gone, and it has not begun.
                () = reply.closed() => return,
            };
            let launched = Box::pin(async {
                room?;
                let (session, guard) = inner.launch(&claim, start, from).await?;
                // Subscribed here: if the caller is gone, its controller leaves at once, and the session is looked after.
                let opened = subscribe(session, mode, true).await?;
                // The session's time without controllers begins after its caller has subscribed.
                drop(guard);
                Ok(opened)
            });
            let opened = tokio::select! {
                biased;
                opened = launched => opened,
                // A store or an `init` that hangs is not to keep the id from others for ever.
                () = abandoned(&mut reply, inner.patience()) => return,
            };
            drop(claim);
            let _ = reply.send(opened);
        });
        if let Ok(opened) = (&mut answer).await {
            return opened;
        }
        Err(ManagerError::CutOff { id, reason: cut_off(task).await })
    }

    /// How long what nobody waits for any more may take. Closing a session is part of it, at most.
    pub(super) fn patience(&self) -> Duration {
        self.close_timeout.saturating_mul(2)
    }

    async fn launch(
        self: &Arc<Self>,
        claim: &Claim,
        start: OpenOptions,
        from: Beginning,
    ) -> Result<(Session, Option<Guard>), ManagerError> {
        let (id, key) = (&claim.id, claim.key);
        let mut start = start;
        start.agent = Box::new(start.agent.registry(self.registry_of_models.clone()));
        if let Some(admission) = self.limits.admission(start.tenant.clone(), self, id, key) {
            start.agent = Box::new(start.agent.admission(admission));
        }
        let watch = Watch::new(Arc::downgrade(self), id.clone(), key);
        let (send_guard, mut guard) = oneshot::channel();
        let builder = Session::builder(Arc::clone(&self.store))
            .watcher(Arc::new(watch))
            .owner(self.owner.clone())
            .end_timeout(self.close_timeout)
            .hold(send_guard);
        let builder = start.set_up(builder, self.idle_shutdown);
        // Boxed one by one: what opens a session leaves a hole of its own size behind it.
        let starting: BoxFuture<'_, Result<Session, SessionError>> = match from {
            Beginning::Stored => Box::pin(builder.open(id.clone())),
            Beginning::Generated => Box::pin(builder.create_with(id.clone())),
            Beginning::Named => Box::pin(builder.create_with_id(id.clone())),
            Beginning::Either => Box::pin(builder.open_or_create(id.clone())),
        };
        // A store that takes its time, or an `init`, does not hold a shutdown up.
        let session = tokio::select! {
            biased;
            session = starting => session?,
            () = self.shutting.cancelled() => return Err(ManagerError::ShutDown),
        };
        let title = session.title().await.unwrap_or_default();
        let is_shut = {
            let mut registry = self.registry();
            registry.opened(key, session.clone(), title);
            registry.is_shut
        };
        if is_shut {
            // It came too late for the shutdown to see it as open; it waits for the claim, and then does.
            session.drain();
        }
        Ok((session, guard.try_recv().ok()))
    }
}

/// Does something to its end, whether or not the caller waits for it; but if it hangs and nobody waits, it is given up.
pub(super) async fn in_a_task<T: Send + 'static>(
    limit: Duration,
    work: impl Future<Output = Result<T, ManagerError>> + Send + 'static,
) -> Result<Result<T, ManagerError>, String> {
    let (mut reply, answer) = oneshot::channel();
    let task = tokio::spawn(async move {
        tokio::select! {
            biased;
            done = work => drop(reply.send(done)),
            () = abandoned(&mut reply, limit) => {}
        }
    });
    match answer.await {
        Ok(done) => Ok(done),
        Err(_) => Err(cut_off(task).await),
    }
}

/// Why a task did not come to its end.
async fn cut_off(task: JoinHandle<()>) -> String {
    task.await.err().map_or_else(|| "no caller waited any more".to_owned(), |error| error.to_string())
}

/// Waits until nobody waits for the answer, and so long on top.
async fn abandoned<T>(reply: &mut oneshot::Sender<T>, limit: Duration) {
    reply.closed().await;
    sleep(limit).await;
}

/// A session, with the caller's subscription.
async fn subscribe(
    session: Session,
    mode: Option<Mode>,
    started: bool,
) -> Result<OpenedSession, SessionError> {
    let subscription = if let Some(mode) = mode {
        Some(session.subscribe(mode).await?)
    } else {
        // One that is about to end answers nothing any more.
        session.title().await?;
        None
    };
    Ok(OpenedSession { session, subscription, started })
}

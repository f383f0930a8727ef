//! Opens sessions. Only one opening of an id happens at a time, however many callers ask for it. An opening first waits for
//! a place and then claims the id, so it delays no close, delete or rename while it waits, and a close that finds the id
//! claimed waits for the opening and ends its session.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};
use tracing::Instrument;

use super::{
    ManagerShared,
    event::ManagerSessionWatcher,
    registry::{SessionLifeKey, SessionOpeningNumber},
    sub_agent::InheritedTenant,
};
use crate::{
    agent::{AgentBuilder, Durable, RECORD_DELAY, Recover},
    run::{Error, ErrorKind},
    session::{Guard, Mode, Session, SessionBuilder, SessionSubscription},
    setters::setters,
    store::{ConversationId, Labels},
};

/// The exclusive right to work on an id. The right is released when this is dropped, even after a panic.
pub(super) struct ConversationLock {
    inner: Arc<ManagerShared>,
    pub(super) id: ConversationId,
    pub(super) key: SessionLifeKey,
}

impl Drop for ConversationLock {
    fn drop(&mut self) {
        self.inner.registry().release(&self.id, self.key);
    }
}

/// The exclusive right to open an id. While it is held, the opening waits for a place, or has one. If this is dropped
/// before the session is open, the place becomes free.
pub(super) struct SessionOpeningGuard {
    inner: Arc<ManagerShared>,
    pub(super) id: ConversationId,
    pub(super) number: SessionOpeningNumber,
}

impl Drop for SessionOpeningGuard {
    fn drop(&mut self) {
        self.inner.registry().leave_line(&self.id, self.number);
    }
}

/// The caller that opens a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenedBy {
    /// A user of the manager. The session takes a place.
    User,
    /// The call of a sub-agent. The session takes no place, because its parent waits for it.
    Call,
}

/// The source of the conversation of a session that is started.
#[derive(Clone, Copy)]
pub(super) enum NewOrStoredConversation {
    /// The store.
    Stored,
    /// A new conversation under an id that may already be taken.
    Named,
    /// A new conversation under an id that is certainly not taken.
    Generated,
    /// The stored conversation, if the store has it. Otherwise a new conversation.
    Either,
}

impl NewOrStoredConversation {
    /// Returns whether a session that is already open may be returned instead of a new one.
    fn takes_running(self) -> bool {
        matches!(self, Self::Stored | Self::Either)
    }
}

impl ManagerShared {
    /// Returns the session with this id. If it is not open, a new session is started.
    pub(super) async fn open(
        self: &Arc<Self>,
        id: ConversationId,
        start: OpenOptions,
        from: NewOrStoredConversation,
        by: OpenedBy,
    ) -> Result<OpenedSession, Error> {
        let mode = start.mode;
        self.begin_sweeping();
        // An opening that is refused must not take a place first.
        if by == OpenedBy::User && id.is_of_sub_agent() && self.registry().get(&id).is_none() {
            self.check_uncalled(&id).await?;
        }
        loop {
            // One lock for all steps, so that the session of another opening can't come in between.
            let begun = {
                let mut registry = self.registry();
                if registry.is_shut {
                    return Err(shut_down());
                }
                if from.takes_running() {
                    registry.touch(&id);
                }
                registry.look(&id).map_or_else(|| Ok(registry.begin_opening(&id)), Err)
            };
            match begun {
                Ok(number) => {
                    let opening = SessionOpeningGuard { inner: Arc::clone(self), id, number };
                    return self.start(opening, start, from, by).await;
                }
                Err(Ok(_)) if !from.takes_running() => {
                    let text = format!("conversation {id} already exists; open it, or choose another id");
                    return Err(Error::new(ErrorKind::AlreadyExists, text).with_member("conversation", id));
                }
                Err(Ok(session)) => match subscribe(session, mode, false).await {
                    // The session has just ended. After the registry has recorded this, the loop starts a new session.
                    Err(error) if error.kind() == ErrorKind::Ended => self.settled(&id).await,
                    opened => return opened,
                },
                Err(Err(busy)) => busy.cancelled().await,
            }
        }
    }

    /// Waits until nobody else works on an id, claims it and returns its open session.
    pub(super) async fn claim(self: &Arc<Self>, id: &ConversationId) -> (ConversationLock, Option<Session>) {
        loop {
            let claimed = self.registry().claim(id);
            match claimed {
                Ok((key, session)) => {
                    return (ConversationLock { inner: Arc::clone(self), id: id.clone(), key }, session);
                }
                Err(claim) => claim.cancelled().await,
            }
        }
    }

    /// Waits until the registry has recorded that a session has ended.
    pub(super) async fn settled(self: &Arc<Self>, id: &ConversationId) {
        let session = self.registry().look(id).and_then(Result::ok);
        if let Some(session) = session {
            session.ended().await;
            // Let other tasks run, because the session notifies the registry shortly after it has ended.
            tokio::task::yield_now().await;
        }
    }

    /// Starts a session in a separate task, so that the start continues if the caller is dropped after there is room. The
    /// opening first waits for a place and then claims the id, so it does not delay a close, a delete or a rename while it
    /// waits.
    async fn start(
        self: &Arc<Self>,
        opening: SessionOpeningGuard,
        start: OpenOptions,
        from: NewOrStoredConversation,
        by: OpenedBy,
    ) -> Result<OpenedSession, Error> {
        let id = opening.id.clone();
        let (reply, mut answer) = oneshot::channel();
        let inner = Arc::clone(self);
        let starting = async move {
            let mode = start.mode;
            let mut reply = reply;
            let room = async {
                if by == OpenedBy::User {
                    inner.room(&opening).await?;
                }
                let (claim, session) = inner.claim(&opening.id).await;
                debug_assert!(session.is_none(), "only this opening opens the id");
                // Check again whether the manager is shut down, because a shutdown that started before this claim does
                // not wait for the claim.
                if inner.registry().is_shut {
                    return Err(shut_down());
                }
                if by == OpenedBy::User && claim.id.is_of_sub_agent() {
                    tokio::select! {
                        biased;
                        checked = inner.check_opening(&claim.id) => checked?,
                        () = inner.shutting.cancelled() => return Err(shut_down()),
                    }
                }
                Ok(claim)
            };
            let claim = tokio::select! {
                biased;
                claim = room => claim,
                // The caller has stopped waiting before the session had room to open, so no session is started.
                () = reply.closed() => return,
            };
            let claim = match claim {
                Ok(claim) => claim,
                Err(error) => {
                    drop(opening);
                    let _ = reply.send(Err(error));
                    return;
                }
            };
            let launched = Box::pin(async {
                let (session, guard) = inner.launch(&claim, start, from).await?;
                // This task subscribes for the caller. If the caller has stopped waiting, the subscription is dropped
                // at once, and the idle time begins.
                let opened = subscribe(session, mode, true).await?;
                // The idle time of the session begins only now, because the guard is held until the caller is
                // subscribed.
                drop(guard);
                Ok(opened)
            });
            let opened = tokio::select! {
                biased;
                opened = launched => opened,
                // A store or an `init` that hangs must not block the id forever once the caller has stopped waiting.
                () = abandoned(&mut reply, inner.patience()) => return,
            };
            drop((claim, opening));
            let _ = reply.send(opened);
        };
        let task = tokio::spawn(starting.in_current_span());
        if let Ok(opened) = (&mut answer).await {
            return opened;
        }
        Err(aborted(&id, &cut_off(task).await))
    }

    /// Returns how long an operation may continue after its caller has stopped waiting. This is longer than closing a
    /// session may take.
    pub(super) fn patience(&self) -> Duration {
        self.close_timeout.saturating_mul(2)
    }

    async fn launch(
        self: &Arc<Self>,
        claim: &ConversationLock,
        start: OpenOptions,
        from: NewOrStoredConversation,
    ) -> Result<(Session, Option<Guard>), Error> {
        let (id, key) = (&claim.id, claim.key);
        let mut start = start;
        start.agent = Box::new(start.agent.registry(self.registry_of_models.clone()));
        if let Some(tenant) = &start.tenant {
            start.agent = Box::new(start.agent.extension(InheritedTenant(Arc::clone(tenant))));
        }
        if let Some(admission) = self.limits.admission(start.tenant.clone(), self, id, key) {
            start.agent = Box::new(start.agent.admission(admission));
        }
        let watch = ManagerSessionWatcher::new(Arc::downgrade(self), id.clone(), key);
        let (send_guard, mut guard) = oneshot::channel();
        let builder = Session::builder(Arc::clone(&self.store))
            .shared(Arc::clone(&self.setup))
            .watcher(Arc::new(watch))
            .hold(send_guard);
        let builder = start.set_up(builder);
        // Each future is boxed separately, because the futures that open a session are large. Without the boxes, they
        // would all take up space in this future.
        let starting: BoxFuture<'_, Result<Session, Error>> = match from {
            NewOrStoredConversation::Stored => Box::pin(builder.open(id.clone())),
            NewOrStoredConversation::Generated => Box::pin(builder.create_with(id.clone())),
            NewOrStoredConversation::Named => Box::pin(builder.create_with_id(id.clone())),
            NewOrStoredConversation::Either => Box::pin(builder.open_or_create(id.clone())),
        };
        // A slow store or a slow `init` must not delay a shutdown.
        let session = tokio::select! {
            biased;
            session = starting => session?,
            () = self.shutting.cancelled() => return Err(shut_down()),
        };
        let title = session.title().await.unwrap_or_default();
        let labels = session.labels().await.unwrap_or_default();
        let is_shut = {
            let mut registry = self.registry();
            registry.opened(key, session.clone(), title, labels);
            registry.is_shut
        };
        if is_shut {
            // The session opened too late for the shutdown to see it, so let it refuse prompts. The shutdown waits for
            // the claim and then finds the session.
            session.drain();
        }
        Ok((session, guard.try_recv().ok()))
    }
}

/// Runs `work` in a task, which completes it whether or not the caller keeps waiting. If the work hangs after the
/// caller has stopped waiting, the work is given up.
pub(super) async fn in_a_task<T: Send + 'static>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<Result<T, Error>, String> {
    let (mut reply, answer) = oneshot::channel();
    let working = async move {
        tokio::select! {
            biased;
            done = work => drop(reply.send(done)),
            () = abandoned(&mut reply, limit) => {}
        }
    };
    let task = tokio::spawn(working.in_current_span());
    match answer.await {
        Ok(done) => Ok(done),
        Err(_) => Err(cut_off(task).await),
    }
}

pub(super) fn shut_down() -> Error {
    Error::new(ErrorKind::ShutDown, "the manager is shut down and opens nothing; build another manager")
}

/// Returns the error for an operation that was given up.
pub(super) fn aborted(id: &ConversationId, reason: &str) -> Error {
    let text = format!("the operation on conversation {id} was aborted: {reason}; try again");
    Error::new(ErrorKind::Internal, text).with_member("conversation", id)
}

/// Returns why a task did not complete.
async fn cut_off(task: JoinHandle<()>) -> String {
    task.await.err().map_or_else(|| "no caller waited any more".to_owned(), |error| error.to_string())
}

/// Waits until the caller no longer waits for the reply, and then for the additional time `limit`.
async fn abandoned<T>(reply: &mut oneshot::Sender<T>, limit: Duration) {
    reply.closed().await;
    sleep(limit).await;
}

/// Subscribes for the caller, and returns the session with the subscription. Without a mode, only checks that the
/// session still replies.
async fn subscribe(session: Session, mode: Option<Mode>, started: bool) -> Result<OpenedSession, Error> {
    let subscription = if let Some(mode) = mode {
        Some(session.subscribe(mode).await?)
    } else {
        // A session that is about to end no longer replies, so this returns an error.
        session.title().await?;
        None
    };
    Ok(OpenedSession { session, subscription, started })
}

// ---- start ----

/// The agent and the settings with which a session is opened.
///
/// If the session is already open, only the mode of the caller's subscription is used. The manager supplies the store
/// and the registry of models. [`SessionBuilder::agent`] describes how saved settings and the agent's settings are
/// combined.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::ScriptedProvider;
/// # let model = ScriptedProvider::new([]).model();
/// use omni_agent::{agent::Agent, manager::{Manager, OpenOptions}, session::Mode, store::MemoryStore};
///
/// let manager = Manager::builder(MemoryStore::new()).max_turns_per_tenant(2).build();
/// let options = OpenOptions::new(Agent::builder().model(model))
///     .title("Holiday plans")
///     .tenant("customer-7")
///     .subscribe(Some(Mode::Observer));
/// let opened = manager.create(options).await?;
/// assert_eq!(opened.session.title().await?.as_deref(), Some("Holiday plans"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "options do nothing before a conversation is opened with them"]
pub struct OpenOptions {
    /// The agent is boxed, because this value is moved through several nested futures. Unboxed, it would take space in
    /// each of them and enlarge the task that opens the session.
    pub(super) agent: Box<AgentBuilder>,
    pub(super) title: Option<Arc<str>>,
    pub(super) labels: Labels,
    pub(super) tenant: Option<Arc<str>>,
    mode: Option<Mode>,
    idle_shutdown: IdleTimeoutSetting,
    durable: Durable,
    recover: Recover,
    record_delay: Duration,
}

/// When the session shuts down because it is idle.
enum IdleTimeoutSetting {
    /// The time that is set for all sessions of the manager.
    OfManager,
    /// After this time, or never if it is `None`.
    After(Option<Duration>),
}

impl OpenOptions {
    /// Creates options with this agent. The caller subscribes as a controller. The manager's registry of models
    /// replaces the agent's registry.
    pub fn new(agent: AgentBuilder) -> Self {
        Self {
            agent: Box::new(agent),
            title: None,
            labels: Labels::default(),
            tenant: None,
            mode: Some(Mode::Controller),
            idle_shutdown: IdleTimeoutSetting::OfManager,
            durable: Durable::default(),
            recover: Recover::default(),
            record_delay: RECORD_DELAY,
        }
    }

    setters! {
        /// Sets the title of a new conversation.
        pub fn title(self, title: impl Into<Arc<str>>) { self.title = Some(title.into()) }

        /// Sets the labels of a new conversation, such as its tenant and user. [`Manager::list`](super::Manager::list)
        /// finds conversations by their labels. A stored conversation keeps its labels.
        pub fn labels(self, labels: Labels) { self.labels = labels }
    }

    /// Returns the labels of a new conversation, and the name of its model.
    #[cfg(feature = "web")]
    pub(crate) fn into_labels_and_model(self) -> (Labels, Option<String>) {
        (self.labels, self.agent.model_name())
    }

    /// Adds labels to the labels that a new conversation gets.
    #[cfg(any(feature = "acp", feature = "mcp-server", feature = "web"))]
    pub(crate) fn add_labels(mut self, more: &Labels) -> Result<Self, crate::Error> {
        self.labels = Labels::new(self.labels.iter().chain(more.iter()))?;
        Ok(self)
    }

    setters! {
        /// Sets the tenant of the session. All sessions of a tenant share its [limit of
        /// requests](super::ManagerBuilder::max_turns_per_tenant), if the manager has such a limit.
        pub fn tenant(self, tenant: impl Into<Arc<str>>) { self.tenant = Some(tenant.into()) }

        /// Sets how long the session stays open while it has no controller, and is idle or waits for decisions about a
        /// recorded turn. This replaces the manager's time. `None` keeps the session open without a limit.
        pub fn idle_shutdown(self, after: Option<Duration>) {
            self.idle_shutdown = IdleTimeoutSetting::After(after);
        }

        /// Sets how much of a turn in flight survives the end of the process. Defaults to [`Durable::Turns`]. See
        /// [`SessionBuilder::durable`].
        pub fn durable(self, level: Durable) { self.durable = level }

        /// Sets what happens with a turn in flight when the conversation is opened. See [`SessionBuilder::recover`].
        pub fn recover(self, recover: Recover) { self.recover = recover }

        /// Sets how long a record of the turn in flight may be delayed if nothing waits for it. Defaults to 50 ms. See
        /// [`SessionBuilder::record_delay`].
        pub fn record_delay(self, delay: Duration) { self.record_delay = delay }

        /// Sets the mode of the caller's subscription. With `None`, the caller gets no subscription.
        pub fn subscribe(self, mode: Option<Mode>) { self.mode = mode }
    }

    /// Applies the options to a session builder that already has the manager's settings.
    fn set_up(self, mut session: SessionBuilder) -> SessionBuilder {
        if let Some(title) = self.title {
            session = session.title(title);
        }
        session = session
            .labels(self.labels)
            .durable(self.durable)
            .recover(self.recover)
            .record_delay(self.record_delay);
        if let IdleTimeoutSetting::After(after) = self.idle_shutdown {
            session = session.idle_shutdown_after(after);
        }
        session.agent(*self.agent)
    }
}

impl From<AgentBuilder> for OpenOptions {
    fn from(agent: AgentBuilder) -> Self {
        Self::new(agent)
    }
}

crate::debug::impl_debug!(OpenOptions(self) { agent: self.agent, mode: self.mode, .. });

/// A session that was opened or created.
#[derive(Debug)]
#[non_exhaustive]
pub struct OpenedSession {
    /// The session.
    pub session: Session,
    /// The caller's subscription, unless the options disabled it.
    pub subscription: Option<SessionSubscription>,
    /// Whether this call started the session. If not, the session was already open, and the agent and settings in the
    /// options were not used.
    pub started: bool,
}

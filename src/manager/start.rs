use std::{sync::Arc, time::Duration};

use crate::{
    agent::{AgentBuilder, Durable, RECORD_DELAY, Recover},
    session::{Mode, Session, SessionBuilder, SessionSubscription},
    setters::setters,
    store::Labels,
};

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
    pub(super) mode: Option<Mode>,
    idle_shutdown: IdleShutdown,
    durable: Durable,
    recover: Recover,
    record_delay: Duration,
}

/// When the session shuts down because it is idle.
enum IdleShutdown {
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
            idle_shutdown: IdleShutdown::OfManager,
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
            self.idle_shutdown = IdleShutdown::After(after);
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
    pub(super) fn set_up(self, mut session: SessionBuilder) -> SessionBuilder {
        if let Some(title) = self.title {
            session = session.title(title);
        }
        session = session
            .labels(self.labels)
            .durable(self.durable)
            .recover(self.recover)
            .record_delay(self.record_delay);
        if let IdleShutdown::After(after) = self.idle_shutdown {
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

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::sync::oneshot;

use super::{
    FixedSessionSettings, Guard, Session, SessionWatcher, check_title,
    core::{SessionCore, StoredTurnFingerprint},
    life,
    loading::{LoadedTurn, RecordedTurnTreatment, closed},
    starting::UnstartedSession,
    task::writing::contained,
    tenure::{ConversationLease, LeaseKeeper},
};
use crate::{
    agent::{Agent, AgentBuilder, Durable, RECORD_DELAY, Recover},
    message::Timestamp,
    run::{Error, ErrorKind, RunEnd},
    setters::setters,
    store::{Change, ConversationId, Labels, Owner, Store, StoreError, Write},
    subscription::FeedLimits,
    tree::Tree,
};

/// The default settings.
static DEFAULTS: LazyLock<Arc<FixedSessionSettings>> = LazyLock::new(|| {
    Arc::new(FixedSessionSettings {
        keeper: None,
        owner: None,
        idle_shutdown: None,
        unsaved_limit: 16 * 1024 * 1024,
        write_timeout: Duration::from_mins(1),
        end_timeout: Duration::from_secs(30),
        feed_limits: FeedLimits::default(),
        durable: Durable::Turns,
        record_delay: RECORD_DELAY,
        recover: Recover::default(),
    })
});

/// Builds a [`Session`] for a new or a stored conversation.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("Nice to meet you, Ada.")]);
/// # let model = provider.model();
/// use std::time::Duration;
/// use omni_agent::{agent::Agent, session::Session, store::{ConversationId, MemoryStore}};
///
/// let session = Session::builder(MemoryStore::new())
///     .agent(Agent::builder().model(model).system("Be brief."))
///     .title("Introductions")
///     .idle_shutdown(Duration::from_secs(60))
///     .create_with_id(ConversationId::new("intro")?)
///     .await?;
/// assert_eq!(session.ask("I am Ada.").await?.text(), "Nice to meet you, Ada.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder does nothing before `create`, `create_with_id` or `open`"]
pub struct SessionBuilder {
    pub(super) store: Arc<dyn Store>,
    pub(super) agent: AgentBuilder,
    pub(super) title: Option<Arc<str>>,
    pub(super) labels: Labels,
    pub(super) setup: Arc<FixedSessionSettings>,
    pub(super) watcher: Option<Arc<dyn SessionWatcher>>,
    pub(super) hold: Option<oneshot::Sender<Guard>>,
}

impl SessionBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            agent: Agent::builder(),
            title: None,
            labels: Labels::default(),
            setup: Arc::clone(&DEFAULTS),
            watcher: None,
            hold: None,
        }
    }

    setters! {
        /// Sets the agent: model, tools, callbacks and all other settings. The session supplies the agent's history.
        ///
        /// The model, the system prompt, the options and the limits `max_steps` and `turn_timeout` are saved with the
        /// conversation. When a stored conversation is [opened](Self::open), the saved settings are combined with the
        /// settings given here as follows:
        ///
        /// - The saved model is used if its name can be resolved. Otherwise, the model given here is used as the
        ///   fallback. The use of the fallback is logged, emitted to the first subscriber as
        ///   [`SessionEvent::ModelFallback`](super::SessionEvent::ModelFallback), and shown in every snapshot
        ///   ([`StateView::fallback_for`](crate::agent::StateView::fallback_for)). The saved name stays in the store
        ///   until another model is chosen.
        /// - A system prompt or limits given here replace the saved ones. If the options given here set anything, they
        ///   replace all saved options. To clear saved options, [configure](Session::configure) the session.
        /// - Tools, callbacks, extensions, keys and headers are never saved, so give them each time the conversation is
        ///   opened. Keys and headers do not replace the saved options, whether they are given in
        ///   [options](AgentBuilder::options) or as [credentials](AgentBuilder::credentials).
        pub fn agent(self, agent: AgentBuilder) { self.agent = agent }

        /// Sets the title of a new conversation. A stored conversation keeps its title.
        pub fn title(self, title: impl Into<Arc<str>>) { self.title = Some(title.into()) }

        /// Sets the labels of a new conversation, such as its tenant and user. A stored conversation keeps its labels.
        pub fn labels(self, labels: Labels) { self.labels = labels }
    }

    /// Sets how long the session stays open while its agent is idle and it has no controller.
    ///
    /// The time begins when the session starts. It begins again when the last controller is dropped and when the agent
    /// becomes idle. Observers do not keep the session open. A time of zero is allowed. Before the session ends, it
    /// saves everything. A paused turn that is [recorded](Self::durable) does not keep the session open. It stays in
    /// the store. By default, the session stays open as long as a handle or a controller exists.
    ///
    /// A session always stays open for at least 20 ms after its start, so that the code that started it can subscribe.
    pub fn idle_shutdown(self, after: Duration) -> Self {
        self.idle_shutdown_after(Some(after))
    }

    setters! {
        /// Sets the time for the idle shutdown, or turns the idle shutdown off with `None`.
        pub(crate) fn idle_shutdown_after(self, after: Option<Duration>) {
            Arc::make_mut(&mut self.setup).idle_shutdown = after;
        }

        /// Sets the limit of unsaved messages in approximate bytes. Defaults to 16 MiB.
        ///
        /// Above the limit, new prompts fail with [`ErrorKind::StoreBehind`], also those that are sent through a weak
        /// handle of the agent. An active run continues. If `handle_event` returns a prompt while the limit is exceeded,
        /// the prompt is returned in an error event.
        pub fn unsaved_limit(self, bytes: usize) { Arc::make_mut(&mut self.setup).unsaved_limit = bytes }

        /// Sets how long a write may take before it counts as failed and is repeated. Defaults to one minute.
        ///
        /// While the session ends or is flushed, the limit is shorter: a write may then take only a share of the
        /// remaining time. If a write has no result by then, it is repeated.
        pub fn write_timeout(self, limit: Duration) { Arc::make_mut(&mut self.setup).write_timeout = limit }

        /// Sets how long the session may take to end, unless it is ended by [`Session::stop`]. Defaults to 30 seconds.
        ///
        /// Most of this time is for saving. During this time, failed writes and writes without a result are repeated
        /// after short waits, as described at [`Session::flush`].
        pub fn end_timeout(self, limit: Duration) { Arc::make_mut(&mut self.setup).end_timeout = limit }

        /// Sets how many events, and how many bytes of events, are kept in memory for subscribers.
        pub fn feed_limits(self, limits: FeedLimits) { Arc::make_mut(&mut self.setup).feed_limits = limits }

        /// Sets the name and address under which the session owns the conversation, if the store supports owners.
        ///
        /// Other processes find the owner in [`StoreError::Owned`](crate::store::StoreError::Owned). A process that
        /// opens the conversation under the same name takes over the ownership at once. Therefore, each process needs a
        /// different name. If a process keeps its name across a restart, it does not have to wait for its own lease to
        /// expire. By default, each session is [a unique owner](Owner::unique).
        pub fn owner(self, owner: Owner) { Arc::make_mut(&mut self.setup).owner = Some(Arc::new(owner)) }
    }

    /// Sets how much of a turn in flight survives the end of the process. Defaults to [`Durable::Turns`].
    ///
    /// Above `Turns`, the store must [keep turns](crate::store::custom::StoreTraits::turns). When the conversation is
    /// opened again, in any process, its turn in flight continues as [`recover`](Self::recover) states. A turn that was
    /// recorded is recorded until its end, even if the conversation is opened with a lower level.
    ///
    /// With [`Durable::InFlight`], operations that change a run, such as [`prompt`](Session::prompt),
    /// [`resume`](Session::resume) and [`start`](crate::agent::RunRequest::start), succeed only after the change is
    /// stored.
    pub fn durable(mut self, level: Durable) -> Self {
        // The sessions of a manager share their settings as long as they do not change them.
        if self.setup.durable != level {
            Arc::make_mut(&mut self.setup).durable = level;
        }
        self
    }

    /// Sets the delay of records for which nothing waits. Defaults to 50 ms.
    ///
    /// Such a record contains a change that is made again if it is lost, such as a complete response of the model, or
    /// the result of a tool that is declared as [`Replay::Safe`](crate::tool::Replay::Safe). If another record is made
    /// within the delay, it contains the change. So a longer delay saves writes, and a crash repeats more work.
    pub fn record_delay(mut self, delay: Duration) -> Self {
        if self.setup.record_delay != delay {
            Arc::make_mut(&mut self.setup).record_delay = delay;
        }
        self
    }

    /// Sets what happens with a turn in flight when the conversation is opened. By default, the turn continues, and the
    /// model is told about tools whose outcome is not known.
    pub fn recover(mut self, recover: Recover) -> Self {
        if self.setup.recover != recover {
            Arc::make_mut(&mut self.setup).recover = recover;
        }
        self
    }

    /// Keeps the session open from its start until the guard that is sent through this channel is dropped.
    pub(crate) fn hold(mut self, guard: oneshot::Sender<Guard>) -> Self {
        self.hold = Some(guard);
        self
    }

    /// Adds a keeper of leases to the settings and returns them, so that all sessions of a manager can share them.
    pub(crate) fn into_shared(mut self) -> Arc<FixedSessionSettings> {
        Arc::make_mut(&mut self.setup).keeper = Some(Arc::new(LeaseKeeper::new(self.store)));
        self.setup
    }

    setters! {
        /// Replaces the settings with those that all sessions of a manager share.
        pub(crate) fn shared(self, setup: Arc<FixedSessionSettings>) { self.setup = setup }

        /// Sets the watcher, which is notified of the session's changes.
        pub(crate) fn watcher(self, watcher: Arc<dyn SessionWatcher>) { self.watcher = Some(watcher) }
    }

    /// Starts a new conversation with a generated id.
    ///
    /// Nothing is stored until the first turn is complete or the state is changed for the first time.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`AgentBuilder::start`], [`ErrorKind::Config`] and [`ErrorKind::InvalidTitle`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no session is started.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn create(self) -> Result<Session, Error> {
        self.create_with(ConversationId::generate()).await
    }

    /// Starts a new conversation like [`create`](Self::create), with a generated id that no other conversation has.
    pub(crate) async fn create_with(self, generated: ConversationId) -> Result<Session, Error> {
        let (starting, _) = self.start_new(generated).await?;
        Ok(starting.run())
    }

    /// Starts a new conversation with this id and creates it in the store.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`create`](Self::create), and the error of the store. If the id is taken, even by a
    /// concurrent call, the error is [`ErrorKind::AlreadyExists`]. If the
    /// store fails after it has created the conversation, an empty conversation exists and can be [opened](Self::open).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no session is started. But the conversation may already exist in
    /// the store, or may still be created there.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn create_with_id(self, id: ConversationId) -> Result<Session, Error> {
        let store = Arc::clone(&self.store);
        // This check reports a taken id before the application's `init` runs. If another caller creates the
        // conversation concurrently, only the later call of `create` notices this.
        if exists(&*store, &id).await? {
            return Err(StoreError::AlreadyExists { id }.into());
        }
        let (mut starting, id) = self.start_new(id).await?;
        let (setup, watcher) =
            (Arc::clone(&starting.session.shared.setup), starting.session.shared.watcher.clone());
        let created: Result<_, Error> = async {
            if let Some(watcher) = watcher {
                let labels = watcher.labels(starting.core.labels().clone()).await?;
                starting.core.created_with(labels);
            }
            let state = starting.core.state();
            let created = contained(tracing::Span::current(), async move {
                let version = store.write(&id, &Write::first(), &Change::create(state)).await?;
                let owner = setup.owner();
                let tenure = ConversationLease::begin(&store, setup.keeper.as_ref(), &id, &owner).await?;
                Ok((version, tenure))
            });
            Ok(created.await?)
        }
        .await;
        match created {
            Ok((version, tenure)) => {
                starting.core.created(version);
                starting.life = life::next(tenure.as_ref(), None, None);
                starting.tenure = tenure;
            }
            Err(error) => {
                // The caller may try again, so the agent of this attempt must end first. The result of stopping it does
                // not matter.
                let _ = starting.agent.stop(starting.session.shared.setup.end_timeout).await;
                return Err(error);
            }
        }
        Ok(starting.run())
    }

    /// Opens the stored conversation with this id in its last saved state.
    ///
    /// # Errors
    ///
    /// - The errors of [`AgentBuilder::start`].
    /// - [`ErrorKind::Config`] if the agent was given a history, because the messages must come from the
    ///   store.
    /// - The error of the store, such as [`ErrorKind::NotFound`].
    /// - [`ErrorKind::Damaged`] if the stored nodes do not form a tree.
    /// - [`ErrorKind::NewerTurn`] or [`ErrorKind::DamagedTurn`] if the turn in flight can't be read, unless
    ///   [`recover`](Self::recover) discards such a turn.
    /// - [`ErrorKind::Config`] if the level set with [`durable`](Self::durable) requires that the store keeps
    ///   turns in flight, and the store can't.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no session is started.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn open(mut self, id: ConversationId) -> Result<Session, Error> {
        self.check()?;
        // The lease is acquired before the conversation is loaded, so that no other owner changes it in between.
        let tenure =
            ConversationLease::begin(&self.store, self.setup.keeper.as_ref(), &id, &self.setup.owner())
                .await?;
        let stored = self.store.load(&id).await?;
        let (state, version, mark) = (stored.state, stored.version, stored.mark);
        let recorded = stored.turn.as_ref().map_or(Timestamp(0), |turn| turn.recorded);
        let written = (stored.updated.max(recorded), version);
        let tree = Tree::restored(stored.nodes, stored.head, stored.cursors, stored.next)?;
        let flight = StoredTurnFingerprint::of_stored(stored.turn.as_deref(), tree.head());
        let now = stored.turn.as_ref().map_or(Timestamp(0), |turn| turn.now);
        let recovered = RecordedTurnTreatment::of(&id, stored.turn, &tree, self.setup.recover, now)?;
        let mut last_run = stored.last_run.map(closed);
        let (history, turn, ended) = match recovered {
            RecordedTurnTreatment::None => (tree.history().clone(), None, None),
            RecordedTurnTreatment::Discarded(ended) => {
                last_run = Some(RunEnd::clone(&ended));
                (tree.history().clone(), None, Some(ended))
            }
            RecordedTurnTreatment::Turn(turn) => {
                let LoadedTurn { in_flight, record, history, lives } = *turn;
                self.agent = self.agent.in_flight(in_flight);
                (history, Some((record, lives)), None)
            }
        };
        let prompts = match (&turn, &last_run) {
            (Some((record, _)), _) => record.prompts.clone(),
            (None, Some(end)) => end.prompts.clone(),
            (None, None) => Vec::new(),
        };
        self.agent = self.agent.restore(state.clone()).last_run(last_run).history(history);
        let (keeps_usage, used) = (self.store.traits().usage, stored.used.usage);
        let loaded = |config, seen| SessionCore::loaded(tree, state, version, keeps_usage, config, seen);
        let mut starting = Box::pin(self.start(id, loaded)).await?;
        starting.core.loaded_usage(used);
        starting.core.loaded_flight(flight);
        starting.core.set_prompts(prompts, starting.session.shared.setup.durable > Durable::Turns);
        starting.life = life::next(tenure.as_ref(), mark, Some(written));
        starting.mark = mark.filter(|_| starting.core.is_as_stored());
        starting.tenure = tenure;
        if let Some(ended) = ended {
            starting.core.discarded(*ended);
        }
        if let Some((record, lives)) = turn {
            starting.take_up(&record, lives).await?;
        }
        Ok(starting.run())
    }

    /// Opens the conversation with this id if the store has it, and creates it otherwise.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open) and [`create_with_id`](Self::create_with_id). If several callers
    /// create the same conversation at the same time, one succeeds. The others get
    /// [`ErrorKind::AlreadyExists`] and can try again.
    ///
    /// # Cancel safety
    ///
    /// As with [`create_with_id`](Self::create_with_id), no session is started if the future is dropped before it is
    /// ready, but the conversation may exist in the store or may still be created there.
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime.
    pub async fn open_or_create(self, id: ConversationId) -> Result<Session, Error> {
        if exists(&*self.store, &id).await? {
            Box::pin(self.open(id)).await
        } else {
            Box::pin(self.create_with_id(id)).await
        }
    }

    /// Checks that the agent was given no history, and that the store can keep turns in flight if the settings require
    /// it.
    fn check(&self) -> Result<(), Error> {
        if !self.agent.given_history().is_empty() {
            let text = "a session can't start with a given history, because its messages come from the store; remove \
                        the history, or import it into the store first";
            return Err(Error::new(ErrorKind::Config, text));
        }
        if self.setup.durable > Durable::Turns && !self.store.traits().turns {
            let text = "this store does not keep turns in flight; use a store that does, or `Durable::Turns` (a \
                        `FileSystemStore` keeps them if it is exclusive)";
            return Err(Error::new(ErrorKind::Config, text));
        }
        Ok(())
    }

    async fn start_new(mut self, id: ConversationId) -> Result<(UnstartedSession, ConversationId), Error> {
        self.check()?;
        check_title(self.title.as_deref())?;
        let (title, labels) = (self.title.take(), std::mem::take(&mut self.labels));
        let keeps_usage = self.store.traits().usage;
        let core = |config, seen| SessionCore::new(title, labels, keeps_usage, config, seen);
        let mut starting = Box::pin(self.start(id.clone(), core)).await?;
        starting.core.set_prompts(Vec::new(), starting.session.shared.setup.durable > Durable::Turns);
        Ok((starting, id))
    }
}

/// Returns whether the conversation exists.
async fn exists(store: &dyn Store, id: &ConversationId) -> Result<bool, StoreError> {
    match store.summary(id).await {
        // A damaged conversation exists, too.
        Ok(_) | Err(StoreError::Damaged { .. }) => Ok(true),
        Err(StoreError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

crate::debug::impl_debug!(SessionBuilder(self) { agent: self.agent, .. });

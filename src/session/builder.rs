use std::{
    fmt,
    sync::{
        Arc, LazyLock, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use super::{
    Guard, Session, SessionError, Watcher, WeakSession,
    core::{Core, saved},
    task::{DELIVERIES, Deliveries, LastWords, SessionShared, Setup, Task, writing::contained},
    tenure::Tenure,
};
use crate::{
    actor::{Signal, Termination},
    agent::{Agent, AgentBuilder, Config, HistoryOwner, Hold},
    store::{ConversationId, Owner, Store, WriteId},
    subscription::{EventId, Feed, FeedLimits},
    tree::Tree,
};

/// Commands that may wait in a session's channel: one block of tokio's.
const COMMANDS: usize = 32;

/// What sessions are set up with unless something else is wanted: they share it.
static USUAL: LazyLock<Arc<Setup>> = LazyLock::new(|| {
    Arc::new(Setup {
        owner: None,
        idle_shutdown: None,
        unsaved_limit: 16 * 1024 * 1024,
        write_timeout: Duration::from_mins(1),
        end_timeout: Duration::from_secs(30),
        feed_limits: FeedLimits::default(),
    })
});

/// The settings last used: sessions that are set up alike, one after another, share theirs.
static LATEST: Mutex<Option<Arc<Setup>>> = Mutex::new(None);

fn shared(setup: Arc<Setup>) -> Arc<Setup> {
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    match &*latest {
        Some(latest) if **latest == *setup => Arc::clone(latest),
        _ => Arc::clone(latest.insert(setup)),
    }
}

/// Starts a [`Session`]: a new one, or one that is in the store.
#[must_use = "a builder does nothing before `create`, `create_with_id` or `open`"]
pub struct SessionBuilder {
    store: Arc<dyn Store>,
    agent: AgentBuilder,
    title: Option<Arc<str>>,
    setup: Arc<Setup>,
    watcher: Option<Arc<dyn Watcher>>,
    hold: Option<oneshot::Sender<Guard>>,
}

impl SessionBuilder {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            agent: Agent::builder(),
            title: None,
            setup: Arc::clone(&USUAL),
            watcher: None,
            hold: None,
        }
    }

    /// The agent: model, tools, callbacks and all. Its history comes from the session, and its commit channel is the
    /// session's.
    ///
    /// The model, the system prompt, the options and the limits `max_steps` and `turn_timeout` are saved with the
    /// conversation. When the conversation is [loaded](Self::open):
    ///
    /// - The saved model wins if its name can be resolved. Otherwise the model given here is the fallback: its use is logged,
    ///   emitted to the first subscriber as [`SessionEvent::ModelFallback`](super::SessionEvent::ModelFallback), and shown in
    ///   every snapshot ([`StateView::fallback_for`](crate::agent::StateView::fallback_for)). The saved name stays in the
    ///   store until another model is chosen.
    /// - A system prompt and limits given here win over the saved ones. So do options that set something, as a whole; to
    ///   clear saved options, [configure](Session::configure) the session.
    /// - Tools, callbacks, extensions, keys and headers are never saved: give them at each load. Keys and headers do not
    ///   replace saved options, whether they are given in [options](AgentBuilder::options) or as
    ///   [credentials](AgentBuilder::credentials).
    pub fn agent(mut self, agent: AgentBuilder) -> Self {
        self.agent = agent;
        self
    }

    /// The title of a new conversation. A loaded one has its own.
    pub fn title(mut self, title: impl Into<Arc<str>>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// How long the session stays open without a controller while the agent is idle. The time runs from the session's start,
    /// and anew when the last controller leaves and when the agent becomes idle. Observers do not count. Zero is allowed. If
    /// it is unset, the session stays for as long as a handle or a controller exists. A turn in flight is finished first, and so
    /// is saving.
    ///
    /// A session that has just started stays for at least 20 ms, so that its starter can subscribe.
    pub fn idle_shutdown(mut self, after: Duration) -> Self {
        Arc::make_mut(&mut self.setup).idle_shutdown = Some(after);
        self
    }

    /// Bytes of messages that may be unsaved, roughly, before new prompts get [`SessionError::StoreBehind`]. 16 MiB if
    /// unset. A run in progress continues. This holds for prompts by an agent's weak handle too
    /// ([`AgentError::OnHold`](crate::agent::AgentError::OnHold)); a prompt that `handle_event` returns is carried back by an
    /// error event.
    pub fn unsaved_limit(mut self, bytes: usize) -> Self {
        Arc::make_mut(&mut self.setup).unsaved_limit = bytes;
        self
    }

    /// How long a write may take before it counts as failed, and is repeated. One minute if unset. During an end or a flush
    /// a write that is silent is repeated sooner, after a share of the time left.
    pub fn write_timeout(mut self, limit: Duration) -> Self {
        Arc::make_mut(&mut self.setup).write_timeout = limit;
        self
    }

    /// The deadline of every end but [`Session::stop`], mostly for saving. 30 seconds if unset. Within it, failed and silent
    /// writes are repeated after short waits, as [`Session::flush`] states.
    pub fn end_timeout(mut self, limit: Duration) -> Self {
        Arc::make_mut(&mut self.setup).end_timeout = limit;
        self
    }

    /// What is kept for subscribers.
    pub fn feed_limits(mut self, limits: FeedLimits) -> Self {
        Arc::make_mut(&mut self.setup).feed_limits = limits;
        self
    }

    /// Who opens the conversation, for other processes to see, where the store knows owners: by this name and address
    /// they learn who has it, in [`StoreError::Owned`](crate::store::StoreError::Owned). Whoever opens it under the same
    /// name takes it over at once, so it is to be one process's alone; one that keeps its name over a restart need not wait
    /// for its own lease to run out. Unset, each session is [an owner of its own](Owner::unique).
    pub fn owner(mut self, owner: Owner) -> Self {
        Arc::make_mut(&mut self.setup).owner = Some(Arc::new(owner));
        self
    }

    /// Keeps the session open from its very start until the guard is dropped, which comes by this channel.
    pub(crate) fn hold(mut self, guard: oneshot::Sender<Guard>) -> Self {
        self.hold = Some(guard);
        self
    }

    /// Who is told what becomes of the session.
    pub(crate) fn watcher(mut self, watcher: Arc<dyn Watcher>) -> Self {
        self.watcher = Some(watcher);
        self
    }

    /// Starts a new conversation with an id of its own, which nobody else has. It is in the store from its first save
    /// on: the first turn, or the first change of its state.
    ///
    /// # Errors
    ///
    /// As [`AgentBuilder::start`]; [`SessionError::InitialHistory`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is done starts nothing.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn create(self) -> Result<Session, SessionError> {
        self.create_with(ConversationId::generate()).await
    }

    /// As [`create`](Self::create), under an id that the caller has generated, and nobody else has.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is done starts nothing.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub(crate) async fn create_with(self, generated: ConversationId) -> Result<Session, SessionError> {
        let (starting, _) = self.start_new(generated).await?;
        Ok(starting.run())
    }

    /// Starts a new conversation with this id, and creates it in the store.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`StoreError::AlreadyExists`](crate::store::StoreError::AlreadyExists) if the id is
    /// taken, also by somebody who was faster; what the store fails with. If that was reached no more after it had created
    /// the conversation, this is there, with nothing in it, and can be [loaded](Self::open).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is done starts nothing; but the conversation may be in the store then, or come to be.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn create_with_id(self, id: ConversationId) -> Result<Session, SessionError> {
        let store = Arc::clone(&self.store);
        // A taken id is found before the application's `init` runs, but for a race.
        if store.exists(&id).await? {
            return Err(crate::store::StoreError::AlreadyExists { id }.into());
        }
        let (mut starting, id) = self.start_new(id).await?;
        let state = starting.core.state();
        let owner = starting.session.shared.setup.owner();
        let created = contained(async move {
            let version = store.create(&id, WriteId::generate(), &state).await?;
            Ok((version, Tenure::begin(&store, &id, &owner).await?))
        });
        match created.await {
            Ok((version, tenure)) => {
                starting.core.created(version);
                starting.tenure = tenure;
            }
            Err(error) => {
                // Whoever tries again is not to meet this agent; how it ended changes nothing.
                let _ = starting.agent.stop(starting.session.shared.setup.end_timeout).await;
                return Err(error.into());
            }
        }
        Ok(starting.run())
    }

    /// Starts the conversation with this id from the store, where it was left.
    ///
    /// # Errors
    ///
    /// As [`AgentBuilder::start`]; [`SessionError::InitialHistory`], since the messages come from the store; the error of the
    /// store, such as [`NotFound`](crate::store::StoreError::NotFound); [`SessionError::Tree`] if the stored nodes are not a
    /// tree.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future before it is done starts nothing.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn open(mut self, id: ConversationId) -> Result<Session, SessionError> {
        self.ensure_no_history()?;
        // First of all: from then on nobody else changes it.
        let tenure = Tenure::begin(&self.store, &id, &self.setup.owner()).await?;
        let stored = self.store.load(&id).await?;
        let (state, version) = (stored.state, stored.version);
        let tree = Tree::hydrate(stored.nodes, stored.head, stored.cursors)?;
        self.agent = self.agent.restore(saved(&state)).history(tree.history().clone());
        let loaded = |config, seen| Core::loaded(tree, &state, version, config, seen);
        let mut starting = self.start(id, loaded).await?;
        starting.tenure = tenure;
        Ok(starting.run())
    }

    /// Opens the conversation with this id if the store has it, and creates it otherwise.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) and [`create_with_id`](Self::create_with_id). If several callers create the same conversation
    /// at the same time, one succeeds; the others get [`StoreError::AlreadyExists`](crate::store::StoreError::AlreadyExists)
    /// and can try again.
    ///
    /// # Cancel safety
    ///
    /// As [`create_with_id`](Self::create_with_id).
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    pub async fn open_or_create(self, id: ConversationId) -> Result<Session, SessionError> {
        if self.store.exists(&id).await? {
            Box::pin(self.open(id)).await
        } else {
            Box::pin(self.create_with_id(id)).await
        }
    }

    fn ensure_no_history(&self) -> Result<(), SessionError> {
        let is_given = !self.agent.given_history().is_empty();
        if is_given { Err(SessionError::InitialHistory) } else { Ok(()) }
    }

    async fn start_new(mut self, id: ConversationId) -> Result<(Starting, ConversationId), SessionError> {
        self.ensure_no_history()?;
        let title = self.title.take();
        let starting = self.start(id.clone(), |config, seen| Core::new(title, config, seen)).await?;
        Ok((starting, id))
    }

    /// Starts the agent, and prepares what is around it.
    async fn start(
        self,
        id: ConversationId,
        core: impl FnOnce(Arc<Config>, EventId) -> Core,
    ) -> Result<Starting, SessionError> {
        let Self { store, agent, setup, watcher, hold, .. } = self;
        let (commands, receiver) = mpsc::channel(COMMANDS);
        let (sender, deliveries) = futures_channel::mpsc::channel(DELIVERIES);
        let shared = Arc::new(SessionShared {
            id: id.clone(),
            setup: shared(setup),
            agent: OnceLock::new(),
            termination: Termination::default(),
            started: AtomicBool::new(false),
            watcher,
            is_behind: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_between_requests: AtomicBool::new(false),
            left_unsaved: OnceLock::new(),
            left_running: OnceLock::new(),
            controllers: AtomicUsize::new(0),
            left: Signal::default(),
        });
        // Prompts reach the agent by other ways than the session's handle: from `handle_event`, and by weak handles.
        let agent = agent.hold(Arc::clone(&shared) as Arc<dyn Hold>);
        let session = Session { commands, shared };
        if let Some(hold) = hold {
            // The guard of a starter that went away is dropped.
            let _ = hold.send(session.keep()?);
        }
        let weak: WeakSession = session.downgrade();
        let (agent, owner) = agent.extension(id).extension(weak).commit_channel(sender).start_owned().await?;
        let state = agent.state().await?;
        let seen = owner.moment().await?.last;
        let core = core(Arc::clone(&state.config), seen);
        Ok(Starting { session, receiver, agent, owner, deliveries, core, store, tenure: None })
    }
}

/// A session whose task does not run yet.
struct Starting {
    session: Session,
    receiver: mpsc::Receiver<Box<super::command::Command>>,
    agent: Agent,
    owner: HistoryOwner,
    deliveries: Deliveries,
    core: Core,
    store: Arc<dyn Store>,
    tenure: Option<Tenure>,
}

impl Starting {
    fn run(self) -> Session {
        let Self { session, receiver, agent, owner, deliveries, core, store, tenure } = self;
        let shared = Arc::clone(&session.shared);
        // Nobody else sets it.
        let _ = shared.agent.set(agent.downgrade());
        shared.started.store(true, Ordering::Release);
        let task = Box::new(Task {
            core,
            agent,
            owner,
            deliveries,
            store,
            tenure,
            feed: Feed::new(rand::random()),
            _last_words: LastWords(Arc::clone(&shared)),
            shared,
            attempts: None,
            retry: None,
            ends_by: None,
            idle: None,
            is_fresh: true,
            idle_when_saved: false,
            has_refused_sleep: false,
            settling: None,
            flushes: Vec::new(),
            commands_in_a_row: 0,
            effects: Vec::new(),
        });
        tokio::spawn(task.run(receiver));
        session
    }
}

impl fmt::Debug for SessionBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionBuilder").field("agent", &self.agent).finish_non_exhaustive()
    }
}

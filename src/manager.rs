//! Managers, which hold all sessions of an application by conversation id.
//!
//! A [`Manager`] is for services that serve many conversations. It opens each conversation at most once, however many
//! callers ask for it, and lists the stored and the open conversations. It generates titles, limits the number of open
//! sessions and of concurrent requests, and shuts all sessions down cleanly. A session outlives the caller that opened
//! it, and ends when it has been idle without a controller for some time. The
//! [guide](crate::guides::many_conversations) builds a web service with a manager.
//!
//! The main types:
//!
//! - [`ManagerBuilder`] sets the store, the limits and how titles are generated.
//! - [`OpenOptions`] holds the agent and the settings with which a session is opened. [`Manager::open`] and
//!   [`Manager::create`] return an [`OpenedSession`]: the [`Session`] and a subscription to its events.
//! - [`Manager::subscribe`] returns a [`ManagerSnapshot`] and the [`ManagerEvent`]s that follow it. The events report
//!   sessions that open, close, change their status or get titles.
//! - [`Manager::pending_approvals`] lists the tool uses that wait for decisions, and [`Manager::decide`] decides on
//!   them, without opening their conversations.
//! - [`Manager::conversation`] returns a [`Conversation`], whose operations open the conversation if needed.
//! - [`ManagerBuilder::starter`] sets how conversations are opened without a caller, so that a turn continues after its
//!   process has crashed.
//! - [`Manager::schedule`] sends a prompt to a conversation at set times.
//! - [`Error`] is the error type of a manager's operations.
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use std::{sync::Arc, time::Duration};
//! use omni_agent::agent::Agent;
//! use omni_agent::manager::Manager;
//! use omni_agent::store::{MemoryStore, Page};
//! use omni_agent::testing::{ScriptedProvider, Step};
//!
//! let provider = ScriptedProvider::new([Step::text("Lisbon, I would say.")]);
//! let agent = || Agent::builder().model(provider.model());
//! let manager = Manager::builder(MemoryStore::new()).build();
//!
//! let opened = manager.create(agent()).await?;
//! opened.session.ask("Where shall we go on holiday?").await?;
//! let id = opened.session.id().clone();
//! assert!(!manager.open(&id, agent()).await?.started);
//!
//! manager.close(&id).await?;
//! assert_eq!(manager.list(Page::default()).await?[0].summary.id, id);
//! manager.shutdown(Duration::from_secs(5)).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod approvals;
mod closing;
mod conversation;
mod event;
mod fork;
mod limits;
mod opening;
mod recovery;
mod registry;
mod schedule;
mod sub_agent;
mod titles;

use std::{
    fmt,
    future::ready,
    ops::Range,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

pub use approvals::{Approval, ApprovalId, DecisionPlace};
pub(crate) use closing::TitleOrLabels;

pub use closing::Shutdown;
pub use conversation::{Conversation, Wake, WakeCause};
pub use event::{Activity, Listed, ManagerEvent, ManagerSnapshot, OpenSession, Presence};
pub use fork::ForkOptions;
use limits::TurnLimits;
use opening::{NewOrStoredConversation, OpenedBy};
pub use opening::{OpenOptions, OpenedSession};
use recovery::{ManagerRecoveryState, RecoverySettings};
pub use recovery::{Recovered, Sweep};
use registry::SessionRegistry;
pub use titles::{TitleGenerator, Titles};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::AgentStopTurnPolicy,
    message::{Timestamp, UsageSum},
    provider::Registry,
    run::Error,
    session::{FixedSessionSettings, Session, check_title},
    store::{
        ConversationId, Filter, Found, IntoStore, Labels, Listing, Owner, Page, Position, Store, StoreError,
        Summary,
    },
    subscription::{
        End, EndReason, EventId, FeedLimits, Subscription, SubscriptionSource, SubscriptionStart,
    },
    sync::lock,
};

/// A handle to the sessions of an application. Cheap to clone. Several managers are independent of each other.
///
/// When the last handle of the manager is dropped, each session continues as long as a handle to the session or a
/// controller exists.
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("Hello!")]);
/// # let model = provider.model();
/// use std::time::Duration;
/// use omni_agent::{agent::Agent, manager::Manager, store::{ConversationId, MemoryStore}};
///
/// let manager = Manager::builder(MemoryStore::new()).build();
/// let id = ConversationId::new("chat-1")?;
///
/// // All callers that open one id get the same session.
/// let opened = manager.open_or_create(&id, Agent::builder().model(model)).await?;
/// opened.session.ask("Hi").await?;
/// assert_eq!(manager.list_open().len(), 1);
///
/// manager.shutdown(Duration::from_secs(5)).await?;
/// assert!(manager.list_open().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancel safety
///
/// If the future of an operation is dropped, the operation continues. There are three exceptions: an opening that is
/// still waiting for room is given up, an operation that [hangs](ManagerBuilder::close_timeout) is given up after some
/// time, and a [shutdown](Manager::shutdown) may leave sessions open.
#[derive(Clone)]
pub struct Manager(Arc<ManagerShared>);

/// The state that the handles share.
struct ManagerShared {
    store: Arc<dyn Store>,
    owner: Owner,
    /// The settings of all sessions.
    setup: Arc<FixedSessionSettings>,
    registry_of_models: Registry,
    close_timeout: Duration,
    decide_timeout: Option<Duration>,
    room_timeout: Option<Duration>,
    titles: Titles,
    limits: TurnLimits,
    feed_limits: FeedLimits,
    sessions: Mutex<SessionRegistry>,
    shutting: CancellationToken,
    recovery: ManagerRecoveryState,
}

impl ManagerShared {
    /// Fails if there is a filter and the store does not support labels, because such a store may ignore the filter and
    /// list the conversations of others.
    fn checked(&self, listing: impl Into<Listing>) -> Result<Listing, StoreError> {
        let listing = listing.into();
        if !self.store.traits().labels {
            listing.unfiltered()?;
        }
        Ok(listing)
    }

    /// Returns the labels of a conversation, whether it is open or not.
    async fn own_labels(&self, id: &ConversationId) -> Result<Labels, StoreError> {
        let open = self.registry().open_session(id);
        match open {
            Some(open) => Ok(open.labels),
            None => Ok(self.store.summary(id).await?.labels),
        }
    }

    /// Returns the labels of the root of a sub-agent, or `None` if the root does not exist.
    async fn root_labels(&self, root: &str) -> Result<Option<Labels>, StoreError> {
        let Ok(root) = ConversationId::new(root) else { return Ok(None) };
        match self.own_labels(&root).await {
            Err(StoreError::NotFound { .. }) => Ok(None),
            labels => labels.map(Some),
        }
    }

    fn registry(&self) -> MutexGuard<'_, SessionRegistry> {
        lock(&self.sessions)
    }
}

/// Builds a [`Manager`].
///
/// ```
/// use std::time::Duration;
/// use omni_agent::{manager::{Manager, Titles}, store::MemoryStore};
///
/// let manager = Manager::builder(MemoryStore::new())
///     .idle_shutdown(Some(Duration::from_secs(600)))
///     .max_open(1000)
///     .max_turns(50)
///     .titles(Titles::Off)
///     .build();
/// assert!(manager.list_open().is_empty());
/// ```
#[derive(Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct ManagerBuilder {
    store: StoreDebugWrapper,
    owner: Option<Owner>,
    registry: Option<Registry>,
    idle_shutdown: Option<Duration>,
    close_timeout: Duration,
    decide_timeout: Option<Duration>,
    room_timeout: Option<Duration>,
    titles: Titles,
    max_open: Option<usize>,
    max_turns: Option<usize>,
    max_turns_per_tenant: Option<usize>,
    max_sub_agents: usize,
    feed_limits: FeedLimits,
    recovery: RecoverySettings,
}

/// A wrapper around a store, with which types that contain a store can derive `Debug`.
struct StoreDebugWrapper(Arc<dyn Store>);

impl fmt::Debug for StoreDebugWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl ManagerBuilder {
    crate::setters::setters! {
        /// Sets the registry in which model names are looked up. Defaults to [`Registry::default`].
        pub fn registry(self, registry: Registry) { self.registry = Some(registry) }

        /// Sets the name and address under which this manager owns open conversations, if the store supports owners.
        ///
        /// Other processes that use the same store see the name and the address. The name identifies this manager, so
        /// no other manager may use it. The address states how to reach this process, in a form that the application
        /// chooses. If a process restarts and its manager has the same name as before, the manager can reopen its
        /// conversations at once. If the name is different, the manager has to wait until the conversations are
        /// released or their leases expire. By default, the manager is [a unique owner](Owner::unique).
        pub fn owner(self, owner: Owner) { self.owner = Some(owner) }

        /// Sets how long a session stays open while it has no controller, and is idle or waits for decisions about a
        /// recorded turn. Defaults to five minutes.
        ///
        /// The time starts when the session starts. It starts again when the last controller is dropped and when the
        /// agent becomes idle. `None` keeps sessions open without a limit.
        pub fn idle_shutdown(self, after: Option<Duration>) { self.idle_shutdown = after }

        /// Sets how long it may take to close a session and save its changes. Defaults to 30 seconds.
        ///
        /// The limit applies to every way in which a session can end. It also limits how long [`Manager::rename`] waits
        /// for an open session to store its title. If a store or an `init` still hangs when twice this time has passed
        /// since its caller stopped waiting, the operation is given up.
        pub fn close_timeout(self, limit: Duration) { self.close_timeout = limit }

        /// Sets how long [`Manager::decide`] waits while another process owns the conversation. Defaults to the
        /// duration of the store's [leases](crate::store::custom::StoreTraits::lease) plus 5 seconds.
        ///
        /// If a process has crashed, its conversations are owned until its leases expire. With the default, the
        /// decision waits until then, and succeeds. If the owner is alive, it renews its lease, and the decision fails
        /// with [`ErrorKind::OpenElsewhere`](crate::ErrorKind::OpenElsewhere) after this time.
        pub fn decide_timeout(self, limit: Duration) { self.decide_timeout = Some(limit) }

        /// Sets how untitled conversations get their titles. Defaults to [`Titles::Heuristic`].
        ///
        /// A session stays open while a title is generated for it. If the session is closed meanwhile, the close waits
        /// for the title, within the [close timeout](Self::close_timeout).
        pub fn titles(self, titles: Titles) { self.titles = titles }

        /// Sets how many sessions may be open at once, at least one. Unlimited by default.
        ///
        /// At the limit, each further opening closes the least recently used session that has no controller, and is
        /// idle or waits for decisions about a recorded turn. Several openings close several sessions at the same time.
        /// If no session can be closed, openings wait in line.
        ///
        /// If a session's tool opens another session, the first session keeps its place. If all places are held by such
        /// sessions, no place becomes free: see [`room_timeout`](Self::room_timeout). Set the limit above the number of
        /// sessions whose tools wait for other sessions.
        pub fn max_open(self, limit: usize) { self.max_open = Some(limit) }

        /// Sets how long an opening waits for room while places are held by sessions whose tools or callbacks are
        /// running. Defaults to one minute.
        ///
        /// A tool or callback of one session may be waiting for the opening of another session, while this opening
        /// waits for the place of the first session. After the given time, the opening fails with
        /// [`ErrorKind::NoRoom`](crate::ErrorKind::NoRoom), which names the sessions that hold places in this way. If there is no such
        /// session, the opening continues to wait. With `None`, openings wait without a limit. A tool that opens a
        /// session receives the error only if the tool's [own time limit](crate::tool::ToolLimits::timeout) is longer
        /// than this time.
        pub fn room_timeout(self, limit: Option<Duration>) { self.room_timeout = limit }

        /// Sets how many sessions may have a model request in flight at once. The minimum is one. Unlimited by default.
        ///
        /// The requests of further sessions wait in line. A run does not count while it is paused, while its tools or
        /// callbacks are running, or while it waits before it sends a rejected request again. Therefore, a tool can
        /// prompt another session under any limit.
        pub fn max_turns(self, limit: usize) { self.max_turns = Some(limit) }

        /// Sets how many sessions of one [tenant](OpenOptions::tenant) may have a request in flight at once. The
        /// minimum is one.
        ///
        /// Requests are counted as described at [`max_turns`](Self::max_turns). Unlimited by default.
        pub fn max_turns_per_tenant(self, limit: usize) { self.max_turns_per_tenant = Some(limit) }

        /// Sets how many [sub-agents](crate::agent::SubAgent) may run as sessions at once. Defaults to 1,000.
        ///
        /// Such a session takes no place of [`max_open`](Self::max_open), because the session that waits for it has one
        /// already. At the limit, a new call gets an error result. A call that is repeated after a restart waits, or enters
        /// beyond the limit if its parent is such a session, or if no other call is at work. So a limit of 0 refuses new
        /// calls only.
        pub fn max_sub_agents(self, limit: usize) { self.max_sub_agents = limit }

        /// Sets how many events, and how many bytes of events, are kept in memory for subscribers of the manager.
        pub fn feed_limits(self, limits: FeedLimits) { self.feed_limits = limits }
    }

    /// Builds the manager. At first, it has no open sessions.
    pub fn build(self) -> Manager {
        let owner = self.owner.unwrap_or_else(Owner::unique);
        let setup = Session::builder(Arc::clone(&self.store.0))
            .owner(owner.clone())
            .end_timeout(self.close_timeout)
            .idle_shutdown_after(self.idle_shutdown)
            .into_shared();
        Manager(Arc::new(ManagerShared {
            store: self.store.0,
            owner,
            setup,
            registry_of_models: self.registry.unwrap_or_default(),
            close_timeout: self.close_timeout,
            decide_timeout: self.decide_timeout,
            room_timeout: self.room_timeout,
            titles: self.titles,
            limits: TurnLimits::new(self.max_turns, self.max_turns_per_tenant),
            feed_limits: self.feed_limits,
            sessions: Mutex::new(SessionRegistry::new(
                self.max_open.unwrap_or(usize::MAX).max(1),
                self.max_sub_agents,
            )),
            shutting: CancellationToken::new(),
            recovery: self.recovery.build(),
        }))
    }
}

impl Manager {
    /// Returns a builder for a manager whose conversations are stored in `store`.
    pub fn builder(store: impl IntoStore) -> ManagerBuilder {
        ManagerBuilder {
            store: StoreDebugWrapper(store.into_store()),
            owner: None,
            registry: None,
            idle_shutdown: Some(Duration::from_mins(5)),
            close_timeout: Duration::from_secs(30),
            decide_timeout: None,
            room_timeout: Some(Duration::from_mins(1)),
            titles: Titles::default(),
            max_open: None,
            max_turns: None,
            max_turns_per_tenant: None,
            max_sub_agents: 1000,
            feed_limits: FeedLimits::default(),
            recovery: RecoverySettings::default(),
        }
    }

    /// Starts a new conversation with a generated id.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::ShutDown`](crate::ErrorKind::ShutDown), [`ErrorKind::NoRoom`](crate::ErrorKind::NoRoom), or
    /// an error of [`SessionBuilder::create`](crate::session::SessionBuilder::create).
    pub async fn create(&self, start: impl Into<OpenOptions>) -> Result<OpenedSession, Error> {
        self.0
            .open(
                ConversationId::generate(),
                start.into(),
                NewOrStoredConversation::Generated,
                OpenedBy::User,
            )
            .await
    }

    /// Starts a new conversation with this id.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`create`](Self::create). If the id is taken, returns
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) or the store's
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists).
    pub async fn create_with_id(
        &self,
        id: &ConversationId,
        start: impl Into<OpenOptions>,
    ) -> Result<OpenedSession, Error> {
        self.0.open(id.clone(), start.into(), NewOrStoredConversation::Named, OpenedBy::User).await
    }

    /// Opens a stored conversation, or returns its session if it is already open.
    ///
    /// However many callers open one id at the same time, the conversation is loaded once. If the conversation is being
    /// closed, the call waits until it is closed and then loads it again.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::ShutDown`](crate::ErrorKind::ShutDown), [`ErrorKind::NoRoom`](crate::ErrorKind::NoRoom),
    /// [`ErrorKind::OpenElsewhere`](crate::ErrorKind::OpenElsewhere) with the current owner,
    /// [`ErrorKind::SubAgent`](crate::ErrorKind::SubAgent) for a sub-agent that is not open while its call is at work or
    /// may be repeated, or an error of [`SessionBuilder::open`](crate::session::SessionBuilder::open).
    pub async fn open(
        &self,
        id: &ConversationId,
        start: impl Into<OpenOptions>,
    ) -> Result<OpenedSession, Error> {
        self.0.open(id.clone(), start.into(), NewOrStoredConversation::Stored, OpenedBy::User).await
    }

    /// Opens the conversation with this id if it exists, and creates it otherwise.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`open`](Self::open) and [`create_with_id`](Self::create_with_id). If several processes
    /// create the conversation at the same time, one succeeds. The other processes get
    /// [`ErrorKind::AlreadyExists`](crate::ErrorKind::AlreadyExists) and can try again.
    pub async fn open_or_create(
        &self,
        id: &ConversationId,
        start: impl Into<OpenOptions>,
    ) -> Result<OpenedSession, Error> {
        self.0.open(id.clone(), start.into(), NewOrStoredConversation::Either, OpenedBy::User).await
    }

    /// Ends the session with this id. The conversation stays in the store. Closing a conversation that is not open
    /// succeeds.
    ///
    /// A run in flight is interrupted, so its completed steps are kept. If a title is being generated, the close waits
    /// for it. All of this happens within the [close timeout](ManagerBuilder::close_timeout). If the conversation is
    /// being loaded, the close first waits for its session. If its opening still waits for a place, the close returns at
    /// once, and the session opens later.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsaved`](crate::ErrorKind::Unsaved): the session is closed, but some of its
    ///   changes are not saved.
    /// - [`ErrorKind::Deadline`](crate::ErrorKind::Deadline): the session is closed and saved, but aborted
    ///   tools are still running.
    pub async fn close(&self, id: &ConversationId) -> Result<(), Error> {
        self.0.close(id, AgentStopTurnPolicy::Keep).await
    }

    /// Ends the session with this id like [`close`](Manager::close), but cancels a run in flight.
    ///
    /// The conversation is then as it was before the cancelled turn.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`close`](Manager::close).
    pub async fn close_discarding(&self, id: &ConversationId) -> Result<(), Error> {
        self.0.close(id, AgentStopTurnPolicy::Discard).await
    }

    /// Ends the session of a conversation and deletes the conversation from the store, with those of its
    /// [sub-agents](crate::agent::SubAgent). Deleting a conversation that does not exist succeeds.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OpenElsewhere`](crate::ErrorKind::OpenElsewhere). Nothing is deleted.
    /// - [`ErrorKind::SubAgent`](crate::ErrorKind::SubAgent) for the conversation of a sub-agent whose call may be repeated,
    ///   because a repeated call would then do the task again. Nothing is deleted.
    /// - The error of the store. The session is closed nevertheless.
    pub async fn delete(&self, id: &ConversationId) -> Result<(), Error> {
        self.delete_if(id, ready(Ok(()))).await
    }

    /// Deletes a conversation, like [`delete`](Self::delete), if `check` succeeds. The check runs when no other operation
    /// works on the conversation any more, because that can take long.
    pub(crate) async fn delete_if(
        &self,
        id: &ConversationId,
        check: impl Future<Output = Result<(), Error>>,
    ) -> Result<(), Error> {
        let checked = async {
            check.await?;
            self.0.check_deletion(id).await
        };
        self.0.delete(id, checked).await
    }

    /// Sets the title of a conversation, whether or not it is open. `None` removes the title.
    ///
    /// Unless [titles](ManagerBuilder::titles) are off, a conversation without a title gets a generated title after its
    /// next turn.
    ///
    /// If the store supports owners, a conversation that is open elsewhere cannot be renamed. The memory store and the
    /// file store do not support owners. In these two stores, the title is set, and a session that is open elsewhere
    /// adopts the title when it next writes.
    ///
    /// The call returns when the title is stored. An open session shows the title at once. If an open session already
    /// has this title, the session does not write it again. So if the store has no owners and another manager has
    /// stored a different title, the different title remains in the store.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::OpenElsewhere`](crate::ErrorKind::OpenElsewhere).
    /// - [`ErrorKind::InvalidTitle`](crate::ErrorKind::InvalidTitle) if the title has more than 1,024 bytes.
    /// - [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), or another error of the store.
    /// - [`ErrorKind::ChangeUnsaved`](crate::ErrorKind::ChangeUnsaved) if a session that is open in this manager could
    ///   not store the title within the [close timeout](ManagerBuilder::close_timeout). The session keeps the title and
    ///   stores it later.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call no longer waits. If an open session already shows the title, the title is
    /// stored nevertheless.
    pub async fn rename(&self, id: &ConversationId, title: Option<&str>) -> Result<(), Error> {
        self.describe(id, TitleOrLabels::Title(title.map(Arc::from)), || ready(Ok(()))).await
    }

    /// Replaces the labels of a conversation, whether or not it is open, and those of its sub-agents. If the call fails
    /// after some of them, repeat it.
    ///
    /// The labels are stored like the title by [`rename`](Manager::rename), with the same exceptions. The call
    /// also waits for sub-agents that are being created, within the [close timeout](ManagerBuilder::close_timeout).
    ///
    /// # Errors
    ///
    /// Returns the errors of [`rename`](Manager::rename), except the error for a long title, and
    /// [`ErrorKind::SubAgent`](crate::ErrorKind::SubAgent) for the conversation of a sub-agent, whose labels are those of
    /// its root.
    ///
    /// # Cancel safety
    ///
    /// As for [`rename`](Manager::rename).
    pub async fn set_labels(&self, id: &ConversationId, labels: Labels) -> Result<(), Error> {
        self.describe(id, TitleOrLabels::Labels(labels), || ready(Ok(()))).await
    }

    /// Sets the title or the labels of a conversation, like [`rename`](Self::rename). Before each attempt, `check` decides
    /// whether the change is still permitted, because another operation on the conversation can take long.
    pub(crate) async fn describe<F: Future<Output = Result<(), Error>>>(
        &self,
        id: &ConversationId,
        change: TitleOrLabels,
        check: impl Fn() -> F,
    ) -> Result<(), Error> {
        if let TitleOrLabels::Title(title) = &change {
            check_title(title.as_deref())?;
        }
        self.0.describe(id, change, check).await
    }

    /// Returns the session with this id, if it is open.
    pub fn get(&self, id: &ConversationId) -> Option<Session> {
        self.0.registry().get(id)
    }

    /// Returns the labels that decide who may use a conversation, whether it is open or not: its own or, for a sub-agent,
    /// those of its root and its places.
    #[cfg(any(feature = "acp", feature = "mcp-server", feature = "web"))]
    pub(crate) async fn labels_of(&self, id: &ConversationId) -> Result<Labels, Error> {
        let own = self.0.own_labels(id).await?;
        let Some(root) = own.get(Labels::PARENT).and_then(|_| own.get(Labels::ROOT)) else { return Ok(own) };
        match self.0.root_labels(root).await? {
            Some(of_root) => of_root.of_sub_agent(own.iter()),
            None => Err(StoreError::NotFound { id: id.clone() }.into()),
        }
    }

    /// Returns whether the store keeps labels.
    #[cfg(any(feature = "acp", feature = "mcp-server", feature = "web"))]
    pub(crate) fn keeps_labels(&self) -> bool {
        self.0.store.traits().labels
    }

    /// Returns the registry of models.
    #[cfg(feature = "acp")]
    pub(crate) fn registry_of_models(&self) -> &Registry {
        &self.0.registry_of_models
    }

    /// Returns whether the shutdown or hand-over has begun.
    #[cfg(feature = "web")]
    pub(crate) fn is_shut(&self) -> bool {
        self.0.shutting.is_cancelled()
    }

    /// Returns the store, for reads that need no session.
    #[cfg(feature = "web")]
    pub(crate) fn store(&self) -> &dyn Store {
        &*self.0.store
    }

    /// Returns conversations from the store, with the most recently written first. Each entry states whether the
    /// conversation is open.
    ///
    /// The argument is a [`Page`], a [`Filter`] by labels, or a pair of a filter and a page. A
    /// conversation must match the filter with its stored labels and, if it is open, with those of its session, which may
    /// not be stored yet. To leave out [sub-agents](crate::agent::SubAgent), use `Filter::default().without("omni.parent")`.
    ///
    /// ```
    /// # #[cfg(feature = "test-util")]
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # use omni_agent::{agent::Agent, testing::ScriptedProvider};
    /// # let agent = || Agent::builder().model(ScriptedProvider::new([]).model());
    /// use omni_agent::{
    ///     manager::{Manager, OpenOptions},
    ///     store::{Filter, Labels, MemoryStore},
    /// };
    ///
    /// let manager = Manager::builder(MemoryStore::new()).build();
    /// let acme = Labels::new([("tenant", "acme")])?;
    /// let id = omni_agent::store::ConversationId::new("holiday")?;
    /// manager.open_or_create(&id, OpenOptions::new(agent()).labels(acme.clone())).await?;
    ///
    /// let listed = manager.list(Filter::with(acme)).await?;
    /// assert_eq!(listed[0].summary.id.as_str(), "holiday");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the store, such as [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if
    /// there is a filter and the store does not support labels.
    pub async fn list(&self, listing: impl Into<Listing>) -> Result<Vec<Listed>, Error> {
        let mut listing = self.0.checked(listing)?;
        let (limit, mut listed) = (listing.page.limit, Vec::new());
        loop {
            let stored = self.0.store.list(&listing).await?;
            let last = stored.last().filter(|_| stored.len() >= listing.page.limit).map(Position::from);
            {
                let registry = self.0.registry();
                let entries = stored.into_iter().map(|summary| self.listed(&registry, summary));
                listed.extend(entries.filter(|entry| listing.filter.matches(&entry.summary.labels)));
            }
            match last {
                // The page lacks the conversations whose labels have changed, so read more.
                Some(last) if listed.len() < limit && listing.page.after.as_ref() != Some(&last) => {
                    listing.page = Page::first(limit - listed.len()).after(last);
                }
                _ => return Ok(listed),
            }
        }
    }

    /// Returns the entry of one conversation in [`list`](Self::list), whether the conversation is open or not. Does not
    /// open it.
    ///
    /// A conversation of [`create`](Self::create) has no entry before its first turn is stored.
    ///
    /// # Errors
    ///
    /// Fails with [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) if the store has no such conversation, or with another
    /// error of the store.
    pub async fn summary(&self, id: &ConversationId) -> Result<Listed, Error> {
        let stored = self.0.store.summary(id).await?;
        Ok(self.listed(&self.0.registry(), stored))
    }

    /// Finds stored conversations by the words in their titles and texts, as described at
    /// [`Store::search`].
    ///
    /// The labels of open sessions count as in [`list`](Self::list). A page may contain fewer hits than its limit,
    /// because the conversations whose labels have changed are left out.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, such as [`ErrorKind::InvalidQuery`](crate::ErrorKind::InvalidQuery) if
    /// the query can't be understood, or [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    /// store does not support searches, or if there is a filter and the store does not support labels.
    pub async fn search(&self, query: &str, listing: impl Into<Listing>) -> Result<Found, Error> {
        let listing = self.0.checked(listing)?;
        let mut found = self.0.store.search(&query.parse()?, &listing).await?;
        let registry = self.0.registry();
        for hit in &mut found.hits {
            registry.correct(&mut hit.conversation);
        }
        drop(registry);
        found.hits.retain(|hit| listing.filter.matches(&hit.conversation.labels));
        Ok(found)
    }

    /// Returns the usage of all matching conversations in a period, deleted conversations included, as described at
    /// [`Store::used`].
    ///
    /// # Errors
    ///
    /// Returns the error of the store, such as [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if
    /// the store keeps no usage ledger, or if there is a filter and the store does not support labels.
    pub async fn used(&self, filter: &Filter, period: Range<Timestamp>) -> Result<Vec<UsageSum>, Error> {
        let listing = self.0.checked(filter.clone())?;
        Ok(self.0.store.used(&listing.filter, period).await?)
    }

    fn listed(&self, registry: &SessionRegistry, mut summary: Summary) -> Listed {
        let is_another = |owner: &Owner| owner.name != self.0.owner.name;
        let presence = match registry.correct(&mut summary) {
            Some(activity) => Presence::Open(activity),
            None if registry.is_waiting(&summary.id) => Presence::Waiting,
            None if summary.owner.as_ref().is_some_and(is_another) => Presence::Elsewhere,
            None => Presence::Stored,
        };
        Listed { summary, presence }
    }

    /// Returns the open sessions, in the order in which they were opened.
    pub fn list_open(&self) -> Vec<OpenSession> {
        self.0.registry().snapshot().open
    }

    /// Returns a subscription to this manager. The subscription starts with a snapshot, and the events continue from
    /// the snapshot without a gap or overlap. It keeps neither the manager nor its sessions alive.
    pub fn subscribe(&self) -> Subscription<ManagerSnapshot, ManagerEvent> {
        let attachment = self.0.registry().attach(None, self.0.feed_limits);
        Subscription::new(Box::new(WeakManager(Arc::downgrade(&self.0))), attachment)
    }

    /// Resumes a subscription after the last event that the reader has seen. See
    /// [`Agent::resume_from`](crate::agent::Agent::resume_from).
    pub fn resume_from(&self, last: EventId) -> Subscription<ManagerSnapshot, ManagerEvent> {
        let attachment = self.0.registry().attach(Some(last), self.0.feed_limits);
        Subscription::resumed(Box::new(WeakManager(Arc::downgrade(&self.0))), last, attachment)
    }
}

/// A handle that does not keep the manager alive.
struct WeakManager(Weak<ManagerShared>);

/// A future that returns the point in the stream of events at which a subscription begins.
type ManagerSubscriptionFuture = Pin<
    Box<
        dyn Future<Output = Result<SubscriptionStart<ManagerSnapshot, ManagerEvent>, End<ManagerSnapshot>>>
            + Send,
    >,
>;

impl SubscriptionSource<ManagerSnapshot, ManagerEvent> for WeakManager {
    fn attach(&self, after: Option<EventId>) -> ManagerSubscriptionFuture {
        let attached = match self.0.upgrade() {
            None => Err(End { reason: EndReason::HandlesDropped, snapshot: None }),
            Some(inner) => {
                let mut registry = inner.registry();
                match registry.end.clone() {
                    Some(end) => Err(end),
                    None => Ok(registry.attach(after, inner.feed_limits)),
                }
            }
        };
        Box::pin(std::future::ready(attached))
    }
}

crate::debug::impl_debug!(Manager(self) { open: self.list_open().len(), .. });

//! The manager: many sessions by id.
//!
//! [`Manager`] is one handle for all conversations of an application. It opens each at most once, however many ask for
//! it; tells what is open and what it does; gives titles; keeps within limits; and ends all of them in order. Sessions
//! outlive those who opened them, and go when nobody wants them any more. The [guide](crate::guides::many_conversations) follows a web service through its life
//! with one.
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
//! manager.shutdown(Duration::from_secs(5), Duration::from_secs(5)).await?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod closing;
mod error;
mod event;
mod limits;
mod opening;
mod registry;
mod room;
mod start;
mod titles;
mod watching;

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

pub use error::{ManagerError, ShutdownError};
pub use event::{Activity, Listed, ManagerEvent, ManagerSnapshot, OpenSession, Presence};
use limits::Limits;
use opening::Beginning;
use registry::Registry as Sessions;
pub use start::{OpenOptions, OpenedSession};
pub use titles::{TitleGenerator, Titles};
use tokio_util::sync::CancellationToken;

use crate::{
    agent::InFlight,
    provider::Registry,
    session::Session,
    store::{ConversationId, IntoStore, Owner, Page, Store},
    subscription::{Attachment, End, EndReason, EventId, FeedLimits, Source, Subscription},
};

/// Many sessions by id. Cheap to clone; several managers are independent of each other.
///
/// When the last handle is dropped, sessions go on for as long as somebody else has a handle or a controller.
///
/// # Cancel safety
///
/// What an operation has begun goes on when its future is dropped, but for an opening that still waits for room: that is
/// given up; and for what [hangs](ManagerBuilder::close_timeout).
#[derive(Clone)]
pub struct Manager(Arc<Inner>);

/// What the handles share.
struct Inner {
    store: Arc<dyn Store>,
    owner: Owner,
    registry_of_models: Registry,
    idle_shutdown: Option<Duration>,
    close_timeout: Duration,
    room_timeout: Option<Duration>,
    titles: Titles,
    limits: Limits,
    feed_limits: FeedLimits,
    sessions: Mutex<Sessions>,
    shutting: CancellationToken,
}

impl Inner {
    fn registry(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is open, and what happens from then on.
pub type ManagerSubscription = Subscription<ManagerSnapshot, ManagerEvent>;

/// Builds a [`Manager`].
#[derive(Debug)]
#[must_use = "a builder does nothing before `build`"]
pub struct ManagerBuilder {
    store: Debugless,
    owner: Option<Owner>,
    registry: Option<Registry>,
    idle_shutdown: Option<Duration>,
    close_timeout: Duration,
    room_timeout: Option<Duration>,
    titles: Titles,
    max_open: Option<usize>,
    max_turns: Option<usize>,
    max_turns_per_tenant: Option<usize>,
    feed_limits: FeedLimits,
}

/// A store, which has nothing to show.
struct Debugless(Arc<dyn Store>);

impl fmt::Debug for Debugless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Store")
    }
}

impl ManagerBuilder {
    /// Where model names are looked up; [`Registry::default`] if unset.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Who opens conversations, for other processes on the same store to see, where the store knows owners: the name of
    /// this process, and an address at which it is to be reached, in the application's own terms. It must be this
    /// manager's alone. One that keeps its name over a restart takes its conversations up again at once; another has to
    /// wait until they are given back, or their ownership runs out. [One of its own](Owner::unique) if unset.
    pub fn owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// How long a session stays open while it is idle and has no controller, from its start on; `None` is for ever. Five minutes
    /// if unset.
    pub fn idle_shutdown(mut self, after: Option<Duration>) -> Self {
        self.idle_shutdown = after;
        self
    }

    /// How long closing one session may take, saving included, whatever ends it; and how long [`Manager::rename`] waits for an
    /// open session to store its title. 30 seconds if unset. What hangs in a store
    /// or an `init` twice as long after the last caller has gone away is given up.
    pub fn close_timeout(mut self, limit: Duration) -> Self {
        self.close_timeout = limit;
        self
    }

    /// How untitled conversations get their titles. [`Titles::Heuristic`] if unset. A session stays open while a title is
    /// made for it. Closing it waits for the title within its deadline.
    pub fn titles(mut self, titles: Titles) -> Self {
        self.titles = titles;
        self
    }

    /// How many sessions may be open at once, at least one. Beyond that, each further opening closes the idle session without
    /// controllers that was used least recently. Several openings close several sessions at the same time. Openings that
    /// find no such session wait, in order.
    ///
    /// A session whose tool opens another one keeps its own place meanwhile. If all places are held like that, none comes free:
    /// see [`room_timeout`](Self::room_timeout). Set the limit above the number of sessions that tools keep waiting.
    pub fn max_open(mut self, limit: usize) -> Self {
        self.max_open = Some(limit);
        self
    }

    /// How long an opening waits for room behind sessions whose tools or callbacks run. These may wait for the opening
    /// themselves, and would wait for ever. After this time the opening fails with [`ManagerError::NoRoom`], which names them.
    /// If no such session has a place, the opening waits on. One minute if unset; `None` waits without a limit. A tool learns of the
    /// error only if its [own time limit](crate::tool::ToolLimits::timeout) is longer.
    pub fn room_timeout(mut self, limit: Option<Duration>) -> Self {
        self.room_timeout = limit;
        self
    }

    /// How many sessions may have a request to their model in flight at once, at least one. The requests of further sessions
    /// wait, in order. A run that is paused, or whose tools or callbacks run, does not count until its next request. So a
    /// tool may ask another session under any limit.
    pub fn max_turns(mut self, limit: usize) -> Self {
        self.max_turns = Some(limit);
        self
    }

    /// How many sessions of one [tenant](OpenOptions::tenant) may have a request in flight at once, at least one. Counted as
    /// for [`max_turns`](Self::max_turns).
    pub fn max_turns_per_tenant(mut self, limit: usize) -> Self {
        self.max_turns_per_tenant = Some(limit);
        self
    }

    /// What is kept for subscribers of the manager.
    pub fn feed_limits(mut self, limits: FeedLimits) -> Self {
        self.feed_limits = limits;
        self
    }

    /// The manager, with nothing open.
    pub fn build(self) -> Manager {
        Manager(Arc::new(Inner {
            store: self.store.0,
            owner: self.owner.unwrap_or_else(Owner::unique),
            registry_of_models: self.registry.unwrap_or_default(),
            idle_shutdown: self.idle_shutdown,
            close_timeout: self.close_timeout,
            room_timeout: self.room_timeout,
            titles: self.titles,
            limits: Limits::new(self.max_turns, self.max_turns_per_tenant),
            feed_limits: self.feed_limits,
            sessions: Mutex::new(Sessions::new(self.max_open.unwrap_or(usize::MAX).max(1))),
            shutting: CancellationToken::new(),
        }))
    }
}

impl Manager {
    /// Begins to build a manager whose conversations are kept in `store`.
    pub fn builder(store: impl IntoStore) -> ManagerBuilder {
        ManagerBuilder {
            store: Debugless(store.into_store()),
            owner: None,
            registry: None,
            idle_shutdown: Some(Duration::from_mins(5)),
            close_timeout: Duration::from_secs(30),
            room_timeout: Some(Duration::from_mins(1)),
            titles: Titles::default(),
            max_open: None,
            max_turns: None,
            max_turns_per_tenant: None,
            feed_limits: FeedLimits::default(),
        }
    }

    /// Starts a new conversation under an id of its own.
    ///
    /// # Errors
    ///
    /// [`ManagerError::ShutDown`], [`ManagerError::NoRoom`]. [`ManagerError::CutOff`] if a store or a callback panicked.
    /// [`ManagerError::Session`] with the errors of [`SessionBuilder::create`](crate::session::SessionBuilder::create).
    pub async fn create(&self, start: impl Into<OpenOptions>) -> Result<OpenedSession, ManagerError> {
        self.0.open(ConversationId::generate(), start.into(), Beginning::Generated).await
    }

    /// Starts a new conversation under this id.
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create); [`ManagerError::AlreadyExists`], or the store's
    /// [`AlreadyExists`](crate::store::StoreError::AlreadyExists), if the id is taken.
    pub async fn create_with_id(
        &self,
        id: &ConversationId,
        start: impl Into<OpenOptions>,
    ) -> Result<OpenedSession, ManagerError> {
        self.0.open(id.clone(), start.into(), Beginning::Named).await
    }

    /// Opens a stored conversation, or gives the session that runs already. However many open one id at the same time, it
    /// is loaded once. One that is being closed is waited for, and loaded afresh.
    ///
    /// # Errors
    ///
    /// [`ManagerError::ShutDown`], [`ManagerError::NoRoom`]. [`ManagerError::OpenElsewhere`] names the owner.
    /// [`ManagerError::CutOff`] if a store or a callback panicked. [`ManagerError::Session`] with the errors of
    /// [`SessionBuilder::open`](crate::session::SessionBuilder::open). If the conversation does not exist,
    /// [`is_not_found`](ManagerError::is_not_found) returns `true`.
    pub async fn open(
        &self,
        id: &ConversationId,
        start: impl Into<OpenOptions>,
    ) -> Result<OpenedSession, ManagerError> {
        self.0.open(id.clone(), start.into(), Beginning::Stored).await
    }

    /// Opens the conversation with this id if there is one, and starts one under it if there is none.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open) and [`create_with_id`](Self::create_with_id); of several processes that do so at once, those that are
    /// late get [`AlreadyExists`](crate::store::StoreError::AlreadyExists), and may try again.
    pub async fn open_or_create(
        &self,
        id: &ConversationId,
        start: impl Into<OpenOptions>,
    ) -> Result<OpenedSession, ManagerError> {
        self.0.open(id.clone(), start.into(), Beginning::Either).await
    }

    /// Ends the session with this id. The conversation stays in the store. Closing a conversation that is not open succeeds.
    ///
    /// A run in flight is interrupted, so that its completed steps are kept. If a title is being made, closing waits for it.
    /// All of this happens within the [close timeout](ManagerBuilder::close_timeout).
    ///
    /// # Errors
    ///
    /// [`SessionError::Unsaved`](crate::session::SessionError::Unsaved): it is closed, but not all of it is saved.
    /// [`AgentError::Deadline`](crate::agent::AgentError::Deadline): it is closed and saved, but aborted tools still run.
    pub async fn close(&self, id: &ConversationId) -> Result<(), ManagerError> {
        self.0.close(id, InFlight::Keep).await
    }

    /// Ends the session with this id as [`close`](Manager::close) does, but cancels a run in flight: the conversation stays
    /// as it was before the turn.
    ///
    /// # Errors
    ///
    /// As [`close`](Manager::close).
    pub async fn close_discarding(&self, id: &ConversationId) -> Result<(), ManagerError> {
        self.0.close(id, InFlight::Discard).await
    }

    /// Removes a conversation from the store, and ends its session first. That there is none is no error.
    ///
    /// # Errors
    ///
    /// [`ManagerError::OpenElsewhere`], and nothing is removed; what the store fails with; the session is closed all the
    /// same.
    pub async fn delete(&self, id: &ConversationId) -> Result<(), ManagerError> {
        self.0.delete(id).await
    }

    /// Gives a conversation another title, or none, whether it is open or not. An untitled conversation gets a title by
    /// itself after its next turn.
    ///
    /// If the store knows owners, a conversation that is open elsewhere is not renamed. If it does not, as memory and files, the
    /// session that is open elsewhere takes the title over with its next write.
    ///
    /// Returns when the title is stored. An open session shows it at once. A session that is open here does not write the title
    /// that it has already. So if another manager on a store without owners has stored another title meanwhile, that one stays.
    ///
    /// # Errors
    ///
    /// [`ManagerError::OpenElsewhere`]; [`StoreError::NotFound`](crate::store::StoreError::NotFound), or what the store
    /// fails with. [`ManagerError::TitleUnsaved`] if a session that is open here could not store the title within the
    /// [close timeout](ManagerBuilder::close_timeout). The session keeps the title and stores it later.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting. A title that an open session already shows is stored later.
    pub async fn rename(&self, id: &ConversationId, title: Option<&str>) -> Result<(), ManagerError> {
        self.0.rename(id, title).await
    }

    /// The session with this id, if it is open.
    pub fn get(&self, id: &ConversationId) -> Option<Session> {
        self.0.registry().get(id)
    }

    /// Conversations of the store by their last write, newest first, and whether they are open.
    ///
    /// # Errors
    ///
    /// What the store fails with.
    pub async fn list(&self, page: Page) -> Result<Vec<Listed>, ManagerError> {
        let stored = self.0.store.list(page).await?;
        let is_another = |owner: &Owner| owner.name != self.0.owner.name;
        let registry = self.0.registry();
        let listed = stored.into_iter().map(|mut summary| {
            let presence = match registry.open_session(&summary.id) {
                Some(open) => {
                    summary.title = open.title.as_deref().map(str::to_owned);
                    Presence::Open(open.activity)
                }
                None if registry.is_waiting(&summary.id) => Presence::Waiting,
                None if summary.owner.as_ref().is_some_and(is_another) => Presence::Elsewhere,
                None => Presence::Stored,
            };
            Listed { summary, presence }
        });
        Ok(listed.collect())
    }

    /// The sessions that are open, in the order in which they were opened.
    pub fn list_open(&self) -> Vec<OpenSession> {
        self.0.registry().snapshot().open
    }

    /// What is open now and what happens from now on, with no gap and no overlap. Keeps nothing alive.
    pub fn subscribe(&self) -> ManagerSubscription {
        let attachment = self.0.registry().attach(None, self.0.feed_limits);
        Subscription::new(Box::new(WeakManager(Arc::downgrade(&self.0))), attachment)
    }

    /// Resumes a subscription after the last event that was seen; see
    /// [`Agent::resume_from`](crate::agent::Agent::resume_from).
    pub fn resume_from(&self, last: EventId) -> ManagerSubscription {
        let attachment = self.0.registry().attach(Some(last), self.0.feed_limits);
        Subscription::resumed(Box::new(WeakManager(Arc::downgrade(&self.0))), last, attachment)
    }

    /// Ends everything in order. From now on nothing is opened and no prompt is taken; runs that are on have `grace` to come
    /// to their end, and are interrupted then. After that each session has up to `deadline` to get the title that is being
    /// made for it and to save what it has. Doing so twice is fine.
    ///
    /// # Errors
    ///
    /// [`ShutdownError`] names the sessions of which not everything is saved, or whose aborted tools still run. All are
    /// closed in any case.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves sessions open, which take no prompts any more; shut down again.
    pub async fn shutdown(&self, grace: Duration, deadline: Duration) -> Result<(), ShutdownError> {
        let inner = &self.0;
        inner.registry().is_shut = true;
        inner.shutting.cancel();
        let begun = tokio::time::Instant::now();
        let mut failed = Vec::new();
        loop {
            let (sessions, claims) = {
                let registry = inner.registry();
                (registry.sessions(), registry.claims())
            };
            sessions.iter().for_each(Session::drain);
            if sessions.is_empty() && claims.is_empty() {
                break;
            }
            failed.extend(inner.end_all(sessions, begun, grace, deadline).await);
            // What is being opened or closed right now comes to its end too, unless the store keeps it for too long.
            let left = grace.saturating_add(deadline).saturating_sub(begun.elapsed());
            let claims = async {
                for claim in &claims {
                    claim.cancelled().await;
                }
            };
            if tokio::time::timeout(left, claims).await.is_err() && inner.registry().sessions().is_empty() {
                break;
            }
            tokio::task::yield_now().await;
        }
        inner.registry().finish();
        if failed.is_empty() { Ok(()) } else { Err(ShutdownError { sessions: failed }) }
    }
}

/// A manager that is not kept alive.
struct WeakManager(Weak<Inner>);

/// A place in the stream of events, being asked for.
type Attaching = Pin<
    Box<dyn Future<Output = Result<Attachment<ManagerSnapshot, ManagerEvent>, End<ManagerSnapshot>>> + Send>,
>;

impl Source<ManagerSnapshot, ManagerEvent> for WeakManager {
    fn attach(&self, after: Option<EventId>) -> Attaching {
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

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager").field("open", &self.list_open().len()).finish_non_exhaustive()
    }
}

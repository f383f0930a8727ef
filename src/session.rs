//! Sessions: agents whose conversations are stored and can branch.
//!
//! A [`Session`] is an [agent](crate::agent) with an id, a [tree](crate::tree) of messages and a [store](crate::store).
//! [`Session::builder`] starts a new conversation or opens a stored one. Because the messages form a tree, the session
//! can respond to a user message again ([`Session::again`]), replace it ([`RunRequest::instead_of`]) or continue the
//! conversation differently from an earlier message ([`RunRequest::below`]). The earlier messages remain in the tree,
//! and [`Session::navigate`] returns to them.
//!
//! The main types:
//!
//! - [`Session`] is a handle that is cheap to clone. It has all operations of an agent and the operations on the tree.
//! - [`SessionBuilder`] sets the store, the agent and the settings.
//! - [`SessionSubscription`] yields a [`SessionSnapshot`] and the [`SessionEvent`]s that follow it. Its [`Mode`] states
//!   whether the subscriber is a controller, which keeps the session open, or an observer, which does not.
//! - [`Error`] is the error type of all operations.
//!
//! Each session has a task, which owns the tree and the agent. The task adds every committed turn to the tree and saves
//! the turn in the background. If the store is slow, only the event [`SessionEvent::Store`] is delayed, which reports
//! that a turn is saved. A session ends when it is [stopped](Session::stop), when both its last handle and its last
//! controller are dropped, or by its [idle shutdown](SessionBuilder::idle_shutdown).
//!
//! ```
//! # #[cfg(feature = "test-util")]
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use std::{sync::Arc, time::Duration};
//! use omni_agent::agent::Agent;
//! use omni_agent::session::Session;
//! use omni_agent::store::MemoryStore;
//! use omni_agent::testing::{ScriptedProvider, Step};
//!
//! let store = Arc::new(MemoryStore::new());
//! let provider = ScriptedProvider::new([
//!     Step::text("Everest, K2, Lhotse."),
//!     Step::text("Fuji, Etna, Teide."),
//! ]);
//! let agent = || Agent::builder().model(provider.model());
//!
//! let session = Session::builder(Arc::clone(&store)).agent(agent()).create().await?;
//! session.ask("Name three mountains.").await?;
//! let id = session.id().clone();
//! session.stop(Duration::from_secs(5)).await?;
//!
//! // Later, perhaps in another process:
//! let session = Session::builder(store).agent(agent()).open(id).await?;
//! let question = session.tree().await?.roots().next().unwrap().id();
//! session.again(question).response().await?;
//! assert_eq!(session.tree().await?.to_string(), "\
//! * 1 user: Name three mountains.
//!   ├─ 2 assistant: Everest, K2, Lhotse.
//! > └─ 3 assistant: Fuji, Etna, Teide.");
//! # Ok::<(), omni_agent::Error>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod command;
mod core;
mod error;
mod event;
mod forwarded;
mod life;
mod loading;
mod outcome;
mod perform;
mod run_guard;
mod shared;
mod snapshot;
mod starting;
mod subscription;
mod tail;
mod task;
mod tenure;
#[cfg(all(test, feature = "test-util"))]
pub(crate) mod tests;
mod watcher;

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
pub use builder::SessionBuilder;
use command::{SessionReplyTx, SessionTaskCommand, StartedRun, StopSessionCommand};
use error::of_agent;

pub(crate) use core::check_end;
pub(crate) use error::{check_title, damaged_turn};
pub use event::{SavedPart, SessionEvent, StoreReport};
pub(crate) use loading::closed;
pub use outcome::PromptOutcome;
pub use perform::{SessionAnswer, SessionCommand};
pub use run_guard::RunGuard;
pub(crate) use shared::FixedSessionSettings;
use shared::SessionShared;
pub use snapshot::SessionSnapshot;
use subscription::ControllerHold;
pub use subscription::{Guard, Mode, SessionSubscription};
pub(crate) use tenure::ConversationLease;
use tokio::{sync::mpsc, time::Instant};
pub(crate) use watcher::{SessionNotice, SessionWatcher};

use crate::{
    actor,
    agent::{
        Agent, AgentStopTurnPolicy, Durable, ExistingOrNewRun, FollowTarget, RunRequest, RunStarter, Running,
        Snapshot, Status,
    },
    message::{History, UsageRow},
    run::{Accepted, Error, ErrorKind, Prompt, Response, RunAt, RunSpec},
    store::{ConversationId, IntoStore, Labels, StoreError},
    subscription::{End, EndReason, EventId, Subscription, SubscriptionSource, SubscriptionStart},
    telemetry::CallerSpan,
    tree::{NodeId, Tree},
};

/// A handle to a session. Cheap to clone.
///
/// The session answers operations at all times, whatever the agent and the store are doing. After the session has
/// ended, operations return [`ErrorKind::Ended`].
///
/// ```
/// # #[cfg(feature = "test-util")]
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # use omni_agent::testing::{ScriptedProvider, Step};
/// # let provider = ScriptedProvider::new([Step::text("Nile, Rhine, Seine."), Step::text("The Nile.")]);
/// # let model = provider.model();
/// use omni_agent::{agent::Agent, session::Session, store::MemoryStore};
///
/// let agent = Agent::builder().model(model);
/// let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
/// session.ask("Name three rivers.").await?;
/// session.set_title(Some("Rivers")).await?;
///
/// let response = session.ask("Which is the longest?").await?;
/// assert_eq!(response.text(), "The Nile.");
/// assert_eq!(session.snapshot().await?.messages().count(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancel safety
///
/// If the future of an operation is dropped, the operation is not undone. It may still be performed, and its result is
/// then discarded. Nothing else is lost.
#[derive(Clone)]
pub struct Session {
    commands: mpsc::Sender<Box<SessionTaskCommand>>,
    shared: Arc<SessionShared>,
}

/// A handle that does not keep the session alive.
///
/// The agent's callbacks and tools find a `WeakSession` and the [`ConversationId`] in their
/// [extensions](crate::tool::Extensions).
#[derive(Clone)]
pub struct WeakSession {
    commands: mpsc::WeakSender<Box<SessionTaskCommand>>,
    shared: Arc<SessionShared>,
}

impl Session {
    /// Returns a builder for a session whose conversation is stored in `store`.
    pub fn builder(store: impl IntoStore) -> SessionBuilder {
        SessionBuilder::new(store.into_store())
    }

    /// Returns the conversation's id.
    pub fn id(&self) -> &ConversationId {
        &self.shared.id
    }

    /// Describes a run with this prompt. The run starts at the end of the path, unless the request names another place.
    /// [`RunRequest::start`] starts it.
    pub fn run(&self, prompt: impl Into<Prompt>) -> RunRequest {
        RunRequest::new(self.clone(), RunSpec::new(RunAt::Head, prompt))
    }

    /// Describes a run that responds to a user message again. The new response becomes a sibling of the existing
    /// responses. A prompt whose run has failed is sent again in this way, with its files.
    ///
    /// Each setting of the request replaces the same setting of the original prompt. The session remembers the settings
    /// of the prompts that it has accepted, except API keys and headers. The remembered settings are not stored. After
    /// the conversation is opened again, the agent's settings apply instead.
    pub fn again(&self, user: NodeId) -> RunRequest {
        RunRequest::new(self.clone(), RunSpec::new(RunAt::Again(user), Prompt::default()))
    }

    /// Starts a run at another place than the end of the path.
    async fn begin(&self, spec: RunSpec) -> Result<StartedRun, Error> {
        let caller = CallerSpan::current();
        self.call(|reply| SessionTaskCommand::Begin(spec, caller, reply)).await?
    }

    /// Moves the path so that it passes through `node`. Below `node`, the path follows the children that were last
    /// active, down to a leaf, or to the node above an [unanswered prompt](Tree::unanswered).
    ///
    /// If `node` is `None`, the path becomes empty, so that the next prompt starts a new root. The session must be
    /// idle. If the path already ends at the target, nothing happens.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Busy`], [`ErrorKind::UnknownNode`], or [`ErrorKind::Unanswered`] if the node is a prompt
    /// whose run has failed, or whose answer was erased.
    pub async fn navigate(&self, node: impl Into<Option<NodeId>>) -> Result<(), Error> {
        let node = node.into();
        self.call(|reply| SessionTaskCommand::Navigate(node, reply)).await?
    }

    /// Returns a copy of the tree in constant time. The copy shares its data with the session.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn tree(&self) -> Result<Tree, Error> {
        self.call(SessionTaskCommand::Tree).await
    }

    /// Sets the title of the conversation. `None` removes the title.
    ///
    /// When the title is saved, it appears in the lists of conversations that the store returns. To wait until it is
    /// saved, call [`flush`](Self::flush). The title replaces a title that another process has stored in the meantime,
    /// with one exception: if this title was already set here, nothing is written, so the title of the other process
    /// remains.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`], or [`ErrorKind::InvalidTitle`] if the title has more than 1,024 bytes.
    pub async fn set_title(&self, title: Option<&str>) -> Result<(), Error> {
        check_title(title)?;
        let title = title.map(Arc::from);
        self.call(|reply| SessionTaskCommand::SetTitle(title, reply)).await
    }

    /// Returns the labels of the conversation.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn labels(&self) -> Result<Labels, Error> {
        self.call(SessionTaskCommand::Labels).await
    }

    /// Replaces the labels of the conversation.
    ///
    /// The labels of sub-agents are not changed: see [`Manager::set_labels`](crate::Manager::set_labels). The labels are
    /// stored like a [title](Self::set_title). Labels that another process has stored in the meantime
    /// are replaced, unless the session already has these labels.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended, or [`ErrorKind::SubAgent`] if the conversation is that of a
    /// sub-agent, whose labels are those of its root.
    pub async fn set_labels(&self, labels: Labels) -> Result<(), Error> {
        if self.labels().await?.get(Labels::PARENT).is_some() {
            return Err(Error::labels_of_a_sub_agent(self.id()));
        }
        self.relabel(labels).await
    }

    /// Replaces the labels, also those of a sub-agent.
    pub(crate) async fn relabel(&self, labels: Labels) -> Result<(), Error> {
        self.call(|reply| SessionTaskCommand::SetLabels(labels, reply)).await
    }

    /// Stores the conversation, if the store does not have it. Otherwise, it is stored with its first turn. Returns when
    /// the store has it.
    pub(crate) async fn store(&self) -> Result<(), Error> {
        self.call(SessionTaskCommand::Store).await
    }

    /// Erases a message and all messages below it: from the tree, from the agent's history, from the events that are
    /// kept in memory for subscribers, and from the store.
    ///
    /// If the path contains the message, the path then ends at the nearest assistant message above it that uses no
    /// tools, or is empty. The ids of erased messages are not used again. A title that was made from the messages is
    /// removed too. In a manager, the sub-agents of erased tool uses are deleted. If this fails, repeat the call, which then
    /// returns [`ErrorKind::UnknownNode`]. The usage ledger keeps its rows, without content.
    /// [`Tree::erase`](crate::tree::Tree::erase) has an example.
    ///
    /// The call first waits until everything is saved, and returns when the store has erased the messages. Each wait
    /// takes at most the [end timeout](SessionBuilder::end_timeout). The documentation of the store states what may
    /// remain on its medium. Snapshots and events that were already sent to subscribers are not affected.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsupported`] if the store can't erase messages.
    /// - [`ErrorKind::UnknownNode`].
    /// - [`ErrorKind::Busy`] if a run is active.
    /// - [`ErrorKind::Unsaved`] if the store did not save or erase in time. If the messages are no longer in the
    ///   tree, the store erases them later.
    /// - [`ErrorKind::OpenElsewhere`], or another error of the store, if a sub-agent was not deleted.
    /// - [`ErrorKind::Ended`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the messages may still be erased.
    pub async fn erase(&self, node: NodeId) -> Result<(), Error> {
        if !self.shared.erases {
            return Err(StoreError::unsupported("erasing messages").into());
        }
        let limit = self.shared.setup.end_timeout;
        self.flush(limit).await?;
        let erased = self.call(|reply| SessionTaskCommand::Erase(node, reply)).await?;
        if erased.as_ref().is_err_and(|error| error.kind() != ErrorKind::UnknownNode) {
            return erased;
        }
        self.flush(limit).await?;
        if let Some(watcher) = &self.shared.watcher {
            // An earlier call can have left sub-agents of the erased messages.
            Arc::clone(watcher).erased(self.clone()).await?;
        }
        erased
    }

    /// Records the usage of a request that belongs to no turn.
    pub(crate) async fn spent(&self, row: UsageRow) -> Result<(), Error> {
        self.call(|reply| SessionTaskCommand::Spent(row, reply)).await
    }

    /// Sets a title that was made from the messages, if the conversation has no title. Returns whether the title was set.
    ///
    /// `of` is the head of the tree from whose path the title was made. If this node was erased in the meantime, the title
    /// is not set, because it may quote an erased message. A title that a person has set in the meantime remains, even
    /// if another process stored it. A later [`erase`](Self::erase) removes the title.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`], or [`ErrorKind::InvalidTitle`] if the title has more than 1,024 bytes.
    pub async fn suggest_title(&self, title: &str, of: Option<NodeId>) -> Result<bool, Error> {
        check_title(Some(title))?;
        let title = Arc::from(title);
        self.call(|reply| SessionTaskCommand::SuggestTitle(title, of, reply)).await
    }

    /// Returns the title of the conversation.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn title(&self) -> Result<Option<Arc<str>>, Error> {
        self.call(SessionTaskCommand::Title).await
    }

    /// Returns the complete state of the session at this moment.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended. [`Session::end`] then returns the last snapshot.
    pub async fn snapshot(&self) -> Result<SessionSnapshot, Error> {
        self.call(SessionTaskCommand::Snapshot).await
    }

    /// Returns a subscription. It starts with a snapshot, and the events continue from the snapshot without a gap or
    /// overlap.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn subscribe(&self, mode: Mode) -> Result<SessionSubscription, Error> {
        self.subscribe_after(None, mode).await
    }

    /// Returns a subscription to the last messages of the path, for pages that load older messages later.
    ///
    /// The snapshot has up to `limit` messages of the path, but at least one.
    /// [`SessionSnapshot::from`] names the first of them if the path has older messages. All other nodes of the tree are
    /// [outlines](crate::tree::Node::is_outline). The events of new turns extend the tail. If the path moves in another
    /// way, or if a node is erased, the next update is a resync with a new tail.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn subscribe_tail(&self, mode: Mode, limit: usize) -> Result<SessionSubscription, Error> {
        Ok(self.subscribe(mode).await?.into_tail(limit))
    }

    /// Follows a run, from its start to its end. If the target is not known yet, the reader waits for it.
    /// If an earlier prompt with the same id was returned, use [`RunRequest::follow`] instead, which starts the run first. The reader is
    /// a [controller](Mode::Controller).
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn follow(&self, target: FollowTarget) -> Result<Running, Error> {
        RunStarter::follow(self, ExistingOrNewRun::Existing(target)).await
    }

    /// Resumes a subscription after the last event that the reader has seen.
    ///
    /// Missed events are replayed if they are still in memory. Otherwise, the first update is a resync.
    ///
    /// The reader may have seen the event in an earlier life of the session, even in another process. If it was the
    /// last event of that life, if everything was saved, and if nobody has written to the conversation since, the
    /// reader has missed nothing and needs no resync. There are two exceptions: the session of the earlier life could
    /// not notice its end, for example because its process was killed, or the conversation was opened again with
    /// settings that differ from the stored ones.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn resume_from(&self, last: EventId, mode: Mode) -> Result<SessionSubscription, Error> {
        self.subscribe_after(Some(last), mode).await
    }

    /// Resumes a subscription to the last messages of the path after the last event that the reader has seen: see
    /// [`subscribe_tail`](Self::subscribe_tail) and [`resume_from`](Self::resume_from).
    ///
    /// The place of the reader on the path is unknown. So the first event that changes the tree or the agent's state
    /// becomes a resync with a new tail.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn resume_tail(
        &self,
        last: EventId,
        mode: Mode,
        limit: usize,
    ) -> Result<SessionSubscription, Error> {
        Ok(self.resume_from(last, mode).await?.into_tail(limit))
    }

    async fn subscribe_after(
        &self,
        after: Option<EventId>,
        mode: Mode,
    ) -> Result<SessionSubscription, Error> {
        // The controller is counted before the snapshot is taken, so that the session does not end in between.
        let hold = (mode == Mode::Controller)
            .then(|| ControllerHold::new(Arc::clone(&self.shared), self.commands.clone()));
        let attachment = self.call(|reply| SessionTaskCommand::Subscribe(after, reply)).await?;
        let source = Box::new(self.downgrade());
        let events = match after {
            Some(seen) => Subscription::resumed(source, seen, attachment),
            None => Subscription::new(source, attachment),
        };
        Ok(SessionSubscription::new(events, Guard::new(self.downgrade(), hold)))
    }

    /// Waits until everything that is unsaved at the time of the call is in the store.
    ///
    /// A failed write is repeated at once. If it fails again, it is repeated after short waits, each at most an eighth
    /// of the time left. If a write has no result after a quarter of the time left, it is started again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsaved`] reports the data that was not saved by the deadline. Returns [`ErrorKind::Ended`]
    /// if the session ends first.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, only the wait ends.
    pub async fn flush(&self, deadline: Duration) -> Result<(), Error> {
        let until = Instant::now().checked_add(deadline);
        let flush = self.call(|reply| SessionTaskCommand::Flush(until, reply));
        if let Ok(flushed) = tokio::time::timeout(deadline, flush).await {
            return flushed;
        }
        match self.call(SessionTaskCommand::Unsaved).await? {
            None => Ok(()),
            Some(unsaved) => Err(unsaved.after(deadline)),
        }
    }

    /// Ends the session. This [interrupts](Session::interrupt) a run in flight, saves everything and closes all
    /// subscriptions.
    ///
    /// The completed steps of an interrupted run are committed. Subscribers get the final snapshot. Work that is not
    /// done by the deadline is aborted. A session ends in the same way when both its last handle and its last
    /// controller are dropped, but then a paused turn that is [recorded](SessionBuilder::durable) is not interrupted
    /// and stays in the store. If the session has already ended, `stop` returns the outcome of that end.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::Unsaved`] reports the data that was not saved. The session has ended nevertheless, and its
    ///   unsaved messages are in [`Session::end`].
    /// - [`ErrorKind::Deadline`] names aborted tools that are still running. Everything is saved nevertheless.
    /// - [`ErrorKind::Ended`] if the session's task was killed earlier. The session's last state is then unknown.
    pub async fn stop(&self, deadline: Duration) -> Result<(), Error> {
        self.end_within(deadline, AgentStopTurnPolicy::Keep).await
    }

    /// Ends the session like [`stop`](Session::stop), but [cancels](Session::cancel) a run in flight.
    ///
    /// The tree is then as it was before the cancelled turn. If several callers stop the session, the first call
    /// decides whether the run is interrupted or cancelled.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`stop`](Session::stop).
    pub async fn stop_discarding(&self, deadline: Duration) -> Result<(), Error> {
        self.end_within(deadline, AgentStopTurnPolicy::Discard).await
    }

    pub(crate) async fn end_within(
        &self,
        deadline: Duration,
        in_flight: AgentStopTurnPolicy,
    ) -> Result<(), Error> {
        let stop = |reply| SessionTaskCommand::Stop(StopSessionCommand { deadline, in_flight, reply });
        if let Ok(stopped) = self.call(stop).await {
            return stopped;
        }
        let end = self.shared.termination.ended().await;
        match self.shared.left_unsaved.get() {
            Some(unsaved) => Err((**unsaved).clone().after(deadline)),
            None if end.snapshot.is_none() => Err(Error::ended("session", &end.reason)),
            None => {
                let running = self.shared.left_running.get();
                running.map_or(Ok(()), |error| Err(error.clone()))
            }
        }
    }

    /// Ends the session within the limit, and leaves its turn in flight to the next owner of the conversation. The turn
    /// gets the grace to reach a point at which nothing is interrupted: the end of the run, or a pause. After the
    /// grace, its requests and tools are aborted, and the next owner treats them as after a crash. New prompts are
    /// refused.
    ///
    /// If the state of the turn can't be stored within the limit, the next owner continues from the last state that is
    /// stored. A turn of which nothing is stored is interrupted, as by [`stop`](Self::stop).
    ///
    /// # Errors
    ///
    /// The errors of [`stop`](Self::stop).
    pub(crate) async fn hand_over(&self, grace: Duration, limit: Duration) -> Result<(), Error> {
        self.drain();
        // The result is ignored: the session is ended in any case, after it rests or after the grace.
        let _ = tokio::time::timeout(grace, self.rest()).await;
        self.end_within(limit, AgentStopTurnPolicy::Leave).await
    }

    /// Waits until the session is idle or paused.
    async fn rest(&self) -> Result<(), Error> {
        let mut updates = self.subscribe(Mode::Observer).await?;
        while self.status().await? == Status::Busy && updates.next().await.is_some() {}
        Ok(())
    }

    /// Ends the session now, if it could be ended by an idle shutdown. Returns whether the session ends.
    ///
    /// The session ends if it has no controller, no work is active or waiting, and everything is saved. A paused turn
    /// that is [recorded](SessionBuilder::durable) does not prevent the end. It stays in the store.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub async fn sleep(&self) -> Result<bool, Error> {
        self.call(SessionTaskCommand::Sleep).await
    }

    /// Refuses new prompts and branches with [`ErrorKind::Draining`] from now on. Active work continues.
    pub fn drain(&self) {
        self.shared.is_draining.store(true, Ordering::Release);
    }

    /// Returns the number of controllers that keep the session alive.
    pub fn controllers(&self) -> usize {
        self.shared.controllers.load(Ordering::Acquire)
    }

    /// Returns whether the model has responded to the run's last request and tools or callbacks are therefore running
    /// now.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.shared.is_between_requests.load(Ordering::Acquire)
            && !self.shared.runs_no_tool.load(Ordering::Acquire)
    }

    /// Returns how much of a turn in flight survives the end of the process.
    pub(crate) fn durable(&self) -> Durable {
        self.shared.setup.durable
    }

    /// Returns a guard that keeps the session alive like a controller, but receives no events.
    ///
    /// # Errors
    ///
    /// Returns [`ErrorKind::Ended`] if the session has ended.
    pub(crate) fn keep(&self) -> Result<Guard, Error> {
        let weak = self.downgrade();
        let hold = weak.hold()?;
        Ok(Guard::new(weak, Some(hold)))
    }

    /// Waits until the session has ended, for whatever reason.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, only the wait ends.
    pub async fn ended(&self) -> End<SessionSnapshot> {
        self.shared.termination.ended().await
    }

    /// Returns how the session ended, and its last snapshot. Returns `None` while the session is alive.
    pub fn end(&self) -> Option<End<SessionSnapshot>> {
        self.shared.termination.end().cloned()
    }

    /// Returns a handle that does not keep the session alive.
    pub fn downgrade(&self) -> WeakSession {
        WeakSession { commands: self.commands.downgrade(), shared: Arc::clone(&self.shared) }
    }

    fn ensure_room(&self) -> Result<(), Error> {
        self.shared.refusal().map_or(Ok(()), Err)
    }

    /// Sends a command and waits for its reply.
    async fn call<T>(
        &self,
        command: impl FnOnce(SessionReplyTx<T>) -> SessionTaskCommand,
    ) -> Result<T, Error> {
        match actor::call(&self.commands, |reply| Box::new(command(reply))).await {
            Some(answer) => Ok(answer),
            None => Err(self.over().await),
        }
    }

    /// Performs an operation on the agent directly, without the session's task.
    async fn on_agent<T>(&self, operation: impl AsyncFnOnce(&Agent) -> Result<T, Error>) -> Result<T, Error> {
        let Some(agent) = self.shared.agent.get().and_then(crate::agent::WeakAgent::upgrade) else {
            return Err(self.over().await);
        };
        self.session_outcome(operation(&agent).await).await
    }

    /// Converts the outcome of an operation on the agent into the outcome that the session returns.
    async fn session_outcome<T>(&self, outcome: Result<T, Error>) -> Result<T, Error> {
        match outcome {
            Ok(value) => Ok(value),
            // The agent has ended, but the session may not have noticed this yet. The session checks whether its agent
            // has ended before it executes a command, and then ends instead of executing the command.
            Err(error) if error.kind() == ErrorKind::Ended => {
                match self.call(SessionTaskCommand::Title).await {
                    Ok(_) => Err(self.over().await),
                    Err(ended) => Err(ended),
                }
            }
            Err(error) => Err(of_agent(error)),
        }
    }

    async fn over(&self) -> Error {
        Error::ended("session", &self.shared.termination.closed().await)
    }
}

#[async_trait]
impl RunStarter for Session {
    async fn start(&self, spec: RunSpec) -> Result<Accepted, Error> {
        self.ensure_room()?;
        if spec.at == RunAt::Head {
            return self.on_agent(async |agent| agent.start(spec).await).await;
        }
        self.begin(spec).await.map(|(turn, _)| Accepted::Started { turn })
    }

    async fn response(&self, spec: RunSpec) -> Result<Arc<Response>, Error> {
        self.ensure_room()?;
        if spec.at == RunAt::Head {
            return self.on_agent(async |agent| agent.response(spec).await).await;
        }
        // The receiver is present, because `wait` is set. If its sender was dropped, the agent has ended.
        let response = match self.begin(spec).await?.1 {
            Some(response) => response.await.ok(),
            None => None,
        };
        let killed = || Err(Error::ended("agent", &EndReason::Killed));
        self.session_outcome(response.unwrap_or_else(killed)).await
    }

    async fn follow(&self, run: ExistingOrNewRun) -> Result<Running, Error> {
        let mut updates = self.subscribe(Mode::Controller).await?;
        let (run, is_known) = run.start(self).await?;
        if is_known {
            updates = self.subscribe(Mode::Controller).await?;
        }
        let (first, commands) = (updates.snapshot().cloned(), Arc::new(self.clone()));
        let of_snapshot: fn(&SessionSnapshot) -> (&History, &Snapshot) =
            |session| (session.tree.history(), &session.agent);
        Ok(Running::new(run, first, updates, SessionEvent::agent, of_snapshot, commands, "session"))
    }
}

impl WeakSession {
    /// Returns the conversation's id.
    pub fn id(&self) -> &ConversationId {
        &self.shared.id
    }

    /// Returns a handle if the session is alive. During the agent's callback `init`, returns `None`, because the
    /// session has not started yet.
    pub fn upgrade(&self) -> Option<Session> {
        if !self.shared.started.load(Ordering::Acquire) {
            return None;
        }
        Some(Session { commands: self.commands.upgrade()?, shared: Arc::clone(&self.shared) })
    }

    /// Waits until the session accepts no more commands.
    #[cfg(any(feature = "mcp", feature = "web"))]
    pub(crate) async fn closed(&self) {
        self.shared.termination.closed().await;
    }

    /// Waits until no run is active, without keeping the session alive. Returns `None` if the session's agent has ended
    /// or has not started yet.
    #[cfg(feature = "mcp")]
    pub(crate) async fn idle(&self) -> Option<()> {
        self.shared.agent.get()?.upgrade()?.wait_until_idle().await.ok()
    }

    /// Returns a new hold, after the session has confirmed that it stays open.
    async fn confirmed_hold(&self) -> Result<ControllerHold, Error> {
        let hold = self.hold()?;
        hold.confirm().await?;
        Ok(hold)
    }

    /// Returns a new hold. It counts as a controller until it is dropped.
    fn hold(&self) -> Result<ControllerHold, Error> {
        if let Some(reason) = self.shared.termination.closing() {
            return Err(Error::ended("session", reason));
        }
        match self.commands.upgrade() {
            Some(commands) => Ok(ControllerHold::new(Arc::clone(&self.shared), commands)),
            // The last handle was dropped, but the session has not noticed this yet.
            None => Err(Error::ended("session", &EndReason::HandlesDropped)),
        }
    }
}

impl SubscriptionSource<SessionSnapshot, SessionEvent> for WeakSession {
    fn attach(&self, after: Option<EventId>) -> SessionSubscriptionFuture {
        let weak = self.clone();
        Box::pin(async move {
            let commands = weak.upgrade().map(|session| session.commands);
            let subscribe = |reply| Box::new(SessionTaskCommand::Subscribe(after, reply));
            match actor::call_weakly(commands, &weak.shared.termination, subscribe).await {
                Some(attachment) => Ok(attachment),
                None => Err(weak.shared.termination.ended().await),
            }
        })
    }
}

/// A future that returns the point in the stream of events at which a subscription begins.
type SessionSubscriptionFuture = Pin<
    Box<
        dyn Future<Output = Result<SubscriptionStart<SessionSnapshot, SessionEvent>, End<SessionSnapshot>>>
            + Send,
    >,
>;

crate::debug::impl_debug! { Session(self) {
    id: self.id(), ended: self.shared.termination.end().is_some(), ..
} }

crate::debug::impl_debug!(WeakSession(self) { id: self.id(), .. });

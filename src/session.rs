//! The session: an agent with an identity, a branching tree and a store.
//!
//! [`Session`] is a handle: cheap to clone. The session lives until somebody [stops](Session::stop) it, until the last
//! handle and the last [controller](Mode) are gone, or until its idle shutdown. Its task owns the [tree](crate::tree) and
//! the agent, takes every committed turn into the tree, and saves beside: a slow store delays nothing but the
//! [`Store`](SessionEvent::Store) event that says that a turn is safe.
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
//! // Another day.
//! let session = Session::builder(store).agent(agent()).open(id).await?;
//! let question = session.tree().await?.roots().next().unwrap().id();
//! session.ask_regenerate(question).await?;
//! assert_eq!(session.tree().await?.to_string(), "\
//! * 1 user: Name three mountains.
//!   ├─ 2 assistant: Everest, K2, Lhotse.
//! > └─ 3 assistant: Fuji, Etna, Teide.");
//! # Ok::<(), omni_agent::session::SessionError>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builder;
mod command;
mod core;
mod error;
mod event;
mod forwarded;
mod regenerate;
mod snapshot;
mod subscription;
mod task;
mod tenure;
#[cfg(all(test, feature = "test-util"))]
mod tests;
mod watcher;

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub use builder::SessionBuilder;
use command::{Command, PendingResponse, Reply, RunStart, Stop, Wait};
pub use error::SessionError;
pub use event::{SavedPart, SessionEvent, StoreReport};
pub use regenerate::Regenerate;
pub use snapshot::SessionSnapshot;
use subscription::Hold;
pub use subscription::{Guard, Mode, SessionSubscription};
use task::SessionShared;
use tokio::{sync::mpsc, time::Instant};
pub(crate) use watcher::{Notice, Watcher};

use crate::{
    actor,
    agent::{Agent, AgentError, InFlight, Prompt, Response},
    store::{ConversationId, IntoStore},
    subscription::{Attachment, End, EndReason, EventId, Source, Subscription},
    tree::{NodeId, Tree},
};

/// A handle to a session. Cheap to clone.
///
/// All operations are answered whatever the agent and the store are doing. After the session's end they return
/// [`SessionError::Ended`].
///
/// # Cancel safety
///
/// Dropping the future of an operation before it is done does not take the operation back: it may still be performed,
/// unseen. Nothing else is lost.
#[derive(Clone)]
pub struct Session {
    commands: mpsc::Sender<Box<Command>>,
    shared: Arc<SessionShared>,
}

/// A handle that does not keep the session alive. The agent's callbacks and tools find one among their
/// [extensions](crate::tool::Extensions), beside the [`ConversationId`].
#[derive(Clone)]
pub struct WeakSession {
    commands: mpsc::WeakSender<Box<Command>>,
    shared: Arc<SessionShared>,
}

impl Session {
    /// Begins to build a session whose conversation is kept in `store`.
    pub fn builder(store: impl IntoStore) -> SessionBuilder {
        SessionBuilder::new(store.into_store())
    }

    /// The conversation's id.
    pub fn id(&self) -> &ConversationId {
        &self.shared.id
    }

    /// Begins a run that answers a user message again: the answer becomes a sibling of the answers that are there. Give a
    /// [`NodeId`], or a [`Regenerate`] to answer with another model or other options. Idle only.
    ///
    /// If the run ends in `cancelled` or `error` before its first turn is complete, the tree is as it was. How it ended is
    /// in [`Snapshot::last_run`](crate::agent::Snapshot::last_run); [`ask_regenerate`](Self::ask_regenerate) returns its response.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`], [`UnknownNode`](SessionError::UnknownNode), [`NotUser`](SessionError::NotUser),
    /// [`ToolResults`](SessionError::ToolResults), [`StoreBehind`](SessionError::StoreBehind),
    /// [`Draining`](SessionError::Draining), [`Ended`](SessionError::Ended), and [`Agent`](SessionError::Agent) if a setting
    /// is invalid.
    pub async fn regenerate(&self, again: impl Into<Regenerate>) -> Result<(), SessionError> {
        self.begin(RunStart::Regenerate(again.into()), Wait::ForStart).await.map(drop)
    }

    /// Answers a user message again and returns the response: [`regenerate`](Self::regenerate) as
    /// [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// As [`regenerate`](Self::regenerate), and the run's own as [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_regenerate(&self, again: impl Into<Regenerate>) -> Result<Arc<Response>, SessionError> {
        self.begin_and_wait(RunStart::Regenerate(again.into())).await
    }

    /// Begins a run with a new user message below an answer, as a sibling of the messages that are there. `None` begins a
    /// new root. Idle only.
    ///
    /// Below an answer that a turn [left open](Response::open_tool_uses), the prompt answers its tool uses, as
    /// [`prompt`](Self::prompt) does.
    ///
    /// If the run ends in `cancelled` or `error` before its first turn is complete, the tree is as it was. How it ended is
    /// in [`Snapshot::last_run`](crate::agent::Snapshot::last_run); [`ask_branch`](Self::ask_branch) returns its response.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`], [`UnknownNode`](SessionError::UnknownNode), [`NotAssistant`](SessionError::NotAssistant),
    /// [`OpenToolUses`](SessionError::OpenToolUses), [`StoreBehind`](SessionError::StoreBehind),
    /// [`Draining`](SessionError::Draining), [`Ended`](SessionError::Ended), and [`Agent`](SessionError::Agent) if the prompt
    /// is invalid.
    pub async fn branch(
        &self,
        assistant: Option<NodeId>,
        prompt: impl Into<Prompt>,
    ) -> Result<(), SessionError> {
        self.begin(RunStart::Branch(assistant, prompt.into()), Wait::ForStart).await.map(drop)
    }

    /// Sends a new user message below an answer and returns the response: [`branch`](Self::branch) as
    /// [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// As [`branch`](Self::branch), and the run's own as [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_branch(
        &self,
        assistant: Option<NodeId>,
        prompt: impl Into<Prompt>,
    ) -> Result<Arc<Response>, SessionError> {
        self.begin_and_wait(RunStart::Branch(assistant, prompt.into())).await
    }

    /// Begins a run with another user message in place of one: a [branch](Self::branch) from its parent. The prompt has
    /// settings of its own; those of the message that it replaces do not count. Idle only.
    ///
    /// If the run ends in `cancelled` or `error` before its first turn is complete, the tree is as it was. How it ended is
    /// in [`Snapshot::last_run`](crate::agent::Snapshot::last_run); [`ask_edit`](Self::ask_edit) returns its response.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`], [`UnknownNode`](SessionError::UnknownNode), [`NotUser`](SessionError::NotUser),
    /// [`ToolResults`](SessionError::ToolResults), [`StoreBehind`](SessionError::StoreBehind),
    /// [`Draining`](SessionError::Draining), [`Ended`](SessionError::Ended), and [`Agent`](SessionError::Agent) if the prompt
    /// is invalid.
    pub async fn edit(&self, user: NodeId, prompt: impl Into<Prompt>) -> Result<(), SessionError> {
        self.begin(RunStart::Edit(user, prompt.into()), Wait::ForStart).await.map(drop)
    }

    /// Sends another user message in place of one and returns the response: [`edit`](Self::edit) as
    /// [`ask`](Self::ask).
    ///
    /// # Errors
    ///
    /// As [`edit`](Self::edit), and the run's own as [`ask`](Self::ask).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future does not cancel the run.
    pub async fn ask_edit(
        &self,
        user: NodeId,
        prompt: impl Into<Prompt>,
    ) -> Result<Arc<Response>, SessionError> {
        self.begin_and_wait(RunStart::Edit(user, prompt.into())).await
    }

    async fn begin(&self, start: RunStart, wait: Wait) -> Result<Option<PendingResponse>, SessionError> {
        self.ensure_room()?;
        self.call(|reply| Command::Begin(start, wait, reply)).await?
    }

    async fn begin_and_wait(&self, start: RunStart) -> Result<Arc<Response>, SessionError> {
        let answer = self.begin(start, Wait::ForResponse).await?;
        // Without an answer, the agent has ended.
        let response = match answer {
            Some(answer) => answer.await.ok(),
            None => None,
        };
        self.heard(response.unwrap_or(Err(AgentError::Stopped(EndReason::Killed)))).await
    }

    /// Moves the path through a node, and on from there to the leaf that was active last; `None` makes it empty, so that
    /// the next prompt begins a new root. Idle only. To where the path is already, nothing happens.
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`], [`SessionError::UnknownNode`], [`SessionError::Ended`].
    pub async fn navigate(&self, node: impl Into<Option<NodeId>>) -> Result<(), SessionError> {
        let node = node.into();
        self.call(|reply| Command::Navigate(node, reply)).await?
    }

    /// The tree. O(1): it is shared.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn tree(&self) -> Result<Tree, SessionError> {
        self.call(Command::Tree).await
    }

    /// Gives the conversation a title, or none. A list of the store shows it when it is saved: see
    /// [`flush`](Self::flush). It replaces a title that another process has stored meanwhile. Only the title that the session
    /// has already is not written again: then the title of the other process stays.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn set_title(&self, title: Option<&str>) -> Result<(), SessionError> {
        let title = title.map(Arc::from);
        self.call(|reply| Command::SetTitle(title, reply)).await
    }

    /// Gives the conversation a title if it has none; returns whether it did. For titles that a program makes: a title that a
    /// person has given meanwhile stays, also one that another process has stored.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn suggest_title(&self, title: &str) -> Result<bool, SessionError> {
        let title = Arc::from(title);
        self.call(|reply| Command::SuggestTitle(title, reply)).await
    }

    /// The conversation's title.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn title(&self) -> Result<Option<Arc<str>>, SessionError> {
        self.call(Command::Title).await
    }

    /// All there is to know at this moment.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`]; what was left is in [`Session::end`].
    pub async fn snapshot(&self) -> Result<SessionSnapshot, SessionError> {
        Ok(*self.call(Command::Snapshot).await?)
    }

    /// A snapshot and the events that follow it, with no gap and no overlap.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn subscribe(&self, mode: Mode) -> Result<SessionSubscription, SessionError> {
        self.subscribe_after(None, mode).await
    }

    /// Resumes a subscription after the last event that was seen. What was missed is replayed if it is still there; else,
    /// and for an event of another incarnation, the first update is a resync.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn resume_from(&self, last: EventId, mode: Mode) -> Result<SessionSubscription, SessionError> {
        self.subscribe_after(Some(last), mode).await
    }

    async fn subscribe_after(
        &self,
        after: Option<EventId>,
        mode: Mode,
    ) -> Result<SessionSubscription, SessionError> {
        // Counted before the snapshot is taken: the session does not end in between.
        let hold =
            (mode == Mode::Controller).then(|| Hold::new(Arc::clone(&self.shared), self.commands.clone()));
        let attachment = self.call(|reply| Command::Subscribe(after, reply)).await?;
        let source = Box::new(self.downgrade());
        let events = match after {
            Some(seen) => Subscription::resumed(source, seen, attachment),
            None => Subscription::new(source, attachment),
        };
        Ok(SessionSubscription::new(events, Guard::new(self.downgrade(), hold)))
    }

    /// Waits until all that is unsaved now is in the store. A failed write is repeated at once, and then after short waits:
    /// each is at most an eighth of the time left. A write that has been silent for a quarter of the time left is begun
    /// once more.
    ///
    /// # Errors
    ///
    /// [`SessionError::Unsaved`] says what is not safe when the deadline passes; [`SessionError::Ended`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn flush(&self, deadline: Duration) -> Result<(), SessionError> {
        let until = Instant::now().checked_add(deadline);
        let flush = self.call(|reply| Command::Flush(until, reply));
        if let Ok(flushed) = tokio::time::timeout(deadline, flush).await {
            return flushed;
        }
        match self.call(Command::Unsaved).await? {
            None => Ok(()),
            Some(unsaved) => Err(unsaved.after(deadline)),
        }
    }

    /// Ends the session. A run in flight is [interrupted](Session::interrupt), so its completed steps are committed.
    /// Then everything unsaved is saved, and subscribers get the final snapshot. Whatever is not done by the deadline is
    /// cut off. A session also ends in this way when its last handle and its last controller are dropped. Stopping a
    /// session that has ended succeeds or fails as its end did.
    ///
    /// # Errors
    ///
    /// [`SessionError::Unsaved`] says what is not safe; the session has ended all the same, and what is unsaved is in
    /// [`Session::end`]. [`AgentError::Deadline`] names aborted tools that still run; everything is saved then.
    /// [`SessionError::Ended`] if its task was killed before, and nobody knows what was.
    pub async fn stop(&self, deadline: Duration) -> Result<(), SessionError> {
        self.end_within(deadline, InFlight::Keep).await
    }

    /// Ends the session as [`stop`](Session::stop) does, but [cancels](Session::cancel) a run in flight: the tree stays as
    /// it was before the turn. If several callers stop the session, the first one decides.
    ///
    /// # Errors
    ///
    /// As [`stop`](Session::stop).
    pub async fn stop_discarding(&self, deadline: Duration) -> Result<(), SessionError> {
        self.end_within(deadline, InFlight::Discard).await
    }

    pub(crate) async fn end_within(
        &self,
        deadline: Duration,
        in_flight: InFlight,
    ) -> Result<(), SessionError> {
        let stop = |reply| Command::Stop(Stop { deadline, in_flight, reply });
        if let Ok(stopped) = self.call(stop).await {
            return stopped;
        }
        let end = self.shared.termination.ended().await;
        match self.shared.left_unsaved.get() {
            Some(unsaved) => Err((**unsaved).clone().after(deadline)),
            None if end.snapshot.is_none() => Err(SessionError::Ended(end.reason)),
            None => {
                let running = self.shared.left_running.get();
                running.map_or(Ok(()), |error| Err(SessionError::Agent((**error).clone())))
            }
        }
    }

    /// Ends the session as its idle shutdown would, but now: if no controller is there, nothing goes on or waits to, and all
    /// is saved. Tells whether it does.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub async fn sleep(&self) -> Result<bool, SessionError> {
        self.call(Command::Sleep).await
    }

    /// Refuses new prompts and branches from now on, with [`SessionError::Draining`]. What goes on goes on.
    pub fn drain(&self) {
        self.shared.is_draining.store(true, Ordering::Release);
    }

    /// How many controllers keep the session alive.
    pub fn controllers(&self) -> usize {
        self.shared.controllers.load(Ordering::Acquire)
    }

    /// Whether the model has answered the last request of the run, so that tools or callbacks run on the answer.
    pub(crate) fn is_between_requests(&self) -> bool {
        self.shared.is_between_requests.load(Ordering::Acquire)
    }

    /// Keeps the session alive as a controller does, without events.
    ///
    /// # Errors
    ///
    /// [`SessionError::Ended`].
    pub(crate) fn keep(&self) -> Result<Guard, SessionError> {
        let weak = self.downgrade();
        let hold = weak.hold()?;
        Ok(Guard::new(weak, Some(hold)))
    }

    /// Waits for the session's end, whatever brings it about.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future only stops the waiting.
    pub async fn ended(&self) -> End<SessionSnapshot> {
        self.shared.termination.ended().await
    }

    /// How the session ended, with its last snapshot; `None` while it lives.
    pub fn end(&self) -> Option<End<SessionSnapshot>> {
        self.shared.termination.end().cloned()
    }

    /// A handle that does not keep the session alive.
    pub fn downgrade(&self) -> WeakSession {
        WeakSession { commands: self.commands.downgrade(), shared: Arc::clone(&self.shared) }
    }

    fn ensure_room(&self) -> Result<(), SessionError> {
        self.shared.refusal().map_or(Ok(()), Err)
    }

    /// Sends a command and awaits its answer.
    async fn call<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, SessionError> {
        match actor::call(&self.commands, |reply| Box::new(command(reply))).await {
            Some(answer) => Ok(answer),
            None => Err(self.over().await),
        }
    }

    /// Performs an operation on the agent. It needs no word of the session's.
    async fn on_agent<T>(
        &self,
        operation: impl AsyncFnOnce(&Agent) -> Result<T, AgentError>,
    ) -> Result<T, SessionError> {
        let Some(agent) = self.shared.agent.get().and_then(crate::agent::WeakAgent::upgrade) else {
            return Err(self.over().await);
        };
        self.heard(operation(&agent).await).await
    }

    /// The outcome of an operation on the agent, as the session reports it.
    async fn heard<T>(&self, outcome: Result<T, AgentError>) -> Result<T, SessionError> {
        match outcome {
            Ok(value) => Ok(value),
            // The session may not know yet. It looks when there is a command to serve, and serves none.
            Err(AgentError::Stopped(_)) => match self.call(Command::Title).await {
                Ok(_) => Err(self.over().await),
                Err(ended) => Err(ended),
            },
            Err(error) => Err(error.into()),
        }
    }

    async fn over(&self) -> SessionError {
        SessionError::Ended(self.shared.termination.closed().await)
    }
}

impl WeakSession {
    /// The conversation's id.
    pub fn id(&self) -> &ConversationId {
        &self.shared.id
    }

    /// A handle, if the session still lives and has begun to: there is none in `init`.
    pub fn upgrade(&self) -> Option<Session> {
        if !self.shared.started.load(Ordering::Acquire) {
            return None;
        }
        Some(Session { commands: self.commands.upgrade()?, shared: Arc::clone(&self.shared) })
    }

    /// Counts a controller, and waits until the session has seen it.
    async fn confirmed_hold(&self) -> Result<Hold, SessionError> {
        let hold = self.hold()?;
        hold.confirm().await?;
        Ok(hold)
    }

    /// Counts a controller.
    fn hold(&self) -> Result<Hold, SessionError> {
        if let Some(reason) = self.shared.termination.closing() {
            return Err(SessionError::Ended(reason.clone()));
        }
        match self.commands.upgrade() {
            Some(commands) => Ok(Hold::new(Arc::clone(&self.shared), commands)),
            // The session is about to find that out.
            None => Err(SessionError::Ended(EndReason::HandlesDropped)),
        }
    }
}

impl Source<SessionSnapshot, SessionEvent> for WeakSession {
    fn attach(&self, after: Option<EventId>) -> Attaching {
        let weak = self.clone();
        Box::pin(async move {
            let commands = weak.upgrade().map(|session| session.commands);
            let subscribe = |reply| Box::new(Command::Subscribe(after, reply));
            match actor::call_weakly(commands, &weak.shared.termination, subscribe).await {
                Some(attachment) => Ok(attachment),
                None => Err(weak.shared.termination.ended().await),
            }
        })
    }
}

/// A place in the stream of events, being asked for.
type Attaching = Pin<
    Box<dyn Future<Output = Result<Attachment<SessionSnapshot, SessionEvent>, End<SessionSnapshot>>> + Send>,
>;

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", self.id())
            .field("ended", &self.shared.termination.end().is_some())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for WeakSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeakSession").field("id", self.id()).finish_non_exhaustive()
    }
}

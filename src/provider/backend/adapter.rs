//! The provider that uses a backend. Each call of the backend has a time limit, and each session is terminated exactly
//! once.

use std::{
    cell::Cell,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::{
    runtime::{self, Handle},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tracing::Instrument;

use super::{
    Backend, BackendError, BackendSession, Breach, Capabilities, SessionOptions, SessionPosition, TurnPrompt,
    exchange::{self, BackendTurn},
    sessions::{
        BackendConversationView, BackendPosition, BackendPositionRoute, BackendPromptCounts,
        ConversationBackendSessions, LiveBackendSession, elsewhere,
    },
};
use crate::{
    message::{History, Message, Role},
    panics::{contained, contained_async},
    provider::{DeltaStream, Provider, ProviderError, Request, RequestContext},
    sync::lock,
    tool::Replay,
};

/// Makes a [`Backend`] a [`Provider`], as the documentation of [`Backend`] describes.
///
/// Each conversation has a separate instance, which agents create by calling [`open`](Provider::open). A request
/// outside an agent gets a new session, which ends with the request's response.
#[derive(Clone, Debug)]
pub struct BackendProvider {
    backend: BackendDebugWrapper,
    limits: BackendLimits,
    lost: LostSession,
}

/// The reaction if the backend has lost the session of a conversation or can't resume it.
///
/// A new session knows only what its first prompt contains. It knows neither the files that the old session read nor
/// the decisions that it made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostSession {
    /// Each prompt fails with [`BackendError::UnknownSession`] or [`BackendError::NotResumable`].
    #[default]
    Fail,
    /// A new session is started and gets only the new prompt.
    Start,
    /// A new session is started and gets the conversation so far, followed by the new prompt. If the backend accepts
    /// [history](Capabilities::history), the session gets the messages themselves. Otherwise, it gets a single text
    /// that contains what the user and the assistant wrote.
    StartWithTranscript,
}

/// The time limits of calls to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendLimits {
    /// The limit for starting, resuming or forking a session. The default is one minute, because the program may have
    /// to be installed first.
    pub start: Duration,
    /// The limit for accepting a prompt and for processing the end of a turn. The default is one minute.
    pub prompt: Duration,
    /// The limit between two events of a turn, not counting the time during which a request for permission is open. The
    /// default is thirty minutes, because a tool of the backend may report nothing while it runs.
    pub silence: Duration,
    /// The limit for cancelling a turn. If the cancellation takes longer, the session is terminated. The default is ten
    /// seconds.
    pub cancel: Duration,
    /// The limit for terminating a session. The default is five seconds.
    pub terminate: Duration,
}

impl Default for BackendLimits {
    fn default() -> Self {
        Self {
            start: Duration::from_mins(1),
            prompt: Duration::from_mins(1),
            silence: Duration::from_mins(30),
            cancel: Duration::from_secs(10),
            terminate: Duration::from_secs(5),
        }
    }
}

impl BackendProvider {
    /// Creates a provider that uses this backend.
    pub fn new(backend: impl Backend) -> Self {
        Self::from_arc(Arc::new(backend))
    }

    /// Creates a provider that uses this shared backend.
    pub fn from_arc(backend: Arc<dyn Backend>) -> Self {
        Self {
            backend: BackendDebugWrapper(backend),
            limits: BackendLimits::default(),
            lost: LostSession::default(),
        }
    }

    crate::setters::setters! {
        /// Returns the same provider with these limits.
        pub fn with_limits(self, limits: BackendLimits) { self.limits = limits }

        /// Returns the same provider with this reaction to a session that can't be resumed. If a new session is started
        /// instead, its response contains a warning with the backend's own message.
        pub fn with_lost_session(self, reaction: LostSession) { self.lost = reaction }
    }

    fn instance(&self) -> BackendProviderInstance {
        BackendProviderInstance(Arc::new(BackendSessionsOwner {
            backend: self.backend.clone(),
            limits: self.limits,
            lost: self.lost,
            sessions: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
        }))
    }
}

#[async_trait]
impl Provider for BackendProvider {
    fn name(&self) -> &str {
        self.backend.0.name()
    }

    fn replay(&self) -> Replay {
        Replay::Never
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        Ok(Some(Arc::new(self.instance())))
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        // The returned stream owns the instance. Dropping the instance terminates the session.
        self.instance().stream(request, context).await
    }
}

#[derive(Clone)]
struct BackendDebugWrapper(Arc<dyn Backend>);

impl fmt::Debug for BackendDebugWrapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// The instance of the provider for one conversation.
struct BackendProviderInstance(Arc<BackendSessionsOwner>);

/// Owns a conversation's sessions, and terminates them when it is dropped.
pub(super) struct BackendSessionsOwner {
    backend: BackendDebugWrapper,
    pub(super) limits: BackendLimits,
    lost: LostSession,
    sessions: Mutex<ConversationBackendSessions>,
    /// A semaphore with one permit. The turn in flight holds the permit until the turn is over at the backend too.
    turn: Arc<Semaphore>,
}

impl BackendSessionsOwner {
    fn sessions(&self) -> MutexGuard<'_, ConversationBackendSessions> {
        // A panic can't leave the sessions in an inconsistent state, so a poisoned lock is usable.
        lock(&self.sessions)
    }

    pub(super) fn name(&self) -> &str {
        self.backend.0.name()
    }

    pub(super) fn can(&self) -> Capabilities {
        self.backend.0.capabilities()
    }

    /// Calls [`reach`](Self::reach). If the session is lost and [`LostSession`] allows a new session, starts a new
    /// session and returns the error of the lost session.
    async fn reach_or_start(
        &self,
        conversation: &BackendConversationView,
        options: &SessionOptions,
    ) -> Result<BackendSessionOrReplacement, BackendError> {
        let loss = match self.reach(conversation, options.clone()).await {
            Ok(lacks) => return Ok(BackendSessionOrReplacement::Session(lacks)),
            Err(error) if error.is_lost_session() && self.lost != LostSession::Fail => error,
            Err(error) => return Err(error),
        };
        let limit = self.limits.start;
        let session = call("start", limit, async { self.backend.0.start(options).await }).await?;
        let (heard, runtime) = (BackendPromptCounts::default(), Handle::current());
        let live = LiveBackendSession {
            session,
            key: fresh_key(),
            heard,
            fresh: true,
            options: options.clone(),
            runtime,
        };
        let (left, taken) = self.sessions().activate(live);
        self.retire(left);
        taken?;
        Ok(BackendSessionOrReplacement::New(loss))
    }

    /// Activates a session that is at the conversation's position. Returns a warning if the session lacks a part of the
    /// conversation.
    async fn reach(
        &self,
        conversation: &BackendConversationView,
        options: SessionOptions,
    ) -> Result<Option<String>, BackendError> {
        let can = ask("capabilities", || self.can())?;
        let way = self.sessions().route(conversation, can)?;
        if let Some(position) = &conversation.position
            && matches!(way, BackendPositionRoute::Resume(..) | BackendPositionRoute::Fork(_))
        {
            let end = self.sessions().end_of(&position.key);
            if let Some(end) = end {
                // Wait for the end of the retired session, which may still be changing the conversation. The wait is
                // short, because the termination has a time limit.
                ended(end).await;
            }
        }
        let (backend, limit) = (&*self.backend.0, self.limits.start);
        let forked = async |place: SessionPosition| {
            let fork = call("fork", limit, async { backend.fork(&place, &options).await });
            Ok::<_, BackendError>((fork.await?, fresh_key(), BackendPromptCounts::up_to(place.prompts), true))
        };
        let (session, key, heard, fresh) = match way {
            BackendPositionRoute::Stay(more) => {
                note_more(more);
                return Ok(None);
            }
            BackendPositionRoute::Return(more) => {
                note_more(more);
                let left = self.sessions().reactivate_parked();
                self.retire(left);
                return Ok(None);
            }
            BackendPositionRoute::Start => {
                let session = call("start", limit, async { backend.start(&options).await }).await?;
                (session, fresh_key(), BackendPromptCounts::default(), true)
            }
            BackendPositionRoute::Fork(place) => forked(place).await?,
            BackendPositionRoute::Resume(position, id, heard) => {
                let resume = call("resume", limit, async { backend.resume(&id, &options).await });
                let session = resume.await?;
                match position.place().filter(|place| is_elsewhere(&*session, place)) {
                    Some(place) => {
                        let end = terminate(session, &Handle::current(), self.limits.terminate);
                        if !can.fork {
                            return Err(elsewhere());
                        }
                        ended(end).await;
                        forked(place).await?
                    }
                    None => (session, position.key, heard, false),
                }
            }
        };
        let is_fork = fresh && heard.kept > 0;
        let lacks =
            conversation.position.as_ref().filter(|at| is_fork && at.unfinished && at.checkpoint.is_some());
        let live = LiveBackendSession { session, key, heard, fresh, options, runtime: Handle::current() };
        let (left, taken) = self.sessions().activate(live);
        self.retire(left);
        taken?;
        Ok(lacks.map(|_| {
            "the backend does not know the last response, which was broken off, nor its prompt".to_owned()
        }))
    }

    /// Returns the session's current position, which is stored in a response.
    pub(super) fn position(
        &self,
        session: &Arc<dyn BackendSession>,
    ) -> Result<BackendPosition, BackendError> {
        let (id, checkpoint) = ask("id", || (session.id(), session.checkpoint()))?;
        self.sessions().position(session, id, checkpoint)
    }

    /// Terminates a session that has become unusable.
    pub(super) fn lose(&self, session: &Arc<dyn BackendSession>) {
        let lost = self.sessions().lose(session);
        self.retire(lost);
    }

    fn retire(&self, live: Option<LiveBackendSession>) {
        let Some(live) = live else { return };
        let end = terminate(live.session, &live.runtime, self.limits.terminate);
        if !live.fresh {
            self.sessions().retired(live.key, live.heard, end);
        }
    }

    async fn prompt(
        self: &Arc<Self>,
        request: Request,
        context: RequestContext,
        permit: OwnedSemaphorePermit,
    ) -> Result<DeltaStream, ProviderError> {
        let before = BackendError::before_prompt;
        let name = ask("name", || self.name().to_owned()).map_err(before)?;
        let conversation = BackendConversationView::read(&name, &request.history).map_err(before)?;
        let settings = request.options.backend().cloned().unwrap_or_default();
        let options = SessionOptions { model: request.model, system: request.system, settings };
        let reached = self.reach_or_start(&conversation, &options).await.map_err(before)?;
        let (session, started_with) = self.sessions().begin().map_err(before)?;
        let (mut warnings, messages) = match reached {
            BackendSessionOrReplacement::Session(lacks) => (Vec::from_iter(lacks), conversation.new),
            BackendSessionOrReplacement::New(loss) => {
                let with_transcript = self.lost == LostSession::StartWithTranscript;
                let knows = if with_transcript { "a transcript" } else { "nothing" };
                let warning =
                    format!("{loss}. A new session was started; it knows {knows} of the conversation");
                let messages = match with_transcript {
                    true if self.can().history => request.history.iter().cloned().collect(),
                    true => with_transcript_of(&request.history, conversation.new),
                    false => conversation.new,
                };
                (vec![warning], messages)
            }
        };
        if started_with != options {
            warnings.push(format!(
                "the change is ignored: `{name}` keeps the model, the system prompt and the settings it was started with"
            ));
        }
        if !request.tools.is_empty() {
            warnings.push(format!("the agent's tools are ignored: `{name}` only uses its own"));
        }
        let prompt = TurnPrompt { messages, options: request.options };
        let mut turn = BackendTurn::new(Arc::clone(self), Arc::clone(&session), permit);
        let events = match call("prompt", self.limits.prompt, async { session.prompt(prompt).await }).await {
            Ok(events) => events,
            // The backend may have accepted the prompt. Therefore, the turn is cancelled, and the prompt is not sent
            // again.
            Err(error @ BackendError::Timeout { call: "prompt", .. }) => return Err(error.in_turn()),
            Err(error) => {
                self.sessions().uncount_prompt(&session);
                turn.over(error.is_final());
                return Err(error.before_prompt());
            }
        };
        exchange::stream(turn, events, name, warnings, context).map_err(BackendError::in_turn)
    }
}

/// The session that was found for a conversation.
enum BackendSessionOrReplacement {
    /// A session that knows the conversation. If it lacks a part of the conversation, the text is a warning about this
    /// part.
    Session(Option<String>),
    /// A new session, because the old one is lost.
    New(BackendError),
}

/// Returns a user message with the text of all earlier messages, followed by the new messages.
fn with_transcript_of(history: &History, new: Vec<Arc<Message>>) -> Vec<Arc<Message>> {
    let mut parts = vec!["The conversation so far:".to_owned()];
    for message in history.iter().take(history.len().saturating_sub(new.len())) {
        let text = message.text();
        if !text.trim().is_empty() {
            let author = match message.role {
                Role::User => "User",
                Role::Assistant => "Assistant",
            };
            parts.push(format!("{author}: {text}"));
        }
    }
    parts.push("The user continues:".to_owned());
    std::iter::once(Arc::new(Message::user(parts.join("\n\n")))).chain(new).collect()
}

/// Returns whether a resumed session reports a position other than `place`.
fn is_elsewhere(session: &dyn BackendSession, place: &SessionPosition) -> bool {
    let here = ask("checkpoint", || session.checkpoint()).ok().flatten();
    here.is_some() && place.checkpoint.is_some() && here != place.checkpoint
}

/// Returns a key that no other session has.
fn fresh_key() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// Logs a warning if the session has received prompts that the conversation does not contain.
fn note_more(prompts: u64) {
    if prompts > 0 {
        tracing::warn!(prompts, "a backend remembers prompts of discarded turns, and continues with them");
    }
}

impl Drop for BackendSessionsOwner {
    fn drop(&mut self) {
        let sessions = self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner);
        for live in sessions.take_all() {
            drop(terminate(live.session, &live.runtime, self.limits.terminate));
        }
    }
}

#[async_trait]
impl Provider for BackendProviderInstance {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn replay(&self) -> Replay {
        Replay::Never
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        // Waits until the turn in flight is over. If it was cancelled, it ends within the limit for cancellations.
        let permit = Arc::clone(&self.0.turn).acquire_owned().await.expect("the semaphore is never closed");
        self.0.prompt(request, context, permit).await
    }

    fn committed(&self, messages: &[Arc<Message>]) {
        let Ok(name) = ask("name", || self.name().to_owned()) else { return };
        // Positions that can't be read are skipped here, because the next prompt reports the error.
        for position in messages.iter().filter_map(|message| BackendPosition::stored_in(&name, message)?.ok())
        {
            let left = self.0.sessions().keep(&position);
            self.0.retire(left);
        }
    }

    async fn close(&self) {
        let owner = &self.0;
        owner.sessions().close();
        // First wait for a cancellation that is still running, up to its limit.
        let _permit = timeout(owner.limits.cancel, owner.turn.acquire()).await;
        let running = owner.sessions().take_all();
        let ends = running.map(|live| terminate(live.session, &live.runtime, owner.limits.terminate));
        join_all(ends.collect::<Vec<_>>().into_iter().map(ended)).await;
    }
}

/// The maximum total time that a thread waits for sessions that it drops when their runtime is gone. A runtime that
/// shuts down may drop many sessions in one thread.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

thread_local! {
    /// Two times of this thread: the deadline for its waits, and the later time until which this deadline is used. The
    /// first session that is dropped after the second time gets a new deadline.
    static GRACE: Cell<Option<(Instant, Instant)>> = const { Cell::new(None) };
}

/// Returns how long this thread may still wait for a session.
fn grace() -> Duration {
    let now = Instant::now();
    let until = GRACE.try_with(|grace| {
        let until = match grace.get() {
            Some((until, holds)) if now < holds => until,
            _ => now + SHUTDOWN_GRACE,
        };
        grace.set(Some((until, now.max(until) + SHUTDOWN_GRACE)));
        until
    });
    until.map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
}

/// Calls an async method of the backend. If the method panics or takes longer than `limit`, returns an error.
pub(super) async fn call<T>(
    name: &'static str,
    limit: Duration,
    work: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match timeout(limit, contained_async(work)).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(message)) => Err(panicked(name, message)),
        Err(_) => Err(BackendError::Timeout { call: name, limit }),
    }
}

/// Calls a method of the backend that is not async. If the method panics, returns an error.
pub(super) fn ask<T>(name: &'static str, work: impl FnOnce() -> T) -> Result<T, BackendError> {
    contained(work).map_err(|message| panicked(name, message))
}

fn panicked(call: &'static str, message: String) -> BackendError {
    BackendError::Contract(Breach::Panicked { call, message })
}

/// Terminates a session in a separate task on `runtime`. The returned channel closes when the session has ended.
pub(super) fn terminate(
    session: Arc<dyn BackendSession>,
    runtime: &Handle,
    limit: Duration,
) -> watch::Receiver<()> {
    let (done, waiter) = watch::channel(());
    let ending = BackendSessionTermination { session: Some(session), limit, _done: done };
    // If the runtime is gone, the future is dropped at once, and dropping it terminates the session.
    runtime.spawn(ending.run().in_current_span());
    waiter
}

/// Waits until a session that is being terminated has ended.
///
/// # Cancel safety
///
/// If the future is dropped, the session is terminated nevertheless.
pub(super) async fn ended(mut session: watch::Receiver<()>) {
    // No value is ever sent on this channel. It closes when the session has ended.
    let _ = session.changed().await;
}

/// A session to terminate. If the runtime drops this before it has run, the session is terminated on a new thread.
struct BackendSessionTermination {
    session: Option<Arc<dyn BackendSession>>,
    limit: Duration,
    _done: watch::Sender<()>,
}

impl BackendSessionTermination {
    async fn run(mut self) {
        if let Some(session) = self.session.take() {
            end(session, self.limit).await;
        }
    }
}

impl Drop for BackendSessionTermination {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            return;
        };
        // The process may exit as soon as its runtime is gone. Therefore, the thread that drops the session waits until
        // the session has ended, but at most for the time that `grace` returns.
        let (done, waiter) = mpsc::sync_channel::<()>(1);
        let limit = self.limit;
        let thread = thread::Builder::new().name("backend-terminate".to_owned()).spawn(move || {
            match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(end(session, limit)),
                Err(error) => tracing::error!(%error, "no runtime to terminate a backend's session on"),
            }
            drop(done);
        });
        match thread {
            Ok(_) => drop(waiter.recv_timeout(grace().min(limit))),
            Err(error) => tracing::error!(%error, "no thread to terminate a backend's session on"),
        }
    }
}

async fn end(session: Arc<dyn BackendSession>, limit: Duration) {
    let terminated = call("terminate", limit, async {
        session.terminate().await;
        Ok(())
    });
    if let Err(error) = terminated.await {
        tracing::error!(%error, "a backend's session did not terminate cleanly");
    }
    if let Err(error) = ask("drop", || drop(session)) {
        tracing::error!(%error, "the drop of a backend's session panicked");
    }
}

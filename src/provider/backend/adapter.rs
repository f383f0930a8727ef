use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    Backend, BackendError, BackendSession, Capabilities, SessionOptions, SessionPosition, TurnPrompt,
    exchange::{self, TurnInFlight},
    lifetime::{ask, call, ended, terminate},
    position::{Conversation, Position, PromptCounts, Route, elsewhere},
    sessions::{Live, Sessions},
};
use crate::{
    message::{History, Message, Role},
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
    backend: NamedBackend,
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
            backend: NamedBackend(backend),
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

    fn instance(&self) -> Instance {
        Instance(Arc::new(Owner {
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
struct NamedBackend(Arc<dyn Backend>);

impl fmt::Debug for NamedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// The instance of the provider for one conversation.
struct Instance(Arc<Owner>);

/// Owns a conversation's sessions, and terminates them when it is dropped.
pub(super) struct Owner {
    backend: NamedBackend,
    pub(super) limits: BackendLimits,
    lost: LostSession,
    sessions: Mutex<Sessions>,
    /// A semaphore with one permit. The turn in flight holds the permit until the turn is over at the backend too.
    turn: Arc<Semaphore>,
}

impl Owner {
    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        // A panic can't leave the sessions in an inconsistent state, so a poisoned lock is usable.
        lock(&self.sessions)
    }

    pub(super) fn name(&self) -> &str {
        self.backend.0.name()
    }

    pub(super) fn can(&self) -> Capabilities {
        self.backend.0.capabilities()
    }

    /// Calls [`reach`](Owner::reach). If the session is lost and [`LostSession`] allows a new session, starts a new
    /// session and returns the error of the lost session.
    async fn reach_or_start(
        &self,
        conversation: &Conversation,
        options: &SessionOptions,
    ) -> Result<Reached, BackendError> {
        let loss = match self.reach(conversation, options.clone()).await {
            Ok(lacks) => return Ok(Reached::Session(lacks)),
            Err(error) if error.is_lost_session() && self.lost != LostSession::Fail => error,
            Err(error) => return Err(error),
        };
        let limit = self.limits.start;
        let session = call("start", limit, async { self.backend.0.start(options).await }).await?;
        let (heard, runtime) = (PromptCounts::default(), Handle::current());
        let live = Live { session, key: fresh_key(), heard, fresh: true, options: options.clone(), runtime };
        let (left, taken) = self.sessions().activate(live);
        self.retire(left);
        taken?;
        Ok(Reached::New(loss))
    }

    /// Activates a session that is at the conversation's position. Returns a warning if the session lacks a part of the
    /// conversation.
    async fn reach(
        &self,
        conversation: &Conversation,
        options: SessionOptions,
    ) -> Result<Option<String>, BackendError> {
        let can = ask("capabilities", || self.can())?;
        let way = self.sessions().route(conversation, can)?;
        if let Some(position) = &conversation.position
            && matches!(way, Route::Resume(..) | Route::Fork(_))
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
            Ok::<_, BackendError>((fork.await?, fresh_key(), PromptCounts::up_to(place.prompts), true))
        };
        let (session, key, heard, fresh) = match way {
            Route::Stay(more) => {
                note_more(more);
                return Ok(None);
            }
            Route::Return(more) => {
                note_more(more);
                let left = self.sessions().reactivate_parked();
                self.retire(left);
                return Ok(None);
            }
            Route::Start => {
                let session = call("start", limit, async { backend.start(&options).await }).await?;
                (session, fresh_key(), PromptCounts::default(), true)
            }
            Route::Fork(place) => forked(place).await?,
            Route::Resume(position, id, heard) => {
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
        let live = Live { session, key, heard, fresh, options, runtime: Handle::current() };
        let (left, taken) = self.sessions().activate(live);
        self.retire(left);
        taken?;
        Ok(lacks.map(|_| {
            "the backend does not know the last response, which was broken off, nor its prompt".to_owned()
        }))
    }

    /// Returns the session's current position, which is stored in a response.
    pub(super) fn position(&self, session: &Arc<dyn BackendSession>) -> Result<Position, BackendError> {
        let (id, checkpoint) = ask("id", || (session.id(), session.checkpoint()))?;
        self.sessions().position(session, id, checkpoint)
    }

    /// Terminates a session that has become unusable.
    pub(super) fn lose(&self, session: &Arc<dyn BackendSession>) {
        let lost = self.sessions().lose(session);
        self.retire(lost);
    }

    fn retire(&self, live: Option<Live>) {
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
        let conversation = Conversation::read(&name, &request.history).map_err(before)?;
        let settings = request.options.backend().cloned().unwrap_or_default();
        let options = SessionOptions { model: request.model, system: request.system, settings };
        let reached = self.reach_or_start(&conversation, &options).await.map_err(before)?;
        let (session, started_with) = self.sessions().begin().map_err(before)?;
        let (mut warnings, messages) = match reached {
            Reached::Session(lacks) => (Vec::from_iter(lacks), conversation.new),
            Reached::New(loss) => {
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
        let mut turn = TurnInFlight::new(Arc::clone(self), Arc::clone(&session), permit);
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
enum Reached {
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

impl Drop for Owner {
    fn drop(&mut self) {
        let sessions = self.sessions.get_mut().unwrap_or_else(PoisonError::into_inner);
        for live in sessions.take_all() {
            drop(terminate(live.session, &live.runtime, self.limits.terminate));
        }
    }
}

#[async_trait]
impl Provider for Instance {
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
        for position in messages.iter().filter_map(|message| Position::stored_in(&name, message)?.ok()) {
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

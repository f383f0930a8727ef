use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    runtime::Handle,
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

use super::{
    Backend, BackendError, BackendSession, Capabilities, Place, SessionOptions, TurnPrompt,
    exchange::{self, Turn},
    lifetime::{ask, call, terminate},
    position::{Conversation, Position, Route, Seen, elsewhere, route},
};
use crate::provider::{DeltaStream, Provider, ProviderError, Request, RequestContext};

/// Makes a [`Backend`] a [`Provider`], as the [module](super) says.
///
/// Each conversation has an instance of its own, which [`open`](Provider::open) makes; an agent does that. A request outside
/// of an agent gets a session for itself, which ends with its answer.
#[derive(Clone, Debug)]
pub struct BackendProvider {
    backend: Shared,
    limits: BackendLimits,
}

/// How long a backend may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackendLimits {
    /// To start, resume or fork a session. One minute: the program may have to be installed first.
    pub start: Duration,
    /// To take a prompt, and to see to the end of a turn. One minute.
    pub prompt: Duration,
    /// From one event of a turn to the next, the time in which somebody decides not counted. Thirty minutes: a tool of the
    /// backend's may say nothing for as long as it runs.
    pub silence: Duration,
    /// To cancel a turn. A session that takes longer is terminated. Ten seconds.
    pub cancel: Duration,
    /// To terminate. Five seconds.
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
    /// A provider on this backend.
    pub fn new(backend: impl Backend) -> Self {
        Self::from_arc(Arc::new(backend))
    }

    /// A provider on a backend that is shared.
    pub fn from_arc(backend: Arc<dyn Backend>) -> Self {
        Self { backend: Shared(backend), limits: BackendLimits::default() }
    }

    /// The same provider with other limits.
    pub fn with_limits(mut self, limits: BackendLimits) -> Self {
        self.limits = limits;
        self
    }

    fn instance(&self) -> Instance {
        Instance(Arc::new(Owner {
            backend: self.backend.clone(),
            limits: self.limits,
            state: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
        }))
    }
}

#[async_trait]
impl Provider for BackendProvider {
    fn name(&self) -> &str {
        self.backend.0.name()
    }

    async fn open(&self) -> Result<Option<Arc<dyn Provider>>, ProviderError> {
        Ok(Some(Arc::new(self.instance())))
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        // The answer owns the instance, whose drop terminates the session.
        self.instance().stream(request, context).await
    }
}

#[derive(Clone)]
struct Shared(Arc<dyn Backend>);

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

/// The provider of one conversation.
struct Instance(Arc<Owner>);

/// Owns a conversation's session, and terminates it when nobody else does.
pub(super) struct Owner {
    backend: Shared,
    pub(super) limits: BackendLimits,
    state: Mutex<State>,
    /// Held by the turn in flight, until it is over at the backend too.
    turn: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    /// The last prompt that sessions of before had finished, by their keys.
    finished: HashMap<String, u64>,
    closed: bool,
}

/// The session in use.
struct Live {
    session: Arc<dyn BackendSession>,
    key: String,
    /// Prompts that it was given.
    prompts: u64,
    /// The prompt of the last turn that it finished.
    finished: u64,
    options: SessionOptions,
    /// Where it was made, and is terminated.
    runtime: Handle,
}

impl Owner {
    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing behind it is ever half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &str {
        self.backend.0.name()
    }

    pub(super) fn can(&self) -> Capabilities {
        self.backend.0.capabilities()
    }

    /// Brings a session to where the conversation is.
    async fn reach(&self, conversation: &Conversation, options: SessionOptions) -> Result<(), BackendError> {
        let can = ask("capabilities", || self.can())?;
        let way = {
            let state = self.state();
            let live = state.live.as_ref().map(|live| Seen { key: &live.key, finished: live.finished });
            route(conversation, live, &state.finished, can)?
        };
        let (backend, limit) = (&*self.backend.0, self.limits.start);
        let fresh = || format!("{:016x}", rand::random::<u64>());
        let (session, key, prompts) = match way {
            Route::Stay => return Ok(()),
            Route::Start => {
                (call("start", limit, async { backend.start(&options).await }).await?, fresh(), 0)
            }
            Route::Fork(place) => {
                let fork = call("fork", limit, async { backend.fork(&place, &options).await });
                (fork.await?, fresh(), place.prompts)
            }
            Route::Resume(position, id) => {
                let resume = call("resume", limit, async { backend.resume(&id, &options).await });
                let session = resume.await?;
                match position.place().filter(|place| is_elsewhere(&*session, place)) {
                    Some(place) => {
                        self.end(session);
                        if !can.fork {
                            return Err(elsewhere());
                        }
                        let fork = call("fork", limit, async { backend.fork(&place, &options).await });
                        (fork.await?, fresh(), place.prompts)
                    }
                    None => (session, position.key, position.prompts),
                }
            }
        };
        let runtime = Handle::current();
        let live = Live { session, key, prompts, finished: prompts, options, runtime };
        let (before, closed) = {
            let mut state = self.state();
            if state.closed { (Some(live), true) } else { (state.live.replace(live), false) }
        };
        if let Some(before) = before {
            self.retire(before);
        }
        if closed { Err(BackendError::Ended("the conversation was closed".to_owned())) } else { Ok(()) }
    }

    /// Counts a prompt, and says what it is given to.
    fn begin(&self) -> Result<(Arc<dyn BackendSession>, SessionOptions), BackendError> {
        let mut state = self.state();
        let live = state.live.as_mut().ok_or_else(|| BackendError::Ended("it was closed".to_owned()))?;
        live.prompts += 1;
        Ok((Arc::clone(&live.session), live.options.clone()))
    }

    /// The prompt was not taken.
    fn take_back(&self, session: &Arc<dyn BackendSession>) {
        if let Some(live) = self.state().live.as_mut().filter(|live| Arc::ptr_eq(&live.session, session)) {
            live.prompts -= 1;
        }
    }

    /// The session has finished its turn.
    pub(super) fn finish(&self, session: &Arc<dyn BackendSession>) {
        if let Some(live) = self.state().live.as_mut().filter(|live| Arc::ptr_eq(&live.session, session)) {
            live.finished = live.prompts;
        }
    }

    /// Where the session is, for its answer to tell.
    pub(super) fn position(&self, session: &Arc<dyn BackendSession>) -> Result<Position, BackendError> {
        let (id, checkpoint) = ask("id", || (session.id(), session.checkpoint()))?;
        let state = self.state();
        match state.live.as_ref().filter(|live| Arc::ptr_eq(&live.session, session)) {
            Some(live) => {
                Ok(Position { key: live.key.clone(), session: id, prompts: live.prompts, checkpoint })
            }
            None => Err(BackendError::Ended("it was closed".to_owned())),
        }
    }

    /// Lets go of a session that is of no use any more.
    pub(super) fn lose(&self, session: &Arc<dyn BackendSession>) {
        let lost = {
            let mut state = self.state();
            state.live.take_if(|live| Arc::ptr_eq(&live.session, session))
        };
        if let Some(lost) = lost {
            self.retire(lost);
        }
    }

    fn retire(&self, live: Live) {
        self.state().finished.insert(live.key, live.finished);
        drop(terminate(live.session, &live.runtime, self.limits.terminate));
    }

    /// Lets go of a session that was not taken into use.
    fn end(&self, session: Arc<dyn BackendSession>) {
        drop(terminate(session, &Handle::current(), self.limits.terminate));
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
        let options = SessionOptions { model: request.model, system: request.system };
        self.reach(&conversation, options.clone()).await.map_err(before)?;
        let (session, started_with) = self.begin().map_err(before)?;
        let mut warnings = Vec::new();
        if started_with != options {
            warnings
                .push(format!("`{name}` goes on with the model and the system prompt it was started with"));
        }
        if !request.tools.is_empty() {
            warnings.push(format!("`{name}` has tools of its own and was not offered those of the agent"));
        }
        let prompt = TurnPrompt { messages: conversation.new, options: request.options };
        let mut turn = Turn::new(Arc::clone(self), Arc::clone(&session), permit);
        let events = match call("prompt", self.limits.prompt, async { session.prompt(prompt).await }).await {
            Ok(events) => events,
            // It may have been taken: its turn is cancelled, and it is not sent again.
            Err(error @ BackendError::Timeout { call: "prompt", .. }) => return Err(error.in_turn()),
            Err(error) => {
                self.take_back(&session);
                turn.over(error.is_final());
                return Err(error.before_prompt());
            }
        };
        exchange::stream(turn, events, name, warnings, context).map_err(BackendError::in_turn)
    }
}

/// Whether a resumed session says that it is not at this place.
fn is_elsewhere(session: &dyn BackendSession, place: &Place) -> bool {
    let here = ask("checkpoint", || session.checkpoint()).ok().flatten();
    here.is_some() && place.checkpoint.is_some() && here != place.checkpoint
}

impl Drop for Owner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = state.live.take() {
            drop(terminate(live.session, &live.runtime, self.limits.terminate));
        }
    }
}

#[async_trait]
impl Provider for Instance {
    fn name(&self) -> &str {
        self.0.name()
    }

    async fn stream(&self, request: Request, context: RequestContext) -> Result<DeltaStream, ProviderError> {
        // A turn that was cancelled is over within the limit for that; another request waits for its own.
        let permit = Arc::clone(&self.0.turn).acquire_owned().await.expect("the semaphore is never closed");
        self.0.prompt(request, context, permit).await
    }

    async fn close(&self) {
        let owner = &self.0;
        owner.state().closed = true;
        // A cancel that goes on is waited for; it has its limit.
        let _permit = timeout(owner.limits.cancel, owner.turn.acquire()).await;
        let live = owner.state().live.take();
        if let Some(live) = live {
            let done = terminate(live.session, &live.runtime, owner.limits.terminate);
            // Closed, not sent, when it is done.
            let _ = done.await;
        }
    }
}

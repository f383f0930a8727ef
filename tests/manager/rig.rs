//! Test helpers: a scripted store that counts its calls, and agents that are tracked from `init` to their end.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::FutureExt;
use omni_agent::{
    agent::{Agent, AgentBuilder, AgentCallbacks, State, StateEdit, WeakAgent},
    manager::{Manager, ManagerBuilder, ManagerEvent, ManagerSnapshot, Titles},
    run::Prompt,
    session::Session,
    store::{
        ConversationId, Listing, MemoryStore, Store, StoreError, Summary,
        custom::{Change, Lease, StateChange, Stored, Version, Write},
    },
    subscription::{EndReason, Subscription, Update},
    testing::{Gate, ScriptedProvider, Step},
};
use tokio::task::unconstrained;

/// A method of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Create,
    Commit,
    State,
    Load,
    Summary,
    List,
    Delete,
}

/// The behaviour of the store for one call.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Work,
    /// The call works once the gate is open.
    Wait(Gate),
    /// The call works after this time.
    Slow(Duration),
    /// The call fails without any effect.
    Fail,
    /// The call never returns, and has no effect.
    Hang,
    Panic,
}

type Mood = Box<dyn FnMut(Call, &ConversationId) -> Act + Send>;

/// A store whose behaviour the test chooses. Clones share one store.
#[derive(Clone)]
pub(crate) struct MoodyStore(Arc<Inner>);

struct Inner {
    beneath: MemoryStore,
    mood: Mutex<Mood>,
    calls: Mutex<HashMap<(Call, ConversationId), usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MoodyStore {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner {
            beneath: MemoryStore::new(),
            mood: Mutex::new(Box::new(|_, _| Act::Work)),
            calls: Mutex::default(),
        }))
    }

    /// Sets the behaviour for all calls from now on.
    pub(crate) fn mood(&self, mood: impl FnMut(Call, &ConversationId) -> Act + Send + 'static) {
        *lock(&self.0.mood) = Box::new(mood);
    }

    /// Sets the behaviour for all calls of this method from now on. Calls of all other methods work.
    pub(crate) fn make(&self, which: Call, act: Act) {
        self.mood(move |call, _| if call == which { act.clone() } else { Act::Work });
    }

    /// Sets the behaviour for the next calls of this method. All other calls work.
    pub(crate) fn script(&self, which: Call, acts: impl IntoIterator<Item = Act>) {
        let mut acts = acts.into_iter().collect::<Vec<_>>().into_iter();
        self.mood(move |call, _| if call == which { acts.next().unwrap_or(Act::Work) } else { Act::Work });
    }

    /// The underlying store, which always works.
    pub(crate) fn beneath(&self) -> &MemoryStore {
        &self.0.beneath
    }

    /// Changes the stored system prompt, as another process would.
    pub(crate) async fn meddle(&self, id: &ConversationId) {
        let Stored { version, mut state, .. } = self.0.beneath.load(id).await.unwrap();
        state.settings.system = Some("Theirs.".into());
        self.0
            .beneath
            .write(id, &Write::on(version), &Change::State(StateChange::whole(state)))
            .await
            .unwrap();
    }

    /// Returns how often this method was called for this conversation.
    pub(crate) fn calls(&self, call: Call, id: &ConversationId) -> usize {
        lock(&self.0.calls).get(&(call, id.clone())).copied().unwrap_or_default()
    }

    pub(crate) fn manager(&self) -> ManagerBuilder {
        Manager::builder(Arc::new(self.clone())).titles(Titles::Off)
    }

    /// Stores a conversation that is not open.
    pub(crate) async fn put(&self, name: &str) -> ConversationId {
        let id = id(name);
        let store: Arc<dyn Store> = Arc::new(self.0.beneath.clone());
        let session = Session::builder(store).agent(parrot()).create_with_id(id.clone()).await.unwrap();
        session.stop(secs(1)).await.unwrap();
        id
    }

    async fn act(&self, call: Call, id: &ConversationId) -> Result<(), StoreError> {
        *lock(&self.0.calls).entry((call, id.clone())).or_default() += 1;
        let act = lock(&self.0.mood)(call, id);
        match act {
            Act::Work => {}
            Act::Wait(gate) => gate.pass().await,
            Act::Slow(time) => tokio::time::sleep(time).await,
            Act::Fail => return Err(StoreError::failed(format!("{call:?}"), fmt::Error)),
            Act::Hang => std::future::pending().await,
            Act::Panic => panic!("the store broke"),
        }
        Ok(())
    }
}

#[async_trait]
impl Store for MoodyStore {
    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let call = match change {
            Change::Create(_) => Call::Create,
            Change::Commit(_) => Call::Commit,
            _ => Call::State,
        };
        self.act(call, id).await?;
        self.0.beneath.write(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.act(Call::Load, id).await?;
        self.0.beneath.load(id).await
    }

    async fn summary(&self, id: &ConversationId) -> Result<Summary, StoreError> {
        self.act(Call::Summary, id).await?;
        self.0.beneath.summary(id).await
    }

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.act(Call::List, &id("-")).await?;
        self.0.beneath.list(listing).await
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.act(Call::Delete, id).await?;
        self.0.beneath.delete(id, lease).await
    }
}

pub(crate) fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Awaits `future`, and fails the test if that takes longer than an hour of paused time.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(1), future).await.expect("nothing came")
}

/// Asserts that a future does not finish within a minute of paused time.
pub(crate) async fn not_yet<T>(future: &mut (impl Future<Output = T> + Unpin)) {
    assert!(tokio::time::timeout(secs(60), future).await.is_err(), "the future should have waited");
}

/// Lets all tasks run until each of them waits for time or for an event. Advances the paused clock by 1 ms.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Polls a future at most this many times, and lets other tasks run in between. Returns the output if the future
/// finishes in time.
pub(crate) async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    for _ in 0..times {
        if let Some(output) = future.as_mut().now_or_never() {
            return Some(output);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// Returns an agent that answers each prompt with `re:` and the text of the prompt.
pub(crate) fn parrot() -> AgentBuilder {
    let provider = ScriptedProvider::from_fn(|request| {
        Step::text(format!("re: {}", request.history.last().map(|said| said.text()).unwrap_or_default()))
    });
    Agent::builder().model(provider.model())
}

/// An agent with a scripted model.
pub(crate) fn scripted(steps: impl IntoIterator<Item = Step>) -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::new(steps).model())
}

/// Returns an answer that waits at a gate.
pub(crate) fn held(gate: &Gate, text: &str) -> Step {
    Step::new().gate(gate).then_text([text]).stop()
}

/// Counts the living agents of each conversation. A conversation must never have two living agents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lives(Arc<Mutex<Ledger>>);

#[derive(Debug, Default)]
struct Ledger {
    living: HashMap<ConversationId, usize>,
    begun: HashMap<ConversationId, usize>,
    wrongs: Vec<String>,
}

impl Lives {
    /// Returns how many agents this conversation has had.
    pub(crate) fn begun(&self, id: &ConversationId) -> usize {
        lock(&self.0).begun.get(id).copied().unwrap_or_default()
    }

    /// The number of living agents.
    pub(crate) fn living(&self) -> usize {
        lock(&self.0).living.values().sum()
    }

    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert_eq!(lock(&self.0).wrongs, Vec::<String>::new());
    }

    fn begin(&self, id: ConversationId) -> Life {
        let mut ledger = lock(&self.0);
        *ledger.begun.entry(id.clone()).or_default() += 1;
        let living = ledger.living.entry(id.clone()).or_default();
        *living += 1;
        if *living > 1 {
            let wrong = format!("{id} has {living} agents");
            ledger.wrongs.push(wrong);
        }
        Life { lives: self.clone(), id }
    }
}

/// Counts an agent as living. The count is lowered when this value is dropped.
struct Life {
    lives: Lives,
    id: ConversationId,
}

impl Drop for Life {
    fn drop(&mut self) {
        if let Some(living) = lock(&self.lives.0).living.get_mut(&self.id) {
            *living -= 1;
        }
    }
}

/// Callbacks whose behaviour in `init` and `terminate` the test chooses. Their agent is counted as living from `init`
/// until `terminate` returns or the callbacks are dropped.
#[derive(Default)]
pub(crate) struct Hooks {
    pub(crate) lives: Lives,
    pub(crate) init: Option<Act>,
    pub(crate) terminate: Option<Act>,
    life: Option<Life>,
}

impl Hooks {
    pub(crate) fn of(lives: &Lives) -> Self {
        Self { lives: lives.clone(), ..Self::default() }
    }

    pub(crate) fn init(self, act: Act) -> Self {
        Self { init: Some(act), ..self }
    }

    pub(crate) fn terminate(self, act: Act) -> Self {
        Self { terminate: Some(act), ..self }
    }
}

async fn perform(act: Option<&Act>) -> Result<(), fmt::Error> {
    match act {
        None | Some(Act::Work) => Ok(()),
        Some(Act::Wait(gate)) => {
            gate.pass().await;
            Ok(())
        }
        Some(Act::Slow(time)) => {
            tokio::time::sleep(*time).await;
            Ok(())
        }
        Some(Act::Fail) => Err(fmt::Error),
        Some(Act::Hang) => std::future::pending().await,
        Some(Act::Panic) => panic!("the callback broke"),
    }
}

/// The reaction of `handle_event` to an application event.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    /// The agent stops itself.
    End,
    Panic,
}

#[async_trait]
impl AgentCallbacks for Hooks {
    async fn init(
        &mut self,
        _: &mut StateEdit,
        state: &State,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let id = state
            .extensions()
            .get::<ConversationId>()
            .expect("the agent of a session has its id as an extension")
            .clone();
        self.life = Some(self.lives.begin(id));
        Ok(perform(self.init.as_ref()).await?)
    }

    async fn handle_event(
        &mut self,
        event: Box<dyn std::any::Any + Send>,
        state: &mut State,
    ) -> Option<Prompt> {
        match *event.downcast::<Do>().expect("the event is sent by these tests") {
            Do::End => end(state.agent()),
            Do::Panic => panic!("the callback broke"),
        }
        None
    }

    async fn terminate(&mut self, _: &EndReason, _: &State) {
        // The agent counts as ended when this method returns or its future is dropped.
        let _life = self.life.take();
        let _ = perform(self.terminate.as_ref()).await;
    }
}

fn end(agent: &WeakAgent) {
    let agent = agent.upgrade();
    tokio::spawn(async move {
        if let Some(agent) = agent {
            let _ = agent.stop(secs(5)).await;
        }
    });
}

/// A snapshot built from the manager's events. It also checks that each opened session is closed exactly once.
pub(crate) struct Watch {
    pub(crate) events: Subscription<ManagerSnapshot, ManagerEvent>,
    pub(crate) view: ManagerSnapshot,
    pub(crate) closed: Vec<(ConversationId, EndReason)>,
    pub(crate) seen: Vec<ManagerEvent>,
    pub(crate) end: Option<EndReason>,
}

impl Watch {
    pub(crate) fn new(manager: &Manager) -> Self {
        let events = manager.subscribe();
        let view = events.snapshot().unwrap().as_ref().clone();
        Self { events, view, closed: Vec::new(), seen: Vec::new(), end: None }
    }

    fn take(&mut self, update: Update<ManagerSnapshot, ManagerEvent>) {
        match update {
            Update::Event(numbered) => {
                let event = &*numbered.event;
                let is_open = |id: &ConversationId| self.view.open.iter().any(|open| open.id == *id);
                match event {
                    ManagerEvent::Opened { session } => assert!(!is_open(&session.id), "opened twice"),
                    ManagerEvent::Closed { id, reason } => {
                        assert!(is_open(id), "{id} was closed without being open");
                        self.closed.push((id.clone(), reason.clone()));
                    }
                    ManagerEvent::Status { id, .. } => assert!(is_open(id), "{id} is not open"),
                    _ => {}
                }
                self.view.apply(&numbered);
                assert_eq!(self.view.last, numbered.id);
                self.seen.push(event.clone());
            }
            Update::Resync(snapshot) => self.view = snapshot.as_ref().clone(),
            Update::Closed(end) => {
                if let Some(snapshot) = &end.snapshot {
                    assert_eq!(**snapshot, self.view);
                }
                self.end = Some(end.reason);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Applies the updates that are ready.
    pub(crate) fn catch_up(&mut self) {
        // The loop does not yield, so no other task runs meanwhile.
        while self.end.is_none()
            && let Some(Some(update)) = unconstrained(self.events.next()).now_or_never()
        {
            self.take(update);
        }
    }

    /// Applies the next update.
    pub(crate) async fn next(&mut self) {
        let update = in_time(self.events.next()).await.expect("another update follows");
        self.take(update);
    }

    /// Applies the updates that are ready, and checks that the snapshot equals the manager's own snapshot.
    pub(crate) fn assert_agrees(&mut self, manager: &Manager) {
        self.catch_up();
        assert_eq!(self.view, *manager.subscribe().snapshot().unwrap().as_ref());
        assert_eq!(self.view.open, manager.list_open());
    }

    /// Returns the events of this conversation in a short form.
    pub(crate) fn words(&self, id: &ConversationId) -> Vec<&'static str> {
        let word = |event: &ManagerEvent| match event {
            ManagerEvent::Opened { session } if session.id == *id => Some("opened"),
            ManagerEvent::Status { id: of, .. } if of == id => Some("status"),
            ManagerEvent::Title { id: of, .. } if of == id => Some("title"),
            ManagerEvent::Closed { id: of, .. } if of == id => Some("closed"),
            ManagerEvent::Deleted { id: of } if of == id => Some("deleted"),
            ManagerEvent::Waiting { id: of } if of == id => Some("waiting"),
            ManagerEvent::GivenUp { id: of } if of == id => Some("given up"),
            _ => None,
        };
        self.seen.iter().filter_map(word).collect()
    }
}

/// The number of tasks in this runtime.
pub(crate) fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

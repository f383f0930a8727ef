//! Helpers for tests that save conversations: a scripted store, and sessions that use this store.

use std::{
    collections::VecDeque,
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder, Config},
    message::{Content, Message, Role},
    provider::{ProviderError, ProviderErrorKind},
    session::{Mode, Session, SessionEvent, SessionSubscription, StoreReport},
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, StateChange, StoreTraits, Stored, StoredState, Version, Write},
    },
    subscription::{Numbered, Update},
    testing::{Gate, ScriptedProvider, Step},
    tree::{NodeId, Tree},
};
use tokio::{sync::Semaphore, time::Instant};

/// The behaviour of the store for one write.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Work,
    /// Writes when the gate has been opened.
    Wait(Gate),
    /// Writes after this time.
    Slow(Duration),
    /// Fails without writing.
    Fail,
    /// Fails with this error.
    Refuse(StoreError),
    /// Writes, but returns an error.
    LoseWord,
    /// Never answers, and writes nothing.
    Hang,
    /// Writes, but never answers.
    HangAfter,
    Panic,
    /// Blocks its thread until the lock is opened, and then writes.
    Block(Lock),
}

/// A lock that blocks a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lock(Arc<(Mutex<bool>, Condvar)>);

impl Lock {
    pub(crate) fn open(&self) {
        *lock(&self.0.0) = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let opened = self.0.1.wait_while(lock(&self.0.0), |open| !*open);
        drop(opened.unwrap_or_else(PoisonError::into_inner));
    }
}

/// One attempt to write.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    /// The write in the form in which the store received it.
    pub(crate) what: (Write, Change),
    pub(crate) at: Instant,
}

impl Tried {
    /// Returns the numbers of the nodes in the write.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        match &self.what.1 {
            Change::Commit(commit) => commit.nodes.iter().map(|node| node.id().get()).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the whole state, if the write contains it.
    pub(crate) fn state(&self) -> Option<&StoredState> {
        match &self.what.1 {
            Change::Create(state) | Change::State(StateChange::Whole(state)) => Some(state),
            Change::Commit(commit) => commit.state.as_deref(),
            _ => None,
        }
    }

    /// Returns the kind of the write in a short form.
    fn word(&self) -> &'static str {
        match &self.what.1 {
            Change::Create(_) => "create",
            Change::Commit(commit) if commit.state.is_some() => "commit with state",
            Change::Commit(_) => "commit",
            Change::State(StateChange::Title { .. }) => "title",
            _ => "state",
        }
    }
}

type Otherwise = Box<dyn FnMut() -> Act + Send>;

/// A store whose writes follow a script. After the end of the script, all writes work. The store records each write
/// that contains a secret, and each write after which the stored conversation is invalid.
#[derive(Clone)]
pub(crate) struct ScriptedStore(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    script: Mutex<VecDeque<Act>>,
    otherwise: Mutex<Otherwise>,
    tried: Mutex<Vec<Tried>>,
    /// The number of permits equals the number of attempted writes for which no test has waited yet.
    arrivals: Semaphore,
    wrongs: Mutex<Vec<String>>,
    /// Each write in progress holds one clone of this pointer.
    open: Arc<()>,
    /// The largest number of writes that were in progress at the same time.
    most: AtomicUsize,
    fails_loads: AtomicBool,
    keeps_usage: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ScriptedStore {
    pub(crate) fn new(script: impl IntoIterator<Item = Act>) -> Self {
        Self::over(Arc::new(MemoryStore::new()), script)
    }

    /// Returns a scripted store that writes to another store.
    pub(crate) fn over(store: Arc<dyn Store>, script: impl IntoIterator<Item = Act>) -> Self {
        Self(Arc::new(Inner {
            store,
            script: Mutex::new(script.into_iter().collect()),
            otherwise: Mutex::new(Box::new(|| Act::Work)),
            tried: Mutex::default(),
            arrivals: Semaphore::new(0),
            wrongs: Mutex::default(),
            open: Arc::default(),
            most: AtomicUsize::new(0),
            fails_loads: AtomicBool::new(false),
            keeps_usage: AtomicBool::new(false),
        }))
    }

    /// Sets the behaviour after the end of the script.
    pub(crate) fn otherwise(&self, act: impl FnMut() -> Act + Send + 'static) {
        *lock(&self.0.otherwise) = Box::new(act);
    }

    pub(crate) fn as_dyn(&self) -> Arc<dyn Store> {
        Arc::new(self.clone())
    }

    /// Makes loads fail from now on, or makes them work again.
    pub(crate) fn fail_loads(&self, fails: bool) {
        self.0.fails_loads.store(fails, Ordering::Relaxed);
    }

    /// Makes sessions that start from now on send the rows of the usage ledger.
    pub(crate) fn keep_usage(&self) {
        self.0.keeps_usage.store(true, Ordering::Relaxed);
    }

    /// The underlying store, which always works.
    pub(crate) fn beneath(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Waits for the next attempted write. Each attempt ends only one wait.
    pub(crate) async fn arrival(&self) {
        let arrival = tokio::time::timeout(secs(300), self.0.arrivals.acquire()).await;
        arrival.expect("no write was attempted").unwrap().forget();
    }

    pub(crate) fn tried(&self) -> Vec<Tried> {
        lock(&self.0.tried).clone()
    }

    /// The largest number of writes that were in progress at the same time.
    pub(crate) fn most_at_once(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }

    /// Returns the kinds of the attempted writes in a short form.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        self.tried().iter().map(Tried::word).collect()
    }

    /// Returns the stored nodes as a tree.
    pub(crate) async fn tree(&self, id: &ConversationId) -> Tree {
        tree_in(&**self.beneath(), id).await
    }

    /// Asserts that no write contained a secret or left an invalid conversation behind.
    #[track_caller]
    pub(crate) fn assert_sound(&self) {
        assert_eq!(*lock(&self.0.wrongs), Vec::<String>::new());
    }

    fn next(&self, what: (Write, Change)) -> Act {
        let tried = Tried { what, at: Instant::now() };
        if let Some(state) = tried.state()
            && (state.settings.options.api_key().is_some() || state.settings.options.headers().is_some())
        {
            lock(&self.0.wrongs).push(format!("a secret in {tried:?}"));
        }
        lock(&self.0.tried).push(tried);
        self.0.arrivals.add_permits(1);
        let next = lock(&self.0.script).pop_front();
        next.unwrap_or_else(|| lock(&self.0.otherwise)())
    }

    /// Records an error if the stored head is an unanswered prompt, or if the stored nodes do not form a valid tree.
    async fn look(&self, id: &ConversationId) {
        let Ok(stored) = self.0.store.load(id).await else { return };
        let wrong = match Tree::hydrate(stored.nodes, stored.head, stored.cursors) {
            Err(error) => Some(error.to_string()),
            Ok(tree) => tree.history().check().err().map(|error| error.to_string()).or_else(|| {
                let head = tree.head().and_then(|head| tree.node(head))?;
                is_prompt(head.message()).then(|| format!("the head is a bare prompt:\n{tree}"))
            }),
        };
        lock(&self.0.wrongs).extend(wrong);
    }
}

fn is_prompt(message: &Message) -> bool {
    let is_result = |content: &Content| matches!(content, Content::ToolResult(_));
    message.role == Role::User && !message.content.iter().any(is_result)
}

#[async_trait]
impl Store for ScriptedStore {
    forward!(self.0.store: summary, list, delete);

    fn traits(&self) -> StoreTraits {
        let usage = self.0.keeps_usage.load(Ordering::Relaxed);
        StoreTraits::default().with_turns(self.0.store.traits().turns).with_usage(usage)
    }

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let broken = || StoreError::failed("writing", fmt::Error);
        let open = Arc::clone(&self.0.open);
        self.0.most.fetch_max(Arc::strong_count(&open) - 1, Ordering::Relaxed);
        let act = self.next((*write, change.clone()));
        match &act {
            Act::Work | Act::LoseWord | Act::HangAfter => {}
            Act::Wait(gate) => gate.pass().await,
            Act::Slow(time) => tokio::time::sleep(*time).await,
            Act::Block(lock) => lock.pass(),
            Act::Fail => return Err(broken()),
            Act::Refuse(error) => return Err(error.clone()),
            Act::Hang => std::future::pending().await,
            Act::Panic => panic!("the store broke"),
        }
        let version = self.0.store.write(id, write, change).await?;
        self.look(id).await;
        match act {
            Act::LoseWord => Err(broken()),
            Act::HangAfter => std::future::pending().await,
            _ => Ok(version),
        }
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        if self.0.fails_loads.load(Ordering::Relaxed) {
            return Err(StoreError::failed("loading", fmt::Error));
        }
        self.0.store.load(id).await
    }
}

pub(crate) async fn tree_in(store: &dyn Store, id: &ConversationId) -> Tree {
    let stored = store.load(id).await.unwrap();
    Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap()
}

pub(crate) fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
}

pub(crate) fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns an agent that answers each prompt with `re:` and the text of the prompt.
pub(crate) fn parrot() -> AgentBuilder {
    let provider = ScriptedProvider::from_fn(|request| {
        Step::text(format!("re: {}", request.history.last().map(|said| said.text()).unwrap_or_default()))
    });
    Agent::builder().model(provider.model())
}

/// An agent that answers with these steps.
pub(crate) fn scripted(steps: impl IntoIterator<Item = Step>) -> AgentBuilder {
    Agent::builder().model(ScriptedProvider::new(steps).model())
}

/// An answer that waits at a gate.
pub(crate) fn held(gate: &Gate, text: &str) -> Step {
    Step::new().gate(gate).then_text([text]).stop()
}

/// A request that fails with an error that is not retried.
pub(crate) fn failing() -> Step {
    Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"))
}

/// Creates a conversation with this id, without using the script. Then opens the conversation on the scripted store.
pub(crate) async fn created(store: &ScriptedStore, name: &str, agent: AgentBuilder) -> Session {
    let made =
        Session::builder(Arc::clone(store.beneath())).agent(parrot()).create_with_id(id(name)).await.unwrap();
    made.stop(secs(1)).await.unwrap();
    drop(made);
    Session::builder(store.as_dyn()).agent(agent).open(id(name)).await.unwrap()
}

/// Asserts that the tree's path equals the agent's history, and that the store contains the whole tree.
pub(crate) async fn assert_agree(session: &Session, store: &ScriptedStore) {
    session.flush(secs(3600)).await.unwrap();
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!(*snapshot.tree.history(), snapshot.agent.state.history);
    assert_eq!(store.tree(session.id()).await, snapshot.tree);
    assert_eq!(snapshot.unsaved, []);
    assert_eq!(snapshot.store, None);
    store.assert_sound();
}

pub(crate) async fn watch(session: &Session) -> SessionSubscription {
    session.subscribe(Mode::Observer).await.unwrap()
}

/// Changes the configuration, and asserts that the session accepts the change.
pub(crate) async fn configure(session: &Session, edit: impl FnOnce(&mut Config) + Send + 'static) {
    let edit = |config: &mut Config| {
        edit(config);
        Ok(())
    };
    session.configure(edit).await.unwrap();
}

/// The next event.
pub(crate) async fn event(events: &mut SessionSubscription) -> Arc<SessionEvent> {
    numbered(events).await.event
}

/// The next event, with its number.
pub(crate) async fn numbered(events: &mut SessionSubscription) -> Numbered<SessionEvent> {
    match tokio::time::timeout(secs(300), events.next()).await.expect("no event arrived") {
        Some(Update::Event(event)) => event,
        other => panic!("expected an event, got {other:?}"),
    }
}

/// Returns the next report about a write to the store.
pub(crate) async fn report(events: &mut SessionSubscription) -> StoreReport {
    loop {
        if let SessionEvent::Store(report) = &*event(events).await {
            return report.clone();
        }
    }
}

/// Asserts that the session answers every query immediately, no matter how the store behaves.
pub(crate) async fn assert_answers(session: &Session) {
    let start = Instant::now();
    session.status().await.unwrap();
    session.state().await.unwrap();
    session.tree().await.unwrap();
    session.title().await.unwrap();
    session.snapshot().await.unwrap();
    drop(watch(session).await);
    assert_eq!(start.elapsed(), Duration::ZERO);
}

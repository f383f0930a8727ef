//! Helpers for the manager's tests.

use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    Error,
    agent::{Agent, AgentBuilder},
    manager::{Activity, Manager, ManagerEvent, ManagerSnapshot, OpenOptions, OpenedSession},
    session::Session,
    store::{
        ConversationId, MemoryStore, Store, StoreError,
        custom::{Change, Lease, Stored, Version, Write},
    },
    subscription::{Subscription, Update},
    testing::{Gate, ScriptedProvider, Step},
};

/// Awaits `future`, and fails the test if that takes longer than an hour of paused time.
pub(crate) async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_hours(1), future).await.expect("nothing came")
}

/// Lets all tasks run until each of them waits for time or for an event. Advances the paused clock by 1 ms.
pub(crate) async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

pub(crate) fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn id(text: &str) -> ConversationId {
    ConversationId::new(text).unwrap()
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

/// Returns an agent whose answers wait at the gate after the first word.
pub(crate) fn held(gate: &Gate) -> AgentBuilder {
    let gate = gate.clone();
    let provider = ScriptedProvider::from_fn(move |_| Step::new().then_text(["Half"]).gate(&gate).stop());
    Agent::builder().model(provider.model())
}

/// Returns options for opening a session without a controller.
pub(crate) fn alone(agent: AgentBuilder) -> OpenOptions {
    OpenOptions::new(agent).subscribe(None)
}

/// Creates a conversation with this id and without a controller.
pub(crate) async fn create(manager: &Manager, name: &str, agent: AgentBuilder) -> Session {
    in_time(manager.create_with_id(&id(name), alone(agent))).await.unwrap().session
}

/// Opens a conversation in another task, so that it may wait.
pub(crate) fn opening(
    manager: &Manager,
    name: &str,
    start: impl Into<OpenOptions>,
) -> tokio::task::JoinHandle<Result<OpenedSession, Error>> {
    let (manager, name, start) = (manager.clone(), id(name), start.into());
    tokio::spawn(async move { manager.open(&name, start).await })
}

/// The ids of the open sessions, in order.
pub(crate) fn open_ids(manager: &Manager) -> Vec<String> {
    manager.list_open().iter().map(|open| open.id.to_string()).collect()
}

pub(crate) fn waiting_ids(manager: &Manager) -> Vec<String> {
    manager.subscribe().snapshot().unwrap().waiting.iter().map(ToString::to_string).collect()
}

pub(crate) fn activity(manager: &Manager, name: &str) -> Option<Activity> {
    manager.list_open().into_iter().find(|open| open.id == id(name)).map(|open| open.activity)
}

/// A subscription, and the snapshot that was built from its events.
pub(crate) struct Feed {
    events: Subscription<ManagerSnapshot, ManagerEvent>,
    pub(crate) view: ManagerSnapshot,
    manager: Manager,
}

impl Feed {
    pub(crate) fn of(manager: &Manager) -> Self {
        let events = manager.subscribe();
        let view = events.snapshot().unwrap().as_ref().clone();
        Self { events, view, manager: manager.clone() }
    }

    /// Returns the events since the last call in a short form. Checks that the snapshot built from all events equals
    /// the manager's own snapshot.
    pub(crate) async fn news(&mut self) -> Vec<String> {
        let mut news = Vec::new();
        while let Ok(update) = tokio::time::timeout(Duration::from_millis(1), self.events.next()).await {
            let Some(Update::Event(numbered)) = update else { panic!("expected an event, got {update:?}") };
            self.view.apply(&numbered);
            assert_eq!(self.view.last, numbered.id);
            news.push(brief(&numbered.event));
        }
        assert_eq!(self.view, **self.manager.subscribe().snapshot().unwrap());
        news
    }

    /// Returns all events until the feed ends. Checks that the manager's last snapshot equals the snapshot built from
    /// the events.
    pub(crate) async fn closed(mut self) -> Vec<String> {
        let mut news = Vec::new();
        loop {
            match in_time(self.events.next()).await {
                Some(Update::Event(numbered)) => {
                    self.view.apply(&numbered);
                    news.push(brief(&numbered.event));
                }
                Some(Update::Closed(end)) => {
                    assert_eq!(*end.snapshot.unwrap(), self.view);
                    assert!(self.view.open.is_empty() && self.view.waiting.is_empty());
                    assert!(in_time(self.events.next()).await.is_none());
                    return news;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

fn brief(event: &ManagerEvent) -> String {
    match event {
        ManagerEvent::Waiting { id } => format!("{id} waits"),
        ManagerEvent::GivenUp { id } => format!("{id} given up"),
        ManagerEvent::Opened { session } => format!("{} opened", session.id),
        ManagerEvent::Status { id, activity } => format!("{id} {activity:?}").to_lowercase(),
        ManagerEvent::Title { id, title } => format!("{id} titled {}", title.as_deref().unwrap_or("-")),
        ManagerEvent::Closed { id, .. } => format!("{id} closed"),
        ManagerEvent::Deleted { id } => format!("{id} deleted"),
        other => format!("{other:?}"),
    }
}

/// The behaviour of the store for one call.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Work,
    Fail,
    Hang,
    Panic,
    Wait(Gate),
}

/// A store whose loads, writes and deletions behave as the test commands.
#[derive(Clone, Default)]
pub(crate) struct CommandedStore(Arc<Orders>);

#[derive(Default)]
struct Orders {
    store: MemoryStore,
    loads: Mutex<VecDeque<Act>>,
    writes: Mutex<VecDeque<Act>>,
    deletes: Mutex<VecDeque<Act>>,
    writes_fail: Mutex<bool>,
}

impl CommandedStore {
    pub(crate) fn manager(&self) -> omni_agent::manager::ManagerBuilder {
        Manager::builder(Arc::new(self.clone()))
    }

    pub(crate) fn beneath(&self) -> &MemoryStore {
        &self.0.store
    }

    /// Sets the behaviour of the next loads. Later loads work.
    pub(crate) fn loads(&self, acts: impl IntoIterator<Item = Act>) {
        self.0.loads.lock().unwrap().extend(acts);
    }

    pub(crate) fn writes(&self, acts: impl IntoIterator<Item = Act>) {
        self.0.writes.lock().unwrap().extend(acts);
    }

    pub(crate) fn deletes(&self, acts: impl IntoIterator<Item = Act>) {
        self.0.deletes.lock().unwrap().extend(acts);
    }

    /// Makes all writes fail from now on, or makes them work again.
    pub(crate) fn writes_fail(&self, fail: bool) {
        *self.0.writes_fail.lock().unwrap() = fail;
    }

    async fn act(&self, acts: &Mutex<VecDeque<Act>>) -> Result<(), StoreError> {
        let next = acts.lock().unwrap().pop_front().unwrap_or(Act::Work);
        match next {
            Act::Work => Ok(()),
            Act::Fail => Err(StoreError::failed("the test's store", fmt::Error)),
            Act::Hang => std::future::pending().await,
            Act::Panic => panic!("the store broke"),
            Act::Wait(gate) => {
                gate.pass().await;
                Ok(())
            }
        }
    }
}

#[async_trait]
impl Store for CommandedStore {
    forward!(self.0.store: summary, list);

    async fn write(
        &self,
        id: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        if *self.0.writes_fail.lock().unwrap() {
            return Err(StoreError::failed("the test's store", fmt::Error));
        }
        self.act(&self.0.writes).await?;
        self.0.store.write(id, write, change).await
    }

    async fn load(&self, id: &ConversationId) -> Result<Stored, StoreError> {
        self.act(&self.0.loads).await?;
        self.0.store.load(id).await
    }

    async fn delete(&self, id: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.act(&self.0.deletes).await?;
        self.0.store.delete(id, lease).await
    }
}

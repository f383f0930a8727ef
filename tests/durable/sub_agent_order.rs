//! Sub-agents whose process stops between two calls of the store.

use std::{
    error::Error,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentCallbacks, Durable, State, StateEdit, SubAgent},
    manager::{Manager, ManagerBuilder, OpenOptions, Sweep},
    store::{
        ConversationId, Labels, Listing, MemoryStore, Owner, Page, Store, StoreError, TurnSummary,
        custom::{Change, Lease, Turns, Version, Write},
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{Replay, Tool, tool_fn},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::stores::id;

/// A store that holds one of its calls, which begins with a text, at a gate: a creation before or after it happens, a
/// deletion before it happens, and a list after it was read.
#[derive(Clone)]
struct Holding {
    store: MemoryStore,
    held: Arc<Mutex<Option<&'static str>>>,
    gate: Gate,
}

impl Holding {
    fn new() -> Self {
        Self { store: MemoryStore::new(), held: Arc::default(), gate: Gate::new() }
    }

    fn hold(&self, call: &'static str) {
        *self.held.lock().unwrap() = Some(call);
    }

    async fn pass(&self, call: &str) {
        let is_held = self.held.lock().unwrap().take_if(|held| call.starts_with(*held)).is_some();
        if is_held {
            self.gate.pass().await;
        }
    }
}

#[async_trait]
impl Store for Holding {
    forward!(self.store: traits, load, summary, list, turn, acquire, release);

    async fn write(
        &self,
        own: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        let is_created = matches!(change, Change::Create(_));
        if is_created {
            self.pass(&format!("create {own}")).await;
        }
        let written = self.store.write(own, write, change).await;
        if is_created {
            self.pass(&format!("created {own}")).await;
        }
        written
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        let turns = self.store.turns(which, listing).await;
        self.pass("turns").await;
        turns
    }

    async fn delete(&self, own: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        self.pass(&format!("delete {own}")).await;
        self.store.delete(own, lease).await
    }
}

/// A root with a sub-agent, whose tool counts its calls and waits at a gate.
#[derive(Clone)]
struct Team {
    gate: Gate,
    worked: Arc<AtomicUsize>,
    init: Option<SubAgentInit>,
}

/// The `init` of the sub-agent. It waits at the gate, or sets the labels of the root if there is no gate.
#[derive(Clone)]
struct SubAgentInit(Manager, Option<Gate>);

#[async_trait]
impl AgentCallbacks for SubAgentInit {
    async fn init(&mut self, _: &mut StateEdit, _: &State) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &self.1 {
            Some(gate) => gate.pass().await,
            None => self.0.set_labels(&id("root"), tenant("new")).await?,
        }
        Ok(())
    }
}

fn tenant(name: &str) -> Labels {
    Labels::new([("tenant", name)]).unwrap()
}

impl Team {
    fn new() -> Self {
        Self { gate: Gate::new(), worked: Arc::default(), init: None }
    }

    fn options(&self, level: Durable) -> OpenOptions {
        let (own, init) = (self.clone(), self.init.clone());
        let sub = SubAgent::new("sub", "Works.", move |_| {
            let own = own.clone();
            let work = tool_fn("work", "Works.", move |_: Value, _| {
                let own = own.clone();
                async move {
                    own.worked.fetch_add(1, Ordering::SeqCst);
                    own.gate.pass().await;
                    Ok("worked")
                }
            });
            let agent = calling("work").tool(work.with_replay(Replay::Never));
            match init.clone() {
                Some(init) => agent.callbacks(init),
                None => agent,
            }
        });
        OpenOptions::new(calling("sub").tool(sub)).durable(level).subscribe(None)
    }
}

/// An agent that uses this tool once.
fn calling(tool: &'static str) -> omni_agent::agent::AgentBuilder {
    let provider = ScriptedProvider::from_fn(move |request| {
        let has_result = request.history.last().is_some_and(|last| last.tool_results().next().is_some());
        if has_result { Step::text("Done.") } else { Step::tool_use("call", tool, json!({ "task": "Go." })) }
    });
    Agent::builder().model(provider.model())
}

fn manager(store: &Holding) -> ManagerBuilder {
    Manager::builder(store.clone()).owner(Owner::new("worker")).sweep(Sweep::off())
}

async fn children(store: &Holding) -> usize {
    let all = store.store.list(&Page::first(99).into()).await.unwrap();
    all.iter().filter(|own| own.labels.get("omni.parent").is_some()).count()
}

/// Waits until all tasks wait for time or for a gate.
async fn settle() {
    sleep(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn sub_agents_are_stored_after_their_root() {
    let (store, team) = (Holding::new(), Team::new());
    let manager = manager(&store).build();
    // A conversation whose id was not chosen is stored with its first turn.
    store.hold("create");
    let root = manager.create(team.options(Durable::Turns)).await.unwrap().session;
    root.prompt("Go").await.unwrap();
    store.gate.reached().await;
    settle().await;
    assert_eq!(children(&store).await, 0, "a crash would leave them without a root");
    store.gate.open();
    team.gate.reached().await;
    assert_eq!(children(&store).await, 1);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_end_after_a_sweep_has_listed_them_are_not_opened() {
    let (store, team) = (Holding::new(), Team::new());
    let (asked, own) = (Arc::new(Mutex::new(Vec::new())), team.clone());
    let of_starter = Arc::clone(&asked);
    let manager = manager(&store).starter(move |turn| {
        of_starter.lock().unwrap().push(turn.id.clone());
        Some(own.options(Durable::InFlight))
    });
    let manager = manager.build();
    let root = manager.create_with_id(&id("root"), team.options(Durable::InFlight)).await.unwrap().session;
    root.prompt("Go").await.unwrap();
    team.gate.reached().await;
    store.hold("turns");
    let sweep = tokio::spawn({
        let manager = manager.clone();
        async move { manager.recover().await.unwrap() }
    });
    store.gate.reached().await;
    team.gate.open();
    root.wait_until_idle().await.unwrap();
    settle().await;
    store.gate.open();
    assert_eq!(sweep.await.unwrap().opened, []);
    assert_eq!(*asked.lock().unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_of_a_root_that_is_deleted_in_part_do_not_run_again() {
    let (store, team) = (Holding::new(), Team::new());
    let first = manager(&store).build();
    let root = first.create_with_id(&id("root"), team.options(Durable::InFlight)).await.unwrap().session;
    root.prompt("Go").await.unwrap();
    team.gate.reached().await;
    first.hand_over(Duration::from_secs(10)).await.unwrap();

    // The process ends when it has deleted the sub-agent.
    store.hold("delete root");
    let second = manager(&store).build();
    let deleting = tokio::spawn(async move { second.delete(&id("root")).await });
    store.gate.reached().await;
    deleting.abort();
    assert_eq!(children(&store).await, 0);

    let own = team.clone();
    let third = manager(&store).starter(move |_| Some(own.options(Durable::InFlight))).build();
    assert_eq!(third.recover().await.unwrap().opened, []);
    settle().await;
    assert_eq!((children(&store).await, team.worked.load(Ordering::SeqCst)), (0, 1));
    third.delete(&id("root")).await.unwrap();
    assert!(store.store.summary(&id("root")).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_are_stored_after_the_end_of_their_call_get_the_new_labels_of_the_root() {
    let (store, team) = (Holding::new(), Team::new());
    let manager = manager(&store).build();
    let labels = |tenant| Labels::new([("tenant", tenant)]).unwrap();
    let options = team.options(Durable::InFlight).labels(labels("old"));
    let root = manager.create_with_id(&id("root"), options).await.unwrap().session;
    store.hold("create sub-");
    root.prompt("Go").await.unwrap();
    store.gate.reached().await;
    root.interrupt().await.unwrap();
    manager.set_labels(&id("root"), labels("new")).await.unwrap();
    store.gate.open();
    settle().await;
    let all = store.store.list(&Page::first(99).into()).await.unwrap();
    assert_eq!(all.len(), 2);
    assert!(all.iter().all(|own| own.labels.get("tenant") == Some("new")), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn set_labels_while_a_sub_agent_is_created_returns_when_it_has_the_new_labels() {
    for dies in [false, true] {
        let (store, team) = (Holding::new(), Team::new());
        let first = manager(&store).build();
        let labels = |tenant| Labels::new([("tenant", tenant)]).unwrap();
        let options = team.options(Durable::InFlight).labels(labels("old"));
        let root = first.create_with_id(&id("root"), options).await.unwrap().session;
        store.hold("create sub-");
        root.prompt("Go").await.unwrap();
        store.gate.reached().await;
        let labelling = tokio::spawn(async move { first.set_labels(&id("root"), labels("new")).await });
        settle().await;
        assert!(!labelling.is_finished(), "the sub-agent can still be stored with the former labels");

        store.hold("created sub-");
        store.gate.open();
        store.gate.reached().await;
        settle().await;
        let tenants = async || {
            let all = store.store.list(&Page::first(99).into()).await.unwrap();
            let mut tenants: Vec<_> = all.iter().filter_map(|own| own.labels.get("tenant")).collect();
            tenants.sort_unstable();
            tenants.join(" ")
        };
        assert_eq!((tenants().await.as_str(), labelling.is_finished()), ("new old", false));
        if dies {
            // The process ends here, so nobody has learned that the labels are set.
            labelling.abort();
            manager(&store).build().set_labels(&id("root"), labels("new")).await.unwrap();
        } else {
            store.gate.open();
            labelling.await.unwrap().unwrap();
        }
        assert_eq!(tenants().await, "new new");
    }
}

/// Returns the tenants of all stored conversations.
async fn tenants(store: &Holding) -> String {
    let all = store.store.list(&Page::first(99).into()).await.unwrap();
    let mut tenants: Vec<_> = all.iter().filter_map(|own| own.labels.get("tenant")).collect();
    tenants.sort_unstable();
    tenants.join(" ")
}

#[tokio::test(start_paused = true)]
async fn set_labels_by_the_init_of_a_sub_agent_does_not_wait_for_itself() {
    for is_repeated in [false, true] {
        let (store, mut team) = (Holding::new(), Team::new());
        let mut manager_of_life = manager(&store).build();
        team.init = (!is_repeated).then(|| SubAgentInit(manager_of_life.clone(), None));
        let options = team.options(Durable::InFlight).labels(tenant("old"));
        let mut begun = Instant::now();
        let mut root = manager_of_life.create_with_id(&id("root"), options).await.unwrap().session;
        root.prompt("Go").await.unwrap();
        team.gate.reached().await;
        if is_repeated {
            manager_of_life.hand_over(Duration::from_secs(10)).await.unwrap();
            manager_of_life = manager(&store).build();
            team.init = Some(SubAgentInit(manager_of_life.clone(), None));
            begun = Instant::now();
            root = manager_of_life.open(&id("root"), team.options(Durable::InFlight)).await.unwrap().session;
        }
        team.gate.open();
        root.wait_until_idle().await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(5), "{is_repeated}: {:?}", begun.elapsed());
        assert_eq!(tenants(&store).await, "new new", "{is_repeated}");
    }
}

#[tokio::test(start_paused = true)]
async fn set_labels_during_a_slow_init_of_a_sub_agent_returns_before_it() {
    let (store, mut team, held) = (Holding::new(), Team::new(), Gate::new());
    let manager = manager(&store).build();
    team.init = Some(SubAgentInit(manager.clone(), Some(held.clone())));
    let options = team.options(Durable::InFlight).labels(tenant("old"));
    let root = manager.create_with_id(&id("root"), options).await.unwrap().session;
    root.prompt("Go").await.unwrap();
    held.reached().await;
    let begun = Instant::now();
    manager.set_labels(&id("root"), tenant("new")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());

    // Not even the first version of the sub-agent in the store has the former labels.
    store.hold("created sub-");
    held.open();
    store.gate.reached().await;
    assert_eq!(tenants(&store).await, "new new");
}

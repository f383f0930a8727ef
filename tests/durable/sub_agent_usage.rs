//! Usage of sub-agents after the end of a process: what their ledgers contain counts once, in the turn of the root and in
//! each budget.

use std::{
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentBuilder, AgentCallbacks, Durable, State, SubAgent, TurnDecision},
    budget::{Budget, SharedBudget},
    manager::{Manager, ManagerBuilder, OpenOptions, Sweep},
    message::{RequestEnd, Timestamp, Usage, UsageRow, UsageSum},
    run::Response,
    store::{
        ConversationId, Filter, Listing, Owner, Page, Store, StoreError, TurnSummary,
        custom::{self, Change, Commit, Stored, Version, Write},
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{Replay, Tool, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    lives::in_a_life,
    stores::{Place, id, stores},
};

/// How the first life ends, at the tool of the lowest agent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// Everything is stored.
    Complete,
    /// The root has recorded nothing of its sub-agents.
    ParentBehind,
    /// The root has recorded a request that the lowest agent has not stored.
    ParentAhead,
    /// The turns are left in order.
    HandOver,
}

/// A root with a sub-agent `high`, which has a sub-agent `low`. Each makes two requests.
#[derive(Clone)]
struct Team {
    end: End,
    /// The budgets of the root and of `high`.
    budgets: [Budget; 2],
    /// A budget that the root shares with others.
    shared: SharedBudget,
    requests: Arc<AtomicUsize>,
    /// The usage of sub-agents in the responses of the root's turns.
    delegated: Arc<Mutex<Vec<Usage>>>,
    store: Arc<Frozen>,
}

struct Turns(Arc<Mutex<Vec<Usage>>>);

#[async_trait]
impl AgentCallbacks for Turns {
    async fn handle_turn(&mut self, response: &Response, _: &mut State) -> TurnDecision {
        self.0.lock().unwrap().push(response.delegated);
        TurnDecision::Stop
    }
}

fn tokens(output: u64) -> Usage {
    Usage::default().with_output(output)
}

impl Team {
    fn new(end: End, budgets: [Budget; 2], store: &Arc<dyn Store>) -> Self {
        let store = Arc::new(Frozen::new(store, end));
        let shared = SharedBudget::new(Budget::default());
        Self { end, budgets, shared, requests: Arc::default(), delegated: Arc::default(), store }
    }

    /// Returns an agent that uses this tool once. Its requests use `first` tokens, and twice as many.
    fn calling(&self, tool: impl Tool, first: u64) -> AgentBuilder {
        let (name, team) = (tool.name().to_owned(), self.clone());
        let provider = ScriptedProvider::from_fn(move |request| {
            team.requests.fetch_add(1, Ordering::SeqCst);
            team.store.is_low.store(first == 100, Ordering::SeqCst);
            let has_result = request.history.last().is_some_and(|last| last.tool_results().next().is_some());
            if has_result {
                Step::new().usage(tokens(2 * first)).then_text(["Done."]).stop()
            } else {
                let task = json!({ "task": "Go." });
                Step::new().usage(tokens(first)).then_tool_use("call", &name, task).stop()
            }
        });
        Agent::builder().model(provider.model()).tool(tool)
    }

    fn options(&self, gate: &Gate) -> OpenOptions {
        let (team, gate, budget) = (self.clone(), gate.clone(), self.budgets[1]);
        let high = SubAgent::new("high", "Works.", move |_| {
            let (own, gate) = (team.clone(), gate.clone());
            let low = SubAgent::new("low", "Works.", move |_| {
                let gate = gate.clone();
                let work = tool_fn("work", "Works.", move |_: Value, _| {
                    let gate = gate.clone();
                    async move {
                        gate.pass().await;
                        Ok("worked")
                    }
                });
                own.calling(work.with_replay(Replay::Keyed), 100)
            });
            team.calling(low, 10).budget(budget)
        });
        let agent = self.calling(high, 1).budget(self.budgets[0]).shared_budget(&self.shared);
        let agent = agent.callbacks(Turns(Arc::clone(&self.delegated)));
        OpenOptions::new(agent).durable(Durable::InFlight).subscribe(None)
    }

    /// Runs the root until the tool of the lowest agent runs, or its request is reported. Then the process ends.
    async fn first_life(&self, place: &Place) {
        let own = self.clone();
        if self.end == End::HandOver {
            return self.until_the_end(&place.store).await;
        }
        in_a_life(async move { own.until_the_end(&(Arc::clone(&own.store) as Arc<dyn Store>)).await });
        until!("the end of all leases", {
            let all = place.store.list(&Page::first(100).into()).await.unwrap();
            all.iter().all(|summary| summary.owner.is_none())
        });
    }

    async fn until_the_end(&self, store: &Arc<dyn Store>) {
        let (manager, gate) = (manager(store).build(), Gate::new());
        let opened = manager.create_with_id(&id("root"), self.options(&gate)).await.unwrap();
        opened.session.prompt("Go").await.unwrap();
        if self.end != End::ParentAhead {
            gate.reached().await;
        }
        if self.end == End::HandOver {
            return manager.hand_over(Duration::from_secs(10)).await.unwrap();
        }
        let is_counted = async || {
            let turn = store.turn(&id("root")).await.unwrap();
            turn.is_some_and(|turn| turn.record.core.contains(r#""requests":2"#))
        };
        if self.end == End::ParentBehind {
            assert!(!is_counted().await);
        } else {
            until!("a record with both requests", is_counted().await);
        }
        assert_eq!(self.requests.load(Ordering::SeqCst), 3);
        // The manager is never dropped, because a process that dies runs no destructors.
        std::mem::forget((manager, opened));
    }

    /// Continues the turn of the root to its end, and returns the number of requests.
    async fn second_life(&self, store: &Arc<dyn Store>) -> usize {
        let before = self.requests.load(Ordering::SeqCst);
        let worker = self.worker(store);
        assert_eq!(worker.recover().await.unwrap().opened, [id("root")]);
        self.ended(&worker).await;
        self.requests.load(Ordering::SeqCst) - before
    }

    fn worker(&self, store: &Arc<dyn Store>) -> Manager {
        let (own, gate) = (self.clone(), Gate::new());
        gate.open();
        manager(store).starter(move |_| Some(own.options(&gate))).build()
    }

    async fn ended(&self, worker: &Manager) {
        worker.get(&id("root")).unwrap().wait_until_idle().await.unwrap();
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

/// A store whose writes stop at the end of the first life: those of the root from its first sub-agent on, or those of the
/// lowest agent from its first request on.
struct Frozen {
    store: Arc<dyn Store>,
    end: End,
    /// The sub-agents so far, in the order of their creation.
    below: Mutex<Vec<ConversationId>>,
    /// Whether the last request was made by the lowest agent.
    is_low: AtomicBool,
}

impl Frozen {
    fn new(store: &Arc<dyn Store>, end: End) -> Self {
        let (below, is_low) = Default::default();
        Self { store: Arc::clone(store), end, below, is_low }
    }

    fn stops(&self, own: &ConversationId) -> bool {
        let mut below = self.below.lock().unwrap();
        if own.as_str().starts_with("sub-") && !below.contains(own) {
            below.push(own.clone());
        }
        match self.end {
            End::Complete | End::HandOver => false,
            End::ParentBehind => own.as_str() == "root" && !below.is_empty(),
            End::ParentAhead => below.get(1) == Some(own) && self.is_low.load(Ordering::SeqCst),
        }
    }
}

#[async_trait]
impl Store for Frozen {
    forward!(self.store: traits, load, summary, list, delete, turn, acquire, release);

    async fn write(
        &self,
        own: &ConversationId,
        write: &Write,
        change: &Change,
    ) -> Result<Version, StoreError> {
        if self.stops(own) {
            pending::<()>().await;
        }
        self.store.write(own, write, change).await
    }
}

/// A store whose second load of each sub-agent fails.
struct Failing {
    store: Arc<dyn Store>,
    loads: Mutex<Vec<ConversationId>>,
}

#[async_trait]
impl Store for Failing {
    forward!(self.store: traits, write, summary, list, delete, turn, acquire, release);

    async fn turns(&self, which: custom::Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        self.store.turns(which, listing).await
    }

    async fn load(&self, own: &ConversationId) -> Result<Stored, StoreError> {
        let loads = {
            let mut loads = self.loads.lock().unwrap();
            loads.push(own.clone());
            loads.iter().filter(|loaded| *loaded == own).count()
        };
        if own.as_str().starts_with("sub-") && loads == 2 {
            return Err(StoreError::failed("load", std::fmt::Error));
        }
        self.store.load(own).await
    }
}

fn manager(store: &Arc<dyn Store>) -> ManagerBuilder {
    Manager::builder(Arc::clone(store)).owner(Owner::new("worker")).sweep(Sweep::off())
}

/// Returns the rows of all sub-agents.
async fn rows(store: &Arc<dyn Store>) -> Vec<UsageRow> {
    let mut rows = Vec::new();
    for summary in store.list(&Page::first(100).into()).await.unwrap() {
        if summary.labels.get("omni.parent").is_some() {
            rows.extend(store.usage(&summary.id, &Page::first(100)).await.unwrap());
        }
    }
    rows
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_usage_of_sub_agents_after_a_restart_counts_once_in_the_turn() {
    for end in [End::Complete, End::ParentBehind, End::ParentAhead, End::HandOver] {
        for place in stores().await {
            let team = Team::new(end, Default::default(), &place.store);
            team.first_life(&place).await;
            let is_repeated = end == End::ParentAhead;
            assert_eq!(team.second_life(&place.store).await, 3 + usize::from(is_repeated), "{end:?}");
            let rows = rows(&place.store).await;
            let lost = rows.iter().filter(|row| row.end == RequestEnd::Lost).count();
            assert_eq!(rows.len(), 4 + lost, "{end:?}");
            let stored: Usage = rows.iter().map(|row| row.usage).sum();
            assert_eq!(stored, tokens(10 + 20 + 100 + 200), "{end:?}");
            assert_eq!(*team.delegated.lock().unwrap(), [stored], "{end:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_usage_of_sub_agents_after_a_restart_counts_once_in_the_budget_of_the_root() {
    for end in [End::Complete, End::ParentBehind, End::ParentAhead, End::HandOver] {
        // Three requests were made before.
        for left in [0, 1, 2] {
            for place in stores().await {
                let budgets = [Budget::requests(3 + left), Budget::default()];
                let team = Team::new(end, budgets, &place.store);
                team.first_life(&place).await;
                let requests = team.second_life(&place.store).await;
                // If the lowest agent has not even recorded that its request was sent, nothing counts it.
                let is_lost = rows(&place.store).await.iter().any(|row| row.end == RequestEnd::Lost);
                let uncounted = usize::from(end == End::ParentAhead && !is_lost);
                assert_eq!(requests, usize::try_from(left).unwrap() + uncounted, "{end:?} with {left} left");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_usage_of_sub_agents_after_a_restart_counts_in_the_budget_of_the_sub_agent_above() {
    for end in [End::Complete, End::ParentBehind, End::HandOver] {
        for place in stores().await {
            // Both requests were made before. Only the root makes another one.
            let team = Team::new(end, [Budget::default(), Budget::requests(2)], &place.store);
            team.first_life(&place).await;
            assert_eq!(team.second_life(&place.store).await, 1, "{end:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_usage_of_a_sub_agent_that_another_process_still_closes_counts() {
    for place in stores().await.into_iter().filter(|place| place.store.traits().lease.is_some()) {
        let (store, team) = (&place.store, Team::new(End::HandOver, Default::default(), &place.store));
        team.first_life(&place).await;
        let all = store.list(&Page::first(9).into()).await.unwrap();
        let parent =
            |summary: &omni_agent::store::Summary| summary.labels.get("omni.parent").map(str::to_owned);
        let low = all.iter().find(|own| parent(own).is_some_and(|parent| parent != "root")).unwrap();
        let lease = store.acquire(&low.id, &Owner::new("other")).await.unwrap();
        let worker = team.worker(store);
        assert_eq!(worker.recover().await.unwrap().opened, [id("root")]);

        let Some(turn) = store.turn(&low.id).await.unwrap() else { panic!("a turn") };
        let row = UsageRow::new(RequestEnd::Answered, tokens(5000));
        let commit = Commit::new(turn.record.head).with_usage([row]);
        let write = Write::on(turn.version).under(&lease);
        store.write(&low.id, &write, &Change::Commit(commit)).await.unwrap();
        store.release(&low.id, &lease, None).await.unwrap();
        team.ended(&worker).await;
        assert_eq!(*team.delegated.lock().unwrap(), [tokens(5000 + 10 + 20 + 100 + 200)]);
    }
}

/// Returns the sum of all requests that the store knows.
async fn used(store: &Arc<dyn Store>) -> UsageSum {
    let mut all = UsageSum::default();
    for sum in store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX >> 1)).await.unwrap() {
        all.add(sum.requests, sum.usage);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_usage_of_sub_agents_after_a_restart_counts_once_in_a_shared_budget() {
    for end in [End::Complete, End::ParentBehind, End::HandOver] {
        for place in stores().await {
            let mut team = Team::new(end, Default::default(), &place.store);
            team.first_life(&place).await;
            let stored = used(&place.store).await;
            team.shared = SharedBudget::new(Budget::default()).with_spent(&stored);
            team.second_life(&place.store).await;
            let mut made = UsageSum::default();
            made.add(6, tokens(1 + 2 + 10 + 20 + 100 + 200));
            assert_eq!((stored.requests, used(&place.store).await), (3, made.clone()), "{end:?}");
            assert_eq!(team.shared.spent(), made, "{end:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stored_usage_of_sub_agents_that_are_opened_at_the_second_attempt_counts_once() {
    // Three requests were made before, of which the root may not know two.
    for (end, left) in
        [(End::Complete, 0), (End::Complete, 2), (End::ParentBehind, 0), (End::ParentBehind, 2)]
    {
        for place in stores().await {
            let budgets = [Budget::requests(3 + left), Budget::default()];
            let team = Team::new(end, budgets, &place.store);
            team.first_life(&place).await;
            let failing = Arc::new(Failing { store: Arc::clone(&place.store), loads: Mutex::default() });
            let store: Arc<dyn Store> = Arc::clone(&failing) as _;
            let requests = team.second_life(&store).await;
            assert_eq!(requests, usize::try_from(left).unwrap(), "{end:?} with {left} left");
            let loads = failing.loads.lock().unwrap();
            let high = loads.iter().find(|own| own.as_str().starts_with("sub-")).unwrap();
            assert!(loads.iter().filter(|own| *own == high).count() >= 4, "an opening has failed: {loads:?}");
        }
    }
}

//! Sub-agents whose processes die, at each stage of a call.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentBuilder, Durable, Recover, RecoveryDecision, SubAgent},
    budget::Budget,
    manager::{Manager, ManagerBuilder, ManagerEvent, OpenOptions, Sweep},
    message::{StopReason, Usage},
    run::{PromptState, RunOutcome},
    session::Session,
    store::{
        ConversationId, Filter, Labels, Listing, MemoryStore, Owner, Page, Store, StoreError, Summary,
        TurnSummary, custom::Turns,
    },
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    lives::in_a_life,
    stores::{id, stores},
};

/// The stage at which the processes of the first life stop.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// The sub-agent's model answers.
    Streaming,
    /// The sub-agent's tool, which must not run twice, is running.
    Tool,
    /// The sub-agent's tool waits for an approval.
    Approval,
    /// The sub-agent has answered, and its parent does not have the result.
    Answered,
    /// The call waits in front of the sub-agent.
    Before,
}

/// A lead with a sub-agent. It counts what the sub-agents of all lives do.
#[derive(Clone)]
struct Team {
    stage: Stage,
    deleted: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
    level: Durable,
    recover: Recover,
    budget: Budget,
    /// Whether the root also uses a tool that waits at the gate.
    has_other: bool,
}

impl Team {
    fn new(stage: Stage) -> Self {
        let (deleted, requests, recover, budget) = Default::default();
        Self { stage, deleted, requests, level: Durable::InFlight, recover, budget, has_other: false }
    }

    fn count(&self) -> (usize, usize) {
        (self.deleted.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }

    /// Returns the sub-agent of a life that waits at this gate.
    fn sub_agent(&self, gate: &Gate) -> SubAgent {
        let (team, gate) = (self.clone(), gate.clone());
        SubAgent::new("files", "Works on files.", move |_: &ToolContext| {
            let (stage, requests, at) = (team.stage, Arc::clone(&team.requests), gate.clone());
            let provider = ScriptedProvider::from_fn(move |request| {
                requests.fetch_add(1, Ordering::SeqCst);
                let step = || Step::new().usage(tokens());
                let last = request.history.last();
                match last.and_then(|message| message.tool_results().next().cloned()) {
                    Some(result) => step().then_text([format!("Files: {}", result.text())]).stop(),
                    None if stage == Stage::Streaming => {
                        Step::new().then_text(["Files: half"]).gate(&at).stop()
                    }
                    None => step().then_tool_use("d", "delete", json!({})).stop(),
                }
            });
            let (deleted, at) = (Arc::clone(&team.deleted), gate.clone());
            let delete = tool_fn("delete", "Deletes.", move |_: Value, _| {
                let number = deleted.fetch_add(1, Ordering::SeqCst) + 1;
                let at = at.clone();
                async move {
                    if stage == Stage::Tool {
                        at.pass().await;
                    }
                    Ok(format!("gone {number}"))
                }
            });
            let agent = Agent::builder().model(provider.model()).tool(delete.with_replay(Replay::Never));
            if stage == Stage::Approval { agent.needs_approval("delete") } else { agent }
        })
    }

    fn options(&self, gate: &Gate) -> OpenOptions {
        OpenOptions::new(self.agent(gate)).durable(self.level).recover(self.recover).subscribe(None)
    }

    fn agent(&self, gate: &Gate) -> AgentBuilder {
        let has_other = self.has_other;
        let provider = ScriptedProvider::from_fn(move |request| {
            let last = request.history.last();
            let uses = Step::new().then_tool_use("call-1", "files", json!({ "task": "Go." }));
            match last.and_then(|message| message.tool_results().next().cloned()) {
                Some(result) => Step::text(format!("It says: {}", result.text())),
                None if has_other => uses.then_tool_use("call-2", "wait", json!({})).stop(),
                None => uses.stop(),
            }
        });
        let at = gate.clone();
        let wait = tool_fn("wait", "Waits.", move |_: Value, _| {
            let at = at.clone();
            async move {
                at.pass().await;
                Ok("waited")
            }
        });
        let (stage, inner, gate) = (self.stage, Arc::new(self.sub_agent(gate)), gate.clone());
        let around = Arc::clone(&inner);
        let tool = tool_fn("files", "Works on files.", move |input: Value, context: ToolContext| {
            let (inner, gate) = (Arc::clone(&around), gate.clone());
            async move {
                if stage == Stage::Before {
                    gate.pass().await;
                }
                let output = inner.call(input, context).await?;
                if stage == Stage::Answered {
                    gate.pass().await;
                }
                Ok(output)
            }
        });
        let wait = wait.with_replay(Replay::Keyed);
        let agent = Agent::builder().model(provider.model()).budget(self.budget).tool(wait);
        match stage {
            Stage::Before | Stage::Answered => agent.tool(tool.with_replay(Replay::Keyed)),
            _ => agent.tool(inner),
        }
    }
}

fn manager(store: &Arc<dyn Store>) -> ManagerBuilder {
    Manager::builder(Arc::clone(store)).owner(Owner::new("worker")).sweep(Sweep::off())
}

/// Runs a life that ends when the team has reached its stage.
async fn first_life(store: &Arc<dyn Store>, team: &Team) {
    life(store, team, true).await;
}

async fn life(store: &Arc<dyn Store>, team: &Team, is_first: bool) {
    let (of_life, own) = (Arc::clone(store), team.clone());
    in_a_life(async move {
        let (manager, gate) = (manager(&of_life).build(), Gate::new());
        let opened = if is_first {
            let opened = manager.create_with_id(&id("root"), own.options(&gate)).await.unwrap();
            opened.session.prompt("Go").await.unwrap();
            opened
        } else {
            manager.open(&id("root"), own.options(&gate)).await.unwrap()
        };
        if own.has_other {
            gate.reached().await;
        }
        if own.stage == Stage::Approval {
            paused(&opened.session).await;
        } else {
            gate.reached().await;
        }
        opened.session.flush(Duration::from_secs(10)).await.unwrap();
        // The manager is never dropped, because a process that dies runs no destructors.
        std::mem::forget((manager, opened));
    });
    released(store).await;
}

async fn paused(session: &Session) {
    until!("a pause", !session.snapshot().await.unwrap().agent.pauses.is_empty());
}

/// Waits until the manager has opened a conversation.
async fn opened(manager: &Manager, id: &ConversationId) -> Session {
    until!("an open session", manager.get(id).is_some());
    manager.get(id).unwrap()
}

/// Waits until nobody owns a conversation. The leases of a dead process are released by another thread.
async fn released(store: &Arc<dyn Store>) {
    until!("the end of all leases", {
        let all = store.list(&Page::first(100).into()).await.unwrap();
        all.iter().all(|summary| summary.owner.is_none())
    });
}

fn tokens() -> Usage {
    let mut usage = Usage::default();
    usage.output = 1;
    usage
}

/// Returns a manager that continues the turns of the team, and an open gate for it.
fn worker(store: &Arc<dyn Store>, team: &Team) -> Manager {
    let (own, gate) = (team.clone(), Gate::new());
    gate.open();
    manager(store).starter(move |_| Some(own.options(&gate))).build()
}

async fn children(store: &Arc<dyn Store>) -> Vec<ConversationId> {
    let all = store.list(&Page::first(100).into()).await.unwrap();
    let children = all.into_iter().filter(|summary| summary.labels.get("omni.parent") == Some("root"));
    children.map(|summary| summary.id).collect()
}

async fn last_text(session: &Session) -> String {
    session.wait_until_idle().await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

/// Continues the turn of the root, and returns its answer.
async fn continued(worker: &Manager) -> String {
    assert_eq!(worker.recover().await.unwrap().opened, [id("root")], "the call opens the child");
    last_text(&worker.get(&id("root")).unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_continue_where_their_process_died() {
    for (stage, answer, counts) in [
        (Stage::Before, "It says: Files: gone 1", (1, 2)),
        (Stage::Streaming, "It says: Files: half", (0, 2)),
        // The child's own record decides about its tool.
        (
            Stage::Tool,
            "It says: Files: Interrupted by a restart. It is not known whether the tool took effect.",
            (1, 2),
        ),
        // The outcome is read, and nothing runs again.
        (Stage::Answered, "It says: Files: gone 1", (1, 2)),
    ] {
        for place in stores().await {
            let (store, team) = (&place.store, Team::new(stage));
            first_life(store, &team).await;
            let worker = worker(store, &team);
            assert_eq!(continued(&worker).await, answer, "{stage:?}");
            assert_eq!(team.count(), counts, "{stage:?}");
            let [child] = &children(store).await[..] else { panic!("{stage:?}: one child") };
            let stored = store.load(child).await.unwrap();
            let prompts = stored.nodes.iter().filter(|node| node.message().text() == "Go.").count();
            assert_eq!(prompts, 1, "{stage:?}");
            worker.shutdown(Duration::from_secs(10)).await.unwrap();
            assert!(store.turns(Turns::All, &Page::first(9).into()).await.unwrap().is_empty(), "{stage:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_approvals_are_stored_once_and_decided_while_nothing_is_open() {
    for level in [Durable::Approvals, Durable::InFlight] {
        for place in stores().await {
            let (store, team) = (&place.store, Team { level, ..Team::new(Stage::Approval) });
            first_life(store, &team).await;
            let other = manager(store).build();
            let waiting = other.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
            let [child] = &children(store).await[..] else { panic!("one child") };
            assert_eq!(waiting.iter().map(|own| &own.id.conversation).collect::<Vec<_>>(), [child]);
            assert_eq!(waiting[0].pending.tool_use.name, "delete");

            // A sweep leaves the root, which needs nothing but a decision. A restart during the wait is not counted, and
            // asks again at the root.
            let waits = worker(store, &team);
            assert!(waits.recover().await.unwrap().opened.is_empty());
            let root = waits.open(&id("root"), team.options(&Gate::new())).await.unwrap().session;
            paused(&root).await;
            waits.hand_over(Duration::from_secs(10)).await.unwrap();
            let turns = store.turns(Turns::All, &Page::first(9).into()).await.unwrap();
            assert!(turns.len() == 2 && turns.iter().all(|turn| turn.lives == 0), "{turns:?}");
            assert_eq!(team.count(), (0, 1));

            // The decision opens the root, which continues the child.
            let last = worker(store, &team);
            last.decide(&waiting[0].id, Decision::Execute, Some("ann")).await.unwrap();
            let root = opened(&last, &id("root")).await;
            assert_eq!(last_text(&root).await, "It says: Files: gone 1", "{level:?}");
            assert_eq!(team.count(), (1, 2));
            last.shutdown(Duration::from_secs(10)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_of_a_discarded_turn_are_deleted() {
    for place in stores().await {
        let (store, mut team) = (&place.store, Team::new(Stage::Tool));
        first_life(store, &team).await;
        team.recover = Recover::default().with_decision(RecoveryDecision::Discard);
        let worker = worker(store, &team);
        assert_eq!(worker.recover().await.unwrap().opened, [id("root")]);
        worker.get(&id("root")).unwrap().wait_until_idle().await.unwrap();
        until!("the deletion of the sub-agent", children(store).await.is_empty());
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_whose_call_is_never_repeated_are_discarded() {
    for place in stores().await {
        // The turn of the root is not recorded, because it has not paused.
        let (store, mut team) = (&place.store, Team::new(Stage::Tool));
        team.level = Durable::Approvals;
        first_life(store, &team).await;
        let worker = worker(store, &team);
        assert!(worker.recover().await.unwrap().opened.is_empty());
        let [child] = &children(store).await[..] else { panic!("one child") };
        let end = store.load(child).await.unwrap().last_run.unwrap();
        assert_eq!(end.outcome, RunOutcome::Discarded);
        assert!(matches!(end.prompts[0].state, PromptState::Ended { outcome: RunOutcome::Discarded }));
        assert!(store.turns(Turns::All, &Page::first(9).into()).await.unwrap().is_empty());
        assert_eq!(team.count(), (1, 1));
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

/// A store that reports each sweep, and cannot read the root.
struct WithoutRoot(Arc<dyn Store>, tokio::sync::mpsc::UnboundedSender<()>);

#[async_trait::async_trait]
impl Store for WithoutRoot {
    forward!(self.0: traits, write, load, list, delete, turn, acquire, release);

    async fn summary(&self, own: &ConversationId) -> Result<Summary, StoreError> {
        match own.as_str() {
            "root" => Err(StoreError::damaged("conversation root", "the test has damaged it")),
            _ => self.0.summary(own).await,
        }
    }

    async fn turns(&self, which: Turns, listing: &Listing) -> Result<Vec<TurnSummary>, StoreError> {
        let _ = self.1.send(());
        self.0.turns(which, listing).await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agent_whose_root_cannot_be_read_is_not_reported_by_each_sweep() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    first_life(&store, &Team::new(Stage::Tool)).await;
    let (sender, mut sweeps) = tokio::sync::mpsc::unbounded_channel();
    let store: Arc<dyn Store> = Arc::new(WithoutRoot(store, sender));
    let worker = manager(&store).sweep(Sweep::every(Duration::from_millis(1))).starter(|_| None).build();
    let mut events = worker.subscribe();
    worker.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    for _ in 0..200 {
        sweeps.recv().await.unwrap();
    }
    let mut reports = 0;
    while let Some(Some(update)) = futures_util::FutureExt::now_or_never(events.next()) {
        let Update::Event(event) = update else { panic!("{update:?}") };
        reports += usize::from(matches!(&*event.event, ManagerEvent::NotRecovered { .. }));
    }
    assert!((1..=10).contains(&reports), "{reports} reports");
    worker.shutdown(Duration::from_secs(10)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_whose_root_is_gone_are_deleted() {
    for stage in [Stage::Tool, Stage::Approval] {
        for place in stores().await {
            let (store, team) = (&place.store, Team::new(stage));
            first_life(store, &team).await;
            store.delete(&id("root"), None).await.unwrap();
            let worker = worker(store, &team);
            assert!(worker.recover().await.unwrap().opened.is_empty(), "{stage:?}");
            assert!(store.list(&Page::first(9).into()).await.unwrap().is_empty(), "{stage:?}");
            worker.shutdown(Duration::from_secs(10)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn restarts_while_a_sub_agent_waits_count_only_beside_a_running_tool() {
    for (has_other, lives) in [(false, 0), (true, 3)] {
        for place in stores().await {
            let (store, team) = (&place.store, Team { has_other, ..Team::new(Stage::Approval) });
            first_life(store, &team).await;
            for _ in 0..3 {
                life(store, &team, false).await;
            }
            let turn = store.turn(&id("root")).await.unwrap().unwrap();
            assert_eq!(turn.record.lives, lives, "{has_other}");
            let worker = worker(store, &team);
            let waiting = worker.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
            worker.decide(&waiting[0].id, Decision::Execute, None).await.unwrap();
            let root = opened(&worker, &id("root")).await;
            assert_eq!(last_text(&root).await, "It says: Files: gone 1", "{has_other}");
            worker.shutdown(Duration::from_secs(10)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_are_handed_over_with_their_parents() {
    for place in stores().await {
        let (store, team, gate) = (&place.store, Team::new(Stage::Tool), Gate::new());
        let first = manager(store).build();
        let opened = first.create_with_id(&id("root"), team.options(&gate)).await.unwrap();
        opened.session.prompt("Go").await.unwrap();
        gate.reached().await;
        first.hand_over(Duration::from_secs(10)).await.unwrap();
        let turns = store.turns(Turns::All, &Page::first(9).into()).await.unwrap();
        assert!(turns.len() == 2 && turns.iter().all(|turn| turn.orderly), "{turns:?}");

        let worker = worker(store, &team);
        let answer = continued(&worker).await;
        assert!(answer.starts_with("It says: Files: Interrupted by a restart"), "{answer}");
        assert_eq!(team.count(), (1, 2));
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_requests_count_in_a_budget_after_a_restart() {
    for place in stores().await {
        // Two requests of the child and one of the lead are made, so the next one is refused.
        let (store, budget) = (&place.store, Budget::requests(3));
        let team = Team { budget, ..Team::new(Stage::Answered) };
        first_life(store, &team).await;
        let worker = worker(store, &team);
        assert_eq!(worker.recover().await.unwrap().opened, [id("root")]);
        let root = worker.get(&id("root")).unwrap();
        root.wait_until_idle().await.unwrap();
        let last = root.snapshot().await.unwrap().agent.last_run.unwrap();
        let by_budget = |reason: &StopReason| *reason == StopReason::Budget;
        assert!(
            matches!(&last.outcome, RunOutcome::Stopped { stop_reason } if by_budget(stop_reason)),
            "{last:?}"
        );
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

/// Returns the options with which a person continues a sub-agent. The agent uses a tool that needs an approval.
fn personal() -> OpenOptions {
    let provider = ScriptedProvider::from_fn(|request| {
        let last = request.history.last();
        match last.and_then(|message| message.tool_results().next().cloned()) {
            Some(result) => Step::text(format!("Yours: {}", result.text())),
            None => Step::tool_use("p", "send", json!({})),
        }
    });
    let send = tool_fn("send", "Sends.", |_: Value, _| async { Ok("sent") });
    let agent = Agent::builder().model(provider.model()).tool(send.needs_approval());
    OpenOptions::new(agent).durable(Durable::InFlight).subscribe(None)
}

/// Runs a life in which the call has ended, and a person has continued the sub-agent until it waits for an approval.
/// Returns the sub-agent.
async fn life_of_a_person(store: &Arc<dyn Store>, team: &Team) -> ConversationId {
    let (of_life, own) = (Arc::clone(store), team.clone());
    in_a_life(async move {
        let (manager, gate) = (manager(&of_life).build(), Gate::new());
        gate.open();
        let root = manager.create_with_id(&id("root"), own.options(&gate)).await.unwrap().session;
        root.ask("Go").await.unwrap();
        manager.close(&id("root")).await.unwrap();
        let child = children(&of_life).await.remove(0);
        let opened = manager.open(&child, personal()).await.unwrap();
        opened.session.prompt("And now?").await.unwrap();
        paused(&opened.session).await;
        opened.session.flush(Duration::from_secs(10)).await.unwrap();
        std::mem::forget((manager, root, opened));
    });
    released(store).await;
    children(store).await.remove(0)
}

/// Returns a manager that continues the turns of the team and of a person.
fn worker_of_a_person(store: &Arc<dyn Store>, team: &Team) -> Manager {
    let (own, gate) = (team.clone(), Gate::new());
    gate.open();
    let options = move |is_child| if is_child { personal() } else { own.options(&gate) };
    manager(store).starter(move |turn| Some(options(turn.labels.get("omni.parent").is_some()))).build()
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_opened_again_in_the_turn_of_a_person_continue_it() {
    for place in stores().await {
        let (store, team) = (&place.store, Team::new(Stage::Answered));
        let child = life_of_a_person(store, &team).await;
        let worker = manager(store).build();
        let session = worker.open(&child, personal()).await.unwrap().session;
        paused(&session).await;
        session.resume("p", Decision::Execute).await.unwrap();
        assert_eq!(last_text(&session).await, "Yours: sent");
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_decided_in_the_turn_of_a_person_are_opened_themselves() {
    for by_sweep in [false, true] {
        for place in stores().await {
            let (store, team) = (&place.store, Team::new(Stage::Answered));
            let child = life_of_a_person(store, &team).await;
            let worker = worker_of_a_person(store, &team);
            assert!(worker.recover().await.unwrap().opened.is_empty());
            let other = manager(store).build();
            let decider = if by_sweep { &other } else { &worker };
            let waiting = other.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
            decider.decide(&waiting[0].id, Decision::Execute, Some("ann")).await.unwrap();
            if by_sweep {
                assert_eq!(worker.recover().await.unwrap().opened, std::slice::from_ref(&child));
            }
            let session = opened(&worker, &child).await;
            assert_eq!(last_text(&session).await, "Yours: sent");
            worker.shutdown(Duration::from_secs(10)).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_that_wait_and_whose_call_is_never_repeated_are_discarded() {
    for place in stores().await {
        let (store, mut team) = (&place.store, Team::new(Stage::Approval));
        first_life(store, &team).await;
        team.recover = Recover::default().with_decision(RecoveryDecision::Interrupt);
        let worker = worker(store, &team);
        let root = worker.open(&id("root"), team.options(&Gate::new())).await.unwrap().session;
        root.wait_until_idle().await.unwrap();
        worker.close(&id("root")).await.unwrap();
        assert!(worker.recover().await.unwrap().opened.is_empty());
        let [child] = &children(store).await[..] else { panic!("one child") };
        let end = store.load(child).await.unwrap().last_run.unwrap();
        assert_eq!(end.outcome, RunOutcome::Discarded);
        assert!(store.turns(Turns::All, &Page::first(9).into()).await.unwrap().is_empty());
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_at_rest_below_a_root_at_rest_elsewhere_are_opened() {
    for place in stores().await {
        let store = &place.store;
        let (one, two) = two_processes(store);
        let (_root, below) = at_rest(&one, store, 1).await;
        assert!(two.open(&below[0], personal()).await.unwrap().started);
        two.shutdown(Duration::from_secs(10)).await.unwrap();
        one.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_in_memory_of_a_session_without_a_manager_never_run_again() {
    for place in stores().await {
        let (store, team) = (&place.store, Team::new(Stage::Tool));
        let (of_life, own) = (Arc::clone(store), team.clone());
        in_a_life(async move {
            let gate = Gate::new();
            let builder = Session::builder(of_life).durable(Durable::InFlight).agent(own.agent(&gate));
            let session = builder.create_with_id(id("root")).await.unwrap();
            session.prompt("Go").await.unwrap();
            gate.reached().await;
            session.flush(Duration::from_secs(10)).await.unwrap();
            std::mem::forget(session);
        });
        released(store).await;
        let worker = worker(store, &team);
        let answer = continued(&worker).await;
        assert!(answer.starts_with("It says: Interrupted by a restart"), "{answer}");
        assert_eq!(team.count(), (1, 1));
        assert!(children(store).await.is_empty());
        worker.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

/// Returns two managers as of two processes.
fn two_processes(store: &Arc<dyn Store>) -> (Manager, Manager) {
    let named = |name: &str| Manager::builder(Arc::clone(store)).owner(Owner::new(name)).build();
    (named("one"), named("two"))
}

/// Runs `calls` prompts whose calls have sub-agents. Returns the root and its sub-agents, which are at rest.
async fn at_rest(manager: &Manager, store: &Arc<dyn Store>, calls: usize) -> (Session, Vec<ConversationId>) {
    let (team, gate) = (Team::new(Stage::Answered), Gate::new());
    let root = manager.create_with_id(&id("root"), team.options(&gate)).await.unwrap().session;
    for _ in 0..calls {
        gate.open();
        root.ask("Go").await.unwrap();
    }
    let children = children(store).await;
    assert_eq!(children.len(), calls);
    for child in &children {
        until!("the end of the call", manager.get(child).is_none());
    }
    (root, children)
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_of_a_root_that_cannot_be_deleted_remain() {
    for place in stores().await.into_iter().filter(|place| place.store.traits().lease.is_some()) {
        let store = &place.store;
        let (one, two) = two_processes(store);
        let (_, below) = at_rest(&one, store, 2).await;
        let error = two.delete(&id("root")).await.unwrap_err();
        assert_eq!((error.kind(), children(store).await), (ErrorKind::OpenElsewhere, below.clone()));

        // One of them is open in another process.
        one.close(&id("root")).await.unwrap();
        assert!(two.open(&below[0], personal()).await.unwrap().started);
        let error = one.delete(&id("root")).await.unwrap_err();
        assert_eq!((error.kind(), children(store).await.len()), (ErrorKind::OpenElsewhere, 2));
        assert!(store.summary(&id("root")).await.is_ok());
        two.shutdown(Duration::from_secs(10)).await.unwrap();
        one.delete(&id("root")).await.unwrap();
        assert!(store.list(&Page::first(9).into()).await.unwrap().is_empty());
        one.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sub_agents_get_new_labels_although_another_one_is_open_elsewhere() {
    for place in stores().await.into_iter().filter(|place| place.store.traits().lease.is_some()) {
        let store = &place.store;
        let (one, two) = two_processes(store);
        let (_, below) = at_rest(&one, store, 2).await;
        // The newest is listed first.
        assert!(two.open(&below[0], personal()).await.unwrap().started);
        let wanted = Labels::new([("tenant", "new")]).unwrap();
        let error = one.set_labels(&id("root"), wanted.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OpenElsewhere);
        let is_new =
            async |id: &ConversationId| store.summary(id).await.unwrap().labels.get("tenant") == Some("new");
        assert!(is_new(&id("root")).await && !is_new(&below[0]).await && is_new(&below[1]).await);
        two.shutdown(Duration::from_secs(10)).await.unwrap();
        one.set_labels(&id("root"), wanted).await.unwrap();
        assert!(is_new(&below[0]).await);
        one.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

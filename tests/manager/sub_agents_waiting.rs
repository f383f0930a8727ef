//! Sub-agents that wait for decisions while their root is closed, to make room or because it is idle.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use omni_agent::{
    ErrorKind, Manager,
    agent::{Agent, AgentBuilder, Durable, SubAgent},
    manager::{Approval, DecisionPlace, ManagerBuilder, OpenOptions, Sweep},
    session::Session,
    store::{ConversationId, Filter, Listing, MemoryStore, Page, Store, StoreError, Summary, custom::Lease},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, ToolLimits, tool_fn},
};
use serde_json::{Value, json};

use crate::{
    rig::tasks,
    sub_agents::{child, last_text, pauses},
    support::{Feed, alone, id, in_time, open_ids, parrot, secs, settle},
};

/// A root whose sub-agent deletes something after an approval. It counts the deletions of all its lives.
#[derive(Clone, Default)]
struct Team {
    deleted: Arc<AtomicUsize>,
    /// The number of sub-agents between the root and the one that deletes.
    levels: usize,
    in_memory: bool,
    /// Whether the sub-agent is called by a tool that must not run twice.
    is_wrapped: bool,
    /// The gate of another tool that the root uses in the same step.
    beside: Option<Gate>,
}

/// Returns an agent that uses these tools once, and then answers with the last result.
fn using(tools: Vec<Box<dyn Tool>>) -> AgentBuilder {
    let names: Vec<_> = tools.iter().map(|tool| tool.name().to_owned()).collect();
    let provider = ScriptedProvider::from_fn(move |request| {
        let last = request.history.last();
        if let Some(result) = last.and_then(|message| message.tool_results().last().cloned()) {
            return Step::text(format!("It says: {}", result.text()));
        }
        let uses = |step: Step, name: &String| step.then_tool_use(name, name, json!({ "task": "Go." }));
        names.iter().fold(Step::new(), uses).stop()
    });
    tools.into_iter().fold(Agent::builder().model(provider.model()), AgentBuilder::tool)
}

impl Team {
    fn agent(&self, levels: usize) -> AgentBuilder {
        let team = self.clone();
        let tool: Box<dyn Tool> = if levels == 0 {
            let delete = tool_fn("delete", "Deletes.", move |_: Value, _| {
                let number = team.deleted.fetch_add(1, Ordering::SeqCst) + 1;
                async move { Ok(format!("gone {number}")) }
            });
            Box::new(delete.needs_approval())
        } else {
            let below = SubAgent::new("files", "Works on files.", move |_| team.agent(levels - 1));
            Box::new(if self.in_memory { below.in_memory() } else { below })
        };
        using(vec![tool])
    }

    fn options(&self) -> OpenOptions {
        let (team, mut tools) = (self.clone(), Vec::<Box<dyn Tool>>::new());
        if let Some(gate) = self.beside.clone() {
            let wait = tool_fn("wait", "Waits.", move |_: Value, _| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    Ok("waited")
                }
            });
            tools.push(Box::new(wait));
        }
        let below = SubAgent::new("files", "Works on files.", move |_| team.agent(team.levels));
        let below = Arc::new(if self.in_memory { below.in_memory() } else { below });
        if self.is_wrapped {
            let wrapper = tool_fn("files", "Works on files.", move |input: Value, context: ToolContext| {
                let below = Arc::clone(&below);
                async move { below.call(input, context).await }
            });
            tools.push(Box::new(wrapper));
        } else {
            tools.push(Box::new(below));
        }
        let limits = ToolLimits::default().with_timeout(Duration::MAX);
        alone(using(tools).tool_limits(limits)).durable(Durable::InFlight)
    }

    /// Starts a root whose sub-agent waits.
    async fn begin(&self, manager: &Manager, name: &str) -> Session {
        let session = in_time(manager.create_with_id(&id(name), self.options())).await.unwrap().session;
        session.prompt("Go").await.unwrap();
        pauses(&session).await;
        if let Some(gate) = &self.beside {
            in_time(gate.reached()).await;
        }
        in_time(session.flush(secs(10))).await.unwrap();
        session
    }

    fn manager(&self, store: &Arc<MemoryStore>) -> ManagerBuilder {
        let team = self.clone();
        let manager = Manager::builder(Arc::clone(store)).sweep(Sweep::off());
        manager.starter(move |_| Some(team.options()))
    }

    fn deletions(&self) -> usize {
        self.deleted.load(Ordering::SeqCst)
    }
}

/// Returns the only approval that waits.
async fn approval(manager: &Manager) -> Approval {
    let mut all = manager.pending_approvals(&Filter::default(), Page::default()).await.unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Allows the deletion of a sub-agent that is not open. Returns the answer of the root, which this opens.
async fn decided(manager: &Manager) -> String {
    let approval = approval(manager).await;
    let place = in_time(manager.decide(&approval.id, Decision::Execute, Some("ann"))).await.unwrap();
    assert_eq!(place, DecisionPlace::InStore);
    settle().await;
    last_text(&manager.get(&id("root")).expect("the decision opens the root")).await
}

async fn has_turn(store: &MemoryStore, id: &ConversationId) -> bool {
    store.turn(id).await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_wait_are_closed_with_their_root_to_make_room() {
    for levels in [0, 1] {
        let (team, store) = (Team { levels, ..Team::default() }, Arc::new(MemoryStore::new()));
        let manager = team.manager(&store).max_open(1).build();
        team.begin(&manager, "root").await;
        assert_eq!(open_ids(&manager).len(), 2 + levels);
        in_time(manager.create_with_id(&id("next"), alone(parrot()))).await.unwrap();
        settle().await;
        assert_eq!(open_ids(&manager), ["next"]);
        let below = child(&store, "root").await;
        assert!(has_turn(&store, &id("root")).await && has_turn(&store, &below).await);

        let answer = decided(&manager).await;
        assert_eq!(answer, ["It says: It says: gone 1", "It says: It says: It says: gone 1"][levels]);
        assert_eq!((open_ids(&manager), team.deletions()), (vec!["root".to_owned()], 1));
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_wait_are_closed_with_their_root_after_its_idle_time() {
    let (team, store) = (Team::default(), Arc::new(MemoryStore::new()));
    let manager = team.manager(&store).idle_shutdown(Some(secs(60))).build();
    team.begin(&manager, "root").await;
    tokio::time::sleep(secs(50)).await;
    assert_eq!(open_ids(&manager).len(), 2);
    tokio::time::sleep(secs(20)).await;
    assert!(open_ids(&manager).is_empty());
    // The turns need nothing but a decision, so a sweep leaves them.
    assert!(in_time(manager.recover()).await.unwrap().opened.is_empty());
    assert_eq!(decided(&manager).await, "It says: It says: gone 1");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_wait_outlive_all_handles() {
    let (team, store) = (Team { levels: 1, ..Team::default() }, Arc::new(MemoryStore::new()));
    let manager = team.manager(&store).build();
    drop(team.begin(&manager, "root").await);
    drop(manager);
    settle().await;
    assert_eq!(tasks(), 0);
    let second = team.manager(&store).build();
    assert_eq!(decided(&second).await, "It says: It says: It says: gone 1");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_wait_are_decided_at_their_root_when_it_is_opened_again() {
    let (team, store) = (Team::default(), Arc::new(MemoryStore::new()));
    let manager = team.manager(&store).max_open(1).build();
    team.begin(&manager, "root").await;
    in_time(manager.create_with_id(&id("next"), alone(parrot()))).await.unwrap();
    let session = in_time(manager.open(&id("root"), team.options())).await.unwrap().session;
    let pause = pauses(&session).await.remove(0);
    in_time(session.resume(pause.tool_use.id.clone(), Decision::reject("No."))).await.unwrap();
    assert_eq!(last_text(&session).await, "It says: It says: No.");
    assert_eq!(team.deletions(), 0);
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_wait_beside_a_running_tool_keep_the_place_of_their_root() {
    let (gate, store) = (Gate::new(), Arc::new(MemoryStore::new()));
    let team = Team { beside: Some(gate.clone()), ..Team::default() };
    let manager = team.manager(&store).max_open(1).room_timeout(Some(secs(1))).build();
    team.begin(&manager, "root").await;
    let error = in_time(manager.create_with_id(&id("next"), alone(parrot()))).await.unwrap_err();
    assert_eq!((error.kind(), error.member("running")), (ErrorKind::NoRoom, Some(&json!(["root"]))));

    // When the tool has ended, the opening that waits gets the place of the root.
    let (gate, store) = (Gate::new(), Arc::new(MemoryStore::new()));
    let team = Team { beside: Some(gate.clone()), ..Team::default() };
    let manager = team.manager(&store).max_open(1).room_timeout(None).build();
    team.begin(&manager, "root").await;
    let next = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.create_with_id(&id("next"), alone(parrot())).await })
    };
    tokio::time::sleep(secs(100)).await;
    assert!(!next.is_finished());
    gate.open();
    in_time(next).await.unwrap().unwrap();
    settle().await;
    assert_eq!(open_ids(&manager), ["next"]);
    assert_eq!(decided(&manager).await, "It says: It says: gone 1");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_that_would_be_lost_keep_the_place_of_their_root() {
    for (in_memory, is_wrapped) in [(true, false), (false, true)] {
        let (team, store) = (Team { in_memory, is_wrapped, ..Team::default() }, Arc::new(MemoryStore::new()));
        let manager = team.manager(&store).max_open(1).room_timeout(Some(secs(1))).build();
        let session = team.begin(&manager, "root").await;
        let error = in_time(manager.create_with_id(&id("next"), alone(parrot()))).await.unwrap_err();
        assert_eq!((error.kind(), error.member("running")), (ErrorKind::NoRoom, Some(&json!(["root"]))));
        let pause = pauses(&session).await.remove(0);
        in_time(session.resume(pause.tool_use.id.clone(), Decision::Execute)).await.unwrap();
        assert_eq!(last_text(&session).await, "It says: It says: gone 1");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agents_decided_while_their_root_is_closed_run_once() {
    for at_root in [true, false] {
        for rounds in 0..60 {
            let (team, store) = (Team { levels: 1, ..Team::default() }, Arc::new(MemoryStore::new()));
            let manager = team.manager(&store).build();
            let root = team.begin(&manager, "root").await;
            let (session, tool_use) = if at_root {
                (root.clone(), pauses(&root).await[0].tool_use.id.clone())
            } else {
                let waits = approval(&manager).await.id;
                (manager.get(&waits.conversation).unwrap(), waits.tool_use)
            };
            let deciding = tokio::spawn(async move {
                for _ in 0..rounds % 20 {
                    tokio::task::yield_now().await;
                }
                session.resume(tool_use, Decision::Execute).await
            });
            for _ in 0..rounds / 20 * 7 {
                tokio::task::yield_now().await;
            }
            let is_closed = in_time(root.sleep()).await.unwrap_or(true);
            let is_decided = in_time(deciding).await.unwrap().is_ok();
            settle().await;
            let open = in_time(manager.open(&id("root"), team.options())).await.unwrap().session;
            tokio::time::sleep(secs(1)).await;
            // A decision without a reply can be stored nevertheless.
            if let [pause] = &in_time(open.snapshot()).await.unwrap().agent.pauses[..] {
                assert!(!is_decided, "{at_root} {rounds}: an acknowledged decision is asked again");
                in_time(open.resume(pause.tool_use.id.clone(), Decision::Execute)).await.unwrap();
            }
            let what = format!("{at_root} {rounds}: closed {is_closed}, decided {is_decided}");
            assert_eq!(last_text(&open).await, "It says: It says: It says: gone 1", "{what}");
            assert_eq!(team.deletions(), 1, "{what}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn recover_opens_the_only_root_with_a_decided_sub_agent_among_many() {
    let (team, store) = (Team::default(), Arc::new(MemoryStore::new()));
    let manager = team.manager(&store).build();
    // More than a page of turns.
    for number in 0..70 {
        team.begin(&manager, &format!("root-{number}")).await;
    }
    in_time(manager.hand_over(secs(10))).await.unwrap();
    let decider = Manager::builder(Arc::clone(&store)).build();
    let below = child(&store, "root-66").await;
    let all = decider.pending_approvals(&Filter::default(), Page::first(100)).await.unwrap();
    let waits = all.iter().find(|approval| approval.id.conversation == below).unwrap();
    in_time(decider.decide(&waits.id, Decision::Execute, None)).await.unwrap();

    let worker = team.manager(&store).max_open(1).build();
    assert_eq!(in_time(worker.recover()).await.unwrap().opened, [id("root-66")]);
    assert_eq!(last_text(&worker.get(&id("root-66")).unwrap()).await, "It says: It says: gone 1");
}

#[tokio::test(start_paused = true)]
async fn sub_agents_are_never_in_a_store_without_their_root() {
    let (team, store) = (Team::default(), Arc::new(MemoryStore::new()));
    let manager = team.manager(&store).build();
    let root = in_time(manager.create_with_id(&id("root"), team.options().durable(Durable::Turns))).await;
    let session = root.unwrap().session;
    session.prompt("Go").await.unwrap();
    pauses(&session).await;
    child(&store, "root").await;
    // Nothing of the turn is stored before its end.
    assert!(store.load(&id("root")).await.unwrap().nodes.is_empty());
}

/// A store that counts lists.
#[derive(Default)]
struct Counting {
    store: MemoryStore,
    lists: AtomicUsize,
}

#[async_trait::async_trait]
impl Store for Counting {
    forward!(self.store: traits, load, summary, delete, write);

    async fn list(&self, listing: &Listing) -> Result<Vec<Summary>, StoreError> {
        self.lists.fetch_add(1, Ordering::SeqCst);
        self.store.list(listing).await
    }
}

#[tokio::test(start_paused = true)]
async fn delete_a_root_at_rest_lists_its_sub_agents_once() {
    let (team, store) = (Team { levels: 1, ..Team::default() }, Arc::new(Counting::default()));
    let manager = Manager::builder(Arc::clone(&store)).build();
    let root = in_time(manager.create_with_id(&id("root"), team.options().durable(Durable::Turns))).await;
    let session = root.unwrap().session;
    session.prompt("Go").await.unwrap();
    let pause = pauses(&session).await.remove(0);
    in_time(session.resume(pause.tool_use.id.clone(), Decision::Execute)).await.unwrap();
    in_time(session.wait_until_idle()).await.unwrap();
    assert_eq!(store.store.list(&Page::first(9).into()).await.unwrap().len(), 3);
    let before = store.lists.load(Ordering::SeqCst);
    in_time(manager.delete(&id("root"))).await.unwrap();
    assert_eq!(store.lists.load(Ordering::SeqCst) - before, 1);
    assert!(store.store.list(&Page::first(9).into()).await.unwrap().is_empty());
}

/// A store that deletes a sub-agent when the gate is open.
struct SlowToDelete(MemoryStore, Gate);

#[async_trait::async_trait]
impl Store for SlowToDelete {
    forward!(self.0: traits, load, summary, turn, list, write);

    async fn delete(&self, own: &ConversationId, lease: Option<&Lease>) -> Result<(), StoreError> {
        if own.as_str().starts_with("sub-") {
            self.1.pass().await;
        }
        self.0.delete(own, lease).await
    }
}

#[tokio::test(start_paused = true)]
async fn delete_a_root_whose_turn_was_just_discarded_reports_its_sub_agent_once() {
    let (team, gate) = (Team::default(), Gate::new());
    let store = SlowToDelete(MemoryStore::new(), gate.clone());
    let manager = Manager::builder(Arc::new(store)).build();
    let session = team.begin(&manager, "root").await;
    let mut feed = Feed::of(&manager);
    // The end of the turn deletes the sub-agent.
    session.cancel().await.unwrap();
    in_time(gate.reached()).await;
    let deleting = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.delete(&id("root")).await })
    };
    settle().await;
    gate.open();
    in_time(deleting).await.unwrap().unwrap();
    let deleted: Vec<_> = feed.news().await.into_iter().filter(|news| news.ends_with(" deleted")).collect();
    assert!(
        deleted.len() == 2 && deleted[0].starts_with("sub-") && deleted[1] == "root deleted",
        "{deleted:?}"
    );
}

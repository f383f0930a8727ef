//! Sub-agents whose calls are repeated: by the next process, or because their sessions have ended before their runs.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use omni_agent::{
    Agent, Manager,
    agent::{Durable, SubAgent},
    budget::Budget,
    manager::{ManagerBuilder, OpenOptions, Sweep},
    message::{Timestamp, ToolResult, Usage},
    session::Session,
    store::{
        ConversationId, Filter, MemoryStore, Page, Store,
        custom::{Change, StateChange, Stored, Write},
    },
    subscription::EndReason,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Replay, Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::support::{alone, id, in_time, open_ids, secs, settle};

/// A root that calls sub-agents in one step. Each of them uses a tool several times, and then answers with the last
/// result.
#[derive(Clone)]
struct Team {
    /// The tasks of the sub-agents.
    tasks: &'static [&'static str],
    /// The number of times that each sub-agent uses its tool.
    rounds: usize,
    /// The tool uses that wait at the gate. They have the names of their tasks, and a number.
    held: &'static [&'static str],
    gate: Gate,
    budget: Budget,
    /// The requests that the models of all lives have received.
    requests: Arc<AtomicUsize>,
}

impl Team {
    fn new(tasks: &'static [&'static str], held: &'static [&'static str]) -> Self {
        let (budget, requests) = Default::default();
        Self { tasks, rounds: 1, held, gate: Gate::new(), budget, requests }
    }

    /// Returns the team as the next process has it.
    fn next(&self, held: &'static [&'static str]) -> Self {
        Self { held, gate: Gate::new(), ..self.clone() }
    }

    fn step(&self) -> Step {
        self.requests.fetch_add(1, Ordering::SeqCst);
        Step::new().usage(Usage::default().with_output(1))
    }

    fn sub_agent(&self) -> SubAgent {
        let team = self.clone();
        SubAgent::new("sub", "Works.", move |_| {
            let own = team.clone();
            let provider = ScriptedProvider::from_fn(move |request| {
                let task = request.history.get(0).unwrap().text();
                let results = request.history.iter().flat_map(|message| message.tool_results());
                let results: Vec<_> = results.map(ToolResult::text).collect();
                if results.len() < own.rounds {
                    let name = format!("{task}{}", results.len());
                    return own.step().then_tool_use(&name, "work", json!({})).stop();
                }
                own.step().then_text([results.last().cloned().unwrap_or_default()]).stop()
            });
            let own = team.clone();
            let work = tool_fn("work", "Works.", move |_: Value, context: ToolContext| {
                let own = own.clone();
                async move {
                    let name = context.tool_use_id().as_str().to_owned();
                    if own.held.contains(&name.as_str()) {
                        own.gate.pass().await;
                    }
                    Ok(format!("did {name}"))
                }
            });
            Agent::builder().model(provider.model()).tool(work.with_replay(Replay::Keyed))
        })
    }

    fn options(&self) -> OpenOptions {
        let own = self.clone();
        let provider = ScriptedProvider::from_fn(move |request| {
            let last = request.history.last().unwrap();
            let results: Vec<_> = last.tool_results().map(ToolResult::text).collect();
            if !results.is_empty() {
                return own.step().then_text([results.join(", ")]).stop();
            }
            let call = |step: Step, task: &&str| step.then_tool_use(task, "sub", json!({ "task": task }));
            own.tasks.iter().fold(own.step(), call).stop()
        });
        let agent = Agent::builder().model(provider.model()).tool(self.sub_agent()).budget(self.budget);
        alone(agent).durable(Durable::InFlight)
    }

    /// Starts the root, and waits until all tool uses that are held have begun.
    async fn begin(&self, manager: &Manager, name: &str) -> Session {
        let root = in_time(manager.create_with_id(&id(name), self.options())).await.unwrap().session;
        root.prompt("Go").await.unwrap();
        for _ in self.held {
            in_time(self.gate.reached()).await;
        }
        root
    }

    /// Continues the root in a new process.
    async fn continued(&self, manager: &Manager) -> Session {
        in_time(manager.open(&id("root"), self.options())).await.unwrap().session
    }
}

/// Runs a process until `work` ends. Then its tasks die, whatever they do.
fn life<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(work)
}

fn manager(store: &Arc<MemoryStore>) -> ManagerBuilder {
    Manager::builder(Arc::clone(store)).sweep(Sweep::off())
}

async fn children(store: &MemoryStore) -> Vec<ConversationId> {
    let all = store.list(&Page::first(9).into()).await.unwrap();
    let children = all.into_iter().filter(|summary| summary.labels.get("omni.parent") == Some("root"));
    children.map(|summary| summary.id).collect()
}

async fn last_text(session: &Session) -> String {
    in_time(session.wait_until_idle()).await.unwrap();
    session.tree().await.unwrap().history().last().unwrap().text()
}

/// Makes a session lose its place: writes to its conversation as another process would, and then lets the session write.
async fn lose_place(store: &MemoryStore, session: &Session) {
    let Stored { version, mut state, .. } = store.load(session.id()).await.unwrap();
    state.settings.system = Some("Be brief.".into());
    let change = Change::State(StateChange::whole(state));
    store.write(session.id(), &Write::on(version), &change).await.unwrap();
    // An error means that the session has noticed it already.
    let _ = session.set_title(Some("Later")).await;
    assert_eq!(in_time(session.ended()).await.reason, EndReason::LostPlace);
}

#[test]
fn sub_agents_repeated_after_a_crash_wait_for_each_other_if_there_is_less_room() {
    for crashes in [true, false] {
        let (store, team) = (Arc::new(MemoryStore::new()), Team::new(&["a", "b", "c"], &["a0", "b0", "c0"]));
        life(async {
            let first = manager(&store).build();
            let root = team.begin(&first, "root").await;
            in_time(root.flush(secs(10))).await.unwrap();
            if !crashes {
                in_time(first.hand_over(secs(10))).await.unwrap();
            }
        });
        let team = team.next(team.held);
        life(async {
            let second = manager(&store).max_sub_agents(1).build();
            let root = team.continued(&second).await;
            for _ in 0..3 {
                in_time(team.gate.reached()).await;
                settle().await;
                assert_eq!(open_ids(&second).len(), 2, "the root and one sub-agent");
                team.gate.open();
            }
            assert_eq!(last_text(&root).await, "did a0, did b0, did c0");
            assert_eq!(children(&store).await.len(), 3);
        });
    }
}

#[test]
fn sub_agents_repeated_after_a_crash_wait_for_new_calls_that_take_all_room() {
    let (store, team) = (Arc::new(MemoryStore::new()), Team::new(&["a"], &["a0"]));
    life(async {
        let root = team.begin(&manager(&store).build(), "root").await;
        in_time(root.flush(secs(10))).await.unwrap();
    });
    life(async {
        let (second, of_other) = (manager(&store).max_sub_agents(1).build(), team.next(team.held));
        let other = of_other.begin(&second, "other").await;
        let root = team.next(&[]).continued(&second).await;
        settle().await;
        assert_eq!(open_ids(&second).len(), 3, "both roots, and the sub-agent of the other one");
        of_other.gate.open();
        assert_eq!(last_text(&root).await, "did a0");
        assert_eq!(last_text(&other).await, "did a0");
        assert_eq!(children(&store).await.len(), 1);
    });
}

#[test]
fn sub_agents_that_lose_their_place_are_opened_again_by_their_call() {
    for is_repeated in [false, true] {
        let store = Arc::new(MemoryStore::new());
        // Two requests of the root, and three of the sub-agent.
        let mut team = Team { rounds: 2, budget: Budget::requests(5), ..Team::new(&["a"], &["a0"]) };
        if is_repeated {
            life(async {
                let root = team.begin(&manager(&store).build(), "root").await;
                in_time(root.flush(secs(10))).await.unwrap();
            });
        }
        team = team.next(&["a1"]);
        life(async {
            let second = manager(&store).build();
            let root = if is_repeated {
                let root = team.continued(&second).await;
                in_time(team.gate.reached()).await;
                root
            } else {
                team.begin(&second, "root").await
            };
            let child = children(&store).await.remove(0);
            let session = second.get(&child).unwrap();
            in_time(session.flush(secs(10))).await.unwrap();
            lose_place(&store, &session).await;
            in_time(team.gate.reached()).await;
            team.gate.open();
            assert_eq!(last_text(&root).await, "did a1", "{is_repeated}");
            assert_eq!(children(&store).await, [child]);
            in_time(second.shutdown(secs(10))).await.unwrap();
            let used = second.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX >> 1)).await.unwrap();
            let used: u64 = used.iter().map(|sum| sum.requests).sum();
            assert_eq!((used, team.requests.load(Ordering::SeqCst)), (5, 5), "{is_repeated}");
        });
    }
}

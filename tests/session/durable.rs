//! Turns in flight that survive the end of their process. In these tests, a process is a runtime, which is dropped
//! without warning.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{
        Agent, AgentBuilder, AgentCallbacks, CompactionPolicy, Durable, ErrorDecision, Recover, Recovery,
        RecoveryDecision, State, Status, ToolDecision, TurnDecision,
    },
    budget::Budget,
    message::{Content, RequestEnd, ToolResult, ToolUse, TurnId, Usage},
    provider::{ModelInfo, ProviderError, ProviderErrorKind, Request, StopReason},
    run::{Accepted, Failure, Prompt, RunOutcome},
    session::{Mode, Session, SessionBuilder},
    store::{
        ConversationId, FileSystemStore, MemoryStore, Page, Store,
        custom::{Change, Commit, StoredTurn, TurnRecord, Write},
    },
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, declared_tool, tool_fn},
};
use serde_json::{Value, json};

use crate::watch::{Hooks, answered, held, in_time, reached};

const SOON: Duration = Duration::from_secs(5);

pub(crate) fn id() -> ConversationId {
    ConversationId::new("talk").unwrap()
}

/// A store that outlives processes, and a counter of the tool calls in all processes.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) store: Arc<dyn Store>,
    /// The number of times that the tool `send` has begun to run.
    pub(crate) sent: Arc<AtomicUsize>,
    pub(crate) level: Durable,
}

impl World {
    pub(crate) fn new(level: Durable) -> Self {
        Self { store: Arc::new(MemoryStore::new()), sent: Arc::default(), level }
    }

    /// Runs a process with a session of the conversation, until `work` is done. Then the process is killed.
    pub(crate) fn process<T>(&self, agent: AgentBuilder, work: impl AsyncFnOnce(Session) -> T) -> T {
        self.process_with(agent, |builder| builder, work)
    }

    fn process_with<T>(
        &self,
        agent: AgentBuilder,
        settings: impl FnOnce(SessionBuilder) -> SessionBuilder,
        work: impl AsyncFnOnce(Session) -> T,
    ) -> T {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let builder = Session::builder(Arc::clone(&self.store)).agent(agent).durable(self.level);
        let (session, output) = runtime.block_on(async {
            let session = in_time(settings(builder).open_or_create(id())).await.unwrap();
            let output = in_time(work(session.clone())).await;
            (session, output)
        });
        drop(runtime);
        drop(session);
        output
    }

    /// Returns an agent with this script and the tool `send`, which counts its calls.
    pub(crate) fn agent(&self, steps: impl IntoIterator<Item = Step>) -> AgentBuilder {
        self.agent_at(&ScriptedProvider::new(steps), None)
    }

    /// Returns an agent with this provider and the tool `send`. If a gate is given, the tool waits until the gate
    /// opens.
    pub(crate) fn agent_at(&self, provider: &ScriptedProvider, gate: Option<&Gate>) -> AgentBuilder {
        let (calls, gate) = (Arc::clone(&self.sent), gate.cloned());
        let letter = tool_fn("send", "Sends a letter.", move |_: Value, _| {
            calls.fetch_add(1, Ordering::SeqCst);
            let gate = gate.clone();
            async move {
                if let Some(gate) = gate {
                    gate.pass().await;
                }
                Ok("sent")
            }
        });
        Agent::builder().model(provider.model()).tool(letter)
    }

    pub(crate) fn sent(&self) -> usize {
        self.sent.load(Ordering::SeqCst)
    }

    /// Returns the stored turn in flight. Called only while no process runs.
    pub(crate) fn turn(&self) -> Option<StoredTurn> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.store.turn(&id())).unwrap()
    }

    pub(crate) fn stored(&self) -> omni_agent::store::custom::Stored {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.store.load(&id())).unwrap()
    }
}

pub(crate) fn sends() -> Step {
    Step::tool_use("t", "send", json!({ "to": "ann" }))
}

/// Returns callbacks that ask before the tool runs.
pub(crate) fn asking() -> Hooks {
    Hooks::new().on_tool_use(|_| ToolDecision::Pause(json!("may I?")))
}

pub(crate) async fn paused(session: &Session) {
    let mut events = session.subscribe(Mode::Observer).await.unwrap();
    while session.status().await.unwrap() != Status::Paused {
        events.next().await;
    }
}

pub(crate) fn texts(stored: &omni_agent::store::custom::Stored) -> Vec<String> {
    stored.nodes.iter().map(|node| node.message().text()).collect()
}

#[test]
fn approval_waits_over_a_kill_and_the_tool_runs_once() {
    for level in [Durable::Approvals, Durable::InFlight] {
        let world = World::new(level);
        world.process(world.agent([sends()]).callbacks(asking()), async |session| {
            session.prompt("Write to Ann").await.unwrap();
            paused(&session).await;
        });
        let turn = world.turn().expect("the turn is recorded");
        assert_eq!(turn.record.waiting.len(), 1);
        // Opening a paused turn often does not use up its restarts.
        for _ in 0..10 {
            world.process(world.agent([]).callbacks(asking()), async |session| paused(&session).await);
            assert_eq!(world.turn().unwrap().record.lives, 0);
        }
        world.process(world.agent([Step::text("Done")]).callbacks(asking()), async |session| {
            paused(&session).await;
            session.resume("t", Decision::Execute).await.unwrap();
            session.wait_until_idle().await.unwrap();
            session.flush(SOON).await.unwrap();
        });
        assert_eq!((world.sent(), world.turn()), (1, None));
        assert_eq!(texts(&world.stored()).last().unwrap(), "Done");
    }
}

#[test]
fn decision_that_was_accepted_survives_a_kill() {
    let world = World::new(Durable::InFlight);
    let script = [sends(), Step::text("As").hang()];
    world.process(world.agent(script).callbacks(asking()), async |session| {
        session.prompt("Write to Ann").await.unwrap();
        paused(&session).await;
        session.resume("t", Decision::reject("No")).await.unwrap();
    });
    world.process(world.agent([Step::text("As you wish")]).callbacks(asking()), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
    });
    assert_eq!((world.sent(), world.turn()), (0, None));
    let stored = world.stored();
    assert_eq!(texts(&stored).last().map(String::as_str), Some("As you wish"), "{:?}", stored.last_run);
}

#[test]
fn tool_that_was_running_at_a_kill_is_reported_and_not_run_again() {
    let world = World::new(Durable::InFlight);
    let gate = Gate::new();
    let provider = ScriptedProvider::new([sends()]);
    world.process(world.agent_at(&provider, Some(&gate)), async |session| {
        session.prompt("Write to Ann").await.unwrap();
        reached(&gate).await;
    });
    let provider = ScriptedProvider::new([Step::text("I don't know")]);
    world.process(world.agent_at(&provider, None), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
    });
    assert_eq!((world.sent(), world.turn()), (1, None));
    let result = format!("{:?}", provider.last_request().unwrap());
    assert!(result.contains("not known whether the tool took effect"), "{result}");
}

#[test]
fn open_tool_use_stays_open_if_a_kill_cuts_off_a_tool_of_its_step() {
    let world = World::new(Durable::InFlight);
    let (gate, ask) = (Gate::new(), || declared_tool::<Value>("ask_user", "Asks the user."));
    let step = Step::new().then_tool_use("a", "ask_user", json!({}));
    let step = step.then_tool_use("t", "send", json!({ "to": "ann" })).stop();
    let provider = ScriptedProvider::new([step]);
    world.process(world.agent_at(&provider, Some(&gate)).tool(ask()), async |session| {
        session.prompt(Prompt::from("Write to Ann").with_mixed_steps()).await.unwrap();
        reached(&gate).await;
    });
    let provider = ScriptedProvider::new([Step::text("Thanks")]);
    world.process(world.agent_at(&provider, None).tool(ask()), async |session| {
        session.wait_until_idle().await.unwrap();
        let snapshot = session.snapshot().await.unwrap();
        let outcome = &snapshot.agent.last_run.as_ref().unwrap().outcome;
        assert_eq!(*outcome, RunOutcome::Stopped { stop_reason: StopReason::ToolUse });
        let answer = snapshot.tree.history().last().unwrap();
        let decided: Vec<_> = answer.tool_uses().map(|tool_use| tool_use.decided.is_some()).collect();
        assert_eq!(decided, [false, true], "only the tool of the page is open");
        let yes = ToolResult::ok(&ToolUse::new("a", "ask_user", json!({})), "Yes");
        assert_eq!(session.ask(vec![Content::from(yes)]).await.unwrap().text(), "Thanks");
        session.flush(SOON).await.unwrap();
    });
    let request = provider.last_request().unwrap();
    let results: Vec<_> = request.history.last().unwrap().tool_results().map(ToolResult::text).collect();
    assert_eq!(results[0], "Yes");
    assert!(results[1].contains("not known whether the tool took effect"), "{results:?}");
}

#[test]
fn turn_that_continues_after_a_kill_has_spent_what_was_recorded() {
    let world = World::new(Durable::InFlight);
    let gate = Gate::new();
    let budget = Budget::tokens(2_500);
    let used = Step::new().usage(Usage::default().with_input(2_000));
    let provider = ScriptedProvider::new([used.then_tool_use("t", "send", json!({ "to": "ann" })).stop()]);
    world.process(world.agent_at(&provider, Some(&gate)).budget(budget), async |session| {
        session.prompt("Write to Ann").await.unwrap();
        reached(&gate).await;
    });
    let provider = ScriptedProvider::new([Step::text("Yes.")]);
    world.process(world.agent_at(&provider, None).budget(budget), async |session| {
        session.wait_until_idle().await.unwrap();
        let snapshot = session.snapshot().await.unwrap();
        let outcome = &snapshot.agent.last_run.as_ref().unwrap().outcome;
        assert_eq!(*outcome, RunOutcome::Stopped { stop_reason: StopReason::Budget });
        session.flush(SOON).await.unwrap();
        // The next prompt has an account of its own.
        assert_eq!(session.ask("Again?").await.unwrap().text(), "Yes.");
    });
    assert_eq!((world.turn(), provider.requests().len()), (None, 1));
}

#[test]
fn turn_that_continues_after_a_kill_has_made_its_request_for_a_summary() {
    let world = World::new(Durable::InFlight);
    let info = ModelInfo::new("small").with_context_window(1_100).with_output_limit(100);
    let agent = |provider: &ScriptedProvider, gate: Option<&Gate>| {
        let model = provider.model().with_info(info.clone());
        world.agent_at(provider, gate).model(model).compaction(CompactionPolicy::default())
    };
    let counted = |text: &str, context: u64| {
        Step::new().usage(Usage::default().with_input(context)).then_text([text]).stop()
    };
    let gate = Gate::new();
    let script = [counted("A1", 500), counted("A2", 860), Step::text("They greeted."), sends()];
    let provider = ScriptedProvider::new(script);
    let budget = Budget::requests(2);
    world.process(agent(&provider, Some(&gate)), async |session| {
        for text in ["Q1", "Q2"] {
            session.ask(text).await.unwrap();
        }
        session.prompt(Prompt::from("Q3").with_budget(budget)).await.unwrap();
        reached(&gate).await;
    });
    assert_eq!(provider.requests().len(), 4, "a summary and a step were requested for the last prompt");
    let provider = ScriptedProvider::new([Step::text("No")]);
    world.process(agent(&provider, None), async |session| {
        session.wait_until_idle().await.unwrap();
        let snapshot = session.snapshot().await.unwrap();
        let outcome = &snapshot.agent.last_run.as_ref().unwrap().outcome;
        assert_eq!(*outcome, RunOutcome::Stopped { stop_reason: StopReason::Budget });
        session.flush(SOON).await.unwrap();
    });
    assert_eq!((world.turn(), provider.requests().len()), (None, 0));
}

#[test]
fn prompt_that_was_accepted_survives_a_kill() {
    let world = World::new(Durable::InFlight);
    world.process(world.agent([Step::text("A").hang()]), async |session| {
        assert!(matches!(session.prompt("Q").await.unwrap(), Accepted::Started { .. }));
        assert!(world.store.turn(&id()).await.unwrap().is_some(), "the reply waits for the store");
    });
    world.process(world.agent([Step::text("A")]), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
    });
    assert_eq!(texts(&world.stored()), ["Q", "A"]);
}

#[test]
fn turn_continues_on_its_backup_model_after_a_kill_if_the_list_still_has_it() {
    let spent = || Step::error(ProviderError::new(ProviderErrorKind::Quota, "no credit"));
    let other = |step| ScriptedProvider::new([step]).named("other").model();
    for (has_list, answer) in [(true, "From the backup model."), (false, "From the first model.")] {
        let world = World::new(Durable::InFlight);
        let gate = Gate::new();
        let agent = world.agent([spent()]).backup_model(other(held(&gate)));
        world.process(agent, async |session| {
            session.prompt("Q").await.unwrap();
            reached(&gate).await;
            // The change of the model is recorded a moment later.
            tokio::time::advance(Duration::from_millis(60)).await;
            session.flush(SOON).await.unwrap();
        });
        let agent = world.agent([Step::text("From the first model.")]);
        let backup = other(Step::text("From the backup model."));
        let agent = if has_list { agent.backup_model(backup) } else { agent };
        let model = world.process(agent, async |session| {
            session.wait_until_idle().await.unwrap();
            session.flush(SOON).await.unwrap();
            session.state().await.unwrap().config().model.name().to_owned()
        });
        assert_eq!(texts(&world.stored()), ["Q", answer]);
        assert_eq!(model, "test:scripted", "the configured model stays");
    }
}

#[test]
fn regenerate_survives_a_kill_with_its_branch() {
    let world = World::new(Durable::InFlight);
    let gate = Gate::new();
    world.process(world.agent([Step::text("A1"), held(&gate)]), async |session| {
        session.ask("Q").await.unwrap();
        let question = session.tree().await.unwrap().roots().next().unwrap().id();
        session.again(question).start().await.unwrap();
        assert!(world.store.turn(&id()).await.unwrap().unwrap().record.branch.is_some());
    });
    let tree = world.process(world.agent([Step::text("A2")]), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
        session.tree().await.unwrap()
    });
    assert_eq!(tree.to_string(), "* 1 user: Q\n  ├─ 2 assistant: A1\n> └─ 3 assistant: A2");
    assert_eq!(world.turn(), None);
}

#[test]
fn cancelled_branch_of_an_earlier_life_restores_the_tree() {
    let world = World::new(Durable::InFlight);
    world.process(world.agent([Step::text("A1"), Step::text("A2").hang()]), async |session| {
        session.ask("Q").await.unwrap();
        let question = session.tree().await.unwrap().roots().next().unwrap().id();
        session.run("Other").instead_of(question).start().await.unwrap();
    });
    let tree = world.process(world.agent([Step::text("A2").hang()]), async |session| {
        session.cancel().await.unwrap();
        session.flush(SOON).await.unwrap();
        session.tree().await.unwrap()
    });
    assert_eq!(tree.to_string(), "* 1 user: Q\n> 2 assistant: A1");
    let stored = world.stored();
    assert_eq!((stored.turn, stored.last_run.unwrap().outcome), (None, RunOutcome::Cancelled));
}

#[test]
fn paused_session_sleeps_and_leaves_its_turn() {
    let world = World::new(Durable::InFlight);
    world.process(world.agent([sends()]).callbacks(asking()), async |session| {
        session.prompt("Write to Ann").await.unwrap();
        paused(&session).await;
        assert!(session.sleep().await.unwrap());
        session.ended().await;
    });
    assert_eq!(world.turn().unwrap().record.waiting.len(), 1);
    world.process(world.agent([Step::text("Done")]).callbacks(asking()), async |session| {
        paused(&session).await;
        let weak = session.downgrade();
        drop(session);
        // `World::process` holds another handle, so dropping this one does not end the session.
        assert!(weak.upgrade().is_some());
    });
    assert_eq!(world.turn().unwrap().record.waiting.len(), 1);
}

#[test]
fn last_handle_dropped_while_paused_leaves_the_turn() {
    let world = World::new(Durable::InFlight);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let agent = world.agent([sends()]).callbacks(asking());
        let builder = Session::builder(Arc::clone(&world.store)).agent(agent).durable(world.level);
        let session = builder.create_with_id(id()).await.unwrap();
        session.prompt("Write to Ann").await.unwrap();
        in_time(paused(&session)).await;
        let mut events = session.subscribe(Mode::Observer).await.unwrap();
        drop(session);
        while in_time(events.next()).await.is_some() {}
    });
    assert_eq!(world.turn().unwrap().record.waiting.len(), 1);
    assert_eq!(world.stored().last_run, None);
}

#[test]
fn stopped_session_interrupts_its_turn_and_records_the_end() {
    let world = World::new(Durable::InFlight);
    world.process(world.agent([Step::text("A").hang()]), async |session| {
        session.prompt("Q").await.unwrap();
        session.stop(SOON).await.unwrap();
    });
    assert_eq!(world.turn(), None);
}

#[test]
fn writes_of_a_turn_are_counted_exactly() {
    // Each write raises the conversation's version by one, so the difference of two versions is the number of writes.
    let writes = |level, script: Vec<Step>| {
        let world = World::new(level);
        world.process(world.agent(script), async |session| {
            let before = world.store.summary(&id()).await.unwrap().version.get();
            session.ask("Q").await.unwrap();
            session.flush(SOON).await.unwrap();
            world.store.summary(&id()).await.unwrap().version.get() - before
        })
    };
    assert_eq!(writes(Durable::Turns, vec![Step::text("A")]), 1);
    assert_eq!(writes(Durable::Approvals, vec![Step::text("A")]), 1);
    assert_eq!(writes(Durable::InFlight, vec![Step::text("A")]), 2);
    assert_eq!(writes(Durable::Turns, vec![sends(), Step::text("A")]), 1);
    assert_eq!(writes(Durable::Approvals, vec![sends(), Step::text("A")]), 1);
    assert_eq!(writes(Durable::InFlight, vec![sends(), Step::text("A")]), 4);
}

#[test]
fn turn_without_progress_is_abandoned_after_five_restarts() {
    let world = World::new(Durable::InFlight);
    for _ in 0..6 {
        world.process(world.agent([Step::text("A").hang()]), async |session| {
            if session.status().await.unwrap() == Status::Idle {
                session.prompt("Q").await.unwrap();
            }
        });
    }
    assert_eq!(world.turn().unwrap().record.lives, 5);
    world.process(world.agent([Step::text("A")]), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
    });
    let stored = world.stored();
    assert_eq!((stored.turn, stored.last_run.unwrap().outcome), (None, RunOutcome::Abandoned));
}

/// Callbacks that delay the repetition of a failed request by an hour.
struct Patient;

#[async_trait]
impl AgentCallbacks for Patient {
    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> ErrorDecision {
        ErrorDecision::RetryAfter(Duration::from_hours(1))
    }
}

/// Records a turn whose next request is delayed, with this time of the system clock as the end of the delay.
fn delayed_until(world: &World, until: u64) {
    let failing = Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    world.process(world.agent([failing]).callbacks(Patient), async |session| {
        session.prompt("Q").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let stored = world.store.load(&id()).await.unwrap();
        let mut record = stored.turn.unwrap().record.with_append(Vec::new());
        record.keep = 1;
        let mut core: Value = serde_json::from_str(&record.core).unwrap();
        assert_eq!(core["stage"]["stage"], "delaying");
        core["stage"]["until"] = until.into();
        record.core = core.to_string().into();
        let commit = Commit::new(stored.head).with_turn(record);
        world.store.write(&id(), &Write::on(stored.version), &Change::Commit(commit)).await.unwrap();
    });
}

#[test]
fn turn_that_breaks_off_after_its_delay_is_abandoned_after_five_restarts() {
    let world = World::new(Durable::InFlight);
    delayed_until(&world, 1);
    for lives in 1..=5 {
        let gate = Gate::new();
        world.process(world.agent([held(&gate)]), async |_| reached(&gate).await);
        assert_eq!(world.turn().unwrap().record.lives, lives);
    }
    world.process(world.agent([Step::text("A")]), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
    });
    let stored = world.stored();
    assert_eq!((stored.turn, stored.last_run.unwrap().outcome), (None, RunOutcome::Abandoned));
}

#[test]
fn restart_during_a_delay_is_not_counted() {
    let world = World::new(Durable::InFlight);
    delayed_until(&world, u64::MAX / 2);
    for _ in 0..3 {
        world.process(world.agent([]), async |_| {});
        assert_eq!(world.turn().unwrap().record.lives, 0);
    }
}

#[test]
fn turn_that_breaks_off_in_handle_turn_with_open_tool_uses_is_abandoned_after_five_restarts() {
    let world = World::new(Durable::InFlight);
    let agent = |step: Option<Step>| {
        let entered = Gate::new();
        let gate = entered.clone();
        let callbacks = Hooks::new()
            .on_tool_use(|tool_use| match tool_use.name.as_str() {
                "send" => ToolDecision::Reject("No.".into()),
                _ => ToolDecision::Execute,
            })
            .on_turn(move |_, _| {
                let gate = gate.clone();
                async move {
                    gate.pass().await;
                    TurnDecision::Stop
                }
            });
        let declared = declared_tool::<Value>("ask_user", "The application answers.");
        (world.agent(step).tool(declared).callbacks(callbacks), entered)
    };
    let uses = Step::new().then_tool_use("t", "send", json!({})).then_tool_use("u", "ask_user", json!({}));
    let mut step = Some(uses.stop());
    for lives in 0..=5 {
        let (agent, gate) = agent(step.take());
        world.process(agent, async |session| {
            if session.status().await.unwrap() == Status::Idle {
                session.prompt("Q").await.unwrap();
            }
            reached(&gate).await;
            // The state at this callback is recorded a moment later.
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        let record = world.turn().unwrap().record;
        let core: Value = serde_json::from_str(&record.core).unwrap();
        let decided = core["stage"]["end"]["decided"].as_array().map(Vec::len);
        assert_eq!((record.lives, decided), (lives, Some(1)));
    }
    let (agent, _) = agent(None);
    world.process(agent, async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
    });
    assert_eq!(world.stored().last_run.unwrap().outcome, RunOutcome::Abandoned);
}

#[test]
fn abandoned_turn_has_one_outcome() {
    // A turn without a completed step is discarded, and a completed step is kept.
    for (steps, kept) in [(vec![], 0), (vec![sends()], 3)] {
        let world = World::new(Durable::InFlight);
        let gate = Gate::new();
        let script = steps.into_iter().chain([held(&gate)]);
        world.process(world.agent(script), async |session| {
            session.prompt("Q").await.unwrap();
            reached(&gate).await;
        });
        while world.turn().unwrap().record.lives < 5 {
            world.process(world.agent([Step::text("A").hang()]), async |_| {});
        }
        let snapshot = world.process(world.agent([]), async |session| {
            session.wait_until_idle().await.unwrap();
            session.flush(SOON).await.unwrap();
            session.snapshot().await.unwrap()
        });
        let (seen, stored) = (snapshot.agent.last_run.unwrap(), world.stored().last_run.unwrap());
        assert_eq!((&seen.outcome, snapshot.agent.state.history.len()), (&RunOutcome::Abandoned, kept));
        assert_eq!((&stored.outcome, stored.turn), (&seen.outcome, seen.turn));
        assert_eq!(stored.unanswered, seen.unanswered);
    }
}

#[test]
fn request_that_was_lost_with_its_process_has_a_row_in_the_ledger() {
    let world = World::new(Durable::InFlight);
    let gate = Gate::new();
    world.process(world.agent([held(&gate)]), async |session| {
        session.prompt("Q").await.unwrap();
        reached(&gate).await;
        // The record of this prompt contains the request that was sent.
        session.prompt("And then?").await.unwrap();
    });
    let rows = world.process(world.agent([Step::text("A"), Step::text("B")]), async |session| {
        session.wait_until_idle().await.unwrap();
        session.flush(SOON).await.unwrap();
        world.store.usage(&id(), &Page::default()).await.unwrap()
    });
    let lost: Vec<_> = rows.iter().filter(|row| row.end == RequestEnd::Lost).collect();
    assert!(matches!(lost.as_slice(), [row] if row.usage == Usage::default()), "{rows:?}");
}

#[test]
fn create_above_turns_needs_a_store_that_keeps_turns() {
    let folder = std::env::temp_dir().join(format!("omni-agent-durable-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = FileSystemStore::open(&folder).await.unwrap();
        let agent = Agent::builder().model(ScriptedProvider::new([]).model());
        let created = Session::builder(store).agent(agent).durable(Durable::Approvals).create().await;
        let error = created.unwrap_err();
        assert!(error.to_string().starts_with("this store does not keep turns in flight"), "{error:?}");
        assert_eq!(error.kind(), ErrorKind::Config);
    });
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn open_with_an_unreadable_turn_fails_unless_it_is_discarded() {
    let turn: TurnId = "00112233445566778899aabbccddeeff".parse().unwrap();
    let cases = [TurnRecord::new(99, turn, "{}"), TurnRecord::new(1, turn, "not a state")];
    for (number, record) in cases.into_iter().enumerate() {
        let world = World::new(Durable::InFlight);
        world.process(world.agent([Step::text("A")]), async |session| {
            session.ask("Q").await.unwrap();
            session.stop(SOON).await.unwrap();
            let version = world.store.summary(&id()).await.unwrap().version;
            let head = world.store.load(&id()).await.unwrap().head;
            let commit = Commit::new(head).with_turn(record.clone().with_head(head));
            world.store.write(&id(), &Write::on(version), &Change::Commit(commit)).await.unwrap();
            let opened = Session::builder(Arc::clone(&world.store)).agent(world.agent([])).open(id()).await;
            let error = opened.unwrap_err();
            let kind = [ErrorKind::NewerTurn, ErrorKind::DamagedTurn][number];
            let format = (number == 0).then(|| 99.into());
            assert_eq!((error.kind(), error.member("format")), (kind, format.as_ref()));
        });
        let discard = Recover::default().with_decision(RecoveryDecision::Discard);
        world.process_with(
            world.agent([]),
            |builder| builder.recover(discard),
            async |session| {
                assert_eq!(session.status().await.unwrap(), Status::Idle);
                session.flush(SOON).await.unwrap();
            },
        );
        let stored = world.stored();
        assert_eq!((stored.turn, stored.last_run.unwrap().outcome), (None, RunOutcome::Discarded));
        assert_eq!(texts(&world.stored()), ["Q", "A"]);
    }
}

#[test]
fn readers_of_a_paused_session_continue_after_it_slept() {
    let world = World::new(Durable::InFlight);
    let last = world.process(world.agent([sends()]).callbacks(asking()), async |session| {
        let mut events = answered(session.subscribe(Mode::Observer)).await.unwrap();
        session.prompt("Write to Ann").await.unwrap();
        paused(&session).await;
        assert!(session.sleep().await.unwrap());
        let mut last = events.last_id();
        while events.next().await.is_some() {
            last = events.last_id();
        }
        last
    });
    world.process(world.agent([]).callbacks(asking()), async |session| {
        let mut events = session.resume_from(last, Mode::Observer).await.unwrap();
        let update = in_time(events.next()).await.unwrap();
        assert!(matches!(update, omni_agent::subscription::Update::Event(_)), "{update:?}");
    });
}

/// Records the turn and the step that `prepare_step` and `handle_recovery` see.
struct Noting(Arc<Mutex<Vec<Place>>>);

/// A turn and a step.
type Place = (Option<TurnId>, u32);

#[async_trait]
impl AgentCallbacks for Noting {
    async fn prepare_step(&mut self, _: &mut Request, state: &mut State) {
        self.0.lock().unwrap().push((state.turn(), state.step()));
    }

    async fn handle_recovery(&mut self, recovery: &mut Recovery, state: &mut State) -> RecoveryDecision {
        assert_eq!(state.turn(), Some(recovery.turn));
        RecoveryDecision::Resume
    }
}

#[test]
fn callback_that_is_called_again_sees_the_same_turn_and_step() {
    let world = World::new(Durable::InFlight);
    let noted = Arc::new(Mutex::new(Vec::new()));
    let agent = |step: Step| world.agent([step]).callbacks(Noting(Arc::clone(&noted)));
    world.process(agent(Step::text("A").hang()), async |session| {
        session.prompt("Q").await.unwrap();
        while noted.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    });
    let turn = world.turn().unwrap().record.turn;
    world.process(agent(Step::text("A")), async |session| {
        session.wait_until_idle().await.unwrap();
        assert_eq!(session.state().await.unwrap().turn(), None);
    });
    assert_eq!(*noted.lock().unwrap(), [(Some(turn), 1), (Some(turn), 1)]);
}

#[test]
fn record_for_which_nothing_waits_is_written_after_the_delay() {
    for (delay, before, after) in [(None, 49, 2), (Some(Duration::from_secs(10)), 9_999, 2)] {
        let world = World::new(Durable::InFlight);
        let gate = Gate::new();
        let passing = gate.clone();
        let look = tool_fn("look", "Looks.", move |_: Value, _| {
            let gate = passing.clone();
            async move {
                gate.pass().await;
                Ok("seen")
            }
        });
        let provider =
            ScriptedProvider::new([Step::tool_use("t", "look", json!({})), Step::text("Done").hang()]);
        let agent = Agent::builder().model(provider.model()).tool(look.with_replay(Replay::Safe));
        let settings = |builder: SessionBuilder| match delay {
            Some(delay) => builder.record_delay(delay),
            None => builder,
        };
        world.process_with(agent, settings, async |session| {
            session.prompt("Q").await.unwrap();
            reached(&gate).await;
            let version = async || world.store.summary(&id()).await.unwrap().version;
            let first = version().await;
            tokio::time::sleep(Duration::from_millis(before)).await;
            assert_eq!(version().await, first, "the response is not recorded yet");
            tokio::time::sleep(Duration::from_millis(after)).await;
            assert!(version().await > first, "the response is recorded");
        });
    }
}

use std::sync::atomic::AtomicUsize;

use super::*;
use crate::{
    agent::{
        Decided, Failure, MAX_LIVES, OnUncertain, Prompt, RecordedStage, Recover, Recovery, RecoveryDecision,
        Response, State, Status, ToolDecision, TurnDecision, UnreadableTurnReason, tests::support::name,
    },
    message::{DecisionKind, RequestEnd, Timestamp, ToolResult, ToolUse, ToolUseId, UseDecision},
    tool::Decision,
};
use async_trait::async_trait;

/// Callbacks that wait at the gate in the callback named `at`.
struct Hanging {
    at: &'static str,
    gate: Gate,
}

impl Hanging {
    async fn at(&self, callback: &str) {
        if callback == self.at {
            self.gate.pass().await;
        }
    }
}

#[async_trait]
impl AgentCallbacks for Hanging {
    async fn prepare_step(&mut self, _: &mut crate::provider::Request, _: &mut State) {
        self.at("prepare_step").await;
    }

    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        self.at("handle_tool_use").await;
        ToolDecision::Execute
    }

    async fn handle_tool_result(&mut self, result: ToolResult, _: &mut State) -> ToolResult {
        self.at("handle_tool_result").await;
        result
    }

    async fn handle_turn(&mut self, _: &Response, _: &mut State) -> TurnDecision {
        self.at("handle_turn").await;
        TurnDecision::Stop
    }

    async fn handle_error(&mut self, _: &Failure, _: &mut State) -> crate::agent::ErrorDecision {
        self.at("handle_error").await;
        crate::agent::ErrorDecision::Retry
    }

    async fn handle_recovery(&mut self, recovery: &mut Recovery, _: &mut State) -> RecoveryDecision {
        self.at("handle_recovery").await;
        recovery.decision
    }
}

/// Runs a conversation until one of its callbacks hangs, waits until the state at this callback is recorded, and kills
/// the process.
async fn killed_in(at: &'static str, steps: impl IntoIterator<Item = Step>, tool: impl Tool) -> Shelf {
    let gate = Gate::new();
    let builder = acting(steps, tool).1.callbacks(Hanging { at, gate: gate.clone() });
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    // A change for which nothing waits is recorded a moment later.
    tokio::time::advance(std::time::Duration::from_millis(60)).await;
    settle().await;
    life.kill().await
}

/// Continues the conversation, and returns the life when it is idle again.
async fn continued(steps: impl IntoIterator<Item = Step>, tool: impl Tool, shelf: &Shelf) -> Life {
    let life = Life::begin(acting(steps, tool).1, Durable::InFlight, shelf).await;
    life.idle().await;
    assert!(life.shelf.contents().turn.is_none());
    life
}

const WHOLE: [&str; 4] = ["Hi", "", "", "Done."];

#[tokio::test(start_paused = true)]
async fn turn_killed_in_a_callback_ends_as_if_undisturbed() {
    let end = || Step::text("Done.");
    for (at, rest) in [
        ("prepare_step", vec![act(), end()]),
        ("handle_tool_use", vec![end()]),
        ("handle_tool_result", vec![end()]),
    ] {
        let calls = Calls::open();
        let shelf = killed_in(at, [act()], calls.tool(Replay::Never)).await;
        let life = continued(rest, calls.tool(Replay::Never), &shelf).await;
        assert_eq!(life.texts(), WHOLE, "{at}");
        assert_eq!(calls.made().len(), 1, "{at}: {:?}", calls.made());
    }
}

#[tokio::test(start_paused = true)]
async fn turn_killed_after_a_cut_response_ends_at_the_next_one() {
    use crate::provider::{ProviderError, ProviderErrorKind, StopReason};
    let calls = Calls::open();
    let cut = |id| Step::new().then_raw_tool_use(id, "act", &["{"]).stop_with(StopReason::Length);
    let failed = Step::error(ProviderError::new(ProviderErrorKind::Auth, "no"));
    let shelf = killed_in("handle_error", [cut("a"), failed], calls.tool(Replay::Never)).await;
    let builder = acting([cut("b")], calls.tool(Replay::Never)).1;
    let gate = Gate::new();
    gate.open();
    let builder = builder.callbacks(Hanging { at: "", gate });
    let life = Life::begin(builder, Durable::InFlight, &shelf).await;
    life.idle().await;
    let end = life.agent.snapshot().await.unwrap().last_run.unwrap();
    assert_eq!(end.outcome, crate::agent::RunOutcome::Stopped { stop_reason: StopReason::Length });
}

#[tokio::test(start_paused = true)]
async fn turn_killed_in_handle_turn_is_committed() {
    let calls = Calls::open();
    let shelf = killed_in("handle_turn", [act(), Step::text("Done.")], calls.tool(Replay::Never)).await;
    assert!(shelf.history().is_empty());
    let life = continued([], calls.tool(Replay::Never), &shelf).await;
    assert_eq!(life.texts(), WHOLE);
    assert_eq!(calls.made().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn turn_killed_in_handle_error_asks_it_again() {
    use crate::provider::{ProviderError, ProviderErrorKind};
    let failing = || Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"));
    let calls = Calls::open();
    let shelf = killed_in("handle_error", [failing()], calls.tool(Replay::Never)).await;
    let gate = Gate::new();
    gate.open();
    let builder = acting([Step::text("Hello!")], calls.tool(Replay::Never)).1;
    let life = Life::begin(builder.callbacks(Hanging { at: "", gate }), Durable::InFlight, &shelf).await;
    life.idle().await;
    assert_eq!(life.texts(), ["Hi", "Hello!"]);
}

/// Kills the process while the tool runs.
async fn killed_in_tool(calls: &Calls, replay: Replay) -> Shelf {
    let builder = acting([act()], calls.tool(replay)).1;
    let life = Life::begin(builder, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    answered(calls.gate.reached()).await;
    tokio::time::advance(std::time::Duration::from_millis(60)).await;
    settle().await;
    let shelf = life.kill().await;
    calls.gate.open();
    shelf
}

#[tokio::test(start_paused = true)]
async fn tool_that_may_run_again_runs_again_with_its_key_and_input() {
    for replay in [Replay::Safe, Replay::Keyed] {
        let calls = Calls::new();
        let shelf = killed_in_tool(&calls, replay).await;
        let life = continued([Step::text("Done.")], calls.tool(replay), &shelf).await;
        assert_eq!(life.texts(), WHOLE, "{replay:?}");
        let made = calls.made();
        assert_eq!(made.len(), 2, "{replay:?}");
        assert_eq!(made[0], made[1], "{replay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tool_that_must_not_run_twice_is_reported_as_uncertain() {
    // The stricter declaration counts: the one at the start of the call, or the current one. A tool that is gone counts
    // as `Never`.
    for (before, after) in
        [(Replay::Never, Replay::Never), (Replay::Never, Replay::Safe), (Replay::Safe, Replay::Never)]
    {
        let calls = Calls::new();
        let shelf = killed_in_tool(&calls, before).await;
        let life = continued([Step::text("Done.")], calls.tool(after), &shelf).await;
        assert_eq!(calls.made().len(), 1, "{before:?}, {after:?}");
        let history = life.shelf.history();
        let result = history.iter().flat_map(|message| message.tool_results()).next().unwrap().clone();
        assert!(result.is_error);
        assert_eq!(result.text(), "Interrupted by a restart. It is not known whether the tool took effect.");
    }
}

#[tokio::test(start_paused = true)]
async fn uncertain_tool_that_asks_waits_for_a_decision() {
    for (decision, made) in [
        (Decision::Execute, 2),
        (Decision::reject("no"), 1),
        (
            Decision::Provide(ToolResult::ok(
                &ToolUse::new("t1", "act", json!({})),
                crate::message::Text::new("found"),
            )),
            1,
        ),
    ] {
        let calls = Calls::new();
        let shelf = killed_in_tool(&calls, Replay::Never).await;
        let recover = Recover::default().with_on_uncertain(OnUncertain::Ask);
        let builder = acting([Step::text("Done.")], calls.tool(Replay::Never)).1;
        let life =
            Life::begin_with(builder, Durable::InFlight, &shelf, |turn| turn.with_recover(recover)).await;
        settle().await;
        assert_eq!(life.agent.status().await.unwrap(), Status::Paused);
        let waiting = life.shelf.contents().turn.unwrap().waiting;
        assert!(waiting[0].reason.get("uncertain").is_some());
        // After a second restart, the same tool use still waits.
        let shelf = life.kill().await;
        let builder = acting([Step::text("Done.")], calls.tool(Replay::Never)).1;
        let life = Life::begin(builder, Durable::InFlight, &shelf).await;
        settle().await;
        life.agent.resume("t1?again1", decision.clone()).await.unwrap();
        life.idle().await;
        let keys = calls.made();
        assert_eq!(keys.len(), made, "{decision:?}");
        assert!(keys.iter().all(|key| *key == keys[0]), "a repetition has the same key and input");
        assert_eq!(life.texts().last().map(String::as_str), Some("Done."));
    }
}

#[tokio::test(start_paused = true)]
async fn late_copy_of_an_approval_after_a_restart_does_not_repeat_its_tool() {
    let calls = Calls::new();
    let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin(builder(vec![act()]), Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    life.agent.resume("t1", Decision::Execute).await.unwrap();
    settle().await;
    assert_eq!(calls.made().len(), 1);
    // The process dies before its reply arrives, so the client sends the approval again.
    let mut shelf = life.kill().await;
    let asking =
        |turn: TurnInFlight| turn.with_recover(Recover::default().with_on_uncertain(OnUncertain::Ask));
    for repetition in 1..=2 {
        let life = Life::begin_with(builder(vec![]), Durable::InFlight, &shelf, asking).await;
        settle().await;
        for late in
            (0..repetition).map(|times| if times == 0 { "t1".to_owned() } else { format!("t1?again{times}") })
        {
            let error = life.agent.resume(late.as_str(), Decision::Execute).await.unwrap_err();
            assert_eq!(error.kind(), crate::ErrorKind::StaleDecision, "{late}: {error}");
        }
        assert_eq!(calls.made().len(), repetition);
        life.agent.resume(format!("t1?again{repetition}"), Decision::Execute).await.unwrap();
        settle().await;
        assert_eq!(calls.made().len(), repetition + 1);
        shelf = life.kill().await;
    }
}

/// Kills the process while three tools run, and starts a process in which the tools `act` and `sign`, which must not
/// run twice, wait for decisions. The tool `put` may run again with its key.
async fn uncertain_in_the_next_life(calls: &Calls, restarts: usize) -> Life {
    let slow = |name, replay| {
        let gate = calls.gate.clone();
        let tool = tool_fn(name, "Works.", move |_: Value, _| {
            let gate = gate.clone();
            async move {
                gate.pass().await;
                Ok("done")
            }
        });
        tool.with_replay(replay)
    };
    let builder = |steps: Vec<Step>| {
        let builder = acting(steps, calls.tool(Replay::Never)).1;
        builder.tool(slow("sign", Replay::Never)).tool(slow("put", Replay::Keyed))
    };
    let uses = [("t1", "act"), ("t2", "sign"), ("t3", "put")];
    let step = uses.iter().fold(Step::new(), |step, (id, name)| step.then_tool_use(id, name, json!({})));
    let life = Life::begin(builder(vec![step.stop()]), Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    let mut shelf = life.kill().await;
    let recover = Recover::default().with_on_uncertain(OnUncertain::Ask);
    for _ in 0..restarts {
        let asking = |turn: TurnInFlight| turn.with_recover(recover);
        let life = Life::begin_with(builder(vec![]), Durable::InFlight, &shelf, asking).await;
        settle().await;
        shelf = life.kill().await;
    }
    let asking = |turn: TurnInFlight| turn.with_recover(recover);
    let life = Life::begin_with(builder(vec![]), Durable::InFlight, &shelf, asking).await;
    settle().await;
    assert_eq!(life.agent.status().await.unwrap(), Status::Paused);
    life
}

const UNCERTAIN: &str = "Interrupted by a restart. It is not known whether the tool took effect.";

fn result_texts(history: &History) -> Vec<String> {
    history.iter().flat_map(|message| message.tool_results()).map(ToolResult::text).collect()
}

#[tokio::test(start_paused = true)]
async fn interrupt_of_tools_with_unknown_outcome_keeps_them_uncertain() {
    for restarts in 0..2 {
        let calls = Calls::new();
        let life = uncertain_in_the_next_life(&calls, restarts).await;
        life.agent.interrupt().await.unwrap();
        life.idle().await;
        assert_eq!(result_texts(&life.shelf.history()), [UNCERTAIN; 3], "{restarts}");
    }
}

#[tokio::test(start_paused = true)]
async fn interrupt_after_a_decision_about_an_unknown_outcome_keeps_it_uncertain_unless_it_has_a_result() {
    for (decision, expected) in [(Decision::Execute, UNCERTAIN), (Decision::reject("no"), "no")] {
        let calls = Calls::new();
        let life = uncertain_in_the_next_life(&calls, 0).await;
        life.agent.resume("t1?again1", decision.clone()).await.unwrap();
        life.agent.interrupt().await.unwrap();
        life.idle().await;
        assert_eq!(result_texts(&life.shelf.history()), [expected, UNCERTAIN, UNCERTAIN], "{decision:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn decisions_about_unknown_outcomes_survive_a_hand_over_before_the_tools_start() {
    let runs = Arc::new(AtomicUsize::new(0));
    let signs = |runs: &Arc<AtomicUsize>| {
        let runs = Arc::clone(runs);
        let sign = move |_: Value, _: ToolContext| {
            runs.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok("signed"))
        };
        tool_fn("sign", "Signs.", sign).with_replay(Replay::Never)
    };
    let calls = Calls::new();
    let life = uncertain_in_the_next_life(&calls, 0).await;
    life.agent.resume("t2?again1", Decision::reject("no")).await.unwrap();
    settle().await;
    let made = calls.made().len();
    let (decided, left) = tokio::join!(
        life.agent.resume("t1?again1", Decision::ExecuteWith(json!({ "n": 2 }))),
        life.owner.leave()
    );
    decided.unwrap();
    left.unwrap();
    settle().await;
    assert_eq!(calls.made().len(), made, "the tools start in the next process");
    let shelf = life.kill().await;
    let builder = acting([Step::text("Done.")], calls.tool(Replay::Never)).1.tool(signs(&runs));
    (0..16).for_each(|_| calls.gate.open());
    let put =
        tool_fn("put", "Puts.", |_: Value, _| std::future::ready(Ok("done"))).with_replay(Replay::Keyed);
    let life = Life::begin(builder.tool(put), Durable::InFlight, &shelf).await;
    life.idle().await;
    assert_eq!(runs.load(Ordering::SeqCst), 0, "its repetition was rejected");
    let changed = "A person changed the input of this call. It ran with: {\"n\":2}done";
    assert_eq!(result_texts(&life.shelf.history()), [changed, "no", "done"]);
    assert_eq!(calls.made().last().unwrap().1, json!({ "n": 2 }));
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_question_that_was_not_recorded_does_not_repeat_its_tool() {
    let runs = Arc::new(AtomicUsize::new(0));
    let asking = || {
        let runs = Arc::clone(&runs);
        let ask = move |_: Value, context: ToolContext| {
            runs.fetch_add(1, Ordering::SeqCst);
            async move { Ok(format!("{:?}", context.ask(json!("Which?")).await)) }
        };
        tool_fn("act", "Asks.", ask).with_replay(Replay::Never)
    };
    let life = Life::begin(acting([act()], asking()).1, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    assert_eq!(life.agent.snapshot().await.unwrap().pauses[0].tool_use.id.as_str(), "t1?1");
    let shelf = life.kill().await;
    let recover = Recover::default().with_on_uncertain(OnUncertain::Ask);
    let asks = |turn: TurnInFlight| turn.with_recover(recover);
    let life = Life::begin_with(acting([], asking()).1, Durable::InFlight, &shelf, asks).await;
    settle().await;
    let late = life.agent.resume("t1?1", Decision::Execute).await.unwrap_err();
    assert_eq!(late.kind(), crate::ErrorKind::StaleDecision, "{late}");
    settle().await;
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn step_after_unknown_outcomes_is_not_uncertain() {
    let calls = Calls::new();
    let shelf = killed_in_tool(&calls, Replay::Never).await;
    let recover = Recover::default().with_on_uncertain(OnUncertain::Ask);
    let steps = [Step::tool_use("t2", "act", json!({}))];
    let builder = acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin_with(builder, Durable::InFlight, &shelf, |turn| turn.with_recover(recover)).await;
    settle().await;
    life.agent.resume("t1?again1", Decision::reject("no")).await.unwrap();
    settle().await;
    assert_eq!(life.agent.status().await.unwrap(), Status::Paused);
    life.agent.interrupt().await.unwrap();
    life.idle().await;
    assert_eq!(result_texts(&life.shelf.history()), ["no", "Interrupted. The tool was not run."]);
}

#[tokio::test(start_paused = true)]
async fn paused_turn_waits_over_restarts_and_runs_its_tool_once() {
    let calls = Calls::open();
    let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
    let life = Life::begin(builder(vec![act()]), Durable::Approvals, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    let mut shelf = life.kill().await;
    let core: Value = serde_json::from_str(&shelf.contents().turn.unwrap().core).unwrap();
    let pause = &core["stage"]["tools"]["answers"][0]["waits"][0];
    assert_eq!(pause["tool_use"], json!({ "id": "", "name": "", "input": null }), "{core}");
    for _ in 0..3 {
        let life = Life::begin(builder(vec![]), Durable::Approvals, &shelf).await;
        settle().await;
        let names: Vec<_> = life.shelf.contents().events.iter().map(|event| name(event)).collect();
        assert_eq!(names, ["resumed", "status(paused t1)"]);
        shelf = life.kill().await;
    }
    let life = Life::begin(builder(vec![Step::text("Done.")]), Durable::Approvals, &shelf).await;
    settle().await;
    life.agent.resume("t1", Decision::Execute).await.unwrap();
    life.idle().await;
    assert_eq!(life.texts(), WHOLE);
    assert_eq!(calls.made().len(), 1);
}

/// Ends the process of a turn that waits for a decision, and stores this decision.
async fn decided_in_the_store(builder: AgentBuilder, decision: Decision) -> (Shelf, Decided) {
    let life = Life::begin(builder, Durable::Approvals, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    let shelf = life.kill().await;
    let turn = shelf.contents().turn.unwrap();
    let decided = Decided {
        turn: turn.turn,
        tool_use_id: "t1".into(),
        decision,
        by: Some("ada".into()),
        expired: false,
        at: Timestamp(7),
    };
    let mut core: Value = serde_json::from_str(&turn.core).unwrap();
    core["decided"] = serde_json::to_value([&decided]).unwrap();
    let decided_turn = TurnRecord { core: core.to_string().into(), waiting: Vec::new(), ..turn };
    shelf.0.lock().unwrap().turn = Some(decided_turn);
    (shelf, decided)
}

#[tokio::test(start_paused = true)]
async fn decision_of_a_stored_turn_is_applied_when_it_continues() {
    let calls = Calls::open();
    let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
    let (shelf, decided) = decided_in_the_store(builder(vec![act()]), Decision::Execute).await;
    let life = Life::begin(builder(vec![Step::text("Done.")]), Durable::Approvals, &shelf).await;
    life.idle().await;
    assert_eq!(life.texts(), WHOLE);
    assert_eq!(calls.made().len(), 1);
    let events = life.shelf.contents().events;
    let told = events.iter().find_map(|event| match &**event {
        Event::Decided(decided) => Some(decided.clone()),
        _ => None,
    });
    assert_eq!(told.as_deref(), Some(&decided));
}

#[tokio::test(start_paused = true)]
async fn stored_decision_keeps_its_name_time_and_input_over_a_crash_before_the_result() {
    let input = json!({ "eur": 20 });
    let calls = Calls::new();
    let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Safe)).1.needs_approval("act");
    let decision = Decision::ExecuteWith(input.clone());
    let (shelf, decided) = decided_in_the_store(builder(vec![act()]), decision).await;
    let life = Life::begin(builder(vec![]), Durable::Approvals, &shelf).await;
    // The process is killed in the tool. The next one runs the tool again.
    answered(calls.gate.reached()).await;
    let shelf = life.kill().await;
    let life = Life::begin(builder(vec![Step::text("Done.")]), Durable::Approvals, &shelf).await;
    answered(calls.gate.reached()).await;
    calls.gate.open();
    life.idle().await;
    let history = life.shelf.history();
    let result = history.iter().flat_map(|message| message.tool_results()).next().unwrap();
    let own = result.decision.as_deref().unwrap();
    let stated = (own.kind, own.by.as_deref(), own.at, own.input.as_ref());
    assert_eq!(stated, (DecisionKind::ExecuteWith, Some("ada"), decided.at, Some(&input)));
    assert!(result.text().starts_with("A person changed the input of this call. It ran with: {\"eur\":20}"));
}

const CHANGED: &str = "A person changed the input of this call. It ran with: {\"eur\":20}";

#[tokio::test(start_paused = true)]
async fn use_that_waits_again_keeps_the_input_with_which_it_may_have_run() {
    let input = json!({ "eur": 20 });
    let reject = || Decision::reject("no");
    // The later decision, whether the run is interrupted, and the kind and the name that the result states.
    let cases = [
        (Some(Decision::Execute), false, DecisionKind::ExecuteWith, "bob"),
        (Some(reject()), false, DecisionKind::Reject, "bob"),
        (Some(reject()), true, DecisionKind::Reject, "bob"),
        (None, true, DecisionKind::Interrupted, "ada"),
    ];
    for (decision, is_cut, kind, by) in cases {
        let calls = Calls::new();
        let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Never)).1.needs_approval("act");
        let (shelf, _) =
            decided_in_the_store(builder(vec![act()]), Decision::ExecuteWith(input.clone())).await;
        let life = Life::begin(builder(vec![]), Durable::Approvals, &shelf).await;
        answered(calls.gate.reached()).await;
        let mut shelf = life.kill().await;
        let recover = Recover::default().with_on_uncertain(OnUncertain::Ask);
        let asking = |turn: TurnInFlight| turn.with_recover(recover);
        // The earlier decision is part of the record of the second process.
        let life = Life::begin_with(builder(vec![]), Durable::Approvals, &shelf, asking).await;
        settle().await;
        shelf = life.kill().await;
        let steps = vec![Step::text("Done.")];
        let life = Life::begin_with(builder(steps), Durable::Approvals, &shelf, asking).await;
        settle().await;
        calls.gate.open();
        if let Some(decision) = decision {
            life.agent.resume_as("t1?again1", decision, "bob").await.unwrap();
        }
        if is_cut {
            // The run may have ended already.
            let _ = life.agent.interrupt().await;
        }
        life.idle().await;
        let history = life.shelf.history();
        let result = history.iter().flat_map(|message| message.tool_results()).next().unwrap();
        let own = result.decision.as_deref().unwrap();
        assert_eq!((own.kind, own.by.as_deref(), own.input.as_ref()), (kind, Some(by), Some(&input)));
        assert!(result.text().starts_with(CHANGED), "{result:?}");
    }
}

/// The decisions in the agent's snapshot: the tool use, the name, and the kind.
async fn named(life: &Life) -> Vec<(String, String, DecisionKind)> {
    let decisions = life.agent.snapshot().await.unwrap().decisions;
    let named = |(id, own): (ToolUseId, UseDecision)| (id.to_string(), own.by.unwrap().to_string(), own.kind);
    decisions.into_iter().map(named).collect()
}

#[tokio::test(start_paused = true)]
async fn snapshot_names_the_decider_of_a_turn_that_was_killed_in_its_tool() {
    let ann = [("t1".to_owned(), "ann".to_owned(), DecisionKind::Execute)];
    let calls = Calls::new();
    let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Safe)).1.needs_approval("act");
    let mut life = Life::begin(builder(vec![act()]), Durable::Approvals, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    life.agent.resume_as("t1", Decision::Execute, "ann").await.unwrap();
    // The tool runs in each of three lives.
    for _ in 0..2 {
        answered(calls.gate.reached()).await;
        settle().await;
        assert_eq!(named(&life).await, ann);
        let shelf = life.kill().await;
        life = Life::begin(builder(vec![Step::text("Done.")]), Durable::Approvals, &shelf).await;
        settle().await;
        assert_eq!(named(&life).await, ann);
    }
    calls.gate.open();
    life.idle().await;
    assert_eq!(life.texts(), WHOLE);
    assert!(named(&life).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn snapshot_names_the_decider_of_a_stored_turn_as_soon_as_the_decision_is_applied() {
    let calls = Calls::new();
    let builder = |steps: Vec<Step>| acting(steps, calls.tool(Replay::Safe)).1.needs_approval("act");
    let (shelf, _) = decided_in_the_store(builder(vec![act()]), Decision::Execute).await;
    let life = Life::begin(builder(vec![Step::text("Done.")]), Durable::Approvals, &shelf).await;
    answered(calls.gate.reached()).await;
    assert_eq!(named(&life).await, [("t1".to_owned(), "ada".to_owned(), DecisionKind::Execute)]);
    calls.gate.open();
    life.idle().await;
    assert!(named(&life).await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn decision_of_a_stored_turn_is_kept_when_the_turn_is_interrupted() {
    let builder = |steps: Vec<Step>| acting(steps, Calls::open().tool(Replay::Never)).1.needs_approval("act");
    let interrupt = Recover::default().with_decision(RecoveryDecision::Interrupt);
    let ends: [fn(TurnInFlight, Recover) -> TurnInFlight; 2] =
        [|turn, interrupt| turn.with_recover(interrupt), |turn, _| turn.with_lives(MAX_LIVES + 1)];
    for end in ends {
        let (shelf, _) = decided_in_the_store(builder(vec![act()]), Decision::reject("Not today.")).await;
        let life =
            Life::begin_with(builder(vec![]), Durable::Approvals, &shelf, |turn| end(turn, interrupt)).await;
        life.idle().await;
        let snapshot = life.agent.snapshot().await.unwrap();
        let result = snapshot.state.history.last().unwrap().tool_results().next().unwrap().text();
        assert_eq!(result, "Not today.");
    }
}

#[tokio::test(start_paused = true)]
async fn staged_prompts_survive() {
    let calls = Calls::new();
    let life =
        Life::begin(acting([act()], calls.tool(Replay::Safe)).1, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    answered(calls.gate.reached()).await;
    life.agent.prompt(Prompt::new("And then?").with_id("second")).await.unwrap();
    let shelf = life.kill().await;
    calls.gate.open();
    let steps = [Step::text("Done."), Step::text("Bye.")];
    let life = continued(steps, calls.tool(Replay::Safe), &shelf).await;
    assert_eq!(life.texts().last().map(String::as_str), Some("Bye."));
    let again = life.agent.prompt(Prompt::new("And then?").with_id("second")).await.unwrap();
    assert!(matches!(again, crate::agent::Accepted::Known { .. }), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn turn_with_too_many_restarts_is_interrupted() {
    let calls = Calls::new();
    let shelf = killed_in_tool(&calls, Replay::Safe).await;
    let builder = acting([], calls.tool(Replay::Safe)).1;
    let life =
        Life::begin_with(builder, Durable::InFlight, &shelf, |turn| turn.with_lives(MAX_LIVES + 1)).await;
    life.idle().await;
    assert_eq!(calls.made().len(), 1);
    assert_eq!(life.texts().len(), 3, "the prompt, the response, and the result of the interrupted tool");
}

#[tokio::test(start_paused = true)]
async fn recovery_decisions_end_the_run() {
    for (decision, kept) in [(RecoveryDecision::Interrupt, 3), (RecoveryDecision::Discard, 0)] {
        let calls = Calls::new();
        let shelf = killed_in_tool(&calls, Replay::Safe).await;
        let recover = Recover::default().with_decision(decision);
        let builder = acting([], calls.tool(Replay::Safe)).1;
        let life =
            Life::begin_with(builder, Durable::InFlight, &shelf, |turn| turn.with_recover(recover)).await;
        life.idle().await;
        assert_eq!(life.texts().len(), kept, "{decision:?}");
        assert_eq!(calls.made().len(), 1);
        assert!(life.shelf.contents().turn.is_none());
    }
}

/// Callbacks that record each [`Recovery`], and choose to ask about each tool use whose outcome is not known.
struct Seeing(Arc<Mutex<Vec<Recovery>>>);

#[async_trait]
impl AgentCallbacks for Seeing {
    async fn handle_recovery(&mut self, recovery: &mut Recovery, _: &mut State) -> RecoveryDecision {
        self.0.lock().unwrap().push(recovery.clone());
        for own in &mut recovery.uncertain {
            own.on_uncertain = OnUncertain::Ask;
        }
        recovery.decision
    }
}

#[tokio::test(start_paused = true)]
async fn handle_recovery_sees_the_turn_and_chooses_for_each_tool_use() {
    let calls = Calls::new();
    let shelf = killed_in_tool(&calls, Replay::Never).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let builder = acting([], calls.tool(Replay::Never)).1.callbacks(Seeing(Arc::clone(&seen)));
    let life = Life::begin_with(builder, Durable::InFlight, &shelf, |turn| turn.with_lives(2)).await;
    settle().await;
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    let [recovery] = &seen[..] else { panic!("called once: {seen:?}") };
    assert_eq!((recovery.stage, recovery.lives), (RecordedStage::Executing, 2));
    assert_eq!(recovery.pending.len(), 2);
    assert_eq!(recovery.uncertain[0].replay, Replay::Never);
    assert_eq!(&*recovery.uncertain[0].idempotency_key, calls.made()[0].0);
    assert_eq!(life.agent.status().await.unwrap(), Status::Paused);
}

#[tokio::test(start_paused = true)]
async fn snapshot_and_events_during_a_recovery_agree() {
    let calls = Calls::new();
    let shelf = killed_in_tool(&calls, Replay::Safe).await;
    let calls = Calls::new();
    let builder = acting([Step::text("Done.")], calls.tool(Replay::Safe)).1;
    let life = Life::begin(builder, Durable::InFlight, &shelf).await;
    let mut events = life.agent.subscribe().await.unwrap();
    let mut view = events.snapshot().map(|snapshot| (**snapshot).clone()).unwrap();
    assert_eq!((view.status, view.pending.len()), (Status::Busy, 2));
    for event in crate::agent::tests::rig::ready_events(&mut events).await {
        crate::agent::tests::support::apply(&mut view, &event);
    }
    assert_eq!(view, life.agent.snapshot().await.unwrap());
    assert_eq!(view.tools.len(), 1);
}

/// Returns the number of the events about requests whose responses were lost.
fn lost(shelf: &Shelf) -> usize {
    let events = shelf.contents().events;
    let is_lost = |event: &&Arc<Event>| matches!(&***event, Event::Usage(row) if row.end == RequestEnd::Lost);
    events.iter().filter(is_lost).count()
}

/// Continues the conversation until `handle_recovery` hangs. Then stages a prompt if `stages`, which makes a record, and
/// kills the process.
async fn killed_in_recovery(shelf: &Shelf, stages: bool) -> Shelf {
    let gate = Gate::new();
    let builder = scripted([]).1.callbacks(Hanging { at: "handle_recovery", gate: gate.clone() });
    let life = Life::begin(builder, Durable::InFlight, shelf).await;
    answered(gate.reached()).await;
    if stages {
        life.agent.prompt(Prompt::new("More")).await.unwrap();
    }
    settle().await;
    life.kill().await
}

#[tokio::test(start_paused = true)]
async fn lost_request_is_reported_again_only_if_the_report_was_not_recorded() {
    let life = Life::begin(scripted([Step::new().hang()]).1, Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    settle().await;
    // The request is sent now, and this record shows it.
    life.agent.prompt(Prompt::new("And")).await.unwrap();
    let shelf = life.kill().await;
    assert_eq!(lost(&shelf), 0);
    let unrecorded = killed_in_recovery(&shelf, false).await;
    assert_eq!(lost(&unrecorded), 1);
    let recorded = killed_in_recovery(&unrecorded, true).await;
    assert_eq!(lost(&recorded), 1, "the store does not have the first report");
    let again = killed_in_recovery(&recorded, true).await;
    assert_eq!(lost(&again), 0, "the store has the report");
    // The next request for the same step can be lost too.
    let life = Life::begin(scripted([Step::new().hang()]).1, Durable::InFlight, &again).await;
    settle().await;
    life.agent.prompt(Prompt::new("Too")).await.unwrap();
    let shelf = killed_in_recovery(&life.kill().await, false).await;
    assert_eq!(lost(&shelf), 1);
}

#[tokio::test(start_paused = true)]
async fn tools_of_a_repeated_request_have_other_keys_than_unrecorded_tools_of_the_lost_one() {
    let (calls, gate) = (Calls::new(), Gate::new());
    let late = Step::new().gate(&gate).then_tool_use("t1", "act", json!({ "n": 1 })).stop();
    let (_, builder) = acting([late], calls.tool(Replay::Safe));
    let life = Life::begin(builder.max_steps(2), Durable::InFlight, &Shelf::default()).await;
    life.agent.prompt("Hi").await.unwrap();
    answered(gate.reached()).await;
    // This record shows that the request was sent. It is the last one.
    life.agent.prompt(Prompt::new("And")).await.unwrap();
    settle().await;
    life.cut();
    gate.open();
    answered(calls.gate.reached()).await;
    let shelf = life.kill().await;

    let other = Step::tool_use("t1", "act", json!({ "n": 2 }));
    (0..4).for_each(|_| calls.gate.open());
    let steps = [other, Step::text("Done."), Step::text("Then.")];
    let life = continued(steps, calls.tool(Replay::Safe), &shelf).await;
    let made = calls.made();
    let [(first, _), (second, _)] = &made[..] else { panic!("{made:?}") };
    assert_ne!(first, second, "{made:?}");
    // The lost request does not count towards the limit of two requests.
    assert_eq!(life.texts()[..4], ["Hi", "", "", "Done."], "{:?}", life.texts());
}

#[tokio::test(start_paused = true)]
async fn record_that_cannot_be_read_is_refused() {
    let calls = Calls::new();
    let shelf = killed_in_tool(&calls, Replay::Safe).await;
    let turn = shelf.contents().turn.unwrap();
    let read = |turn: TurnRecord| TurnInFlight::read(turn, &History::new(), None).map(|_| ());
    assert_eq!(
        read(TurnRecord { format: 2, ..turn.clone() }),
        Err(UnreadableTurnReason::Newer { format: 2 })
    );
    for core in ["", "{}", "[]", "nonsense", r#"{"op":1,"run":1,"stage":{"stage":"preparing"}}"#] {
        let damaged = TurnRecord { core: core.into(), ..turn.clone() };
        assert!(matches!(read(damaged), Err(UnreadableTurnReason::Damaged(_))), "{core}");
    }
    // A record is refused if it lacks its messages, or if a member of its state is wrong.
    let lost = TurnRecord { append: Vec::new(), ..turn.clone() };
    assert!(matches!(read(lost), Err(UnreadableTurnReason::Damaged(_))));
    let value: Value = serde_json::from_str(&turn.core).unwrap();
    for (path, wrong) in [
        ("/stage/slots", json!([])),
        ("/stage/slots", json!([{ "runs": false, "queued": true, "asked": 0, "replay": "safe" }])),
        ("/stage/slots/0/queued", json!("yes")),
        ("/stage/slots/0/result", json!(true)),
        ("/stage/slots/0/replay", json!(null)),
        ("/stage/stage", json!("dreaming")),
        ("/stage/slots/0/asked", json!(u32::MAX)),
        ("/turn/step", json!(0)),
        ("/turn/step", json!(u32::MAX)),
        ("/turn/next_id", json!(u32::MAX)),
        ("/op", json!(u64::MAX)),
        ("/turn/step_start", json!(99)),
    ] {
        let mut damaged = value.clone();
        let (parent, member) = path.rsplit_once('/').unwrap();
        damaged.pointer_mut(parent).unwrap()[member] = wrong;
        let damaged = TurnRecord { core: damaged.to_string().into(), ..turn.clone() };
        assert!(matches!(read(damaged), Err(UnreadableTurnReason::Damaged(_))), "{path}");
    }
    assert_eq!(read(turn), Ok(()));
}

//! Several pauses at once, who decided, time limits of pauses, and tools that need an approval.

use std::{sync::Arc, time::Duration};

use crate::{
    agent::{AgentCallbacks, Decided, Event, PendingUse, State, Status, ToolDecision},
    message::{Attachment, Content, DecisionKind, ResultBlock, ToolResult, ToolUse, ToolUseId, UseDecision},
    run::ErrorKind,
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Tool, ToolContext, ToolSet, tool_fn},
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, failed, noting, reached, results},
    support::{names, scripted},
};

const LIMIT: Duration = Duration::from_mins(1);

fn step_with(tools: &[&str]) -> Step {
    let step = tools.iter().enumerate();
    step.fold(Step::new(), |step, (n, name)| step.then_tool_use(&format!("{n}"), name, json!({ "n": n })))
        .stop()
}

/// Returns an agent whose model uses the tools `a`, `b` and `c` in one step and then answers.
async fn agent_with(hooks: Hooks) -> (Watched, ScriptedProvider, Log<String>) {
    let (provider, mut builder) = scripted([step_with(&["a", "b", "c"]), Step::text("Done.")]);
    let log = Log::default();
    for tool in ["a", "b", "c"] {
        builder = builder.tool(noting(tool, &log));
    }
    (Watched::start(builder.callbacks(hooks)).await, provider, log)
}

fn pausing_all() -> Hooks {
    Hooks::new().on_tool_use(|tool_use, _| ToolDecision::Pause(json!(tool_use.name)))
}

/// The pauses in the last of these events.
fn pauses(events: &[Arc<Event>]) -> Vec<Arc<PendingUse>> {
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { panic!("{events:?}") };
    pauses.clone()
}

fn decisions(events: &[Arc<Event>]) -> Vec<Decided> {
    let decided = |event: &Arc<Event>| match &**event {
        Event::Decided(decided) => Some(Decided::clone(decided)),
        _ => None,
    };
    events.iter().filter_map(decided).collect()
}

/// A tool that waits at a gate.
fn gated(name: &'static str, gate: &Gate) -> impl Tool {
    let gate = gate.clone();
    tool_fn(name, "Waits at a gate.", move |_: Value, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok("slow done")
        }
    })
}

/// Callbacks that pause each tool use. Before `handle_tool_use` returns for the tool `b`, it waits at the gate.
struct Slow(Gate);

#[async_trait]
impl AgentCallbacks for Slow {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        if tool_use.name == "b" {
            self.0.pass().await;
        }
        ToolDecision::Pause(Value::Null)
    }
}

/// The texts of the results in order.
fn texts(events: &[Arc<Event>]) -> Vec<String> {
    results(events).into_iter().map(|(result, _)| result.text()).collect()
}

#[tokio::test(start_paused = true)]
async fn pauses_of_one_step_are_decided_in_any_order() {
    for order in [["0", "1", "2"], ["2", "0", "1"], ["1", "2", "0"], ["2", "1", "0"]] {
        let (mut agent, _, log) = agent_with(pausing_all()).await;
        agent.agent.prompt("Go").await.unwrap();
        let events = agent.until("pause(2)").await;
        let shown: Vec<_> = pauses(&events).iter().map(|pause| pause.reason.clone()).collect();
        assert_eq!(shown, [json!("a"), json!("b"), json!("c")]);
        let mut waiting = agent.agent.snapshot().await.unwrap().pauses;
        assert_eq!(waiting, pauses(&events));

        for (n, id) in order.into_iter().enumerate() {
            assert!(log.all().is_empty(), "no tool runs before the last decision");
            let decision = if id == "1" { Decision::reject("No b.") } else { Decision::Execute };
            agent.agent.resume(id, decision).await.unwrap();
            waiting.retain(|pause| pause.tool_use.id.as_str() != id);
            if n < 2 {
                let ids: Vec<_> = waiting.iter().map(|pause| pause.tool_use.id.as_str()).collect();
                let status = format!("status(paused {})", ids.join(" "));
                assert_eq!(names(&agent.until("decided").await), [status, format!("decided({id})")]);
                assert_eq!(agent.agent.snapshot().await.unwrap().pauses, waiting);
                assert_eq!(agent.agent.status().await.unwrap(), Status::Paused);
            }
        }
        let events = agent.end().await;
        assert_eq!(names(&events)[..2], ["status(busy)".to_owned(), format!("decided({})", order[2])]);
        assert_eq!(texts(&events), ["a done", "No b.", "c done"], "results are in the order of the uses");
    }
}

#[tokio::test(start_paused = true)]
async fn use_that_needs_an_approval_and_has_an_unusable_input_fails_without_a_pause() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct City {
        city: String,
    }
    let unusable = || {
        let step = Step::new().then_raw_tool_use("torn", "move", &["{\"city\": \"Os"]);
        step.then_tool_use("invalid", "move", json!({ "town": "Oslo" }))
    };
    let usable = unusable().then_tool_use("valid", "move", json!({ "city": "Oslo" })).stop();
    let (provider, builder) = scripted([unusable().stop(), usable, Step::text("Done.")]);
    let tool = tool_fn("move", "Moves.", |City { city }: City, _| async move { Ok(format!("to {city}")) });
    let mut agent = Watched::start(builder.tool(tool.needs_approval())).await;
    agent.agent.prompt("Go").await.unwrap();
    let events = tokio::time::timeout(LIMIT, agent.until("pause(valid)")).await.unwrap();
    assert_eq!(pauses(&events).iter().map(|pause| pause.tool_use.id.as_str()).collect::<Vec<_>>(), ["valid"]);
    agent.agent.resume("valid", Decision::Execute).await.unwrap();
    agent.end().await;
    for (request, count) in [(1, 2), (2, 3)] {
        let results: Vec<_> =
            provider.requests()[request].history.last().unwrap().tool_results().cloned().collect();
        assert_eq!(results.len(), count);
        assert!(results[0].is_error && results[0].text().contains("JSON"), "{results:?}");
        assert!(results[1].is_error && results[1].text().contains("does not fit its schema"), "{results:?}");
        assert!(results[2..].iter().all(|result| result.text() == "to Oslo"), "{results:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn resume_of_a_decided_use_is_stale_and_lists_the_waiting_uses() {
    let (mut agent, _, _) = agent_with(pausing_all()).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(2)").await;
    agent.agent.resume("1", Decision::Execute).await.unwrap();
    let stale = agent.agent.resume("1", Decision::reject("Late.")).await.unwrap_err();
    assert!(stale.is_conflict());
    assert_eq!(
        stale.to_string(),
        "the decision is for tool use 1, but the agent waits for decisions about 0, 2"
    );
    assert_eq!((stale.kind(), stale.waiting()), (ErrorKind::StaleDecision, vec!["0".into(), "2".into()]));
    assert_eq!(stale.member("given").unwrap(), "1");
}

#[tokio::test(start_paused = true)]
async fn resume_as_names_the_decider_in_the_event() {
    let (mut agent, _, _) = agent_with(pausing_all()).await;
    agent.agent.prompt("Go").await.unwrap();
    let turn = pauses(&agent.until("pause(2)").await)[0].turn;
    assert_eq!(agent.agent.snapshot().await.unwrap().turn, Some(turn));
    agent.agent.resume_as("0", Decision::reject("No."), "ann").await.unwrap();
    agent.agent.resume("1", Decision::ExecuteWith(json!({ "n": 7 }))).await.unwrap();
    agent.agent.resume_as("2", Decision::Execute, "").await.unwrap();
    let events = agent.end().await;
    let decided = decisions(&events);
    let by: Vec<_> = decided.iter().map(|decided| decided.by.as_deref()).collect();
    assert_eq!(by, [Some("ann"), None, Some("")]);
    assert_eq!(decided[0].decision, Decision::reject("No."));
    assert_eq!(decided[1].decision, Decision::ExecuteWith(json!({ "n": 7 })));
    assert!(decided.iter().all(|decided| decided.turn == turn && !decided.expired && decided.at.0 > 0));
}

/// The decisions in the agent's snapshot: the tool use, the name, and the kind.
async fn named(agent: &Watched) -> Vec<(String, String, DecisionKind)> {
    let decisions = agent.agent.snapshot().await.unwrap().decisions;
    let named = |(id, own): (ToolUseId, UseDecision)| (id.to_string(), own.by.unwrap().to_string(), own.kind);
    decisions.into_iter().map(named).collect()
}

#[tokio::test(start_paused = true)]
async fn snapshot_names_the_deciders_until_the_turn_ends() {
    let gate = Gate::new();
    let steps = [step_with(&["a", "b", "c"]), Step::new().gate(&gate).then_text(["Done."]).stop()];
    let (_, mut builder) = scripted(steps);
    for tool in ["a", "b", "c"] {
        builder = builder.tool(noting(tool, &Log::default()));
    }
    let mut agent = Watched::start(builder.callbacks(pausing_all())).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(2)").await;
    assert!(named(&agent).await.is_empty());
    agent.agent.resume_as("2", Decision::reject("No."), "ann").await.unwrap();
    let first = ("2".to_owned(), "ann".to_owned(), DecisionKind::Reject);
    assert_eq!(named(&agent).await, std::slice::from_ref(&first));
    // A decision without a name is not listed.
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    agent.agent.resume_as("1", Decision::ExecuteWith(json!({ "n": 7 })), "ben").await.unwrap();
    reached(&gate).await;
    assert_eq!(named(&agent).await, [first, ("1".to_owned(), "ben".to_owned(), DecisionKind::ExecuteWith)]);
    gate.open();
    agent.end().await;
    assert!(named(&agent).await.is_empty());
    agent.check().await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_names_who_answered_the_question_of_a_tool() {
    let gate = Gate::new();
    let (_, builder) = scripted([step_with(&["asking"]), Step::text("Done.")]);
    let asking = tool_fn("asking", "Asks.", {
        let gate = gate.clone();
        move |_: Value, context: ToolContext| {
            let gate = gate.clone();
            async move {
                let answer = context.ask(json!("Sure?")).await;
                gate.pass().await;
                Ok(format!("{answer:?}"))
            }
        }
    });
    let mut agent = Watched::start(builder.tool(asking)).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(0?1)").await;
    agent.agent.resume_as("0?1", Decision::Execute, "ann").await.unwrap();
    reached(&gate).await;
    assert_eq!(named(&agent).await, [("0?1".to_owned(), "ann".to_owned(), DecisionKind::Execute)]);
    gate.open();
    agent.end().await;
    assert!(named(&agent).await.is_empty());
    agent.check().await;
}

#[tokio::test(start_paused = true)]
async fn resume_as_with_a_long_name_is_refused_and_decides_nothing() {
    let (mut agent, _, _) = agent_with(pausing_all()).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(2)").await;
    let refused = agent.agent.resume_as("0", Decision::Execute, "x".repeat(257)).await.unwrap_err();
    assert_eq!(
        (refused.kind(), refused.member("length"), refused.member("limit")),
        (ErrorKind::InvalidDecision, Some(&257.into()), Some(&256.into())),
        "{refused:?}"
    );
    assert_eq!(agent.agent.snapshot().await.unwrap().pauses.len(), 3);
    agent.agent.resume_as("0", Decision::Execute, "x".repeat(256)).await.unwrap();
}

/// Returns JSON with this number of levels.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!([inner]))
}

#[tokio::test(start_paused = true)]
async fn resume_with_a_deeply_nested_decision_is_refused_and_decides_nothing() {
    let (mut agent, _, _) = agent_with(pausing_all()).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(2)").await;
    let metadata = [("deep".to_owned(), nested(65))].into_iter().collect();
    let file = Attachment::url("text/plain", "https://example.com/a").with_metadata(metadata);
    let result = ToolResult::ok(&ToolUse::new("0", "a", json!({})), ResultBlock::Attachment(file));
    for decision in [Decision::ExecuteWith(nested(65)), Decision::Provide(result)] {
        let refused = agent.agent.resume("0", decision).await.unwrap_err();
        assert!(refused.to_string().contains("64 levels"), "{refused}");
        assert_eq!(refused.kind(), ErrorKind::InvalidDecision);
    }
    assert_eq!(agent.agent.snapshot().await.unwrap().pauses.len(), 3);
    let metadata = [("deep".to_owned(), nested(60))].into_iter().collect();
    let file = Attachment::url("text/plain", "https://example.com/a").with_metadata(metadata);
    let result = ToolResult::ok(&ToolUse::new("0", "a", json!({})), ResultBlock::Attachment(file));
    agent.agent.resume("0", Decision::Provide(result)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_with_a_deeply_nested_decision_ends_the_run() {
    let on_expiry = Decision::ExecuteWith(nested(65));
    for decision in [
        ToolDecision::Pause(nested(65)),
        ToolDecision::ExecuteWith(nested(65)),
        ToolDecision::PauseFor { reason: json!(1), expires_in: LIMIT, on_expiry },
    ] {
        let (mut agent, _, _) = agent_with(Hooks::new().deciding([("a", decision)])).await;
        let (failure, _) = failed(&agent.run("Go").await);
        let problem = failure.to_string();
        assert!(problem.contains("handle_tool_use") && problem.contains("64 levels"), "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn deeply_nested_result_of_a_tool_becomes_an_error() {
    let file = |levels| {
        let metadata = [("deep".to_owned(), nested(levels))].into_iter().collect();
        ResultBlock::Attachment(Attachment::url("image/png", "https://example.com/a").with_metadata(metadata))
    };
    for (levels, is_error) in [(64, false), (65, true)] {
        let taking = tool_fn("a", "Takes a photo.", move |_: Value, _| async move { Ok(file(levels)) });
        let (_, builder) = scripted([step_with(&["a"]), Step::text("Done.")]);
        let events = Watched::start(builder.tool(taking)).await.run("Go").await;
        let result = &results(&events)[0].0;
        assert_eq!(
            (result.is_error, result.text().contains("64 levels")),
            (is_error, is_error),
            "{result:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn prompt_with_deeply_nested_metadata_is_refused() {
    let gate = Gate::new();
    let (provider, builder) = scripted([Step::new().gate(&gate).then_text(["Done."]).stop()]);
    let mut agent = Watched::start(builder).await;
    let file = |levels| {
        let metadata = [("deep".to_owned(), nested(levels))].into_iter().collect();
        Attachment::url("image/png", "https://example.com/a").with_metadata(metadata)
    };
    let result = ToolResult::ok(&ToolUse::new("0", "a", json!({})), ResultBlock::Attachment(file(65)));
    for block in [Content::from(file(65)), result.into(), ToolUse::new("0", "a", nested(65)).into()] {
        let refused = agent.agent.prompt(vec![block.clone()]).await.unwrap_err();
        assert!(refused.to_string().starts_with("a block in the prompt is nested too deeply"), "{refused}");
        assert_eq!((refused.kind(), refused.member("limit")), (ErrorKind::InvalidPrompt, Some(&64.into())));
        assert_eq!(agent.agent.ask(vec![block]).await.unwrap_err().kind(), ErrorKind::InvalidPrompt);
    }
    assert_eq!(provider.requests().len(), 0);
    agent.agent.prompt(vec![file(64)]).await.unwrap();
    let refused = agent.agent.prompt(vec![file(65)]).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidPrompt, "while a run is active");
    gate.open();
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn deeply_nested_question_of_a_tool_is_declined() {
    let asking = tool_fn("a", "Asks.", |_: Value, context: ToolContext| async move {
        Ok(format!("{:?}", context.ask(nested(65)).await))
    });
    let (_, builder) = scripted([step_with(&["a"]), Step::text("Done.")]);
    let mut agent = Watched::start(builder.tool(asking)).await;
    let events = agent.run("Go").await;
    let answer = results(&events)[0].0.text();
    assert!(answer.contains("Declined") && answer.contains("64 levels"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn handle_tool_use_decisions_are_events_except_execute() {
    let ready = ToolResult::ok(&ToolUse::new("x", "x", json!({})), "Ready.");
    let hooks = Hooks::new()
        .deciding([("a", ToolDecision::Reject("No.".into())), ("b", ToolDecision::Provide(ready.clone()))]);
    let (mut agent, _, _) = agent_with(hooks).await;
    let events = agent.run("Go").await;
    let decided: Vec<_> =
        decisions(&events).into_iter().map(|d| (d.tool_use_id, d.decision, d.by, d.expired)).collect();
    let expected = [
        ("0".into(), Decision::reject("No."), None, false),
        ("1".into(), Decision::Provide(ready), None, false),
    ];
    assert_eq!(decided, expected);
    let order = names(&events);
    assert!(order.contains(&"tool_start(2)".to_owned()));
    assert!(!order.contains(&"tool_start(0)".to_owned()), "a rejected use starts no tool: {order:?}");
}

#[tokio::test(start_paused = true)]
async fn tool_end_comes_at_once_and_the_result_after_all_tools() {
    let gate = Gate::new();
    let (_, builder) = scripted([step_with(&["slow", "quick"]), Step::text("Done.")]);
    let hooks = Hooks::new().deciding([("quick", ToolDecision::ExecuteWith(json!({ "n": 5 })))]);
    let builder = builder.tool(gated("slow", &gate)).tool(noting("quick", &Log::default()));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    let order = names(&agent.until("tool_end(1)").await);
    let expected = ["step", "decided(1)", "tool_start(0)", "tool_start(1)", "tool_end(1)"];
    assert_eq!(order[order.len() - 5..], expected);
    reached(&gate).await;
    let tools = agent.agent.snapshot().await.unwrap().tools;
    let shown: Vec<_> = tools.iter().map(|run| (run.tool_use_id.as_str(), run.is_error)).collect();
    assert_eq!(shown, [("0", None), ("1", Some(false))]);
    assert_eq!((&tools[0].input, &tools[1].input), (&None, &Some(json!({ "n": 5 }))));
    agent.check().await;
    gate.open();
    let order = names(&agent.end().await);
    assert_eq!(order[..4], ["tool_end(0)", "tool_result(0)", "tool_result(1)", "message(user)"]);
    assert!(agent.agent.snapshot().await.unwrap().tools.is_empty());
}

#[tokio::test(start_paused = true)]
async fn cancel_during_tools_ends_them_without_an_event() {
    let gate = Gate::new();
    let (_, builder) = scripted([step_with(&["slow"])]);
    let mut agent = Watched::start(builder.tool(gated("slow", &gate))).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("tool_start").await;
    reached(&gate).await;
    agent.agent.cancel().await.unwrap();
    assert_eq!(names(&agent.end().await), ["status(idle)", "cancelled"]);
    assert!(agent.agent.snapshot().await.unwrap().tools.is_empty());
}

#[tokio::test(start_paused = true)]
async fn interrupt_of_several_pauses_answers_each_use_once() {
    let (mut agent, _, log) = agent_with(pausing_all()).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(2)").await;
    agent.agent.resume("1", Decision::reject("No b.")).await.unwrap();
    agent.agent.interrupt().await.unwrap();
    let events = agent.end().await;
    let not_run = "Interrupted. The tool was not run.";
    assert_eq!(texts(&events), [not_run, "No b.", not_run]);
    assert!(log.all().is_empty());
    agent.agent.state().await.unwrap().history().check_sendable().unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancel_withdraws_every_pause() {
    let (mut agent, _, _) = agent_with(pausing_all()).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(2)").await;
    agent.agent.cancel().await.unwrap();
    agent.end().await;
    assert_eq!(agent.agent.snapshot().await.unwrap().pauses, []);
    let late = agent.agent.resume("0", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (late.kind(), late.member("activity")),
        (ErrorKind::NotPaused, Some(&"idle".into())),
        "{late:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn resume_while_a_later_use_is_asked_about_is_not_paused() {
    let gate = Gate::new();
    let (_, builder) = scripted([step_with(&["a", "b"]), Step::text("Done.")]);
    let builder = builder.tool(noting("a", &Log::default())).tool(noting("b", &Log::default()));
    let mut agent = Watched::start(builder.callbacks(Slow(gate.clone()))).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    let early = agent.agent.resume("0", Decision::Execute).await.unwrap_err();
    assert_eq!(
        (early.kind(), early.member("activity")),
        (ErrorKind::NotPaused, Some(&"busy".into())),
        "{early:?}"
    );
    gate.open();
    agent.until("pause(1)").await;
    agent.agent.resume("0", Decision::Execute).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pause_for_expires_with_its_decision() {
    let (mut agent, _, log) = agent_with(Hooks::new().on_tool_use(|tool_use, _| match &*tool_use.name {
        "a" => ToolDecision::pause_for("sure?", LIMIT),
        "b" => ToolDecision::PauseFor {
            reason: json!("later?"),
            expires_in: LIMIT * 2,
            on_expiry: Decision::Execute,
        },
        _ => ToolDecision::Execute,
    }))
    .await;
    agent.agent.prompt("Go").await.unwrap();
    let events = agent.until("pause(1)").await;
    let pause = Arc::clone(&pauses(&events)[0]);
    let since = pause.since.unwrap();
    assert_eq!((pause.limit, pause.expires), (Some(LIMIT), Some(since.after(LIMIT))));
    assert!(since.0 > 60_000, "the moment is a time of the system clock: {since:?}");
    assert_eq!(agent.agent.snapshot().await.unwrap().pauses, pauses(&events));

    let decided = decisions(&agent.until("decided").await).remove(0);
    assert_eq!((decided.tool_use_id.as_str(), decided.by, decided.expired), ("0", None, true));
    assert_eq!(agent.agent.status().await.unwrap(), Status::Paused, "the other use still waits");
    let events = agent.end().await;
    assert_eq!(names(&events)[..2], ["status(busy)", "decided(1)"]);
    assert_eq!(texts(&events), ["Not run: nobody approved this within 60s.", "b done", "c done"]);
    assert_eq!(log.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn pause_for_decided_in_time_does_not_expire() {
    let hooks = Hooks::new().on_tool_use(|tool_use, _| match &*tool_use.name {
        "a" => ToolDecision::pause_for(Value::Null, LIMIT),
        "b" => ToolDecision::Pause(Value::Null),
        _ => ToolDecision::Execute,
    });
    let (mut agent, _, _) = agent_with(hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(1)").await;
    tokio::time::sleep(LIMIT / 2).await;
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    tokio::time::sleep(LIMIT * 2).await;
    agent.agent.resume("1", Decision::Execute).await.unwrap();
    let events = agent.end().await;
    let expired: Vec<_> = decisions(&events).iter().map(|decided| decided.expired).collect();
    assert_eq!(expired, [false, false]);
    assert_eq!(texts(&events), ["a done", "b done", "c done"]);
}

#[tokio::test(start_paused = true)]
async fn pause_for_an_endless_time_waits() {
    let hooks = Hooks::new().deciding([("a", ToolDecision::pause_for("?", Duration::MAX))]);
    let (mut agent, _, _) = agent_with(hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    tokio::time::sleep(LIMIT * 60 * 24 * 500).await;
    assert_eq!(agent.agent.status().await.unwrap(), Status::Paused);
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    agent.end().await;
}

/// Returns an agent with two tools that need an approval: tool `a` declares it, and for tool `b` the builder demands
/// it.
async fn approving(hooks: Hooks) -> (Watched, Log<String>) {
    let (_, builder) = scripted([step_with(&["a", "b", "c"]), Step::text("Done.")]);
    let log = Log::default();
    let builder = builder
        .tool(noting("a", &log).needs_approval())
        .tool(noting("b", &log))
        .tool(noting("c", &log))
        .needs_approval("b");
    (Watched::start(builder.callbacks(hooks)).await, log)
}

#[tokio::test(start_paused = true)]
async fn needs_approval_pauses_without_a_callback() {
    let (mut agent, log) = approving(Hooks::new()).await;
    let view = agent.agent.snapshot().await.unwrap().state;
    let shown: Vec<_> = view.tools.iter().map(|tool| tool.requires_approval).collect();
    assert_eq!(shown, [true, true, false]);
    agent.agent.prompt("Go").await.unwrap();
    let waiting = pauses(&agent.until("pause(1)").await);
    assert_eq!(waiting.len(), 2);
    assert!(waiting.iter().all(|pause| pause.reason == json!("needs approval")));
    agent.agent.resume("1", Decision::reject("No b.")).await.unwrap();
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    assert_eq!(texts(&agent.end().await), ["a done", "No b.", "c done"]);
    assert_eq!(log.all(), [r#"a {"n":0}"#, r#"c {"n":2}"#]);
}

#[tokio::test(start_paused = true)]
async fn needs_approval_is_given_by_approve_and_not_by_execute() {
    let hooks = Hooks::new().deciding([("a", ToolDecision::Approve), ("b", ToolDecision::Execute)]);
    let (mut agent, _) = approving(hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    let events = agent.until("pause").await;
    assert_eq!(decisions(&events)[0].decision, Decision::Execute);
    assert_eq!(pauses(&events)[0].tool_use.id.as_str(), "1");
    agent.agent.resume("1", Decision::Execute).await.unwrap();
    assert_eq!(texts(&agent.end().await), ["a done", "b done", "c done"]);
}

#[tokio::test(start_paused = true)]
async fn needs_approval_with_a_replaced_input_runs_with_that_input() {
    let hooks = Hooks::new().deciding([("a", ToolDecision::ExecuteWith(json!({ "n": 9 })))]);
    let (mut agent, log) = approving(hooks).await;
    agent.agent.prompt("Go").await.unwrap();
    let waiting = pauses(&agent.until("pause(1)").await);
    assert_eq!(waiting[0].tool_use.input, json!({ "n": 9 }), "the approver sees the input that will run");
    agent.agent.resume("1", Decision::reject("No.")).await.unwrap();
    agent.agent.resume("0", Decision::Execute).await.unwrap();
    let events = agent.end().await;
    assert_eq!(decisions(&events)[1].decision, Decision::ExecuteWith(json!({ "n": 9 })));
    assert_eq!(log.all()[0], r#"a {"n":9}"#);
    let history = agent.agent.state().await.unwrap().history().clone();
    let asked = history.get(1).unwrap().tool_uses().next().unwrap().input.clone();
    assert_eq!(asked, json!({ "n": 0 }), "the history keeps the model's input");
}

#[tokio::test(start_paused = true)]
async fn require_approval_applies_from_the_next_use_on() {
    let (mut agent, _, _) = agent_with(Hooks::new()).await;
    let edited = agent.agent.set_state(|draft| {
        draft.config.require_approval("c");
        assert!(draft.config.requires_approval("c") && !draft.config.requires_approval("a"));
        Ok(())
    });
    edited.await.unwrap();
    agent.agent.prompt("Go").await.unwrap();
    assert_eq!(pauses(&agent.until("pause").await)[0].tool_use.id.as_str(), "2");
    agent.agent.resume("2", Decision::Execute).await.unwrap();
    agent.end().await;
}

#[test]
fn needs_approval_survives_boxes_and_other_changes_of_a_tool() {
    let tool = || noting("a", &Log::default()).needs_approval();
    let boxed: Box<dyn Tool> = Box::new(tool().with_timeout(LIMIT));
    assert!(boxed.requires_approval());
    assert_eq!(boxed.timeout(), Some(LIMIT));
    let set = ToolSet::new().with(boxed).unwrap();
    assert!(set.requires_approval("a") && !set.requires_approval("b"));
    assert!(!noting("a", &Log::default()).with_timeout(LIMIT).requires_approval());
}

#[tokio::test(start_paused = true)]
async fn run_and_turn_of_events_follow_the_runs() {
    let (_, builder) = scripted([Step::text("One."), Step::text("Two."), Step::text("Three.")]);
    let mut agent = Watched::start(builder).await;
    let mut turns = Vec::new();
    for run in 1..=3 {
        let events = agent.run("Go").await;
        let numbers: Vec<_> = events
            .iter()
            .filter_map(|event| match &**event {
                Event::Message { turn, run, .. } => Some((*turn, *run)),
                Event::Step(response) | Event::Turn { response, .. } => {
                    Some((response.turn.unwrap(), response.run))
                }
                _ => None,
            })
            .collect();
        assert_eq!(numbers.len(), 4);
        assert!(numbers.iter().all(|number| *number == (numbers[0].0, run)), "{numbers:?}");
        let snapshot = agent.agent.snapshot().await.unwrap();
        assert_eq!((snapshot.turn, snapshot.run), (None, run));
        turns.push(numbers[0].0);
    }
    turns.sort();
    turns.dedup();
    assert_eq!(turns.len(), 3, "each turn has its own id");
}

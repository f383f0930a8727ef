//! Agents as tools of other agents, without sessions.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    agent::{Agent, AgentBuilder, Event, PendingUse, RunStep, Running, Status, SubAgent, WeakAgent},
    budget::{Budget, SharedBudget},
    message::{Purpose, Text, ToolResult, ToolUse, ToolUseId, Usage},
    provider::{Model, ProviderError, ProviderErrorKind},
    run::{ErrorKind, Prompt},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Decision, Replay, Tool, ToolContext, execute, tool_fn},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    hooks::{Log, in_time, noting, reached, stopped},
    rig::tokens,
    support::{next, run_events, scripted},
};

const LIMIT: Duration = Duration::from_secs(10);

/// A step that uses these tools, with ids from their names, and `cost` tokens.
fn uses(cost: u64, tools: &[&str]) -> Step {
    let step = Step::new().usage(tokens(cost));
    tools.iter().fold(step, |step, tool| step.then_tool_use(tool, tool, json!({ "task": "Go." }))).stop()
}

fn says(cost: u64, text: &str) -> Step {
    Step::new().usage(tokens(cost)).then_text([text]).stop()
}

/// A sub-agent with this name and script. Each call gets the next steps.
fn sub(name: &'static str, steps: impl IntoIterator<Item = Step>) -> (ScriptedProvider, SubAgent) {
    sub_with(name, steps, |builder| builder)
}

fn sub_with(
    name: &'static str,
    steps: impl IntoIterator<Item = Step>,
    build: impl Fn(AgentBuilder) -> AgentBuilder + Send + Sync + 'static,
) -> (ScriptedProvider, SubAgent) {
    let provider = ScriptedProvider::new(steps);
    let model = provider.model();
    let start = move |_: &ToolContext| build(Agent::builder().model(model.clone()));
    (provider, SubAgent::new(name, "Does a task.", start))
}

/// Starts an agent that calls this tool once.
async fn calling(tool: impl Tool) -> (ScriptedProvider, Agent) {
    let name = tool.name().to_owned();
    let (provider, builder) = scripted([uses(1, &[&name]), Step::text("Done.")]);
    (provider, builder.tool(tool).start().await.unwrap())
}

/// Runs an agent that calls this tool once. Returns the result, and whether it is an error.
async fn called(tool: impl Tool) -> (String, bool) {
    let (provider, agent) = calling(tool).await;
    in_time(agent.ask("Go")).await.unwrap();
    let history = provider.last_request().unwrap().history;
    let result = history.iter().last().unwrap().tool_results().next().unwrap().clone();
    (result.text(), result.is_error)
}

/// Reads the run until it has pauses.
async fn pauses(running: &mut Running) -> Vec<Arc<PendingUse>> {
    loop {
        let step = in_time(running.next()).await.unwrap().expect("the run ends without a pause");
        if let RunStep::Pause(pause) = step {
            pause.leave();
            return running.pauses().to_vec();
        }
    }
}

/// An agent with two levels of agents below it. The lowest one uses a tool that needs approval.
async fn nested(log: &Log<String>) -> (Agent, Running) {
    let log = log.clone();
    let model = ScriptedProvider::new([uses(4, &["delete"]), says(8, "Deleted.")]).model();
    let (_, middle) = sub_with("middle", [uses(2, &["low"]), says(16, "Low is done.")], move |builder| {
        let (model, log) = (model.clone(), log.clone());
        let low = SubAgent::new("low", "Deletes.", move |_| {
            Agent::builder().model(model.clone()).tool(noting("delete", &log).needs_approval())
        });
        builder.tool(low)
    });
    let (_, builder) = scripted([uses(1, &["middle"]), says(32, "Done.")]);
    let agent = builder.tool(middle.with_timeout(LIMIT)).turn_timeout(LIMIT).start().await.unwrap();
    let running = agent.run("Go").follow().await.unwrap();
    (agent, running)
}

#[tokio::test(start_paused = true)]
async fn answer_of_a_sub_agent_is_the_result_of_its_call() {
    let (provider, tool) = sub("search", [Step::text("The Nile.")]);
    assert_eq!(called(tool).await, ("The Nile.".to_owned(), false));
    let request = provider.last_request().unwrap();
    assert_eq!(request.history.iter().map(|message| message.text()).collect::<Vec<_>>(), ["Go."]);
}

#[tokio::test(start_paused = true)]
async fn typed_input_and_output_are_the_prompt_and_the_result() {
    #[derive(Deserialize, JsonSchema)]
    struct Question {
        task: String,
        #[serde(default)]
        depth: u8,
    }
    #[derive(Serialize, Deserialize, JsonSchema)]
    struct Finding {
        river: String,
    }
    let steps = || [Step::output(&json!({ "river": "Nile" }))];
    let (provider, tool) = sub("search", steps());
    let tool =
        tool.with_input(|question: Question| Prompt::new(format!("{} {}", question.task, question.depth)));
    assert!(tool.schema().as_value()["properties"]["depth"].is_object());
    assert_eq!(called(tool.with_output::<Finding>()).await, (r#"{"river":"Nile"}"#.to_owned(), false));
    let request = provider.last_request().unwrap();
    assert!(request.options.output().is_some());
    assert_eq!(request.history.iter().last().unwrap().text(), "Go. 0");

    let (_, tool) =
        sub("search", [Step::text("Nile"), Step::text("Nile"), Step::text("Nile"), Step::text("Nile")]);
    let (text, is_error) = called(tool.with_output::<Finding>()).await;
    assert!(is_error && text.contains("has failed"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn sub_agent_that_fails_or_ends_early_states_it_in_the_result() {
    let error = ProviderError::new(ProviderErrorKind::InvalidRequest, "no such model");
    let (text, is_error) = called(sub("search", [Step::error(error)]).1).await;
    assert!(is_error && text.contains("no such model"), "{text}");

    let (_, tool) = sub_with(
        "search",
        [Step::new().then_text(["half"]).stop_with(crate::provider::StopReason::Length)],
        |b| b,
    );
    let (text, is_error) = called(tool).await;
    assert!(!is_error && text.contains("has ended early: "), "{text}");

    let (text, is_error) = called(sub("search", [Step::text("  ")]).1).await;
    assert!(is_error && text.contains("without an answer"), "{text}");

    let (text, is_error) = called(SubAgent::new("search", "Has no model.", |_| Agent::builder())).await;
    assert!(is_error && text.contains("model"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn nested_approval_is_decided_at_the_root() {
    let cases = [
        (Decision::Execute, 1),
        (Decision::ExecuteWith(json!({ "task": "Stop." })), 1),
        (Decision::reject("No."), 0),
        (Decision::Provide(ToolResult::ok(&ToolUse::new("x", "x", json!({})), Text::new("provided"))), 0),
    ];
    for (decision, runs) in cases {
        let log = Log::default();
        let (agent, mut running) = nested(&log).await;
        let pause = pauses(&mut running).await.remove(0);
        assert_eq!((&*pause.tool_use.name, &pause.tool_use.input), ("delete", &json!({ "task": "Go." })));
        assert_eq!(pause.asked_by.as_ref().map(ToolUseId::as_str), Some("middle"));
        let own = pause.sub_agent.as_ref().unwrap();
        assert_eq!((&*own.name, own.is_question, pause.is_question()), ("middle", false, false));
        assert_eq!(pause.tool_use.id.as_str(), format!("middle?{}/{}", own.turn, own.tool_use));
        assert!(own.tool_use.as_str().starts_with("low?") && !pause.survives);
        // All clocks stand still.
        tokio::time::sleep(LIMIT * 100).await;
        let snapshot = agent.snapshot().await.unwrap();
        assert_eq!(snapshot.pauses, [Arc::clone(&pause)]);
        let id = pause.tool_use.id.clone();
        agent.resume_as(id.clone(), decision, "ann").await.unwrap();
        let response = in_time(running.response()).await.unwrap();
        assert_eq!((response.text(), log.all().len()), ("Done.".to_owned(), runs));
        assert_eq!(response.usage, tokens(63));
        let late = agent.resume(id, Decision::Execute).await.unwrap_err();
        assert_eq!(late.kind(), ErrorKind::NotPaused);
    }
}

#[tokio::test(start_paused = true)]
async fn two_decisions_about_one_nested_pause_only_the_first_applies() {
    let log = Log::default();
    let (agent, mut running) = nested(&log).await;
    let pause = pauses(&mut running).await.remove(0);
    let decide = || agent.resume(pause.tool_use.id.clone(), Decision::Execute);
    let (one, other) = tokio::join!(decide(), decide());
    assert!(one.is_ok(), "{one:?}");
    let kind = other.unwrap_err().kind();
    assert!(matches!(kind, ErrorKind::StaleDecision | ErrorKind::NotPaused), "{kind:?}");
    in_time(running.response()).await.unwrap();
    assert_eq!(log.all().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn question_of_a_nested_tool_is_a_question_at_the_root() {
    let ask = tool_fn("ask", "Asks.", |_: Value, context: ToolContext| async move {
        Ok(format!("{:?}", context.ask(json!({ "message": "Which?" })).await))
    });
    let ask = Arc::new(ask);
    let (provider, tool) = sub_with("sub", [uses(1, &["ask"]), Step::text("Asked.")], move |builder| {
        builder.tool(Arc::clone(&ask))
    });
    let (_, agent) = calling(tool).await;
    let mut running = agent.run("Go").follow().await.unwrap();
    let pause = pauses(&mut running).await.remove(0);
    assert!(pause.is_question() && pause.sub_agent.as_ref().unwrap().is_question);
    assert_eq!(pause.reason, json!({ "message": "Which?" }));
    agent.resume(pause.tool_use.id.clone(), Decision::ExecuteWith(json!("this"))).await.unwrap();
    in_time(running.response()).await.unwrap();
    let result =
        provider.last_request().unwrap().history.iter().last().unwrap().tool_results().next().unwrap().text();
    assert!(result.contains("this"), "{result}");
}

#[tokio::test(start_paused = true)]
async fn parallel_sub_agents_wait_at_the_same_time_and_are_decided_in_one_command() {
    let log = Log::default();
    let answer = |request: &crate::provider::Request| match request.history.len() {
        1 => uses(1, &["delete"]),
        _ => Step::text("Deleted."),
    };
    let model = ScriptedProvider::from_fn(answer).model();
    let noted = log.clone();
    let tool = SubAgent::new("sub", "Deletes.", move |_| {
        Agent::builder().model(model.clone()).tool(noting("delete", &noted).needs_approval())
    });
    let step = Step::new().then_tool_use("a", "sub", json!({ "task": "A" }));
    let step = step.then_tool_use("b", "sub", json!({ "task": "B" }));
    let (_, builder) = scripted([step.stop(), Step::text("Done.")]);
    let agent = builder.tool(tool).start().await.unwrap();
    let mut running = agent.run("Go").follow().await.unwrap();
    let mut waiting = pauses(&mut running).await;
    while waiting.len() < 2 {
        waiting = pauses(&mut running).await;
    }
    let decisions = || waiting.iter().map(|pause| (pause.tool_use.id.clone(), Decision::Execute)).collect();
    let resume =
        |decisions| crate::agent::ResumeDecisions { decisions, turn: Some(waiting[0].turn), by: None };
    let mut spoiled: Vec<_> = decisions();
    spoiled.push(("never".into(), Decision::Execute));
    let error = agent.decide(resume(spoiled)).await.unwrap_err();
    assert_eq!((error.kind(), log.all().len()), (ErrorKind::StaleDecision, 0));
    agent.decide(resume(decisions())).await.unwrap();
    in_time(running.response()).await.unwrap();
    assert_eq!(log.all().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn run_that_ends_while_a_nested_pause_waits_leaves_nothing() {
    let log = Log::default();
    for cancels in [true, false] {
        let (agent, mut running) = nested(&log).await;
        let pause = pauses(&mut running).await.remove(0);
        if cancels {
            agent.cancel().await.unwrap();
        } else {
            agent.interrupt().await.unwrap();
        }
        while let Ok(Some(_)) = in_time(running.next()).await {}
        let error = agent.resume(pause.tool_use.id.clone(), Decision::Execute).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotPaused);
        assert!(agent.snapshot().await.unwrap().pauses.is_empty());
        tokio::time::sleep(LIMIT).await;
        assert!(log.all().is_empty());
    }
}

/// How a call ends before its sub-agent.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ended {
    Cancelled,
    Interrupted,
    TimeLimit,
    Dropped,
    Stopped,
}

#[tokio::test(start_paused = true)]
async fn call_that_ends_early_ends_its_sub_agent() {
    use Ended::{Cancelled, Dropped, Interrupted, Stopped, TimeLimit};
    for ended in [Cancelled, Interrupted, TimeLimit, Dropped, Stopped] {
        let (started, gate) = (Gate::new(), Gate::new());
        let log = Log::<String>::default();
        let (in_tool, noted) = (started.clone(), log.clone());
        let hold = gate.clone();
        let slow = tool_fn("slow", "Waits.", move |_: Value, _| {
            let (in_tool, hold, noted) = (in_tool.clone(), hold.clone(), noted.clone());
            async move {
                in_tool.pass().await;
                hold.pass().await;
                noted.push("late");
                Ok("late")
            }
        });
        let slow = Arc::new(slow);
        let (inner, low) = sub_with("low", [uses(1, &["slow"]), Step::text("never")], move |builder| {
            builder.tool(Arc::clone(&slow))
        });
        let low = Arc::new(low);
        let (outer, tool) = sub_with("sub", [uses(1, &["low"]), Step::text("never")], move |builder| {
            builder.tool(Arc::clone(&low))
        });
        let (_, agent) = calling(tool.with_timeout(LIMIT)).await;
        agent.prompt("Go").await.unwrap();
        reached(&started).await;
        started.open();
        match ended {
            Cancelled => agent.cancel().await.unwrap(),
            Interrupted => agent.interrupt().await.unwrap(),
            TimeLimit => tokio::time::sleep(LIMIT).await,
            Stopped => agent.stop(LIMIT).await.unwrap(),
            Dropped => {}
        }
        let weak = agent.downgrade();
        if matches!(ended, Dropped) {
            drop(agent);
            in_time(weak.ended()).await;
        } else if ended != Stopped {
            in_time(agent.wait_until_idle()).await.unwrap();
        }
        gate.open();
        tokio::time::sleep(LIMIT).await;
        assert!(log.all().is_empty(), "{ended:?}");
        assert_eq!((inner.requests().len(), outer.requests().len()), (1, 1), "{ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agent_that_is_cut_off_is_paid_by_the_budget() {
    let gate = Gate::new();
    let step = Step::new().usage(tokens(7)).then_text(["Half"]).gate(&gate).stop();
    let (_, tool) = sub("sub", [step]);
    let team = SharedBudget::new(Budget::requests(10));
    let (_, builder) = scripted([uses(1, &["sub"])]);
    let agent = builder.tool(tool).shared_budget(&team).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.cancel().await.unwrap();
    tokio::time::sleep(LIMIT).await;
    assert_eq!((team.spent().requests, team.spent().usage.total()), (2, 8));
}

#[tokio::test(start_paused = true)]
async fn each_request_below_is_reported_once_by_every_level() {
    let log = Log::default();
    let (agent, mut running) = nested(&log).await;
    let mut events = agent.subscribe().await.unwrap();
    let pause = pauses(&mut running).await.remove(0);
    agent.resume(pause.tool_use.id.clone(), Decision::Execute).await.unwrap();
    let events = run_events(&mut events).await;
    let rows = events.iter().filter_map(|event| match &**event {
        Event::Usage(row) => Some((row.purpose, row.usage.total(), row.conversation.clone(), row.turn)),
        _ => None,
    });
    let rows: Vec<_> = rows.collect();
    let response = stopped(&events);
    let expected = [2, 4, 8, 16].map(|cost| (Purpose::SubAgent, cost, None, response.turn));
    let seen: Vec<_> = expected.into_iter().filter(|row| rows.contains(row)).collect();
    assert_eq!(seen, rows, "in the order of the requests, after the subscription");
    assert_eq!((response.usage, response.delegated), (tokens(63), Usage::default()));
}

#[tokio::test(start_paused = true)]
async fn sixty_four_sub_agents_share_one_budget() {
    for limit in [40, 200] {
        let served = Arc::new(Mutex::new(0_u64));
        let count = Arc::clone(&served);
        let provider = ScriptedProvider::from_fn(move |request| {
            *count.lock().unwrap() += 1;
            match request.history.len() {
                1 => uses(1, &["look"]),
                _ => says(1, "Seen."),
            }
        });
        let model = provider.model();
        let tool = SubAgent::new("sub", "Looks.", move |_| {
            Agent::builder().model(model.clone()).tool(noting("look", &Log::default()))
        });
        let calls = (0..64).fold(Step::new().usage(tokens(1)), |step, call| {
            step.then_tool_use(&format!("c{call}"), "sub", json!({ "task": "Look." }))
        });
        let (_, builder) = scripted([calls.stop(), says(1, "Done.")]);
        let team = SharedBudget::new(Budget::requests(1_000));
        let agent = builder.tool(tool.with_parallel(64)).shared_budget(&team).budget(Budget::requests(limit));
        let agent = agent.start().await.unwrap();
        let response = in_time(agent.ask("Go")).await.unwrap();
        let (served, spent) = (*served.lock().unwrap(), team.spent());
        let own = u64::from(response.text() == "Done.") + 1;
        assert_eq!((spent.requests, spent.usage.total()), (served + own, served + own));
        assert_eq!(response.usage.total(), served + own);
        assert!(spent.requests <= u64::from(limit), "{spent:?}");
        assert_eq!(served, 128.min(u64::from(limit) - 1), "all of the budget is used");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_agent_beyond_the_depth_gets_an_error_result() {
    fn level(model: Model, depth: u8) -> SubAgent {
        let start =
            move |_: &ToolContext| Agent::builder().model(model.clone()).tool(level(model.clone(), depth));
        SubAgent::new("sub", "Delegates.", start).with_depth(depth)
    }
    for depth in [0, 1, 2] {
        let provider = ScriptedProvider::from_fn(|request| {
            let mut messages = request.history.iter().rev();
            match messages.next().unwrap().tool_results().next() {
                Some(result) => Step::text(result.text()),
                None => uses(1, &["sub"]),
            }
        });
        let (text, is_error) = called(level(provider.model(), depth)).await;
        assert_eq!(is_error, depth == 0);
        assert!(text.contains(&format!("at most {depth} agents")), "{text}");
        assert_eq!(provider.requests().len(), usize::from(depth) * 2);
    }
}

#[tokio::test(start_paused = true)]
async fn calls_beyond_the_parallel_limit_wait_in_line() {
    let gate = Gate::new();
    let hold = gate.clone();
    let provider = ScriptedProvider::from_fn(move |_| Step::new().gate(&hold).then_text(["Done."]).stop());
    let model = provider.model();
    let tool =
        SubAgent::new("sub", "Waits.", move |_| Agent::builder().model(model.clone())).with_parallel(2);
    let step = (0..5).fold(Step::new(), |step, call| {
        step.then_tool_use(&format!("c{call}"), "sub", json!({ "task": "Go." }))
    });
    let (_, builder) = scripted([step.stop(), Step::text("Done.")]);
    let agent = builder.tool(tool).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    tokio::time::sleep(LIMIT).await;
    assert_eq!((provider.streaming(), provider.requests().len()), (2, 2));
    (0..5).for_each(|_| gate.open());
    in_time(agent.wait_until_idle()).await.unwrap();
    assert_eq!(provider.requests().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn progress_shows_the_step_the_tool_and_at_times_the_text() {
    let text =
        (0..100).fold(Step::new(), |step, _| step.then_text(["word "]).wait(Duration::from_millis(20)));
    let (_, low) = sub("low", [Step::text("Low.")]);
    let low = Arc::new(low);
    let (_, tool) =
        sub_with("sub", [uses(1, &["low"]), text.stop()], move |builder| builder.tool(Arc::clone(&low)));
    let (_, agent) = calling(tool).await;
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Go").await.unwrap();
    let mut reports = Vec::new();
    loop {
        match &*next(&mut events).await {
            Event::ToolProgress { tool_use_id, data } => {
                assert_eq!(tool_use_id.as_str(), "sub");
                reports.push(data["sub_agent"].clone());
            }
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    assert!(reports.iter().all(|report| report["name"] == "sub"));
    assert!(
        reports.iter().any(|report| report["tool"] == "low" && report["below"]["name"] == "low"),
        "{reports:?}"
    );
    let texts = reports.iter().filter(|report| report["step"] == 2 && report["text"].is_string());
    let texts = texts.count();
    assert!((7..=9).contains(&texts), "{texts} reports in two seconds");
    assert!(reports.iter().all(|report| report["text"].as_str().is_none_or(|text| text.len() <= 200)));
}

#[test]
fn sub_agent_in_memory_must_not_run_twice() {
    let (_, tool) = sub("sub", []);
    assert_eq!((tool.replay(), tool.idle_timeout()), (Replay::Keyed, Some(Duration::MAX)));
    assert_eq!(tool.in_memory().replay(), Replay::Never);
}

#[tokio::test(start_paused = true)]
async fn repeated_call_of_a_sub_agent_without_a_session_gets_an_error() {
    let (provider, tool) = sub("sub", [Step::text("Never.")]);
    let context = ToolContext::detached("c").with_repeated(true);
    let error = execute(&tool, json!({ "task": "Go." }), context).await.unwrap_err();
    assert!(error.to_string().contains("It is not known whether the tool took effect"), "{error}");
    assert!(provider.requests().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pause_of_a_call_that_its_tool_gives_up_is_withdrawn() {
    let log = Log::default();
    let noted = log.clone();
    let (_, low) = sub_with("low", [uses(1, &["delete"])], move |builder| {
        builder.tool(noting("delete", &noted).needs_approval())
    });
    let (low, gate) = (Arc::new(low), Gate::new());
    let held = gate.clone();
    let patient = tool_fn("patient", "Waits a while.", move |input: Value, context: ToolContext| {
        let (low, held) = (Arc::clone(&low), held.clone());
        async move {
            let _ = tokio::time::timeout(LIMIT, low.call(input, context)).await;
            held.pass().await;
            Ok("gave up")
        }
    });
    let (_, agent) = calling(patient).await;
    let mut running = agent.run("Go").follow().await.unwrap();
    let pause = pauses(&mut running).await.remove(0);
    reached(&gate).await;
    let snapshot = agent.snapshot().await.unwrap();
    assert_eq!((snapshot.pauses.len(), snapshot.status), (0, Status::Busy));
    let late = agent.resume(pause.tool_use.id.clone(), Decision::Execute).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::NotPaused, "{late}");
    gate.open();
    assert_eq!(in_time(running.response()).await.unwrap().text(), "Done.");
    assert!(log.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sub_agent_of_which_another_handle_is_kept_ends_its_run_with_the_call() {
    let kept: Arc<Mutex<Option<Agent>>> = Arc::default();
    let gate = Gate::new();
    let (own, held) = (Arc::clone(&kept), gate.clone());
    let keep = Arc::new(tool_fn("keep", "Keeps the agent.", move |_: Value, context: ToolContext| {
        let (own, held) = (Arc::clone(&own), held.clone());
        async move {
            let agent = context.extensions().get::<WeakAgent>().and_then(WeakAgent::upgrade);
            *own.lock().unwrap() = agent;
            held.pass().await;
            Ok("kept")
        }
    }));
    let team = SharedBudget::new(Budget::requests(10));
    let (provider, tool) = sub_with("sub", [uses(1, &["keep"]), Step::text("never")], move |builder| {
        builder.tool(Arc::clone(&keep))
    });
    let (_, builder) = scripted([uses(1, &["sub"])]);
    let agent = builder.tool(tool).shared_budget(&team).start().await.unwrap();
    agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.cancel().await.unwrap();
    let child = kept.lock().unwrap().take().unwrap();
    in_time(child.wait_until_idle()).await.unwrap();
    let later = in_time(child.ask("Once more")).await.unwrap_err();
    assert_eq!(later.kind(), ErrorKind::Cancelled, "{later}");
    assert_eq!((provider.requests().len(), team.spent().requests), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn call_outside_an_agent_declines_what_needs_a_decision() {
    let log = Log::default();
    let noted = log.clone();
    let (provider, tool) =
        sub_with("sub", [uses(1, &["delete"]), Step::text("Not deleted.")], move |builder| {
            builder.tool(noting("delete", &noted).needs_approval())
        });
    let output = in_time(execute(&tool, json!({ "task": "Go." }), ToolContext::detached("c"))).await.unwrap();
    assert_eq!(output, "Not deleted.".into());
    assert!(log.all().is_empty() && provider.requests().len() == 2);
}

#[tokio::test(start_paused = true)]
async fn reader_that_missed_the_pause_of_a_sub_agent_finds_it_in_the_snapshot() {
    let log = Log::default();
    let (agent, mut running) = nested(&log).await;
    pauses(&mut running).await;
    let mut late = agent.follow(crate::agent::FollowTarget::InFlight).await.unwrap();
    let pause = pauses(&mut late).await.remove(0);
    agent.resume(pause.tool_use.id.clone(), Decision::reject("No.")).await.unwrap();
    assert_eq!(in_time(late.response()).await.unwrap().text(), "Done.");
    assert!(log.all().is_empty());
}

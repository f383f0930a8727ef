//! An interrupt keeps the results of the tools that had already finished.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    agent::{Agent, AgentSubscription, Event, Response, Status, ToolDecision},
    message::{Text, ToolResult, ToolUse},
    testing::{Gate, Step},
    tool::{Decision, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use super::{
    hooks::Hooks,
    predicament::{hanging, no_timeout},
    rig::{At, answered, echo, stuck_in},
    support::{next, run_events, scripted},
};

/// Returns the turn that an interrupt kept, and the `tool_result` events before it.
async fn kept(events: &mut AgentSubscription) -> (Arc<Response>, Vec<(ToolResult, Option<Value>)>) {
    let run = run_events(events).await;
    let Event::Turn { response, continues: false, .. } = &**run.last().unwrap() else { panic!("{run:?}") };
    let kept_results = run.iter().filter_map(|event| match &**event {
        Event::ToolResult { result, input } => Some(((**result).clone(), input.clone())),
        _ => None,
    });
    (Arc::clone(response), kept_results.collect())
}

/// The results in the last message of the turn: the text of each, and whether it is an error.
fn results(response: &Response) -> Vec<(String, bool)> {
    let last = response.messages.last().unwrap();
    last.tool_results().map(|result| (result.text(), result.is_error)).collect()
}

/// An answer with two tool uses: `echo`, and the tool named `second`.
fn two(second: &str) -> Step {
    let step = Step::new().then_tool_use("t1", "echo", json!({ "n": 1 }));
    step.then_tool_use("t2", second, json!({})).stop()
}

async fn begun(agent: &Agent) -> AgentSubscription {
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    events
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_a_tool_runs_result_of_a_finished_tool_reaches_the_model() {
    let gate = Gate::new();
    let (provider, builder) = scripted([two("slow"), Step::text("Again.")]);
    let hooks = Hooks::new().deciding([("echo", ToolDecision::ExecuteWith(json!({ "n": 2 })))]);
    let builder = builder.tool_limits(no_timeout()).tool(echo()).tool(hanging("slow", &gate));
    let agent = builder.callbacks(hooks).start().await.unwrap();
    let mut events = begun(&agent).await;
    answered(gate.reached()).await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    answered(agent.interrupt()).await.unwrap();
    let (response, kept_results) = kept(&mut events).await;
    let [(finished, input), (running, _)] = &kept_results[..] else { panic!("{kept_results:?}") };
    assert_eq!((finished.output_text().as_str(), finished.is_error), (r#"{"n":2}"#, false));
    assert_eq!(*input, Some(json!({ "n": 2 })), "the event shows the input that the tool ran with");
    assert!(running.is_error && running.text().contains("while the tool was running"), "{running:?}");
    assert_eq!(
        results(&response),
        kept_results.iter().map(|(result, _)| (result.text(), result.is_error)).collect::<Vec<_>>()
    );
    agent.ask("Go on").await.unwrap();
    let sent = provider.last_request().unwrap().history;
    assert_eq!(sent.get(2).unwrap().tool_results().next().unwrap(), finished);
}

#[tokio::test(start_paused = true)]
async fn interrupt_at_the_moment_a_tool_finishes_result_kept() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::tool_use("t1", "slow", json!({}))]);
    let agent = builder.tool_limits(no_timeout()).tool(hanging("slow", &gate)).start().await.unwrap();
    let mut events = begun(&agent).await;
    answered(gate.reached()).await;
    // The tool finishes before the agent receives the interrupt, but the agent has not polled the tool again, so it
    // does not know this yet.
    let ((), interrupted) = tokio::join!(async { gate.open() }, agent.interrupt());
    interrupted.unwrap();
    let (response, _) = kept(&mut events).await;
    assert_eq!(results(&response), [("done".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_a_result_is_reviewed_kept_unreviewed() {
    let (agent, mut events) = stuck_in(At::HandleToolResult).await;
    answered(agent.interrupt()).await.unwrap();
    let (response, kept_results) = kept(&mut events).await;
    assert_eq!(results(&response), [("{}".to_owned(), false)]);
    assert_eq!(kept_results.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn interrupt_after_the_time_limit_finished_result_kept() {
    let (gate, stuck) = (Gate::new(), Gate::new());
    let (_, builder) = scripted([two("slow")]);
    let failing = super::rig::Misbehaving {
        at: At::HandleError,
        act: super::rig::Act::Hang,
        gate: stuck.clone(),
        done: false,
    };
    let builder = builder.tool_limits(no_timeout()).tool(echo()).tool(hanging("slow", &gate));
    let agent = builder.callbacks(failing).turn_timeout(Duration::from_secs(9)).start().await.unwrap();
    let mut events = begun(&agent).await;
    tokio::time::timeout(Duration::from_mins(1), stuck.reached()).await.unwrap();
    answered(agent.interrupt()).await.unwrap();
    let (response, _) = kept(&mut events).await;
    assert_eq!(results(&response)[0], (r#"{"n":1}"#.to_owned(), false));
    assert!(results(&response)[1].1);
}

#[tokio::test(start_paused = true)]
async fn interrupt_while_paused_decided_results_kept_and_others_not_run() {
    let ran = Arc::new(Mutex::new(0));
    let tool = {
        let ran = Arc::clone(&ran);
        tool_fn("write", "Writes.", move |_: Value, _: ToolContext| {
            *ran.lock().unwrap() += 1;
            async { Ok("written") }
        })
    };
    let step = Step::new()
        .then_tool_use("t1", "ask", json!({}))
        .then_tool_use("t2", "write", json!({}))
        .then_tool_use("t3", "reject", json!({}))
        .then_tool_use("t4", "wait", json!({}))
        .stop();
    let hooks = Hooks::new().deciding([
        ("ask", ToolDecision::Pause(json!("which one?"))),
        ("reject", ToolDecision::Reject("not allowed".into())),
        ("wait", ToolDecision::Pause(json!("may I?"))),
    ]);
    let agent = scripted([step]).1.tool(tool).callbacks(hooks).start().await.unwrap();
    let mut events = begun(&agent).await;
    while !matches!(&*next(&mut events).await, Event::Status { status: Status::Paused, .. }) {}
    let answer = ToolResult::ok(&ToolUse::new("t1", "ask", json!({})), Text::new("the red one"));
    agent.resume("t1", Decision::Provide(answer)).await.unwrap();
    while !matches!(&*next(&mut events).await, Event::Status { status: Status::Paused, .. }) {}
    answered(agent.interrupt()).await.unwrap();
    let (response, _) = kept(&mut events).await;
    let results = results(&response);
    assert_eq!(results[0], ("the red one".to_owned(), false));
    assert!(results[1].1 && results[1].0.contains("not run"), "{results:?}");
    assert_eq!(results[2], ("not allowed".to_owned(), true));
    assert!(results[3].1 && results[3].0.contains("not run"), "{results:?}");
    assert_eq!(*ran.lock().unwrap(), 0);
}

//! Prompts, pauses and events at moments when they rarely happen.

use std::time::Duration;

use crate::{
    agent::{AgentCallbacks, Event, Failure, Next, Prompt, State, ToolDecision},
    message::ToolUse,
    provider::StopReason,
    run::ErrorKind,
    testing::{Gate, Step},
    tool::Decision,
};
use serde_json::{Value, json};

use super::{
    hooks::{Hooks, Log, Watched, declared, failed, noting, reached, sent, stopped, turns},
    support::{names, scripted},
};

fn at_step(text: &str) -> Prompt {
    Prompt::new(text).at(Next::Step)
}

fn using(tool: &str) -> Step {
    Step::tool_use("t", tool, json!({}))
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_while_paused_waits_for_the_decision_and_joins() {
    let (provider, builder) = scripted([using("note"), Step::text("One")]);
    let hooks = Hooks::new().on_tool_use(|_, _| ToolDecision::Pause(Value::Null));
    let builder = builder.tool(noting("note", &Log::default())).callbacks(hooks);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause").await;
    agent.agent.prompt(at_step("Now")).await.unwrap();
    agent.until("prompt(staged)").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(agent.agent.snapshot().await.unwrap().staged.len(), 1);
    agent.agent.resume("t", Decision::Execute).await.unwrap();
    assert_eq!(turns(&agent.end().await).len(), 1);
    assert_eq!(sent(&provider.requests()[1])[2..], ["user: result t", "user: Now"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_at_the_limit_of_steps_starts_the_next_turn() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_tool_use("t", "note", json!({})).stop();
    let (provider, builder) = scripted([first, Step::text("One")]);
    let mut agent = Watched::start(builder.max_steps(1).tool(noting("note", &Log::default()))).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(at_step("Now")).await.unwrap();
    gate.open();
    let events = agent.end().await;
    let reasons: Vec<_> = turns(&events).iter().map(|turn| turn.stop_reason.clone()).collect();
    assert_eq!(reasons, [StopReason::MaxSteps, StopReason::Stop]);
    assert_eq!(sent(&provider.requests()[1])[2..], ["user: result t", "user: Now"]);
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_does_not_join_a_response_that_the_service_pauses() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_text(["Half "]).stop_with(StopReason::Pause);
    let (provider, builder) = scripted([first, Step::text("done."), Step::text("Two")]);
    let mut agent = Watched::start(builder).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(at_step("Now")).await.unwrap();
    gate.open();
    assert_eq!(turns(&agent.end().await).len(), 2);
    let requests = provider.requests();
    assert_eq!(sent(&requests[1]), ["user: Go", "assistant: Half "]);
    assert_eq!(sent(&requests[2]).last().unwrap(), "user: Now");
}

#[tokio::test(start_paused = true)]
async fn prompt_for_the_next_step_starts_a_turn_if_tools_are_left_to_the_application() {
    let gate = Gate::new();
    let first = Step::new().gate(&gate).then_tool_use("t", "ask", json!({})).stop();
    let (provider, builder) = scripted([first, Step::text("Two")]);
    let mut agent = Watched::start(builder.tool(declared("ask"))).await;
    agent.agent.prompt("Go").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt(at_step("Now")).await.unwrap();
    gate.open();
    let events = agent.end().await;
    let turns = turns(&events);
    assert_eq!((turns.len(), turns[0].open_tool_uses.len()), (2, 1));
    assert_eq!(sent(&provider.requests()[1]).last().unwrap(), "user: result t, Now");
}

/// Callbacks whose `handle_event` returns the event as a prompt after the gate has opened.
struct AsPrompt(Gate);

#[async_trait::async_trait]
impl AgentCallbacks for AsPrompt {
    async fn handle_event(&mut self, event: Box<dyn std::any::Any + Send>, _: &mut State) -> Option<Prompt> {
        self.0.pass().await;
        event.downcast::<&'static str>().ok().map(|text| Prompt::new(*text))
    }
}

#[tokio::test(start_paused = true)]
async fn handle_event_prompt_may_be_one_beyond_a_full_queue() {
    let gate = Gate::new();
    let (_, builder) = scripted([Step::text("One"), Step::text("Two"), Step::text("Three")]);
    let mut agent = Watched::start(builder.max_staged(1).callbacks(AsPrompt(gate.clone()))).await;
    agent.agent.notify("Mail").await.unwrap();
    reached(&gate).await;
    agent.agent.prompt("First").await.unwrap();
    agent.agent.prompt("Second").await.unwrap();
    let full = agent.agent.prompt("Third").await.unwrap_err();
    assert_eq!((full.kind(), full.member("limit")), (ErrorKind::QueueFull, Some(&1.into())), "{full:?}");
    gate.open();
    let events = agent.end().await;
    assert_eq!(turns(&events).len(), 3);
    let history = agent.history().await;
    assert_eq!([&history[2], &history[4]], ["user: Second", "user: Mail"]);
}

/// Callbacks that pause each use of the tool `a`, and panic or hang at a use of any other tool.
struct Fails {
    hangs: bool,
}

#[async_trait::async_trait]
impl AgentCallbacks for Fails {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        if tool_use.name == "a" {
            return ToolDecision::Pause(Value::Null);
        }
        if self.hangs {
            std::future::pending::<()>().await;
        }
        panic!("no decision")
    }
}

#[tokio::test(start_paused = true)]
async fn callback_that_fails_after_an_answer_to_pause_reports_no_pause() {
    for hangs in [false, true] {
        let step = Step::new().then_tool_use("1", "a", json!({})).then_tool_use("2", "b", json!({})).stop();
        let (_, builder) = scripted([step]);
        let log = Log::default();
        let builder = builder.tool(noting("a", &log)).tool(noting("b", &log));
        let builder = builder.turn_timeout(Duration::from_secs(9)).callbacks(Fails { hangs });
        let mut agent = Watched::start(builder).await;
        let events = agent.run("Go").await;
        let (failure, _) = failed(&events);
        let fits = match failure {
            Failure::TimeLimit { .. } => hangs,
            Failure::Callback { callback, .. } => !hangs && callback == "handle_tool_use",
            _ => false,
        };
        assert!(fits, "{events:?}");
        assert!(!names(&events).iter().any(|name| name.contains("pause")), "{events:?}");
        assert!(log.all().is_empty(), "no tool of the step runs");
    }
}

#[tokio::test(start_paused = true)]
async fn question_of_a_provider_can_expire() {
    let question = ToolUse::new("q", "shell", json!({}));
    let (provider, builder) = scripted([Step::new().then_text(["Well."]).decide(question).stop()]);
    let limit = Duration::from_mins(1);
    let hooks = Hooks::new().on_tool_use(move |_, _| ToolDecision::pause_for("sure?", limit));
    let mut agent = Watched::start(builder.callbacks(hooks)).await;
    agent.agent.prompt("Go").await.unwrap();
    agent.until("pause(q)").await;
    let events = agent.end().await;
    assert_eq!(names(&events)[..2], ["status(busy)", "decided(q)"]);
    assert!(matches!(&*events[1], Event::Decided(decided) if decided.expired));
    assert!(matches!(&provider.decisions()[..], [Decision::Reject(_)]));
    stopped(&events);
}

#[tokio::test(start_paused = true)]
async fn question_of_a_provider_about_a_tool_that_needs_approval_waits() {
    let question = ToolUse::new("q", "shell", json!({}));
    let (provider, builder) = scripted([Step::new().then_text(["Well."]).decide(question).stop()]);
    let mut agent = Watched::start(builder.needs_approval("shell")).await;
    agent.agent.prompt("Go").await.unwrap();
    let events = agent.until("pause(q)").await;
    let Event::Status { pauses, .. } = &**events.last().unwrap() else { unreachable!() };
    assert_eq!(pauses[0].reason, "needs approval");
    agent.agent.resume("q", Decision::Execute).await.unwrap();
    stopped(&agent.end().await);
    assert_eq!(provider.decisions(), [Decision::Execute]);
}

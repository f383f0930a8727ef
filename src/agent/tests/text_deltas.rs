//! The text of a turn as a stream: where the stream begins and ends, and what happens if a slow reader misses events.

use std::{fmt::Write, time::Duration};

use crate::{
    agent::{
        Agent, AgentSubscription, Compact, CompactionPolicy, ErrorDecision, Event, TextDeltas, ToolDecision,
    },
    provider::{ProviderError, ProviderErrorKind},
    run::{Error, ErrorKind},
    subscription::Update,
    testing::{Gate, ScriptedProvider, Step},
};
use futures_util::StreamExt;
use serde_json::{Value, json};

use super::{
    compaction::counted,
    hooks::{Hooks, Log, noting},
    rig::{answered, echoing, unanswered},
};

/// Returns pieces of text that differ from each other. If the range is longer than 256, there are more pieces than a
/// subscriber may lag behind.
fn pieces(range: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    range.map(|number| format!("{number} "))
}

fn text(range: std::ops::Range<u32>) -> String {
    pieces(range).collect()
}

async fn start(steps: impl IntoIterator<Item = Step>) -> (Agent, AgentSubscription) {
    let agent = echoing(steps).start().await.unwrap();
    let events = agent.subscribe().await.unwrap();
    (agent, events)
}

/// Reads the stream to its end. Returns the text and the error, if there is one.
async fn rest(mut deltas: TextDeltas<'_>) -> (String, Option<Error>) {
    let (mut text, mut error) = (String::new(), None);
    while let Some(delta) = answered(deltas.next()).await {
        assert!(error.is_none(), "nothing follows an error");
        match delta {
            Ok(delta) => text.write_str(&delta).unwrap(),
            Err(failed) => error = Some(failed),
        }
    }
    assert!(answered(deltas.next()).await.is_none());
    (text, error)
}

async fn whole(events: &mut AgentSubscription) -> String {
    let (text, error) = rest(events.text_deltas()).await;
    assert!(error.is_none(), "{error:?}");
    text
}

/// Reads the first `count` pieces.
async fn read(deltas: &mut TextDeltas<'_>, count: usize) -> String {
    let mut text = String::new();
    for _ in 0..count {
        text.push_str(&answered(deltas.next()).await.unwrap().unwrap());
    }
    text
}

#[tokio::test(start_paused = true)]
async fn text_deltas_have_the_text_of_all_answers_of_one_turn() {
    let uses = Step::new().then_thinking("Hm.", "s").then_text(["Let me ", "look."]).then_tool_use(
        "a",
        "echo",
        json!({}),
    );
    let (agent, mut events) = start([uses.stop(), Step::text("A cat."), Step::text("Bye.")]).await;
    agent.prompt("Hi").await.unwrap();
    assert_eq!(whole(&mut events).await, "Let me look.A cat.");
    agent.prompt("Again").await.unwrap();
    assert_eq!(whole(&mut events).await, "Bye.");
    unanswered(events.text_deltas().next()).await;
}

#[tokio::test(start_paused = true)]
async fn text_deltas_arrive_piece_by_piece() {
    let (agent, mut events) = start([Step::new().then_text(["Hel", "lo"]).stop()]).await;
    agent.prompt("Hi").await.unwrap();
    let deltas: Vec<_> = answered(events.text_deltas().map(Result::unwrap).collect()).await;
    assert_eq!(deltas, ["Hel", "lo"]);
}

#[tokio::test(start_paused = true)]
async fn text_deltas_of_a_new_subscription_begin_with_the_text_so_far() {
    let gate = Gate::new();
    let uses = Step::new().then_text(["One. "]).then_tool_use("a", "echo", json!({})).stop();
    let (agent, _) =
        start([uses, Step::new().then_text(["Two"]).gate(&gate).then_text([", three."]).stop()]).await;
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    let mut events = agent.subscribe().await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 1).await, "One. Two");
    gate.open();
    assert_eq!(rest(deltas).await.0, ", three.");
}

#[tokio::test(start_paused = true)]
async fn text_deltas_end_at_each_turn_of_a_run() {
    let hooks = Hooks::new().continuing(["more"]);
    let agent = echoing([Step::text("One"), Step::text("Two")]).callbacks(hooks).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    assert_eq!((whole(&mut events).await, whole(&mut events).await), ("One".into(), "Two".into()));
}

#[tokio::test(start_paused = true)]
async fn text_deltas_wait_while_the_agent_is_paused() {
    let hooks = Hooks::new().deciding([("look", ToolDecision::Pause(Value::Null))]);
    let uses = Step::new().then_text(["One. "]).then_tool_use("a", "look", json!({})).stop();
    let builder = echoing([uses, Step::text("Two.")]).tool(noting("look", &Log::default())).callbacks(hooks);
    let agent = builder.start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 1).await, "One. ");
    unanswered(deltas.next()).await;
    agent.resume("a", crate::tool::Decision::Execute).await.unwrap();
    assert_eq!(rest(deltas).await.0, "Two.");
}

#[tokio::test(start_paused = true)]
async fn text_deltas_end_with_the_error_of_a_discarded_turn() {
    let (agent, mut events) = start([Step::new().then_text(["Hel"]).hang()]).await;
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 1).await, "Hel");
    agent.cancel().await.unwrap();
    let (text, error) = rest(deltas).await;
    let error = error.unwrap();
    assert_eq!(error.kind(), ErrorKind::Cancelled);
    assert_eq!((text.as_str(), error.response().unwrap().text().as_str()), ("", "Hel"));

    let down = ProviderError::new(ProviderErrorKind::InvalidRequest, "no");
    let (agent, mut events) = start([Step::new().then_text(["Hel"]).fail(down)]).await;
    agent.prompt("Hi").await.unwrap();
    let (text, error) = rest(events.text_deltas()).await;
    assert_eq!(text, "Hel");
    assert!(error.unwrap().provider_error().is_some());
}

#[tokio::test(start_paused = true)]
async fn text_deltas_of_an_interrupted_turn_end_without_an_error() {
    let (agent, mut events) = start([Step::new().then_text(["Hel"]).hang()]).await;
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 1).await, "Hel");
    agent.interrupt().await.unwrap();
    assert!(rest(deltas).await.1.is_none());
}

#[tokio::test(start_paused = true)]
async fn text_deltas_of_an_agent_that_ends_are_an_error_outside_a_turn() {
    let (agent, mut events) = start([Step::new().then_text(["Hel"]).hang()]).await;
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 1).await, "Hel");
    agent.stop(Duration::from_secs(1)).await.unwrap();
    assert!(rest(deltas).await.1.is_none(), "the turn was interrupted and committed");
    let (text, error) = rest(events.text_deltas()).await;
    assert_eq!((text.as_str(), error.unwrap().to_string().as_str()), ("", "the agent has ended: stopped"));
    assert!(rest(events.text_deltas()).await.1.is_none(), "the subscription is closed");
}

#[tokio::test(start_paused = true)]
async fn text_deltas_after_a_retry_have_the_new_answer() {
    let down = ProviderError::new(ProviderErrorKind::Service, "down");
    let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Retry);
    let steps = [Step::new().then_text(["A d"]).fail(down), Step::text("A cat")];
    let agent = echoing(steps).callbacks(hooks).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    assert_eq!(whole(&mut events).await, "A dA cat");
}

#[tokio::test(start_paused = true)]
async fn text_deltas_resync_in_the_turn_loses_and_repeats_nothing() {
    let gates = [Gate::new(), Gate::new()];
    let uses = Step::new().then_text(pieces(0..5)).gate(&gates[0]).then_text(pieces(5..400));
    let answer = Step::new().then_text(pieces(400..700)).gate(&gates[1]).then_text(pieces(700..705)).stop();
    let (agent, mut events) = start([uses.then_tool_use("a", "echo", json!({})).stop(), answer]).await;
    agent.prompt("Hi").await.unwrap();
    gates[0].reached().await;
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 3).await, text(0..3));
    gates[0].open();
    gates[1].reached().await;
    assert_eq!(read(&mut deltas, 1).await, text(3..700));
    gates[1].open();
    assert_eq!(rest(deltas).await.0, text(700..705));
}

#[tokio::test(start_paused = true)]
async fn text_deltas_resync_after_the_turn_have_the_rest_of_it() {
    let gate = Gate::new();
    let step = Step::new().then_text(pieces(0..5)).gate(&gate).then_text(pieces(5..400)).stop();
    let (agent, mut events) = start([step, Step::text("Another turn.")]).await;
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 2).await, text(0..2));
    gate.open();
    agent.wait_until_idle().await.unwrap();
    agent.ask("Again").await.unwrap();
    let (rest, error) = rest(deltas).await;
    assert_eq!(rest, text(2..400));
    assert!(error.is_none());
}

#[tokio::test(start_paused = true)]
async fn text_deltas_resync_over_a_whole_turn_have_its_text() {
    let (agent, mut events) =
        start([Step::text("First"), Step::new().then_text(pieces(0..400)).stop()]).await;
    agent.prompt("Hi").await.unwrap();
    assert_eq!(whole(&mut events).await, "First");
    agent.ask("Again").await.unwrap();
    assert_eq!(whole(&mut events).await, text(0..400));
}

#[tokio::test(start_paused = true)]
async fn text_deltas_resync_after_a_discarded_turn_are_its_error() {
    let gates = [Gate::new(), Gate::new()];
    for fails in [false, true] {
        let step =
            Step::new().then_text(pieces(0..5)).gate(&gates[usize::from(fails)]).then_text(pieces(5..400));
        let step = if fails {
            step.fail(ProviderError::new(ProviderErrorKind::InvalidRequest, "no"))
        } else {
            step.hang()
        };
        let hooks = Hooks::new().on_error(|_, _| ErrorDecision::Discard);
        let agent = echoing([step]).callbacks(hooks).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        agent.prompt("Hi").await.unwrap();
        let mut deltas = events.text_deltas();
        assert_eq!(read(&mut deltas, 2).await, text(0..2));
        gates[usize::from(fails)].open();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let _ = agent.cancel().await;
        let (missed, error) = rest(deltas).await;
        assert!(missed.is_empty(), "{missed}");
        let error = error.unwrap();
        assert_eq!(error.kind(), if fails { ErrorKind::Failed } else { ErrorKind::Cancelled });
        assert_eq!(error.provider_error().is_some(), fails);
        assert!(error.response().unwrap().messages.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn text_deltas_resync_after_a_failed_turn_have_its_text_and_its_error() {
    let gate = Gate::new();
    let step = Step::new().then_text(pieces(0..5)).gate(&gate).then_text(pieces(5..400));
    let step = step.fail(ProviderError::new(ProviderErrorKind::Service, "no"));
    let (agent, mut events) = start([step, Step::new().then_text(pieces(0..400)).stop()]).await;
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 2).await, text(0..2));
    gate.open();
    agent.wait_until_idle().await.unwrap();
    let (missed, error) = rest(deltas).await;
    assert_eq!(missed, text(2..400), "the streamed text is kept");
    assert_eq!(error.unwrap().kind(), ErrorKind::Failed);
    agent.ask("Again").await.unwrap();
    assert_eq!(whole(&mut events).await, text(0..400), "the next turn has its own end");
}

#[tokio::test(start_paused = true)]
async fn text_deltas_resync_at_the_end_have_the_rest_of_the_turn() {
    let gate = Gate::new();
    let step = Step::new().then_text(pieces(0..5)).gate(&gate).then_text(pieces(5..400)).stop();
    let (agent, mut events) = start([step]).await;
    agent.prompt("Hi").await.unwrap();
    let mut deltas = events.text_deltas();
    assert_eq!(read(&mut deltas, 2).await, text(0..2));
    gate.open();
    agent.wait_until_idle().await.unwrap();
    agent.stop(Duration::from_secs(1)).await.unwrap();
    let (rest, error) = rest(deltas).await;
    assert_eq!((rest, error.is_none()), (text(2..400), true));
}

#[tokio::test(start_paused = true)]
async fn stream_that_begins_in_the_middle_of_an_answer_ends_with_it_and_repeats_nothing() {
    for is_cancelled in [true, false] {
        let gate = Gate::new();
        let half = Step::new().then_text(["Half"]).gate(&gate).then_text([", whole."]).stop();
        let (agent, mut events) = start([half]).await;
        agent.prompt("Hi").await.unwrap();
        gate.reached().await;
        while !matches!(
            answered(events.next()).await,
            Some(Update::Event(numbered)) if matches!(&*numbered.event, Event::TextDelta { .. })
        ) {}
        let deltas = events.text_deltas();
        if is_cancelled {
            agent.cancel().await.unwrap();
        } else {
            gate.open();
        }
        let (text, error) = rest(deltas).await;
        assert_eq!(text, "");
        assert_eq!(error.map(|error| error.kind()), is_cancelled.then_some(ErrorKind::Cancelled));
    }
}

/// Returns an agent whose model has room for 1,000 tokens, with a subscription.
async fn compacting(steps: impl IntoIterator<Item = Step>) -> (Agent, AgentSubscription) {
    let provider = ScriptedProvider::new(steps);
    let agent = super::compaction::agent(&provider, CompactionPolicy::default().with_kept_turns(1));
    let agent = agent.start().await.unwrap();
    let events = agent.subscribe().await.unwrap();
    (agent, events)
}

#[tokio::test(start_paused = true)]
async fn compaction_at_the_end_of_a_run_is_not_the_next_answer() {
    let steps = [counted("Zero", 500), counted("One", 950), Step::text("Summary"), Step::text("Two")];
    let (agent, mut events) = compacting(steps).await;
    for (prompt, answer) in [("0", "Zero"), ("A", "One"), ("B", "Two")] {
        agent.prompt(prompt).await.unwrap();
        assert_eq!(whole(&mut events).await, answer);
        agent.wait_until_idle().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn requested_compaction_is_not_the_next_answer() {
    let steps = [Step::text("Zero"), Step::text("One"), Step::text("Summary"), Step::text("Two")];
    let (agent, mut events) = compacting(steps).await;
    for (prompt, answer) in [("0", "Zero"), ("A", "One")] {
        agent.prompt(prompt).await.unwrap();
        assert_eq!(whole(&mut events).await, answer);
    }
    agent.compact(Compact::summary()).await.unwrap();
    agent.wait_until_idle().await.unwrap();
    agent.prompt("B").await.unwrap();
    assert_eq!(whole(&mut events).await, "Two");
}

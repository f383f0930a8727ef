//! A replay repeats the recorded exchange.

use std::{fs, time::Duration};

use futures_util::StreamExt;
use omni_agent::{
    Agent, ErrorKind,
    agent::Event,
    message::Usage,
    provider::{ProviderError, ProviderErrorKind, Request, custom::Delta},
    subscription::Update,
    testing::{Gate, Recorded, Recording, ScriptedProvider, Step},
    tool_fn,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Folder, deltas, lines, recording, refused, replay};

fn usage() -> Usage {
    let mut usage = Usage::default();
    (usage.input, usage.output) = (30, 7);
    usage
}

fn conversation() -> [Step; 2] {
    let call = Step::new().wait(Duration::from_millis(250)).then_thinking("Let me look.", "signed");
    [
        call.then_tool_use("call-1", "weather", json!({"city": "Oslo"})).usage(usage()).stop(),
        Step::new().then_text(["3 degrees", " and rain"]).wait(Duration::from_secs(2)).stop(),
    ]
}

/// Asks an agent with a tool. Returns the deltas, the tool uses and the usage of its run as texts.
async fn run(provider: &Recorded) -> Vec<String> {
    let weather = tool_fn("weather", "The weather.", |_: Value, _| async { Ok("3 degrees, rain") });
    let agent = Agent::builder().model(provider.model("small")).tool(weather).start().await.unwrap();
    let mut events = agent.subscribe().await.unwrap();
    agent.ask("How is the weather in Oslo?").await.unwrap();
    let mut seen = Vec::new();
    while let Some(Update::Event(numbered)) = events.next().await {
        match &*numbered.event {
            Event::TextDelta { delta, .. } => seen.push(format!("text {delta}")),
            Event::ThinkingDelta { delta, .. } => seen.push(format!("thinking {delta}")),
            Event::ToolUseEnd { content, .. } => seen.push(format!("use {} {}", content.id, content.input)),
            Event::Step(step) => seen.push(format!("{:?}", step.usage)),
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    seen
}

#[tokio::test(start_paused = true)]
async fn replay_of_an_agents_run_emits_equal_events_and_needs_no_provider() {
    let folder = Folder::new();
    let path = folder.file("weather.jsonl");
    let recorded = run(&recording(conversation(), &path)).await;
    assert!(recorded.len() >= 5, "{recorded:?}");

    let provider = ScriptedProvider::new([]);
    let replayed = Recorded::new(provider.clone(), &path, Recording::Replay);
    assert_eq!(run(&replayed).await, recorded);
    assert_eq!(provider.requests().len(), 0);
    assert_eq!(replayed.unused().unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn recording_of_a_replay_is_the_same_file_byte_for_byte() {
    let folder = Folder::new();
    let (first, second) = (folder.file("first.jsonl"), folder.file("second.jsonl"));
    run(&recording(conversation(), &first)).await;
    let again = Recorded::new(replay(&first).in_real_time(), &second, Recording::Record);
    run(&again).await;
    let text = fs::read_to_string(&first).unwrap();
    assert!(text.contains(r#""after":250"#) && text.contains(r#""after":2000"#), "{text}");
    assert_eq!(fs::read_to_string(&second).unwrap(), text);
}

#[tokio::test(start_paused = true)]
async fn replay_takes_the_recorded_time_only_if_asked() {
    let folder = Folder::new();
    let path = folder.file("slow.jsonl");
    let slow =
        Step::new().wait(Duration::from_secs(5)).then_text(["Once"]).wait(Duration::from_secs(3)).stop();
    deltas(&recording([slow], &path).model("small"), Request::prompt("Tell.")).await;

    let began = Instant::now();
    deltas(&replay(&path).model("small"), Request::prompt("Tell.")).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    deltas(&replay(&path).in_real_time().model("small"), Request::prompt("Tell.")).await;
    assert_eq!(began.elapsed(), Duration::from_secs(8));
}

#[tokio::test]
async fn replay_of_failures_fails_with_equal_errors_after_equal_deltas() {
    let folder = Folder::new();
    let path = folder.file("failures.jsonl");
    let busy = ProviderError::new(ProviderErrorKind::RateLimit, "slow down")
        .with_retry_after(Some(Duration::from_secs(7)))
        .with_request_id(Some("req-1".to_owned()))
        .with_body("{}");
    let broken = ProviderError::new(ProviderErrorKind::Transport, "the connection broke");
    let script = || [Step::error(busy.clone()), Step::new().then_text(["Once"]).fail(broken.clone())];
    let recorded = recording(script(), &path).model("small");
    let first = deltas(&recorded, Request::prompt("a")).await;
    let second = deltas(&recorded, Request::prompt("b")).await;
    assert_eq!((first.0.len(), &first.1), (0, &Some(busy)));
    assert_eq!((second.0.len(), &second.1), (2, &Some(broken)));

    let replayed = replay(&path).model("small");
    assert_eq!(deltas(&replayed, Request::prompt("b")).await, second);
    assert_eq!(deltas(&replayed, Request::prompt("a")).await, first);
}

#[tokio::test(start_paused = true)]
async fn retries_of_a_request_are_recorded_and_replayed_one_by_one() {
    let folder = Folder::new();
    let path = folder.file("retried.jsonl");
    let overloaded = ProviderError::new(ProviderErrorKind::Overloaded, "try later");
    let script = [Step::error(overloaded), Step::text("Here.")];
    let answer = recording(script, &path).model("small").generate(Request::prompt("Where?")).await.unwrap();
    assert_eq!((answer.message.text().as_str(), lines(&path).len()), ("Here.", 2));
    let replayed = replay(&path);
    let answer = replayed.model("small").generate(Request::prompt("Where?")).await.unwrap();
    assert_eq!((answer.message.text().as_str(), replayed.unused().unwrap()), ("Here.", 0));
}

#[tokio::test(start_paused = true)]
async fn response_that_was_dropped_replays_its_deltas_and_waits_for_the_reader_to_drop_it() {
    let folder = Folder::new();
    let path = folder.file("dropped.jsonl");
    let gate = Gate::new();
    let endless = Step::new().then_text(["Once "]).gate(&gate);
    let mut stream = recording([endless], &path).model("small").stream(Request::prompt("Tell."));
    let first = [stream.next().await.unwrap().unwrap(), stream.next().await.unwrap().unwrap()];
    drop(stream);
    assert_eq!(lines(&path)[0]["dropped"], true);

    let began = Instant::now();
    let (replayed, error) = deltas(&replay(&path).model("small"), Request::prompt("Tell.")).await;
    assert_eq!(replayed, first);
    assert_eq!(began.elapsed(), Duration::from_mins(1));
    let text = error.unwrap().to_string();
    assert!(text.contains("has no more of this answer") && text.contains("OMNI_RECORD=record"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn cancelled_run_replays_as_a_cancelled_run() {
    let folder = Folder::new();
    let path = folder.file("cancelled.jsonl");
    let run = async |provider: Recorded| {
        let agent = Agent::builder().model(provider.model("small")).start().await.unwrap();
        let mut events = agent.subscribe().await.unwrap();
        let asking = tokio::spawn({
            let agent = agent.clone();
            async move { agent.ask("Tell.").await }
        });
        while !matches!(events.next().await, Some(Update::Event(numbered)) if matches!(&*numbered.event, Event::TextDelta { .. }))
        {
        }
        agent.cancel().await.unwrap();
        let outcome = asking.await.unwrap();
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Cancelled);
    };
    run(recording([Step::new().then_text(["Once "]).hang()], &path)).await;
    run(replay(&path)).await;
}

#[tokio::test]
async fn response_that_is_read_to_its_stop_reason_counts_as_complete() {
    let folder = Folder::new();
    let path = folder.file("stopped.jsonl");
    let mut stream = recording([Step::text("Yes.")], &path).model("small").stream(Request::prompt("Well?"));
    while !matches!(stream.next().await.unwrap().unwrap(), Delta::Message(_)) {}
    drop(stream);
    assert_eq!(lines(&path)[0].get("dropped"), None);
}

#[tokio::test]
async fn exchange_that_asks_for_a_decision_is_refused_and_not_recorded() {
    let folder = Folder::new();
    let path = folder.file("asked.jsonl");
    let tool_use = omni_agent::message::ToolUse::new("call-1", "delete", json!({}));
    let script = [Step::new().decide(tool_use.clone()).then_text(["Done."]).stop(), Step::text("Hi.")];
    let provider = ScriptedProvider::new(script);
    let recorded = Recorded::new(provider.clone(), &path, Recording::Record).model("small");
    let error = refused(&recorded, Request::prompt("Delete it.")).await;
    assert_eq!((error.kind, error.retryable), (ProviderErrorKind::Unsupported, false));
    assert!(error.message.contains("asks for a decision"), "{error}");
    assert_eq!(provider.decisions(), []);
    deltas(&recorded, Request::prompt("Hello")).await;
    assert_eq!(lines(&path).len(), 1);
}

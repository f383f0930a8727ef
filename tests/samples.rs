//! The loops from the first programs of the documentation. They are run with failing models, ended agents and slow
//! readers. Each loop in this file is the same as in the documents, line by line.
#![cfg(feature = "test-util")]
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "the samples print, and the tests set them up")]

use std::{error::Error, sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, Event, FollowTarget, RunStep, Running, Snapshot, Status},
    provider::{Model, ProviderError, ProviderErrorKind},
    session::{Mode, Session, SessionEvent, SessionSubscription},
    store::MemoryStore,
    subscription::{Subscription, Update},
    testing::{ScriptedProvider, Step},
};
use tokio::time::timeout;

type Done = Result<(), Box<dyn Error>>;

async fn read(mut events: Subscription<Snapshot, Event>) -> Done {
    // sample: agent
    while let Some(update) = events.next().await {
        match update {
            Update::Event(numbered) => match &*numbered.event {
                Event::TextDelta { delta, .. } => print!("{delta}"),
                Event::Turn { .. } => break,
                Event::Error { failure, .. } => return Err(failure.clone().into()),
                Event::Cancelled { .. } => return Err("the run was cancelled".into()),
                _ => {}
            },
            // This reader was too slow. The snapshot replaces the events that it missed.
            Update::Resync(snapshot) => {
                println!("{}", snapshot.messages().last().map_or(String::new(), |message| message.text()));
                if snapshot.status == Status::Idle {
                    break;
                }
            }
            Update::Closed(end) => return Err(end.reason.into()),
            _ => {}
        }
    }
    // end
    Ok(())
}

async fn read_session(mut events: SessionSubscription) -> Done {
    // sample: session
    while let Some(update) = events.next().await {
        match update {
            Update::Event(numbered) => match &*numbered.event {
                SessionEvent::Agent(event) => match &**event {
                    Event::TextDelta { delta, .. } => print!("{delta}"),
                    Event::Error { failure, .. } => return Err(failure.clone().into()),
                    Event::Cancelled { .. } => return Err("the run was cancelled".into()),
                    _ => {}
                },
                // The turn is part of the tree.
                SessionEvent::Tree(_) => break,
                _ => {}
            },
            // This reader was too slow. The snapshot replaces the events that it missed.
            Update::Resync(snapshot) => {
                println!("{}", snapshot.tree);
                if snapshot.agent.status == Status::Idle {
                    break;
                }
            }
            Update::Closed(end) => return Err(end.reason.into()),
            _ => {}
        }
    }
    // end
    Ok(())
}

async fn read_text(mut events: Subscription<Snapshot, Event>) -> Done {
    // sample: text
    let mut text = events.text_deltas();
    while let Some(delta) = text.next().await {
        print!("{}", delta?);
    }
    // end
    Ok(())
}

async fn read_run(mut run: Running) -> Done {
    // sample: run
    while let Some(step) = run.next().await? {
        match step {
            RunStep::Text { new, .. } => print!("{new}"),
            RunStep::ToolStarted(tool_use) => println!("[{} {}]", tool_use.name, tool_use.input),
            RunStep::Pause(pause) if pause.tool_use.input["path"] == "notes.txt" => pause.approve().await?,
            RunStep::Ended(response) => println!("\n[{} tokens]", response.usage.total()),
            _ => {}
        }
    }
    // end
    Ok(())
}

async fn within_a_minute(read: impl Future<Output = Done>) -> Result<(), String> {
    let read = timeout(Duration::from_mins(1), read).await.expect("the sample ends within a minute");
    read.map_err(|error| error.to_string())
}

async fn agent(model: Model) -> Agent {
    Agent::builder().model(model).start().await.unwrap()
}

async fn session(model: Model) -> Session {
    let agent = Agent::builder().model(model);
    Session::builder(Arc::new(MemoryStore::new())).agent(agent).create().await.unwrap()
}

fn refusing() -> Model {
    ScriptedProvider::new([Step::error(ProviderError::new(ProviderErrorKind::Auth, "no API key"))]).model()
}

#[tokio::test(start_paused = true)]
async fn samples_with_a_model_that_fails_return_its_error() {
    let agent = agent(refusing()).await;
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    assert!(within_a_minute(read(events)).await.unwrap_err().contains("no API key"));
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    assert!(within_a_minute(read_text(events)).await.unwrap_err().contains("the run failed"));
    let run = agent.run("Hi").follow().await.unwrap();
    assert!(within_a_minute(read_run(run)).await.unwrap_err().contains("the run failed"));

    let session = session(refusing()).await;
    let events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Hi").await.unwrap();
    assert!(within_a_minute(read_session(events)).await.unwrap_err().contains("no API key"));
}

#[tokio::test(start_paused = true)]
async fn samples_whose_run_is_cancelled_return_an_error() {
    let agent = agent(ScriptedProvider::from_fn(|_| Step::new().hang()).model()).await;
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    agent.cancel().await.unwrap();
    assert_eq!(within_a_minute(read(events)).await, Err("the run was cancelled".to_owned()));
    let events = agent.subscribe().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    agent.cancel().await.unwrap();
    assert_eq!(within_a_minute(read_text(events)).await, Err("the run was cancelled".to_owned()));
    let run = agent.run("Hi").follow().await.unwrap();
    agent.cancel().await.unwrap();
    assert_eq!(within_a_minute(read_run(run)).await, Err("the run was cancelled".to_owned()));

    let session = session(ScriptedProvider::new([Step::new().hang()]).model()).await;
    let events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Hi").await.unwrap();
    session.cancel().await.unwrap();
    assert_eq!(within_a_minute(read_session(events)).await, Err("the run was cancelled".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn samples_whose_agent_ends_return_the_reason() {
    let agent = agent(ScriptedProvider::new([Step::new().hang()]).model()).await;
    let (events, texts) = (agent.subscribe().await.unwrap(), agent.subscribe().await.unwrap());
    let run = agent.follow(FollowTarget::InFlight).await.unwrap();
    agent.stop(Duration::from_secs(1)).await.unwrap();
    assert_eq!(within_a_minute(read(events)).await, Err("stopped".to_owned()));
    assert_eq!(within_a_minute(read_text(texts)).await, Err("the agent has ended: stopped".to_owned()));
    assert_eq!(within_a_minute(read_run(run)).await, Err("the agent has ended: stopped".to_owned()));

    let session = session(ScriptedProvider::new([Step::new().hang()]).model()).await;
    let events = session.subscribe(Mode::Controller).await.unwrap();
    session.stop(Duration::from_secs(1)).await.unwrap();
    assert_eq!(within_a_minute(read_session(events)).await, Err("stopped".to_owned()));
}

/// Returns a model that causes more events than a subscription holds for a stalled reader.
fn flood() -> Model {
    let pieces = (0..20_000).map(|number| format!("{number} "));
    ScriptedProvider::new([Step::new().then_text(pieces).stop()]).model()
}

#[tokio::test(start_paused = true)]
async fn samples_that_fall_behind_end_with_the_snapshot() {
    let agent = agent(flood()).await;
    let (events, texts) = (agent.subscribe().await.unwrap(), agent.subscribe().await.unwrap());
    agent.prompt("Hi").await.unwrap();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(within_a_minute(read(events)).await, Ok(()));
    assert_eq!(within_a_minute(read_text(texts)).await, Ok(()));
    let agent = self::agent(flood()).await;
    let run = agent.run("Hi").follow().await.unwrap();
    agent.wait_until_idle().await.unwrap();
    assert_eq!(within_a_minute(read_run(run)).await, Ok(()));

    let session = session(flood()).await;
    let events = session.subscribe(Mode::Controller).await.unwrap();
    session.prompt("Hi").await.unwrap();
    session.wait_until_idle().await.unwrap();
    assert_eq!(within_a_minute(read_session(events)).await, Ok(()));
}

/// Returns the lines of this file between `// sample: NAME` and `// end`.
fn sample(name: &str) -> String {
    let this = include_str!("samples.rs");
    let begin = this.split_once(&format!("// sample: {name}\n")).expect("the sample exists").1;
    lines(begin.split_once("// end\n").expect("a sample has an end").0)
}

/// Returns the lines without their indentation and without the markers of doc comments.
fn lines(text: &str) -> String {
    let bare = |line: &str| line.trim().trim_start_matches("//!").trim_start_matches("///").trim().to_owned();
    text.lines().map(bare).collect::<Vec<_>>().join("\n")
}

#[test]
fn loops_of_the_documentation_are_the_samples_of_this_file() {
    let documents = [
        ("README.md", include_str!("../README.md"), "run"),
        ("src/lib.rs", include_str!("../src/lib.rs"), "text"),
        ("docs/getting-started.md", include_str!("../docs/getting-started.md"), "text"),
        ("docs/getting-started.md", include_str!("../docs/getting-started.md"), "agent"),
        ("docs/getting-started.md", include_str!("../docs/getting-started.md"), "run"),
        ("src/agent.rs", include_str!("../src/agent.rs"), "agent"),
        ("src/session/subscription.rs", include_str!("../src/session/subscription.rs"), "session"),
    ];
    for (name, text, wanted) in documents {
        assert!(lines(text).contains(&sample(wanted)), "{name} has no loop like sample `{wanted}`");
    }
}

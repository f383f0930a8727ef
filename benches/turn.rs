//! The cost of a whole turn. A turn consists of the prompt, the answer, and the commit. The model is simulated in
//! memory and sends its answer as one delta.
//!
//! The figures are CPU time of the whole process on a runtime with one thread. Each batch of turns uses a new agent.
//!
//! A subscriber costs nine events and two wakes per turn.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, Event},
    session::{Mode, Session, SessionEvent, StoreReport},
    store::MemoryStore,
    subscription::Update,
};
use support::{head, median, on_this_thread, row, size};

const BATCH: usize = 1000;

fn main() {
    if let Some((case, times)) = support::counted() {
        match case.as_str() {
            "prompt" => on_this_thread(prompt(times)),
            "ask" => on_this_thread(ask(times)),
            "watched" => on_this_thread(watch(times)),
            "flushed" => on_this_thread(flush(times)),
            "saved" => on_this_thread(watch_saved(times)),
            other => panic!("unknown case: {other}"),
        };
        return;
    }
    let runs = size(60, 2);
    let (mut prompted, mut asked, mut watched) = (Vec::new(), Vec::new(), Vec::new());
    let (mut saved, mut flushed) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        prompted.push(on_this_thread(prompt(BATCH)));
        asked.push(on_this_thread(ask(BATCH)));
        watched.push(on_this_thread(watch(BATCH)));
        flushed.push(on_this_thread(flush(BATCH)));
        saved.push(on_this_thread(watch_saved(BATCH)));
    }
    head(&format!("CPU of a turn, median of {runs} batches of {BATCH}"));
    row("prompt, wait until idle; no subscriber", format!("{:.2} µs", median(prompted)), "≤ 4 µs");
    row("ask; no subscriber", format!("{:.2} µs", median(asked)), "≤ 4 µs");
    row("prompt, all events read by a subscriber", format!("{:.2} µs", median(watched)), "≤ 4 µs");
    row("session: ask, then flush; no subscriber", format!("{:.2} µs", median(flushed)), "≤ 10 µs");
    row("session: prompt, all events read until it is saved", format!("{:.2} µs", median(saved)), "≤ 10 µs");
}

async fn agent() -> Agent {
    let agent = Agent::builder().model(support::brief()).start().await.expect("the agent starts");
    for _ in 0..100 {
        agent.ask("Hi").await.expect("the model answers");
    }
    agent
}

/// Runs `turn` `times` times on the current runtime. Returns the CPU time per turn in microseconds.
async fn each(times: usize, mut turn: impl AsyncFnMut()) -> f64 {
    let before = support::cpu();
    for _ in 0..times {
        turn().await;
    }
    let used = support::cpu().checked_sub(before).unwrap();
    used.as_secs_f64() * 1e6 / times as f64
}

async fn prompt(times: usize) -> f64 {
    let agent = agent().await;
    each(times, async || {
        agent.prompt("Hi").await.expect("the agent is idle");
        agent.wait_until_idle().await.expect("the agent is running");
    })
    .await
}

async fn ask(times: usize) -> f64 {
    let agent = agent().await;
    each(times, async || {
        agent.ask("Hi").await.expect("the model answers");
    })
    .await
}

async fn watch(times: usize) -> f64 {
    let agent = agent().await;
    let mut events = agent.subscribe().await.expect("the agent is running");
    each(times, async || {
        agent.prompt("Hi").await.expect("the agent is idle");
        loop {
            match events.next().await {
                Some(Update::Event(event)) if matches!(*event.event, Event::Turn { .. }) => break,
                Some(Update::Event(_)) => {}
                other => panic!("a reader that keeps up gets events, not {other:?}"),
            }
        }
    })
    .await
}

async fn session() -> Session {
    let agent = Agent::builder().model(support::brief());
    let session = Session::builder(Arc::new(MemoryStore::new()))
        .agent(agent)
        .create()
        .await
        .expect("the session starts");
    for _ in 0..100 {
        session.ask("Hi").await.expect("the model answers");
    }
    session
}

async fn flush(times: usize) -> f64 {
    let session = session().await;
    each(times, async || {
        session.ask("Hi").await.expect("the model answers");
        session.flush(Duration::from_mins(1)).await.expect("the turn is saved");
    })
    .await
}

async fn watch_saved(times: usize) -> f64 {
    let session = session().await;
    session.flush(Duration::from_mins(1)).await.expect("the turn is saved");
    let mut events = session.subscribe(Mode::Controller).await.expect("the session is open");
    each(times, async || {
        session.prompt("Hi").await.expect("the session is idle");
        loop {
            match events.next().await {
                Some(Update::Event(event)) => {
                    if matches!(*event.event, SessionEvent::Store(StoreReport::Saved { .. })) {
                        break;
                    }
                }
                other => panic!("a reader that keeps up gets events, not {other:?}"),
            }
        }
    })
    .await
}

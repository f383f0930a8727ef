//! The cost of a step in a tool loop. The benchmark shows whether this cost grows with the length of the loop or of the
//! history.
//!
//! Each step consists of a request to a model in memory, a tool use, the call of the tool, and its result. In the last
//! step of a run, the model answers with a text. A sub-agent answers with a text at once. The figures are CPU time of the
//! whole process on a runtime with one thread and without subscribers.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use omni_agent::{
    agent::{Agent, SubAgent},
    message::{History, Message},
    provider::Request,
    tool::{Tool, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use support::{InMemory, cpu, head, median, on_this_thread, row, size};

#[derive(Deserialize, JsonSchema)]
struct Echo {
    /// What to say.
    text: String,
}

fn main() {
    if let Some((case, times)) = support::counted() {
        let length = match case.as_str() {
            "step10" => 10,
            "step100" => 100,
            "step1000" => 1000,
            other => panic!("unknown case: {other}"),
        };
        on_this_thread(each_step(length, times.div_ceil(length), echo()));
        return;
    }
    let runs = size(60, 2);
    let lengths = [10, 100, 1000];
    let mut steps = [const { Vec::new() }; 3];
    let mut turns = [const { Vec::new() }; 4];
    let mut calls = Vec::new();
    for _ in 0..runs {
        for (figures, length) in steps.iter_mut().zip(lengths) {
            figures.push(on_this_thread(each_step(length, 2000 / length, echo())));
        }
        let brief = support::brief();
        let helper = SubAgent::new("echo", "Helps.", move |_| Agent::builder().model(brief.clone()));
        calls.push(on_this_thread(each_step(100, 20, helper.with_input(|echo: Echo| echo.text.into()))));
        for (figures, messages) in turns.iter_mut().zip([10, 1000, 10_000, 0]) {
            figures.push(on_this_thread(each_turn(messages)));
        }
    }
    let steps = steps.map(median);
    let turns = turns.map(median);
    let call = median(calls) - steps[1] - turns[3];
    head(&format!("CPU, median of {runs}"));
    row("a step, in a loop of 10", format!("{:.2} µs", steps[0]), "≤ 10 µs");
    row("a step, in a loop of 100", format!("{:.2} µs", steps[1]), "≤ 10 µs");
    row("a step, in a loop of 1,000", format!("{:.2} µs", steps[2]), "≤ 10 µs");
    row("ratio, 100 to 10", format!("{:.2}", steps[1] / steps[0]), "≤ 1.1");
    row("a turn on a history of 10 messages", format!("{:.2} µs", turns[0]), "—");
    row("a turn on a history of 1,000 messages", format!("{:.2} µs", turns[1]), "—");
    row("a turn on a history of 10,000 messages", format!("{:.2} µs", turns[2]), "—");
    row("ratio, 10,000 to 10", format!("{:.2}", turns[2] / turns[0]), "about 1");
    row("a sub-agent in memory, beyond its turn and a tool's call", format!("{call:.2} µs"), "≤ 20 µs");
}

fn echo() -> impl Tool {
    tool_fn("echo", "Gives back its input.", |echo: Echo, _| async move { Ok(echo.text) })
}

/// Returns the microseconds per step with this tool, measured in `batch` runs of `length` steps.
async fn each_step(length: usize, batch: usize, tool: impl Tool) -> f64 {
    let asked = Arc::new(AtomicUsize::new(0));
    let model = support::model(InMemory(move |_: &Request| {
        let step = asked.fetch_add(1, Ordering::Relaxed) + 1;
        if step.is_multiple_of(length) {
            support::text("Done.")
        } else {
            support::tool_use(format!("call-{step}"))
        }
    }));
    let agent = Agent::builder().model(model).tool(tool).start().await.expect("the agent starts");
    let run = async || {
        agent.prompt("Hi").await.expect("the agent is idle");
        agent.wait_until_idle().await.expect("the agent is running");
    };
    for _ in 0..(500 / length).max(1) {
        run().await;
    }
    let before = cpu();
    for _ in 0..batch {
        run().await;
    }
    cpu().checked_sub(before).unwrap().as_secs_f64() * 1e6 / (batch * length) as f64
}

/// Returns the microseconds per turn if the history has `messages` messages.
async fn each_turn(messages: usize) -> f64 {
    const BATCH: usize = 100;
    let before = (0..messages)
        .map(|index| if index % 2 == 0 { Message::user("Well?") } else { Message::assistant("Well.") });
    let history: History = before.collect();
    let builder = Agent::builder().model(support::brief()).history(history.clone());
    let agent = builder.start().await.expect("the agent starts");
    let mut used = std::time::Duration::ZERO;
    for _ in 0..10 {
        let history = history.clone();
        let reset = agent.set_state(move |draft| {
            draft.history = history;
            Ok(())
        });
        reset.await.expect("the history is valid");
        let before = cpu();
        for _ in 0..BATCH {
            agent.prompt("Hi").await.expect("the agent is idle");
            agent.wait_until_idle().await.expect("the agent is running");
        }
        used += cpu().checked_sub(before).unwrap();
    }
    used.as_secs_f64() * 1e6 / (10 * BATCH) as f64
}

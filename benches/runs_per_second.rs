//! Runs of agents a second against a local server: each a fresh agent that calls a tool and gives its final
//! answer, both streamed.
//!
//! Wall time, since that is what the promise says, with the CPU that a run took in the client beside it. The
//! server is another process and takes its share of the same cores.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod server;
#[allow(dead_code)]
mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use omni_agent::{
    agent::Agent,
    provider::{Model, StopReason, http::Endpoint},
    tool::{ToolSet, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use server::{chat, messages, streamed};
use support::{cpu, head, median, row, size, smoke};

#[derive(Deserialize, JsonSchema)]
struct Place {
    /// The name of a city.
    city: String,
}

fn main() {
    let server = server::start(|| {
        let pieces = || ["It", " is", " 18", " degrees", " in", " Paris", "."].map(str::to_owned);
        let input = [r#"{"ci"#, r#"ty": "#, r#""Paris"}"#];
        let answers = [
            streamed(&chat::tool_use("weather", &input), None),
            streamed(&chat::text(pieces()), None),
            streamed(&messages::tool_use("weather", &input), None),
            streamed(&messages::text(pieces()), None),
        ];
        Box::new(move |head, body| {
            let answered = contains(body, b"\"role\":\"tool\"") || contains(body, b"\"tool_result\"");
            let format = if head.contains("/messages") { 2 } else { 0 };
            Arc::clone(&answers[format + usize::from(answered)])
        })
    });
    let url = format!("http://{}", server.address);
    let formats = [
        ("Chat Completions", Endpoint::openai_compatible("local", &url)),
        ("Messages", Endpoint::anthropic_compatible("local", &url)),
    ];
    for (name, endpoint) in formats {
        head(&format!("{name}: runs a second"));
        let model = Model::new(Arc::new(endpoint), "a-model");
        for at_once in [1, 16, 64] {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be made");
            let figures = (0..size(7, 1)).map(|_| runtime.block_on(measure(&model, at_once)));
            let (rate, used): (Vec<_>, Vec<_>) = figures.unzip();
            let goal = "ahead of all peers";
            row(
                &format!("{at_once} at once"),
                format!("{:.0} ({:.0} µs CPU each)", median(rate), median(used)),
                goal,
            );
        }
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Runs a second, and microseconds of CPU a run.
async fn measure(model: &Model, at_once: usize) -> (f64, f64) {
    let weather = tool_fn("weather", "Tells the weather.", |place: Place, _| async move {
        Ok(format!("18 degrees in {}", place.city))
    });
    let tools = ToolSet::new().with(weather).expect("the tool is sound");
    let time = if smoke() { Duration::from_millis(50) } else { Duration::from_secs(2) };
    // Connections are there before it counts.
    race(model, &tools, at_once, time / 10).await;
    let (before, began) = (cpu(), Instant::now());
    let runs = race(model, &tools, at_once, time).await as f64;
    (runs / began.elapsed().as_secs_f64(), cpu().checked_sub(before).unwrap().as_secs_f64() * 1e6 / runs)
}

/// Runs agents for this long; how many.
async fn race(model: &Model, tools: &ToolSet, at_once: usize, time: Duration) -> usize {
    let runs = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..at_once {
        let (model, tools, runs) = (model.clone(), tools.clone(), Arc::clone(&runs));
        tasks.spawn(async move {
            while began.elapsed() < time {
                let builder = Agent::builder().model(model.clone()).tools(tools.clone());
                let agent = builder.start().await.expect("the agent starts");
                let response = agent.ask("How is the weather in Paris?").await.expect("the server answers");
                assert_eq!((response.stop_reason.clone(), response.step), (StopReason::Stop, 2));
                runs.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no run fails");
    }
    runs.load(Ordering::Relaxed)
}

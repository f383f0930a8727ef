//! The time from a call of `cancel` until a subscriber has received the event of the cancellation.
//!
//! The figures are wall time on a runtime with one thread. They include everything that happens before the event is
//! received: the work of other tasks, and the earlier events that the subscriber still has to read.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{
    future::pending,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use futures_util::stream;
use omni_agent::{
    agent::{Agent, AgentSubscription, Event},
    provider::{
        DeltaStream, Provider, ProviderError, Request,
        custom::{BlockStart, Delta, Part, RequestContext},
    },
    subscription::Update,
    tool::{ToolContext, ToolOutput, tool_fn},
};
use serde_json::Value;
use support::{InMemory, head, on_this_thread, percentile, row, size};

/// A provider whose answer never ends.
struct Endless {
    /// The time between two deltas. If this is `None`, the deltas are sent without a pause.
    pause: Option<Duration>,
}

#[async_trait]
impl Provider for Endless {
    fn name(&self) -> &'static str {
        "endless"
    }

    async fn stream(
        &self,
        _request: Request,
        _context: RequestContext,
    ) -> Result<DeltaStream, ProviderError> {
        let start = stream::once(async { Ok(Delta::Start { index: 0, block: BlockStart::Text }) });
        let more = || Ok(Delta::Extend { index: 0, part: Part::Text("And so on. ".to_owned()) });
        Ok(match self.pause {
            None => Box::pin(futures_util::StreamExt::chain(start, stream::repeat_with(more))),
            Some(pause) => {
                let ticks = stream::unfold(tokio::time::interval(pause), move |mut ticks| async move {
                    ticks.tick().await;
                    Some((more(), ticks))
                });
                Box::pin(futures_util::StreamExt::chain(start, ticks))
            }
        })
    }
}

fn main() {
    let count = size(1000, 5);
    head(&format!("from cancel to its event, {count} times"));
    let paced = on_this_thread(streaming(count, Some(Duration::from_millis(1))));
    report("streaming, a delta each millisecond", paced, "p99 ≤ 100 µs");
    let flood = on_this_thread(streaming(count, None));
    report("streaming, a flood", flood, "p99 ≤ 1000 µs");
    report("one tool runs", on_this_thread(in_tools(count, 1)), "p99 ≤ 100 µs");
    report("16 tools run", on_this_thread(in_tools(count, 16)), "p99 ≤ 100 µs");
}

fn report(what: &str, mut figures: Vec<f64>, goal: &str) {
    let (half, most) = (percentile(&mut figures, 0.5), percentile(&mut figures, 0.99));
    row(what, format!("p50 {half:.0}, p99 {most:.0} µs"), goal);
}

/// Reads events until `wanted` returns true for an event.
async fn read(events: &mut AgentSubscription, wanted: impl Fn(&Event) -> bool) {
    loop {
        match events.next().await {
            Some(Update::Event(event)) if wanted(&event.event) => return,
            Some(Update::Event(_)) => {}
            other => panic!("a reader that keeps up gets events, not {other:?}"),
        }
    }
}

/// Returns the microseconds from a call of `cancel` until its event is received.
async fn cancel(agent: &Agent, events: &mut AgentSubscription) -> f64 {
    let before = Instant::now();
    let (cancelled, ()) =
        tokio::join!(agent.cancel(), read(events, |event| matches!(event, Event::Cancelled { .. })));
    cancelled.expect("a run is active");
    before.elapsed().as_secs_f64() * 1e6
}

async fn streaming(count: usize, pause: Option<Duration>) -> Vec<f64> {
    let model = support::model(Endless { pause });
    let agent = Agent::builder().model(model).start().await.expect("the agent starts");
    let mut events = agent.subscribe().await.expect("the agent is running");
    let mut figures = Vec::new();
    for round in 0..count {
        agent.prompt("Go on.").await.expect("the agent is idle");
        // To cancel each run at another point of its stream, read a different number of deltas.
        for _ in 0..3 + round % 5 {
            read(&mut events, |event| matches!(event, Event::TextDelta { .. })).await;
        }
        if pause.is_some() {
            tokio::time::sleep(Duration::from_micros(100 * (round as u64 % 10))).await;
        }
        figures.push(cancel(&agent, &mut events).await);
    }
    figures
}

async fn in_tools(count: usize, tools: usize) -> Vec<f64> {
    let model = support::model(InMemory(move |_: &Request| {
        let uses = (0..tools).flat_map(|index| {
            let [start, input, stop] = support::tool_use_at(index, format!("call-{index}"));
            let stop = (index + 1 == tools).then_some(stop);
            [Some(start), Some(input), stop].into_iter().flatten()
        });
        uses.collect::<Vec<_>>()
    }));
    let wait = tool_fn("echo", "Waits for ever.", |_: Value, context: ToolContext| async move {
        context.progress(Value::Null).await;
        pending::<()>().await;
        Ok(ToolOutput::default())
    });
    let agent = Agent::builder().model(model).tool(wait).start().await.expect("the agent starts");
    let mut events = agent.subscribe().await.expect("the agent is running");
    let mut figures = Vec::new();
    for _ in 0..count {
        agent.prompt("Go on.").await.expect("the agent is idle");
        for _ in 0..tools {
            read(&mut events, |event| matches!(event, Event::ToolProgress { .. })).await;
        }
        figures.push(cancel(&agent, &mut events).await);
    }
    figures
}

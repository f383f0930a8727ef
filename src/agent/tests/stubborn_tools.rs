//! Aborted tools that never await. When the agent ends, it waits for these tools or reports them.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use crate::{
    agent::Agent,
    run::ErrorKind,
    subscription::Update,
    testing::{Gate, Step},
    tool::{Tool, ToolContext, tool_fn},
};
use futures_util::FutureExt;
use serde_json::{Value, json};

use super::{predicament::no_timeout, support::scripted};

/// A tool that blocks its thread, as the test controls and observes it.
struct Stubborn {
    begun: Gate,
    release: Sender<()>,
    done: Arc<AtomicBool>,
}

fn blocking(blocked: Receiver<()>, begun: &Gate, done: &Arc<AtomicBool>) -> impl Tool {
    let (blocked, begun, done) = (Arc::new(Mutex::new(blocked)), begun.clone(), Arc::clone(done));
    tool_fn("block", "Blocks.", move |_: Value, _: ToolContext| {
        let (blocked, begun, done) = (Arc::clone(&blocked), begun.clone(), Arc::clone(&done));
        async move {
            begun.open();
            let _ = blocked.lock().unwrap().recv();
            done.store(true, Ordering::SeqCst);
            Ok("")
        }
    })
}

/// Returns an agent whose tool blocks.
async fn blocked() -> (Agent, Stubborn) {
    let (release, receiver) = channel();
    let (begun, done) = (Gate::new(), Arc::new(AtomicBool::new(false)));
    let builder = scripted([Step::tool_use("t1", "block", json!({}))]).1.tool_limits(no_timeout());
    let agent = builder.tool(blocking(receiver, &begun, &done)).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    begun.pass().await;
    (agent, Stubborn { begun, release, done })
}

/// Polls the future often while the other threads run. If the future finishes, panics.
async fn stays_pending<F: Future>(mut future: std::pin::Pin<&mut F>) {
    for _ in 0..2000 {
        assert!(future.as_mut().now_or_never().is_none(), "the future should have waited for the tool");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn stop_while_a_tool_blocks_waits_for_it() {
    for cancelled_before in [false, true] {
        let (agent, tool) = blocked().await;
        if cancelled_before {
            agent.cancel().await.unwrap();
        }
        let mut stop = pin!(agent.stop(Duration::from_mins(1)));
        while agent.end().is_none() {
            assert!(stop.as_mut().now_or_never().is_none(), "the future should have waited for the tool");
            tokio::task::yield_now().await;
        }
        stays_pending(stop.as_mut()).await;
        tool.release.send(()).unwrap();
        stop.await.unwrap();
        assert!(tool.done.load(Ordering::SeqCst));
        drop(tool.begun);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn stop_deadline_passes_while_a_tool_blocks_error_names_the_tool() {
    let (agent, tool) = blocked().await;
    let stopped = agent.stop(Duration::from_millis(50)).await;
    for stopped in [stopped, agent.stop(Duration::ZERO).await] {
        let error = stopped.unwrap_err();
        assert!(error.to_string().contains("block (t1)"), "{error}");
        let tools = serde_json::json!([{ "id": "t1", "name": "block" }]);
        assert_eq!((error.kind(), error.member("tools")), (ErrorKind::Deadline, Some(&tools)));
    }
    tool.release.send(()).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn last_handle_dropped_while_a_tool_blocks_closed_when_the_tool_returns() {
    let (agent, tool) = blocked().await;
    let mut events = agent.subscribe().await.unwrap();
    drop(agent);
    tool.release.send(()).unwrap();
    while !matches!(events.next().await, Some(Update::Closed(_))) {}
    assert!(tool.done.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn stop_zero_deadline_tool_that_awaits_is_dropped() {
    let gate = Gate::new();
    let builder = scripted([Step::tool_use("t1", "slow", json!({}))]).1.tool_limits(no_timeout());
    let agent = builder.tool(super::predicament::hanging("slow", &gate)).start().await.unwrap();
    agent.prompt("Hi").await.unwrap();
    gate.reached().await;
    agent.stop(Duration::ZERO).await.unwrap();
}

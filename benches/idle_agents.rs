//! The memory of 100,000 idle agents, before and after a first turn.
//!
//! The model, the system prompt and the tools are shared, as in an application. The figures are differences of resident
//! memory. The memory of the first turn's messages is measured separately, with a second copy of all these messages.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::sync::Arc;

use omni_agent::{
    agent::Agent,
    message::Message,
    tool::{ToolSet, tool_fn},
};
use serde_json::Value;
use support::{head, on_this_thread, resident, row, size};

fn main() {
    on_this_thread(measure());
}

async fn measure() {
    let count = size(100_000, 100);
    let model = support::brief();
    let system: Arc<str> = "You are of help.".into();
    let echo = tool_fn("echo", "Gives back its input.", |input: Value, _| async move { Ok(input) });
    let tools = ToolSet::new().with(echo).expect("the tool is valid");
    let start = async || {
        let builder = Agent::builder().model(model.clone()).system(Arc::clone(&system)).tools(tools.clone());
        builder.start().await.expect("the agent starts")
    };
    // The first agent creates the shared data before the measurement.
    let first = start().await;
    first.ask("Hi").await.expect("the model answers");

    // The same messages as in the later turns are created first, to measure their memory. Later, the heap has holes,
    // and messages in these holes would not be measured.
    let mut copies: Vec<Arc<Message>> = Vec::with_capacity(2 * count);
    copies.resize(2 * count, Arc::new(Message::user("Hi")));
    let before = resident();
    for pair in copies.chunks_mut(2) {
        pair[0] = Arc::new(Message::user("Hi"));
        pair[1] = Arc::new(Message::assistant("Hello!"));
    }
    let messages = resident() - before;

    // The memory for the handles is allocated before the measurement, because an application stores the handles itself.
    let mut agents: Vec<Agent> = Vec::with_capacity(count);
    agents.resize(count, first.clone());
    let before = resident();
    for place in &mut agents {
        *place = start().await;
    }
    let idle = resident() - before;
    for agent in &agents {
        agent.prompt("Hi").await.expect("the agent is idle");
        agent.wait_until_idle().await.expect("the agent is running");
    }
    let after_turn = resident() - before;

    let each = |bytes: usize| bytes as f64 / count as f64;
    head(&format!("resident memory of {count} agents, each"));
    row("idle, started", format!("{:.0} B", each(idle)), "—");
    row("the two messages of a turn", format!("{:.0} B", each(messages)), "—");
    let own = each(after_turn.saturating_sub(messages));
    row("idle, after a first turn, its messages apart", format!("{own:.0} B"), "≤ 4096 B");
}

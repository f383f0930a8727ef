//! The number of writes to the store that a turn costs.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, Durable, Event, Status},
    session::{Mode, Session, SessionEvent},
    store::{MemoryStore, Store},
    subscription::Update,
    testing::{ScriptedProvider, Step},
    tool::{Decision, tool_fn},
};
use serde_json::{Value, json};

use crate::stores::id;

/// Runs a turn whose steps use these tools, and returns the number of writes. The tool `send` needs an approval. Of
/// several approvals in a step, all but the last one are rejected.
async fn writes(level: Durable, steps: &[&[&str]]) -> u64 {
    let script = steps.iter().enumerate().map(|(number, tools)| {
        let uses = tools.iter().enumerate().fold(Step::new(), |step, (slot, tool)| {
            step.then_tool_use(&format!("{number}-{slot}"), tool, json!({}))
        });
        uses.stop()
    });
    let provider = ScriptedProvider::new(script.chain([Step::text("Done.")]));
    let tool = |name| tool_fn(name, "Does something.", async |_: Value, _| Ok("done"));
    let agent = Agent::builder().model(provider.model()).tool(tool("send")).tool(tool("look"));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let builder = Session::builder(Arc::clone(&store)).agent(agent.needs_approval("send")).durable(level);
    let session = builder.create_with_id(id("a")).await.unwrap();
    // Each write raises the version by one.
    let before = store.summary(&id("a")).await.unwrap().version.get();
    let mut updates = session.subscribe(Mode::Observer).await.unwrap();
    session.prompt("Go").await.unwrap();
    loop {
        let Some(Update::Event(numbered)) = updates.next().await else { panic!("the session has ended") };
        let SessionEvent::Agent(event) = &*numbered.event else { continue };
        match &**event {
            // Each decision is followed by a shorter list.
            Event::Status { status: Status::Paused, pauses } => {
                let tool_use = pauses[0].tool_use.id.clone();
                let is_last = pauses.len() == 1;
                let decision = if is_last { Decision::Execute } else { Decision::reject("No.") };
                session.resume(tool_use, decision).await.unwrap();
            }
            Event::Turn { .. } => break,
            _ => {}
        }
    }
    session.flush(Duration::from_secs(5)).await.unwrap();
    store.summary(&id("a")).await.unwrap().version.get() - before
}

#[tokio::test(start_paused = true)]
async fn turn_costs_exactly_the_documented_writes() {
    let cases: [(&[&[&str]], u64, u64, u64); 7] = [
        (&[], 1, 1, 2),
        (&[&["look"]], 1, 1, 2 + 2),
        (&[&["look"], &["look"]], 1, 1, 2 + 2 * 2),
        // The pause is a write, and so is each decision except the last one of its step.
        (&[&["send"]], 1, 1 + 1 + 2, 2 + 2 + 1),
        (&[&["send", "send"]], 1, 1 + 1 + 1 + 2, 2 + 2 + 1 + 1),
        // At `Approvals`, records begin with the first pause.
        (&[&["send"], &["look"]], 1, 1 + 1 + 2 * 2, 2 + 2 * 2 + 1),
        (&[&["look"], &["send"]], 1, 1 + 1 + 2, 2 + 2 * 2 + 1),
    ];
    for (steps, turns, approvals, in_flight) in cases {
        let levels = [Durable::Turns, Durable::Approvals, Durable::InFlight];
        for (level, expected) in levels.into_iter().zip([turns, approvals, in_flight]) {
            assert_eq!(writes(level, steps).await, expected, "{level:?}: {steps:?}");
        }
    }
}

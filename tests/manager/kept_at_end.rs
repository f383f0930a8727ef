//! A turn that is in flight when its session is closed. Its completed steps are stored, unless the caller uses
//! `close_discarding`.

use async_trait::async_trait;
use omni_agent::{
    agent::{AgentCallbacks, State, Status, ToolDecision},
    manager::{Manager, OpenOptions},
    message::ToolUse,
    session::Session,
    store::Store,
    testing::Step,
    tool::tool_fn,
};
use serde_json::{Value, json};

use crate::rig::{MoodyStore, id, in_time, scripted, secs, settle, tasks};

/// Callbacks that pause the run before the tool `write`.
struct Asking;

#[async_trait]
impl AgentCallbacks for Asking {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        if tool_use.name == "write" { ToolDecision::Pause(json!("may I?")) } else { ToolDecision::Execute }
    }
}

/// Returns a session that has run one tool and is paused before the next tool.
async fn paused_after_a_step(manager: &Manager, name: &str) -> Session {
    let steps = [Step::tool_use("t1", "echo", json!({})), Step::tool_use("t2", "write", json!({}))];
    let echo = tool_fn("echo", "Echoes.", |input: Value, _| async move { Ok(input) });
    let start = OpenOptions::new(scripted(steps).tool(echo).callbacks(Asking)).subscribe(None);
    let session = manager.create_with_id(&id(name), start).await.unwrap().session;
    session.prompt("Q").await.unwrap();
    while session.status().await.unwrap() != Status::Paused {
        settle().await;
    }
    session
}

async fn stored_nodes(store: &MoodyStore, name: &str) -> usize {
    store.beneath().load(&id(name)).await.unwrap().nodes.len()
}

#[tokio::test(start_paused = true)]
async fn close_shutdown_or_drop_while_paused_executed_steps_are_stored() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let closed = paused_after_a_step(&manager, "closed").await;
    in_time(manager.close(closed.id())).await.unwrap();
    assert_eq!(stored_nodes(&store, "closed").await, 5);

    drop(paused_after_a_step(&manager, "shut").await);
    in_time(manager.shutdown(secs(5))).await.unwrap();
    assert_eq!(stored_nodes(&store, "shut").await, 5);

    let manager = store.manager().build();
    drop(paused_after_a_step(&manager, "dropped").await);
    drop(manager);
    settle().await;
    assert_eq!(stored_nodes(&store, "dropped").await, 5);
    assert_eq!(tasks(), 0);
}

#[tokio::test(start_paused = true)]
async fn close_discarding_while_paused_stores_none_of_the_turn() {
    let store = MoodyStore::new();
    let manager = store.manager().build();
    let session = paused_after_a_step(&manager, "talk").await;
    in_time(manager.close_discarding(session.id())).await.unwrap();
    assert_eq!(stored_nodes(&store, "talk").await, 0);
    assert!(manager.get(session.id()).is_none());
    manager.close_discarding(session.id()).await.unwrap();
}

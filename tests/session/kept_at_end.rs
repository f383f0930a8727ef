//! A turn that is in flight when its session ends. Its completed steps are stored, unless the caller uses
//! `stop_discarding`.

use std::sync::Arc;

use omni_agent::{
    agent::ToolDecision,
    session::Session,
    store::{ConversationId, MemoryStore, Store},
    testing::{Gate, Step},
    tree::NodeId,
};
use serde_json::json;

use crate::{
    support::secs,
    watch::{Hooks, Watched, answered, held, in_time, reached, scripted},
};

/// Returns a session that has run one tool and is paused before the next tool.
async fn paused_after_a_step(store: &MemoryStore) -> Watched {
    let steps = [Step::tool_use("t1", "echo", json!({})), Step::tool_use("t2", "write", json!({}))];
    let hooks = Hooks::new().on_tool_use(|tool_use| match tool_use.name.as_str() {
        "write" => ToolDecision::Pause(json!("may I?")),
        _ => ToolDecision::Execute,
    });
    let store: Arc<dyn Store> = Arc::new(store.clone());
    let mut session = Watched::start(Session::builder(store).agent(scripted(steps).callbacks(hooks))).await;
    in_time(session.session.prompt("Q")).await.unwrap();
    session.until("status(paused)").await;
    session
}

async fn stored(store: &MemoryStore, id: &ConversationId) -> usize {
    if store.summary(id).await.is_ok() { store.load(id).await.unwrap().nodes.len() } else { 0 }
}

#[tokio::test(start_paused = true)]
async fn stop_while_paused_executed_steps_are_stored() {
    let store = MemoryStore::new();
    let mut session = paused_after_a_step(&store).await;
    in_time(session.session.stop(secs(5))).await.unwrap();
    session.until("turn(stop)").await;
    assert_eq!(session.until("tree").await, ["tree"]);
    assert_eq!(stored(&store, session.session.id()).await, 5);
}

#[tokio::test(start_paused = true)]
async fn last_handle_dropped_while_paused_executed_steps_are_stored() {
    let store = MemoryStore::new();
    let Watched { session, mut events, .. } = paused_after_a_step(&store).await;
    let id = session.id().clone();
    drop(session);
    while in_time(events.next()).await.is_some() {}
    assert_eq!(stored(&store, &id).await, 5);
}

#[tokio::test(start_paused = true)]
async fn stop_discarding_while_paused_stores_none_of_the_turn() {
    let store = MemoryStore::new();
    let session = paused_after_a_step(&store).await;
    in_time(session.session.stop_discarding(secs(5))).await.unwrap();
    assert_eq!(stored(&store, session.session.id()).await, 0);
}

#[tokio::test(start_paused = true)]
async fn stop_discarding_while_busy_rolls_a_branch_back() {
    let gate = Gate::new();
    let mut session = Watched::scripted([Step::text("A1"), held(&gate)]).await;
    session.ask("Q1").await;
    let before = session.view.tree.clone();
    answered(session.session.again(NodeId::new(1).unwrap()).start()).await.unwrap();
    reached(&gate).await;
    answered(session.session.stop_discarding(secs(1))).await.unwrap();
    session.until("cancelled").await;
    assert_eq!(session.until("state").await, ["tree", "state"]);
    assert_eq!(session.view.tree, before);
}

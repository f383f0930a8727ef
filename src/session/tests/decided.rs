//! A conversation with decisions and with an unusual end, for the tests of each view.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    agent::Agent,
    message::StopReason,
    session::Session,
    store::{MemoryStore, Store, export_json},
    testing::{ScriptedProvider, Step},
    tool::{Decision, Schema, Tool as _, ToolContext, ToolError, declared_tool_with_schema, tool_fn},
};

/// Returns a conversation in which the model has asked to pay 100 EUR. Ann has let 20 EUR be paid, and Ben has rejected
/// a refund. The tool `fail` has failed. The answer ends with this reason.
pub(crate) async fn decided(store: &MemoryStore, reason: StopReason) -> Session {
    let provider = ScriptedProvider::new([
        Step::new()
            .then_tool_use("p", "pay", json!({ "eur": 100 }))
            .then_tool_use("r", "refund", json!({}))
            .then_tool_use("f", "fail", json!({}))
            .stop_with(StopReason::ToolUse),
        Step::new().then_text(["Paid."]).stop_with(reason),
    ]);
    let echo = |name| {
        tool_fn(name, "Pays.", |input: Value, _: ToolContext| async move { Ok(format!("paid {input}")) })
    };
    let fail = tool_fn("fail", "Fails.", |_: Value, _: ToolContext| async move {
        Err::<String, _>(ToolError::new("broken"))
    });
    let agent = Agent::builder().model(provider.model()).tool(echo("pay").needs_approval());
    let agent = agent.tool(echo("refund").needs_approval()).tool(fail);
    let session = Session::builder(store.clone()).agent(agent).create().await.unwrap();
    session.prompt("Pay 100 EUR.").await.unwrap();
    while session.snapshot().await.unwrap().agent.pauses.len() < 2 {
        tokio::task::yield_now().await;
    }
    session.resume_as("p", Decision::ExecuteWith(json!({ "eur": 20 })), "ann").await.unwrap();
    session.resume_as("r", Decision::reject("No."), "ben").await.unwrap();
    session.wait_until_idle().await.unwrap();
    session
}

/// Returns a conversation whose turn ended with an open use of a declared tool. In this turn, Ben has rejected a refund.
pub(crate) async fn left_open(store: &MemoryStore) -> Session {
    let provider = ScriptedProvider::new([Step::new()
        .then_tool_use("r", "refund", json!({}))
        .then_tool_use("s", "show", json!({}))
        .stop_with(StopReason::ToolUse)]);
    let refund = tool_fn("refund", "Pays.", |_: Value, _: ToolContext| async move { Ok("paid") });
    let show = declared_tool_with_schema("show", "Shows.", Schema::new(json!({ "type": "object" })).unwrap());
    let agent = Agent::builder().model(provider.model()).tool(refund.needs_approval()).tool(show);
    let session = Session::builder(store.clone()).agent(agent).create().await.unwrap();
    session.prompt("Refund it.").await.unwrap();
    while session.snapshot().await.unwrap().agent.pauses.is_empty() {
        tokio::task::yield_now().await;
    }
    session.resume_as("r", Decision::reject("No."), "ben").await.unwrap();
    session.wait_until_idle().await.unwrap();
    session
}

#[tokio::test]
async fn snapshot_tree_and_export_state_decisions_and_the_end() {
    let store = MemoryStore::new();
    let session = decided(&store, StopReason::Length).await;
    let live = serde_json::to_value(&session.snapshot().await.unwrap().tree).unwrap();
    let id = session.id().clone();
    session.stop(Duration::from_secs(5)).await.unwrap();
    let exported: Value = serde_json::from_str(&export_json(&store, &id).await.unwrap()).unwrap();
    let loaded = json!({ "nodes": store.load(&id).await.unwrap().nodes });
    for nodes in [&live["nodes"], &exported["conversation"]["nodes"], &loaded["nodes"]] {
        let given = |place: usize| &nodes[2]["message"]["content"][place]["decision"];
        assert_eq!((&given(0)["kind"], &given(0)["by"]), (&json!("execute_with"), &json!("ann")), "{nodes}");
        assert_eq!(given(0)["input"], json!({ "eur": 20 }));
        assert_eq!((&given(1)["kind"], &given(1)["by"]), (&json!("reject"), &json!("ben")));
        assert_eq!(given(2), &Value::Null);
        assert_eq!(nodes[3]["message"]["ended"], "length");
        assert_eq!(nodes[2]["message"].get("ended"), None);
    }
}

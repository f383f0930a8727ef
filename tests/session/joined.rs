//! Prompts that join the turn in flight, in the tree and in the store.

use omni_agent::{
    agent::Agent,
    run::{Next, Prompt},
    session::Session,
    store::MemoryStore,
    testing::{Gate, ScriptedProvider, Step},
    tool::tool_fn,
    tree::NodeId,
};
use serde_json::{Value, json};

use crate::watch::{Watched, answered, on, reached};

fn agent(provider: &ScriptedProvider, gate: &Gate) -> omni_agent::agent::AgentBuilder {
    let gate = gate.clone();
    let slow = tool_fn("slow", "Waits.", move |_: Value, _| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok("done")
        }
    });
    Agent::builder().model(provider.model()).tool(slow)
}

/// Runs a turn with a tool. While the tool runs, a second prompt joins the turn.
async fn joined(rest: &[&str]) -> Watched {
    let gate = Gate::new();
    let steps = std::iter::once(Step::tool_use("t", "slow", json!({})));
    let provider = ScriptedProvider::new(steps.chain(rest.iter().map(|text| Step::text(*text))));
    let mut session = Watched::start(on(agent(&provider, &gate))).await;
    answered(session.session.prompt("Go")).await.unwrap();
    reached(&gate).await;
    answered(session.session.prompt(Prompt::new("Now").at(Next::Step))).await.unwrap();
    gate.open();
    session.rest().await;
    session
}

fn node(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

#[tokio::test(start_paused = true)]
async fn joined_prompt_is_a_node_below_the_tool_results() {
    let session = joined(&["One"]).await;
    assert_eq!(
        session.drawn(),
        "\
* 1 user: Go
* 2 assistant: [uses slow]
* 3 user: [result]
* 4 user: Now
> 5 assistant: One"
    );
}

#[tokio::test(start_paused = true)]
async fn regenerate_and_edit_of_a_joined_prompt_branch_below_the_tool_results() {
    let mut session = joined(&["One", "Two", "Three"]).await;
    answered(session.session.again(node(4)).start()).await.unwrap();
    session.rest().await;
    assert_eq!(
        session.path(),
        ["user: Go", "assistant: use t", "user: result t", "user: Now", "assistant: Two"]
    );
    answered(session.session.run("Other").instead_of(node(4)).start()).await.unwrap();
    session.rest().await;
    assert_eq!(
        session.path(),
        ["user: Go", "assistant: use t", "user: result t", "user: Other", "assistant: Three"]
    );
    session.check().await;
}

#[tokio::test(start_paused = true)]
async fn joined_prompt_is_stored_and_opened_again() {
    let gate = Gate::new();
    let steps = [Step::tool_use("t", "slow", json!({})), Step::text("One"), Step::text("Two")];
    let provider = ScriptedProvider::new(steps);
    let store = std::sync::Arc::new(MemoryStore::new());
    let session = Session::builder(std::sync::Arc::clone(&store))
        .agent(agent(&provider, &gate))
        .create()
        .await
        .unwrap();
    session.prompt("Go").await.unwrap();
    reached(&gate).await;
    session.prompt(Prompt::new("Now").at(Next::Step)).await.unwrap();
    gate.open();
    session.wait_until_idle().await.unwrap();
    session.stop(std::time::Duration::from_secs(5)).await.unwrap();

    let opened =
        Session::builder(store).agent(agent(&provider, &gate)).open(session.id().clone()).await.unwrap();
    assert_eq!(opened.tree().await.unwrap().len(), 5);
    opened.ask("Again").await.unwrap();
    let tree = opened.tree().await.unwrap();
    assert_eq!(tree.len(), 7);
    tree.history().check().unwrap();
}

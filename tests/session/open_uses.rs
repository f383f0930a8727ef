//! Turns that stopped for a tool without a handler, and turns that began with tool results.

use omni_agent::{
    agent::{AgentBuilder, ToolDecision},
    message::{Content, ToolResult, ToolUse},
    provider::Request,
    session::Session,
    testing::{ScriptedProvider, Step},
    tool::SchemaTool,
};
use serde_json::json;

use crate::{
    support::{ScriptedStore, assert_agree, created, id, secs},
    watch::{Hooks, echo},
};

/// A tool that the application answers.
fn declared(name: &str) -> SchemaTool {
    SchemaTool::of::<serde_json::Value>(name, "The application answers.")
}

/// An agent that declares `ask_user` and rejects each use of `echo`.
fn agent(provider: &ScriptedProvider) -> AgentBuilder {
    let hooks = Hooks::new().on_tool_use(|tool_use| match tool_use.name.as_str() {
        "echo" => ToolDecision::Reject("No.".into()),
        _ => ToolDecision::Execute,
    });
    AgentBuilder::default().model(provider.model()).tool(declared("ask_user")).tool(echo()).callbacks(hooks)
}

/// An answer that uses tools, each given by id and name.
fn uses(uses: &[(&str, &str)]) -> Step {
    uses.iter().fold(Step::new(), |step, (id, name)| step.then_tool_use(id, name, json!({}))).stop()
}

fn answer(id: &str, text: &str) -> Content {
    ToolResult::ok(&ToolUse::new(id, "ask_user", json!({})), text).into()
}

/// The tool results in the last message of a request.
fn results(request: &Request) -> Vec<String> {
    let last = request.history.last().unwrap();
    last.tool_results().map(|result| format!("{} {}", result.tool_use_id, result.text())).collect()
}

#[tokio::test(start_paused = true)]
async fn load_after_a_declared_tool_sends_the_results_decided_before() {
    for prompt in [vec![answer("a", "Yes.")], vec!["Never mind.".into()]] {
        let store = ScriptedStore::new([]);
        let provider =
            ScriptedProvider::new([uses(&[("a", "ask_user"), ("b", "echo")]), Step::text("Done.")]);
        let session = created(&store, "talk", agent(&provider)).await;
        session.ask("Go").await.unwrap();
        assert_agree(&session, &store).await;
        session.stop(secs(1)).await.unwrap();

        let builder = Session::builder(store.as_dyn()).agent(agent(&provider));
        let session = builder.load(id("talk")).await.unwrap();
        session.ask(prompt).await.unwrap();
        assert_eq!(results(&provider.last_request().unwrap())[1], "b No.");
        assert_agree(&session, &store).await;
    }
}

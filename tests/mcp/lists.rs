//! Lists of tools: names, refused tools, selection and changes.

use omni_agent::{
    agent::Agent,
    mcp::McpError,
    session::Session,
    store::MemoryStore,
    testing::{ScriptedProvider, Step},
    tool::Tool,
};
use serde_json::json;

use crate::support::{Hostile, LIMIT, set, soon, until};

#[tokio::test]
async fn tools_unusable_tools_are_skipped_and_the_others_work() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("odd_list").connect()).await.unwrap();
    let listed = soon(client.tools()).await.unwrap();
    let skipped: Vec<_> = listed.skipped.iter().map(|skipped| &*skipped.name).collect();
    assert_eq!(skipped, ["bad schema", "no schema", "not object"], "{:?}", listed.skipped);
    let names: Vec<_> = listed.tools.iter().map(|tool| &**tool).map(Tool::name).collect();
    assert!(names.is_sorted() && names.contains(&"hostile__echo"));
    assert!(names.iter().all(|name| name.len() <= 128));
    assert_eq!(names.iter().filter(|name| name.starts_with("hostile__a_b_")).count(), 2);
    let echo = listed.tools.iter().find(|tool| tool.name() == "hostile__echo").unwrap();
    assert!(echo.description().len() < 5000);
}

#[tokio::test]
async fn tools_selection_allows_renames_and_asks_for_approval() {
    let Some(hostile) = Hostile::new() else { return };
    let builder = hostile.like("").allow(["echo", "add"]).rename("echo", "say").approve(["add"]);
    let client = soon(builder.connect()).await.unwrap();
    let tools = set(&client).await;
    let found: Vec<_> = tools.iter().map(|tool| (tool.name(), tool.requires_approval())).collect();
    assert_eq!(found, [("hostile__add", true), ("say", false)]);
}

#[tokio::test]
async fn tools_endless_list_is_refused() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("endless_list").connect()).await.unwrap();
    let error = soon(client.tools()).await.unwrap_err();
    assert!(matches!(&error, McpError::Refused { reason, .. } if reason.contains("100 pages")), "{error}");
}

#[tokio::test]
async fn follow_changed_list_is_adopted_after_the_run() {
    let Some(hostile) = Hostile::new() else { return };
    let client = soon(hostile.like("").allow(["echo", "add", "added"]).connect()).await.unwrap();
    let model = ScriptedProvider::new([
        Step::tool_use("call-1", "hostile__add", json!({})),
        Step::tool_use("call-2", "hostile__added", json!({})),
        Step::text("done"),
    ])
    .model();
    let agent = Agent::builder().model(model).tools(set(&client).await);
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await.unwrap();
    client.follow(&session);
    let response = soon(session.ask("Change")).await.unwrap();
    // During the run, the new tool does not exist.
    let results = format!("{:?}", response.messages);
    assert!(results.contains("There is no tool"), "{results}");
    let adopted = async {
        loop {
            let state = session.state().await.unwrap();
            let names: Vec<_> = state.config().tools.iter().map(|tool| tool.name().to_owned()).collect();
            if names == ["hostile__added", "hostile__echo"] {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon(adopted).await;
    soon(session.stop(LIMIT)).await.unwrap();
    drop((session, client));
    until("the server has ended", || hostile.running() == 0).await;
}

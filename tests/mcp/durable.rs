//! Calls that run when their process ends, in turns that another process continues.

use std::time::Duration;

use omni_agent::{
    Agent,
    agent::Durable,
    manager::{Manager, OpenOptions, Sweep, Titles},
    mcp::McpClient,
    store::{ConversationId, MemoryStore, Owner},
    testing::{ScriptedProvider, Step},
};
use serde_json::json;

use crate::{
    lives::in_a_life,
    support::{Hostile, set, soon, until},
};

/// Returns a manager whose owner has the same name in each life, so that no lease has to expire.
fn manager(store: &MemoryStore) -> Manager {
    let manager = Manager::builder(store.clone()).owner(Owner::new("worker"));
    manager.sweep(Sweep::off()).titles(Titles::Off).build()
}

/// Returns an agent that calls this tool once, and then answers with its result.
async fn options(client: &McpClient, tool: &str) -> OpenOptions {
    let name = format!("hostile__{tool}");
    let provider = ScriptedProvider::from_fn(move |request| {
        let last = request.history.last();
        match last.and_then(|message| message.tool_results().next()) {
            Some(result) => Step::text(result.text()),
            None => Step::tool_use("call-1", &name, json!({})),
        }
    });
    let agent = Agent::builder().model(provider.model()).tools(set(client).await);
    OpenOptions::new(agent).durable(Durable::InFlight).subscribe(None)
}

#[tokio::test(flavor = "multi_thread")]
async fn call_of_a_process_that_died_is_repeated_only_if_the_hint_of_its_tool_is_trusted() {
    const UNKNOWN: &str = "Interrupted by a restart. It is not known whether the tool took effect.";
    for (tool, is_trusted, calls, answer) in [
        ("read", true, 2, "read is done"),
        ("put", true, 2, "put is done"),
        ("send", true, 1, UNKNOWN),
        ("read", false, 1, UNKNOWN),
        ("put", false, 1, UNKNOWN),
    ] {
        let Some(hostile) = Hostile::new() else { return };
        let connect = async || {
            let client = hostile.like("hints");
            let client = if is_trusted { client.trust_hints() } else { client };
            soon(client.connect()).await.unwrap()
        };
        let (store, id) = (MemoryStore::new(), ConversationId::new("a").unwrap());
        in_a_life(async {
            let (manager, client) = (manager(&store), connect().await);
            let opened = manager.create_with_id(&id, options(&client, tool).await).await.unwrap();
            opened.session.prompt("Begin.").await.unwrap();
            until("the tool runs", || hostile.count("called") == 1).await;
            // The process dies with its manager.
            std::mem::forget(manager);
        });

        let (manager, client) = (manager(&store), connect().await);
        let session = manager.open(&id, options(&client, tool).await).await.unwrap().session;
        soon(session.wait_until_idle()).await.unwrap();
        assert_eq!(session.tree().await.unwrap().history().last().unwrap().text(), answer, "{tool}");
        assert_eq!(hostile.count("called"), calls, "{tool}");
        manager.shutdown(Duration::from_secs(10)).await.unwrap();
    }
}

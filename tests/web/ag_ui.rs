//! The clients of AG-UI against the routes: the real `HttpAgent` of both versions, in Node.

use std::{path::Path, process::Stdio, time::Duration};

use axum::{
    http::{StatusCode, request::Parts},
    routing::post,
};
use omni_agent::{
    Agent,
    access::{Permissions, Principal, StartRequest},
    agent::AgentBuilder,
    manager::{Manager, OpenOptions},
    message::Usage,
    provider::{ProviderError, ProviderErrorKind, Request},
    store::{ConversationId, Labels, MemoryStore},
    testing::{ScriptedProvider, Step},
    tool::{Schema, ToolContext, tool_fn_with_schema},
    web::{Access, Challenge, Web},
};
use serde_json::{Value, json};
use tokio::{process::Command, time::timeout};

use crate::{
    js::{SCRIPTS, node, packages},
    nested::{Nested, calls},
    ports,
};

/// The header `x-user` names the user, who is `me` by default.
struct Users;

impl Permissions for Users {}

#[omni_agent::async_trait]
impl Access for Users {
    async fn principal(&self, request: &Parts) -> Result<Principal, Challenge> {
        let user = request.headers.get("x-user").and_then(|user| user.to_str().ok()).unwrap_or("me");
        let labels = Labels::new([("user", user)]).map_err(|_| Challenge::bearer())?;
        Principal::new(user, labels).map_err(|_| Challenge::bearer())
    }
}

/// Returns the answer to the last prompt, which the text of the prompt chooses.
fn answer(request: &Request) -> Step {
    let last = request.history.iter().last().unwrap();
    if last.tool_results().next().is_some() {
        return Step::text("Done.");
    }
    let count = request.history.iter().count();
    match last.text().as_str() {
        "reason" => Step::new().then_thinking("Let me think.", "signature").then_text(["I see."]).stop(),
        "tools" => {
            Step::new().then_text(["One moment."]).then_tool_use("t1", "add", json!({ "n": 1 })).stop()
        }
        "approve" => Step::new()
            .then_tool_use("a1", "ask", json!({ "n": 1 }))
            .then_tool_use("a2", "ask", json!({ "n": 2 }))
            .then_tool_use("a3", "ask", json!({ "n": 3 }))
            .stop(),
        "show" => Step::tool_use("s1", "show", json!({ "page": 1 })),
        "fail" => Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "The request is bad.")),
        "slow" => Step::new().then_text(["Slowly"]).hang(),
        "count" => Step::text(format!("{count} messages")),
        text if text.starts_with("clean up ") => calls(&text["clean up ".len()..]),
        text => {
            let usage = Usage::default().with_input(10).with_output(5);
            Step::new().then_text(["Hello, ", text, "."]).usage(usage).stop()
        }
    }
}

fn agent(nested: &Nested) -> AgentBuilder {
    let any = || Schema::new(json!({ "type": "object" })).unwrap();
    let add = tool_fn_with_schema("add", "Adds.", any(), |input: Value, context: ToolContext| async move {
        context.progress(json!({ "half": true })).await;
        Ok(input.to_string())
    });
    let ask = tool_fn_with_schema("ask", "Asks.", any(), |input: Value, _: ToolContext| async move {
        Ok(format!("asked {input}"))
    });
    let model = ScriptedProvider::from_fn(answer).model();
    Agent::builder().model(model).tool(add).tool(ask).tool(nested.team()).needs_approval("ask")
}

/// Starts a server. Returns its address.
async fn serve() -> String {
    let nested = Nested::default();
    let later = nested.later.clone();
    let agents =
        move |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(agent(&nested)));
    let manager = Manager::builder(MemoryStore::new()).build();
    let web = Web::builder(manager.clone(), Users, agents.clone())
        .client_ids(|principal, id| ConversationId::new(format!("{}.{id}", principal.name())).ok())
        .client_tools()
        .build();
    let stored = Web::builder(manager.clone(), Users, agents.clone()).build();
    let left = Web::builder(manager, Users, agents)
        .client_ids(|principal, id| ConversationId::new(format!("{}.{id}", principal.name())).ok())
        .interrupt_when_left(Duration::from_mins(10))
        .build();
    let app = axum::Router::new()
        .nest("/ag-ui", web.ag_ui())
        .nest("/stored", stored.ag_ui())
        .nest("/agent", stored.router());
    let open = move || {
        later.open();
        async { StatusCode::NO_CONTENT }
    };
    let app = app.nest("/left", left.ag_ui()).route("/gate", post(open));
    let listener = ports::listen(ports::AG_UI).await;
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    format!("http://{address}")
}

#[tokio::test]
async fn http_agents_of_both_versions_run_all_scenarios() {
    let (Some(program), Some(folder)) = (node(), packages("ag_ui")) else { return };
    // The script imports the packages from the folder in which it lies.
    std::fs::copy(Path::new(SCRIPTS).join("ag_ui/test.mjs"), folder.join("test.mjs")).unwrap();
    for client in ["client-0", "client-1"] {
        let mut node = Command::new(&program);
        // In Node 22, this is the limit for the whole file.
        node.args(["--test", "--test-timeout=300000", "test.mjs"])
            .current_dir(&folder)
            .env("OMNI_AG_UI_URL", serve().await)
            .env("OMNI_AG_UI_CLIENT", client)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output =
            timeout(Duration::from_mins(12), node.output()).await.expect("Node ends in time").unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{client}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

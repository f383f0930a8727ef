//! The routes of the AI SDK, with the `Chat` class of both versions in Node.

use std::{path::Path, time::Duration};

use axum::{Router, http::StatusCode, routing::post};
use omni_agent::{
    access::{Permissions, Principal, StartRequest},
    agent::Agent,
    async_trait,
    manager::{Manager, OpenOptions, Titles},
    message::Role,
    provider::{ProviderError, ProviderErrorKind, Request, custom::Part},
    schemars::{self, JsonSchema},
    store::{ConversationId, Labels, MemoryStore},
    testing::{Gate, ScriptedProvider, Step},
    tool::{Tool, ToolContext, declared_tool, tool_fn},
    web::{Access, Challenge, Web},
};
use serde::Deserialize;
use serde_json::json;
use tokio::time::timeout;

use crate::{
    js::{SCRIPTS, node, packages},
    nested::{Nested, calls},
    ports,
};

struct OneUser;

impl Permissions for OneUser {}

#[async_trait]
impl Access for OneUser {
    async fn principal(&self, _: &axum::http::request::Parts) -> Result<Principal, Challenge> {
        Ok(Principal::new("ann", Labels::new([("user", "ann")]).unwrap()).unwrap())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Zone {
    zone: String,
}

/// Returns the answer to the last prompt, which names a scenario of `js/ai_sdk/test.mjs`.
fn answer(request: &Request, gate: &Gate, answers: &mut u32) -> Step {
    *answers += 1;
    let last = request.history.last().expect("a prompt");
    if last.tool_results().next().is_some() {
        return Step::text("Done.");
    }
    assert_eq!(last.role, Role::User);
    let zone = json!({ "zone": "UTC" });
    match last.text().as_str() {
        "hello" => Step::new().then_text(["Hello", ", ", "world."]).stop(),
        "think" => Step::new().then_thinking("Hmm.", "signed").then_text(["Yes."]).stop(),
        "clock" => Step::tool_use("c1", "clock", zone),
        "locate" => Step::tool_use("l1", "locate", zone),
        "delete" => {
            let step = Step::new().then_tool_use("d1", "delete", zone.clone());
            step.then_tool_use("c1", "clock", zone.clone()).then_tool_use("d2", "delete", zone).stop()
        }
        "fail once" => Step::error(ProviderError::new(ProviderErrorKind::Auth, "no key")),
        "slow" => Step::new().then_text(["One "]).gate(gate).more(Part::Text("two.".to_owned())).stop(),
        "count" => Step::text(format!("Answer {answers}.")),
        other => calls(other.strip_prefix("clean up ").unwrap_or_else(|| panic!("no answer to `{other}`"))),
    }
}

pub(crate) fn app(gate: &Gate) -> Router {
    let (for_answers, mut answers, mut has_failed) = (gate.clone(), 0, false);
    let provider = ScriptedProvider::from_fn(move |request| {
        let fails = request.history.last().is_some_and(|last| last.text() == "fail once");
        if fails && std::mem::replace(&mut has_failed, fails) {
            has_failed = false;
            return Step::text("Repaired.");
        }
        answer(request, &for_answers, &mut answers)
    });
    let (model, nested) = (provider.model(), Nested { later: gate.clone(), ..Nested::default() });
    let agents = move |_: &Principal, _: &StartRequest| {
        let clock = tool_fn("clock", "Tells the time.", |input: Zone, context: ToolContext| async move {
            context.progress(json!({ "zone": input.zone })).await;
            Ok(json!({ "time": "12:00" }).to_string())
        });
        let delete = tool_fn("delete", "Deletes a file.", |input: Zone, _| async move {
            Ok(format!("deleted {}", input.zone))
        });
        let agent = Agent::builder().model(model.clone()).tool(clock).tool(delete.needs_approval());
        let agent = agent.tool(declared_tool::<Zone>("locate", "Finds the user.")).tool(nested.team());
        Ok::<_, omni_agent::Error>(OpenOptions::new(agent))
    };
    let manager = Manager::builder(MemoryStore::new()).titles(Titles::Off).build();
    let web = Web::builder(manager.clone(), OneUser, agents.clone()).build();
    let left_for = |grace| {
        Web::builder(manager.clone(), OneUser, agents.clone()).interrupt_when_left(grace).build().ai_sdk()
    };
    let (left_long, left_briefly) = (left_for(Duration::from_mins(10)), left_for(Duration::from_millis(100)));
    // A front end that does not know the native routes chooses the ids of its chats.
    let own = Web::builder(manager, OneUser, agents)
        .client_ids(|principal, id| ConversationId::new(format!("{}.{id}", principal.name())).ok())
        .build();
    let gate = gate.clone();
    let open = move || {
        gate.open();
        async { StatusCode::NO_CONTENT }
    };
    Router::new()
        .nest("/agent", web.router())
        .nest("/api", web.ai_sdk())
        .nest("/own", own.ai_sdk())
        .nest("/left-long", left_long)
        .nest("/left-briefly", left_briefly)
        .route("/gate", post(open))
}

async fn drive(version: &'static str) {
    let (Some(node), Some(folder)) = (node(), packages(&format!("ai_sdk/{version}"))) else { return };
    let listener = ports::listen(ports::AI_SDK).await;
    let address = listener.local_addr().unwrap();
    let app = app(&Gate::new());
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let mut node = tokio::process::Command::new(node);
    node.arg(Path::new(SCRIPTS).join("ai_sdk/test.mjs"));
    node.env("OMNI_SERVER", format!("http://{address}"));
    node.env("OMNI_MODULES", &folder).env("OMNI_LEVEL", version).kill_on_drop(true);
    // The script has a shorter time limit.
    let output = timeout(Duration::from_mins(12), node.output()).await.expect("Node ends in time").unwrap();
    server.abort();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_of_version_six_works_with_the_routes() {
    drive("6").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn chat_of_version_seven_works_with_the_routes() {
    drive("7").await;
}

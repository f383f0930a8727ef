//! The served manager. The prompts determine what its model does.

use std::time::Duration;

use omni_agent::{
    access::{Principal, StartRequest},
    agent::{Agent, AgentBuilder},
    manager::{Manager, OpenOptions, Titles},
    message::{Role, ToolResult},
    provider::Request,
    serve::mcp::{McpServer, ServerInfo},
    session::Session,
    store::{ConversationId, MemoryStore},
    testing::{ScriptedProvider, Step},
    tool::{Tool, ToolContext, tool_fn},
};
use serde_json::{Value, json};

use crate::support::soon;

/// Starts the served process without the output of the test harness: the original standard output becomes the standard
/// error.
const SCRIPT: &str = "exec 2>&1 >/dev/null; exec \"$0\" \"$@\"";

/// The variable that makes this process the served process.
const SERVED: &str = "OMNI_MCP_SERVED";

/// Returns the program that serves a manager over its standard input and output, its arguments, and its variable. It is
/// a second instance of this test binary.
pub fn program() -> (&'static str, Vec<String>, (&'static str, &'static str)) {
    let binary = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    let test = ["--exact", "serving::host::manager_is_served", "--nocapture"].map(str::to_owned);
    let arguments = ["-c".to_owned(), SCRIPT.to_owned(), binary].into_iter().chain(test);
    ("sh", arguments.collect(), (SERVED, "1"))
}

#[tokio::test]
async fn manager_is_served() {
    if std::env::var(SERVED).is_err() {
        return;
    }
    // The standard output of this process is that of the harness, and the standard error is the original output.
    rustix::stdio::dup2_stdout(std::io::stderr()).unwrap();
    let nowhere = std::fs::File::options().write(true).open("/dev/null").unwrap();
    rustix::stdio::dup2_stderr(nowhere).unwrap();
    let manager = manager();
    let served = served(&manager).stdio().await;
    manager.shutdown(Duration::from_secs(10)).await.unwrap();
    // The test harness must not write anything.
    std::process::exit(i32::from(served.is_err()));
}

pub fn manager() -> Manager {
    Manager::builder(MemoryStore::new()).titles(Titles::Off).build()
}

/// Returns the server that the tests use.
pub fn served(manager: &Manager) -> McpServer {
    let agents = |_: &Principal, _: &StartRequest| Ok::<_, omni_agent::Error>(OpenOptions::new(agent()));
    McpServer::new(manager.clone(), agents)
        .info(ServerInfo::new("served", "1.0.0").with_instructions("Ask it."))
}

pub fn agent() -> AgentBuilder {
    let look =
        tool_fn("look", "Looks.", async |_: Value, _: ToolContext| Ok::<_, omni_agent::ToolError>("a b"));
    let delete = tool_fn("delete", "Deletes.", async |_: Value, _: ToolContext| {
        Ok::<_, omni_agent::ToolError>("gone")
    });
    let form = tool_fn("form", "Asks.", async |_: Value, context: ToolContext| {
        let properties = json!({ "name": { "type": "string" } });
        let schema = json!({ "type": "object", "properties": properties, "required": ["name"] });
        let question = json!({ "mcp": "form", "server": "it", "message": "Who?", "schema": schema });
        Ok::<_, omni_agent::ToolError>(format!("{:?}", context.ask(question).await))
    });
    let confirm = tool_fn("confirm", "Asks.", async |_: Value, context: ToolContext| {
        let question = json!({ "message": "Really?" });
        Ok::<_, omni_agent::ToolError>(format!("{:?}", context.ask(question).await))
    });
    Agent::builder()
        .model(ScriptedProvider::from_fn(answer).model())
        .tool(confirm)
        .tool(look)
        .tool(delete.needs_approval())
        .tool(form)
}

fn answer(request: &Request) -> Step {
    let messages: Vec<_> = request.history.iter().collect();
    let asked = messages.iter().rposition(|message| message.role == Role::User && !message.text().is_empty());
    let asked = asked.unwrap_or_default();
    let said = messages[asked].text();
    let results: Vec<_> = messages[asked..]
        .iter()
        .flat_map(|message| message.tool_results().cloned().collect::<Vec<_>>())
        .collect();
    let begun = !results.is_empty();
    match said.as_str() {
        "Look" | "Look, then go on for ever" | "Look, then fail" if !begun => {
            Step::tool_use("call-1", "look", json!({}))
        }
        "Look" => Step::text("Seen."),
        "Go on for ever" | "Look, then go on for ever" => Step::new().then_text(["And on"]).hang(),
        "Delete" | "Delete, then fail" if !begun => {
            Step::tool_use("call-1", "delete", json!({ "file": "x" }))
        }
        "Delete both" if !begun => Step::new()
            .then_tool_use("call-1", "delete", json!({ "file": "x" }))
            .then_tool_use("call-2", "delete", json!({ "file": "y" }))
            .stop(),
        "Delete much" if !begun => Step::tool_use("call-1", "delete", json!({ "file": "x".repeat(5000) })),
        "Ask" if !begun => Step::tool_use("call-1", "form", json!({})),
        "Confirm" if !begun => Step::tool_use("call-1", "confirm", json!({})),
        "Delete" | "Delete both" | "Delete much" | "Ask" | "Confirm" => {
            Step::text(results.iter().map(ToolResult::text).collect::<Vec<_>>().join(", "))
        }
        "Look, then fail" | "Delete, then fail" => {
            Step::new().then_text(["Half"]).fail(omni_agent::provider::ProviderError::new(
                omni_agent::provider::ProviderErrorKind::Auth,
                "the model is down",
            ))
        }
        "Count" => Step::text(messages.len().to_string()),
        "Fail" => Step::error(omni_agent::provider::ProviderError::new(
            omni_agent::provider::ProviderErrorKind::InvalidRequest,
            "the model is down",
        )),
        other => Step::text(format!("You said: {other}")),
    }
}

/// Returns the session of a conversation that is open.
pub fn session(manager: &Manager, id: &str) -> Session {
    manager.get(&ConversationId::new(id).unwrap()).unwrap()
}

/// Waits until exactly one conversation is open and the snapshot of its agent meets the condition. Returns its session.
pub async fn reached(manager: &Manager, is_so: impl Fn(&omni_agent::agent::Snapshot) -> bool) -> Session {
    let reached = async {
        loop {
            if let [open] = &manager.list_open()[..]
                && let Some(session) = manager.get(&open.id)
                && is_so(&session.snapshot().await.unwrap().agent)
            {
                return session;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(reached).await
}

//! The served agent. The prompts determine what its model does. Its process is a second instance of this test binary.

#![allow(clippy::print_stderr, reason = "the clients read the standard error")]

use std::{
    env,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use omni_agent::{
    access::{Principal, StartRequest},
    agent::Agent,
    manager::{Manager, OpenOptions},
    message::{Role, ToolResult, Usage},
    provider::{ModelInfo, ProviderError, ProviderErrorKind, Registry, Request, StopReason},
    schemars,
    serve::acp::AcpAgent,
    store::{FileSystemStore, Store},
    testing::{ScriptedProvider, Step},
    tool::{Tool, ToolContext, ToolSet, tool_fn},
};
use serde::Deserialize;
use serde_json::json;

use super::durable::Actor;
use crate::{agent::FOLDER, nested::Nested};

/// Starts the served agent without the output of the test harness: the original standard output becomes the standard
/// error, and the original standard error becomes descriptor 3.
pub const SCRIPT: &str = "exec 3>&2 2>&1 >/dev/null; exec \"$0\" \"$@\"";

/// The variable that makes this process the served agent. Its value [`DURABLE`] makes the turns of the agent durable.
pub const SERVED: &str = "OMNI_ACP_SERVED";
pub const DURABLE: &str = "durable";

#[tokio::test]
async fn manager_is_served() {
    if let Ok(kind) = env::var(SERVED) {
        serve(&PathBuf::from(env::var(FOLDER).unwrap()), kind == DURABLE).await;
        // The process exits here, so that the test harness writes nothing.
        std::process::exit(0);
    }
}

async fn serve(folder: &Path, is_durable: bool) {
    let mut pids = File::options().create(true).append(true).open(folder.join("pids")).unwrap();
    pids.write_all(format!("{}\n", std::process::id()).as_bytes()).unwrap();
    // The standard output of this process is that of the harness. The script has made the original standard output the
    // standard error, because a descriptor that is a socket can't be opened by its number.
    rustix::stdio::dup2_stdout(std::io::stderr()).unwrap();
    let errors = File::options().write(true).open("/dev/fd/3");
    let nowhere = || File::options().write(true).open("/dev/null").unwrap();
    rustix::stdio::dup2_stderr(errors.unwrap_or_else(|_| nowhere())).unwrap();
    let store = if is_durable { exclusive_store(folder).await } else { store(folder).await };
    let manager = Manager::builder(store).registry(registry()).build();
    let agent = if is_durable { Actor::of(folder).served(&manager) } else { served(manager.clone()) };
    let served = agent.stdio().await;
    if let Err(error) = &served {
        eprintln!("the agent failed: {error}");
    }
    manager.shutdown(Duration::from_secs(10)).await.unwrap();
    fs::write(folder.join("ended"), format!("{served:?}")).unwrap();
}

pub async fn store(folder: &Path) -> Arc<dyn Store> {
    Arc::new(FileSystemStore::open(folder.join("conversations")).await.unwrap())
}

/// Returns a store that keeps turns in flight, and that only one process can open.
async fn exclusive_store(folder: &Path) -> Arc<dyn Store> {
    let store = FileSystemStore::builder(folder.join("conversations")).exclusive();
    Arc::new(store.open().await.unwrap())
}

/// Returns a registry with two models.
pub fn registry() -> Registry {
    Registry::empty().with(provider("small")).with(provider("big"))
}

fn provider(name: &'static str) -> ScriptedProvider {
    ScriptedProvider::from_fn(move |request| answer(name, request)).named(name)
}

/// Returns the agent that all tests serve.
pub fn served(manager: Manager) -> AcpAgent {
    AcpAgent::new(manager, |_: &Principal, request: &StartRequest| start(request))
        .models(["small:scripted", "big:scripted"])
        .name("served")
}

#[derive(Deserialize, schemars::JsonSchema)]
struct Folder {
    r#in: String,
}

pub fn start(request: &StartRequest) -> Result<OpenOptions, omni_agent::Error> {
    let folder = request.folder().unwrap();
    if folder.ends_with("forbidden") {
        return Err(omni_agent::Error::new(omni_agent::ErrorKind::Config, "this folder is forbidden"));
    }
    let list = tool_fn("list_files", "Lists files.", async |folder: Folder, context: ToolContext| {
        context.progress(json!({ "message": "half" })).await;
        Ok::<_, omni_agent::ToolError>(format!("a b in {}", folder.r#in))
    });
    let delete = tool_fn("delete_file", "Deletes files.", async |folder: Folder, _: ToolContext| {
        Ok::<_, omni_agent::ToolError>(format!("{} is gone", folder.r#in))
    });
    let ask = tool_fn("ask_first", "Asks first.", async |folder: Folder, context: ToolContext| {
        let answer = context.ask(json!({ "message": format!("Is {} right?", folder.r#in) })).await;
        Ok::<_, omni_agent::ToolError>(format!("{answer:?}"))
    });
    let fill = tool_fn("fill_in", "Asks for a name.", async |folder: Folder, context: ToolContext| {
        let schema = json!({ "type": "object", "required": [folder.r#in] });
        let answer = context.ask(json!({ "message": "Who?", "schema": schema })).await;
        Ok::<_, omni_agent::ToolError>(format!("{answer:?}"))
    });
    let tools = ToolSet::new()
        .with(ask)?
        .with(fill)?
        .with(list)?
        .with(delete.needs_approval())?
        .with(Nested::default().team())?
        .extended(request.tools().to_vec())?;
    let mut agent = Agent::builder().tools(tools).max_steps(3).max_staged(32).registry(registry());
    if request.conversation.is_none() {
        let info = ModelInfo::new("scripted").with_context_window(1000);
        agent = agent.model(provider("small").model().with_info(info));
        agent = agent.system(format!("The folder is {}.", folder.display()));
    } else {
        agent = agent.model(provider("small").model());
    }
    Ok(OpenOptions::new(agent))
}

fn answer(model: &str, request: &Request) -> Step {
    let messages: Vec<_> = request.history.iter().collect();
    let asked = messages.iter().rposition(|message| message.role == Role::User && !message.text().is_empty());
    let asked = asked.unwrap_or_default();
    let said = messages[asked].text();
    let results: Vec<_> = messages[asked..]
        .iter()
        .flat_map(|message| message.tool_results().cloned().collect::<Vec<_>>())
        .collect();
    let begun = !results.is_empty();
    let list = || Step::tool_use("call-1", "list_files", json!({ "in": "." }));
    match said.as_str() {
        "Look" | "Look, then go on for ever" if !begun => list(),
        "Look long, then fail" if !begun => {
            Step::tool_use("call-1", "list_files", json!({ "in": "x".repeat(600) }))
        }
        "Look" => {
            Step::new().then_text(["Seen."]).usage(Usage::default().with_input(90).with_output(10)).stop()
        }
        "Go on for ever" | "Look, then go on for ever" => Step::new().then_text(["And on"]).hang(),
        "Work too much" => list(),
        "Delete" if !begun => Step::tool_use("call-1", "delete_file", json!({ "in": "x" })),
        "Delete both" if !begun => Step::new()
            .then_tool_use("call-1", "delete_file", json!({ "in": "x" }))
            .then_tool_use("call-2", "delete_file", json!({ "in": "y" }))
            .stop(),
        "Delete" | "Delete both" => {
            let kept = results.iter().map(|result| if result.is_error { "Kept." } else { "Deleted." });
            Step::text(kept.collect::<Vec<_>>().join(" "))
        }
        "Clean up" if !begun => Step::tool_use("call-1", "team", json!({ "task": "x.txt" })),
        "Ask" if !begun => Step::tool_use("call-1", "ask_first", json!({ "in": "x" })),
        "Fill in" if !begun => Step::tool_use("call-1", "fill_in", json!({ "in": "name" })),
        "Use the server" if !begun => {
            let tool = request.tools.iter().find(|tool| tool.name().contains("__"));
            Step::tool_use("call-1", tool.map_or("none", |tool| tool.name()), json!({ "text": "hello" }))
        }
        "Ask" | "Fill in" | "Use the server" | "Clean up" => {
            Step::text(results.iter().map(ToolResult::text).collect::<String>())
        }
        "Think" => Step::new().then_thinking("Hm.", "").then_text(["Thought."]).stop(),
        "Count" => Step::new().then_text((0..2000).map(|number| format!("{number} "))).stop(),
        "Which word?" => {
            let words = messages
                .iter()
                .rev()
                .find_map(|message| Some(message.text().strip_prefix("The word is ")?.to_owned()));
            Step::text(words.unwrap_or_else(|| "none".to_owned()))
        }
        "Which model?" => Step::text(model),
        "Where are you?" => Step::text(request.system.as_deref().unwrap_or("nowhere")),
        "Run out" => Step::new().then_text(["Too"]).stop_with(StopReason::Length),
        "Refuse" => Step::new().then_text(["No."]).stop_with(StopReason::Refusal),
        "Fail" | "Look long, then fail" => {
            Step::error(ProviderError::new(ProviderErrorKind::InvalidRequest, "the model is down"))
        }
        other => Step::text(format!("You said: {other}")),
    }
}

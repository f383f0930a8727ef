//! An agent for editors: Zed and others start this program and use it over the Agent Client Protocol.
//!
//! ```sh
//! cargo build --example acp_agent --features acp,mcp
//! target/debug/examples/acp_agent --model anthropic:claude-sonnet-5 --store conversations
//! ```
//!
//! In Zed's settings (`settings.json`), the program is an agent server:
//!
//! ```json
//! { "agent_servers": { "Omni": { "command": "/path/to/acp_agent", "args": ["--model", "anthropic:claude-sonnet-5"] } } }
//! ```
//!
//! The agent can list and read the files of the project, and it writes a file after the editor's user has allowed it.
//! With the feature `mcp`, it also has the tools of the MCP servers in the editor's settings. The standard output
//! carries only the protocol, so messages for people go to the standard error.
//!
//! The module `support` selects the model. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "acp_agent/files.rs"]
mod files;
#[path = "support/support.rs"]
mod support;

use std::{error::Error, path::Path, process::ExitCode, sync::Arc, time::Duration};

use omni_agent::{
    access::{Principal, StartRequest},
    agent::Agent,
    manager::{Manager, OpenOptions},
    provider::{Model, Options},
    serve::acp::AcpAgent,
    store::FileSystemStore,
};
use support::{Folder, STORE, explain};

const ABOUT: &str = "An agent for editors that speak the Agent Client Protocol.";

#[tokio::main]
async fn main() -> ExitCode {
    match serve().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn serve() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model_with(ABOUT, &[STORE]).await?;
    let folder = Folder::given_or_of_the_user(picked.value(&STORE))?;
    let store = Arc::new(FileSystemStore::open(folder.path()).await?);
    let manager = Manager::builder(store).registry(support::models()).build();

    let models = [picked.model.name().to_owned(), "demo:parrot".to_owned()];
    let (model, options) = (picked.model, picked.options);
    let start = move |_: &Principal, request: &StartRequest| agent(model.clone(), options.clone(), request);
    AcpAgent::new(manager.clone(), start).name("omni-agent-example").models(models).stdio().await?;

    // The editor has closed the connection. Everything is saved before the program ends.
    manager.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

/// Builds the agent of a session.
fn agent(model: Model, options: Options, request: &StartRequest) -> Result<OpenOptions, omni_agent::Error> {
    let folder = request.folder().unwrap_or(Path::new("/"));
    let tools = files::tools(folder)?.extended(request.tools().to_vec())?;
    let agent = Agent::builder().model(model).registry(support::models()).tools(tools).max_steps(50);
    if request.conversation.is_some() {
        return Ok(OpenOptions::new(agent));
    }
    // The options and the system prompt are stored with a new conversation.
    let system = format!("You help with the project in the folder {}.", folder.display());
    Ok(OpenOptions::new(agent.options(options).system(system)))
}

//! A tool that runs only if the user allows it.

use rig::agent::{AgentHook, DispatchAction, DispatchEvent, HookContext};
use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};
use rig::{rig_tool, tool::ToolExecutionError};

#[rig_tool(description = "Deletes a file.")]
async fn delete_file(path: String) -> Result<String, ToolExecutionError> {
    Ok(format!("{path} is gone"))
}

struct Approval;

impl AgentHook for Approval {
    async fn on_dispatch(&self, _: &HookContext, event: DispatchEvent<'_>) -> DispatchAction {
        let Some(name) = event.tool_name() else { return DispatchAction::proceed() };
        println!("{name} {}: type yes to allow it", event.tool_args().unwrap_or_default());
        let is_allowed = matches!(std::io::stdin().lines().next(), Some(Ok(line)) if line == "yes");
        if is_allowed { DispatchAction::proceed() } else { DispatchAction::skip("No.") }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = OpenAI::from_env()?.completion(GPT_5_2);
    let agent = AgentBuilder::new(model).tool(DeleteFile).add_hook(Approval).build();
    let response = agent.prompt("Please delete the file `notes.txt`.").max_turns(3).await?;
    println!("{}", response.output());
    Ok(())
}

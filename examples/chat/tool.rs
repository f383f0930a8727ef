//! A tool that runs only if the user allows it.

use async_trait::async_trait;
use omni_agent::{
    agent::{AgentCallbacks, State, ToolDecision},
    message::ToolUse,
    tool::{Tool, ToolContext, ToolError, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use tokio::process::Command;

#[derive(Deserialize, JsonSchema)]
struct RunCommand {
    /// The command line, for the system's shell.
    command: String,
}

pub fn run_command() -> impl Tool {
    tool_fn("run_command", "Runs a command on the user's machine and returns its output.", run)
}

async fn run(input: RunCommand, _: ToolContext) -> Result<String, ToolError> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    // If a call is cancelled or takes too long, its future is dropped, and dropping the future kills the process.
    let output = Command::new(shell).arg(flag).arg(input.command).kill_on_drop(true).output().await?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(text.into())
    } else {
        Err(ToolError::new(format!("{}: {text}", output.status)))
    }
}

/// Pauses before each command, so that the user decides.
pub struct AskFirst;

#[async_trait]
impl AgentCallbacks for AskFirst {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        match tool_use.name.as_str() {
            "run_command" => ToolDecision::Pause(json!("it runs on your machine")),
            _ => ToolDecision::Execute,
        }
    }
}

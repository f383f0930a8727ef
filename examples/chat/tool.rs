//! A tool that runs only if the user allows it.

use omni_agent::tool::{Tool, ToolContext, ToolError, tool_fn};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::process::Command;

#[derive(Deserialize, JsonSchema)]
struct RunCommand {
    /// The command line, for the system's shell.
    command: String,
}

pub fn run_command() -> impl Tool {
    tool_fn("run_command", "Runs a command on the user's machine and returns its output.", run)
        .needs_approval()
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

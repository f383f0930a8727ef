//! An autonomous agent: within a limit of requests, it works until it calls its completion tool.
//!
//! ```sh
//! cargo run --example autonomous
//! cargo run --example autonomous -- 'Find out which file in `src` has the most lines.'
//! ```
//!
//! The completion tool has no handler, so calling this tool ends the turn. The call's input is the result of the work,
//! which the example checks by parsing it into a Rust type. If the model stops without this call, `handle_turn`
//! continues the run.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{error::Error, fs, path::Path, process::ExitCode, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    agent::{Agent, AgentCallbacks, Event, State, Status, TurnDecision},
    message::Role,
    provider::{Model, Options, StopReason},
    run::Response,
    subscription::Update,
    tool::{ToolContext, ToolError, declared_tool, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use support::{Printer, explain};

/// The result with which the work ends.
#[derive(Debug, Deserialize, JsonSchema)]
struct Finish {
    /// A summary of the findings, for the user.
    summary: String,
}

#[derive(Deserialize, JsonSchema)]
struct FilePath {
    /// The path, relative to the working directory.
    path: String,
}

/// Returns the path if it is below the working directory, because the tools may read only there.
fn inside(path: &str) -> Result<&Path, ToolError> {
    let path = Path::new(path);
    let up = path
        .components()
        .any(|part| !matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir));
    if up { Err(ToolError::new("stay below the working directory")) } else { Ok(path) }
}

async fn list_files(input: FilePath, _: ToolContext) -> Result<String, ToolError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(inside(&input.path)?)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(names.join(" "))
}

async fn count_lines(input: FilePath, _: ToolContext) -> Result<String, ToolError> {
    let text = fs::read_to_string(inside(&input.path)?)?;
    Ok(format!("{} has {} lines", input.path, text.lines().count()))
}

/// Callbacks that continue the run until the model has called `finish`.
struct UntilFinished;

#[async_trait]
impl AgentCallbacks for UntilFinished {
    async fn handle_turn(&mut self, response: &Response, _: &mut State) -> TurnDecision {
        match response.stop_reason {
            // The model stopped without a result. The limit of requests prevents an endless loop.
            StopReason::Stop => {
                TurnDecision::continue_with("Continue. When you are done, call finish with a summary.")
            }
            _ => TurnDecision::Stop,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match autonomous().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn autonomous() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model(
        "An agent that works on a goal until it calls its completion tool, within a limit of requests.",
    )
    .await?;
    let goals = support::prompts(
        &picked.words,
        &["Find out how large this library is: list_files in `src`, then count_lines of `src/lib.rs`."],
    );
    for goal in goals {
        work(&picked.model, &picked.options, &goal).await?;
    }
    Ok(())
}

async fn work(model: &Model, options: &Options, goal: &str) -> Result<(), Box<dyn Error>> {
    let agent = Agent::builder()
        .model(model.clone())
        .options(options.clone())
        .system(
            "Work on the user's goal with your tools, without asking back. Call finish when it is reached.",
        )
        .tool(tool_fn("list_files", "Lists the files of a directory.", list_files))
        .tool(tool_fn("count_lines", "Counts the lines of a text file.", count_lines))
        .tool(declared_tool::<Finish>("finish", "Ends the work. Call it alone, when the goal is reached."))
        .callbacks(UntilFinished)
        .max_steps(12)
        .start()
        .await?;
    let mut events = agent.subscribe().await?;
    let mut printer = Printer::default();
    agent.prompt(goal).await?;
    while let Some(update) = events.next().await {
        let numbered = match update {
            Update::Event(numbered) => numbered,
            // This reader was too slow. If the agent is idle, the end of the run is among the missed events.
            Update::Resync(snapshot) if snapshot.status == Status::Idle => {
                return Err("the end of the run was missed: the terminal is too slow".into());
            }
            Update::Closed(end) => return Err(end.reason.into()),
            _ => continue,
        };
        printer.event(&numbered.event);
        match &*numbered.event {
            // A user message with text is either the goal or a message with which `handle_turn` continues the run.
            Event::Message { message, step, .. }
                if message.role == Role::User && !message.text().is_empty() =>
            {
                match step {
                    1 => printer.line(&format!("> {}", message.text())),
                    _ => printer.note(&format!("[the run continues with: {}]", message.text())),
                }
            }
            Event::Turn { response, continues: false, .. } => {
                printer.line(&outcome(response));
                break;
            }
            Event::Error { failure, .. } => return Err(failure.clone().into()),
            _ => {}
        }
    }
    agent.stop(Duration::from_secs(5)).await?;
    Ok(())
}

/// Returns a line that states the result, or why there is no valid result.
fn outcome(response: &Response) -> String {
    let finish = response.open_tool_uses.iter().find(|tool_use| tool_use.name == "finish");
    match finish.map(|tool_use| serde_json::from_value::<Finish>(tool_use.input.clone())) {
        Some(Ok(finish)) => format!("finished: {}", finish.summary),
        Some(Err(error)) => format!("finished, but not as it should: {error}"),
        None => format!("not finished ({}); the last words were: {}", response.stop_reason, response.text()),
    }
}

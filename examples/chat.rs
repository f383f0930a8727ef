//! A conversation in the terminal: streamed, with a tool that runs only if you allow it.
//!
//! ```sh
//! cargo run --example chat
//! cargo run --example chat -- --model anthropic:claude-sonnet-5
//! cargo run --example chat -- --model local:some-model --base-url http://localhost:8000
//! echo 'What can you do?' | cargo run --example chat
//! ```
//!
//! It shows how an application follows an agent: one loop over the agent's events, the lines that the user types
//! and Ctrl-C. What is typed while the agent works is staged for the next turn; Ctrl-C keeps the answer so far.

#![allow(clippy::print_stderr, reason = "this talks to the terminal")]

#[path = "support/support.rs"]
mod support;

use std::{error::Error, process::ExitCode, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    agent::{Accepted, Agent, AgentCallbacks, AgentError, Event, State, Status, ToolDecision, TurnOutcome},
    message::{History, ToolUse},
    provider::StopReason,
    subscription::Update,
    tool::{Decision, Tool, ToolContext, ToolError, ToolLimits, ToolTimeout, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use support::{Interrupts, Lines, Printer, explain};
use tokio::process::Command;

const HELP: &str = "\
/system TEXT   give the model other instructions
/model NAME    go on with another model, for instance openai:gpt-5.2
/clear         forget the conversation
/quit          end, as Ctrl-D does, or Ctrl-C when nothing goes on
Ctrl-C stops an answer and keeps what came of it. What you type meanwhile is said next.
To see the tool, say: run `ls`";

#[derive(Deserialize, JsonSchema)]
struct RunCommand {
    /// The command line, for the system's shell.
    command: String,
}

fn run_command() -> impl Tool {
    tool_fn("run_command", "Runs a command on the user's machine and returns its output.", run)
}

async fn run(input: RunCommand, _: ToolContext) -> Result<String, ToolError> {
    let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
    // A call that is cancelled or takes too long is dropped, and takes the process with it.
    let output = Command::new(shell).arg(flag).arg(input.command).kill_on_drop(true).output().await?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(text.into())
    } else {
        Err(ToolError(format!("{}: {text}", output.status)))
    }
}

/// Nothing runs on the user's machine without a yes.
struct AskFirst;

#[async_trait]
impl AgentCallbacks for AskFirst {
    async fn handle_tool_use(&mut self, tool_use: &ToolUse, _: &mut State) -> ToolDecision {
        match tool_use.name.as_str() {
            "run_command" => ToolDecision::Pause(json!("it runs on your machine")),
            _ => ToolDecision::Execute,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match chat().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn chat() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model().await?;
    let agent = Agent::builder()
        .model(picked.model)
        .options(picked.options)
        .system("You are a helpful assistant in a terminal. Be brief.")
        .tool(run_command())
        .tool_limits(ToolLimits {
            timeout: ToolTimeout::Fixed(Duration::from_mins(1)),
            ..ToolLimits::default()
        })
        .callbacks(AskFirst)
        .max_steps(20)
        .start()
        .await?;
    let mut chat = Chat { agent, printer: Printer::default(), runs: 0, waiting: None };
    if !picked.words.is_empty() {
        chat.say(&picked.words.join(" ")).await?;
    }
    chat.follow().await
}

struct Chat {
    agent: Agent,
    printer: Printer,
    /// Runs that have begun and whose end has not been seen.
    runs: u32,
    /// A tool use that waits for a yes or no.
    waiting: Option<ToolUse>,
}

impl Chat {
    async fn follow(&mut self) -> Result<(), Box<dyn Error>> {
        let mut lines = Lines::new();
        let mut interrupts = Interrupts::new();
        let mut events = self.agent.subscribe().await?;
        if lines.interactive {
            self.printer.note("/help tells what you can type here.");
        }
        let mut ended = false;
        self.show_prompt();
        // The end of the input still lets the answer come to its end.
        while !ended || self.runs > 0 {
            // Lines that nobody types are not said before the last answer is complete.
            let listens = !ended && (lines.interactive || self.runs == 0 || self.waiting.is_some());
            tokio::select! {
                biased;
                () = interrupts.next() => {
                    if self.runs == 0 {
                        break;
                    }
                    // If the run ends just now, there is nothing to interrupt.
                    match self.agent.interrupt().await {
                        Ok(()) | Err(AgentError::Idle) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                update = events.next() => match update {
                    Some(Update::Event(numbered)) => self.event(&numbered.event),
                    // This terminal was too slow. Nothing is lost but what it would have shown.
                    Some(Update::Resync(snapshot)) => {
                        self.runs = u32::from(snapshot.status != Status::Idle);
                        self.waiting = snapshot.pause.as_ref().map(|pause| pause.tool_use.clone());
                        self.printer.note("[some output was skipped]");
                        self.show_prompt();
                    }
                    _ => break,
                },
                line = lines.next(), if listens => match line {
                    Some(line) if line.trim() == "/quit" => break,
                    Some(line) => {
                        if !lines.interactive {
                            self.printer.line(&line);
                        }
                        self.line(line.trim()).await?;
                    }
                    None => ended = true,
                },
            }
            if ended && let Some(tool_use) = self.waiting.take() {
                self.agent.resume(tool_use.id, Decision::reject("nobody is there to allow it")).await?;
            }
        }
        self.printer.line("");
        self.agent.stop(Duration::from_secs(5)).await?;
        Ok(())
    }

    fn event(&mut self, event: &Event) {
        self.printer.event(event);
        let staged = match event {
            Event::Pause { tool_use, reason } => {
                // As JSON: what a model sends must not be able to paint over the question.
                self.printer.line(&format!("{} {} waits: {reason}", tool_use.name, tool_use.input));
                self.waiting = Some(tool_use.clone());
                return self.show_prompt();
            }
            Event::Turn(TurnOutcome::Stop { response, staged }) => {
                match response.stop_reason {
                    StopReason::Interrupted => self.printer.note("[interrupted; what came is kept]"),
                    StopReason::MaxSteps => self.printer.note("[stopped after 20 requests; say \"go on\"]"),
                    _ => {}
                }
                staged
            }
            Event::Error { failure, staged, .. } => {
                self.printer.line(&format!("error: {}", explain(failure)));
                staged
            }
            Event::Cancelled { staged, .. } => staged,
            _ => return,
        };
        if let Some(prompt) = staged {
            let text: String = prompt.content.0.iter().filter_map(|block| block.as_text()).collect();
            self.printer.note(&format!("[not said: {text}]"));
        }
        self.runs = self.runs.saturating_sub(1);
        self.waiting = None;
        self.show_prompt();
    }

    async fn line(&mut self, line: &str) -> Result<(), Box<dyn Error>> {
        if let Some(tool_use) = self.waiting.take() {
            return self.decide(tool_use, line).await;
        }
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim().to_owned();
        let changed = match command {
            "" => Ok(()),
            "/help" => {
                self.printer.note(HELP);
                Ok(())
            }
            "/system" => {
                let system = (!rest.is_empty()).then(|| rest.into());
                self.agent
                    .set_state(|draft| {
                        draft.config.system = system;
                        Ok(())
                    })
                    .await
            }
            "/model" => match support::model_named(&rest) {
                Ok(model) => {
                    self.agent
                        .set_state(|draft| {
                            draft.config.model = model;
                            Ok(())
                        })
                        .await
                }
                Err(error) => {
                    self.printer.line(&explain(&*error));
                    Ok(())
                }
            },
            "/clear" => {
                self.agent
                    .set_state(|draft| {
                        draft.history = History::new();
                        Ok(())
                    })
                    .await
            }
            _ if command.starts_with('/') => {
                self.printer.line(&format!("There is no {command}; /help tells what there is."));
                Ok(())
            }
            _ => return self.say(line).await,
        };
        if let Err(error) = changed {
            self.printer.line(&explain(&error));
        }
        self.show_prompt();
        Ok(())
    }

    async fn say(&mut self, text: &str) -> Result<(), Box<dyn Error>> {
        match self.agent.prompt(text).await? {
            Accepted::Staged { replaced } => {
                let instead = if replaced.is_some() { ", in place of what you said before" } else { "" };
                self.printer.note(&format!("[said when this turn is complete{instead}]"));
            }
            _ => self.runs += 1,
        }
        Ok(())
    }

    async fn decide(&mut self, tool_use: ToolUse, line: &str) -> Result<(), Box<dyn Error>> {
        let (answer, rest) = line.split_once(' ').unwrap_or((line, ""));
        let decision = match answer {
            "y" | "yes" => Decision::Execute,
            "n" | "no" if rest.is_empty() => Decision::reject("The user said no."),
            "n" | "no" => Decision::reject(format!("The user said no: {rest}")),
            "e" | "edit" if !rest.is_empty() => Decision::ExecuteWith(json!({ "command": rest })),
            _ => {
                self.waiting = Some(tool_use);
                self.show_prompt();
                return Ok(());
            }
        };
        // Named by its id: if something else waits by now, this is an error and not a yes to that.
        match self.agent.resume(tool_use.id, decision).await {
            Ok(()) | Err(AgentError::NotPaused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn show_prompt(&mut self) {
        if self.waiting.is_some() {
            self.printer.prompt("yes, no [REASON], or edit COMMAND? ");
        } else if self.runs == 0 {
            self.printer.prompt("> ");
        }
    }
}

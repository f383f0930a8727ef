//! A chat in the terminal with a coding agent: any program that speaks the Agent Client Protocol.
//!
//! ```sh
//! cargo run --features acp --example coding_agent -- gemini --acp
//! cargo run --features acp --example coding_agent -- npx @agentclientprotocol/claude-agent-acp
//! echo 'What does this project do?' | cargo run --features acp --example coding_agent -- gemini --acp
//! ```
//!
//! The agent works in the current folder. The example shows its text, thinking, tools and plans as they arrive, and you
//! decide on its permission requests. Ctrl-C cancels the current turn. Between two turns, Ctrl-C ends the chat.

#[path = "coding_agent/activity.rs"]
mod activity;
#[path = "support/pipe.rs"]
mod pipe;
#[allow(dead_code, reason = "shared with other examples, which use more of it")]
#[path = "support/terminal.rs"]
mod terminal;

use std::{env, error::Error, process::ExitCode, sync::Arc, time::Duration};

use activity::Activity;
use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentCallbacks, Event, State, Status, ToolDecision},
    message::{ToolResult, ToolUse},
    provider::{
        BackendProvider, Model,
        acp::AcpBackend,
        custom::{PermissionKind, PermissionOption},
    },
    subscription::Update,
    tool::Decision,
};
use serde_json::json;
use terminal::{Interrupts, Lines, Printer, explain};

const HELP: &str = "A chat with a coding agent that speaks the Agent Client Protocol.

usage: coding_agent PROGRAM [ARGUMENT ...], for example: coding_agent gemini --acp";

#[tokio::main]
async fn main() -> ExitCode {
    pipe::quiet_on_broken_pipe();
    let mut words = env::args_os().skip(1);
    let program = match words.next() {
        Some(help) if help == "--help" || help == "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some(program) => program,
        None => {
            eprintln!("{HELP}");
            return ExitCode::from(2);
        }
    };
    let backend = AcpBackend::new("coding", program).with_arguments(words);
    match chat(backend).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Callbacks that pause at each permission request, so that a person decides.
struct AskFirst;

#[async_trait]
impl AgentCallbacks for AskFirst {
    async fn handle_tool_use(&mut self, _: &ToolUse, _: &mut State) -> ToolDecision {
        ToolDecision::Pause(json!("it asks for permission"))
    }
}

async fn chat(backend: AcpBackend) -> Result<(), Box<dyn Error>> {
    let model = Model::new(Arc::new(BackendProvider::new(backend)), "default");
    let agent = Agent::builder().model(model).callbacks(AskFirst).start().await?;
    let mut chat = Chat {
        agent: agent.clone(),
        printer: Printer::default(),
        activity: Activity::default(),
        works: false,
        waiting: None,
        failed: None,
    };
    let followed = chat.follow().await;
    // Stopping the agent cancels its current turn and ends the coding agent's program.
    agent.stop(Duration::from_secs(10)).await?;
    followed?;
    chat.failed.map_or(Ok(()), Err)
}

struct Chat {
    agent: Agent,
    printer: Printer,
    activity: Activity,
    works: bool,
    /// A question and its possible answers.
    waiting: Option<(ToolUse, Vec<PermissionOption>)>,
    /// The last turn's failure, which decides the exit code.
    failed: Option<Box<dyn Error>>,
}

impl Chat {
    async fn follow(&mut self) -> Result<(), omni_agent::Error> {
        let (mut lines, mut interrupts) = (Lines::new(), Interrupts::new());
        let mut events = self.agent.subscribe().await?;
        let mut ended = false;
        self.show_prompt();
        while !ended || self.works {
            let listens = !ended && (!self.works || self.waiting.is_some());
            tokio::select! {
                biased;
                () = interrupts.next() => {
                    if !self.works {
                        break;
                    }
                    match self.agent.cancel().await {
                        Err(error) if error.kind() != ErrorKind::Idle => return Err(error),
                        _ => {}
                    }
                }
                update = events.next() => match update {
                    Some(Update::Event(numbered)) => self.event(&numbered.event),
                    Some(Update::Resync(snapshot)) => {
                        self.works = snapshot.status != Status::Idle;
                        self.waiting =
                            snapshot.pauses.first().map(|pause| (pause.tool_use.clone(), Vec::new()));
                        self.printer.note("[some output was skipped]");
                        self.show_prompt();
                    }
                    _ => break,
                },
                line = lines.next(), if listens => match line {
                    Some(line) => self.line(line.trim()).await?,
                    None => ended = true,
                },
            }
            if ended && let Some((tool_use, _)) = self.waiting.take() {
                self.decide(&tool_use, Decision::reject("no user is present to allow it")).await?;
            }
        }
        self.printer.line("");
        Ok(())
    }

    fn event(&mut self, event: &Event) {
        self.printer.event(event);
        match event {
            Event::ProviderItem { index, content } => {
                for line in self.activity.news(*index, &content.data) {
                    self.printer.note(&line);
                }
                return;
            }
            Event::Status { pauses, .. } => {
                let Some(tool_use) = pauses.first().map(|pause| &pause.tool_use) else {
                    self.waiting = None;
                    return;
                };
                let options = self.activity.options(tool_use.id.as_str());
                // The input is shown as JSON, so that control characters from the agent cannot hide the question.
                self.printer.line(&format!("May it? {} {}", json!(tool_use.name), tool_use.input));
                self.waiting = Some((tool_use.clone(), options));
                return self.show_prompt();
            }
            Event::Turn { continues: false, .. } => self.failed = None,
            Event::Cancelled { .. } => {}
            Event::Error { failure, .. } => {
                self.printer.line(&format!("error: {}", explain(failure)));
                self.failed = Some(Box::new(failure.clone()));
            }
            _ => return,
        }
        (self.works, self.waiting) = (false, None);
        self.activity = Activity::default();
        self.show_prompt();
    }

    async fn line(&mut self, line: &str) -> Result<(), omni_agent::Error> {
        if let Some((tool_use, options)) = &self.waiting {
            let Some(decision) = decision(line, tool_use, options) else {
                self.show_prompt();
                return Ok(());
            };
            let tool_use = tool_use.clone();
            self.waiting = None;
            return self.decide(&tool_use, decision).await;
        }
        if line.is_empty() {
            self.show_prompt();
            return Ok(());
        }
        self.agent.prompt(line).await?;
        self.works = true;
        Ok(())
    }

    async fn decide(&self, tool_use: &ToolUse, decision: Decision) -> Result<(), omni_agent::Error> {
        match self.agent.resume(tool_use.id.clone(), decision).await {
            // The coding agent has withdrawn the question, so the decision is not needed.
            Err(error) if matches!(error.kind(), ErrorKind::NotPaused | ErrorKind::StaleDecision) => Ok(()),
            other => other,
        }
    }

    fn show_prompt(&mut self) {
        if let Some((_, options)) = &self.waiting {
            let offered: Vec<String> = (1..)
                .zip(options)
                .map(|(number, option)| format!("{number} {}", json!(option.name)))
                .collect();
            let offered =
                if offered.is_empty() { String::new() } else { format!(" ({})", offered.join(", ")) };
            self.printer.prompt(&format!("yes, no, or a number{offered}? "));
        } else if !self.works {
            self.printer.prompt("> ");
        }
    }
}

/// Returns the decision that a line expresses, or `None` if the line is not a decision.
fn decision(line: &str, tool_use: &ToolUse, options: &[PermissionOption]) -> Option<Decision> {
    match line {
        "y" | "yes" => Some(Decision::Execute),
        "n" | "no" => Some(Decision::reject("The user said no.")),
        number => {
            let option = options.get(number.parse::<usize>().ok()?.checked_sub(1)?)?;
            Some(match option.kind {
                PermissionKind::AllowOnce => Decision::Execute,
                _ => Decision::Provide(ToolResult::ok(tool_use, option.id.as_str())),
            })
        }
    }
}

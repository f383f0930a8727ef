//! Steering an agent while it works: a staged prompt, an interrupt, a cancel, and a callback that trims requests.
//!
//! ```sh
//! cargo run --example steering
//! ```
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{error::Error, process::ExitCode, time::Duration};

use async_trait::async_trait;
use omni_agent::{
    ErrorKind,
    agent::{Agent, AgentCallbacks, AgentSubscription, Event, State, Status},
    provider::Request,
    run::Accepted,
    subscription::Update,
};
use support::{Printer, explain};

/// Callbacks that send only the last messages of a long conversation. The agent's history stays complete. If a tool use
/// is cut off but its result is kept, the agent repairs the request before sending it.
struct Trim {
    keep: usize,
}

#[async_trait]
impl AgentCallbacks for Trim {
    async fn prepare_step(&mut self, request: &mut Request, _: &mut State) {
        let all = request.history.len();
        if all > self.keep {
            request.history = request.history.iter().skip(all - self.keep).cloned().collect();
        }
        println!("{}", support::dim(&format!("\n[sending {} of {all} messages]", request.history.len())));
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match steering().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn steering() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model(
        "Prompts that wait for the end of a turn, an interrupt, a cancel, and a trimmed request.",
    )
    .await?;
    let prompts = support::prompts(&picked.words, &["Count from 1 to 60.", "Now count only to 5."]);
    let task = prompts.first().map_or("", String::as_str);
    let correction = prompts.get(1).map_or("Now count only to 5.", String::as_str);
    let agent = Agent::builder()
        .model(picked.model)
        .options(picked.options.with_max_tokens(2000))
        .callbacks(Trim { keep: 3 })
        .start()
        .await?;
    let mut events = agent.subscribe().await?;
    let mut printer = Printer::default();

    printer.line("\n1. A prompt that comes while the agent works waits for the end of the turn.");
    printer.line(&format!("> {task}"));
    agent.prompt(task).await?;
    let works = follow(&mut events, &mut printer, Some(10)).await?;
    printer.line(&format!("> {correction}"));
    let accepted = agent.prompt(correction).await?;
    printer.note(match &accepted {
        Accepted::Started { .. } => "[it begins at once]",
        _ => "[it waits for the end of the turn]",
    });
    if works && matches!(accepted, Accepted::Started { .. }) {
        // The model was so fast that the first run had already ended. So this prompt has started another run.
        follow(&mut events, &mut printer, None).await?;
    }
    follow(&mut events, &mut printer, None).await?;
    let before = history(&agent).await?;

    printer.line("\n2. An interrupt keeps the part of the answer that has arrived.");
    printer.line(&format!("> {task}"));
    agent.prompt(task).await?;
    if follow(&mut events, &mut printer, Some(10)).await? {
        unless_idle(agent.interrupt().await)?;
        follow(&mut events, &mut printer, None).await?;
    }
    let kept = history(&agent).await?;
    printer.note(&format!("[the history has grown from {before} to {kept} messages]"));

    printer.line("\n3. A cancel discards it: the history is as it was before the turn.");
    printer.line(&format!("> {task}"));
    agent.prompt(task).await?;
    if follow(&mut events, &mut printer, Some(10)).await? {
        unless_idle(agent.cancel().await)?;
        follow(&mut events, &mut printer, None).await?;
    }
    printer.note(&format!("[the history has {} messages]", history(&agent).await?));

    printer.line("\n4. The conversation continues from there.");
    printer.line(&format!("> {correction}"));
    agent.prompt(correction).await?;
    follow(&mut events, &mut printer, None).await?;
    agent.stop(Duration::from_secs(5)).await?;
    Ok(())
}

/// Shows events until the run ends or the given number of text deltas has arrived. Returns whether the run continues.
async fn follow(
    events: &mut AgentSubscription,
    printer: &mut Printer,
    pieces: Option<usize>,
) -> Result<bool, Box<dyn Error>> {
    let mut came = 0;
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
            Event::TextDelta { .. } => {
                came += 1;
                if pieces == Some(came) {
                    return Ok(true);
                }
            }
            Event::Turn { continues: false, .. } | Event::Cancelled { .. } => return Ok(false),
            Event::Error { failure, .. } => return Err(failure.clone().into()),
            _ => {}
        }
    }
    Err("the agent has ended".into())
}

/// Ignores the error that occurs if a run has ended by itself just before it is stopped.
fn unless_idle(stopped: Result<(), omni_agent::Error>) -> Result<(), omni_agent::Error> {
    match stopped {
        Err(error) if error.kind() == ErrorKind::Idle => Ok(()),
        other => other,
    }
}

async fn history(agent: &Agent) -> Result<usize, Box<dyn Error>> {
    Ok(agent.state().await?.history().len())
}

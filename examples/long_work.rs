//! A long job: it fills the context window of its model several times, and the agent makes room each time.
//!
//! ```sh
//! cargo run --example long_work
//! cargo run --example long_work -- --model anthropic:claude-sonnet-5 --window 20000
//! ```
//!
//! The job reads the parts of a logbook one by one. After each answer, a bar shows how full the window is. When the
//! answer has reached 85 % of the room, a summary replaces the older messages. `with_kept_prompts` adds the prompts word
//! for word, so the last prompt can ask about the first one. No message is lost: the tree at the end has all of them.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`, whose context window is known.

#[path = "support/support.rs"]
mod support;

use std::{error::Error, process::ExitCode, time::Duration};

use omni_agent::{
    agent::{Agent, CompactionPolicy, Event, Status},
    message::{Purpose, Usage},
    provider::{Model, ModelInfo, Price},
    session::{Mode, Session, SessionEvent},
    store::MemoryStore,
    subscription::Update,
    tool::{ToolContext, ToolError, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use support::{Flag, compaction_line, dim, explain, first_words};

const WINDOW: Flag = Flag {
    name: "--window",
    value: "TOKENS",
    help: "the size of the context window, 1500 if it is not given",
};

/// The width of the bar in characters.
const WIDTH: u64 = 40;

#[derive(Deserialize, JsonSchema)]
struct Part {
    /// The number of the part.
    part: u32,
}

/// Returns a part of the logbook, which is long.
async fn read_log(input: Part, _: ToolContext) -> Result<String, ToolError> {
    let ports = ["Bergen", "Lisbon", "Tromso", "Cadiz", "Malmo"];
    let line = |hour: u32| {
        let port = ports[(input.part * 7 + hour) as usize % ports.len()];
        format!(
            "Part {}, {hour:02}:00: wind {} knots, course to {port}.",
            input.part,
            (input.part + hour * 3) % 29
        )
    };
    Ok((0..12).map(line).collect::<Vec<_>>().join("\n"))
}

#[tokio::main]
async fn main() -> ExitCode {
    match work().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Returns the model with this context window. The demo model gets a price, so that the example shows costs.
fn with_window(model: &Model, window: u64) -> Model {
    let mut info = ModelInfo::new(model.id().to_string());
    match model.info() {
        Some(known) => info.clone_from(known),
        None => info.price = Some(Price::new(3.0, 15.0)),
    }
    info.input_limit = None;
    model.with_info(info.with_context_window(window).with_output_limit(window / 5))
}

async fn work() -> Result<(), Box<dyn Error>> {
    let about = "A job that is longer than the context window of its model.";
    let picked = support::pick_model_with(about, &[WINDOW]).await?;
    let window: u64 = picked.value(&WINDOW).unwrap_or("1500").parse()?;
    let agent = Agent::builder()
        .model(with_window(&picked.model, window))
        .options(picked.options.clone())
        .tool(tool_fn("read_log", "Reads a part of the logbook.", read_log))
        .compaction(CompactionPolicy::default().with_kept_prompts().without_clearing());
    let session = Session::builder(MemoryStore::new()).agent(agent).create().await?;
    let mut updates = session.subscribe(Mode::Controller).await?;

    let mut job = vec!["My name is Ada. I look for the strongest wind in this logbook.".to_owned()];
    job.extend((1..=20).map(|part| format!("read_log {part}")));
    job.push("What is my name?".to_owned());
    let (mut summaries, mut folds) = (Usage::default(), 0);
    for prompt in &job {
        session.prompt(prompt.as_str()).await?;
        loop {
            let event = match updates.next().await {
                Some(Update::Event(event)) => event,
                // This reader was too slow. If the agent is idle, the end of the run is among the missed events.
                Some(Update::Resync(snapshot)) if snapshot.agent.status == Status::Idle => break,
                Some(Update::Closed(end)) => return Err(end.reason.into()),
                Some(_) => continue,
                None => return Err("the session has ended".into()),
            };
            let SessionEvent::Agent(event) = &*event.event else { continue };
            match &**event {
                Event::Step(response) => {
                    let size = response.message.as_ref().and_then(|message| message.context_tokens);
                    println!("{} {}", bar(u64::from(size.unwrap_or(0)), window), first_words(prompt, 40));
                }
                Event::CompactionEnd { message: Some(message), .. } => {
                    folds += 1;
                    println!("{}", dim(&compaction_line(message)));
                }
                Event::CompactionEnd { failure: Some(failure), .. } => {
                    println!("   not compacted: {failure}");
                }
                Event::Usage(row) if row.purpose == Purpose::Summary => summaries += row.usage,
                Event::Error { failure, .. } => return Err(failure.clone().into()),
                Event::Status { status: Status::Idle, .. } => break,
                _ => {}
            }
        }
    }

    let snapshot = session.snapshot().await?;
    let history = snapshot.tree.history();
    let prompts = history.sent().iter().filter(|message| message.text().contains("My name is Ada")).count();
    println!("\nThe last messages of {}:", snapshot.tree.len());
    let outline = snapshot.tree.to_string();
    let lines: Vec<_> = outline.lines().collect();
    lines[lines.len().saturating_sub(8)..].iter().for_each(|line| println!("{line}"));
    println!(
        "\n{folds} times, a summary has replaced older messages. A request now has {} messages.",
        history.sent().len()
    );
    println!("The first prompt is {} the next request.", if prompts > 0 { "part of" } else { "missing in" });
    if let (Some(all), Some(own)) = (snapshot.used.cost, summaries.cost) {
        println!("All requests cost ${all:.4}. Of this, the summaries cost ${own:.4}.");
    }
    session.stop(Duration::from_secs(5)).await?;
    Ok(())
}

/// Returns a bar that shows how much of the window is used.
fn bar(size: u64, window: u64) -> String {
    let full = (size * WIDTH / window.max(1)).min(WIDTH);
    let cells: String = (0..WIDTH).map(|cell| if cell < full { '█' } else { '·' }).collect();
    format!("{cells} {size:>6} tokens ")
}

//! Three kinds of tools: typed, closure and schema-only. The tools of one step run in parallel and report their
//! progress. At the end, the model returns a typed value.
//!
//! ```sh
//! cargo run --example tools
//! cargo run --example tools -- 'What is the weather in Lima, and what is 12 times 12?'
//! ```
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{borrow::Cow, error::Error, process::ExitCode, sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, AgentSubscription, Event, Status},
    message::{Content, ToolResult, ToolUse},
    run::{Prompt, Response},
    subscription::Update,
    tool::{ToolContext, ToolError, ToolOutput, TypedTool, declared_tool, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use support::{Lines, Printer, explain};
use tokio::time::{Instant, sleep};

/// A typed tool can have state. The schema of its input is derived from a Rust type, and the model reads the doc
/// comments of that type.
struct Weather {
    delay: Duration,
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    /// The city, in English.
    city: String,
}

impl TypedTool for Weather {
    type Input = Place;

    fn name(&self) -> &str {
        "get_weather"
    }

    fn description(&self) -> Cow<'_, str> {
        "The weather in a city, now.".into()
    }

    async fn call(&self, place: Place, context: ToolContext) -> Result<ToolOutput, ToolError> {
        if place.city.is_empty() {
            // The model reads this error and can correct its call.
            return Err(ToolError::new("the city has no name"));
        }
        for done in [0, 50] {
            context.progress(json!({ "city": place.city, "percent": done })).await;
            sleep(self.delay / 2).await;
        }
        let degrees = place.city.bytes().map(u32::from).sum::<u32>() % 30;
        Ok(json!({ "city": place.city, "degrees": degrees }).into())
    }
}

#[derive(Deserialize, JsonSchema)]
struct Factors {
    a: f64,
    b: f64,
}

#[derive(Deserialize, JsonSchema)]
struct Choice {
    /// The question that the user decides.
    question: String,
}

/// The type of a response. Its schema is sent with the request, and the response is checked against the schema.
#[derive(Debug, Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only shown")]
struct Verdict {
    /// The warmer city.
    city: String,
    degrees: i32,
}

#[tokio::main]
async fn main() -> ExitCode {
    match tools().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn tools() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model(
        "Typed, closure and schema-only tools, in parallel, with progress, and a typed response.",
    )
    .await?;
    let agent = Agent::builder()
        .model(picked.model)
        .options(picked.options)
        .system("Use the tools. Call all that you need at once.")
        .tool(Weather { delay: Duration::from_secs(1) }.into_tool())
        // A closure is enough for a small tool.
        .tool(tool_fn("multiply", "Multiplies two numbers.", |input: Factors, _| async move {
            Ok((input.a * input.b).to_string())
        }))
        // A schema-only tool has no handler. If the model calls the tool, the turn ends, and the application answers at
        // any later time.
        .tool(declared_tool::<Choice>("ask_user", "Asks the user a question and waits for the answer."))
        .max_steps(10)
        .start()
        .await?;
    let mut events = agent.subscribe().await?;

    let prompts = support::prompts(
        &picked.words,
        &[
            "Use get_weather for Oslo and for Rome, and multiply 6 by 7.",
            "Find out which city I like better: ask_user \"Oslo or Rome?\"",
        ],
    );
    let mut printer = Printer::default();
    let mut lines = Lines::new();
    for prompt in prompts {
        printer.line(&format!("\n> {prompt}"));
        let mut next = Some(Prompt::from(prompt));
        while let Some(prompt) = next.take() {
            agent.prompt(prompt).await?;
            let response = follow(&mut events, &mut printer).await?;
            if !response.open_tool_uses.is_empty() {
                next = Some(answer(&response, &mut printer, &mut lines).await);
            }
        }
    }

    let question = "Which of the cities that you know of is the warmest?";
    printer.line(&format!("\n> {question} (as a value)"));
    match agent.ask_as::<Verdict>(question).await {
        Ok(verdict) => printer.line(&format!("{verdict:?}")),
        Err(error) => printer.line(&explain(&error)),
    }
    agent.stop(Duration::from_secs(5)).await?;
    Ok(())
}

/// Shows the events of a run and returns the run's last response.
async fn follow(
    events: &mut AgentSubscription,
    printer: &mut Printer,
) -> Result<Arc<Response>, Box<dyn Error>> {
    let mut start = Instant::now();
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
            Event::Step(_) => start = Instant::now(),
            Event::Message { message, .. } => match message.tool_results().count() {
                0 | 1 => {}
                count => {
                    printer.note(&format!("[{count} results in {:.1} s]", start.elapsed().as_secs_f32()));
                }
            },
            Event::Turn { response, continues: false, .. } => return Ok(Arc::clone(response)),
            Event::Error { failure, .. } => return Err(failure.clone().into()),
            _ => {}
        }
    }
    Err("the agent has ended".into())
}

/// Answers the open tool uses of the turn with a prompt of tool results. The agent adds the results of the same step
/// that were known when the turn ended.
async fn answer(response: &Response, printer: &mut Printer, lines: &mut Lines) -> Prompt {
    let mut results: Vec<Content> = Vec::new();
    for tool_use in &response.open_tool_uses {
        results.push(ask(tool_use, printer, lines).await.into());
    }
    Prompt::new(results)
}

async fn ask(tool_use: &ToolUse, printer: &mut Printer, lines: &mut Lines) -> ToolResult {
    // This input is not checked yet. The agent only checks the input of tools that it runs.
    let Ok(choice) = serde_json::from_value::<Choice>(tool_use.input.clone()) else {
        return ToolResult::error(tool_use, "The question is missing.");
    };
    printer.line(&format!("{:?}", choice.question));
    let answer = if lines.interactive { lines.next().await } else { None };
    match answer {
        Some(answer) => ToolResult::ok(tool_use, answer),
        None => ToolResult::ok(tool_use, "The user is absent; decide yourself."),
    }
}

//! A research team: a lead with a tool that is an agent. The lead calls it once for each question, and the terminal shows the
//! agents as a tree while they work.
//!
//! ```sh
//! cargo run --example research_team
//! cargo run --example research_team -- 'Ask the research tool for `look_up Cairo` and for `look_up Lima`.'
//! ```
//!
//! All agents draw from one budget. The module `support` selects the model. In your own crate, pass the model's name
//! instead: `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::{
    error::Error,
    io::{IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use omni_agent::{
    agent::{Agent, RunStep, SubAgent},
    budget::{Budget, SharedBudget},
    message::ToolUseId,
    tool::{ToolContext, ToolError, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use support::explain;

#[derive(Deserialize, JsonSchema)]
struct City {
    /// The name of the city.
    city: String,
}

/// Looks a city up, which takes a while.
async fn look_up(input: City, context: ToolContext) -> Result<String, ToolError> {
    context.progress(Value::Null).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let about = match &*input.city {
        "Oslo" => "the capital of Norway, at the end of a fjord",
        "Rome" => "the capital of Italy, on the Tiber",
        "Lisbon" => "the capital of Portugal, on the Tagus",
        _ => return Err(ToolError::new(format!("{} is not in the encyclopedia.", input.city))),
    };
    Ok(format!("{} is {about}.", input.city))
}

#[tokio::main]
async fn main() -> ExitCode {
    match research().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", explain(&*error));
            ExitCode::FAILURE
        }
    }
}

async fn research() -> Result<(), Box<dyn Error>> {
    let picked =
        support::pick_model("A lead that delegates questions to researchers, which work in parallel.")
            .await?;
    let team = SharedBudget::new(Budget::requests(40));
    let (model, options) = (picked.model.clone(), picked.options.clone());
    let researcher = SubAgent::new("research", "Answers one question about a city.", move |_| {
        Agent::builder()
            .model(model.clone())
            .options(options.clone())
            .system("Answer the question with your tool, in one sentence.")
            .tool(tool_fn("look_up", "Looks a city up in an encyclopedia.", look_up))
            .max_steps(6)
    });
    let agent = Agent::builder()
        .model(picked.model.clone())
        .options(picked.options.clone())
        .system("Delegate each question to the research tool, all in one step. Then write one answer.")
        .tool(researcher.with_parallel(3))
        .shared_budget(&team)
        .start()
        .await?;
    let goals = support::prompts(
        &picked.words,
        &["Ask the research tool for `look_up Oslo`, for `look_up Rome` and for `look_up Lisbon`."],
    );
    for goal in goals {
        println!("> {goal}");
        let mut running = agent.run(goal).follow().await?;
        let mut tree = Tree::default();
        while let Some(step) = running.next().await? {
            tree.show(&step);
        }
        println!("{}", running.response().await?.text());
    }
    println!("{} requests", team.spent().requests);
    agent.stop(Duration::from_secs(5)).await?;
    Ok(())
}

/// The agents below the lead. In a terminal, the tree is drawn again in its place after each change.
#[derive(Default)]
struct Tree {
    lines: Vec<(ToolUseId, String)>,
    drawn: usize,
}

impl Tree {
    fn show(&mut self, step: &RunStep) {
        match step {
            RunStep::ToolStarted(call) => self.lines.push((call.id.clone(), "starts".to_owned())),
            RunStep::ToolProgress { id, data } => self.set(id, described(&data["sub_agent"])),
            RunStep::ToolEnded { id, is_error } => {
                self.set(id, if *is_error { "failed" } else { "done" }.to_owned());
            }
            _ => return,
        }
        self.draw();
    }

    fn set(&mut self, id: &ToolUseId, words: String) {
        if let Some((_, line)) = self.lines.iter_mut().find(|(own, _)| own == id) {
            *line = words;
        }
    }

    fn draw(&mut self) {
        let mut out = std::io::stdout().lock();
        let is_live = out.is_terminal();
        let mut text =
            if is_live && self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
        for (index, (_, words)) in self.lines.iter().enumerate() {
            let branch = if index + 1 == self.lines.len() { "└─" } else { "├─" };
            let clear = if is_live { "\x1b[2K" } else { "" };
            text.extend([clear, branch, " research ", &(index + 1).to_string(), ": ", words, "\n"]);
        }
        self.drawn = self.lines.len();
        // If the terminal is gone, nothing can be shown.
        let _ = out.write_all(text.as_bytes());
    }
}

/// Describes the progress of a sub-agent in one line.
fn described(progress: &Value) -> String {
    let step = progress["step"].as_u64().unwrap_or_default();
    let words = match (progress["tool"].as_str(), progress["text"].as_str()) {
        (Some(tool), _) => format!("uses {tool}"),
        (None, Some(text)) => {
            text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect()
        }
        (None, None) => "thinks".to_owned(),
    };
    format!("step {step}, {words}")
}

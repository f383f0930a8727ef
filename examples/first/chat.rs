//! A chat with a tool: `cargo run --example first_chat`. Try `What is the weather in Oslo?`.

mod model;

use std::io::{Write, stdin, stdout};

use omni_agent::{Agent, agent::RunStep, tool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let weather = tool!("weather", "Tells the weather.", async |city: String| Ok(format!("Sun in {city}.")));
    let agent = Agent::builder().model(model::pick()).tool(weather).start().await?;
    for line in stdin().lines() {
        let mut run = agent.run(line?).follow().await?;
        while let Some(step) = run.next().await? {
            match step {
                RunStep::Text { new, .. } => write!(stdout(), "{new}").and_then(|()| stdout().flush())?,
                RunStep::ToolStarted(tool_use) => println!("[{} {}]", tool_use.name, tool_use.input),
                RunStep::Ended(_) => println!(),
                _ => {}
            }
        }
    }
    Ok(())
}

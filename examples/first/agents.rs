//! An agent that uses two other agents as tools: `cargo run --example first_agents`.

mod model;

use omni_agent::agent::{Agent, RunStep, SubAgent};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let agent = |system| Agent::builder().model(model::pick()).system(system);
    let poet = SubAgent::new("poet", "Writes a poem.", move |_| agent("Write four lines that rhyme."));
    let critic =
        SubAgent::new("critic", "Reviews a poem.", move |_| agent("Name one strength and one flaw."));
    let lead = agent("Publish only what the critic has seen.").tool(poet).tool(critic).start().await?;
    let mut run =
        lead.run("Ask the poet for \"a poem on rain\", then ask the critic about \"it\".").follow().await?;
    while let Some(step) = run.next().await? {
        match step {
            RunStep::ToolStarted(tool_use) => println!("[{} {}]", tool_use.name, tool_use.input),
            RunStep::Ended(response) => println!("{}", response.text()),
            _ => {}
        }
    }
    Ok(())
}

//! A tool that runs only if the user allows it: `cargo run --example first_approval`.

mod model;

use omni_agent::{Agent, Decision, Tool, agent::RunStep, tool};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let delete = tool!("delete_file", "Deletes a file.", async |path: String| Ok(format!("{path} is gone")));
    let agent = Agent::builder().model(model::pick()).tool(delete.needs_approval()).start().await?;
    let mut run = agent.run("Please delete the file `notes.txt`.").follow().await?;
    while let Some(step) = run.next().await? {
        match step {
            RunStep::Pause(pause) => {
                println!("{} {}: type yes to allow it", pause.tool_use.name, pause.tool_use.input);
                let is_allowed = std::io::stdin().lines().next().transpose()?.as_deref() == Some("yes");
                pause.decide(if is_allowed { Decision::Execute } else { Decision::reject("No.") }).await?;
            }
            RunStep::Ended(response) => println!("{}", response.text()),
            _ => {}
        }
    }
    Ok(())
}

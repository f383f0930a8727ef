//! An approval that waits in a file. The first run asks and ends. The second run approves and continues.

use rig::completion::CompletionRequest;
use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};
use rig::run::{AgentRun, AgentRunStep, ModelTurn, prepare_request};
use rig::{rig_tool, tool::ToolExecutionError};

#[rig_tool(description = "Sends euros.")]
async fn send_euros(to: String, euros: u32) -> Result<String, ToolExecutionError> {
    Ok(format!("{to} got {euros}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).unwrap_or_else(|| "approval.json".to_owned());
    let model = OpenAI::from_env()?.completion(GPT_5_2);
    let agent = AgentBuilder::new(model.clone()).tool(SendEuros).build();
    if let Ok(saved) = std::fs::read(&file) {
        let run: AgentRun = serde_json::from_slice(&saved)?;
        println!("{}", agent.resume(run).await?.output());
        return Ok(std::fs::remove_file(file)?);
    }
    let mut run = AgentRun::new("Please send_euros 20 to \"Ann\".").max_turns(3);
    let AgentRunStep::CallModel { prompt, history, .. } = run.next_step()? else { return Ok(()) };
    let tools = agent.tool_definitions(None).await?;
    let prepared = prepare_request(&agent.run_spec(), &Default::default(), &history, tools, None, None)?;
    let response = model.call(prepared.clone().apply(CompletionRequest::new(prompt))).await?;
    run.model_response(ModelTurn::from_response(&response, &prepared))?;
    if let AgentRunStep::CallTools { calls } = run.next_step()? {
        for call in calls {
            let function = call.tool_call.function;
            println!("{} {} waits", function.name, function.arguments_value());
        }
        std::fs::write(file, serde_json::to_vec(&run)?)?;
    }
    Ok(())
}

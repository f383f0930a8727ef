//! An agent that uses two other agents as tools.

use futures_util::StreamExt;
use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = OpenAI::from_env()?.completion(GPT_5_2);
    let agent = |preamble: &str| AgentBuilder::new(model.clone()).preamble(preamble);
    let poet = agent("Write four lines that rhyme.").name("poet").description("Writes a poem.");
    let critic = agent("Name one strength and one flaw.").name("critic").description("Reviews a poem.");
    let tools = vec![poet.build().into_tool()?, critic.build().into_tool()?];
    let lead = agent("Publish only what the critic has seen.").dynamic_tools(tools).build();
    let question = "Ask the poet for a poem on rain, then ask the critic about it.";
    let mut items = lead.prompt(question).max_turns(5).stream();
    while let Some(item) = items.next().await {
        match item? {
            MultiTurnStreamItem::ToolCall { tool_call } => {
                println!("[{} {}]", tool_call.function.name, tool_call.function.arguments_value());
            }
            MultiTurnStreamItem::FinalResponse(response) => println!("{}", response.output()),
            _ => {}
        }
    }
    Ok(())
}

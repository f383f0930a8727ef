//! A chat with a tool, in the terminal chat of the library. It does not show the tool calls.

use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};
use rig::{integrations::cli_chatbot::ChatBotBuilder, rig_tool, tool::ToolExecutionError};

#[rig_tool(description = "Tells the weather.")]
async fn weather(city: String) -> Result<String, ToolExecutionError> {
    Ok(format!("Sun in {city}."))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let agent = AgentBuilder::new(OpenAI::from_env()?.completion(GPT_5_2)).tool(Weather).build();
    Ok(ChatBotBuilder::new().agent(agent).max_turns(3).build().run().await?)
}

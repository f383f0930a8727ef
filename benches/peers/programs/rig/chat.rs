//! A chat with a tool.

use std::io::{Write, stdin, stdout};

use futures_util::StreamExt;
use rig::prelude::*;
use rig::providers::openai::{GPT_5_2, OpenAI};
use rig::streaming::{Item, StreamEvent};
use rig::{rig_tool, tool::ToolExecutionError};

#[rig_tool(description = "Tells the weather.")]
async fn weather(city: String) -> Result<String, ToolExecutionError> {
    Ok(format!("Sun in {city}."))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let agent = AgentBuilder::new(OpenAI::from_env()?.completion(GPT_5_2)).tool(Weather).build();
    let mut history = Vec::new();
    for line in stdin().lines() {
        let mut items = agent.prompt(line?).history(history.clone()).max_turns(3).stream();
        while let Some(item) = items.next().await {
            match item? {
                MultiTurnStreamItem::StreamAssistantItem(Item::Event(StreamEvent::Text { text, .. })) => {
                    write!(stdout(), "{text}").and_then(|()| stdout().flush())?;
                }
                MultiTurnStreamItem::ToolCall { tool_call } => {
                    println!("[{} {}]", tool_call.function.name, tool_call.function.arguments_value());
                }
                MultiTurnStreamItem::FinalResponse(response) => {
                    println!();
                    history.extend(response.messages);
                }
                _ => {}
            }
        }
    }
    Ok(())
}

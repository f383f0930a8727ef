//! Tools of an MCP server.

use yoagent::{Agent, AgentEvent, StreamDelta, provider::ModelConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    let agent = Agent::from_config(ModelConfig::claude_sonnet_5());
    let mut agent = agent.with_mcp_server_stdio(&command[0], &arguments, None).await?;
    let mut events = agent.prompt("Call the tool echo with the message \"Hello!\".").await;
    while let Some(event) = events.recv().await {
        if let AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } = event {
            print!("{delta}");
        }
    }
    agent.finish().await;
    Ok(())
}

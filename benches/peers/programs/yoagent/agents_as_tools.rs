//! An agent that uses two other agents as tools.

use yoagent::{Agent, AgentEvent, StreamDelta, SubAgentTool, provider::ModelConfig};

#[tokio::main]
async fn main() {
    let poet = SubAgentTool::from_config("poet", ModelConfig::claude_sonnet_5())
        .with_description("Writes a poem.")
        .with_system_prompt("Write four lines that rhyme.");
    let critic = SubAgentTool::from_config("critic", ModelConfig::claude_sonnet_5())
        .with_description("Reviews a poem.")
        .with_system_prompt("Name one strength and one flaw.");
    let lead = Agent::from_config(ModelConfig::claude_sonnet_5());
    let lead = lead.with_system_prompt("Publish only what the critic has seen.");
    let mut lead = lead.with_sub_agent(poet).with_sub_agent(critic);
    let mut events = lead.prompt("Ask the poet for a poem on rain, then ask the critic about it.").await;
    while let Some(event) = events.recv().await {
        match event {
            AgentEvent::ToolExecutionStart { tool_name, args, .. } => println!("[{tool_name} {args}]"),
            AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } => print!("{delta}"),
            _ => {}
        }
    }
    lead.finish().await;
}

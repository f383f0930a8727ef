//! A chat with a tool.

use std::io::{Write, stdin, stdout};

use async_trait::async_trait;
use serde_json::{Value, json};
use yoagent::provider::ModelConfig;
use yoagent::{Agent, AgentEvent, AgentTool, Content, StreamDelta, ToolContext, ToolError, ToolResult};

struct Weather;

#[async_trait]
impl AgentTool for Weather {
    fn name(&self) -> &str {
        "weather"
    }

    fn label(&self) -> &str {
        "Weather"
    }

    fn description(&self) -> &str {
        "Tells the weather."
    }

    fn parameters_schema(&self) -> Value {
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] })
    }

    async fn execute(&self, input: Value, _: ToolContext) -> Result<ToolResult, ToolError> {
        let text = format!("Sun in {}.", input["city"].as_str().unwrap_or_default());
        Ok(ToolResult { content: vec![Content::Text { text }], details: Value::Null })
    }
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut agent = Agent::from_config(ModelConfig::claude_sonnet_5()).with_tools(vec![Box::new(Weather)]);
    for line in stdin().lines() {
        let mut events = agent.prompt(line?).await;
        while let Some(event) = events.recv().await {
            match event {
                AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } => {
                    write!(stdout(), "{delta}").and_then(|()| stdout().flush())?;
                }
                AgentEvent::ToolExecutionStart { tool_name, args, .. } => println!("[{tool_name} {args}]"),
                AgentEvent::AgentEnd { .. } => println!(),
                _ => {}
            }
        }
        agent.finish().await;
    }
    Ok(())
}

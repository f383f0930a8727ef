//! A tool that runs only if the user allows it.

use async_trait::async_trait;
use serde_json::{Value, json};
use yoagent::provider::ModelConfig;
use yoagent::{Agent, AgentEvent, AgentTool, Content, StreamDelta, ToolContext, ToolError, ToolResult};
use yoagent::{ToolCallRequest, ToolDecision, ToolMiddleware};

struct DeleteFile;

#[async_trait]
impl AgentTool for DeleteFile {
    fn name(&self) -> &str {
        "delete_file"
    }

    fn label(&self) -> &str {
        "Delete file"
    }

    fn description(&self) -> &str {
        "Deletes a file."
    }

    fn parameters_schema(&self) -> Value {
        json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] })
    }

    async fn execute(&self, input: Value, _: ToolContext) -> Result<ToolResult, ToolError> {
        let text = format!("{} is gone", input["path"].as_str().unwrap_or_default());
        Ok(ToolResult { content: vec![Content::Text { text }], details: Value::Null })
    }
}

struct Approval;

#[async_trait]
impl ToolMiddleware for Approval {
    async fn before_tool(&self, call: &ToolCallRequest<'_>) -> ToolDecision {
        println!("{} {}: type yes to allow it", call.tool_name, call.args);
        let is_allowed = matches!(std::io::stdin().lines().next(), Some(Ok(line)) if line == "yes");
        if is_allowed { ToolDecision::Allow } else { ToolDecision::Deny("No.".to_owned()) }
    }
}

#[tokio::main]
async fn main() {
    let agent = Agent::from_config(ModelConfig::claude_sonnet_5()).with_tools(vec![Box::new(DeleteFile)]);
    let mut agent = agent.with_tool_middleware(Approval);
    let mut events = agent.prompt("Please delete the file `notes.txt`.").await;
    while let Some(event) = events.recv().await {
        if let AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } = event {
            print!("{delta}");
        }
    }
    agent.finish().await;
}

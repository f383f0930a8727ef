//! A provider for another service. This one uses the tool `clock`, and then answers with its result.

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;
use tokio_util::sync::CancellationToken;
use yoagent::provider::{ModelConfig, ProviderError, StreamConfig, StreamEvent, StreamProvider};
use yoagent::{Agent, AgentEvent, AgentTool, Content, Message, StopReason, StreamDelta, Usage};
use yoagent::{ToolContext, ToolError, ToolResult};

struct Clock;

#[async_trait]
impl AgentTool for Clock {
    fn name(&self) -> &str {
        "clock"
    }

    fn label(&self) -> &str {
        "Clock"
    }

    fn description(&self) -> &str {
        "Returns the time."
    }

    fn parameters_schema(&self) -> Value {
        json!({ "type": "object", "properties": {} })
    }

    async fn execute(&self, _: Value, _: ToolContext) -> Result<ToolResult, ToolError> {
        let text = "12:00".to_owned();
        Ok(ToolResult { content: vec![Content::Text { text }], details: Value::Null })
    }
}

struct Service;

#[async_trait]
impl StreamProvider for Service {
    async fn stream(
        &self,
        config: StreamConfig,
        events: UnboundedSender<StreamEvent>,
        _: CancellationToken,
    ) -> Result<Message, ProviderError> {
        // A real provider sends `config.messages` and `config.tools` to its service.
        let result = match config.messages.last() {
            Some(Message::ToolResult { content, .. }) => content.first(),
            _ => None,
        };
        let _ = events.send(StreamEvent::Start);
        let (content, stop) = if let Some(Content::Text { text }) = result {
            let text = format!("It is {text}.");
            let _ = events.send(StreamEvent::TextDelta { content_index: 0, delta: text.clone() });
            (Content::Text { text }, StopReason::Stop)
        } else {
            let (id, name) = ("call-1".to_owned(), "clock".to_owned());
            let _ = events.send(StreamEvent::ToolCallStart { content_index: 0, id, name });
            let _ = events.send(StreamEvent::ToolCallEnd { content_index: 0 });
            (Content::tool_call("call-1", "clock", json!({})), StopReason::ToolUse)
        };
        let message = Message::assistant(vec![content], stop, "some-model", "service", Usage::default());
        let _ = events.send(StreamEvent::Done { message: message.clone() });
        Ok(message)
    }
}

#[tokio::main]
async fn main() {
    let config = ModelConfig::local("http://localhost", "some-model");
    let mut agent = Agent::from_provider(Service, config).with_tools(vec![Box::new(Clock)]);
    let mut events = agent.prompt("What time is it?").await;
    while let Some(event) = events.recv().await {
        if let AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } = event {
            print!("{delta}");
        }
    }
    agent.finish().await;
}

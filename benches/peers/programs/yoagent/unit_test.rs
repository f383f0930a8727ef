//! A test of an agent without a model. The mock records no requests, so the system prompt is not checked.

use async_trait::async_trait;
use serde_json::{Value, json};
use yoagent::provider::mock::{MockResponse, MockToolCall};
use yoagent::provider::{MockProvider, ModelConfig, StreamProvider};
use yoagent::{Agent, AgentMessage, AgentTool, Content, Message, ToolContext, ToolError, ToolResult};

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

fn agent(provider: impl StreamProvider + 'static, config: ModelConfig) -> Agent {
    let agent = Agent::from_provider(provider, config).with_system_prompt("Be brief.");
    agent.with_tools(vec![Box::new(Clock)])
}

#[tokio::test]
async fn question_about_the_time_uses_the_clock() {
    let call = MockToolCall { name: "clock".to_owned(), arguments: json!({}), provider_metadata: None };
    let script = vec![MockResponse::ToolCalls(vec![call]), MockResponse::Text("It is noon.".to_owned())];
    let mut agent = agent(MockProvider::new(script), ModelConfig::mock());
    let mut events = agent.prompt("What time is it?").await;
    while events.recv().await.is_some() {}
    agent.finish().await;

    let text = |message: &AgentMessage| match message.as_llm() {
        Some(Message::Assistant { content, .. } | Message::ToolResult { content, .. }) => content.clone(),
        _ => Vec::new(),
    };
    let [.., result, answer] = agent.messages() else { panic!("no answer") };
    assert_eq!(text(result), [Content::Text { text: "12:00".to_owned() }]);
    assert_eq!(text(answer), [Content::Text { text: "It is noon.".to_owned() }]);
}

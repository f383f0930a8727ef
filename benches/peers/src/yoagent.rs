//! yoagent, a library with an agent loop.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use yoagent::{
    Agent, AgentEvent, AgentTool, Content, StreamDelta, ToolContext, ToolError, ToolResult,
    provider::ModelConfig,
};

use crate::{
    contender::{Contender, QUESTION, Reader, model, weather},
    formats::Format,
};

struct Yoagent(ModelConfig);

pub(crate) fn contender(format: Format, url: &str) -> Option<Arc<dyn Contender>> {
    let model = model(format);
    let mut config = match format {
        Format::Chat => ModelConfig::openai(model, model),
        Format::Messages => ModelConfig::anthropic(model, model),
        Format::Responses => ModelConfig::openai_responses(model, model),
        Format::Gemini => ModelConfig::google(model, model),
        // yoagent supports Ollama only through Chat Completions.
        Format::Ollama => return None,
    };
    config.base_url = if format == Format::Gemini { url.to_owned() } else { format!("{url}/v1") };
    Some(Arc::new(Yoagent(config)))
}

#[derive(Deserialize)]
struct Place {
    city: String,
}

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
        json!({
            "type": "object",
            "properties": { "city": { "type": "string", "description": "The name of a city." } },
            "required": ["city"],
        })
    }

    async fn execute(&self, input: Value, _: ToolContext) -> Result<ToolResult, ToolError> {
        let place: Place =
            serde_json::from_value(input).map_err(|error| ToolError::InvalidArgs(error.to_string()))?;
        let content = vec![Content::Text { text: weather(&place.city) }];
        Ok(ToolResult { content, details: Value::Null })
    }
}

impl Yoagent {
    fn agent(&self) -> Agent {
        Agent::from_config(self.0.clone()).with_api_key("a-key")
    }
}

#[async_trait]
impl Reader for Yoagent {
    async fn read(&self) -> usize {
        let mut agent = self.agent();
        let mut events = agent.prompt("Go on.").await;
        let mut pieces = 0;
        while let Some(event) = events.recv().await {
            if let AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } = event {
                pieces += usize::from(!delta.is_empty());
            }
        }
        agent.finish().await;
        pieces
    }
}

#[async_trait]
impl Contender for Yoagent {
    async fn run(&self) -> String {
        let mut agent = self.agent().with_tools(vec![Box::new(Weather)]);
        let mut events = agent.prompt(QUESTION).await;
        let mut text = String::new();
        while let Some(event) = events.recv().await {
            if let AgentEvent::MessageUpdate { delta: StreamDelta::Text { delta }, .. } = event {
                text.push_str(&delta);
            }
        }
        agent.finish().await;
        text
    }
}

//! rig, a library for agents that supports many services.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::StreamExt;
use rig::{
    Agent, AgentBuilder, DynModel,
    agent::MultiTurnStreamItem,
    operation::Completion,
    providers::{
        anthropic::AnthropicConfig, gemini::GeminiConfig, ollama::OllamaConfig, openai::OpenAIConfig,
    },
    streaming::{Item, StreamEvent},
    tool::ToolExecutionError,
};

use crate::{
    contender::{Contender, QUESTION, Reader, model, weather},
    formats::Format,
};

struct Rig(DynModel<Completion>);

#[expect(clippy::unnecessary_wraps, reason = "not every library supports every format")]
pub(crate) fn contender(format: Format, url: &str) -> Option<Arc<dyn Contender>> {
    let model = model(format);
    let openai = || OpenAIConfig::new("a-key").with_base_url(format!("{url}/v1")).client();
    let model: DynModel<Completion> = match format {
        Format::Chat => openai().chat(model).into(),
        Format::Responses => openai().responses(model).into(),
        Format::Messages => {
            AnthropicConfig::new("a-key").with_base_url(url).client().completion(model).into()
        }
        Format::Gemini => GeminiConfig::new("a-key").with_base_url(url).client().completion(model).into(),
        Format::Ollama => OllamaConfig::new().with_base_url(url).client().native_completion(model).into(),
    };
    Some(Arc::new(Rig(model)))
}

#[rig::rig_tool(name = "weather", description = "Tells the weather.", params(city = "The name of a city."))]
async fn tell_weather(city: String) -> Result<String, ToolExecutionError> {
    Ok(weather(&city))
}

/// Sends a prompt. Returns the number of pieces in which the text arrived, and the final text.
async fn answer(agent: &Agent, prompt: &str) -> (usize, String) {
    let mut items = agent.prompt(prompt).max_turns(3).stream();
    let mut pieces = 0;
    while let Some(item) = items.next().await {
        match item.expect("the server answers") {
            MultiTurnStreamItem::StreamAssistantItem(Item::Event(StreamEvent::Text { text, .. })) => {
                pieces += usize::from(!text.is_empty());
            }
            MultiTurnStreamItem::FinalResponse(response) => return (pieces, response.output()),
            _ => {}
        }
    }
    panic!("the run ends with a response");
}

#[async_trait]
impl Reader for Rig {
    async fn read(&self) -> usize {
        let agent = AgentBuilder::new(self.0.clone()).max_tokens(4096).build();
        answer(&agent, "Go on.").await.0
    }
}

#[async_trait]
impl Contender for Rig {
    async fn run(&self) -> String {
        let agent = AgentBuilder::new(self.0.clone()).max_tokens(4096).tool(TellWeather).build();
        answer(&agent, QUESTION).await.1
    }
}

//! What each library is asked to do.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{formats::Format, genai, omni, raw, rig, yoagent};

/// Who reads answers in a format, from the local server.
#[async_trait]
pub(crate) trait Reader: Send + Sync {
    /// Has a prompt answered, event by event; how many pieces of text came.
    async fn read(&self) -> usize;
}

/// A library that speaks a format, with the local server as its service.
#[async_trait]
pub(crate) trait Contender: Reader {
    /// Has a prompt answered that takes a tool call, streamed; the final text.
    async fn run(&self) -> String;
}

pub(crate) type Make = fn(Format, &str) -> Option<Arc<dyn Contender>>;

/// All of them, ours first.
pub(crate) const ALL: [(&str, Make); 4] = [
    ("omni-agent", omni::contender),
    ("rig", rig::contender),
    ("genai, its loop written by hand", genai::contender),
    ("yoagent", yoagent::contender),
];

/// The least that a program written for the one format could do.
pub(crate) struct Raw {
    client: reqwest::Client,
    url: String,
    format: Format,
}

impl Raw {
    pub(crate) fn new(format: Format, url: &str) -> Self {
        Self { client: raw::client(), url: format!("{url}/raw"), format }
    }
}

#[async_trait]
impl Reader for Raw {
    async fn read(&self) -> usize {
        raw::read_typed(&self.client, &self.url, self.format).await
    }
}

/// A model's name that each library takes for one of the service's.
pub(crate) fn model(format: Format) -> &'static str {
    match format {
        Format::Chat | Format::Responses => "gpt-4o-mini",
        Format::Messages => "claude-sonnet-4-5",
        Format::Gemini => "gemini-2.5-flash",
        Format::Ollama => "qwen3:4b",
    }
}

pub(crate) const QUESTION: &str = "How is the weather in Paris?";

/// What the tool says.
pub(crate) fn weather(city: &str) -> String {
    format!("18 degrees in {city}")
}

//! The work that each compared library does.

use std::sync::Arc;

use async_trait::async_trait;

use crate::{formats::Format, genai, omni, raw, rig, yoagent};

/// A library that reads the answers of the local server in one format.
#[async_trait]
pub(crate) trait Reader: Send + Sync {
    /// Sends a prompt, reads the answer event by event, and returns the number of text pieces.
    async fn read(&self) -> usize;
}

/// A library that supports one format and uses the local server as the service.
#[async_trait]
pub(crate) trait Contender: Reader {
    /// Sends a prompt whose answer needs a tool call. All answers are streamed. Returns the final text.
    async fn run(&self) -> String;
}

pub(crate) type Make = fn(Format, &str) -> Option<Arc<dyn Contender>>;

/// All libraries, beginning with this crate.
pub(crate) const ALL: [(&str, Make); 4] = [
    ("omni-agent", omni::contender),
    ("rig", rig::contender),
    ("genai, its loop written by hand", genai::contender),
    ("yoagent", yoagent::contender),
];

/// The minimum work that a program for a single format could do.
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

/// Returns the name of a model. Each library must recognise from this name which service the model belongs to.
pub(crate) fn model(format: Format) -> &'static str {
    match format {
        Format::Chat | Format::Responses => "gpt-4o-mini",
        Format::Messages => "claude-sonnet-4-5",
        Format::Gemini => "gemini-2.5-flash",
        Format::Ollama => "qwen3:4b",
    }
}

pub(crate) const QUESTION: &str = "How is the weather in Paris?";

/// Returns the result of the tool.
pub(crate) fn weather(city: &str) -> String {
    format!("18 degrees in {city}")
}

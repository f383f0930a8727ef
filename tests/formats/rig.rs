//! The formats, and the setup for a scenario in one of them.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    Error,
    agent::{Agent, AgentBuilder, AgentSubscription, Event},
    message::Attachment,
    provider::{
        Model, ModelInfo, Options, ProviderError,
        custom::{
            AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses,
            ReasoningReturn,
        },
        http::{Endpoint, Timeouts},
    },
    subscription::Update,
    tool::{Schema, Tool, ToolContext, ToolError, declared_tool_with_schema, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::server::{
    Seen, Service, Wire, chat::Chat, gemini::Gemini, messages::Messages, ollama::Ollama, responses::Responses,
};

/// The smallest data with the correct first bytes for the file type.
pub(crate) const PNG: &str = "iVBORw0KGgo=";
pub(crate) const PDF: &str = "JVBERi0xLjQK";

/// How long a server may be silent. The clock is paused in tests that depend on this limit.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Messages,
    Chat,
    Responses,
    Gemini,
    Ollama,
}

impl Format {
    pub(crate) const ALL: [Self; 5] =
        [Self::Messages, Self::Chat, Self::Responses, Self::Gemini, Self::Ollama];

    pub(crate) fn wire(self) -> &'static dyn Wire {
        match self {
            Self::Messages => &Messages,
            Self::Chat => &Chat,
            Self::Responses => &Responses,
            Self::Gemini => &Gemini,
            Self::Ollama => &Ollama,
        }
    }

    /// Returns the implementation of the format.
    pub(crate) fn dialect(self) -> Box<dyn Dialect> {
        match self {
            Self::Messages => Box::new(AnthropicMessages::default()),
            Self::Chat => Box::new(ChatCompletions::openai().with_reasoning(ReasoningReturn::Details)),
            Self::Responses => Box::new(OpenAiResponses::openai()),
            Self::Gemini => Box::new(GoogleGemini::default()),
            Self::Ollama => Box::new(OllamaChat::default()),
        }
    }

    /// Returns a thinking model of the service at this address.
    pub(crate) fn model(self, url: &str) -> Model {
        self.model_with(url, |endpoint| endpoint)
    }

    /// Like [`model`](Self::model), with a change to the endpoint.
    pub(crate) fn model_with(self, url: &str, change: impl FnOnce(Endpoint) -> Endpoint) -> Model {
        let (endpoint, id) = match self {
            Self::Messages => (Endpoint::anthropic(), "claude-sonnet-4-5"),
            Self::Chat => {
                let chat = ChatCompletions::openai().with_reasoning(ReasoningReturn::Details);
                (Endpoint::custom("chat", "", chat), "gpt-5.2")
            }
            Self::Responses => (Endpoint::custom("responses", "", OpenAiResponses::openai()), "gpt-5.2"),
            Self::Gemini => (Endpoint::google(), "gemini-3-pro-preview"),
            Self::Ollama => (Endpoint::ollama_at(""), "qwen3"),
        };
        let timeouts = Timeouts::default().with_between_chunks(PATIENCE);
        let endpoint = endpoint.with_base_url(url).with_key("sk-test").with_timeouts(timeouts);
        // These tests check the formats and not the catalogue, so the models have no catalogue entries.
        Model::new(Arc::new(change(endpoint)), id).with_info(ModelInfo::new(id))
    }
}

/// The result of a scenario in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Works,
    /// The format can't express the request, and the caller gets a warning or an error.
    Unsupported,
    /// The service does not report the value that the scenario checks.
    Absent,
}

/// A service of one format, and agents that use it.
pub(crate) struct Rig {
    pub(crate) format: Format,
    pub(crate) service: Service,
}

impl Rig {
    pub(crate) async fn new(format: Format) -> Self {
        Self { format, service: Service::start(format.wire()).await }
    }

    /// Returns the builder of an agent that does not retry by default.
    pub(crate) fn builder(&self) -> AgentBuilder {
        let model = self.format.model(&self.service.url());
        Agent::builder().model(model).options(Options::default().with_max_retries(0))
    }

    pub(crate) async fn agent(&self) -> Agent {
        self.builder().start().await.unwrap()
    }

    pub(crate) async fn agent_with(&self, options: Options) -> Agent {
        let options = options.with_max_retries(0);
        self.builder().options(options).start().await.unwrap()
    }

    /// Returns the last valid request.
    pub(crate) fn last(&self) -> Seen {
        self.service.last()
    }

    /// Returns whether the rig's format is one of these formats.
    pub(crate) fn is(&self, formats: &[Format]) -> bool {
        formats.contains(&self.format)
    }
}

/// Asserts that a warning contains `word`. Returns `Cell::Unsupported`.
#[track_caller]
pub(crate) fn warned(warnings: &[String], word: &str) -> Cell {
    assert!(warnings.iter().any(|warning| warning.contains(word)), "no warning of {word}: {warnings:?}");
    Cell::Unsupported
}

/// Returns the provider's error with which a run failed.
#[track_caller]
pub(crate) fn provider_error(result: Result<impl std::fmt::Debug, Error>) -> ProviderError {
    result.unwrap_err().provider_error().unwrap().clone()
}

pub(crate) async fn next(events: &mut AgentSubscription) -> Arc<Event> {
    match events.next().await {
        Some(Update::Event(numbered)) => numbered.event,
        other => panic!("expected an event, got {other:?}"),
    }
}

/// Waits until a text block contains exactly this text.
pub(crate) async fn text_arrives(events: &mut AgentSubscription, text: &str) {
    let mut said = String::new();
    while said != text {
        match &*next(events).await {
            Event::TextStart { .. } => said.clear(),
            Event::TextDelta { delta, .. } => said += delta,
            Event::Error { failure, .. } => panic!("{failure:?} instead of {text:?}"),
            _ => {}
        }
    }
}

/// Awaits the future. Fails if this takes longer than a minute, so that no test hangs.
pub(crate) async fn within_a_minute<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), what).await.expect("it ends within a minute")
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    city: String,
}

/// A tool that reports rain in every city, and fails for Atlantis.
pub(crate) fn weather() -> impl Tool {
    tool_fn("weather", "The weather in a city.", |place: Place, _: ToolContext| async move {
        match &*place.city {
            "Atlantis" => Err(ToolError::new("there is no such city")),
            city => Ok(format!("rain in {city}")),
        }
    })
}

/// A tool that returns an image.
pub(crate) fn camera() -> impl Tool {
    tool_fn("camera", "Takes a picture of a city.", |_: Place, _: ToolContext| async move {
        Ok::<_, ToolError>(Attachment::base64("image/png", PNG))
    })
}

/// A tool whose calls the application answers itself.
pub(crate) fn question() -> impl Tool {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    declared_tool_with_schema("ask_user", "Asks the user.", Schema::new(schema).unwrap())
}

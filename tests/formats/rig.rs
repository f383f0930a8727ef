//! The formats, and what a scenario of one of them needs.

use std::{sync::Arc, time::Duration};

use omni_agent::{
    agent::{Agent, AgentBuilder, AgentError, AgentSubscription, Event, Failure},
    message::Attachment,
    provider::{
        Model, ModelInfo, Options, ProviderError,
        dialect::{
            AnthropicMessages, ChatCompletions, Dialect, GoogleGemini, OllamaChat, OpenAiResponses,
            ReasoningReturn,
        },
        http::{Endpoint, Timeouts},
    },
    subscription::Update,
    tool::{Schema, SchemaTool, Tool, ToolContext, ToolError, tool_fn},
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use crate::server::{
    Seen, Service, Wire, chat::Chat, gemini::Gemini, messages::Messages, ollama::Ollama, responses::Responses,
};

/// The smallest files that pass for what they are: their first bytes.
pub(crate) const PNG: &str = "iVBORw0KGgo=";
pub(crate) const PDF: &str = "JVBERi0xLjQK";

/// How long a server may be silent. The clock is paused where this matters.
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

    /// The format itself.
    pub(crate) fn dialect(self) -> Box<dyn Dialect> {
        match self {
            Self::Messages => Box::new(AnthropicMessages::default()),
            Self::Chat => Box::new(ChatCompletions::openai().with_reasoning(ReasoningReturn::Details)),
            Self::Responses => Box::new(OpenAiResponses::openai()),
            Self::Gemini => Box::new(GoogleGemini),
            Self::Ollama => Box::new(OllamaChat),
        }
    }

    /// The model of a service at this address, which is one that thinks.
    pub(crate) fn model(self, url: &str) -> Model {
        self.model_with(url, |endpoint| endpoint)
    }

    /// The same with a change to the endpoint.
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
        let timeouts = Timeouts { between_chunks: PATIENCE, ..Timeouts::default() };
        let endpoint = endpoint.with_base_url(url).with_key("sk-test").with_timeouts(timeouts);
        // The formats are tested here, not what the catalogue knows of these models.
        Model::new(Arc::new(change(endpoint)), id).with_info(ModelInfo::new(id))
    }
}

/// What came of a scenario on a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Works,
    /// It can't be asked for, and who asks is told: by a warning, or by an error.
    Unsupported,
    /// The service has no such thing to tell of.
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

    /// An agent that repeats nothing unless it is told to.
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

    /// The last request that obeyed the rules.
    pub(crate) fn last(&self) -> Seen {
        self.service.last()
    }

    /// Whether the format is one of these.
    pub(crate) fn is(&self, formats: &[Format]) -> bool {
        formats.contains(&self.format)
    }
}

/// That the answer's warnings speak of `word`.
#[track_caller]
pub(crate) fn warned(warnings: &[String], word: &str) -> Cell {
    assert!(warnings.iter().any(|warning| warning.contains(word)), "no warning of {word}: {warnings:?}");
    Cell::Unsupported
}

/// The error of the provider that a run failed with.
#[track_caller]
pub(crate) fn provider_error(result: Result<impl std::fmt::Debug, AgentError>) -> ProviderError {
    match result {
        Err(AgentError::Failed(Failure::Provider { error }, _)) => error,
        other => panic!("expected a failed request, got {other:?}"),
    }
}

pub(crate) async fn next(events: &mut AgentSubscription) -> Arc<Event> {
    match events.next().await {
        Some(Update::Event(numbered)) => numbered.event,
        other => panic!("expected an event, got {other:?}"),
    }
}

/// Waits until a text block has grown to this.
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

/// Fails what hangs instead of hanging with it.
pub(crate) async fn within_a_minute<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_mins(1), what).await.expect("it is done within a minute")
}

#[derive(Deserialize, JsonSchema)]
struct Place {
    city: String,
}

/// The weather, which is always the same.
pub(crate) fn weather() -> impl Tool {
    tool_fn("weather", "The weather in a city.", |place: Place, _: ToolContext| async move {
        match &*place.city {
            "Atlantis" => Err(ToolError::new("there is no such city")),
            city => Ok(format!("rain in {city}")),
        }
    })
}

/// A tool that gives an image.
pub(crate) fn camera() -> impl Tool {
    tool_fn("camera", "Takes a picture of a city.", |_: Place, _: ToolContext| async move {
        Ok::<_, ToolError>(Attachment::base64("image/png", PNG))
    })
}

/// A tool that the application answers itself.
pub(crate) fn question() -> SchemaTool {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}});
    SchemaTool::new("ask_user", "Asks the user.", Schema::new(schema).unwrap())
}

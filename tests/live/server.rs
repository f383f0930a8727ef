//! The servers for the live tests. They are optional.

use std::{
    env,
    io::Write,
    sync::{Arc, Once},
};

use omni_agent::provider::{
    Model,
    dialect::{AnthropicMessages, ChatCompletions, Dialect, OpenAiResponses},
    http::Endpoint,
};
use tokio::sync::{Semaphore, SemaphorePermit};

/// The base URLs of the servers. Only one test at a time may use the servers.
pub(crate) struct Live {
    /// Serves the model with its own template.
    pub(crate) chat: String,
    /// Serves the model with a template that supports only tools.
    pub(crate) tools: String,
    _turn: SemaphorePermit<'static>,
}

static TURN: Semaphore = Semaphore::const_new(1);
static SKIPPED: Once = Once::new();

impl Live {
    /// Returns the servers. If they are not configured, prints how to start them and returns `None`.
    pub(crate) async fn get() -> Option<Self> {
        let url = |name| env::var(name).ok().filter(|url| !url.is_empty());
        let (Some(chat), Some(tools)) = (url("OMNI_LIVE_CHAT_URL"), url("OMNI_LIVE_TOOLS_URL")) else {
            // The text is written directly to the standard error, because the output of print macros is hidden if the
            // test passes.
            SKIPPED.call_once(|| {
                let line = "live tests skipped: OMNI_LIVE_CHAT_URL and OMNI_LIVE_TOOLS_URL are not set; \
                            run scripts/live-test.sh, or eval \"$(scripts/local-model.sh start)\" before cargo test\n";
                let _ = std::io::stderr().write_all(line.as_bytes());
            });
            return None;
        };
        let turn = TURN.acquire().await.expect("the semaphore is never closed");
        Some(Self { chat, tools, _turn: turn })
    }
}

/// A wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    ChatCompletions,
    Responses,
    Messages,
}

impl Format {
    /// Returns the name that identifies the format in a message's provider data.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ChatCompletions => ChatCompletions::default().name(),
            Self::Responses => OpenAiResponses::default().name(),
            Self::Messages => AnthropicMessages::default().name(),
        }
    }

    /// Returns a model of this format at the base URL.
    pub(crate) fn model(self, url: &str) -> Model {
        let endpoint = match self {
            Self::ChatCompletions => Endpoint::openai_compatible("local", url),
            Self::Responses => Endpoint::openai_responses_compatible("local", url),
            Self::Messages => Endpoint::anthropic_compatible("local", url),
        };
        Model::new(Arc::new(endpoint), "smollm2-135m")
    }
}

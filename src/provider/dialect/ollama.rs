//! Ollama's chat wire format, `/api/chat`, which streams one JSON object per line.
//!
//! Source: the API reference (<https://docs.ollama.com/api/chat>) and the types of Ollama's own client (`api/types.go`
//! in <https://github.com/ollama/ollama>).

mod decode;
mod encode;

use super::{
    Decoder, Dialect, Encoded, Framing, error,
    names::DeclaredNames,
    output::{self, OutputDecodingPlan},
};
use crate::provider::{ProviderError, ProviderErrorKind, Request, ToolChoice};

/// The name of the wire format.
const NAME: &str = "ollama_chat";

/// Ollama's chat wire format.
///
/// If the wire format has no member for an option, the option is replaced by the nearest setting. If the replacement
/// loses something, it causes a warning:
///
/// - A tool cannot be forced.
/// - Thinking is either on or off. Only `gpt-oss` and [Ollama's own service](Self::with_levels) have levels.
/// - A local server that enforces an output schema never calls tools. If a request has both a schema and tools, the
///   model returns the value as the input of an additional tool, which cannot be forced.
/// - A hint for a long cache keeps the model loaded for an hour.
///
/// A server since version 0.12.6 refuses a prompt that does not fit the context window. Older servers truncate it without an
/// error. The default window is small.
/// Set the size of the window through [`Options::extra`](crate::provider::Options::extra):
///
/// ```
/// use omni_agent::provider::Options;
/// use serde_json::json;
///
/// let options = Options::default().with_extra([("options", json!({"num_ctx": 32_768}))]);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OllamaChat {
    levels: bool,
}

impl OllamaChat {
    /// Sends the effort of thinking as a level to every model. This suits Ollama's own service, which also accepts the
    /// level `max`. Without this setting, levels are sent only to `gpt-oss` and to models that a local server passes on
    /// to Ollama's own service.
    pub fn with_levels(mut self) -> Self {
        self.levels = true;
        self
    }
}

impl Dialect for OllamaChat {
    fn name(&self) -> &'static str {
        NAME
    }

    fn path(&self, _request: &Request) -> String {
        "/chat".to_owned()
    }

    fn framing(&self) -> Framing {
        Framing::NdJson
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        // The wire format has no tool choice, so the output tool cannot be forced.
        let prepared = output::prepared(request, answers_by_tool(request).then_some(false));
        encode::encode(&prepared, self.levels)
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let by_tool = answers_by_tool(request);
        let reading = if by_tool { output::tool_reading(request) } else { OutputDecodingPlan::default() };
        output::decoder(decode::OllamaDecoder::default(), DeclaredNames::default(), reading)
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        refined(error::from_body(status, body))
    }
}

/// Returns whether the model has to return the value for the output schema as the input of a tool. A local server that
/// enforces a schema suppresses all tool calls (<https://github.com/ollama/ollama/issues/13750>).
fn answers_by_tool(request: &Request) -> bool {
    let tools_can_be_used =
        request.options.tool_choice() != Some(&ToolChoice::None) && !request.tools.is_empty();
    tools_can_be_used && request.options.output().is_some()
}

/// Adjusts the kind of an error, and whether it is retryable, according to its text, because Ollama's errors contain
/// only a text.
fn refined(mut error: ProviderError) -> ProviderError {
    let message = error.message.to_lowercase();
    if message.contains("does not support") {
        error.kind = ProviderErrorKind::Unsupported;
        error.retryable = false;
    } else if message.contains("usage limit") {
        // Ollama's cloud limits usage per hour or per week, which is longer than any retry waits, so the request is not
        // repeated.
        error.kind = ProviderErrorKind::Quota;
        error.retryable = false;
    } else if message.contains("requires more system memory") {
        error.retryable = false;
    }
    error
}

//! Ollama's chat format, `/api/chat`, which streams one JSON object a line.
//!
//! Source: the API reference (<https://docs.ollama.com/api/chat>) with the types of Ollama's own client
//! (`api/types.go` in <https://github.com/ollama/ollama>).

mod decode;
mod encode;
mod wire;

use super::{
    Decoder, Dialect, Encoded, Framing, error,
    output::{self, Reading},
    output_tool,
};
use crate::provider::{ErrorKind, ProviderError, Request, ToolChoice};

/// The format's name.
const NAME: &str = "ollama_chat";

/// Ollama's chat format.
///
/// What it has no member for is mapped, with a warning where that loses something: a tool can't be demanded;
/// thinking is on or off, but for `gpt-oss`, which has levels; a server on your own machine that holds an
/// answer to an output schema never calls tools, so that beside tools the answer is asked for as the input of one
/// more tool, which can't be demanded. A hint for a long cache keeps the model loaded for an hour.
///
/// A prompt that does not fit is cut by the server without a word. Its default window is small, and is set
/// through [`Options::extra`](crate::provider::OptionFields::extra):
///
/// ```
/// use omni_agent::provider::Options;
/// use serde_json::json;
///
/// let options = Options::default().with_extra([("options", json!({"num_ctx": 32_768}))]);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct OllamaChat;

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
        // No choice of tools can be said, so that none is demanded either.
        encode::encode(&output_tool::asked(request, answers_by_tool(request).then_some(false)))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let by_tool = answers_by_tool(request);
        let reading = if by_tool { output_tool::reading(request) } else { Reading::default() };
        output::read(decode::OllamaDecoder::default(), reading)
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        refined(error::from_body(status, body))
    }
}

/// Whether the answer has to come as a tool's input: a server on your own machine that holds an answer to a schema
/// lets no tool call through (<https://github.com/ollama/ollama/issues/13750>).
fn answers_by_tool(request: &Request) -> bool {
    let tools_can_be_used =
        request.options.tool_choice != Some(ToolChoice::None) && !request.tools.is_empty();
    tools_can_be_used && request.options.output.is_some()
}

/// The same error with the kind that Ollama's prose means: its errors are a text and nothing else.
fn refined(mut error: ProviderError) -> ProviderError {
    let message = error.message.to_lowercase();
    if message.contains("does not support") {
        error.kind = ErrorKind::Unsupported;
        error.retryable = false;
    } else if message.contains("usage limit") {
        // The cloud's limits for an hour or a week: no retry lives to see them end.
        error.kind = ErrorKind::Quota;
        error.retryable = false;
    } else if message.contains("requires more system memory") {
        error.retryable = false;
    }
    error
}

//! Anthropic's Messages wire format: <https://platform.claude.com/docs/en/api/messages>, streamed as described in
//! <https://platform.claude.com/docs/en/build-with-claude/streaming>.

mod content;
mod decode;
mod encode;
mod event;

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    Decoder, Dialect, Encoded, Framing, error,
    names::ToolNames,
    output::{self, OutputDecodingPlan},
};
use crate::provider::{ProviderError, Request, ThinkingMode, catalogue::AnthropicThinking};

/// The name of the wire format, in `provider_data` and provider items.
const NAME: &str = "anthropic_messages";

/// The maximum length of a tool's name, in characters.
const NAME_LIMIT: usize = 128;

/// The Anthropic Messages wire format. The default value suits services that are compatible with Anthropic.
///
/// The [catalogue](crate::provider::Catalogue) determines what each model supports. Claude models before 4.6, and
/// models other than Claude, think within a token budget. Later Claude models think adaptively, at a given effort. An
/// unsupported combination of options is replaced by the nearest supported one, with a warning.
///
/// # Output schemas
///
/// Older Claude models, and models other than Claude, have no structured outputs. They return the value as the input of
/// a tool. All other models do the same if structured outputs cannot express the schema. This is the case for a
/// recursive schema, a schema that contains a map or a value of any type, or a schema that combines alternatives with
/// properties.
///
/// # Data that only the service understands
///
/// Signatures carry two kinds of data that only this service understands and that have to be sent back to it. The first
/// kind is the citations of a text, one JSON value per line. The second kind is the `caller` of a tool use that a
/// server tool requested. All other private data, such as the uses of tools that the service runs itself, becomes
/// provider items.
///
/// # Thinking
///
/// Claude 5.1 and later reject a request that sends thinking back after the system prompt, the tools or earlier
/// messages have changed. [`with_block_binding`](Self::with_block_binding) lets the service drop such thinking instead.
///
/// Models other than Claude get their thinking back even if it has no signature. The models of DeepSeek, `MiMo` and Kimi
/// reject answers without thinking, such as those of a backup model, so these answers are sent with a blank thinking.
///
/// Claude 4.7 and later hide the text of their thinking unless `thinking.display` requests it. Whenever thinking is on,
/// a summary of the text is requested. To hide the text, set `thinking.display` to `omitted` in
/// [`Options::extra`](crate::provider::Options::extra).
///
/// # Output limit
///
/// The wire format requires a limit. If the options set none, the limit is the smallest of 32,000 tokens, the model's
/// output limit, and the model's context window without the estimated input, but at least 4,096 tokens. For a thinking
/// budget, 4,096 tokens more than the budget take the place of 32,000 tokens, if that is more.
///
/// If a thinking budget does not fit below the limit, the request has a lower budget. If the options set no limit, the
/// budget is lowered to the budget of a lower effort, so that it seldom changes while the context window fills. Each
/// change invalidates the cached messages.
///
/// # Cache breakpoints
///
/// If the options contain a cache hint, the system prompt, the last tool and the end of the messages have a cache
/// breakpoint. If [`prepare_step`](crate::AgentCallbacks::prepare_step) has added something at the end, a second
/// breakpoint in the messages stands before it, unless the request would then have more than the four breakpoints that
/// the service accepts. Breakpoints in [`Options::extra`](crate::provider::Options::extra) and in the provider items of
/// the history count. Body hooks run later, so a hook that adds a breakpoint has to keep to the limit itself.
///
/// # Tools that the service runs
///
/// If a model uses a tool of the service and a tool of the application at the same time, the service runs its own tool
/// when it gets the application's results. The message with the results must then contain nothing else: a text in it
/// ends the turn, and the service rejects the request because of the use that still waits
/// (<https://platform.claude.com/docs/en/agents-and-tools/tool-use/handle-tool-calls>). Therefore, if anything else
/// stands in that message, such as a reminder that `prepare_step` has added or a prompt that has joined the turn, the
/// waiting use is not sent. The model can repeat it.
///
/// # Code execution and fallbacks
///
/// The newest container of the conversation that has not expired is sent as `container`, unless
/// [`Options::extra`](crate::provider::Options::extra) sets it. A container counts as expired from one minute before its
/// expiry on, at the time of the newest message. A request that is sent much later may name an expired container, which
/// the service rejects. To continue such a conversation, set `container` in `Options::extra`.
///
/// If another model takes over within a response, the blocks before its `fallback` block are void, which a
/// [`Delta::Retry`](crate::provider::Delta::Retry) reports. If a stored history still has such blocks, they are not
/// sent, and neither are the results of their tool uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnthropicMessages {
    block_binding: bool,
}

impl AnthropicMessages {
    /// Lets Claude 5.1 and later drop thinking whose preceding content has changed.
    ///
    /// The request then has the member `thinking.block_binding` and a beta header, which is added to the user's
    /// `anthropic-beta`. Anthropic and OpenCode accept the member. Gateways to other clouds may reject each request
    /// that contains the member, so it is not sent by default. It is never sent if the options or
    /// [`Options::extra`](crate::provider::Options::extra) select a thinking mode that does not support it.
    pub fn with_block_binding(mut self) -> Self {
        self.block_binding = true;
        self
    }
}

impl Dialect for AnthropicMessages {
    fn name(&self) -> &'static str {
        NAME
    }

    fn path(&self, _request: &Request) -> String {
        "/messages".to_owned()
    }

    fn headers(&self, body: &Map<String, Value>) -> Vec<(&'static str, &'static str)> {
        // Source: https://platform.claude.com/docs/en/api/versioning
        let mut headers = vec![("anthropic-version", "2023-06-01")];
        // The service rejects `block_binding` without the following beta header:
        // https://platform.claude.com/docs/en/build-with-claude/preserved-thinking
        if body.get("thinking").is_some_and(|thinking| thinking.get("block_binding").is_some()) {
            headers.push(("anthropic-beta", "thinking-binding-controls-2026-08-01"));
        }
        headers
    }

    fn framing(&self) -> Framing {
        Framing::Sse
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        encode::encode(&prepared(request), self.block_binding)
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let reading = match AnthropicOutputMode::of(request) {
            AnthropicOutputMode::None => OutputDecodingPlan::default(),
            AnthropicOutputMode::Native => {
                OutputDecodingPlan { enforced: true, ..OutputDecodingPlan::default() }
            }
            AnthropicOutputMode::Tool { .. } => output::tool_reading(request),
        };
        let declared = ToolNames::of(&prepared(request), NAME_LIMIT, "").with_properties().declared();
        output::decoder(decode::AnthropicDecoder::new(request), declared, reading)
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        error::from_body(status, body)
    }
}

/// How a request's output schema is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnthropicOutputMode {
    /// The request has no output schema.
    None,
    /// As structured output.
    Native,
    /// As the schema of a tool.
    Tool {
        /// Whether the use of the tool can be forced.
        forced: bool,
    },
}

impl AnthropicOutputMode {
    fn of(request: &Request) -> Self {
        let traits = &request.traits().messages;
        let thinks = request.options.thinking().is_some_and(ThinkingMode::is_on)
            && traits.thinking != AnthropicThinking::None;
        match request.options.output() {
            None => Self::None,
            Some(output)
                if traits.structured_output
                    && !output::tool_is_needed(request)
                    && encode::output_schema(output.schema.as_value()).is_some() =>
            {
                Self::Native
            }
            Some(_) => Self::Tool { forced: traits.forced_tools && !thinks },
        }
    }
}

/// Returns the request. If its output schema is sent as the input of a tool, the returned request has the output tool
/// instead.
fn prepared(request: &Request) -> Cow<'_, Request> {
    let tool = match AnthropicOutputMode::of(request) {
        AnthropicOutputMode::Tool { forced } => Some(forced),
        AnthropicOutputMode::None | AnthropicOutputMode::Native => None,
    };
    output::prepared(request, tool)
}

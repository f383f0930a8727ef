//! Anthropic's Messages format: <https://platform.claude.com/docs/en/api/messages>, streamed as
//! <https://platform.claude.com/docs/en/build-with-claude/streaming> says.

mod content;
mod decode;
mod encode;
mod models;
mod schema;

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    Decoder, Dialect, Encoded, Framing, error,
    names::named,
    output::{self, Reading},
    output_tool,
};
use crate::provider::{ProviderError, Request};

/// The format's name, in `provider_data` and opaque items.
const NAME: &str = "anthropic_messages";

/// The Anthropic Messages format.
///
/// What a model takes is read off its id: models before Claude 4.6, and ids that are no Claude's, think on a
/// token budget; later ones adaptively, at an effort. A combination that the service refuses is mapped to the
/// nearest that it takes, with a warning.
///
/// Models without structured outputs, and those that are no Claude's, give an answer under an output schema as the
/// input of a tool, and so do all under a schema that structured outputs can't say: a recursive one, one with a map or a
/// value of any kind in it, or with alternatives beside properties.
///
/// Two things travel in signatures, since only this service understands them and needs them back: the
/// citations of a text (one JSON value a line), and the caller of a tool use that a server tool made. What
/// else is private to the service, such as the tools that it runs itself, becomes opaque items.
///
/// Claude 5.1 and later refuse thinking that comes back behind another system prompt, other tools or other messages
/// than it was thought behind. [`with_block_binding`](Self::with_block_binding) lets them drop it instead.
///
/// Claude 4.7 and later hide the text of their thinking unless `thinking.display` asks for it; set it through
/// [`Options::extra`](crate::provider::OptionFields::extra).
///
/// The default is what compatible services understand.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnthropicMessages {
    block_binding: bool,
}

impl AnthropicMessages {
    /// The same format, telling Claude 5.1 and later to drop thinking that no longer stands behind what it was thought
    /// behind, or not (`thinking.block_binding`, with its beta header, which is added to an `anthropic-beta` of yours).
    /// Anthropic and OpenCode take that member; gateways to other clouds may refuse each request that has it, so it is
    /// not said by default. Nor is it beside a way of thinking that it can't stand beside, wherever that is asked for:
    /// in the options or in [`Options::extra`](crate::provider::OptionFields::extra).
    pub fn with_block_binding(mut self, said: bool) -> Self {
        self.block_binding = said;
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
        // https://platform.claude.com/docs/en/api/versioning
        let mut headers = vec![("anthropic-version", "2023-06-01")];
        // The member is refused without it: https://platform.claude.com/docs/en/build-with-claude/preserved-thinking
        if body.get("thinking").is_some_and(|thinking| thinking.get("block_binding").is_some()) {
            headers.push(("anthropic-beta", "thinking-binding-controls-2026-08-01"));
        }
        headers
    }

    fn framing(&self) -> Framing {
        Framing::Sse
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        encode::encode(&asked(request), self.block_binding)
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let reading = match models::Output::of(request) {
            models::Output::None => Reading::default(),
            models::Output::Native => Reading { enforced: true, ..Reading::default() },
            models::Output::Tool { .. } => output_tool::reading(request),
        };
        let decoder = named(decode::MessagesDecoder::default(), &asked(request), content::NAME_LIMIT, "");
        output::read(decoder, reading)
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        error::from_body(status, body)
    }
}

/// The request with the output tool, where that stands in for its output schema.
fn asked(request: &Request) -> Cow<'_, Request> {
    let tool = match models::Output::of(request) {
        models::Output::Tool { forced } => Some(forced),
        models::Output::None | models::Output::Native => None,
    };
    output_tool::asked(request, tool)
}

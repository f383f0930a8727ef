//! The OpenAI Responses format, without state at the service: the whole conversation goes with each request.
//!
//! Source: the API reference of OpenAI (<https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>) with the types of its official SDKs;
//! deviations of other services are named where they are handled.

mod answer;
mod decode;
mod encode;
mod input;
mod item;
mod reasoning;
mod received;
mod wire;

use std::borrow::Cow;

use super::{
    Decoder, Dialect, EffortWords, Encoded, Framing, OutputSupport, error, names::named, openai, output,
    output_tool,
};
use crate::provider::{ProviderError, Request};

/// The format's name, in `provider_data` and opaque items.
const NAME: &str = "openai_responses";

/// The OpenAI Responses format.
///
/// What a model of OpenAI takes is read off its id, whoever serves it; what it refuses is mapped to the nearest
/// that it takes, or left out, with a warning.
///
/// Nothing is stored at the service (`store: false`). Reasoning comes back with its encrypted payload and
/// goes to the service again, as <https://platform.openai.com/docs/guides/reasoning#encrypted-reasoning-items>
/// says; what can be read of it becomes thinking, and the signature of that is the item itself. Items of
/// tools that the service runs become opaque items, at their place. A text's signature holds what else its
/// part needs to go back: citations, the phase, or that it is a refusal.
///
/// The default is what compatible services understand. What a service wants otherwise is set here:
///
/// ```
/// use omni_agent::provider::dialect::{OpenAiResponses, ReasoningItems};
///
/// let local = OpenAiResponses::default().with_reasoning(ReasoningItems::Readable);
/// # let _ = local;
/// ```
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent switches")]
pub struct OpenAiResponses {
    output: OutputSupport,
    output_enforced: bool,
    effort: Option<EffortWords>,
    summaries: bool,
    reasoning: ReasoningItems,
    metadata: bool,
    cache_hints: bool,
    min_output_tokens: u32,
}

/// Which of a model's reasoning items go back to it with the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningItems {
    /// Those with an encrypted payload or readable reasoning, as they came.
    #[default]
    All,
    /// Those with an encrypted payload, without readable reasoning, which OpenAI refuses.
    Encrypted,
    /// Those with readable reasoning, without an encrypted payload, for servers of open models.
    Readable,
    /// None.
    Never,
}

impl Default for OpenAiResponses {
    fn default() -> Self {
        Self {
            output: OutputSupport::default(),
            output_enforced: false,
            effort: Some(EffortWords::COMMON),
            summaries: false,
            reasoning: ReasoningItems::default(),
            metadata: true,
            cache_hints: false,
            min_output_tokens: 0,
        }
    }
}

impl OpenAiResponses {
    /// The format as OpenAI itself speaks it.
    pub fn openai() -> Self {
        Self::default()
            .with_effort(Some(EffortWords::OPENAI))
            .with_summaries(true)
            .with_reasoning(ReasoningItems::Encrypted)
            .with_enforced_output(true)
            .with_cache_hints(true)
            .with_min_output_tokens(16)
    }

    /// The same format with output schemas said this way.
    pub fn with_output(mut self, output: OutputSupport) -> Self {
        self.output = output;
        self
    }

    /// The same format, for a service that holds each answer to a [strict](OutputSupport::Strict) schema, or not. OpenAI
    /// does; many services that take one do not, so that by default the answer is looked for among other words too.
    pub fn with_enforced_output(mut self, enforced: bool) -> Self {
        self.output_enforced = enforced;
        self
    }

    /// The same format with these words for `reasoning.effort`; `None` for a service without the member.
    pub fn with_effort(mut self, words: Option<EffortWords>) -> Self {
        self.effort = words;
        self
    }

    /// The same format, asking for summaries of the reasoning wherever thinking is asked for, or not.
    pub fn with_summaries(mut self, asked: bool) -> Self {
        self.summaries = asked;
        self
    }

    /// The same format, sending these reasoning items back.
    pub fn with_reasoning(mut self, items: ReasoningItems) -> Self {
        self.reasoning = items;
        self
    }

    /// The same format, sending the application's labels as `metadata` or not. It does by default.
    pub fn with_metadata(mut self, sent: bool) -> Self {
        self.metadata = sent;
        self
    }

    /// The same format, saying a hint for a cache or not: as a `prompt_cache_key` that stays the same for a
    /// conversation, and for a long one as `prompt_cache_retention` too, if the model has that. Caching itself needs no words.
    pub fn with_cache_hints(mut self, said: bool) -> Self {
        self.cache_hints = said;
        self
    }

    /// The same format with the smallest `max_output_tokens` that the service takes.
    pub fn with_min_output_tokens(mut self, count: u32) -> Self {
        self.min_output_tokens = count;
        self
    }

    /// The request with the output tool, where that stands in for its output schema.
    fn asked<'a>(&self, request: &'a Request) -> Cow<'a, Request> {
        let is_tool = openai::supported(self.output, request) == OutputSupport::Tool;
        output_tool::asked(request, is_tool.then_some(true))
    }
}

impl Dialect for OpenAiResponses {
    fn name(&self) -> &'static str {
        NAME
    }

    fn path(&self, _request: &Request) -> String {
        "/responses".to_owned()
    }

    fn framing(&self) -> Framing {
        Framing::Sse
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        encode::encode(self, &self.asked(request))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        output::read(
            named(decode::ResponsesDecoder::default(), &self.asked(request), openai::NAME_LIMIT, ""),
            openai::reading(openai::supported(self.output, request), self.output_enforced, request),
        )
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        let mut error = error::from_body(status, body);
        if self.summaries && body.contains("reasoning.summary") {
            // It is for organisations alone that are verified.
            error.message.push_str(
                " (OpenAiResponses::with_summaries(false) asks for no summaries; then thinking can't be read)",
            );
        }
        error
    }
}

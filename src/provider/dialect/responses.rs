//! The OpenAI Responses wire format, used without state at the service. Each request contains the whole conversation.
//!
//! Source: the API reference of OpenAI (<https://platform.openai.com/docs/api-reference/responses> and
//! <https://platform.openai.com/docs/api-reference/responses-streaming>) and the types of its official SDKs. Deviations
//! of other services are described in the code that supports them.

mod decode;
mod encode;
mod item;

pub(in crate::provider) use item::is_commentary;

use std::borrow::Cow;

use super::{
    Decoder, Dialect, EffortWords, Encoded, Framing, OutputSupport, error,
    names::{NAME_LIMIT, ToolNames},
    output,
};
use crate::provider::{ProviderError, Request};

/// The name of the wire format, in `provider_data` and provider items.
const NAME: &str = "openai_responses";

/// The OpenAI Responses wire format.
///
/// The [catalogue](crate::provider::Catalogue) determines what each of OpenAI's models supports, no matter which
/// service runs the model. An unsupported option is ignored or replaced by the nearest supported one, with a warning.
///
/// Nothing is stored at the service (`store: false`). Reasoning arrives with its encrypted payload and is sent back, as
/// described in <https://platform.openai.com/docs/guides/reasoning#encrypted-reasoning-items>. The readable part of the
/// reasoning becomes a thinking block, whose signature is the reasoning item itself. Items of tools that the service
/// runs become provider items and keep their positions. The signature of a text contains the other data that is needed
/// to send its part back. This data is the citations, the phase, and the information that the part is a refusal.
///
/// An item that the application has to answer, such as a call of a custom tool, a shell or a computer, causes a warning
/// at the end of the response. To answer it, add a user message with a [`ProviderItem`](crate::message::ProviderItem)
/// that contains the answer. Requests without an answer omit the item, because the service would reject them.
///
/// The default value suits services that are compatible with OpenAI. The setters configure the deviations of a service:
///
/// ```
/// use omni_agent::provider::custom::{OpenAiResponses, ReasoningItems};
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
    /// Whether a placeholder precedes a conversation that the assistant begins. The templates of many open models
    /// require a user message first.
    user_first: bool,
}

/// The reasoning items that are sent back to a model with the conversation. Models that do not reason get none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningItems {
    /// Items with an encrypted payload or readable reasoning, unchanged.
    #[default]
    All,
    /// Items with an encrypted payload. Their readable reasoning is omitted, because OpenAI rejects it.
    Encrypted,
    /// Items with readable reasoning. Their encrypted payload is omitted, which suits servers of open models.
    Readable,
    /// No items.
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
            user_first: true,
        }
    }
}

impl OpenAiResponses {
    /// The wire format as OpenAI itself implements it.
    pub fn openai() -> Self {
        Self { user_first: false, ..Self::default() }
            .with_effort(Some(EffortWords::OPENAI))
            .with_summaries()
            .with_reasoning(ReasoningItems::Encrypted)
            .with_enforced_output()
            .with_cache_hints()
            .with_min_output_tokens(16)
    }

    crate::setters::setters! {
        /// Sets how output schemas are sent.
        pub fn with_output(self, output: OutputSupport) { self.output = output }

        /// Declares that the service guarantees that each response fits a [strict](OutputSupport::Strict) schema.
        ///
        /// OpenAI guarantees this. Many other services accept a strict schema without this guarantee, so by default the
        /// value is also searched for in surrounding text.
        pub fn with_enforced_output(self) { self.output_enforced = true }

        /// Sets the words for `reasoning.effort`. Use `None` for a service that does not have this member.
        pub fn with_effort(self, words: Option<EffortWords>) { self.effort = words }

        /// Makes each request for thinking also request summaries of the reasoning.
        pub fn with_summaries(self) { self.summaries = true }

        /// Requests no summaries of the reasoning. This is the default, except for [`openai`](Self::openai).
        pub fn without_summaries(self) { self.summaries = false }

        /// Sets which reasoning items are sent back.
        pub fn with_reasoning(self, items: ReasoningItems) { self.reasoning = items }

        /// Ignores the application's labels, with a warning. By default, the labels are sent as `metadata`.
        pub fn without_metadata(self) { self.metadata = false }

        /// Sends cache hints, which are ignored by default. A hint is sent as a `prompt_cache_key` that stays the same
        /// for a conversation. If the model supports long caching, a hint for long caching also sets
        /// `prompt_cache_retention`. Caching itself needs no setting.
        pub fn with_cache_hints(self) { self.cache_hints = true }

        /// Sets the smallest `max_output_tokens` that the service accepts.
        pub fn with_min_output_tokens(self, count: u32) { self.min_output_tokens = count }
    }

    /// Returns the request. If its output schema is sent as the input of a tool, the returned request has the output
    /// tool instead.
    fn prepared<'a>(&self, request: &'a Request) -> Cow<'a, Request> {
        let is_tool = output::supported(self.output, request) == OutputSupport::Tool;
        output::prepared(request, is_tool.then_some(true))
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
        encode::encode(self, &self.prepared(request))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        output::decoder(
            decode::ResponsesDecoder::default(),
            ToolNames::of(&self.prepared(request), NAME_LIMIT, "").declared(),
            output::reading(output::supported(self.output, request), self.output_enforced, request),
        )
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        let mut error = error::from_body(status, body);
        if self.summaries && body.contains("reasoning.summary") {
            // The service refuses summaries for organisations that are not verified, so name the setting that requests
            // none.
            error.message.push_str(
                " (OpenAiResponses::without_summaries() requests no summaries; thinking is then not readable)",
            );
        }
        error
    }
}

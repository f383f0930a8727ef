//! The OpenAI Chat Completions format, as OpenAI and the many services that are compatible with it speak it.
//!
//! Source: the API reference of OpenAI (<https://platform.openai.com/docs/api-reference/chat>) with the types
//! of its official SDKs; deviations of other services are named where they are handled.

mod calls;
mod decode;
mod details;
mod encode;
mod wire;

use super::{Decoder, Dialect, Encoded, Framing, error};
use crate::provider::{Effort, ProviderError, Request};

/// The format's name.
const NAME: &str = "chat_completions";

/// The OpenAI Chat Completions format.
///
/// The default is what most compatible services understand. What a service wants otherwise is set here:
///
/// ```
/// use omni_agent::provider::dialect::{ChatCompletions, EffortWords, MaxTokensField, SystemRole};
///
/// let openai = ChatCompletions::default()
///     .with_max_tokens_field(MaxTokensField::MaxCompletionTokens)
///     .with_system_role(SystemRole::Developer)
///     .with_effort(Some(EffortWords::OPENAI))
///     .with_cache_retention(true);
/// # let _ = openai;
/// ```
#[derive(Clone, Debug)]
pub struct ChatCompletions {
    max_tokens_field: MaxTokensField,
    system_role: SystemRole,
    stream_usage: bool,
    output: OutputSupport,
    effort: Option<EffortWords>,
    reasoning: ReasoningReturn,
    metadata: bool,
    cache_retention: bool,
    max_stop_sequences: usize,
}

/// Which member carries the output limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaxTokensField {
    /// `max_tokens`, as most services take it.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, as OpenAI demands it.
    MaxCompletionTokens,
}

/// Under which role the system prompt is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemRole {
    /// `system`, which everyone knows.
    #[default]
    System,
    /// `developer`, OpenAI's newer word.
    Developer,
}

/// How an output schema is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputSupport {
    /// As a strict `json_schema`: the schema is rewritten to the subset that strict services take, and sent
    /// without `strict` where it can't be.
    #[default]
    Strict,
    /// As a `json_schema`, just as it is.
    Schema,
    /// As a `json_object`, with the schema in the system prompt.
    Object,
}

/// The words that a service has for levels of reasoning, in `reasoning_effort`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct EffortWords {
    /// No reasoning; `None` where it can't be turned off.
    pub off: Option<&'static str>,
    pub minimal: &'static str,
    pub low: &'static str,
    pub medium: &'static str,
    pub high: &'static str,
    pub max: &'static str,
}

impl EffortWords {
    /// The three levels that every service with the member knows.
    pub const COMMON: Self =
        Self { off: Some("none"), minimal: "low", low: "low", medium: "medium", high: "high", max: "high" };

    /// All that OpenAI has; each model takes only some of them.
    pub const OPENAI: Self = Self { minimal: "minimal", max: "xhigh", ..Self::COMMON };

    pub(super) const fn word(self, effort: Effort) -> &'static str {
        match effort {
            Effort::Minimal => self.minimal,
            Effort::Low => self.low,
            Effort::Medium => self.medium,
            Effort::High => self.high,
            Effort::Max => self.max,
        }
    }
}

/// Whether a model's reasoning goes back to it with the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReasoningReturn {
    /// No: most services refuse or ignore it.
    #[default]
    Never,
    /// Its text, in the member `reasoning_content` of the assistant message.
    Content,
    /// The opaque entries in the member `reasoning_details`, gathered from the answer, as OpenRouter wants
    /// it.
    Details,
}

impl Default for ChatCompletions {
    fn default() -> Self {
        Self {
            max_tokens_field: MaxTokensField::default(),
            system_role: SystemRole::default(),
            stream_usage: true,
            output: OutputSupport::default(),
            effort: Some(EffortWords::COMMON),
            reasoning: ReasoningReturn::default(),
            metadata: true,
            cache_retention: false,
            max_stop_sequences: 4,
        }
    }
}

impl ChatCompletions {
    /// The format as OpenAI itself speaks it.
    pub fn openai() -> Self {
        Self::default()
            .with_max_tokens_field(MaxTokensField::MaxCompletionTokens)
            .with_system_role(SystemRole::Developer)
            .with_effort(Some(EffortWords::OPENAI))
            .with_metadata(false)
            .with_cache_retention(true)
    }

    /// The same format with the output limit in `field`.
    pub fn with_max_tokens_field(mut self, field: MaxTokensField) -> Self {
        self.max_tokens_field = field;
        self
    }

    /// The same format with the system prompt under `role`.
    pub fn with_system_role(mut self, role: SystemRole) -> Self {
        self.system_role = role;
        self
    }

    /// The same format, asking for usage with `stream_options` or not. It does by default; without it most
    /// services tell no usage.
    pub fn with_stream_usage(mut self, asked: bool) -> Self {
        self.stream_usage = asked;
        self
    }

    /// The same format with output schemas said this way.
    pub fn with_output(mut self, output: OutputSupport) -> Self {
        self.output = output;
        self
    }

    /// The same format with these words for `reasoning_effort`; `None` for a service without the member.
    pub fn with_effort(mut self, words: Option<EffortWords>) -> Self {
        self.effort = words;
        self
    }

    /// The same format, sending reasoning back or not.
    pub fn with_reasoning(mut self, reasoning: ReasoningReturn) -> Self {
        self.reasoning = reasoning;
        self
    }

    /// The same format, sending the application's labels as `metadata` or not. It does by default. OpenAI
    /// takes them only for answers that it is told to store.
    pub fn with_metadata(mut self, sent: bool) -> Self {
        self.metadata = sent;
        self
    }

    /// The same format, saying the hint for a long cache as `prompt_cache_retention` or not. Caching itself
    /// needs no words.
    pub fn with_cache_retention(mut self, said: bool) -> Self {
        self.cache_retention = said;
        self
    }

    /// The same format with at most this many stop sequences; 4 by default, as at OpenAI.
    pub fn with_max_stop_sequences(mut self, count: usize) -> Self {
        self.max_stop_sequences = count;
        self
    }
}

impl Dialect for ChatCompletions {
    fn name(&self) -> &'static str {
        NAME
    }

    fn path(&self, _request: &Request) -> String {
        "/chat/completions".to_owned()
    }

    fn framing(&self) -> Framing {
        Framing::Sse
    }

    fn encode(&self, request: &Request) -> Result<Encoded, ProviderError> {
        encode::encode(self, request)
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::new(decode::ChatDecoder::new(self.reasoning == ReasoningReturn::Details))
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        error::from_body(status, body)
    }
}

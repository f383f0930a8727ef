//! The OpenAI Chat Completions format, as OpenAI and the many services that are compatible with it speak it.
//!
//! Source: the API reference of OpenAI (<https://platform.openai.com/docs/api-reference/chat>) with the types
//! of its official SDKs; deviations of other services are named where they are handled.

mod cache;
mod calls;
mod decode;
mod details;
mod encode;
mod messages;
mod switches;
mod thinking;
mod wire;

use std::borrow::Cow;

use serde_json::{Map, Value};
pub use switches::{
    CacheField, Files, MaxTokensField, OutputSupport, ReasoningReturn, SystemRole, ThinkingField, ToolChoices,
};

use super::{
    Decoder, Dialect, EffortWords, Encoded, Framing, error, names::named, openai, output, output_tool,
};
use crate::provider::{ProviderError, Request};

/// The format's name.
const NAME: &str = "chat_completions";

/// The OpenAI Chat Completions format.
///
/// The default is what most compatible services understand. What a service wants otherwise is set here, and
/// what it wants for some of its models by a rule on their ids:
///
/// ```
/// use omni_agent::provider::dialect::{
///     ChatCompletions, MaxTokensField, OutputSupport, ReasoningReturn, ThinkingField,
/// };
///
/// let service = ChatCompletions::default()
///     .with_max_tokens_field(MaxTokensField::MaxCompletionTokens)
///     .with_output(OutputSupport::Object)
///     .with_thinking(ThinkingField::Type(None))
///     .with_model_rules(|model, chat| match model {
///         "thinker" => chat
///             .with_thinking(ThinkingField::Always)
///             .with_reasoning(ReasoningReturn::Content),
///         _ => chat,
///     });
/// # let _ = service;
/// ```
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent switches")]
pub struct ChatCompletions {
    max_tokens_field: MaxTokensField,
    system_role: SystemRole,
    stream_usage: bool,
    output: OutputSupport,
    output_beside_tools: bool,
    output_enforced: bool,
    thinking: ThinkingField,
    reasoning: ReasoningReturn,
    sampling: bool,
    tool_choices: ToolChoices,
    files: Files,
    metadata: bool,
    cache: CacheField,
    max_stop_sequences: usize,
    tools_beside_effort: bool,
    members: Map<String, Value>,
    rules: Option<ModelRules>,
}

/// What is particular about models, by their ids: takes the format as the service speaks it, and gives it as
/// it is spoken with this model.
pub type ModelRules = fn(model: &str, chat: ChatCompletions) -> ChatCompletions;

impl Default for ChatCompletions {
    fn default() -> Self {
        Self {
            max_tokens_field: MaxTokensField::default(),
            system_role: SystemRole::default(),
            stream_usage: true,
            output: OutputSupport::default(),
            output_beside_tools: true,
            output_enforced: false,
            thinking: ThinkingField::default(),
            reasoning: ReasoningReturn::default(),
            sampling: true,
            tool_choices: ToolChoices::default(),
            files: Files::default(),
            metadata: true,
            cache: CacheField::default(),
            max_stop_sequences: 4,
            tools_beside_effort: true,
            members: Map::new(),
            rules: None,
        }
    }
}

impl ChatCompletions {
    /// The format as OpenAI itself speaks it.
    pub fn openai() -> Self {
        Self::default()
            .with_max_tokens_field(MaxTokensField::MaxCompletionTokens)
            .with_system_role(SystemRole::Developer)
            .with_thinking(ThinkingField::Effort(EffortWords::OPENAI))
            .with_enforced_output(true)
            .with_metadata(false)
            .with_cache(CacheField::Retention)
            .with_tools_beside_effort(false)
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

    /// The same format, for a service that takes `response_format` beside tools or not. It does by default;
    /// if not, an output schema beside tools is said as by [`OutputSupport::Tool`].
    pub fn with_output_beside_tools(mut self, taken: bool) -> Self {
        self.output_beside_tools = taken;
        self
    }

    /// The same format, for a service that holds each answer to a [strict](OutputSupport::Strict) schema, or not. OpenAI
    /// does; many services that take one do not, so that by default the answer is looked for among other words too.
    pub fn with_enforced_output(mut self, enforced: bool) -> Self {
        self.output_enforced = enforced;
        self
    }

    /// The same format with thinking asked for this way.
    pub fn with_thinking(mut self, field: ThinkingField) -> Self {
        self.thinking = field;
        self
    }

    /// The same format, sending reasoning back or not.
    pub fn with_reasoning(mut self, reasoning: ReasoningReturn) -> Self {
        self.reasoning = reasoning;
        self
    }

    /// The same format, for models that take `temperature` and `top_p` or not. They do by default; if not,
    /// these are left out with a warning.
    pub fn with_sampling(mut self, taken: bool) -> Self {
        self.sampling = taken;
        self
    }

    /// The same format, for a service that knows these tool choices.
    pub fn with_tool_choices(mut self, choices: ToolChoices) -> Self {
        self.tool_choices = choices;
        self
    }

    /// The same format, for a service that takes these attachments.
    pub fn with_files(mut self, files: Files) -> Self {
        self.files = files;
        self
    }

    /// The same format, sending the application's labels as `metadata` or not. It does by default. OpenAI
    /// takes them only for answers that it is told to store.
    pub fn with_metadata(mut self, sent: bool) -> Self {
        self.metadata = sent;
        self
    }

    /// The same format with hints for the cache said this way.
    pub fn with_cache(mut self, field: CacheField) -> Self {
        self.cache = field;
        self
    }

    /// The same format with at most this many stop sequences; 4 by default, as at OpenAI.
    pub fn with_max_stop_sequences(mut self, count: usize) -> Self {
        self.max_stop_sequences = count;
        self
    }

    /// The same format, for a service at which any model of OpenAI may reason and use tools, or not. It may by default. At
    /// OpenAI itself, those since GPT-5.4 use tools in this format only while they do not reason, and some never: with
    /// tools they are told not to, with a warning, and for those that can't help it the request is an error that names
    /// the Responses format.
    pub fn with_tools_beside_effort(mut self, taken: bool) -> Self {
        self.tools_beside_effort = taken;
        self
    }

    /// The same format with one more member in each body, in place of what the format itself puts there.
    pub fn with_member(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.members.insert(name.into(), value.into());
        self
    }

    /// The same format with rules on what is particular about models, in place of those before. Rules that a
    /// rule sets are not followed.
    pub fn with_model_rules(mut self, rules: ModelRules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// The format as it is spoken with the model of `request`.
    fn of(&self, request: &Request) -> Cow<'_, Self> {
        match self.rules {
            Some(rules) => Cow::Owned(rules(&request.model, self.clone())),
            None => Cow::Borrowed(self),
        }
    }

    /// The request with the output tool, where that stands in for its output schema.
    fn asked<'a>(&self, request: &'a Request) -> Cow<'a, Request> {
        let is_tool = encode::output_support(self, request) == OutputSupport::Tool;
        let forced = encode::tool_choices(self, request) == ToolChoices::All;
        output_tool::asked(request, is_tool.then_some(forced))
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
        let chat = self.of(request);
        encode::encode(&chat, &chat.asked(request))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let chat = self.of(request);
        let decoder = decode::ChatDecoder::new(chat.reasoning == ReasoningReturn::Details, chat.stream_usage);
        output::read(
            named(decoder, &chat.asked(request), openai::NAME_LIMIT, ""),
            openai::reading(encode::output_support(&chat, request), chat.output_enforced, request),
        )
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        error::from_body(status, body)
    }
}

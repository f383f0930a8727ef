//! The OpenAI Chat Completions wire format, as OpenAI and the many compatible services implement it.
//!
//! Source: the API reference of OpenAI (<https://platform.openai.com/docs/api-reference/chat>) and the types of its
//! official SDKs. Deviations of other services are described in the code that supports them.

mod cache;
mod calls;
mod decode;
mod details;
mod encode;
mod messages;
mod rules;
mod switches;
mod thinking;
mod wire;

use std::borrow::Cow;

use serde_json::{Map, Value};
pub use switches::{CacheField, Files, OutputSupport, ReasoningReturn, ThinkingField, ToolChoices};

use super::{
    Decoder, Dialect, EffortWords, Encoded, Framing, error, names::named, openai, output, output_tool,
};
use crate::provider::{ProviderError, Request};

/// The name of the wire format.
const NAME: &str = "chat_completions";

/// The OpenAI Chat Completions wire format.
///
/// The default value suits most services that are compatible with OpenAI. The setters configure the deviations of a
/// service. [`with_model_rules`](Self::with_model_rules) configures the deviations of individual models by their ids:
///
/// ```
/// use omni_agent::provider::dialect::{
///     ChatCompletions, OutputSupport, ReasoningReturn, ThinkingField,
/// };
///
/// let service = ChatCompletions::default()
///     .with_max_tokens_field("max_completion_tokens")
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
///
/// Images in a response become attachments. Later requests only mention them, because an assistant message cannot
/// contain images. Of audio, only the transcript is kept.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent switches")]
pub struct ChatCompletions {
    max_tokens_field: &'static str,
    system_role: &'static str,
    /// Whether a placeholder precedes a conversation that the assistant begins. DeepSeek and the templates of many
    /// models require a user message first.
    user_first: bool,
    stream_usage: bool,
    output: OutputSupport,
    output_beside_tools: bool,
    output_enforced: bool,
    thinking: ThinkingField,
    /// Members that are added to the object `thinking` while thinking is on. They keep the reasoning of earlier turns.
    thinking_members: Map<String, Value>,
    thinking_beside_forced_tools: bool,
    reasoning: ReasoningReturn,
    sampling: bool,
    tool_choices: ToolChoices,
    files: Files,
    metadata: bool,
    cache: CacheField,
    max_stop_sequences: usize,
    tools_beside_effort: bool,
    members: Map<String, Value>,
    tool_members: Map<String, Value>,
    /// Members that are added to each assistant message with tool calls that does not have them.
    call_members: Map<String, Value>,
    /// The service whose built-in rules for individual models apply.
    service: Option<&'static str>,
    rules: Option<fn(&str, Self) -> Self>,
}

impl Default for ChatCompletions {
    fn default() -> Self {
        Self {
            max_tokens_field: "max_tokens",
            system_role: "system",
            user_first: true,
            stream_usage: true,
            output: OutputSupport::default(),
            output_beside_tools: true,
            output_enforced: false,
            thinking: ThinkingField::default(),
            thinking_members: Map::new(),
            thinking_beside_forced_tools: true,
            reasoning: ReasoningReturn::default(),
            sampling: true,
            tool_choices: ToolChoices::default(),
            files: Files::default(),
            metadata: true,
            cache: CacheField::default(),
            max_stop_sequences: 4,
            tools_beside_effort: true,
            members: Map::new(),
            tool_members: Map::new(),
            call_members: Map::new(),
            service: None,
            rules: None,
        }
    }
}

impl ChatCompletions {
    /// The wire format as OpenAI itself implements it.
    pub fn openai() -> Self {
        Self { user_first: false, ..Self::default() }
            .with_max_tokens_field("max_completion_tokens")
            .with_system_role("developer")
            .with_thinking(ThinkingField::Effort(EffortWords::OPENAI))
            .with_enforced_output()
            .without_metadata()
            .with_cache(CacheField::Retention)
            .without_tools_beside_effort()
    }

    crate::setters::setters! {
        /// Sets the member that carries the output limit. The default is `max_tokens`, which most services use. OpenAI
        /// requires `max_completion_tokens`.
        pub fn with_max_tokens_field(self, field: &'static str) { self.max_tokens_field = field }

        /// Sets the role of the message that carries the system prompt. The default is `system`, which every service
        /// supports. OpenAI's newer role is `developer`.
        pub fn with_system_role(self, role: &'static str) { self.system_role = role }

        /// Omits the request for usage in `stream_options`. By default, usage is requested, because most services
        /// otherwise report no usage.
        pub fn without_stream_usage(self) { self.stream_usage = false }

        /// Sets how output schemas are sent.
        pub fn with_output(self, output: OutputSupport) { self.output = output }

        /// Sends output schemas as [`OutputSupport::Tool`] does if the request has tools. This is for services that do
        /// not accept `response_format` together with tools.
        pub fn without_output_beside_tools(self) { self.output_beside_tools = false }

        /// Declares that the service guarantees that each response fits a [strict](OutputSupport::Strict) schema.
        ///
        /// OpenAI guarantees this. Many other services accept a strict schema without this guarantee, so by default the
        /// value is also searched for in surrounding text.
        pub fn with_enforced_output(self) { self.output_enforced = true }

        /// Sets how thinking is requested.
        pub fn with_thinking(self, field: ThinkingField) { self.thinking = field }

        /// Sets whether and how reasoning is sent back.
        pub fn with_reasoning(self, reasoning: ReasoningReturn) { self.reasoning = reasoning }

        /// Ignores `temperature` and `top_p`, with a warning, for models that do not accept them.
        pub fn without_sampling(self) { self.sampling = false }

        /// Sets which tool choices the service supports.
        pub fn with_tool_choices(self, choices: ToolChoices) { self.tool_choices = choices }

        /// Sets which attachments the service supports.
        pub fn with_files(self, files: Files) { self.files = files }

        /// Ignores the application's labels, with a warning. By default, the labels are sent as `metadata`. OpenAI
        /// accepts labels only if the request asks it to store the response.
        pub fn without_metadata(self) { self.metadata = false }

        /// Sets how cache hints are sent.
        pub fn with_cache(self, field: CacheField) { self.cache = field }

        /// Sets the maximum number of stop sequences. The default is 4, which is OpenAI's limit.
        pub fn with_max_stop_sequences(self, count: usize) { self.max_stop_sequences = count }

        /// Turns reasoning off, with a warning, in requests with tools to OpenAI's models that require this.
        ///
        /// At OpenAI itself, models since GPT-5.4 can use tools in Chat Completions only if they do not reason. Some of
        /// these models do not support tools in Chat Completions at all. For such a model, a request with tools fails
        /// with an error that names the Responses wire format. By default, models may reason and use tools in one
        /// request.
        pub fn without_tools_beside_effort(self) { self.tools_beside_effort = false }

        /// Adds a member to each request body. The added member replaces a member of the same name that the wire format
        /// itself writes.
        pub fn with_member(self, name: impl Into<String>, value: impl Into<Value>) {
            self.members.insert(name.into(), value.into());
        }

        /// Sets the rules for deviations of individual models, and replaces earlier rules. The function takes the
        /// model's id and the wire format as configured for the service, and returns the wire format for this model. If
        /// the function itself sets rules on that wire format, these rules are not applied.
        pub fn with_model_rules(self, rules: fn(model: &str, chat: Self) -> Self) { self.rules = Some(rules) }

        /// Sets the service whose built-in rules for individual models apply.
        #[cfg(feature = "http")]
        pub(in crate::provider) fn of_service(self, service: &'static str) { self.service = Some(service) }
    }

    /// Returns the wire format for the model of `request`.
    fn of(&self, request: &Request) -> Cow<'_, Self> {
        let mut chat = Cow::Borrowed(self);
        if let Some(switches) = self.service.and_then(|service| rules::of(service, &request.model)) {
            switches.set(chat.to_mut());
        }
        match self.rules {
            Some(rules) => Cow::Owned(rules(&request.model, chat.into_owned())),
            None => chat,
        }
    }

    /// Returns the request. If its output schema is sent as the input of a tool, the returned request has the output
    /// tool instead.
    fn prepared<'a>(&self, request: &'a Request) -> Cow<'a, Request> {
        let is_tool = encode::output_support(self, request) == OutputSupport::Tool;
        let forced = encode::tool_choices(self, request) == ToolChoices::All;
        output_tool::prepared(request, is_tool.then_some(forced))
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
        encode::encode(&chat, &chat.prepared(request))
    }

    fn decoder(&self, request: &Request) -> Box<dyn Decoder> {
        let chat = self.of(request);
        let decoder = decode::ChatDecoder::new(chat.reasoning == ReasoningReturn::Details, chat.stream_usage);
        output::read(
            named(decoder, &chat.prepared(request), openai::NAME_LIMIT, ""),
            openai::reading(encode::output_support(&chat, request), chat.output_enforced, request),
        )
    }

    fn error(&self, status: u16, body: &str) -> ProviderError {
        let mut error = error::from_body(status, body);
        let plain = self.service.is_none() && self.reasoning == ReasoningReturn::Never;
        if plain && error.message.contains("reasoning_content") {
            let switch = "ChatCompletions::with_reasoning(ReasoningReturn::ContentWithCalls)";
            error.message = format!("{} ({switch} sends the reasoning back)", error.message);
        }
        error
    }
}

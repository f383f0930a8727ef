//! The OpenAI Chat Completions wire format, as OpenAI and the many compatible services implement it.
//!
//! Source: the API reference of OpenAI (<https://platform.openai.com/docs/api-reference/chat>) and the types of its
//! official SDKs. Deviations of other services are described in the code that supports them.
//!
//! A service is a few values, so a user can add one without a change of this crate. If a switch turns an option off, the
//! dialect maps or reports the option, because only the dialect still knows the request. A switch that applies to some
//! models of a service is data: `rules.services` in `models.json`.

mod calls;
mod decode;
mod encode;

use std::{borrow::Cow, collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Decoder, Dialect, EffortWords, Encoded, Framing, error,
    names::{NAME_LIMIT, ToolNames},
    output,
};
use crate::provider::{
    ProviderError, Request,
    catalogue::{BUILT_IN, ModelFamilyRules, find},
};

/// The name of the wire format.
const NAME: &str = "chat_completions";

/// The OpenAI Chat Completions wire format.
///
/// The default value suits most services that are compatible with OpenAI. The setters configure the deviations of a
/// service. [`with_model_rules`](Self::with_model_rules) configures the deviations of individual models by their ids:
///
/// ```
/// use omni_agent::provider::custom::{ChatCompletions, OutputSupport, ReasoningReturn, ThinkingField};
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
    /// Whether user and assistant must alternate, and the user begins, as DeepSeek and the templates of many models
    /// require. A placeholder precedes a conversation that the assistant begins, and adjacent user messages are joined.
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
    /// Members that are added to each assistant message that does not have them, if the message has tool calls or the
    /// request has tools.
    call_members: Map<String, Value>,
    /// Whether the rules of Mistral's models for tool calls are obeyed.
    mistral_calls: bool,
    /// Whether the schemas of tools are rewritten to the form that Moonshot accepts.
    moonshot_schemas: bool,
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
            mistral_calls: false,
            moonshot_schemas: false,
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

        /// Obeys two rules of Mistral's models. The id of a tool call has nine letters and digits. An assistant message
        /// stands between tool results and the next user message, so a placeholder is added there. By default, these
        /// rules apply to models whose ids name them.
        pub fn with_mistral_calls(self) { self.mistral_calls = true }

        /// Rewrites the input schemas of tools to the subset of JSON Schema that Moonshot accepts, which it calls
        /// Moonshot Flavored JSON Schema. A rewritten schema may accept more, and each input is still validated with
        /// the original schema. By default, only the schemas for models whose ids name them are rewritten.
        pub fn with_moonshot_schemas(self) { self.moonshot_schemas = true }

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
        if let Some(switches) = model_rule(self.service.unwrap_or("others"), &request.model) {
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
        output::prepared(request, is_tool.then_some(forced))
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
        output::decoder(
            decoder,
            ToolNames::of(&chat.prepared(request), NAME_LIMIT, "").declared(),
            output::reading(encode::output_support(&chat, request), chat.output_enforced, request),
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

/// The deviations of one family of models at a service that this crate knows: the switches that the rule sets. All other
/// switches keep the values that are configured for the service. The data is in `models.json`. Its sources are named in
/// `provider::http::services`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, bound(deserialize = "'de: 'static"))]
struct ChatDeviationRule {
    output: Option<OutputSupport>,
    thinking: Option<ThinkingField>,
    thinking_members: Map<String, Value>,
    thinking_beside_forced_tools: Option<bool>,
    reasoning: Option<ReasoningReturn>,
    cache: Option<CacheField>,
    sampling: Option<bool>,
    members: Map<String, Value>,
    tool_members: Map<String, Value>,
    call_members: Map<String, Value>,
    mistral_calls: bool,
    moonshot_schemas: bool,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct ChatDeviationRules {
    services: BTreeMap<String, Vec<ModelFamilyRules<ChatDeviationRule>>>,
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'static"))]
struct ChatDeviationRulesFile {
    rules: ChatDeviationRules,
}

static FILE: LazyLock<ChatDeviationRulesFile> =
    LazyLock::new(|| serde_json::from_str(BUILT_IN).expect("a test reads the rules of the services"));

/// Returns the rule of this service for a model.
fn model_rule(service: &str, model: &str) -> Option<&'static ChatDeviationRule> {
    find(FILE.rules.services.get(service)?, model, model)
}

impl ChatDeviationRule {
    fn set(&self, chat: &mut ChatCompletions) {
        chat.output = self.output.unwrap_or(chat.output);
        // A rule does not replace what the application has set.
        if chat.thinking == ThinkingField::default() {
            chat.thinking = self.thinking.unwrap_or_default();
        }
        chat.reasoning = self.reasoning.unwrap_or(chat.reasoning);
        chat.cache = self.cache.unwrap_or(chat.cache);
        chat.sampling = self.sampling.unwrap_or(chat.sampling);
        chat.thinking_beside_forced_tools =
            self.thinking_beside_forced_tools.unwrap_or(chat.thinking_beside_forced_tools);
        chat.thinking_members.extend(self.thinking_members.clone());
        chat.members.extend(self.members.clone());
        chat.tool_members.extend(self.tool_members.clone());
        chat.call_members.extend(self.call_members.clone());
        chat.mistral_calls |= self.mistral_calls;
        chat.moonshot_schemas |= self.moonshot_schemas;
    }
}

/// How an output schema is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputSupport {
    /// Sent as a strict `json_schema`. The schema is rewritten to the subset that strict services accept. If the schema
    /// cannot be rewritten, it is sent without `strict`.
    #[default]
    Strict,
    /// Sent as a `json_schema`, unchanged.
    Schema,
    /// Sent as a `json_object`, with the schema in the system prompt.
    Object,
    /// Sent as the input schema of a tool, for services that support neither `json_schema` nor `json_object`. The
    /// request forces the tool. If [no tool can be forced](ToolChoices), the system prompt asks the model to use the
    /// tool.
    Tool,
    /// Sent only in the system prompt, with a warning, because the service supports neither output schemas nor tools.
    None,
}

impl OutputSupport {
    /// Returns whether the schema is part of the system prompt.
    pub(super) const fn needs_words(self) -> bool {
        matches!(self, Self::Object | Self::None)
    }
}

/// How a request asks a service for thinking.
///
/// If the service cannot express a mode, the mode is replaced by the nearest supported one, with a warning. A budget
/// becomes the effort whose usual budget is nearest. An effort becomes its usual budget. If the service supports
/// neither efforts nor budgets, thinking is only turned on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'static"))]
#[non_exhaustive]
pub enum ThinkingField {
    /// The models do not think, and the service has no setting for thinking.
    None,
    /// The models always decide by themselves how much they think, and the service has no setting for thinking.
    Always,
    /// An effort in `reasoning_effort`, as at OpenAI, Groq and most compatible services. OpenAI's models get only the
    /// words that they support, according to the [catalogue](crate::provider::Catalogue).
    Effort(EffortWords),
    /// An object `reasoning` with one of `effort`, `max_tokens` and `enabled: false`, as at OpenRouter.
    Reasoning(EffortWords),
    /// `thinking: {"type": "enabled"}` or `"disabled"`, as at Moonshot, Z.ai and DeepSeek. If words are given, the
    /// effort is sent in `reasoning_effort` as well. If the words for `off` and `low` are equal, thinking cannot be
    /// turned off, and this effort is sent instead.
    Type(Option<EffortWords>),
    /// `enable_thinking`, with the number of tokens in `thinking_budget`, as at Alibaba.
    ///
    /// While a model thinks, the service accepts neither a `json_object` nor a tool choice that forces a tool. The
    /// output schema is then sent as the input of a tool that is not forced, and a tool choice that forces a tool
    /// becomes `auto`.
    Enable {
        /// Whether thinking can be turned off. If not, only the budget is sent.
        off: bool,
        /// Whether the model thinks unless the request turns thinking off.
        unasked: bool,
    },
}

impl Default for ThinkingField {
    /// `reasoning_effort`, with the words that every service with this member supports.
    fn default() -> Self {
        Self::Effort(EffortWords::COMMON)
    }
}

/// Whether and how a model's reasoning is sent back to it with the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReasoningReturn {
    /// Reasoning is not sent back, because most services reject or ignore it.
    #[default]
    Never,
    /// The text of the reasoning, in the member `reasoning_content` of the assistant message.
    Content,
    /// Like [`Content`](Self::Content), but messages without reasoning get a blank text as their reasoning if they call
    /// tools, or if the request has tools. Moonshot and DeepSeek reject a conversation without this text, even if
    /// another service began the conversation.
    ContentWithCalls,
    /// The opaque entries of the member `reasoning_details`, collected from the response. OpenRouter requires them. The
    /// `annotations` of the response are sent back too, so that the service need not read a file again.
    Details,
}

/// How a request asks a service to cache the prompt for the next request. If a hint asks for long caching and the
/// service does not support it, the hint causes a warning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CacheField {
    /// There is no setting. The service caches prompts automatically or not at all.
    #[default]
    None,
    /// `prompt_cache_retention` for long caching, which OpenAI supports for some models. Short caching needs no
    /// setting.
    Retention,
    /// `cache_control` on the system prompt and on the last text, as at OpenRouter for Anthropic's models. If a callback
    /// added messages to this request only, the last text before them is marked too.
    Breakpoints,
}

/// The tool choices that a service supports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoices {
    /// All tool choices.
    #[default]
    All,
    /// All tool choices that do not force a tool. A tool choice that forces a tool becomes `auto`, with a warning.
    Unforced,
    /// Only `auto`. If the request forbids the use of tools, no tools are sent.
    Auto,
}

/// The attachments that a service supports, and how they are sent. Text files as data are supported by every service,
/// because they are sent as text with their names. Unsupported attachments cause an error or become a placeholder,
/// depending on [`Options::unsupported_attachment`](crate::provider::Options::unsupported_attachment).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Files {
    /// Images by URL or as data, and PDF files and audio as data, as at OpenAI.
    #[default]
    Data,
    /// Like [`Data`](Self::Data), and also PDF files by URL in the same member, as at OpenRouter.
    DataOrUrl,
    /// Images by URL or as data, and other files by URL in `file_url`, as at Z.ai.
    FileUrl,
    /// Images by URL or as data.
    Images,
    /// Only images, and only as data, as at Moonshot.
    ImageData,
}

//! The differences between services that implement Chat Completions, one type per difference.
//!
//! A service is a short file of values, so a user can add one without a change of this crate. If a switch turns an
//! option off, the dialect maps or reports the option, because only the dialect still knows the request. A switch that
//! applies to some models of a service is data: `rules.services` in `models.json`.

use serde::Deserialize;

use crate::provider::dialect::EffortWords;

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
    pub(in crate::provider::dialect) const fn needs_words(self) -> bool {
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
    /// Like [`Content`](Self::Content), but messages that call tools and have no reasoning get a blank text as their
    /// reasoning. Moonshot and DeepSeek reject a conversation without this text, even if another service began the
    /// conversation.
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

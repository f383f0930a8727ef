//! The differences between services that implement Chat Completions, one type per difference.

use serde::Deserialize;

use crate::provider::dialect::EffortWords;

/// How an output schema is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum OutputSupport {
    /// As a strict `json_schema`. The schema is rewritten to the subset that strict services accept. If it cannot be
    /// rewritten, it is sent without `strict`.
    #[default]
    Strict,
    /// As a `json_schema`, unchanged.
    Schema,
    /// As a `json_object`, with the schema in the system prompt.
    Object,
    /// As the input of a tool, for services that support neither. The request forces the tool, or, if [no tool can be
    /// forced](ToolChoices), asks for it in the system prompt.
    Tool,
    /// Only in the system prompt, with a warning: the service supports neither output schemas nor tools.
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
/// A mode that the service cannot express is replaced by the nearest that it can, with a warning. A budget becomes the
/// effort whose usual budget is nearest, an effort becomes its usual budget, and either becomes plain thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "'de: 'static"))]
#[non_exhaustive]
pub enum ThinkingField {
    /// The models do not think, and the service has no setting for it.
    None,
    /// The models always decide by themselves how much they think, and the service has no setting for it.
    Always,
    /// An effort in `reasoning_effort`: OpenAI, Groq, and most compatible services. OpenAI's models get only the words
    /// that they support, according to the [catalogue](crate::provider::Catalogue).
    Effort(EffortWords),
    /// An object `reasoning` with one of `effort`, `max_tokens` and `enabled: false`: OpenRouter.
    Reasoning(EffortWords),
    /// `thinking: {"type": "enabled"}` or `"disabled"`: Moonshot, Z.ai, DeepSeek. If there are words, the effort is
    /// sent in `reasoning_effort` as well.
    Type(Option<EffortWords>),
    /// `enable_thinking`, with the number of tokens in `thinking_budget`: Alibaba.
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
    /// Reasoning is not sent back: most services reject or ignore it.
    #[default]
    Never,
    /// The text of the reasoning, in the member `reasoning_content` of the assistant message.
    Content,
    /// As [`Content`](Self::Content), with a blank text in messages that call tools and have no reasoning. Moonshot and
    /// DeepSeek reject a conversation without it, even if another service began the conversation.
    ContentWithCalls,
    /// The opaque entries of the member `reasoning_details`, collected from the response, as OpenRouter requires. The
    /// `annotations` of the response are sent back too, so that the service need not read a file again.
    Details,
}

/// How a request asks a service to cache the prompt for the next request. If the service cannot keep a prompt for a
/// long time, a hint that asks for this causes a warning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CacheField {
    /// No setting: the service caches prompts automatically, or not at all.
    #[default]
    None,
    /// `prompt_cache_retention` for a long time, which OpenAI supports for some models. A short time needs no setting.
    Retention,
    /// `cache_control` on the system prompt and on the last text: OpenRouter, for Anthropic's models.
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
    /// Only `auto`. If the request allows no tool, no tools are sent.
    Auto,
}

/// The attachments that a service supports, and how they are sent. Others cause an error or become a placeholder,
/// depending on [`Options::unsupported_attachment`](crate::provider::Options::unsupported_attachment).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Files {
    /// Images by URL or as data, PDF files and audio as data: OpenAI.
    #[default]
    Data,
    /// As [`Data`](Self::Data), and PDF files by URL in the same member: OpenRouter.
    DataOrUrl,
    /// Images by URL or as data, other files by URL in `file_url`: Z.ai.
    FileUrl,
    /// Images by URL or as data.
    Images,
    /// Images as data: Moonshot.
    ImageData,
}

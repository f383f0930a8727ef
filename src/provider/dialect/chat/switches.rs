//! What differs between services that speak the format, each as one choice.

use crate::provider::dialect::EffortWords;

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
    /// As the input of a tool, for services without either. Its use is demanded, or where
    /// [none can be](ToolChoices), asked for in the system prompt.
    Tool,
    /// In the system prompt alone, with a warning: the service has no word for it, and no tools.
    None,
}

impl OutputSupport {
    /// Whether the schema stands in the system prompt.
    pub(in crate::provider::dialect) const fn needs_words(self) -> bool {
        matches!(self, Self::Object | Self::None)
    }
}

/// How a service is told how much to think.
///
/// What it has no word for is mapped to the nearest that it has, and reported: a budget to the level whose
/// usual budget is nearest, a level to its usual budget, either to plain thinking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThinkingField {
    /// It does not think, and takes no word of it.
    None,
    /// It thinks as it sees fit, and takes no word of it.
    Always,
    /// At a level, in `reasoning_effort`: OpenAI, Groq, and most who are compatible. Models of OpenAI get
    /// only the words that they take, read off their ids.
    Effort(EffortWords),
    /// In an object `reasoning`, with one of `effort`, `max_tokens` and `enabled: false`: OpenRouter.
    Reasoning(EffortWords),
    /// As `thinking: {"type": "enabled"}` or `"disabled"`: Moonshot, Z.ai, DeepSeek. With words, the level
    /// goes beside it in `reasoning_effort`.
    Type(Option<EffortWords>),
    /// As `enable_thinking`, with the number of tokens in `thinking_budget`: Alibaba. While it thinks, the
    /// service takes neither a `json_object` nor a tool choice that forces one: a tool that is not forced
    /// stands in for the one, `auto` for the other.
    Enable {
        /// Whether it can be turned off. If not, only the budget is sent.
        off: bool,
        /// Whether it thinks unless told not to.
        unasked: bool,
    },
}

impl Default for ThinkingField {
    /// `reasoning_effort`, with the words that every service with the member knows.
    fn default() -> Self {
        Self::Effort(EffortWords::COMMON)
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
    /// As [`Content`](Self::Content), with a blank one on messages that call tools and have none: Moonshot
    /// and DeepSeek refuse a conversation without, even if another service began it.
    ContentWithCalls,
    /// The opaque entries in the member `reasoning_details`, gathered from the answer, as OpenRouter wants
    /// it; and the answer's `annotations`, which spare it reading a file again.
    Details,
}

/// How a service is told that the prompt should be kept for the next request. Where it can't be told how
/// long, a hint for a long time is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheField {
    /// Not at all: it keeps prompts by itself, or not.
    #[default]
    None,
    /// For a long time as `prompt_cache_retention`, which OpenAI has for some models; a short one needs no words: OpenAI.
    Retention,
    /// By `cache_control` on the system prompt and the last text: OpenRouter, for models of Anthropic.
    Breakpoints,
}

/// Which tool choices a service knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolChoices {
    /// All.
    #[default]
    All,
    /// None that forces a tool: such a choice becomes `auto`, with a warning.
    Unforced,
    /// `auto` alone. For no tools at all, none are sent.
    Auto,
}

/// Which attachments a service takes, and how. The others are an error or a placeholder, as
/// [`Options::unsupported_attachment`](crate::provider::OptionFields::unsupported_attachment) says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Files {
    /// Images by URL or as data, PDF files and audio as data: OpenAI.
    #[default]
    Data,
    /// These, and PDF files by URL in the same place: OpenRouter.
    DataOrUrl,
    /// Images by URL or as data, other files by URL in `file_url`: Z.ai.
    FileUrl,
    /// Images by URL or as data.
    Images,
    /// Images as data: Moonshot.
    ImageData,
}

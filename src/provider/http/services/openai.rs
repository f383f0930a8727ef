//! OpenAI. Source: <https://platform.openai.com/docs/api-reference/introduction>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, OpenAiResponses};

const BASE_URL: &str = "https://api.openai.com";
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

impl Endpoint {
    /// OpenAI with the Chat Completions wire format, and the key from `OPENAI_API_KEY`.
    ///
    /// In this wire format, models since GPT-5.4 accept tools only if they do not reason, and some accept no tools at
    /// all. [`openai_responses`](Self::openai_responses) supports both tools and reasoning.
    pub fn openai() -> Self {
        Self::custom("openai", BASE_URL, ChatCompletions::openai()).with_key_variable(KEY_VARIABLE)
    }

    /// OpenAI with the Responses wire format, and the key from `OPENAI_API_KEY`.
    pub fn openai_responses() -> Self {
        Self::custom("openai_responses", BASE_URL, OpenAiResponses::openai()).with_key_variable(KEY_VARIABLE)
    }

    /// A service with the Chat Completions wire format in the form that most services support, for example a local
    /// model server. It has the defaults of [`ChatCompletions`]. If there is a key, it is sent as a bearer token.
    ///
    /// The switches of [`ChatCompletions`] describe how a service deviates and what it can't do. There are switches for
    /// the name of the output limit, the role of the system prompt, the form of requests for thinking and for an output
    /// schema, the return of reasoning, sampling, tool choices, attachments, labels, the cache, stop sequences, and
    /// rules for single models. If a request uses an option that is switched off, the option is replaced by the nearest
    /// supported value, or a warning reports that it is ignored.
    ///
    /// ```
    /// use omni_agent::provider::{
    ///     dialect::{ChatCompletions, OutputSupport, ReasoningReturn, ThinkingField},
    ///     http::Endpoint,
    /// };
    ///
    /// let chat = ChatCompletions::default()
    ///     .with_thinking(ThinkingField::Type(None))
    ///     .with_reasoning(ReasoningReturn::ContentWithCalls)
    ///     .with_output(OutputSupport::Object);
    /// let deepseek = Endpoint::custom("deepseek", "https://api.deepseek.com", chat)
    ///     .with_key_variable("DEEPSEEK_API_KEY");
    /// # let _ = deepseek;
    /// ```
    pub fn openai_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, ChatCompletions::default())
    }

    /// A service with the Responses wire format in OpenAI's form, for example a local model server. It has the defaults
    /// of [`OpenAiResponses`]. If there is a key, it is sent as a bearer token. For a service that deviates, pass an
    /// [`OpenAiResponses`] with other switches to [`custom`](Self::custom).
    pub fn openai_responses_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, OpenAiResponses::default())
    }
}

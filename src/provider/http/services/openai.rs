//! <https://platform.openai.com/docs/api-reference/introduction>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, OpenAiResponses};

const BASE_URL: &str = "https://api.openai.com";
const KEY_VARIABLE: &str = "OPENAI_API_KEY";

impl Endpoint {
    /// OpenAI by its Chat Completions format, with the key from `OPENAI_API_KEY`.
    ///
    /// Models since GPT-5.4 take tools in this format only while they do not reason, and some not at all:
    /// [`openai_responses`](Self::openai_responses) has both.
    pub fn openai() -> Self {
        Self::custom("openai", BASE_URL, ChatCompletions::openai()).with_key_variable(KEY_VARIABLE)
    }

    /// OpenAI by its Responses format, with the key from `OPENAI_API_KEY`.
    pub fn openai_responses() -> Self {
        Self::custom("openai_responses", BASE_URL, OpenAiResponses::openai()).with_key_variable(KEY_VARIABLE)
    }

    /// A service that speaks Chat Completions as most do, say a local model server: with the defaults of
    /// [`ChatCompletions`], a key as a bearer token if it is given one, and no key if not.
    ///
    /// What a service wants otherwise, and what it can't do, is said by the switches of [`ChatCompletions`]:
    /// the output limit's member, the role of the system prompt, how thinking is asked for, how an output
    /// schema, whether reasoning goes back, sampling, tool choices, attachments, labels, the cache, stop
    /// sequences, and rules for single models. What they turn off is mapped to its nearest or reported.
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

    /// A service that speaks the Responses format as OpenAI does, say a local model server: with the defaults
    /// of [`OpenAiResponses`], a key as a bearer token if it is given one, and no key if not. What a service
    /// wants otherwise is said by the switches of [`OpenAiResponses`], through [`custom`](Self::custom).
    pub fn openai_responses_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, OpenAiResponses::default())
    }
}

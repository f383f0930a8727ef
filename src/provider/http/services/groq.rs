//! Groq. Sources: <https://console.groq.com/docs/openai>, <https://console.groq.com/docs/reasoning>,
//! <https://console.groq.com/docs/structured-outputs>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, Files, OutputSupport};

impl Endpoint {
    /// Groq, with the key from `GROQ_API_KEY`.
    ///
    /// Groq accepts no `response_format` for streamed responses, and this crate streams all responses. Therefore, an
    /// output schema is sent as the input schema of a tool. Groq's compound systems accept no tools, so for them the
    /// schema is only in the system prompt.
    pub fn groq() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field("max_completion_tokens")
            .with_output(OutputSupport::Tool)
            .with_files(Files::Images)
            .without_metadata()
            .of_service("groq");
        Self::custom("groq", "https://api.groq.com/openai", chat).with_key_variable("GROQ_API_KEY")
    }
}

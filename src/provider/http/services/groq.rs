//! Groq. Sources: <https://console.groq.com/docs/openai>, <https://console.groq.com/docs/reasoning>,
//! <https://console.groq.com/docs/structured-outputs>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, EffortWords, Files, OutputSupport, ThinkingField};

/// Qwen 3 only supports thinking or not thinking.
const ON_OR_OFF: EffortWords = EffortWords {
    off: Some("none"),
    minimal: "default",
    low: "default",
    medium: "default",
    high: "default",
    max: "default",
};

impl Endpoint {
    /// Groq, with the key from `GROQ_API_KEY`.
    ///
    /// Groq accepts no `response_format` for responses that are streamed, and this crate streams all responses. An
    /// output schema is therefore sent as the input schema of a tool. Groq's compound systems accept no tools, so for
    /// them the schema is only in the system prompt.
    pub fn groq() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field("max_completion_tokens")
            .with_output(OutputSupport::Tool)
            .with_files(Files::Images)
            .without_metadata()
            .with_model_rules(rules);
        Self::custom("groq", "https://api.groq.com/openai", chat).with_key_variable("GROQ_API_KEY")
    }
}

fn rules(model: &str, chat: ChatCompletions) -> ChatCompletions {
    if model.contains("gpt-oss") {
        // The reasoning is in a separate member without any setting. These models refuse `reasoning_format`.
        let words = EffortWords { off: None, ..EffortWords::COMMON };
        chat.with_thinking(ThinkingField::Effort(words))
    } else if model.contains("qwen3") {
        // Without this member the reasoning is a part of the text.
        chat.with_thinking(ThinkingField::Effort(ON_OR_OFF)).with_member("reasoning_format", "parsed")
    } else if model.contains("compound") {
        chat.with_thinking(ThinkingField::None).with_output(OutputSupport::None)
    } else {
        chat.with_thinking(ThinkingField::None)
    }
}

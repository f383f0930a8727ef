//! <https://console.groq.com/docs/openai>, <https://console.groq.com/docs/reasoning>,
//! <https://console.groq.com/docs/structured-outputs>

use super::Endpoint;
use crate::provider::dialect::{
    ChatCompletions, EffortWords, Files, MaxTokensField, OutputSupport, ThinkingField,
};

/// Qwen 3 thinks or not.
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
    /// It takes no `response_format` for an answer that streams, as all do here: an output schema is asked for as the
    /// input of a tool; of its compound systems, which take no tools of others, in the system prompt alone.
    pub fn groq() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field(MaxTokensField::MaxCompletionTokens)
            .with_output(OutputSupport::Tool)
            .with_files(Files::Images)
            .with_metadata(false)
            .with_model_rules(rules);
        Self::custom("groq", "https://api.groq.com/openai", chat).with_key_variable("GROQ_API_KEY")
    }
}

fn rules(model: &str, chat: ChatCompletions) -> ChatCompletions {
    if model.contains("gpt-oss") {
        // Its reasoning comes in a member of its own by itself: it refuses `reasoning_format`.
        let words = EffortWords { off: None, ..EffortWords::COMMON };
        chat.with_thinking(ThinkingField::Effort(words))
    } else if model.contains("qwen3") {
        // Without the member its reasoning is a part of the text.
        chat.with_thinking(ThinkingField::Effort(ON_OR_OFF)).with_member("reasoning_format", "parsed")
    } else if model.contains("compound") {
        chat.with_thinking(ThinkingField::None).with_output(OutputSupport::None)
    } else {
        chat.with_thinking(ThinkingField::None)
    }
}

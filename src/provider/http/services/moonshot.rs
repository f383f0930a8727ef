//! <https://platform.kimi.ai/docs/api/chat>, <https://platform.kimi.ai/docs/api/models-overview>,
//! <https://platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model>

use super::Endpoint;
use crate::provider::dialect::{
    ChatCompletions, Files, MaxTokensField, OutputSupport, ReasoningReturn, ThinkingField, ToolChoices,
};

impl Endpoint {
    /// Moonshot, with the key from `MOONSHOT_API_KEY`.
    ///
    /// Models that think refuse a conversation without their reasoning: it goes back.
    pub fn moonshot() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field(MaxTokensField::MaxCompletionTokens)
            .with_output(OutputSupport::Object)
            .with_tool_choices(ToolChoices::Unforced)
            .with_files(Files::ImageData)
            .with_metadata(false)
            .with_model_rules(rules);
        Self::custom("moonshot", "https://api.moonshot.ai", chat).with_key_variable("MOONSHOT_API_KEY")
    }
}

fn rules(model: &str, chat: ChatCompletions) -> ChatCompletions {
    if model.contains("thinking") {
        chat.with_thinking(ThinkingField::Always).with_reasoning(ReasoningReturn::ContentWithCalls)
    } else if model.starts_with("moonshot-") || model == "kimi-k2" || model.starts_with("kimi-k2-") {
        chat.with_thinking(ThinkingField::None)
    } else {
        // Kimi K2.5 and later: thinking can be turned off, temperature and top-p are fixed.
        chat.with_thinking(ThinkingField::Type(None))
            .with_reasoning(ReasoningReturn::ContentWithCalls)
            .with_sampling(false)
    }
}

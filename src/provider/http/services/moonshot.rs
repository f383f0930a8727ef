//! Moonshot. Sources: <https://platform.kimi.ai/docs/api/chat>, <https://platform.kimi.ai/docs/api/models-overview>,
//! <https://platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model>,
//! <https://platform.kimi.ai/docs/guide/use-thinking-effort>

use super::Endpoint;
use crate::provider::dialect::{
    ChatCompletions, EffortWords, Files, OutputSupport, ReasoningReturn, ThinkingField, ToolChoices,
};

impl Endpoint {
    /// Moonshot, with the key from `MOONSHOT_API_KEY`.
    ///
    /// Models that think reject a conversation without their reasoning, so it is sent back.
    pub fn moonshot() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field("max_completion_tokens")
            .with_output(OutputSupport::Object)
            .with_tool_choices(ToolChoices::Unforced)
            .with_files(Files::ImageData)
            .without_metadata()
            .with_model_rules(rules);
        Self::custom("moonshot", "https://api.moonshot.ai", chat).with_key_variable("MOONSHOT_API_KEY")
    }
}

/// The efforts that Kimi K3 accepts. It always thinks.
const K3: EffortWords =
    EffortWords { off: None, minimal: "low", low: "low", medium: "high", high: "high", max: "max" };

fn rules(model: &str, chat: ChatCompletions) -> ChatCompletions {
    if model.contains("thinking") {
        chat.with_thinking(ThinkingField::Always).with_reasoning(ReasoningReturn::ContentWithCalls)
    } else if model.starts_with("moonshot-") || model == "kimi-k2" || model.starts_with("kimi-k2-") {
        chat.with_thinking(ThinkingField::None)
    } else {
        // Kimi K2.5 and later have a fixed temperature and top-p. Some of them can turn thinking off.
        let thinking = if model.starts_with("kimi-k3") {
            ThinkingField::Effort(K3)
        } else if model.starts_with("kimi-k2.7-code") {
            ThinkingField::Always
        } else {
            ThinkingField::Type(None)
        };
        chat.with_thinking(thinking).with_reasoning(ReasoningReturn::ContentWithCalls).without_sampling()
    }
}

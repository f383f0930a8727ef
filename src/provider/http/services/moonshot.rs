//! Moonshot. Sources: <https://platform.kimi.ai/docs/api/chat>, <https://platform.kimi.ai/docs/api/models-overview>,
//! <https://platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model>,
//! <https://platform.kimi.ai/docs/guide/use-thinking-effort>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, Files, OutputSupport, ToolChoices};

impl Endpoint {
    /// Moonshot, with the key from `MOONSHOT_API_KEY`.
    ///
    /// Models that think reject a conversation that lacks their earlier reasoning. Therefore, the reasoning is sent
    /// back.
    pub fn moonshot() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field("max_completion_tokens")
            .with_output(OutputSupport::Object)
            .with_tool_choices(ToolChoices::Unforced)
            .with_files(Files::ImageData)
            .without_metadata()
            .of_service("moonshot");
        Self::custom("moonshot", "https://api.moonshot.ai", chat).with_key_variable("MOONSHOT_API_KEY")
    }
}

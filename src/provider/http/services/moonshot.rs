//! Moonshot. Sources: <https://platform.kimi.ai/docs/api/chat>, <https://platform.kimi.ai/docs/api/models-overview>,
//! <https://platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model>,
//! <https://platform.kimi.ai/docs/guide/use-thinking-effort>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, Files, OutputSupport, ToolChoices, default_limit};

const LIMIT: &str = "max_completion_tokens";

impl Endpoint {
    /// Moonshot, with the key from `MOONSHOT_API_KEY`.
    ///
    /// Models that think reject a conversation that lacks their earlier reasoning. Therefore, the reasoning is sent
    /// back. While Kimi K2.6 thinks, it is asked to use the reasoning of earlier turns (`keep: "all"`), which later
    /// models always do.
    ///
    /// If a request sets no output limit, the service's own limit may be as small as 1,024 tokens, and thinking counts
    /// towards it. Therefore, a request to a model that thinks, according to the catalogue, gets a limit as with
    /// [`AnthropicMessages`](crate::provider::dialect::AnthropicMessages).
    pub fn moonshot() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field(LIMIT)
            .with_output(OutputSupport::Object)
            .with_tool_choices(ToolChoices::Unforced)
            .with_files(Files::ImageData)
            .without_metadata()
            .of_service("moonshot");
        Self::custom("moonshot", "https://api.moonshot.ai", chat)
            .with_key_variable("MOONSHOT_API_KEY")
            .with_body_hook(|body, request| {
                let info = request.model_info.as_deref().filter(|info| info.thinking == Some(true));
                let own = |key| request.options.extra().is_some_and(|extra| extra.contains_key(key));
                if info.is_some() && !body.contains_key(LIMIT) && !own(LIMIT) && !own("max_tokens") {
                    body.insert(LIMIT.to_owned(), default_limit(info, body, None).into());
                }
                Ok(())
            })
    }
}

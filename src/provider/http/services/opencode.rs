//! OpenCode Zen. Source: <https://opencode.ai/docs/zen>

use super::{Auth, Endpoint};
use crate::provider::dialect::{AnthropicMessages, ChatCompletions, Files, GoogleGemini, OpenAiResponses};

impl Endpoint {
    /// OpenCode Zen, with the key from `OPENCODE_API_KEY`.
    ///
    /// The wire format depends on the model: Messages for `claude-…` and `qwen3.…`, Responses for `gpt-…`, `grok-4…`,
    /// `grok-build…` and `muse-…`, Gemini for `gemini-…`, and Chat Completions for all other models. The key is sent in
    /// the header that the wire format requires.
    pub fn opencode() -> Self {
        let chat =
            ChatCompletions::default().with_files(Files::Images).without_metadata().of_service("opencode");
        Self::custom("opencode", "https://opencode.ai/zen", chat)
            .with_key_variable("OPENCODE_API_KEY")
            .with_dialect_for(
                |model| model.starts_with("claude-") || model.starts_with("qwen3."),
                AnthropicMessages::default().with_block_binding(),
                Auth::Header("x-api-key".to_owned()),
            )
            .with_dialect_for(|model| model.starts_with("gpt-"), OpenAiResponses::openai(), Auth::Bearer)
            .with_dialect_for(
                |model| ["grok-4", "grok-build", "muse-"].iter().any(|start| model.starts_with(start)),
                OpenAiResponses::default().without_metadata(),
                Auth::Bearer,
            )
            .with_dialect_for(
                |model| model.starts_with("gemini-"),
                GoogleGemini::default(),
                Auth::Header("x-goog-api-key".to_owned()),
            )
    }
}

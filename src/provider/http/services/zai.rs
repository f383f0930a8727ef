//! Z.ai. Sources: <https://docs.z.ai/api-reference/llm/chat-completion>,
//! <https://docs.z.ai/guides/capabilities/thinking-mode>

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, Files, OutputSupport, ReasoningReturn, ToolChoices};

impl Endpoint {
    /// Z.ai, with the key from `ZAI_API_KEY`.
    ///
    /// Models that think expect their earlier reasoning in a loop of tool calls, so the reasoning is sent back. If the
    /// model supports it, reasoning of earlier turns is kept too (`clear_thinking: false`), and the arguments of tool
    /// calls are requested as a stream (`tool_stream`), because the service would otherwise send nothing for a long
    /// time.
    pub fn zai() -> Self {
        let chat = ChatCompletions::default()
            .with_output(OutputSupport::Object)
            .with_reasoning(ReasoningReturn::Content)
            .with_tool_choices(ToolChoices::Auto)
            .with_files(Files::FileUrl)
            .without_metadata()
            .with_max_stop_sequences(1)
            .of_service("zai");
        Self::custom("zai", "https://api.z.ai/api/paas", chat)
            .with_version("/v4")
            .with_key_variable("ZAI_API_KEY")
    }
}

//! Z.ai. Sources: <https://docs.z.ai/api-reference/llm/chat-completion>,
//! <https://docs.z.ai/guides/capabilities/thinking-mode>

use serde_json::{Map, Value};

use super::{Endpoint, version};
use crate::provider::{
    ProviderError, Request,
    dialect::{
        ChatCompletions, EffortWords, Files, OutputSupport, ReasoningReturn, ThinkingField, ToolChoices,
    },
};

/// The words for efforts since GLM 5.2. `minimal` would turn thinking off.
const WORDS: EffortWords = EffortWords { off: None, max: "max", ..EffortWords::COMMON };

impl Endpoint {
    /// Z.ai, with the key from `ZAI_API_KEY`.
    ///
    /// Models that think expect their reasoning in a loop of tool calls, so it is sent back. If the model supports it,
    /// the arguments of tool calls are requested as a stream (`tool_stream`), since the service would otherwise send
    /// nothing for a long time.
    pub fn zai() -> Self {
        let chat = ChatCompletions::default()
            .with_output(OutputSupport::Object)
            .with_reasoning(ReasoningReturn::Content)
            .with_tool_choices(ToolChoices::Auto)
            .with_files(Files::FileUrl)
            .without_metadata()
            .with_max_stop_sequences(1)
            .with_model_rules(rules);
        Self::custom("zai", "https://api.z.ai/api/paas", chat)
            .with_version("/v4")
            .with_key_variable("ZAI_API_KEY")
            .with_body_hook(stream_arguments)
    }
}

fn rules(model: &str, chat: ChatCompletions) -> ChatCompletions {
    chat.with_thinking(match version(model, "glm-") {
        Some(version) if version < (4, 5) => ThinkingField::None,
        Some(version) if version < (5, 2) => ThinkingField::Type(None),
        _ => ThinkingField::Type(Some(WORDS)),
    })
}

#[expect(clippy::unnecessary_wraps, reason = "a hook may fail")]
fn stream_arguments(body: &mut Map<String, Value>, request: &Request) -> Result<(), ProviderError> {
    if body.contains_key("tools") && version(&request.model, "glm-").is_none_or(|version| version >= (4, 6)) {
        body.insert("tool_stream".to_owned(), true.into());
    }
    Ok(())
}

//! Anthropic. Source: <https://platform.claude.com/docs/en/api/overview>

use super::{Auth, Endpoint};
use crate::provider::dialect::AnthropicMessages;

impl Endpoint {
    /// Anthropic, with the key from `ANTHROPIC_API_KEY`.
    pub fn anthropic() -> Self {
        let messages = AnthropicMessages::default().with_block_binding();
        with_format("anthropic", "https://api.anthropic.com", messages).with_key_variable("ANTHROPIC_API_KEY")
    }

    /// A service with the Messages wire format of Anthropic. The model's id decides what the model supports; a model
    /// that is not a Claude thinks with a token budget. A key is sent in `x-api-key`, if there is one;
    /// [`with_auth`](Self::with_auth) changes that.
    ///
    /// Members that only Anthropic understands are not sent. Thinking of Claude 5.1 and later is sent back unchanged,
    /// without the member that lets the service drop it where it no longer fits. If the service accepts that member
    /// too, create it with [`custom`](Self::custom) and
    /// [`AnthropicMessages::with_block_binding`](crate::provider::dialect::AnthropicMessages::with_block_binding).
    pub fn anthropic_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        with_format(name, base_url, AnthropicMessages::default())
    }
}

fn with_format(
    name: impl Into<String>,
    base_url: impl Into<String>,
    messages: AnthropicMessages,
) -> Endpoint {
    Endpoint::custom(name, base_url, messages).with_auth(Auth::Header("x-api-key".to_owned()))
}

//! Anthropic. Source: <https://platform.claude.com/docs/en/api/overview>

use super::{Auth, Endpoint};
use crate::provider::dialect::AnthropicMessages;

impl Endpoint {
    /// Anthropic, with the key from `ANTHROPIC_API_KEY`.
    pub fn anthropic() -> Self {
        let messages = AnthropicMessages::default().with_block_binding();
        with_format("anthropic", "https://api.anthropic.com", messages).with_key_variable("ANTHROPIC_API_KEY")
    }

    /// A service with the Messages wire format of Anthropic. The model's id determines what the model supports. A model
    /// other than Claude thinks with a token budget. If there is a key, it is sent in `x-api-key`.
    /// [`with_auth`](Self::with_auth) changes that.
    ///
    /// Members that only Anthropic understands are not sent. Thinking of Claude 5.1 and later is sent back unchanged.
    /// It is sent without the member that allows the service to drop thinking that no longer fits its position. If the
    /// service accepts that member too, create the endpoint with [`custom`](Self::custom) and
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

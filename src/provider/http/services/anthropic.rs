//! <https://platform.claude.com/docs/en/api/overview>

use super::{Auth, Endpoint};
use crate::provider::dialect::AnthropicMessages;

impl Endpoint {
    /// Anthropic, with the key from `ANTHROPIC_API_KEY`.
    pub fn anthropic() -> Self {
        let messages = AnthropicMessages::default().with_block_binding(true);
        with_format("anthropic", "https://api.anthropic.com", messages).with_key_variable("ANTHROPIC_API_KEY")
    }

    /// A service that speaks the Messages format as Anthropic does. What a model takes is read off its id:
    /// one that is no Claude's thinks on a token budget. It takes its key in `x-api-key`, if it is given one;
    /// [`with_auth`](Self::with_auth) changes that.
    ///
    /// Nothing is sent that Anthropic alone understands: thinking of Claude 5.1 and later goes back as it came, and is not
    /// said to be dropped where it no longer fits. A service that takes that word too is an endpoint of its own
    /// ([`custom`](Self::custom)), with
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

//! <https://platform.claude.com/docs/en/api/overview>

use super::{Auth, Endpoint};
use crate::provider::dialect::AnthropicMessages;

impl Endpoint {
    /// Anthropic, with the key from `ANTHROPIC_API_KEY`.
    pub fn anthropic() -> Self {
        Self::anthropic_compatible("anthropic", "https://api.anthropic.com")
            .with_key_variable("ANTHROPIC_API_KEY")
    }

    /// A service that speaks the Messages format as Anthropic does. What a model takes is read off its id:
    /// one that is no Claude's thinks on a token budget. It takes its key in `x-api-key`, if it is given one;
    /// [`with_auth`](Self::with_auth) changes that.
    pub fn anthropic_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, AnthropicMessages).with_auth(Auth::Header("x-api-key".to_owned()))
    }
}

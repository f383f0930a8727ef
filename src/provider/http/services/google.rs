//! Google. Source: <https://ai.google.dev/api>

use super::{Auth, Endpoint};
use crate::provider::dialect::GoogleGemini;

impl Endpoint {
    /// Google, with the key from `GEMINI_API_KEY`. The key is sent in a header, and never in the URL.
    pub fn google() -> Self {
        Self::custom("google", "https://generativelanguage.googleapis.com", GoogleGemini::default())
            .with_version("/v1beta")
            .with_auth(Auth::Header("x-goog-api-key".to_owned()))
            .with_key_variable("GEMINI_API_KEY")
    }
}

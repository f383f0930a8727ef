//! The services that this crate knows, one file per service. A file defines the service's address, how the service
//! receives its key, and how the service deviates from the wire format. Each file begins with its sources.

mod alibaba;
mod anthropic;
mod google;
mod groq;
mod moonshot;
mod ollama;
mod openai;
mod opencode;
mod openrouter;
mod zai;

pub use alibaba::AlibabaRegion;
pub use openrouter::{OpenRouter, RoutingSort};

use super::{Auth, Endpoint};

impl Endpoint {
    /// Returns the endpoints of all services that this crate knows.
    pub fn all() -> Vec<Self> {
        vec![
            Self::anthropic(),
            Self::openai(),
            Self::openai_responses(),
            Self::google(),
            Self::ollama(),
            Self::ollama_cloud(),
            Self::openrouter(),
            Self::groq(),
            Self::moonshot(),
            Self::zai(),
            Self::alibaba(),
            Self::opencode(),
        ]
    }
}

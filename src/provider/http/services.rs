//! The services that this crate knows, one file per service: its address, how it takes its key, and its deviations from
//! the wire format. Each file begins with its sources.

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

/// Returns the version in a model's id, directly after the name of its family: for `glm-`, the version in `glm-4.5-air`
/// or `glm-4.6v`.
fn version(model: &str, family: &str) -> Option<(u8, u8)> {
    let rest = model.split_once(family)?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (major, minor) = rest[..end].split_once('.').unwrap_or((&rest[..end], "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

//! The services that this crate knows, a file each: where it is, how it takes its key, what is particular
//! about it. Each file begins with the documents that it was taken from.

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
    /// All services that this crate knows.
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

/// The version in a model's id, right behind the name of its family: of `glm-` in `glm-4.5-air` or `glm-4.6v`.
fn version(model: &str, family: &str) -> Option<(u8, u8)> {
    let rest = model.split_once(family)?.1;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    let (major, minor) = rest[..end].split_once('.').unwrap_or((&rest[..end], "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

//! Ollama. Sources: <https://docs.ollama.com/api>, <https://docs.ollama.com/cloud>

use std::env;

use super::Endpoint;
use crate::provider::dialect::OllamaChat;

/// The port on which Ollama listens by default.
const OLLAMA_PORT: u16 = 11434;
/// The host of Ollama's own service.
const OLLAMA_CLOUD: &str = "ollama.com";

impl Endpoint {
    /// An Ollama server: the server that `OLLAMA_HOST` names, or the server on this machine if `OLLAMA_HOST` is not
    /// set. Requests have no key, unless the endpoint is given one or `OLLAMA_HOST` names [Ollama's own
    /// service](Self::ollama_at).
    pub fn ollama() -> Self {
        Self::ollama_at(&env::var("OLLAMA_HOST").unwrap_or_default())
    }

    /// An Ollama server at `host`, in the form in which Ollama itself reads `OLLAMA_HOST`: an address with or without
    /// scheme, port and path, each of which has a default. An address that means every interface, such as `0.0.0.0`, is
    /// only useful for listening. It is replaced by the address of this machine. The key from `OLLAMA_API_KEY` is sent
    /// only to Ollama's own service.
    ///
    /// Source: `envconfig.Host` in <https://github.com/ollama/ollama>.
    pub fn ollama_at(host: &str) -> Self {
        let base_url = ollama_url(host);
        let endpoint = |chat| Self::custom("ollama", &*base_url, chat).with_version("/api");
        match base_url.strip_prefix("https://").and_then(|rest| rest.split([':', '/']).next()) {
            Some(OLLAMA_CLOUD) => {
                endpoint(OllamaChat::default().with_levels()).with_key_variable("OLLAMA_API_KEY")
            }
            _ => endpoint(OllamaChat::default()),
        }
    }

    /// Ollama's own service, with the key from `OLLAMA_API_KEY`. It has levels of thinking for every model.
    pub fn ollama_cloud() -> Self {
        Self::ollama_at("https://ollama.com").with_name("ollama-cloud")
    }
}

fn ollama_url(host: &str) -> String {
    let host = host.trim().trim_matches(['"', '\'']);
    let (scheme, rest, port) = match host.split_once("://") {
        Some(("http", rest)) => ("http", rest, 80),
        Some(("https", rest)) => ("https", rest, 443),
        Some((_, rest)) => ("http", rest, OLLAMA_PORT),
        None if host.split(['/', ':']).next() == Some(OLLAMA_CLOUD) => ("https", host, 443),
        None => ("http", host, OLLAMA_PORT),
    };
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    if address.contains('@') {
        // An address with user information is invalid. It is passed on unchanged, so that the first request fails,
        // which is better than a wrong interpretation of the address.
        return format!("{scheme}://{rest}");
    }
    let (name, port) = match address.rsplit_once(':') {
        // The colons of an IPv6 address without brackets don't separate a port.
        Some((name, given)) if !name.contains(':') || name.ends_with(']') => {
            (name, given.parse().unwrap_or(port))
        }
        _ => (address, port),
    };
    let name = match name {
        "" | "0.0.0.0" => "127.0.0.1".to_owned(),
        "[::]" | "::" => "[::1]".to_owned(),
        name if name.contains(':') && !name.starts_with('[') => format!("[{name}]"),
        name => name.to_owned(),
    };
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{name}:{port}{slash}{path}")
}

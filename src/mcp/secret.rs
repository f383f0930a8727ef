//! Removes secrets from texts that reach a model, a log or an error.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex},
};

use reqwest::Url;

use crate::sync::lock;

/// The minimum length of a secret in bytes. Shorter values are not replaced, because they occur in ordinary words.
const SHORTEST: usize = 4;

/// The maximum number of tokens that are remembered. Each login and each renewal brings up to three tokens.
#[cfg(feature = "mcp-auth")]
const MOST_TOKENS: usize = 16;

/// The values of environment variables, headers and parts of URLs, and the tokens of a login. Clones share the tokens.
#[derive(Clone, Default)]
pub(super) struct Secrets {
    values: Arc<[String]>,
    /// The last tokens, oldest first.
    tokens: Arc<Mutex<VecDeque<String>>>,
}

impl Secrets {
    pub(super) fn new(values: impl IntoIterator<Item = String>) -> Self {
        // In a header such as `Bearer KEY`, the key without `Bearer` is a secret, too.
        let parts = |value: String| {
            let last = value.rsplit(' ').next().map(str::to_owned);
            [Some(value.clone()), last.filter(|last| *last != value)]
        };
        let mut values: Vec<_> = values.into_iter().flat_map(parts).flatten().collect();
        values.retain(|value| value.len() >= SHORTEST);
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self { values: values.into(), tokens: Arc::default() }
    }

    /// Returns the parts of a URL that are secrets. If the URL is invalid, the whole text is a secret.
    pub(super) fn in_url(url: &str) -> Vec<String> {
        let Ok(parsed) = Url::parse(url) else { return vec![url.to_owned()] };
        let parts = [Some(parsed.username()), parsed.password(), parsed.query(), parsed.fragment()];
        let values = parsed.query().into_iter().flat_map(|query| query.split('&'));
        let values = values.filter_map(|pair| Some(pair.split_once('=')?.1));
        // A server may show a value as it was sent, or decoded.
        let decoded = parsed.query_pairs().map(|(_, value)| value.into_owned());
        parts.into_iter().flatten().chain(values).map(str::to_owned).chain(decoded).collect()
    }

    /// Adds tokens, which change when they are renewed.
    #[cfg(feature = "mcp-auth")]
    pub(super) fn add_tokens<'a>(&self, tokens: impl IntoIterator<Item = &'a str>) {
        let mut known = lock(&self.tokens);
        for token in tokens.into_iter().filter(|token| token.len() >= SHORTEST) {
            if !known.iter().any(|known| known == token) {
                known.push_back(token.to_owned());
            }
        }
        let excess = known.len().saturating_sub(MOST_TOKENS);
        known.drain(..excess);
    }

    /// Returns the text with each secret replaced.
    pub(super) fn removed(&self, text: String) -> String {
        let tokens = lock(&self.tokens);
        self.values.iter().chain(&*tokens).fold(text, |text, secret| {
            if text.contains(&**secret) { text.replace(&**secret, "[secret]") } else { text }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.values.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_secrets_do_not_appear_in_texts() {
        let secrets = Secrets::new(["Bearer hunter22".to_owned(), "abc".to_owned()]);
        assert_eq!(secrets.removed("hunter22, Bearer hunter22, abc".to_owned()), "[secret], [secret], abc");
        assert!(!format!("{secrets:?}").contains("hunter"));
    }

    #[test]
    fn in_url_query_values_are_secrets_raw_and_decoded() {
        let secrets = Secrets::new(Secrets::in_url(
            "https://a%40b:p%40ss@example.com/mcp?tavilyApiKey=tvly-1%2F2&x=a+b+c",
        ));
        for text in ["tvly-1%2F2", "tvly-1/2", "a+b+c", "a b c", "p%40ss"] {
            assert_eq!(secrets.removed(format!("invalid key {text}!")), "invalid key [secret]!");
        }
    }
}

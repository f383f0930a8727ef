//! Removes secrets from texts that reach a model, a log or an error.

use std::{fmt, sync::Arc};

/// The minimum length of a secret in bytes. Shorter values are not replaced, because they occur in ordinary words.
const SHORTEST: usize = 4;

/// The values of environment variables, headers and URL queries.
#[derive(Clone, Default)]
pub(super) struct Secrets(Arc<[String]>);

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
        Self(values.into())
    }

    /// Returns the text with each secret replaced.
    pub(super) fn removed(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| {
            if text.contains(&**secret) { text.replace(&**secret, "[secret]") } else { text }
        })
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
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
}

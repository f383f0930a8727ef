use std::{fmt, sync::Arc};

/// A value that is never shown: an API key, a header's value. `Debug` prints a placeholder, and there is no
/// `Display` and no `Serialize`.
///
/// ```
/// use omni_agent::provider::Secret;
///
/// let key = Secret::new("sk-123");
/// assert_eq!(format!("{key:?}"), "[secret]");
/// assert_eq!(key.reveal(), "sk-123");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// The value itself, for the one place that sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// `text` with every occurrence of the value replaced: services echo keys in their error bodies. So is
    /// what follows the first space of the value, the credentials of a header like `Bearer sk-123`. What is
    /// too short to be told from ordinary text is left alone.
    pub fn scrub(&self, text: &str) -> String {
        let credentials = self.0.split_once(' ').map_or("", |(_, credentials)| credentials.trim());
        let mut scrubbed = text.to_owned();
        for secret in [&*self.0, credentials] {
            if secret.len() >= Self::TELLING && scrubbed.contains(secret) {
                scrubbed = scrubbed.replace(secret, Self::PLACEHOLDER);
            }
        }
        scrubbed
    }

    /// Bytes from which on a value can be told from ordinary text.
    const TELLING: usize = 6;
    const PLACEHOLDER: &str = "[secret]";
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::PLACEHOLDER)
    }
}

impl<T: Into<Arc<str>>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

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

    /// `text` with every occurrence of the value replaced: services echo keys in their error bodies.
    /// Values too short to be told from ordinary text are left alone.
    pub fn scrub(&self, text: &str) -> String {
        const TELLING: usize = 6;
        if self.0.len() < TELLING { text.to_owned() } else { text.replace(&*self.0, "[secret]") }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<T: Into<Arc<str>>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

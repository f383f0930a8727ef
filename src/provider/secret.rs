mod scrub;

use std::{fmt, sync::Arc};

#[cfg(feature = "http")]
pub(crate) use scrub::{Extent, Scrubber};
#[cfg(not(feature = "http"))]
use scrub::{Extent, Scrubber};

/// A value that is never shown: an API key, or the value of a header. `Debug` prints a placeholder. The type implements
/// neither `Display` nor `Serialize`.
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

const PLACEHOLDER: &str = "[secret]";

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// Returns the value itself, for sending it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Returns `text` with each occurrence of the value replaced by `[secret]`, because services echo keys in their
    /// errors.
    ///
    /// The value is found as it is, with the escapes of JSON (`\/`, `\u002f`, in any depth), percent-encoded, and in
    /// base64. A part of 8 or more consecutive bytes of the value is replaced too. In a value with a space, such as
    /// `Bearer sk-123`, the part after the space is searched for in the same ways.
    ///
    /// Harmless text stays. A value of fewer than 6 bytes is not searched for. A value of fewer than 12 bytes is
    /// replaced only as a whole. A beginning that all keys of a service share, such as `sk-proj-`, is replaced only
    /// together with the following characters.
    ///
    /// ```
    /// use omni_agent::provider::Secret;
    ///
    /// let key = Secret::new("sk-proj-4f/GAtwE7pXo");
    /// assert_eq!(key.scrub(r"no such key: sk-proj-4f\/GAtwE7pXo"), "no such key: [secret]");
    /// assert_eq!(key.scrub("it ends with GAtwE7pXo"), "it ends with [secret]");
    /// assert_eq!(key.scrub("keys begin with sk-proj-"), "keys begin with sk-proj-");
    /// ```
    pub fn scrub(&self, text: &str) -> String {
        Scrubber::new([(self, Extent::Parts)]).scrub(text).into_owned()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PLACEHOLDER)
    }
}

impl<T: Into<Arc<str>>> From<T> for Secret {
    fn from(value: T) -> Self {
        Self::new(value)
    }
}

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

const PLACEHOLDER: &str = "[secret]";
/// Bytes from which on a value can be told from ordinary text.
const TELLING: usize = 6;
/// Bytes from which on the beginning of a value is worth hiding. Below, it is a prefix that all keys share.
#[cfg(feature = "http")]
const CUT: usize = 12;

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
        let mut scrubbed = text.to_owned();
        for value in self.values().filter(|value| value.len() >= TELLING) {
            for form in [value, &escaped(value)] {
                if scrubbed.contains(form) {
                    scrubbed = scrubbed.replace(form, PLACEHOLDER);
                }
            }
        }
        scrubbed
    }

    /// As [`Secret::scrub`], and what is there of a value that was cut off on its way goes too, if it is long
    /// enough to tell anything.
    #[cfg(feature = "http")]
    pub(crate) fn scrub_cut(&self, text: &str) -> String {
        self.values().fold(self.scrub(text), |scrubbed, value| {
            let Some((head, tail)) = value.split_at_checked(CUT) else {
                return scrubbed;
            };
            let mut pieces = scrubbed.split(head);
            let mut text = pieces.next().unwrap_or_default().to_owned();
            for piece in pieces {
                let rest = tail.chars().zip(piece.chars());
                let same: usize = rest.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
                text.push_str(PLACEHOLDER);
                text.push_str(&piece[same..]);
            }
            text
        })
    }

    /// Whether the error, or one of its causes, would print the value.
    #[cfg(feature = "http")]
    pub(crate) fn shows_in(&self, error: &(dyn std::error::Error + 'static)) -> bool {
        let texts = [format!("{error:?}"), error.to_string()];
        texts.iter().any(|text| self.scrub_cut(text) != *text)
            || error.source().is_some_and(|source| self.shows_in(source))
    }

    /// The value, and the credentials in it if it is a scheme and credentials.
    fn values(&self) -> impl Iterator<Item = &str> {
        let credentials = self.0.split_once(' ').map(|(_, credentials)| credentials.trim());
        [&*self.0].into_iter().chain(credentials)
    }
}

/// The value as it stands inside of a JSON string.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"")
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

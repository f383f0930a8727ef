//! Errors that several layers share, and functions for error chains without repeated texts.

use std::error::Error;

/// The maximum number of causes to follow, because the causes of an error may form a cycle.
const MAX_CAUSES: usize = 32;

/// Returns the text of an error and of all its causes, joined by colons.
///
/// A cause is skipped if the text before it already contains the cause's text. The `Display` text of each error of this
/// crate already ends with the text of the direct cause. This function adds the deeper causes.
///
/// ```
/// use omni_agent::{agent::Agent, error_chain};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// if let Err(error) = Agent::builder().model("nobody:model").start().await {
///     eprintln!("{}", error_chain(&error));
/// #   assert!(error_chain(&error).starts_with("the model can't be resolved: unknown provider \"nobody\""));
/// }
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn error_chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in causes(error) {
        let sentence = cause.to_string();
        if !text.contains(&sentence) {
            text.push_str(": ");
            text.push_str(&sentence);
        }
    }
    text
}

/// Implements `Debug` for an error as the text of its [`error_chain`], because Rust prints `Debug` of the error that `main`
/// returns. If a method is given, it writes the alternate form `{:#?}`.
macro_rules! debug_as_chain {
    ($error:ident $(, $details:ident)?) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $(if f.alternate() {
                    return self.$details(f);
                })?
                f.write_str(&$crate::error::error_chain(self))
            }
        }
    };
}

pub(crate) use debug_as_chain;

/// Returns the `source` of an error that has this text and this cause. The errors up to the last one whose text is part
/// of `text` are skipped, and the next error in the chain of causes is returned.
pub(crate) fn source_after<'e>(
    text: &str,
    cause: &'e (dyn Error + 'static),
) -> Option<&'e (dyn Error + 'static)> {
    match last_included(text, cause) {
        Some(last) => last.source(),
        None => Some(cause),
    }
}

/// Returns whether `text` includes the text of `cause` or of one of its causes.
pub(crate) fn names(text: &str, cause: &(dyn Error + 'static)) -> bool {
    last_included(text, cause).is_some()
}

/// Returns the innermost error of the chain whose text is included in `text`.
fn last_included<'e>(text: &str, cause: &'e (dyn Error + 'static)) -> Option<&'e (dyn Error + 'static)> {
    let chain = std::iter::once(cause).chain(causes(cause));
    chain.filter(|error| text.contains(&error.to_string())).last()
}

/// Returns the causes of an error, from its `source` to the innermost.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    let mut next = error.source();
    std::iter::from_fn(move || {
        let cause = next?;
        next = cause.source();
        Some(cause)
    })
    .take(MAX_CAUSES)
}

/// The reason why a text is not a valid id.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidId {
    /// A conversation id must not be empty.
    #[error("a conversation id can't be empty")]
    Empty,
    /// The text is too long for a conversation id.
    #[error("a conversation id has at most {} bytes, not {len}", Self::MAX_CONVERSATION_ID)]
    TooLong {
        /// The length of the text in bytes.
        len: usize,
    },
    /// A conversation id must not begin or end with a dot. Otherwise, in a store that keeps conversations in files, it
    /// could name a hidden file or a path outside of the store's folder.
    #[error("a conversation id neither begins nor ends with a dot")]
    DotAtEdge,
    /// A conversation id must not contain a character that is special in a path, a query or a URL.
    #[error(
        "a conversation id has ASCII letters, digits, `-`, `.`, `_` and `~` only, not {character:?} (at byte {at})"
    )]
    Character {
        /// The first invalid character.
        character: char,
        /// The byte offset of the invalid character.
        at: usize,
    },
    /// A conversation id must not be a name that Windows reserves for a device.
    #[error("{name:?} is the name of a device on Windows and can't be a conversation id")]
    Device {
        /// The reserved part of the id.
        name: String,
    },
    /// The text is not a [`WriteId`](crate::store::custom::WriteId).
    #[error("a write id is 22 characters of URL-safe base64")]
    WriteId,
    /// The text is not an [`EventId`](crate::subscription::EventId).
    #[error("{text:?} is not an event id, such as `1f0a-42`")]
    EventId {
        /// The text.
        text: String,
    },
    /// The text is not an [`ApprovalId`](crate::manager::ApprovalId).
    #[error(
        "{text:?} is not the id of an approval, such as `00112233445566778899aabbccddeeff.call_7.chat-1`"
    )]
    ApprovalId {
        /// The text.
        text: String,
    },
}

debug_as_chain!(InvalidId);

impl InvalidId {
    /// The largest length of a conversation id in bytes.
    pub(crate) const MAX_CONVERSATION_ID: usize = 128;
}

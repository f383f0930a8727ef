//! The location of an attachment's bytes, and the form that it has in a store.
//!
//! A store may keep the bytes of a large attachment apart from its message, which then contains a reference. serde has no
//! argument for such a context, so a [`StoredAttachmentForm`] applies to one thread while a closure runs. In any other JSON, a
//! reference is an error. So neither the body of a request nor an imported document can refer to bytes in a store.

use std::{
    cell::{LazyCell, RefCell},
    rc::Rc,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use serde_json::Value;

use super::{Attachment, Content};

/// The location of an attachment's bytes.
// With `remote`, serde's derives make functions of this type instead of implementations of the traits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(remote = "Self", tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// The bytes are in the message, as base64.
    Base64 {
        /// The bytes in base64, in the standard alphabet and padded. Clones share the text.
        data: Arc<str>,
    },
    /// The bytes are at a URL that the service can reach.
    Url {
        /// The URL.
        url: String,
    },
}

/// The greatest length of a text in base64 that is always part of its message, in bytes.
pub(crate) const SMALL: usize = 16 * 1024;

/// The form of attachments in a store.
pub(crate) trait StoredAttachmentForm {
    /// Returns the reference to write in place of this text in base64, if the store keeps the text apart.
    fn reference(&self, data: &Arc<str>) -> Option<String>;

    /// Returns the text with this reference, or a description of the problem.
    fn data(&self, reference: &str) -> Result<Arc<str>, String>;
}

thread_local! {
    /// The form that applies to this thread now.
    static FORM: RefCell<Option<Rc<dyn StoredAttachmentForm>>> = const { RefCell::new(None) };
}

/// Runs an action that writes or reads messages in this form.
pub(crate) fn in_form<T>(form: Rc<dyn StoredAttachmentForm>, action: impl FnOnce() -> T) -> T {
    /// Restores the earlier form, even if the action panics.
    struct AttachmentFormGuard(Option<Rc<dyn StoredAttachmentForm>>);

    impl Drop for AttachmentFormGuard {
        fn drop(&mut self) {
            FORM.set(self.0.take());
        }
    }

    let _restore = AttachmentFormGuard(FORM.replace(Some(form)));
    action()
}

fn form() -> Option<Rc<dyn StoredAttachmentForm>> {
    FORM.with_borrow(Clone::clone)
}

/// The JSON form in a store.
#[derive(Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum StoredSourceJson {
    Base64 { data: Arc<str> },
    Url { url: String },
    File { sha256: String },
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let Self::Base64 { data } = self
            && let Some(sha256) = form().and_then(|form| form.reference(data))
        {
            return StoredSourceJson::File { sha256 }.serialize(serializer);
        }
        Self::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Source {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Some(form) = form() else { return Self::deserialize(deserializer) };
        Ok(match StoredSourceJson::deserialize(deserializer)? {
            StoredSourceJson::Base64 { data } => Self::Base64 { data },
            StoredSourceJson::Url { url } => Self::Url { url },
            StoredSourceJson::File { sha256 } => {
                Self::Base64 { data: form.data(&sha256).map_err(D::Error::custom)? }
            }
        })
    }
}

/// The form in a store of a text that contains messages as JSON. Each text in base64 between two quotes is kept apart as
/// the data of an attachment is. The form is then a list of parts, in which each second part is a reference. A text
/// can't imitate a reference, because a text without files is a string.
pub(crate) mod text_with_files {
    use super::*;

    /// The greatest length of a text that is divided, in bytes. So a few references can't make a text of any length.
    const LONGEST: usize = 256 * 1024 * 1024;

    pub(crate) fn serialize<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
        let form = form().filter(|_| text.len() <= LONGEST);
        let (mut parts, mut from, mut at) = (Vec::new(), 0, 0);
        for piece in text.split('"') {
            let form = form.as_ref().filter(|_| piece.len() > SMALL);
            if let Some(reference) = form.and_then(|form| form.reference(&piece.into())) {
                parts.extend([text[from..at].to_owned(), reference]);
                from = at + piece.len();
            }
            at += piece.len() + 1;
        }
        if parts.is_empty() {
            return serializer.serialize_str(text);
        }
        parts.push(text[from..].to_owned());
        parts.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        let parts: Vec<String> = match Value::deserialize(deserializer)? {
            Value::String(text) => return Ok(text.into()),
            parts => serde_json::from_value(parts).map_err(D::Error::custom)?,
        };
        let form = form().ok_or_else(|| D::Error::custom("a text outside a store refers to files"))?;
        let mut text = String::new();
        for parts in parts.chunks(2) {
            text += &parts[0];
            if let Some(reference) = parts.get(1) {
                text += &form.data(reference).map_err(D::Error::custom)?;
            }
            if text.len() > LONGEST {
                return Err(D::Error::custom("a text with its files is too long"));
            }
        }
        Ok(text.into())
    }
}

/// Iterates over the texts of the large attachments in these blocks, without those in results of tools.
fn large(content: &[Content]) -> impl Iterator<Item = &Arc<str>> {
    content.iter().filter_map(|block| match block {
        Content::Attachment(Attachment { source: Source::Base64 { data }, .. }) if data.len() > SMALL => {
            Some(data)
        }
        _ => None,
    })
}

/// Gives each large attachment the text of an equal attachment among the last known ones, so that both share their
/// memory.
pub(crate) fn share<'m>(content: &mut [Content], known: impl Iterator<Item = &'m [Content]>) {
    /// The number of known attachments with which each attachment is compared.
    const COMPARED: usize = 100;

    let known = LazyCell::new(|| known.flat_map(large).collect::<Vec<_>>());
    for block in content {
        let Content::Attachment(Attachment { source: Source::Base64 { data }, .. }) = block else { continue };
        if data.len() > SMALL
            && let Some(equal) = known.iter().rev().take(COMPARED).find(|known| **known == data)
        {
            *data = Arc::clone(equal);
        }
    }
}

/// Returns the number of bytes in this content whose memory is that of the other content, or of an earlier part.
pub(crate) fn shared<'m>(
    content: impl Iterator<Item = &'m [Content]>,
    others: &(impl Iterator<Item = &'m [Content]> + Clone),
) -> usize {
    let (mut seen, mut bytes) = (Vec::<&Arc<str>>::new(), 0);
    for data in content.flat_map(large) {
        if others.clone().flat_map(large).chain(seen.iter().copied()).any(|other| Arc::ptr_eq(other, data)) {
            bytes += data.len();
        } else {
            seen.push(data);
        }
    }
    bytes
}

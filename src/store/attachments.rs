//! Attachments that a store keeps once per conversation.
//!
//! # Types
//!
//! A *file* consists of the bytes of a [`Source::Base64`](crate::message::Source::Base64) of more than 16 KiB of text.
//! Its name is the SHA-256 of the bytes, in 64 hexadecimal digits. A *reference* is the JSON
//! `{"type":"file","sha256":"…"}` in place of the attachment's source. [`AttachmentCodec`] replaces sources by references while
//! messages are encoded, and references by sources while messages are decoded. The state of an agent, which a record
//! contains as text with the results of tools, is divided at each long text in base64 into a list of parts, and each
//! second part is the name of a file. Everything else uses whole messages, so writers, exports, copies and other stores
//! need not know files.
//!
//! # Invariants
//!
//! 1. A message is returned byte for byte. Base64 that is not canonical, and therefore differs from the encoding of its
//!    own bytes, stays in the message.
//! 2. Only a source becomes a reference, and only in the place of a source a reference is read. An input of a tool is a
//!    JSON value and no source, so it can imitate a reference but never is one. The content of an agent's state is never
//!    examined: a state without files is a string, and no string is a list of parts. The tool uses that wait in a
//!    database stay whole.
//! 3. A reference is written in the same atomic write as its file, or after it. The store computes the name of a file
//!    from the bytes, and checks the name when it reads the bytes. So no writer can replace the bytes under a name.
//! 4. The write that removes the last reference removes the file. In the file store, this holds for an erasure. A file
//!    of a discarded record stays until the next rewrite of the log. In a database, triggers do it. The references of a
//!    recorded turn are removed together, when the turn ends or another turn replaces it.
//! 5. If a file is missing or has other bytes, the message that refers to it is damaged.
//!
//! # Crashes and races
//!
//! | case | result |
//! | --- | --- |
//! | the process ends during a write, or the power fails | A database rolls the write back. In the file store, the files are part of the line of the write, so one checksum covers all of it. |
//! | several messages of a write have the same file | The write contains the file once. |
//! | the conversation already has the file | A database has one row per name. The file store looks for the name in the log, and writes the bytes only if it finds none. |
//! | a write is repeated after an unknown outcome | The store finds the id of the write and writes nothing, so neither files nor references are added. |
//! | an erasure and a commit at the same time | One of them fails with a conflict. The files that are needed are determined in the same transaction, or under the same lock. |
//! | a record and the history refer to one file | Both have references of their own, so the end of the turn keeps the file. |
//! | a copy to another store | The copy contains whole messages, and the other store divides them in its own way. |
//! | a delete | It removes the files with the conversation, because no two conversations share files. |
//! | a log or database that was changed by somebody else | A name is only compared with other names. It is never a path, and memory is only used for bytes that exist. |

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    rc::Rc,
    sync::Arc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use sha2::{Digest as _, Sha256};

use crate::message::{SMALL, StoredAttachmentForm, in_form};

/// The files to which encoded messages refer: the bytes in base64 for each name.
pub(super) type UsedFiles = BTreeMap<String, Arc<str>>;

/// The files of a conversation, as far as they are known. By default, messages are decoded with these files, and their
/// texts become references again when messages are encoded.
#[derive(Default)]
pub(super) struct AttachmentCodec {
    /// The text of each file. `None` if the file has other bytes than its name says.
    known: RefCell<HashMap<String, Option<Arc<str>>>>,
    /// The name of each known file by the address of its text, which stays in `known`.
    names: RefCell<HashMap<*const u8, String>>,
    /// The files to which the messages refer that were encoded so far.
    pub(super) used: RefCell<UsedFiles>,
    /// Whether a decoded message refers to a file that is missing or has other bytes.
    pub(super) has_missed: Cell<bool>,
    /// Whether messages are decoded without the bytes of files.
    ignores: bool,
    /// Whether unknown texts become references, too.
    divides: bool,
}

impl AttachmentCodec {
    /// Returns no files, for readers that need only the other parts of a message. Attachments are empty.
    pub(super) fn ignored() -> Rc<Self> {
        Rc::new(Self { ignores: true, ..Self::default() })
    }

    /// Returns no files, for writers.
    pub(super) fn dividing() -> Rc<Self> {
        Rc::new(Self { divides: true, ..Self::default() })
    }

    /// Returns whether messages may need a file with this name that is not known yet.
    pub(super) fn lacks(&self, sha256: &str) -> bool {
        !self.ignores && !matches!(self.known.borrow().get(sha256), Some(Some(_)))
    }

    /// Adds a file that was read.
    pub(super) fn add(&self, sha256: String, bytes: &[u8]) {
        if self.lacks(&sha256) {
            let text = (name(bytes) == sha256).then(|| Arc::<str>::from(BASE64_STANDARD.encode(bytes)));
            if let Some(text) = &text {
                self.names.borrow_mut().insert(Arc::as_ptr(text).cast(), sha256.clone());
            }
            self.known.borrow_mut().insert(sha256, text);
        }
    }

    /// Runs an action that encodes messages, or decodes messages with the known files.
    pub(super) fn apply<T>(self: &Rc<Self>, action: impl FnOnce() -> T) -> T {
        in_form(Rc::<Self>::clone(self), action)
    }
}

impl StoredAttachmentForm for AttachmentCodec {
    fn reference(&self, data: &Arc<str>) -> Option<String> {
        if data.len() <= SMALL {
            return None;
        }
        let sha256 = match self.names.borrow().get(&Arc::as_ptr(data).cast()) {
            Some(sha256) => sha256.clone(),
            None if !self.divides => return None,
            // Only canonical base64 can be decoded.
            None => name(&BASE64_STANDARD.decode(&**data).ok()?),
        };
        self.used.borrow_mut().entry(sha256.clone()).or_insert_with(|| Arc::clone(data));
        Some(sha256)
    }

    fn data(&self, sha256: &str) -> Result<Arc<str>, String> {
        match self.known.borrow().get(sha256) {
            Some(Some(text)) => return Ok(Arc::clone(text)),
            _ if self.ignores => return Ok("".into()),
            _ => self.has_missed.set(true),
        }
        Err(format!("the file {sha256:.64} is missing, or it has other bytes"))
    }
}

/// Returns the name of a file with these bytes.
fn name(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::TurnRecord;

    #[test]
    fn state_that_names_a_file_is_read_only_with_that_file() {
        let data = BASE64_STANDARD.encode([7; 15_000]);
        let core = format!(r#"{{"a":"{data}","b":["{data}"],"c":"{}"}}"#, "no base64 ".repeat(3000));
        let record = TurnRecord::new(1, "00112233445566778899aabbccddeeff".parse().unwrap(), core);
        let files = AttachmentCodec::dividing();
        let text = files.apply(|| serde_json::to_string(&record).unwrap());
        let (sha256, kept) = files.used.take().pop_first().unwrap();
        assert!(text.matches(&sha256).count() == 2 && !text.contains(&data) && *kept == *data);

        let read =
            |files: &Rc<AttachmentCodec>| files.apply(|| serde_json::from_str::<TurnRecord>(&text).ok());
        let known = Rc::<AttachmentCodec>::default();
        assert_eq!(read(&known), None, "the file is missing");
        known.add(sha256, &[7; 15_000]);
        assert_eq!(read(&known), Some(record));
        // A document that is imported can't name files of a store.
        assert!(serde_json::from_str::<TurnRecord>(&text).is_err());
    }
}

//! The addresses of stored files, which replace the bytes of large files in everything that clients get.

use std::fmt::{Display, Write};

use super::super::{Problem, gate::Call};
use crate::{
    message::{Attachment, Content, Message, MessageId, ResultBlock, Source},
    session::SessionSnapshot,
};

/// The greatest size of a file that a client gets inside a message, in bytes of base64.
pub(in crate::web) const MAX_INLINE: usize = 64 << 10;

/// The form in which clients get the files of a conversation.
#[derive(Clone, Debug)]
pub(in crate::web) struct Files {
    /// The address below which the files of the conversation are served: `BASE/MESSAGE/BLOCK`.
    pub(in crate::web) base: Option<String>,
    /// The greatest size of a file that stays inside its message, in bytes of base64.
    pub(in crate::web) limit: usize,
}

impl Default for Files {
    fn default() -> Self {
        Self { base: None, limit: MAX_INLINE }
    }
}

impl Files {
    /// Returns whether the file is so large that its address replaces it. The address needs the id of the message.
    pub(in crate::web) fn links(&self, file: &Attachment) -> bool {
        self.base.is_some() && matches!(&file.source, Source::Base64 { data } if data.len() > self.limit)
    }

    /// Returns the address that replaces the file, or `None` if the file stays inside its message. `block` is the index
    /// of the file's block. In the content of a tool result, it is `BLOCK-INNER`.
    pub(in crate::web) fn address(
        &self,
        file: &Attachment,
        message: &dyn Display,
        block: &str,
    ) -> Option<String> {
        let base = self.base.as_deref().filter(|_| self.links(file))?;
        Some(format!("{base}/{}/{block}", encoded(&message.to_string())))
    }
}

/// Replaces the addresses of the conversation's own files by the files. An address can be that of any route, with or
/// without a host. `is_own` returns whether clients use an id for the conversation.
///
/// # Errors
///
/// Fails if another address is relative, because no model service could read it.
pub(in crate::web) fn restore(
    content: &mut [Content],
    snapshot: &SessionSnapshot,
    is_own: &dyn Fn(&str) -> bool,
) -> Result<(), Problem> {
    for file in content.iter_mut().flat_map(attachments) {
        let Source::Url { url } = &file.source else { continue };
        if let Some(stored) = own(url, snapshot, is_own) {
            let name = file.name.take();
            stored.clone_into(file);
            file.name = name.or(file.name.take());
        } else if is_relative(url) {
            return Err(Problem::invalid_body(&format!("the file address `{url}` is not usable")));
        }
    }
    Ok(())
}

/// Iterates over the files in a block.
pub(in crate::web) fn attachments(block: &mut Content) -> impl Iterator<Item = &mut Attachment> {
    let (file, results) = match block {
        Content::Attachment(file) => (Some(file), None),
        Content::ToolResult(result) => (None, Some(&mut result.content)),
        _ => (None, None),
    };
    let in_results = results.into_iter().flatten().filter_map(|block| match block {
        ResultBlock::Attachment(file) => Some(file),
        ResultBlock::Text(_) => None,
    });
    file.into_iter().chain(in_results)
}

/// Returns whether an address has no scheme.
fn is_relative(url: &str) -> bool {
    url.split_once(':').is_none_or(|(scheme, _)| scheme.is_empty() || scheme.contains(['/', '?', '#']))
}

/// Returns the stored file with this address, if the address is one of the conversation.
fn own<'s>(
    url: &str,
    snapshot: &'s SessionSnapshot,
    is_own: &dyn Fn(&str) -> bool,
) -> Option<&'s Attachment> {
    let mut segments = url.split(['?', '#']).next()?.rsplit('/');
    let (block, message, folder) = (segments.next()?, segments.next()?, segments.next()?);
    let conversation = segments.next().filter(|_| folder == "files").and_then(decoded)?;
    if !is_own(&conversation) {
        return None;
    }
    stored(snapshot, &MessageId::new(decoded(message)?), block)
}

/// Finds a file by the id of its message and the index of its block. In the content of a tool result, `block` is
/// `BLOCK-INNER`.
pub(in crate::web) fn stored<'s>(
    snapshot: &'s SessionSnapshot,
    id: &MessageId,
    block: &str,
) -> Option<&'s Attachment> {
    let (index, inner) = match block.split_once('-') {
        Some((index, inner)) => (index.parse::<usize>().ok()?, Some(inner.parse::<usize>().ok()?)),
        None => (block.parse().ok()?, None),
    };
    let has_id = |message: &&Message| message.id.as_ref() == Some(id);
    // A client can send the prompts of the last run again.
    let unanswered = snapshot.agent.last_run.iter().flat_map(|end| &end.unanswered);
    let others = || snapshot.agent.pending.iter().chain(unanswered.clone()).map(|message| &**message);
    let stored =
        snapshot.tree.find(id).and_then(|node| snapshot.tree.node(node)).map(|node| &**node.message());
    let content = match stored.or_else(|| others().find(has_id)) {
        Some(message) => message.content.get(index)?,
        None if snapshot.agent.answer.as_ref() == Some(id) => &snapshot.agent.partial.get(index)?.content,
        None => return None,
    };
    match (content, inner) {
        (Content::Attachment(attachment), None) => Some(attachment),
        (Content::ToolResult(result), Some(inner)) => match result.content.get(inner)? {
            ResultBlock::Attachment(attachment) => Some(attachment),
            ResultBlock::Text(_) => None,
        },
        _ => None,
    }
}

impl Call {
    /// Returns whether clients use this id for the route's conversation: its stored id, or an id that they have chosen.
    pub(in crate::web) fn is_own(&self, id: &str) -> bool {
        let chosen = || self.web.stored_id(&self.principal, id).ok();
        self.id().is_ok_and(|own| own.as_str() == id || chosen().as_ref() == Some(own))
    }
}

/// Encodes a segment of a URL's path. A dot is encoded, too, because `.` and `..` have a meaning in a path.
pub(in crate::web) fn encoded(segment: &str) -> String {
    let mut encoded = String::with_capacity(segment.len());
    for byte in segment.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Decodes a segment of a URL's path, or returns `None` if the encoding is invalid.
fn decoded(segment: &str) -> Option<String> {
    let mut bytes = segment.bytes();
    let mut decoded = Vec::with_capacity(segment.len());
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).ok()
}

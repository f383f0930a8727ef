//! The addresses of stored files, which replace the bytes of large files in everything that clients get.

use std::{
    collections::{HashMap, HashSet},
    fmt::{Display, Write},
};

use super::{
    super::{Problem, gate::WebRequest, requests::prompt_of},
    media_types::complete,
};
use crate::{
    message::{Attachment, Content, Message, MessageId, ResultBlock, Source},
    run::Prompt,
    session::{SessionCommand, SessionSnapshot},
};

/// The greatest size of a file that a client gets inside a message, in bytes of base64.
pub(in crate::web) const MAX_INLINE: usize = 64 << 10;

/// The form in which clients get the files of a conversation.
#[derive(Clone, Debug)]
pub(in crate::web) struct ClientFileForm {
    /// The address below which the files of the conversation are served: `BASE/MESSAGE/BLOCK`.
    pub(in crate::web) base: Option<String>,
    /// The greatest size of a file that stays inside its message, in bytes of base64.
    pub(in crate::web) limit: usize,
}

impl Default for ClientFileForm {
    fn default() -> Self {
        Self { base: None, limit: MAX_INLINE }
    }
}

impl ClientFileForm {
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

/// The greatest number of addresses of own files in a body.
const MAX_ADDRESSES: usize = 64;

/// The place of a stored file: the id of its message, and the index of its block.
type FilePlace = (MessageId, String);

impl WebRequest {
    /// Replaces the addresses of the conversation's own files in a command's prompt by the files. An address can be that
    /// of any route, with or without a host. Also replaces media types that name no format, such as `image/*`.
    ///
    /// # Errors
    ///
    /// Fails if another address is relative, because no model service could read it. Also fails if the body has too many
    /// addresses, or if the files together are larger than a body may be.
    pub(in crate::web) fn restore(
        &self,
        command: &mut SessionCommand,
        snapshot: &SessionSnapshot,
    ) -> Result<(), Problem> {
        let Some(Prompt { content, .. }) = prompt_of(command) else { return Ok(()) };
        let mut own = Vec::new();
        for file in content.0.iter_mut().flat_map(attachments) {
            let Source::Url { url } = &file.source else { continue };
            match self.own(url) {
                Some(place) => own.push((file, place)),
                None => check_address(url)?,
            }
        }
        if own.len() > MAX_ADDRESSES {
            let text =
                format!("the body has {} addresses of stored files; send at most {MAX_ADDRESSES}", own.len());
            return Err(Problem::invalid_body(&text));
        }
        let wanted: HashSet<_> = own.iter().map(|(_, (id, _))| id.clone()).collect();
        let messages = messages(snapshot, &wanted);
        let (limit, mut sum) = (self.web.0.limits.command_body, 0);
        for (file, (id, block)) in own {
            let Some(stored) = in_message(snapshot, &messages, &id, &block) else {
                if let Source::Url { url } = &file.source {
                    check_address(url)?;
                }
                continue;
            };
            if let Source::Base64 { data } = &stored.source {
                sum += data.len();
            }
            if sum > limit {
                return Err(Problem::too_large(limit));
            }
            let name = file.name.take();
            stored.clone_into(file);
            file.name = name.or(file.name.take());
        }
        content.0.iter_mut().flat_map(attachments).for_each(complete);
        Ok(())
    }

    /// Returns the place of the file with this address, if the address is one of the conversation.
    fn own(&self, url: &str) -> Option<FilePlace> {
        let mut segments = url.split(['?', '#']).next()?.rsplit('/');
        let (block, message, folder) = (segments.next()?, segments.next()?, segments.next()?);
        let conversation = segments.next().filter(|_| folder == "files").and_then(decoded)?;
        self.is_own(&conversation).then_some((MessageId::new(decoded(message)?), block.to_owned()))
    }

    /// Returns whether clients use this id for the route's conversation: its stored id, or an id that they have chosen.
    fn is_own(&self, id: &str) -> bool {
        let chosen = || self.web.stored_id(&self.client.principal, id).ok();
        self.id().is_ok_and(|own| own.as_str() == id || chosen().as_ref() == Some(own))
    }
}

/// Fails if an address has no scheme.
fn check_address(url: &str) -> Result<(), Problem> {
    let is_empty = |scheme: &str| scheme.is_empty() || scheme.contains(['/', '?', '#']);
    if url.split_once(':').is_none_or(|(scheme, _)| is_empty(scheme)) {
        return Err(Problem::invalid_body(&format!("the file address `{url}` is not usable")));
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

/// Finds a file by the id of its message and the index of its block. In the content of a tool result, `block` is
/// `BLOCK-INNER`.
pub(in crate::web) fn stored<'s>(
    snapshot: &'s SessionSnapshot,
    id: &MessageId,
    block: &str,
) -> Option<&'s Attachment> {
    in_message(snapshot, &messages(snapshot, &HashSet::from([id.clone()])), id, block)
}

/// Finds the messages with these ids. If several messages have an id, the newest one counts.
fn messages<'s>(
    snapshot: &'s SessionSnapshot,
    wanted: &HashSet<MessageId>,
) -> HashMap<&'s MessageId, &'s Message> {
    if wanted.is_empty() {
        return HashMap::new();
    }
    // A client can send the prompts of the last run again.
    let unanswered = snapshot.agent.last_run.iter().flat_map(|end| &end.unanswered);
    let others = unanswered.chain(&snapshot.agent.pending).map(|message| &**message);
    let all = others.chain(snapshot.tree.nodes().map(|node| &**node.message()));
    let found = all.filter_map(|message| Some((message.id.as_ref()?, message)));
    found.filter(|(id, _)| wanted.contains(id)).collect()
}

/// Finds a file in one of these messages or in the answer in flight.
fn in_message<'s>(
    snapshot: &'s SessionSnapshot,
    messages: &HashMap<&MessageId, &'s Message>,
    id: &MessageId,
    block: &str,
) -> Option<&'s Attachment> {
    let (index, inner) = match block.split_once('-') {
        Some((index, inner)) => (index.parse::<usize>().ok()?, Some(inner.parse::<usize>().ok()?)),
        None => (block.parse().ok()?, None),
    };
    let content = match messages.get(id) {
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

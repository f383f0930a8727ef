//! Joins the halves of characters in the deltas of a response; see [`crate::json::halves`]. Which text continues which
//! other text is known only from the deltas. If a text ends with a first half and the text that continues it begins with
//! a second half, the two halves become a character. An unpaired half becomes U+FFFD at its position.

use std::collections::HashMap;

use super::{BlockStart, Delta, Part, ProviderError, StopReason};
use crate::json::halves::{
    MARK, SurrogateHalf, marked, resolve_members, resolve_text, resolve_value, resolved,
};

/// Resolves the marks in the deltas of one response.
#[derive(Debug, Default)]
pub(in crate::provider) struct SurrogateHalves {
    /// Whether an unpaired half has occurred. Before that, deltas are forwarded without a check.
    found: bool,
    /// The first halves of characters with which texts ended, by the index of the block.
    open: HashMap<usize, (SurrogateHalfTextKind, SurrogateHalf)>,
}

impl SurrogateHalves {
    /// Returns the JSON text of an event with a [mark](marked) instead of each unpaired half, or `None` if there are no
    /// unpaired halves.
    pub(in crate::provider) fn mark(&mut self, json: &str) -> Option<String> {
        let marked = marked(json)?;
        self.found = true;
        Some(marked)
    }

    /// Resolves the marks in the deltas of an event. If a text ends with a first half, this half waits for the text's
    /// continuation.
    pub(in crate::provider) fn resolve(&mut self, deltas: &mut Vec<Delta>) {
        if !self.found {
            return;
        }
        for delta in std::mem::take(deltas) {
            match delta {
                Delta::Start { index, mut block } => {
                    resolve_start(&mut block);
                    deltas.push(Delta::Start { index, block });
                }
                Delta::Extend { index, part } => self.extend(index, part, deltas),
                Delta::End { index } => {
                    self.give_up(index, deltas);
                    deltas.push(Delta::End { index });
                }
                Delta::Message(mut message) => {
                    if let Some(reason) = &mut message.stop_reason {
                        if let StopReason::Other(word) = reason {
                            resolve_text(word);
                        }
                        self.finish(deltas);
                    }
                    message.model.iter_mut().chain(&mut message.warnings).for_each(resolve_text);
                    resolve_members(&mut message.provider_data);
                    deltas.push(Delta::Message(message));
                }
                retry @ Delta::Retry { .. } => {
                    self.open.clear();
                    deltas.push(retry);
                }
            }
        }
    }

    /// Ends the response. Each half that is still waiting becomes U+FFFD.
    pub(in crate::provider) fn finish(&mut self, deltas: &mut Vec<Delta>) {
        let mut open: Vec<usize> = self.open.keys().copied().collect();
        open.sort_unstable();
        for index in open {
            self.give_up(index, deltas);
        }
    }

    /// Returns the error with each mark of a half replaced by U+FFFD.
    pub(in crate::provider) fn resolve_error(&self, mut error: ProviderError) -> ProviderError {
        if self.found {
            resolve_text(&mut error.message);
            error.body.iter_mut().chain(&mut error.request_id).for_each(resolve_text);
        }
        error
    }

    fn extend(&mut self, index: usize, part: Part, deltas: &mut Vec<Delta>) {
        let (kind, text) = match part {
            Part::Text(text) => (SurrogateHalfTextKind::Text, text),
            Part::Input(text) => (SurrogateHalfTextKind::Input, text),
            Part::Signature(text) => (SurrogateHalfTextKind::Signature, text),
            Part::Redacted(text) => (SurrogateHalfTextKind::Redacted, text),
            Part::Item(mut item) => {
                resolve_value(&mut item);
                return deltas.push(Delta::Extend { index, part: Part::Item(item) });
            }
        };
        if self.open.get(&index).is_some_and(|(open, _)| *open != kind) {
            self.give_up(index, deltas);
        }
        let before = self.open.remove(&index).map(|(_, half)| half);
        let (text, open) = resolved(before, text);
        if let Some(half) = open {
            self.open.insert(index, (kind, half));
        }
        if !text.is_empty() {
            deltas.push(Delta::Extend { index, part: kind.part(text) });
        }
    }

    /// Replaces the half that waits in this block with U+FFFD, because its text was not continued.
    fn give_up(&mut self, index: usize, deltas: &mut Vec<Delta>) {
        if let Some((kind, _)) = self.open.remove(&index) {
            let part = kind.part(char::REPLACEMENT_CHARACTER.to_string());
            deltas.push(Delta::Extend { index, part });
        }
    }
}

/// The kinds of text with which a block can be extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SurrogateHalfTextKind {
    Text,
    Input,
    Signature,
    Redacted,
}

impl SurrogateHalfTextKind {
    fn part(self, text: String) -> Part {
        match self {
            Self::Text => Part::Text(text),
            Self::Input => Part::Input(text),
            Self::Signature => Part::Signature(text),
            Self::Redacted => Part::Redacted(text),
        }
    }
}

fn resolve_start(block: &mut BlockStart) {
    match block {
        BlockStart::Text | BlockStart::Thinking => {}
        BlockStart::ToolUse { id, name } => {
            if id.as_str().contains(MARK) {
                let mut resolved = id.as_str().to_owned();
                resolve_text(&mut resolved);
                *id = resolved.into();
            }
            resolve_text(name);
        }
        BlockStart::Attachment(attachment) => {
            attachment.name.iter_mut().chain([&mut attachment.media_type]).for_each(resolve_text);
        }
        BlockStart::ProviderItem(item) => resolve_value(&mut item.data),
    }
}

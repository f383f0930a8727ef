//! The UI message stream of the AI SDK, levels 6 and 7.
//!
//! This module performs no I/O. Its functions convert snapshots, events and requests into frames, messages and
//! commands.
//!
//! - `AiSdkStream` turns a snapshot and the updates after it into the frames of one response.
//! - `messages` turns a snapshot into the list of messages that a page loads.
//! - `read` turns a posted request into a command of a session.
//!
//! A message of the AI SDK is not a message of the tree. One assistant message contains everything between two prompts.
//! Its id is `a-`, followed by the turn of its first message. So each version of an answer has its own id, which is known
//! before the first frame. `front::exchange` groups the messages of a snapshot in this way.
//!
//! The list and the stream agree, because both come from the same `AiSdkFrameWriter`: the list is made by folding the frames
//! that a replay of the messages would send.

mod fold;
mod list;
mod request;
mod stream;
mod writer;

#[cfg(test)]
mod tests;

pub(super) use self::{
    list::messages,
    request::{AiSdkPostBody, read},
    stream::{AiSdkRunToStream, AiSdkStream},
};

use serde_json::Value;

use super::front::{exchange, files::ClientFileForm};

/// One frame of a stream, as JSON. On the wire, `data: ` precedes the JSON and an empty line follows it.
pub(super) type AiSdkFrame = Value;

/// The text of the last frame, which is not JSON.
pub(super) const DONE: &str = "[DONE]";

/// The level of the protocol: the major version of the npm package `ai`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum AiSdkVersion {
    /// Version 6. It has no response to approvals, no custom parts, no steering messages and no reset of a step.
    Six,
    /// Version 7.
    #[default]
    Seven,
}

/// The settings of a translation.
#[derive(Clone, Debug, Default)]
pub(super) struct AiSdkTranslationSettings {
    /// The level of the protocol.
    pub(super) level: AiSdkVersion,
    /// The address of the conversation's routes, without a slash at the end.
    pub(super) conversation: Option<String>,
    /// The form of files. If they have no address, they are always sent inside the frames.
    pub(super) files: ClientFileForm,
    /// Whether the kinds of provider items are shown.
    pub(super) provider_items: bool,
}

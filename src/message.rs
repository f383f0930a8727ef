//! Messages, content blocks and histories: the plain data that every other module uses.
//!
//! A [`Message`] has a [`Role`] and a list of [`Content`] blocks: [`Text`], [`Thinking`], an [`Attachment`], a
//! [`ToolUse`], a [`ToolResult`] or a [`ProviderItem`]. Functions that take content accept anything that converts into
//! [`Blocks`], such as a string, one block or a list of blocks. [`Usage`] counts the tokens that a response used.
//!
//! A [`History`] is a sequence of shared messages that is cheap to clone and to extend. A model service accepts only a
//! history that obeys the *history law*: every tool use is answered exactly once, in the user message right after it.
//! [`History::check`] and [`History::check_sendable`] check the law, [`HistoryError`] describes a violation, and
//! [`History::repair`] returns a repaired history that obeys the law.
//!
//! A [`Compaction`] is a message that stands for earlier messages in requests. [`History::sent`] returns the messages that
//! a request contains.
//!
//! ```
//! use omni_agent::message::{History, Message, ToolResult, ToolUse};
//! use serde_json::json;
//!
//! let tool_use = ToolUse::new("call_1", "weather", json!({ "city": "Oslo" }));
//! let mut history = History::from_iter([
//!     Message::user("How is the weather in Oslo?"),
//!     Message::assistant(tool_use.clone()),
//! ]);
//! assert!(history.check_sendable().is_err());
//!
//! history.push(Message::user(ToolResult::ok(&tool_use, "Snow, -3 °C")));
//! assert_eq!(history.check_sendable(), Ok(()));
//! ```
//!
//! Messages and histories serialize with `serde`. Files and databases keep messages in this JSON form.

mod cleared;
mod compaction;
mod content;
mod decision;
mod estimate;
mod history;
pub(crate) mod id;
mod source;
mod stop;
mod usage;

pub use compaction::{Compaction, CompactionTrigger};
pub use content::{Attachment, Content, ProviderItem, ResultBlock, Text, Thinking, ToolResult, ToolUse};
pub use decision::{DecisionKind, UseDecision};
pub use history::{History, HistoryError};
pub use id::{MessageId, Timestamp, ToolUseId, TurnId};
pub use source::Source;
pub use stop::StopReason;
pub use usage::{Purpose, RequestEnd, Usage, UsageRow, UsageSum};

pub(crate) use cleared::{ClearingReason, cleared, without_file_copies, without_files};
pub(crate) use estimate::text_tokens;
pub(crate) use id::text_id;

pub(crate) use content::{map_weight, member_weight, value_weight};
#[cfg(test)]
pub(crate) use history::CHECKED;
pub(crate) use history::{PathCheck, answer_open_tool_uses, check_step};
pub(crate) use source::{SMALL, StoredAttachmentForm, in_form, share, shared, text_with_files};

use std::{fmt, sync::Arc};

use crate::setters::setters;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The author of a [`Message`]. The system prompt is not a message: it is part of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// The application or its user. Tool results are user messages too.
    User,
    /// The model.
    Assistant,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Assistant => "assistant",
        })
    }
}

/// One message of a conversation.
///
/// Messages are plain data, and all fields are public. [`text`](Message::text), [`tool_uses`](Message::tool_uses) and
/// [`tool_results`](Message::tool_results) each select the blocks of one kind.
///
/// ```
/// use omni_agent::message::{Content, Message, Role};
///
/// let message = Message::user("What is in this picture?");
/// assert_eq!(message.role, Role::User);
/// assert_eq!(message.text(), "What is in this picture?");
///
/// let json = serde_json::to_string(&message)?;
/// assert_eq!(serde_json::from_str::<Message>(&json)?, message);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "One message of a conversation.")
)]
#[non_exhaustive]
pub struct Message {
    /// The message's author.
    pub role: Role,
    /// The content blocks, in order.
    pub content: Vec<Content>,
    /// The time at which the message was created.
    #[serde(default)]
    pub timestamp: Timestamp,
    /// The data that providers keep with the message as a whole. There is one entry per wire format, and its key is the
    /// format's name. An entry is sent back only to its wire format. The keys also show which wire format wrote the
    /// message. Endpoints add the name of their service in the entry `service`, so that the data that one service needs
    /// is not sent to another service.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_data: Map<String, Value>,
    /// The id of the message. The agent gives each new message an id. Messages from elsewhere may have none. The id is
    /// never sent to a model service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<MessageId>,
    /// Data of the application, which is stored with the message and never sent to a model service. The message of a
    /// prompt has the data of the [prompt](crate::run::Prompt::app_data). The size of the data is checked in prompts
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_data: Option<Arc<Value>>,
    /// The reason why the message ended. A message of the model has the reason of its response, unless this is
    /// [`Stop`](StopReason::Stop), [`ToolUse`](StopReason::ToolUse) or [`Pause`](StopReason::Pause). The last message of
    /// a turn has the turn's reason, unless this is `Stop` or `ToolUse`. It is never sent to a model service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Box<StopReason>>,
    /// Set if the message is a compaction, which stands for earlier messages in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compaction: Option<Box<Compaction>>,
    /// The size of the conversation up to and including this message, as the model service counted it, in tokens. Set in
    /// messages of the model whose service reports its usage. It is never sent to a model service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u32>,
}

setters!(Message: with_timestamp(timestamp: Timestamp), with_id(id: some MessageId));

impl Message {
    /// Returns a message of `role` with the given blocks and the current time.
    pub fn new(role: Role, content: impl Into<Blocks>) -> Self {
        Self::at(Timestamp::now(), role, content.into().0)
    }

    /// Returns a message of `role` with this content and this time.
    pub(crate) fn at(timestamp: Timestamp, role: Role, content: Vec<Content>) -> Self {
        Self {
            role,
            content,
            timestamp,
            provider_data: Map::new(),
            id: None,
            app_data: None,
            ended: None,
            compaction: None,
            context_tokens: None,
        }
    }

    /// Returns a user message with the current time.
    pub fn user(content: impl Into<Blocks>) -> Self {
        Self::new(Role::User, content)
    }

    /// Returns an assistant message with the current time.
    pub fn assistant(content: impl Into<Blocks>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// Returns the same message with this data of the application. `null` counts as no data.
    pub fn with_app_data(mut self, data: impl Into<Arc<Value>>) -> Self {
        self.app_data = Some(data.into()).filter(|data| !data.is_null());
        self
    }

    /// Returns the text of all text blocks, joined without a separator.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(Content::as_text).collect()
    }

    /// Iterates over the tool uses of this message, in order.
    pub fn tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.content.iter().filter_map(|block| match block {
            Content::ToolUse(tool_use) => Some(tool_use),
            _ => None,
        })
    }

    /// Iterates over the tool results of this message, in order.
    pub fn tool_results(&self) -> impl Iterator<Item = &ToolResult> {
        self.content.iter().filter_map(|block| match block {
            Content::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// Returns whether the wire format named `format` may see the parts of this message that are private to one format:
    /// signatures, redacted thinking and opaque items. The format may see them if it wrote the message, or if
    /// `provider_data` is empty.
    pub fn is_native_to(&self, format: &str) -> bool {
        self.provider_data.is_empty() || self.provider_data.contains_key(format)
    }

    /// Returns the approximate size of the message's payload in bytes, for limits on buffered data.
    pub fn weight(&self) -> usize {
        64 + self.content.iter().map(Content::weight).sum::<usize>()
            + map_weight(&self.provider_data)
            + self.app_data.as_deref().map_or(0, value_weight)
            + self.ended.as_ref().map_or(0, |reason| 16 + reason.weight())
            + self.compaction.as_ref().map_or(0, |own| 96 + own.model.as_ref().map_or(0, String::len))
    }
}

/// Content blocks that were converted from a string, one block, or many blocks.
///
/// ```
/// use omni_agent::message::{Blocks, Content, Text};
///
/// assert_eq!(Blocks::from("hi").0, vec![Content::from(Text::new("hi"))]);
/// assert!(Blocks::from("").0.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "Content blocks, in order.")
)]
#[serde(transparent)]
pub struct Blocks(pub Vec<Content>);

impl Blocks {
    /// Returns whether a model would see no content, because the list is empty or contains only blank text.
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|block| matches!(block, Content::Text(text) if text.text.trim().is_empty()))
    }
}

impl From<&str> for Blocks {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for Blocks {
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}

impl From<String> for Blocks {
    /// Returns one text block. Returns no block for an empty string, because services reject empty text.
    fn from(text: String) -> Self {
        Self(if text.is_empty() { Vec::new() } else { vec![Text::new(text).into()] })
    }
}

impl<C: Into<Content>> From<Vec<C>> for Blocks {
    fn from(blocks: Vec<C>) -> Self {
        blocks.into_iter().collect()
    }
}

impl<C: Into<Content>, const N: usize> From<[C; N]> for Blocks {
    fn from(blocks: [C; N]) -> Self {
        blocks.into_iter().collect()
    }
}

impl<C: Into<Content>> FromIterator<C> for Blocks {
    fn from_iter<I: IntoIterator<Item = C>>(blocks: I) -> Self {
        Self(blocks.into_iter().map(Into::into).collect())
    }
}

macro_rules! one_block {
    ($($from:ident),+) => {$(
        impl From<$from> for Blocks {
            fn from(block: $from) -> Self {
                Self(vec![block.into()])
            }
        }
    )+};
}

one_block!(Content, Text, Thinking, Attachment, ToolUse, ToolResult, ProviderItem);

//! Messages: pure data that every other layer speaks.
//!
//! A [`Message`] has a [`Role`] and a list of [`Content`] blocks. A [`History`] is a sequence of shared
//! messages that is cheap to clone and to extend. The *history law* — every tool use is answered exactly
//! once, right after it — is in [`HistoryError`], [`History::check`] and [`History::repair`].

mod content;
mod history;
mod id;
mod law;
mod usage;

pub use content::{
    Attachment, Content, ProviderItem, ResultBlock, Source, Text, Thinking, ToolResult, ToolUse,
};
pub use history::{History, Iter};
pub use id::{Timestamp, ToolUseId};
pub use law::HistoryError;
pub use usage::Usage;

pub(crate) use content::{map_weight, member_weight, value_weight};
pub(crate) use law::{answer_open_tool_uses, check_step};

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Who speaks in a [`Message`]. The system prompt is configuration and no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The application or its user, tool results included.
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
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub content: Vec<Content>,
    /// When the message was made.
    #[serde(default)]
    pub timestamp: Timestamp,
    /// What a provider keeps with the message as a whole, one entry a wire format, keyed by the format's
    /// name. It goes back to that format only; its keys also tell which format wrote the message. An endpoint
    /// adds its own name as `service`, and drops what is private from requests to any other.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub provider_data: Map<String, Value>,
}

impl Message {
    /// A message of `role` with the given blocks, made now.
    pub fn new(role: Role, content: impl Into<Blocks>) -> Self {
        Self { role, content: content.into().0, timestamp: Timestamp::now(), provider_data: Map::new() }
    }

    /// A user message, made now.
    pub fn user(content: impl Into<Blocks>) -> Self {
        Self::new(Role::User, content)
    }

    /// An assistant message, made now.
    pub fn assistant(content: impl Into<Blocks>) -> Self {
        Self::new(Role::Assistant, content)
    }

    /// All text blocks, joined without a separator.
    pub fn text(&self) -> String {
        self.content.iter().filter_map(Content::as_text).collect()
    }

    /// The tool uses in this message, in order.
    pub fn tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.content.iter().filter_map(|block| match block {
            Content::ToolUse(tool_use) => Some(tool_use),
            _ => None,
        })
    }

    /// The tool results in this message, in order.
    pub fn tool_results(&self) -> impl Iterator<Item = &ToolResult> {
        self.content.iter().filter_map(|block| match block {
            Content::ToolResult(result) => Some(result),
            _ => None,
        })
    }

    /// Whether `format` may see what is private to a wire format in this message (signatures, redacted
    /// thinking, opaque items): it wrote the message, or nobody claims to have written it.
    pub fn is_native_to(&self, format: &str) -> bool {
        self.provider_data.is_empty() || self.provider_data.contains_key(format)
    }

    /// Approximate bytes of payload, for bounding what is buffered.
    pub fn weight(&self) -> usize {
        64 + self.content.iter().map(Content::weight).sum::<usize>() + map_weight(&self.provider_data)
    }
}

/// Content blocks, from whatever a caller has at hand: a string, one block, or many.
///
/// ```
/// use omni_agent::message::{Blocks, Content, Text};
///
/// assert_eq!(Blocks::from("hi").0, vec![Content::from(Text::new("hi"))]);
/// assert!(Blocks::from("").0.is_empty());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Blocks(pub Vec<Content>);

impl Blocks {
    /// Whether a model would see nothing: no block, or only blank text.
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
    /// One text block, or none for an empty string, which services refuse.
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

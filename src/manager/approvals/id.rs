use std::{fmt, fmt::Write as _, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    error::InvalidId,
    message::{ToolUseId, TurnId},
    store::ConversationId,
};

/// The id of a tool use that waits for a decision, unique over all conversations and turns.
///
/// Its text form, which is also its JSON form, needs no escaping in a URL. The id is not a secret: an application that
/// receives it from a user must check that the conversation belongs to this user.
///
/// ```
/// use omni_agent::{manager::ApprovalId, store::ConversationId};
///
/// let turn = "00112233445566778899aabbccddeeff".parse()?;
/// let id = ApprovalId::new(ConversationId::new("chat.1")?, turn, "call 7");
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff.call~207.chat.1");
/// assert_eq!(id.to_string().parse(), Ok(id));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ApprovalId {
    /// The id of the conversation.
    pub conversation: ConversationId,
    /// The id of the turn.
    pub turn: TurnId,
    /// The id of the tool use within the turn.
    pub tool_use: ToolUseId,
}

impl ApprovalId {
    /// Returns the id of this tool use of a turn.
    pub fn new(conversation: ConversationId, turn: TurnId, tool_use: impl Into<ToolUseId>) -> Self {
        Self { conversation, turn, tool_use: tool_use.into() }
    }
}

/// Writes the turn, the tool use and the conversation, separated by dots. Only the conversation may contain dots. In
/// the tool use, a byte that is not a letter, a digit, `-` or `_` is written as `~` and two hexadecimal digits.
impl fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.", self.turn)?;
        for byte in self.tool_use.as_str().bytes() {
            if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
                f.write_char(byte.into())?;
            } else {
                write!(f, "~{byte:02x}")?;
            }
        }
        write!(f, ".{}", self.conversation)
    }
}

impl FromStr for ApprovalId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::ApprovalId { text: text.to_owned() };
        let mut parts = text.splitn(3, '.');
        let (Some(turn), Some(tool_use), Some(conversation)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err(invalid());
        };
        let id = Self {
            conversation: ConversationId::new(conversation)?,
            turn: turn.parse().map_err(|_| invalid())?,
            tool_use: unescaped(tool_use).ok_or_else(invalid)?.into(),
        };
        // Refuse other spellings, so that each id has exactly one text.
        if id.to_string() == text { Ok(id) } else { Err(invalid()) }
    }
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'~' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

impl Serialize for ApprovalId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApprovalId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

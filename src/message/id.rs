use std::{
    fmt,
    num::{NonZeroU64, ParseIntError},
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// Defines a type of ids that are texts.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(transparent)]
        $(#[$doc])*
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Returns an id with exactly this text.
            pub fn new(id: impl Into<std::sync::Arc<str>>) -> Self {
                Self(id.into())
            }

            /// Returns the id's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        #[doc = concat!("Lets maps and sets with `", stringify!($name), "` keys be searched by text.")]
        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Debug::fmt(&self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                Self::new(id)
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                Self::new(id)
            }
        }

        impl From<$name> for std::sync::Arc<str> {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}
pub(crate) use text_id;

text_id! {
    /// The id of one tool use. Its result carries the same id. The model service assigns the id, unique within its
    /// message.
    ToolUseId
}

/// The id of a node in a [`Tree`](crate::tree::Tree): 1, 2, 3… in the order of the pushes. It is serialized as this
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The id of a node in a tree: 1, 2, 3… in the order in which the nodes were added."
    )
)]
#[serde(transparent)]
pub struct NodeId(NonZeroU64);

impl NodeId {
    /// Returns the id with this number, or `None` for 0, which is not a valid id.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns the id's number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the id of the node that is pushed next if `highest` is the highest id so far.
    pub(crate) fn after(highest: Option<Self>) -> Self {
        let number = highest.map_or(Some(NonZeroU64::MIN), |highest| highest.0.checked_add(1));
        Self(number.expect("hydration leaves room above the highest id"))
    }
}

impl FromStr for NodeId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The id of one turn of an agent: 128 random bits, unique across restarts and processes. Its text form, which is also
/// its JSON form, has 32 hexadecimal digits.
///
/// ```
/// use omni_agent::message::TurnId;
///
/// let id: TurnId = "00112233445566778899aabbccddeeff".parse()?;
/// assert_eq!(id.to_string(), "00112233445566778899aabbccddeeff");
/// # Ok::<(), std::num::ParseIntError>(())
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(extend("pattern" = "^[0-9a-f]{32}$")))]
pub struct TurnId(#[cfg_attr(feature = "schema", schemars(with = "String"))] [u8; 16]);

impl TurnId {
    pub(crate) const fn new(number: u128) -> Self {
        Self(number.to_be_bytes())
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TurnId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        u128::from_str_radix(text, 16).map(Self::new)
    }
}

/// Serializes an id as text, because JSON readers round or reject numbers of this size.
impl Serialize for TurnId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TurnId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// The id of a message. Its JSON form is its text.
///
/// The agent gives every message of a turn an id. The message of a prompt has the [id of the prompt], if the
/// application has set one, so that the application and the agent use the same id for the message. Every other message
/// gets an id that is unique across restarts and processes. Such an id consists of the turn's id and a number, and has
/// at most 33 characters.
///
/// [id of the prompt]: crate::run::Prompt::with_id
///
/// ```
/// use omni_agent::message::{Message, MessageId};
///
/// let message = Message::user("Hi").with_id("message-17");
/// assert_eq!(message.id, Some(MessageId::new("message-17")));
/// assert_eq!(message.id.unwrap().to_string(), "message-17");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct MessageId(#[cfg_attr(feature = "schema", schemars(with = "String"))] MadeOrGivenId);

/// The form of an id: made by an agent, or given as a text. A text in the format of an agent's ids is always stored as
/// [`MadeOrGivenId::Made`], so equal texts have equal forms.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum MadeOrGivenId {
    Made { turn: TurnId, number: u32 },
    Given(Arc<str>),
}

/// The length of a turn's id in the text of a message id that an agent has made.
const TURN: usize = 22;
/// The maximum length of an id that an agent has made: the turn's id, a hyphen and ten digits.
const LONGEST: usize = TURN + 11;

impl MadeOrGivenId {
    /// Reads an id that an agent has made: the turn's id in base64url, a hyphen and a decimal number.
    fn made(text: &str) -> Option<Self> {
        let (turn, number) = text.split_at_checked(TURN)?;
        let number = number.strip_prefix('-')?;
        let is_canonical = number == "0" || !number.starts_with(['0', '+']);
        let number = number.parse().ok().filter(|_| is_canonical)?;
        // The decoder demands room for three bytes per four characters.
        let mut bytes = [0; 18];
        URL_SAFE_NO_PAD.decode_slice(turn, &mut bytes).ok()?;
        let (turn, _) = bytes.split_first_chunk()?;
        Some(Self::Made { turn: TurnId(*turn), number })
    }
}

impl MessageId {
    /// Returns an id with exactly this text.
    pub fn new(id: impl AsRef<str> + Into<Arc<str>>) -> Self {
        Self(MadeOrGivenId::made(id.as_ref()).unwrap_or_else(|| MadeOrGivenId::Given(id.into())))
    }

    /// Returns the id of a message of this turn. Allocates nothing.
    pub(crate) const fn made(turn: TurnId, number: u32) -> Self {
        Self(MadeOrGivenId::Made { turn, number })
    }

    /// Returns the turn that contains the message with this id, if an agent has made the id.
    pub(crate) const fn turn(&self) -> Option<TurnId> {
        match &self.0 {
            MadeOrGivenId::Made { turn, .. } => Some(*turn),
            MadeOrGivenId::Given(_) => None,
        }
    }

    /// Returns the id's text. If an agent has made the id, the text is written into `buffer`.
    fn text<'a>(&'a self, buffer: &'a mut [u8; LONGEST]) -> &'a str {
        let (turn, mut number) = match &self.0 {
            MadeOrGivenId::Given(text) => return text,
            MadeOrGivenId::Made { turn, number } => (turn, *number),
        };
        let mut start = LONGEST;
        loop {
            start -= 1;
            buffer[start] = b"0123456789"[(number % 10) as usize];
            number /= 10;
            if number == 0 {
                break;
            }
        }
        buffer[start - 1] = b'-';
        start -= TURN + 1;
        let encoded = URL_SAFE_NO_PAD.encode_slice(turn.0, &mut buffer[start..start + TURN]);
        debug_assert_eq!(encoded, Ok(TURN));
        std::str::from_utf8(&buffer[start..]).expect("base64 and digits are ASCII")
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut [0; LONGEST]))
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.text(&mut [0; LONGEST]), f)
    }
}

impl From<&str> for MessageId {
    fn from(id: &str) -> Self {
        Self::new(id)
    }
}

impl From<String> for MessageId {
    fn from(id: String) -> Self {
        Self::new(id)
    }
}

impl Serialize for MessageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text(&mut [0; LONGEST]))
    }
}

impl<'de> Deserialize<'de> for MessageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// A point in time, in milliseconds since the Unix epoch. It is serialized as this number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the current time of the system clock.
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns the point in time that is later by `duration`.
    pub(crate) fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns the point in time that was this long ago.
    pub(crate) fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Returns the time that has passed since the other point in time, or zero if that is later.
    pub(crate) fn since(self, other: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(other.0))
    }

    /// Returns the time in UTC, in the format of RFC 3339.
    pub(crate) fn rfc_3339(self) -> String {
        let (days, millis) = (self.0 / 86_400_000, self.0 % 86_400_000);
        // The algorithm counts years from March on, in eras of 400 years, so that a leap day is the last day of a year.
        let days = days + 719_468;
        let (era, day) = (days / 146_097, days % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        let (hour, minute, second) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", millis % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_of_known_times_is_their_date() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_827_696_789, "2000-02-29T12:34:56.789Z"),
            (1_709_251_199_999, "2024-02-29T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Timestamp(millis).rfc_3339(), text);
        }
    }

    #[test]
    fn made_message_id_is_the_turn_in_base64url_and_its_number() {
        let turn: TurnId = "00112233445566778899aabbccddeeff".parse().unwrap();
        for (number, text) in [
            (0, "ABEiM0RVZneImaq7zN3u_w-0"),
            (70, "ABEiM0RVZneImaq7zN3u_w-70"),
            (u32::MAX, "ABEiM0RVZneImaq7zN3u_w-4294967295"),
        ] {
            let id = MessageId::made(turn, number);
            assert_eq!(id.to_string(), text);
            assert_eq!(MessageId::new(text), id, "a text of this form is the same id");
        }
    }

    #[test]
    fn message_and_its_id_are_small() {
        assert_eq!(size_of::<Option<MessageId>>(), 24);
        assert_eq!(size_of::<crate::message::Message>(), 168);
    }
}

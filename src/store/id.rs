use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::error::InvalidId;

/// The id of a conversation. Every id is safe to use in a path, a query and a URL.
///
/// An id consists of 1 to 128 characters that need no escaping in a URL (RFC 3986, 2.3: ASCII letters, digits, `-`,
/// `.`, `_`, `~`). An id neither begins nor ends with a dot, and it is not a name that Windows reserves for a device.
/// Ids are case-sensitive.
///
/// ```
/// use omni_agent::{InvalidId, store::ConversationId};
///
/// let id = ConversationId::new("support-42")?;
/// assert_eq!(id.as_str(), "support-42");
/// assert_eq!(ConversationId::generate().as_str().len(), 22);
/// assert_eq!(ConversationId::new("../secrets"), Err(InvalidId::DotAtEdge));
/// # Ok::<(), InvalidId>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(extend(
        "maxLength" = Self::MAX_LEN,
        "pattern" = "^[A-Za-z0-9_~-]([A-Za-z0-9._~-]*[A-Za-z0-9_~-])?$",
        "not" = { "pattern": DEVICES }
    ))
)]
pub struct ConversationId(Arc<str>);

/// The pattern of ids that begin with the name of a device, as [`is_device`] finds them.
#[cfg(feature = "schema")]
const DEVICES: &str =
    r"^([Cc][Oo][Nn]|[Pp][Rr][Nn]|[Aa][Uu][Xx]|[Nn][Uu][Ll]|([Cc][Oo][Mm]|[Ll][Pp][Tt])[0-9])(\.|$)";

impl ConversationId {
    /// The maximum number of bytes in an id.
    pub const MAX_LEN: usize = InvalidId::MAX_CONVERSATION_ID;

    /// Returns the id with this text.
    ///
    /// # Errors
    ///
    /// Fails with an [`InvalidId`] that names the problem with the text.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidId> {
        let text = text.as_ref();
        check(text)?;
        Ok(Self(text.into()))
    }

    /// Returns a new unique id: 128 random bits in URL-safe base64, 22 characters.
    pub fn generate() -> Self {
        Self(encode(rand::random()).into())
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The beginning of the ids of sub-agents. The key of the call follows.
    pub(crate) const SUB_AGENT: &'static str = "sub-";

    /// Returns whether the conversation can be that of a sub-agent. If it is, its labels name its parent.
    pub(crate) fn is_of_sub_agent(&self) -> bool {
        self.0.starts_with(Self::SUB_AGENT)
    }
}

fn check(text: &str) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty);
    }
    if text.len() > ConversationId::MAX_LEN {
        return Err(InvalidId::TooLong { len: text.len() });
    }
    if text.starts_with('.') || text.ends_with('.') {
        return Err(InvalidId::DotAtEdge);
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~');
    if let Some((at, character)) = text.char_indices().find(|(_, c)| !allowed(*c)) {
        return Err(InvalidId::Character { character, at });
    }
    let stem = text.split('.').next().unwrap_or_default();
    if is_device(stem) {
        return Err(InvalidId::Device { name: stem.to_owned() });
    }
    Ok(())
}

/// Returns whether Windows interprets a file with this name and any extension as a device ("Naming Files, Paths, and
/// Namespaces" in the Win32 documentation).
fn is_device(stem: &str) -> bool {
    let stem = stem.to_ascii_uppercase();
    match stem.as_str() {
        "CON" | "PRN" | "AUX" | "NUL" => true,
        port => {
            let number = port.strip_prefix("COM").or_else(|| port.strip_prefix("LPT"));
            number.is_some_and(|number| number.len() == 1 && number.as_bytes()[0].is_ascii_digit())
        }
    }
}

impl fmt::Display for ConversationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ConversationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for ConversationId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for ConversationId {
    type Error = InvalidId;

    fn try_from(text: &str) -> Result<Self, InvalidId> {
        Self::new(text)
    }
}

impl TryFrom<String> for ConversationId {
    type Error = InvalidId;

    fn try_from(text: String) -> Result<Self, InvalidId> {
        Self::new(text)
    }
}

impl std::str::FromStr for ConversationId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::new(text)
    }
}

impl Serialize for ConversationId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for ConversationId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// The id of one write. A store uses it to recognize a repetition of the write.
///
/// An id consists of 128 random bits. It is displayed as 22 characters of URL-safe base64.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId([u8; 16]);

impl WriteId {
    /// Returns a new unique id.
    pub fn generate() -> Self {
        Self(rand::random())
    }

    /// Returns the id with these bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the id's bytes.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&encode(self.0))
    }
}

impl fmt::Debug for WriteId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for WriteId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        decode(text).map(Self).ok_or(InvalidId::WriteId)
    }
}

impl Serialize for WriteId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WriteId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct WriteIdVisitor;

        impl de::Visitor<'_> for WriteIdVisitor {
            type Value = WriteId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a write id")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WriteId, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(WriteIdVisitor)
    }
}

/// The alphabet of RFC 4648, section 5. Ids are encoded without padding.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

fn encode(bytes: [u8; 16]) -> String {
    // 22 characters hold 132 bits, but an id has only 128, so the last four bits are zero.
    let bits = u128::from_be_bytes(bytes);
    let digit = |place: u32| if place < 126 { bits >> (122 - place) } else { bits << 4 };
    (0..22).map(|place| char::from(ALPHABET[(digit(place * 6) & 63) as usize])).collect()
}

/// The value of each character, or `u8::MAX` for a character outside the alphabet.
const VALUES: [u8; 256] = {
    let mut values = [u8::MAX; 256];
    let mut value = 0;
    while value < ALPHABET.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 64")]
        let digit = value as u8;
        values[ALPHABET[value] as usize] = digit;
        value += 1;
    }
    values
};

fn decode(text: &str) -> Option<[u8; 16]> {
    let text: &[u8; 22] = text.as_bytes().try_into().ok()?;
    let mut bits = 0_u128;
    let mut wrong = 0;
    for character in &text[..21] {
        let value = VALUES[usize::from(*character)];
        wrong |= value;
        bits = bits << 6 | u128::from(value & 63);
    }
    let last = VALUES[usize::from(text[21])];
    // The value of a valid character is less than 64, so it has none of the bits `0xc0`. Of the last character's six
    // bits, only the highest two are used.
    if (wrong | last) & 0xc0 != 0 || last & 15 != 0 {
        return None;
    }
    Some((bits << 2 | u128::from(last >> 4)).to_be_bytes())
}

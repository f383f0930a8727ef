use std::{
    borrow::Borrow,
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// The id of one tool use. The result of the tool use has the same id. The model service assigns the id, which is
/// unique within its message.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ToolUseId(Arc<str>);

impl ToolUseId {
    /// Returns an id with exactly this text.
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self(id.into())
    }

    /// Returns the id's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Allows maps and sets with `ToolUseId` keys to be searched by text.
impl Borrow<str> for ToolUseId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ToolUseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ToolUseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl From<&str> for ToolUseId {
    fn from(id: &str) -> Self {
        Self::new(id)
    }
}

impl From<String> for ToolUseId {
    fn from(id: String) -> Self {
        Self::new(id)
    }
}

/// A point in time, in milliseconds since the Unix epoch. It is serialized as this number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Returns the current time of the system clock.
    pub fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

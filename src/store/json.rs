//! Limits the nesting of stored JSON.

use super::{ConversationId, StoreError};
pub(super) use crate::json::parse;
use crate::json::{MAX_DEPTH, depth};

/// Returns the JSON text of a value that belongs to this conversation. Fails if the JSON is nested too deeply to be
/// read back.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) fn encode(id: &ConversationId, value: &impl serde::Serialize) -> Result<String, StoreError> {
    let text = serde_json::to_string(value).expect("messages and state have a JSON form");
    check_depth(id, text.as_bytes())?;
    Ok(text)
}

/// Checks that the JSON is not nested too deeply to be read back.
pub(super) fn check_depth(id: &ConversationId, json: &[u8]) -> Result<(), StoreError> {
    if depth(json) <= MAX_DEPTH {
        return Ok(());
    }
    let problem = format!("its JSON is nested more than {MAX_DEPTH} levels deep");
    Err(StoreError::Unstorable { id: id.clone(), problem })
}

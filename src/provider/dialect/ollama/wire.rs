//! The JSON shapes of responses.

use serde::{Deserialize, de};
use serde_json::Value;

use crate::provider::dialect::lenient::{Arguments, Reported, Text};

/// A line of a stream, or a whole response.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    #[serde(borrow, default)]
    pub(super) model: Text<'a>,
    #[serde(borrow, default)]
    pub(super) created_at: Text<'a>,
    #[serde(borrow, default)]
    pub(super) message: Option<Box<Piece<'a>>>,
    #[serde(default)]
    pub(super) done: Option<bool>,
    #[serde(borrow, default)]
    pub(super) done_reason: Text<'a>,
    #[serde(default)]
    pub(super) prompt_eval_count: Reported<u64>,
    /// The number of tokens in `prompt_eval_count` that were read from a cache.
    #[serde(default)]
    pub(super) prompt_eval_cached_count: Reported<u64>,
    #[serde(default)]
    pub(super) eval_count: Reported<u64>,
    #[serde(default)]
    pub(super) error: Option<Box<Value>>,
}

#[derive(Deserialize)]
pub(super) struct Piece<'a> {
    #[serde(borrow, default)]
    pub(super) content: Text<'a>,
    #[serde(borrow, default)]
    pub(super) thinking: Text<'a>,
    #[serde(borrow, default)]
    pub(super) tool_calls: Option<Vec<Option<ToolCall<'a>>>>,
}

/// A call. It always arrives complete.
#[derive(Deserialize)]
pub(super) struct ToolCall<'a> {
    #[serde(borrow, default)]
    pub(super) id: Text<'a>,
    #[serde(borrow, default)]
    pub(super) function: Option<Function<'a>>,
}

#[derive(Deserialize)]
pub(super) struct Function<'a> {
    #[serde(borrow, default)]
    pub(super) name: Text<'a>,
    #[serde(borrow, default)]
    pub(super) arguments: Arguments<'a>,
}

/// Parses a line from its JSON text.
pub(super) fn parse(data: &str) -> Result<Line<'_>, serde_json::Error> {
    // Without this check, a list would be parsed as a struct without member names.
    if !data.starts_with('{') {
        return Err(de::Error::custom("a JSON object was expected"));
    }
    serde_json::from_str(data)
}

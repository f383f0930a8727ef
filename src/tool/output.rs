use serde_json::Value;

use crate::message::{ResultBlock, Text};

/// What a tool gives back: text, JSON or blocks.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolOutput {
    /// The blocks that the model gets.
    pub blocks: Vec<ResultBlock>,
}

impl ToolOutput {
    /// Blocks, an image say.
    pub fn blocks(blocks: impl IntoIterator<Item = impl Into<ResultBlock>>) -> Self {
        Self { blocks: blocks.into_iter().map(Into::into).collect() }
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self { blocks: vec![Text::new(text).into()] }
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Value> for ToolOutput {
    /// The JSON text of the value.
    fn from(value: Value) -> Self {
        value.to_string().into()
    }
}

impl From<ResultBlock> for ToolOutput {
    fn from(block: ResultBlock) -> Self {
        Self { blocks: vec![block] }
    }
}

/// What kept a tool from its work, in words for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ToolError(pub String);

impl ToolError {
    /// An error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

use std::{error::Error, fmt};

use serde::Serialize;
use serde_json::Value;

use crate::{
    error::error_chain,
    message::{Attachment, ResultBlock, Text},
};

/// The output of a tool: text, JSON or blocks.
///
/// ```
/// use omni_agent::{message::Attachment, tool::ToolOutput};
/// use serde_json::json;
///
/// let text = ToolOutput::from("18 degrees");
/// let json = ToolOutput::from(json!({ "degrees": 18 }));
/// let image = ToolOutput::from(Attachment::base64("image/png", "iVBORw0KGgo="));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ToolOutput {
    /// The blocks that are sent to the model.
    pub blocks: Vec<ResultBlock>,
    /// Whether the output describes a failure. Use this for a failure that a text can't express, such as one with an
    /// image. Otherwise, return a [`ToolError`].
    pub is_error: bool,
}

impl ToolOutput {
    /// Returns the same output, marked as the description of a failure.
    ///
    /// ```
    /// use omni_agent::{message::Attachment, tool::ToolOutput};
    ///
    /// let screenshot = Attachment::base64("image/png", "iVBORw0KGgo=");
    /// assert!(ToolOutput::from(screenshot).failed().is_error);
    /// ```
    pub fn failed(mut self) -> Self {
        self.is_error = true;
        self
    }
}

impl ToolOutput {
    /// Creates an output from any serialisable value. The output is the value's JSON text.
    ///
    /// ```
    /// use omni_agent::tool::{ToolContext, ToolOutput, tool_fn};
    /// use serde::Serialize;
    /// use serde_json::Value;
    ///
    /// #[derive(Serialize)]
    /// struct Weather {
    ///     degrees: i32,
    /// }
    ///
    /// let weather = tool_fn("weather", "Returns the weather.", |_: Value, _: ToolContext| async move {
    ///     ToolOutput::json(&Weather { degrees: 18 })
    /// });
    /// ```
    ///
    /// # Errors
    ///
    /// Fails if the value can't be converted to JSON, for example because it is a map whose keys are not strings.
    pub fn json(value: &(impl Serialize + ?Sized)) -> Result<Self, ToolError> {
        Ok(serde_json::to_string(value)?.into())
    }

    /// Creates an output from blocks, for example from an image.
    pub fn blocks(blocks: impl IntoIterator<Item = impl Into<ResultBlock>>) -> Self {
        blocks.into_iter().map(Into::into).collect::<Vec<_>>().into()
    }
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Text::new(text).into()
    }
}

impl From<&str> for ToolOutput {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Value> for ToolOutput {
    /// Creates an output from the JSON text of the value.
    fn from(value: Value) -> Self {
        value.to_string().into()
    }
}

impl From<Text> for ToolOutput {
    fn from(text: Text) -> Self {
        ResultBlock::from(text).into()
    }
}

impl From<Attachment> for ToolOutput {
    fn from(attachment: Attachment) -> Self {
        ResultBlock::from(attachment).into()
    }
}

impl From<ResultBlock> for ToolOutput {
    fn from(block: ResultBlock) -> Self {
        vec![block].into()
    }
}

impl From<Vec<ResultBlock>> for ToolOutput {
    fn from(blocks: Vec<ResultBlock>) -> Self {
        Self { blocks, is_error: false }
    }
}

/// The reason why a tool call failed, as a text for the model.
///
/// The `?` operator converts any error: the text of the error is joined with the texts of its causes. To make this
/// possible, this type does not implement [`Error`] itself.
///
/// ```
/// use omni_agent::tool::ToolError;
///
/// fn double(text: &str) -> Result<i64, ToolError> {
///     let number: i64 = text.parse()?;
///     number.checked_mul(2).ok_or_else(|| ToolError::new("the number is too large"))
/// }
///
/// assert_eq!(double("x").unwrap_err().to_string(), "invalid digit found in string");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolError {
    text: String,
    is_invalid_input: bool,
}

impl ToolError {
    /// Creates an error with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_invalid_input: false }
    }

    /// Creates an error with this text, which states that the input is invalid and that the tool has done nothing.
    pub fn invalid_input(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_invalid_input: true }
    }

    /// Returns whether the input was invalid: it did not match the schema, could not be parsed, or was
    /// [rejected](Self::invalid_input) by the tool. If this returns `false`, the tool failed.
    pub fn is_invalid_input(&self) -> bool {
        self.is_invalid_input
    }

    /// Returns the text that is sent to the model.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Creates an error from the texts of an error and its causes, like `?`. Use this for a boxed error, which `?`
    /// can't convert: `.map_err(|error| ToolError::caused_by(&*error))`.
    pub fn caused_by(error: &(dyn Error + 'static)) -> Self {
        Self::new(error_chain(error))
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: Error + 'static> From<E> for ToolError {
    fn from(error: E) -> Self {
        Self::caused_by(&error)
    }
}

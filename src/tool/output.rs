//! The output and the errors of tools, and the limit on the size of an output.

use std::{error::Error, fmt};

use serde::Serialize;
use serde_json::Value;

use crate::{
    error::error_chain,
    message::{Attachment, ResultBlock, Source, Text},
    text::{clip, start},
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

/// If the blocks have more than `max` bytes in total, cuts them to `max` bytes. The text keeps its beginning and its end,
/// because the end of a long output often contains the result. A notice between them states how much was cut.
pub(super) fn cap(blocks: Vec<ResultBlock>, max: usize) -> Vec<ResultBlock> {
    let size = blocks.iter().map(bytes).fold(0, usize::saturating_add);
    if size <= max {
        return blocks;
    }
    // Reserve room for the notice. Its numbers are not larger than those of this notice, so it is not longer.
    let room = max.saturating_sub(notice(max, size, blocks.len()).len());
    let (blocks, left_out) = with_fitting_attachments(blocks, room);
    let is_attachment = |block: &&ResultBlock| matches!(block, ResultBlock::Attachment(_));
    let attached: usize = blocks.iter().filter(is_attachment).map(bytes).sum();
    let (texts, room) = (blocks.iter().map(bytes).sum::<usize>() - attached, room - attached);
    // All texts together are cut once. The text before `head` and the text from `tail` on is kept.
    let (head, tail) = if texts > room { (room.div_ceil(2), texts - room / 2) } else { (texts, texts) };
    let (mut at, mut cut, mut gap) = (0, 0, None);
    let mut kept = Vec::new();
    for block in blocks {
        let ResultBlock::Text(text) = block else {
            kept.push(block);
            continue;
        };
        let begin = at;
        at += text.text.len();
        if at <= head || begin >= tail {
            kept.push(text.into());
            continue;
        }
        let start = start(&text.text, head.saturating_sub(begin));
        let end = text.text.ceil_char_boundary(text.text.len() - at.saturating_sub(tail));
        cut += end - start.len();
        kept.extend((!start.is_empty()).then(|| start.into()));
        gap.get_or_insert(kept.len());
        kept.extend(text.text.get(end..).filter(|end| !end.is_empty()).map(ResultBlock::from));
    }
    let notice = notice(max, cut, left_out);
    let notice = start(&notice, max);
    if !notice.is_empty() && cut + left_out > 0 {
        kept.insert(gap.unwrap_or(kept.len()), Text::new(notice).into());
    }
    kept
}

/// Keeps each attachment that fits into `room` bytes together with all blocks before it. Another attachment is replaced
/// by a text that names it, if that text fits. Returns the blocks, and the number of attachments that were not kept.
fn with_fitting_attachments(blocks: Vec<ResultBlock>, room: usize) -> (Vec<ResultBlock>, usize) {
    // The room after the blocks so far, or `None` if some of their text has to be cut.
    let mut left = Some(room);
    let (mut kept, mut left_out) = (Vec::new(), 0);
    for mut block in blocks {
        if let ResultBlock::Text(text) = &mut block {
            // A signature is valid only for the complete text.
            text.signature = None;
        }
        let fits = |block: &ResultBlock| left.and_then(|left| left.checked_sub(bytes(block)));
        let mut rest = fits(&block);
        if let (ResultBlock::Attachment(attachment), None) = (&block, rest) {
            left_out += 1;
            block = Text::new(stand_in(attachment)).into();
            rest = fits(&block);
            if rest.is_none() {
                continue;
            }
        }
        left = rest;
        kept.push(block);
    }
    (kept, left_out)
}

fn bytes(block: &ResultBlock) -> usize {
    match block {
        ResultBlock::Text(text) => text.text.len() + text.signature.as_ref().map_or(0, String::len),
        ResultBlock::Attachment(attachment) => {
            let name = attachment.name.as_ref().map_or(0, String::len);
            payload(attachment) + attachment.media_type.len() + name
        }
    }
}

fn payload(attachment: &Attachment) -> usize {
    match &attachment.source {
        Source::Base64 { data } => data.len(),
        Source::Url { url } => url.len(),
    }
}

fn stand_in(attachment: &Attachment) -> String {
    let name = clip(attachment.name.as_deref().unwrap_or("without a name"), 100);
    let kind = clip(&attachment.media_type, 100);
    format!("[Attachment {name} ({kind}, {} bytes) was omitted: it exceeds the limit.]", payload(attachment))
}

fn notice(max: usize, cut: usize, left_out: usize) -> String {
    let attachments = match left_out {
        0 => String::new(),
        1 => "1 attachment".to_owned(),
        many => format!("{many} attachments"),
    };
    let text = if cut == 0 { String::new() } else { format!("{cut} bytes of text") };
    let and = if text.is_empty() || attachments.is_empty() { "" } else { " and " };
    let end = if cut == 0 { "omitted.]" } else { "omitted here.]\n" };
    format!("\n[Output was cut to {max} bytes: {text}{and}{attachments} {end}")
}

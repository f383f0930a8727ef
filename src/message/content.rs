use std::{io, path::Path, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Source, ToolUseId, UseDecision};
use crate::{json::is_shallow, setters::setters};

/// One block of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Content {
    /// Plain text.
    Text(Text),
    /// The model's reasoning.
    Thinking(Thinking),
    /// An image, a document or another file.
    Attachment(Attachment),
    /// A call of a tool, requested by the model.
    ToolUse(ToolUse),
    /// The output of a tool.
    ToolResult(ToolResult),
    /// Data that is understood only by the provider that wrote it.
    ProviderItem(ProviderItem),
}

impl Content {
    /// Returns the text, if this is a text block.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(&text.text),
            _ => None,
        }
    }

    /// Returns whether this block is an attachment, or a tool result with one.
    pub(crate) fn has_file(&self) -> bool {
        match self {
            Self::Attachment(_) => true,
            Self::ToolResult(result) => {
                result.content.iter().any(|block| matches!(block, ResultBlock::Attachment(_)))
            }
            _ => false,
        }
    }

    /// Returns the name of this block's kind for error texts, with an indefinite article if it takes one.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Thinking(_) => "thinking",
            Self::Attachment(_) => "an attachment",
            Self::ToolUse(_) => "a tool use",
            Self::ToolResult(_) => "a tool result",
            Self::ProviderItem(_) => "a provider item",
        }
    }

    /// Returns whether no value in the block is nested too deeply to be stored.
    pub(crate) fn is_shallow(&self) -> bool {
        match self {
            Self::Text(_) | Self::Thinking(_) => true,
            Self::Attachment(attachment) => attachment.is_shallow(),
            Self::ToolUse(tool_use) => is_shallow(&tool_use.input),
            Self::ToolResult(result) => result.is_shallow(),
            Self::ProviderItem(item) => is_shallow(&item.data),
        }
    }

    /// Returns the approximate size of the payload in bytes. All strings are counted.
    pub(crate) fn weight(&self) -> usize {
        64 + match self {
            Self::Text(text) => text.weight(),
            Self::Thinking(thinking) => thinking.weight(),
            Self::Attachment(attachment) => attachment.weight(),
            Self::ToolUse(tool_use) => tool_use.weight(),
            Self::ToolResult(result) => result.weight(),
            Self::ProviderItem(item) => item.weight(),
        }
    }
}

fn optional(text: Option<&String>) -> usize {
    text.map_or(0, String::len)
}

/// Plain text, with the signature that some services attach to it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Text {
    /// The text.
    pub text: String,
    /// The service's signature. It is sent back unchanged to the service that issued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

setters!(Text: with_signature(signature: some String));

impl Text {
    /// Returns text without a signature.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), signature: None }
    }

    pub(crate) fn weight(&self) -> usize {
        self.text.len() + optional(self.signature.as_ref())
    }
}

/// The model's reasoning: readable text, redacted data, or only a signature.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Thinking {
    /// The readable part of the reasoning.
    pub text: String,
    /// The service's signature. Most services reject the block if it is sent back without the signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The encrypted payload of reasoning that the service does not show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted: Option<String>,
}

setters!(Thinking: with_signature(signature: some String), with_redacted(redacted: some String));

impl Thinking {
    /// Returns reasoning without a signature.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), signature: None, redacted: None }
    }

    /// Returns whether a service would accept the block when it is sent back. This is the case if the block is signed
    /// or redacted.
    pub fn is_signed(&self) -> bool {
        let is_there = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        is_there(&self.signature) || is_there(&self.redacted)
    }

    pub(crate) fn weight(&self) -> usize {
        self.text.len() + optional(self.signature.as_ref()) + optional(self.redacted.as_ref())
    }
}

/// An image, a document or another file.
///
/// ```
/// use omni_agent::message::{Attachment, Content, Message};
///
/// let diagram = Attachment::url("image/png", "https://example.com/diagram.png").named("diagram.png");
/// assert!(diagram.is_image());
///
/// let message = Message::user([Content::from("What does this diagram show?"), diagram.into()]);
/// assert_eq!(message.content.len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Attachment {
    /// The location of the bytes.
    pub source: Source,
    /// The media type, such as `image/png` or `application/pdf`.
    pub media_type: String,
    /// The file name, for services that show or require one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The application's own notes. They are stored with the message and never sent to a service.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

setters!(Attachment: with_metadata(metadata: Map<String, Value>));

impl Attachment {
    /// Returns an attachment with these bytes in base64 (standard alphabet, padded).
    pub fn base64(media_type: impl Into<String>, data: impl Into<Arc<str>>) -> Self {
        Self::new(media_type.into(), Source::Base64 { data: data.into() })
    }

    /// Returns an attachment that the service fetches from a URL.
    pub fn url(media_type: impl Into<String>, url: impl Into<String>) -> Self {
        Self::new(media_type.into(), Source::Url { url: url.into() })
    }

    fn new(media_type: String, source: Source) -> Self {
        Self { source, media_type, name: None, metadata: Map::new() }
    }

    /// Returns the same attachment with a file name.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Returns whether the media type is that of an image.
    pub fn is_image(&self) -> bool {
        self.media_type.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("image/"))
    }

    fn is_shallow(&self) -> bool {
        self.metadata.values().all(is_shallow)
    }

    pub(crate) fn weight(&self) -> usize {
        let source = match &self.source {
            Source::Base64 { data } => data.len(),
            Source::Url { url } => url.len(),
        };
        source + self.media_type.len() + optional(self.name.as_ref()) + map_weight(&self.metadata)
    }
}

/// A tool call, requested by the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ToolUse {
    /// The id of this tool use. The result of this tool use has the same id.
    pub id: ToolUseId,
    /// The name of the tool.
    pub name: String,
    /// The input from the model: a JSON object, with its keys in the model's order.
    pub input: Value,
    /// The raw text of the input, if this text can't be read as a JSON object. If `malformed` is set, `input` is an
    /// empty object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub malformed: Option<String>,
    /// The service's signature. It is sent back unchanged to the service that issued it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The result that was decided for this tool use in a turn that stopped because another tool of the step has no
    /// handler. The next prompt sends this result, also if the prompt itself contains a result for this tool use.
    /// Services see only the result that was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Box<ToolResult>>,
}

setters! {
    ToolUse: with_malformed(malformed: some String), with_signature(signature: some String), with_decided(decided: some Box<ToolResult>)
}

impl ToolUse {
    /// Returns a well-formed tool use.
    pub fn new(id: impl Into<ToolUseId>, name: impl Into<String>, input: Value) -> Self {
        Self { id: id.into(), name: name.into(), input, malformed: None, signature: None, decided: None }
    }

    /// Returns the decided result of this tool use. If no result was decided, returns an error result, which states that
    /// no result was given.
    pub(crate) fn fallback_result(&self) -> ToolResult {
        match &self.decided {
            Some(decided) => {
                let decision = decided.decision.clone();
                ToolResult { decision, ..ToolResult::clone(decided).answering(self) }
            }
            None => ToolResult::error(self, "No result: none was given for this tool use."),
        }
    }

    pub(crate) fn weight(&self) -> usize {
        self.id.as_str().len()
            + self.name.len()
            + value_weight(&self.input)
            + optional(self.malformed.as_ref())
            + optional(self.signature.as_ref())
            + self.decided.as_ref().map_or(0, |result| result.weight())
    }
}

/// The output of a tool, as an answer to one tool use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ToolResult {
    /// The id of the tool use that this result answers.
    pub tool_use_id: ToolUseId,
    /// The tool's name. Some services match results to tool uses by this name.
    pub name: String,
    /// The output.
    pub content: Vec<ResultBlock>,
    /// Whether the tool failed. If it failed, `content` describes the failure to the model.
    #[serde(default)]
    pub is_error: bool,
    /// How the tool use was decided. `None` if the tool ran as the model asked and nobody decided, or if the
    /// application gave the result with a prompt. Only the agent sets it. It is never sent to a model service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decision: Option<Box<UseDecision>>,
}

setters!(ToolResult: with_content(content: Vec<ResultBlock>));

impl ToolResult {
    /// Returns a success that answers `tool_use`.
    pub fn ok(tool_use: &ToolUse, content: impl Into<ResultBlock>) -> Self {
        Self {
            tool_use_id: tool_use.id.clone(),
            name: tool_use.name.clone(),
            content: vec![content.into()],
            is_error: false,
            decision: None,
        }
    }

    /// Returns a failure that answers `tool_use`, with a text that the model can act on.
    pub fn error(tool_use: &ToolUse, text: impl Into<String>) -> Self {
        Self { is_error: true, ..Self::ok(tool_use, Text::new(text)) }
    }

    /// Returns the same result with the id and the name of `tool_use`, and without a decision. A tool, a callback or a
    /// client may have set others.
    pub(crate) fn answering(self, tool_use: &ToolUse) -> Self {
        Self { tool_use_id: tool_use.id.clone(), name: tool_use.name.clone(), decision: None, ..self }
    }

    /// Returns all text of the content, joined without a separator.
    pub fn text(&self) -> String {
        text_of(&self.content)
    }

    /// Returns whether no metadata in the result is nested too deeply to be stored.
    pub(crate) fn is_shallow(&self) -> bool {
        self.content.iter().all(|block| match block {
            ResultBlock::Text(_) => true,
            ResultBlock::Attachment(attachment) => attachment.is_shallow(),
        })
    }

    /// Returns the approximate size of the payload in bytes.
    pub(crate) fn weight(&self) -> usize {
        let content: usize = self.content.iter().map(|block| 64 + block.weight()).sum();
        let decision = self.decision.as_ref().map_or(0, |decision| decision.weight());
        content + self.tool_use_id.as_str().len() + self.name.len() + decision
    }
}

/// Returns all text of these blocks, joined without a separator.
pub(super) fn text_of(blocks: &[ResultBlock]) -> String {
    let texts = blocks.iter().filter_map(|block| match block {
        ResultBlock::Text(text) => Some(text.text.as_str()),
        ResultBlock::Attachment(_) => None,
    });
    texts.collect()
}

/// One block of a tool's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum ResultBlock {
    /// Plain text. JSON output is sent as text, too.
    Text(Text),
    /// An image or another file.
    Attachment(Attachment),
}

impl ResultBlock {
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Text(text) => text.weight(),
            Self::Attachment(attachment) => attachment.weight(),
        }
    }
}

/// An opaque item that is understood only by the provider that wrote it. Examples are a reasoning item, a tool that the
/// service ran itself, and an internal activity of a coding agent that serves as a backend. The item keeps its position
/// in the message and is sent back unchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ProviderItem {
    /// The name of the wire format or backend that wrote the item. The item is sent back only to this wire format or
    /// backend.
    pub format: String,
    /// The item, exactly as it was received.
    pub data: Value,
}

impl ProviderItem {
    /// Returns an item of this wire format or backend.
    pub fn new(format: impl Into<String>, data: Value) -> Self {
        Self { format: format.into(), data }
    }

    pub(crate) fn weight(&self) -> usize {
        self.format.len() + value_weight(&self.data)
    }
}

macro_rules! into_block {
    ($($target:ident: $($from:ident),+;)+) => {$($(
        impl From<$from> for $target {
            fn from(block: $from) -> Self {
                Self::$from(block)
            }
        }
    )+)+};
}

into_block! {
    Content: Text, Thinking, Attachment, ToolUse, ToolResult, ProviderItem;
    ResultBlock: Text, Attachment;
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        Self::Text(Text::new(text))
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self::Text(Text::new(text))
    }
}

impl From<&str> for ResultBlock {
    fn from(text: &str) -> Self {
        Self::Text(Text::new(text))
    }
}

impl From<String> for ResultBlock {
    fn from(text: String) -> Self {
        Self::Text(Text::new(text))
    }
}

/// Returns the approximate length of a JSON value's text, without encoding it.
pub(crate) fn value_weight(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        Value::String(text) => text.len() + 2,
        Value::Array(items) => 2 + items.iter().map(|item| 1 + value_weight(item)).sum::<usize>(),
        Value::Object(map) => 2 + map_weight(map),
    }
}

/// Returns the approximate length of the JSON text of all members.
pub(crate) fn map_weight(map: &Map<String, Value>) -> usize {
    map.iter().map(|(key, value)| member_weight(key, value)).sum()
}

/// Returns the approximate length of one member's JSON text.
pub(crate) fn member_weight(key: &str, value: &Value) -> usize {
    key.len() + 4 + value_weight(value)
}

impl Attachment {
    /// Returns an attachment with these bytes, which are encoded in base64.
    pub fn from_bytes(media_type: impl Into<String>, bytes: impl AsRef<[u8]>) -> Self {
        Self::base64(media_type, BASE64_STANDARD.encode(bytes))
    }

    /// Reads a file. The extension of the file's name determines the media type, and the attachment gets the file's
    /// name.
    ///
    /// This function blocks. In async code with large files or slow disks, read the file with `tokio::fs::read` and use
    /// [`from_bytes`](Self::from_bytes).
    ///
    /// ```
    /// use omni_agent::message::{Attachment, Content, Message};
    ///
    /// # let folder = std::env::temp_dir().join(format!("omni-agent-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder)?;
    /// # let path = folder.join("cat.png");
    /// # std::fs::write(&path, b"\x89PNG")?;
    /// let picture = Attachment::from_file(&path)?;
    /// assert_eq!((picture.media_type.as_str(), picture.name.as_deref()), ("image/png", Some("cat.png")));
    /// let question = Message::user([Content::from(picture), "What is in this picture?".into()]);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`InvalidInput`](io::ErrorKind::InvalidInput) if the extension is unknown. Returns the system's error if
    /// the file can't be read. Both errors contain the path.
    pub fn from_file(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let media_type = media_type(path).ok_or_else(|| {
            let problem =
                "no media type is known for its extension; use `Attachment::from_bytes` with a media type";
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} can't be attached: {problem}", path.display()),
            )
        })?;
        let bytes = std::fs::read(path).map_err(|error| {
            io::Error::new(error.kind(), format!("{} can't be read: {error}", path.display()))
        })?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        Ok(Self::from_bytes(media_type, bytes).named(name))
    }
}

fn media_type(path: &Path) -> Option<&'static str> {
    Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "heic" => "image/heic",
        "pdf" => "application/pdf",
        "txt" | "log" => "text/plain",
        "md" => "text/markdown",
        "csv" => "text/csv",
        "html" | "htm" => "text/html",
        "xml" => "text/xml",
        "json" => "application/json",
        "mp3" => "audio/mpeg",
        "wav" => "audio/wav",
        "ogg" => "audio/ogg",
        "flac" => "audio/flac",
        "m4a" => "audio/mp4",
        "mp4" => "video/mp4",
        "webm" => "video/webm",
        "mov" => "video/quicktime",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        _ => return None,
    })
}

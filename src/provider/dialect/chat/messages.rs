//! Encoding of the conversation as messages.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{Files, NAME, ReasoningReturn, details, encode::Encoder};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, ToolResult, ToolUse},
    provider::{
        ProviderError,
        dialect::{ids::hash, mention, openai, placeholder, texts, words},
    },
};

/// The maximum length of a tool call's id, in characters, that every service accepts. This is OpenAI's own limit for
/// Chat Completions, as stated in its error `string_above_max_length`.
const ID_LIMIT: usize = 40;

/// A part of a message's content.
enum ContentPart<'a> {
    Text(Cow<'a, str>),
    Other(Value),
}

impl<'a> Encoder<'a> {
    /// Encodes the system prompt and the history. Also returns the number of messages at the end that the next requests
    /// don't contain.
    pub(super) fn messages(&mut self) -> Result<(Vec<Value>, usize), ProviderError> {
        self.system();
        let start = self.messages.len();
        let mut end = None;
        for (number, message) in self.request.history.iter().enumerate() {
            if let Some((_, blocks)) = self.request.lasting.filter(|(messages, _)| *messages == number) {
                // The results of the tools come first, each in its own message.
                let lasting = message.content.iter().take(blocks);
                let results = lasting.filter(|block| matches!(block, Content::ToolResult(_))).count();
                end = Some(self.messages.len() + results);
            }
            match message.role {
                Role::User => self.user(message)?,
                Role::Assistant => self.assistant(message)?,
            }
        }
        let passing = end.map_or(0, |end| self.messages.len().saturating_sub(end));
        if self.chat.user_first && self.messages.get(start).is_some_and(|first| first["role"] == "assistant")
        {
            self.messages.insert(start, json!({"role": "user", "content": texts::OPENING}));
        }
        Ok((std::mem::take(&mut self.messages), passing))
    }

    fn system(&mut self) {
        let mut system = Cow::Borrowed(self.request.system.as_deref().unwrap_or_default());
        if let (true, Some(output)) = (self.output.needs_words(), self.request.options.output()) {
            system = words::with_schema(&system, output).into();
        }
        if !system.trim().is_empty() {
            let role = self.chat.system_role;
            self.messages.push(json!({"role": role, "content": system}));
        }
    }

    /// Encodes a user message. Tool results come first, each in its own message, because they must directly follow the
    /// calls.
    fn user(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut parts = Vec::new();
        for result in message.tool_results() {
            let content = self.tool_result(result, &mut parts)?;
            let id = call_id(result.tool_use_id.as_str());
            self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        for block in &message.content {
            match block {
                Content::Text(text) => parts.push(ContentPart::Text(Cow::Borrowed(&text.text))),
                Content::Attachment(attachment) => parts.push(self.attachment(attachment)?),
                _ => {}
            }
        }
        if let Some(content) = content(parts) {
            self.messages.push(json!({"role": "user", "content": content}));
        }
        Ok(())
    }

    /// Returns the text of a tool result. A tool message can contain only text, so attachments move to the user message
    /// that follows.
    fn tool_result(
        &self,
        result: &'a ToolResult,
        moved: &mut Vec<ContentPart<'a>>,
    ) -> Result<String, ProviderError> {
        let mut texts: Vec<Cow<'_, str>> = Vec::new();
        let mut attachments = Vec::new();
        for block in &result.content {
            match block {
                ResultBlock::Text(text) if text.text.is_empty() => {}
                ResultBlock::Text(text) => texts.push(Cow::Borrowed(&text.text)),
                ResultBlock::Attachment(attachment) => match self.attachment(attachment)? {
                    ContentPart::Text(text) => texts.push(text),
                    other @ ContentPart::Other(_) => attachments.push(other),
                },
            }
        }
        if !attachments.is_empty() {
            let id = call_id(result.tool_use_id.as_str());
            let heading = format!("Files from the result of the tool {} (call {id}):", result.name);
            moved.push(ContentPart::Text(heading.into()));
            moved.append(&mut attachments);
            texts.push("(The files follow in the next user message.)".into());
        }
        let text = texts.join("\n");
        Ok(texts::of_result(text, result.is_error))
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut parts = Vec::new();
        let mut reasoning = Vec::new();
        let mut calls = Vec::new();
        let mut extra = Map::new();
        for block in &message.content {
            match block {
                Content::Text(text) => parts.push(ContentPart::Text(Cow::Borrowed(&text.text))),
                Content::Thinking(thinking) if message.is_native_to(NAME) && !thinking.text.is_empty() => {
                    reasoning.push(thinking.text.as_str());
                }
                Content::ToolUse(tool_use) => calls.push(self.call(tool_use, message.is_native_to(NAME))),
                Content::ProviderItem(item) if item.format == NAME => self.item(&item.data, &mut extra),
                Content::Attachment(attachment) => {
                    let why = "the wire format does not support files in assistant messages";
                    parts.push(ContentPart::Text(mention(self.request, message, attachment, why)?.into()));
                }
                _ => {}
            }
        }
        let content = content(parts);
        if content.is_none() && calls.is_empty() {
            return Ok(());
        }
        let mut out = Map::new();
        out.insert("role".to_owned(), Value::from("assistant"));
        out.insert("content".to_owned(), content.unwrap_or(Value::Null));
        match self.chat.reasoning {
            ReasoningReturn::Content | ReasoningReturn::ContentWithCalls if !reasoning.is_empty() => {
                out.insert("reasoning_content".to_owned(), reasoning.join("\n\n").into());
            }
            // These services require reasoning in a message with calls, and treat an empty text as missing. Therefore,
            // a message without reasoning gets a space.
            ReasoningReturn::ContentWithCalls if !calls.is_empty() => {
                out.insert("reasoning_content".to_owned(), " ".into());
            }
            _ => {}
        }
        if !calls.is_empty() {
            out.insert("tool_calls".to_owned(), Value::Array(calls));
            out.extend(self.chat.call_members.clone());
        }
        out.extend(extra);
        self.messages.push(Value::Object(out));
        Ok(())
    }

    fn call(&self, tool_use: &ToolUse, native: bool) -> Value {
        // The request must be valid even if the model wrote invalid JSON or an invalid name.
        let arguments =
            if tool_use.malformed.is_some() { "{}".to_owned() } else { tool_use.input.to_string() };
        let name = self.names.get(&tool_use.name);
        let mut call = json!({
            "id": call_id(tool_use.id.as_str()),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        });
        let extra = tool_use.signature.as_deref().filter(|_| native);
        if let Some(Ok(extra @ Value::Object(_))) = extra.map(serde_json::from_str) {
            call["extra_content"] = extra;
        }
        call
    }

    /// Adds the members of a provider item of this wire format to the assistant message.
    fn item(&self, data: &Value, extra: &mut Map<String, Value>) {
        for (key, value) in data.as_object().into_iter().flatten() {
            match key.as_str() {
                "role" | "content" | "tool_calls" => {}
                // These members were written by a service that supports them. Other services reject them, so they are
                // omitted.
                "reasoning_details" | "annotations" if self.chat.reasoning != ReasoningReturn::Details => {}
                _ => match (extra.get_mut(key), value) {
                    (Some(Value::Array(list)), Value::Array(more)) if key == "reasoning_details" => {
                        details::append(list, more);
                    }
                    (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
                    _ => {
                        extra.insert(key.clone(), value.clone());
                    }
                },
            }
        }
    }

    fn attachment(&self, attachment: &Attachment) -> Result<ContentPart<'a>, ProviderError> {
        let media_type = attachment.media_type.split(';').next().unwrap_or_default().trim();
        let media_type = media_type.to_ascii_lowercase();
        let (kind, subtype) = media_type.split_once('/').unwrap_or((&media_type, ""));
        if let Some(text) = texts::inlined(self.request, attachment)? {
            return Ok(ContentPart::Text(text.into()));
        }
        let files = self.chat.files;
        let data = matches!(files, Files::Data | Files::DataOrUrl);
        let part = match (&attachment.source, kind, subtype) {
            (Source::Url { url }, "image", _) if files != Files::ImageData => {
                json!({"type": "image_url", "image_url": {"url": url}})
            }
            (Source::Base64 { data }, "image", _) => {
                json!({"type": "image_url", "image_url": {"url": openai::data_url(&media_type, data)}})
            }
            (Source::Url { url }, "application" | "text", _) if files == Files::FileUrl => {
                json!({"type": "file_url", "file_url": {"url": url}})
            }
            (Source::Url { url }, "application", "pdf") if files == Files::DataOrUrl => {
                json!({"type": "file", "file": {"filename": file_name(attachment), "file_data": url}})
            }
            (Source::Base64 { data: bytes }, "application", "pdf") if data => {
                let url = openai::data_url(&media_type, bytes);
                json!({"type": "file", "file": {"filename": file_name(attachment), "file_data": url}})
            }
            (Source::Base64 { data: bytes }, "audio", "wav" | "x-wav" | "wave" | "vnd.wave") if data => {
                json!({"type": "input_audio", "input_audio": {"data": bytes, "format": "wav"}})
            }
            (Source::Base64 { data: bytes }, "audio", "mpeg" | "mp3") if data => {
                json!({"type": "input_audio", "input_audio": {"data": bytes, "format": "mp3"}})
            }
            (source, ..) => {
                let why = match (files, source) {
                    (Files::Data, Source::Url { .. }) => {
                        "the wire format supports only images by URL; send the file as base64"
                    }
                    (Files::DataOrUrl, Source::Url { .. }) => {
                        "the service supports only images and PDF files by URL; send the file as base64"
                    }
                    (Files::Data | Files::DataOrUrl, Source::Base64 { .. }) => {
                        "the wire format supports only images and PDF, WAV, MP3 and text files"
                    }
                    (Files::FileUrl, Source::Base64 { .. }) => {
                        "the service supports only images and text files as base64; send the URL of the file"
                    }
                    (Files::FileUrl, Source::Url { .. }) => "the service supports only images and documents",
                    (Files::Images, Source::Url { .. }) => "the service supports only images by URL",
                    (Files::Images, Source::Base64 { .. }) => {
                        "the service supports only images and text files"
                    }
                    (Files::ImageData, _) => "the service supports only images and text files, as base64",
                };
                return Ok(ContentPart::Text(placeholder(self.request, attachment, why)?.into()));
            }
        };
        Ok(ContentPart::Other(part))
    }
}

/// Returns the name of a file. A file without a name gets a default name, because OpenAI rejects a file without one.
fn file_name(attachment: &Attachment) -> &str {
    attachment.name.as_deref().unwrap_or("document.pdf")
}

/// Returns the id in a form that every service accepts. The same id gives the same result.
fn call_id(id: &str) -> Cow<'_, str> {
    if !id.is_empty() && id.len() <= ID_LIMIT {
        return Cow::Borrowed(id);
    }
    Cow::Owned(format!("call_{:016x}", hash(id)))
}

/// Returns the content of a message, or `None` if all parts are blank. Content that consists only of text is returned
/// as a single string, because the simplest servers require a string.
fn content(mut parts: Vec<ContentPart<'_>>) -> Option<Value> {
    parts.retain(|part| !matches!(part, ContentPart::Text(text) if text.trim().is_empty()));
    if parts.is_empty() {
        return None;
    }
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part {
            ContentPart::Text(text) => Some(&**text),
            ContentPart::Other(_) => None,
        })
        .collect();
    Some(match texts {
        Some(texts) => Value::String(texts.join("\n\n")),
        None => parts
            .into_iter()
            .map(|part| match part {
                ContentPart::Text(text) => json!({"type": "text", "text": text}),
                ContentPart::Other(value) => value,
            })
            .collect(),
    })
}

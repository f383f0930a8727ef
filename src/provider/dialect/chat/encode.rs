use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{ChatCompletions, MaxTokensField, NAME, OutputSupport, ReasoningReturn, SystemRole};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, ToolResult, ToolUse},
    provider::{
        CacheHint, OutputSchema, ProviderError, Request, ToolChoice,
        dialect::{Encoded, ids::hash, openai, placeholder, strict::strict, words},
    },
};

/// Characters of a tool call's id that every service takes. OpenAI's own limit for this format, which it
/// names in its error `string_above_max_length`.
const ID_LIMIT: usize = 40;

pub(super) fn encode(chat: &ChatCompletions, request: &Request) -> Result<Encoded, ProviderError> {
    let mut encoder = Encoder { chat, request, messages: Vec::new(), warnings: Vec::new() };
    encoder.system();
    for message in &request.history {
        match message.role {
            Role::User => encoder.user(message)?,
            Role::Assistant => encoder.assistant(message)?,
        }
    }
    let mut body = Map::new();
    body.insert("model".to_owned(), Value::from(&*request.model));
    body.insert("messages".to_owned(), Value::Array(std::mem::take(&mut encoder.messages)));
    body.insert("stream".to_owned(), Value::Bool(true));
    if chat.stream_usage {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    encoder.tools(&mut body);
    encoder.sampling(&mut body);
    encoder.thinking(&mut body);
    encoder.output(&mut body);
    encoder.labels(&mut body);
    Ok(Encoded { body, warnings: encoder.warnings })
}

struct Encoder<'a> {
    chat: &'a ChatCompletions,
    request: &'a Request,
    messages: Vec<Value>,
    warnings: Vec<String>,
}

/// A part of a message's content.
enum Part<'a> {
    Text(Cow<'a, str>),
    Other(Value),
}

impl<'a> Encoder<'a> {
    fn system(&mut self) {
        let mut system = Cow::Borrowed(self.request.system.as_deref().unwrap_or_default());
        if let (OutputSupport::Object, Some(output)) = (self.chat.output, &self.request.options.output) {
            system = words::with_schema(&system, output).into();
        }
        if !system.trim().is_empty() {
            let role = match self.chat.system_role {
                SystemRole::System => "system",
                SystemRole::Developer => "developer",
            };
            self.messages.push(json!({"role": role, "content": system}));
        }
    }

    /// Tool results come first, each a message of its own: they must follow the calls at once.
    fn user(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut parts = Vec::new();
        for result in message.tool_results() {
            let content = self.tool_result(result, &mut parts)?;
            let id = call_id(result.tool_use_id.as_str());
            self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        for block in &message.content {
            match block {
                Content::Text(text) => parts.push(Part::Text(Cow::Borrowed(&text.text))),
                Content::Attachment(attachment) => parts.push(self.attachment(attachment)?),
                _ => {}
            }
        }
        if let Some(content) = content(parts) {
            self.messages.push(json!({"role": "user", "content": content}));
        }
        Ok(())
    }

    /// The text of a result. A tool message takes text only, so that attachments move to the user message
    /// behind it.
    fn tool_result(
        &self,
        result: &'a ToolResult,
        moved: &mut Vec<Part<'a>>,
    ) -> Result<String, ProviderError> {
        let mut texts: Vec<Cow<'_, str>> = Vec::new();
        let mut attachments = Vec::new();
        for block in &result.content {
            match block {
                ResultBlock::Text(text) if text.text.is_empty() => {}
                ResultBlock::Text(text) => texts.push(Cow::Borrowed(&text.text)),
                ResultBlock::Attachment(attachment) => match self.attachment(attachment)? {
                    Part::Text(text) => texts.push(text),
                    other @ Part::Other(_) => attachments.push(other),
                },
            }
        }
        if !attachments.is_empty() {
            let id = call_id(result.tool_use_id.as_str());
            let heading = format!("Files from the result of the tool {} (call {id}):", result.name);
            moved.push(Part::Text(heading.into()));
            moved.append(&mut attachments);
            texts.push("(The files follow in the next user message.)".into());
        }
        let text = texts.join("\n");
        // The format has no flag for failure.
        Ok(match (result.is_error, text.is_empty()) {
            (true, true) => "Error: the tool failed without saying why.".to_owned(),
            (true, false) if !text.starts_with("Error") => format!("Error: {text}"),
            (false, true) => "(no output)".to_owned(),
            _ => text,
        })
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut parts = Vec::new();
        let mut reasoning = Vec::new();
        let mut calls = Vec::new();
        let mut extra = Map::new();
        for block in &message.content {
            match block {
                Content::Text(text) => parts.push(Part::Text(Cow::Borrowed(&text.text))),
                Content::Thinking(thinking) if message.is_native_to(NAME) && !thinking.text.is_empty() => {
                    reasoning.push(thinking.text.as_str());
                }
                Content::ToolUse(tool_use) => calls.push(call(tool_use)),
                Content::ProviderItem(item) if item.format == NAME => self.item(&item.data, &mut extra),
                Content::Attachment(attachment) => {
                    let why = "the format takes no files in an assistant's message";
                    parts.push(Part::Text(placeholder(self.request, attachment, why)?.into()));
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
        if self.chat.reasoning == ReasoningReturn::Content && !reasoning.is_empty() {
            out.insert("reasoning_content".to_owned(), reasoning.join("\n\n").into());
        }
        if !calls.is_empty() {
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        out.extend(extra);
        self.messages.push(Value::Object(out));
        Ok(())
    }

    /// An opaque item of this format is an object of further members of the assistant message.
    fn item(&self, data: &Value, extra: &mut Map<String, Value>) {
        for (key, value) in data.as_object().into_iter().flatten() {
            match key.as_str() {
                "role" | "content" | "tool_calls" => {}
                // Written by a service that has them, and refused by those that have not.
                "reasoning_details" if self.chat.reasoning != ReasoningReturn::Details => {}
                _ => match (extra.get_mut(key), value) {
                    (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
                    _ => {
                        extra.insert(key.clone(), value.clone());
                    }
                },
            }
        }
    }

    fn attachment(&self, attachment: &Attachment) -> Result<Part<'a>, ProviderError> {
        let media_type = attachment.media_type.split(';').next().unwrap_or_default().trim();
        let media_type = media_type.to_ascii_lowercase();
        let part = match (&attachment.source, media_type.as_str()) {
            (Source::Url { url }, _) if media_type.starts_with("image/") => {
                json!({"type": "image_url", "image_url": {"url": url}})
            }
            (Source::Base64 { data }, _) if media_type.starts_with("image/") => {
                json!({"type": "image_url", "image_url": {"url": openai::data_url(&media_type, data)}})
            }
            (Source::Base64 { data }, "application/pdf") => {
                // OpenAI refuses a file without a name.
                let name = attachment.name.as_deref().unwrap_or("document.pdf");
                json!({"type": "file", "file": {"filename": name, "file_data": openai::data_url(&media_type, data)}})
            }
            (Source::Base64 { data }, "audio/wav" | "audio/x-wav" | "audio/wave" | "audio/vnd.wave") => {
                json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
            }
            (Source::Base64 { data }, "audio/mpeg" | "audio/mp3") => {
                json!({"type": "input_audio", "input_audio": {"data": data, "format": "mp3"}})
            }
            (source, _) => {
                let why = match source {
                    Source::Url { .. } => "the format takes only images by URL; give the file as base64",
                    Source::Base64 { .. } => "the format takes images, PDF files, WAV and MP3",
                };
                return Ok(Part::Text(placeholder(self.request, attachment, why)?.into()));
            }
        };
        Ok(Part::Other(part))
    }

    fn tools(&mut self, body: &mut Map<String, Value>) {
        let tools: Vec<Value> = self.request.tools.iter().map(|tool| {
            json!({
                "type": "function",
                "function": {"name": tool.name(), "description": tool.description(), "parameters": tool.schema()},
            })
        }).collect();
        let choice = self.request.options.tool_choice.as_ref();
        if tools.is_empty() {
            // A choice without tools is refused.
            if matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) {
                self.warn("tool_choice: there are no tools to choose from");
            }
            return;
        }
        body.insert("tools".to_owned(), Value::Array(tools));
        let choice = match choice {
            None => return,
            Some(ToolChoice::Auto) => Value::from("auto"),
            Some(ToolChoice::None) => Value::from("none"),
            Some(ToolChoice::Required) => Value::from("required"),
            Some(ToolChoice::Tool(name)) => json!({"type": "function", "function": {"name": name}}),
        };
        body.insert("tool_choice".to_owned(), choice);
    }

    fn sampling(&mut self, body: &mut Map<String, Value>) {
        let options = &self.request.options;
        if let Some(max) = options.max_tokens {
            let field = match self.chat.max_tokens_field {
                MaxTokensField::MaxTokens => "max_tokens",
                MaxTokensField::MaxCompletionTokens => "max_completion_tokens",
            };
            body.insert(field.to_owned(), max.into());
        }
        openai::sampling(options, body, &mut self.warnings);
        let sequences = options.stop_sequences.iter().flatten().filter(|stop| !stop.is_empty());
        let stop: Vec<Value> =
            sequences.clone().take(self.chat.max_stop_sequences).map(|s| s.as_str().into()).collect();
        let left_out = sequences.count() - stop.len();
        if left_out > 0 {
            self.warn(format!(
                "stop_sequences: only {} are possible, the last {left_out} left out",
                stop.len()
            ));
        }
        if !stop.is_empty() {
            body.insert("stop".to_owned(), Value::Array(stop));
        }
    }

    fn thinking(&mut self, body: &mut Map<String, Value>) {
        let Some(mode) = self.request.options.thinking else {
            return;
        };
        let Some(words) = self.chat.effort else {
            return self.warn("thinking: the format has no word for it here, left out");
        };
        if let Some(word) = openai::effort(words, mode, &mut self.warnings) {
            body.insert("reasoning_effort".to_owned(), word.into());
        }
    }

    fn output(&mut self, body: &mut Map<String, Value>) {
        let Some(output) = &self.request.options.output else {
            return;
        };
        let schema = output.schema.as_value();
        let format = match self.chat.output {
            OutputSupport::Object => json!({"type": "json_object"}),
            OutputSupport::Schema => named_schema(output, schema, false),
            OutputSupport::Strict => {
                if let Some(strict) = strict(schema) {
                    named_schema(output, &strict, true)
                } else {
                    self.warn("output: strict mode can't say this schema, sent without `strict`");
                    named_schema(output, schema, false)
                }
            }
        };
        body.insert("response_format".to_owned(), format);
    }

    fn labels(&mut self, body: &mut Map<String, Value>) {
        let options = &self.request.options;
        match &options.metadata {
            Some(metadata) if self.chat.metadata => {
                body.insert("metadata".to_owned(), Value::Object(openai::labels(metadata)));
            }
            Some(_) => self.warn("metadata: not taken here, left out"),
            None => {}
        }
        if self.chat.cache_retention && options.cache == Some(CacheHint::Long) {
            body.insert("prompt_cache_retention".to_owned(), "24h".into());
        }
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

fn call(tool_use: &ToolUse) -> Value {
    // What the model wrote in place of JSON must not make the whole request invalid.
    let arguments = if tool_use.malformed.is_some() { "{}".to_owned() } else { tool_use.input.to_string() };
    json!({
        "id": call_id(tool_use.id.as_str()),
        "type": "function",
        "function": {"name": tool_use.name, "arguments": arguments},
    })
}

/// The id as every service takes it; the same for the same id.
fn call_id(id: &str) -> Cow<'_, str> {
    if !id.is_empty() && id.len() <= ID_LIMIT {
        return Cow::Borrowed(id);
    }
    Cow::Owned(format!("call_{:016x}", hash(id)))
}

/// One string where there is only text, which the simplest servers demand.
fn content(mut parts: Vec<Part<'_>>) -> Option<Value> {
    parts.retain(|part| !matches!(part, Part::Text(text) if text.trim().is_empty()));
    if parts.is_empty() {
        return None;
    }
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => Some(&**text),
            Part::Other(_) => None,
        })
        .collect();
    Some(match texts {
        Some(texts) => Value::String(texts.join("\n\n")),
        None => parts
            .into_iter()
            .map(|part| match part {
                Part::Text(text) => json!({"type": "text", "text": text}),
                Part::Other(value) => value,
            })
            .collect(),
    })
}

fn named_schema(output: &OutputSchema, schema: &Value, strict: bool) -> Value {
    let name = openai::schema_name(output);
    json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}})
}

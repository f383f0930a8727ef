//! Encoding of a history as contents, which are the messages of this wire format.

use std::{borrow::Cow, collections::HashMap};

use serde_json::{Map, Value, json};

use super::{NAME, SOURCES};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, ToolResult, ToolUse, ToolUseId},
    provider::{
        ProviderError, Request,
        dialect::{mention, names::ToolNames, texts},
    },
};

type Object = Map<String, Value>;

/// The placeholder signature for a tool use that no Gemini model made and that therefore has no signature:
/// <https://ai.google.dev/gemini-api/docs/thought-signatures#faqs>.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The image types that the service supports: <https://ai.google.dev/gemini-api/docs/image-understanding>.
const IMAGES: [&str; 5] = ["image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"];

/// The maximum length of a tool's name, in characters: <https://ai.google.dev/api/caching#FunctionDeclaration>.
pub(super) const NAME_LIMIT: usize = 64;

/// The characters that a tool's name may contain in addition to letters, digits, `_` and `-`.
pub(super) const NAME_SIGNS: &str = ".:";

/// A message of the conversation, which this wire format calls a content.
struct Turn {
    role: Role,
    parts: Vec<Object>,
    /// Whether the content has only tool results.
    results: bool,
}

/// Encodes the contents. `signed_calls` indicates whether the model rejects tool uses without a signature.
pub(super) fn contents(
    request: &Request,
    names: &ToolNames<'_>,
    signed_calls: bool,
) -> Result<Value, ProviderError> {
    let mut encoder = Encoder { request, names, signed_calls, turns: Vec::new(), calls: HashMap::new() };
    for message in &request.history {
        match message.role {
            Role::User => encoder.user(message)?,
            Role::Assistant => encoder.assistant(message)?,
        }
    }
    // The service rejects a conversation that begins with a content of the model.
    if encoder.turns.first().is_some_and(|turn| turn.role == Role::Assistant) {
        let parts = vec![part("text", texts::OPENING)];
        encoder.turns.insert(0, Turn { role: Role::User, parts, results: false });
    }
    Ok(encoder.turns.into_iter().map(Turn::into_value).collect())
}

impl Turn {
    fn into_value(self) -> Value {
        let role = match self.role {
            Role::User => "user",
            Role::Assistant => "model",
        };
        json!({"role": role, "parts": self.parts})
    }
}

struct Encoder<'a> {
    request: &'a Request,
    names: &'a ToolNames<'a>,
    signed_calls: bool,
    turns: Vec<Turn>,
    /// The position and the name on the wire of each tool use in the last assistant message.
    calls: HashMap<&'a ToolUseId, (usize, Cow<'a, str>)>,
}

impl<'a> Encoder<'a> {
    /// Encodes a user message. Tool results form a separate content, directly after the calls and in the order of the
    /// calls. If the ids do not match, the service matches results by name and order.
    fn user(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut results: Vec<&ToolResult> = message.tool_results().collect();
        results.sort_by_key(|result| self.calls.get(&result.tool_use_id).map(|(place, _)| *place));
        let mut parts = Vec::new();
        let mut answers = Vec::with_capacity(results.len());
        for result in results {
            answers.push(self.tool_result(message, result, &mut parts)?);
        }
        self.push(Role::User, answers, true);
        for block in &message.content {
            match block {
                Content::Text(text) => parts.extend(text_part(&text.text)),
                Content::Attachment(attachment) => parts.push(self.attachment(message, attachment)?),
                // An application may create parts of this wire format itself. They are sent unchanged.
                Content::ProviderItem(item) if item.format == NAME => {
                    parts.extend(item.data.as_object().cloned());
                }
                _ => {}
            }
        }
        self.push(Role::User, parts, false);
        Ok(())
    }

    /// Encodes a tool result. The files of the result are moved after all results.
    fn tool_result(
        &self,
        message: &Message,
        result: &'a ToolResult,
        moved: &mut Vec<Object>,
    ) -> Result<Object, ProviderError> {
        let mut texts: Vec<Cow<'_, str>> = Vec::new();
        let mut files = Vec::new();
        for block in &result.content {
            match block {
                ResultBlock::Text(text) if text.text.is_empty() => {}
                ResultBlock::Text(text) => texts.push(Cow::Borrowed(&text.text)),
                ResultBlock::Attachment(attachment) => {
                    let part = self.attachment(message, attachment)?;
                    match part.get("text") {
                        Some(Value::String(text)) => texts.push(text.clone().into()),
                        _ => files.push(part),
                    }
                }
            }
        }
        if !files.is_empty() {
            let id = &result.tool_use_id;
            moved.extend(text_part(&format!(
                "Files from the result of the tool {} (call {id}):",
                result.name
            )));
            moved.append(&mut files);
            texts.push("(The files follow.)".into());
        }
        let mut text = texts.join("\n");
        if result.is_error && text.is_empty() {
            "The tool failed without saying why.".clone_into(&mut text);
        }
        // The service's documentation names these members: `output` for a result and `error` for a failure.
        let response = if result.is_error { json!({"error": text}) } else { json!({"output": text}) };
        let name = match self.calls.get(&result.tool_use_id) {
            Some((_, name)) => name.clone(),
            None => self.names.get(&result.name),
        };
        let answer = json!({"id": result.tool_use_id, "name": name, "response": response});
        Ok(Object::from_iter([("functionResponse".to_owned(), answer)]))
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let native = message.is_native_to(NAME);
        let given = |signature: &'a Option<String>| {
            signature.as_deref().filter(|signature| native && !signature.is_empty())
        };
        self.calls.clear();
        let mut parts: Vec<Object> = Vec::new();
        let mut stands = false;
        for block in &message.content {
            let (part, signature) = match block {
                Content::Text(text) => match given(&text.signature) {
                    Some(signature) => (part("text", &*text.text), Some(signature)),
                    None => match text_part(&text.text) {
                        Some(part) => (part, None),
                        None => continue,
                    },
                },
                // The service can't use a thought without its signature, so such a thought is omitted.
                Content::Thinking(thinking) => match given(&thinking.signature) {
                    Some(signature) => {
                        let mut part = part("text", &*thinking.text);
                        part.insert("thought".to_owned(), true.into());
                        sign(&mut part, signature);
                        parts.push(part);
                        continue;
                    }
                    None => continue,
                },
                Content::ToolUse(tool_use) => {
                    // If there are parallel calls, only the first call is signed.
                    let missing = self.signed_calls && self.calls.is_empty();
                    let signature = given(&tool_use.signature).or(missing.then_some(NO_SIGNATURE));
                    (self.tool_use(tool_use), signature)
                }
                Content::Attachment(attachment) => (self.attachment(message, attachment)?, None),
                Content::ProviderItem(item) if item.format == NAME => match &item.data {
                    // This item is the signature of a file. The signature is stored separately, because a file has no
                    // member for a signature.
                    Value::Object(data) if data.len() == 1 && data.contains_key("thoughtSignature") => {
                        if let Some(last) = parts.last_mut() {
                            last.extend(data.clone());
                        }
                        continue;
                    }
                    Value::Object(data) if !SOURCES.iter().any(|key| data.contains_key(*key)) => {
                        (data.clone(), None)
                    }
                    _ => continue,
                },
                _ => continue,
            };
            stands = true;
            let mut part = part;
            if let Some(signature) = signature {
                sign(&mut part, signature);
            }
            parts.push(part);
        }
        if stands {
            self.push(Role::Assistant, parts, false);
        }
        Ok(())
    }

    fn tool_use(&mut self, tool_use: &'a ToolUse) -> Object {
        let args = match &tool_use.input {
            input @ Value::Object(_) => input.clone(),
            Value::Null => json!({}),
            // The service accepts only objects as arguments.
            other => json!({"value": other}),
        };
        let name = self.names.get(&tool_use.name);
        let call = json!({"id": tool_use.id, "name": name, "args": args});
        self.calls.insert(&tool_use.id, (self.calls.len(), name));
        Object::from_iter([("functionCall".to_owned(), call)])
    }

    fn push(&mut self, role: Role, parts: Vec<Object>, results: bool) {
        match self.turns.last_mut() {
            _ if parts.is_empty() => {}
            Some(last) if last.role == role && last.results == results => last.parts.extend(parts),
            _ => self.turns.push(Turn { role, parts, results }),
        }
    }

    /// Encodes a file in the form that the service supports. Unsupported files become a text, or an error.
    fn attachment(&self, message: &Message, attachment: &Attachment) -> Result<Object, ProviderError> {
        let full = attachment.media_type.to_ascii_lowercase();
        let media_type = match full.split(';').next().unwrap_or_default().trim() {
            "image/jpg" => "image/jpeg",
            other if texts::is_text(other) && !other.starts_with("text/") => "text/plain",
            other => other,
        };
        let taken = IMAGES.contains(&media_type)
            || media_type == "application/pdf"
            || ["text/", "audio/", "video/"].iter().any(|kind| media_type.starts_with(kind));
        if !taken {
            let why =
                "the wire format supports only PNG, JPEG, WebP and HEIC images, PDF, text, audio and video";
            return Ok(part("text", mention(self.request, message, attachment, why)?));
        }
        Ok(match &attachment.source {
            Source::Base64 { data } => part("inlineData", json!({"mimeType": media_type, "data": data})),
            Source::Url { url } => part("fileData", json!({"mimeType": media_type, "fileUri": url})),
        })
    }
}

fn part(key: &str, value: impl Into<Value>) -> Object {
    Object::from_iter([(key.to_owned(), value.into())])
}

/// Encodes a text part. Returns `None` for a blank text, which is useless to the service. The service rejects a blank
/// text that is the only part.
fn text_part(text: &str) -> Option<Object> {
    (!text.trim().is_empty()).then(|| part("text", text))
}

fn sign(part: &mut Object, signature: &str) {
    part.insert("thoughtSignature".to_owned(), signature.into());
}

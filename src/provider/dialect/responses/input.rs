//! Encoding of a history as input items. Source of the rules:
//! <https://platform.openai.com/docs/api-reference/responses/create#responses-create-input>.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::{Map, Value, json};

use super::{NAME, OpenAiResponses, ReasoningItems, open, wire::text};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, Text, Thinking, ToolResult, ToolUse},
    provider::{
        ProviderError, Request,
        dialect::{ids::hash, mention, names::ToolNames, openai, placeholder, texts},
    },
};

/// The maximum length of a tool call's id, in characters, as stated in OpenAI's error `string_above_max_length`.
const ID_LIMIT: usize = 64;

/// The media types, other than `text/*`, that can be sent as files. Each has a default file name, because the service
/// rejects a file without a name. Source: <https://platform.openai.com/docs/guides/file-inputs>.
const FILES: [(&str, &str); 12] = [
    ("application/pdf", "document.pdf"),
    ("application/json", "document.json"),
    ("application/xml", "document.xml"),
    ("application/yaml", "document.yaml"),
    ("application/rtf", "document.rtf"),
    ("application/msword", "document.doc"),
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document", "document.docx"),
    ("application/vnd.oasis.opendocument.text", "document.odt"),
    ("application/vnd.ms-powerpoint", "document.ppt"),
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation", "document.pptx"),
    ("application/vnd.ms-excel", "document.xls"),
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "document.xlsx"),
];

/// The items of a conversation.
pub(super) struct Input<'a> {
    request: &'a Request,
    names: &'a ToolNames<'a>,
    reasoning: ReasoningItems,
    ids: CallIds<'a>,
    /// The callers of the tool calls that the model did not make itself, for example calls by a program that the
    /// service runs. Only the calls of the last response are included. The result of such a call must repeat its
    /// caller.
    callers: HashMap<&'a str, Value>,
    /// The ids to which the answers of the conversation refer, except for results of tool calls.
    answered: HashSet<&'a str>,
    /// The ids of the encoded items. A user's answer to any other item is omitted, because the service rejects it.
    sent: HashSet<&'a str>,
    /// Whether the service has items of the conversation that the history lacks.
    continues: bool,
    items: Vec<Value>,
}

impl<'a> Input<'a> {
    /// Returns the input for the request's history.
    pub(super) fn of(
        request: &'a Request,
        names: &'a ToolNames<'a>,
        format: &OpenAiResponses,
    ) -> Result<Vec<Value>, ProviderError> {
        let ids = CallIds::default();
        let items = request.history.iter().flat_map(|message| &message.content).filter_map(own_item);
        let answered = items.filter_map(open::answered).collect();
        let reasoning = format.reasoning;
        let continues = request.options.extra().is_some_and(|extra| {
            extra.contains_key("previous_response_id") || extra.contains_key("conversation")
        });
        let (callers, sent, items) = (HashMap::new(), HashSet::new(), Vec::new());
        let mut input = Self { request, names, reasoning, ids, callers, answered, sent, continues, items };
        let mut first = None;
        for message in &request.history {
            match message.role {
                Role::User => input.user(message)?,
                Role::Assistant => input.assistant(message)?,
            }
            first = first.or((!input.items.is_empty()).then_some(message.role));
        }
        if format.user_first && first == Some(Role::Assistant) {
            let opening = json!({"type": "message", "role": "user", "content": texts::OPENING});
            input.items.insert(0, opening);
        }
        Ok(input.items)
    }

    /// Encodes a user message. Tool results come first, because nothing may separate them from their calls. Provider
    /// items of this wire format follow, such as replies to requests that the service made in its response.
    fn user(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        for result in message.tool_results() {
            let output = self.tool_result(result)?;
            let id = self.ids.of(result.tool_use_id.as_str());
            let mut item = json!({"type": "function_call_output", "call_id": id, "output": output});
            if let Some(caller) = self.callers.get(result.tool_use_id.as_str()) {
                item["caller"] = caller.clone();
            }
            self.items.push(item);
        }
        for item in message.content.iter().filter_map(own_item) {
            if self.continues || open::answered(item).is_none_or(|asked| self.sent.contains(asked)) {
                let item = self.own(item);
                self.items.push(item);
            }
        }
        let mut parts = Vec::new();
        for block in &message.content {
            match block {
                Content::Text(text) if !text.text.trim().is_empty() => parts.push(input_text(&text.text)),
                Content::Attachment(attachment) => parts.push(self.attachment(attachment)?),
                _ => {}
            }
        }
        if !parts.is_empty() {
            self.items.push(json!({"type": "message", "role": "user", "content": plain_or(parts)}));
        }
        Ok(())
    }

    fn tool_result(&self, result: &ToolResult) -> Result<Value, ProviderError> {
        let mut parts = Vec::new();
        // The wire format has no flag for failure, so the text of the result states it.
        let mut unmarked = result.is_error;
        for block in &result.content {
            match block {
                // Services reject blank texts, so they are left out.
                ResultBlock::Text(text) if text.text.trim().is_empty() => {}
                ResultBlock::Text(text) if unmarked && !text.text.starts_with("Error") => {
                    unmarked = false;
                    parts.push(input_text(&format!("Error: {}", text.text)));
                }
                ResultBlock::Text(text) => {
                    unmarked = false;
                    parts.push(input_text(&text.text));
                }
                ResultBlock::Attachment(attachment) => parts.push(self.attachment(attachment)?),
            }
        }
        if unmarked {
            parts.insert(0, input_text("Error: the tool failed without saying why."));
        } else if parts.is_empty() {
            parts.push(input_text("(no output)"));
        }
        Ok(plain_or(parts))
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let native = message.is_native_to(NAME);
        let start = self.items.len();
        self.callers.clear();
        // Reasoning items that have to be sent together with the next item. The service rejects reasoning items without
        // a following item.
        let mut waiting = Vec::new();
        for block in &message.content {
            let item = match block {
                Content::Thinking(thinking) if native => {
                    waiting.extend(reasoning_item(thinking, self.reasoning));
                    continue;
                }
                Content::Text(text) => {
                    let Some((part, phase)) = output_part(text, native) else { continue };
                    let last = self.items[start..].last_mut().filter(|_| waiting.is_empty());
                    let Some(part) = join(last, part, phase.as_ref()) else { continue };
                    assistant_message(part, phase)
                }
                Content::ToolUse(tool_use) => self.call(tool_use, native),
                Content::Attachment(attachment) => {
                    let why = "the wire format does not support files in assistant messages";
                    let text = mention(self.request, message, attachment, why)?;
                    assistant_message(json!({"type": "output_text", "text": text, "annotations": []}), None)
                }
                other => match own_item(other) {
                    // The service rejects an item without its answer, and reasoning without the item that follows it.
                    Some(item) if open::asked(item).is_some_and(|asked| !self.answered.contains(asked)) => {
                        waiting.clear();
                        continue;
                    }
                    Some(item) => self.own(item),
                    None => continue,
                },
            };
            self.items.append(&mut waiting);
            self.items.push(item);
        }
        Ok(())
    }

    /// Returns an item of this wire format unchanged, and remembers its ids for its answer.
    fn own(&mut self, item: &'a Value) -> Value {
        self.sent.extend(["call_id", "id"].map(|key| text(item, key)));
        item.clone()
    }

    fn call(&mut self, tool_use: &'a ToolUse, native: bool) -> Value {
        // The request must be valid even if the model wrote invalid JSON or an invalid name.
        let arguments =
            if tool_use.malformed.is_some() { "{}".to_owned() } else { tool_use.input.to_string() };
        // The item's own id is not sent. If it were sent, the service would look for the reasoning that belongs to the
        // item.
        let id = self.ids.assign(tool_use.id.as_str());
        self.sent.insert(tool_use.id.as_str());
        let name = self.names.get(&tool_use.name);
        let mut item = json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments});
        let signature = tool_use.signature.as_deref().filter(|_| native);
        let mut signature: Map<String, Value> =
            signature.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        for key in ["namespace", "caller"] {
            if let Some(value) = signature.remove(key) {
                item[key] = value;
            }
        }
        if let Some(caller) = item.get("caller") {
            self.callers.insert(tool_use.id.as_str(), caller.clone());
        }
        item
    }

    fn attachment(&self, attachment: &Attachment) -> Result<Value, ProviderError> {
        let media_type = attachment.media_type.split(';').next().unwrap_or_default().trim();
        let media_type = media_type.to_ascii_lowercase();
        if media_type.starts_with("image/") {
            let url = match &attachment.source {
                Source::Url { url } => Cow::Borrowed(url.as_str()),
                Source::Base64 { data } => openai::data_url(&media_type, data).into(),
            };
            return Ok(json!({"type": "input_image", "image_url": url, "detail": "auto"}));
        }
        let known = FILES.iter().find(|(known, _)| *known == media_type).map(|(_, name)| *name);
        let Some(name) = known.or(media_type.starts_with("text/").then_some("document.txt")) else {
            let why = "the wire format supports only images, PDF, text and office files";
            let text = match texts::inlined(self.request, attachment)? {
                Some(text) => text,
                None => placeholder(self.request, attachment, why)?,
            };
            return Ok(input_text(&text));
        };
        Ok(match &attachment.source {
            Source::Url { url } => json!({"type": "input_file", "file_url": url}),
            Source::Base64 { data } => {
                let name = attachment.name.as_deref().filter(|name| !name.trim().is_empty()).unwrap_or(name);
                json!({"type": "input_file", "filename": name, "file_data": openai::data_url(&media_type, data)})
            }
        })
    }
}

/// Returns the block's item unchanged if it belongs to this wire format.
fn own_item(block: &Content) -> Option<&Value> {
    match block {
        Content::ProviderItem(item) if item.format == NAME && item.data.is_object() => Some(&item.data),
        _ => None,
    }
}

fn input_text(text: &str) -> Value {
    json!({"type": "input_text", "text": text})
}

/// Returns the content with these parts. If the only part is a text, the content is a single string, because the
/// simplest servers require a string.
fn plain_or(mut parts: Vec<Value>) -> Value {
    match &mut parts[..] {
        [Value::Object(part)] if part["type"] == "input_text" => part["text"].take(),
        _ => Value::Array(parts),
    }
}

fn assistant_message(part: Value, phase: Option<Value>) -> Value {
    let mut item = Map::new();
    item.insert("type".to_owned(), "message".into());
    item.insert("role".to_owned(), "assistant".into());
    item.insert("status".to_owned(), "completed".into());
    item.extend(phase.map(|phase| ("phase".to_owned(), phase)));
    item.insert("content".to_owned(), Value::Array(vec![part]));
    Value::Object(item)
}

/// Adds a part to the previous message if that message has the same phase. Otherwise, returns the part.
fn join(last: Option<&mut Value>, part: Value, phase: Option<&Value>) -> Option<Value> {
    let same = last.filter(|item| item["type"] == "message" && item.get("phase") == phase);
    let Some(Value::Array(content)) = same.and_then(|item| item.get_mut("content")) else {
        return Some(part);
    };
    content.push(part);
    None
}

/// Encodes a text as a part of an assistant message, and also returns the phase of that message, if it has one. Returns
/// `None` for a blank text.
fn output_part(text: &Text, native: bool) -> Option<(Value, Option<Value>)> {
    if text.text.trim().is_empty() {
        return None;
    }
    let signature = text.signature.as_deref().filter(|_| native);
    let mut signature: Map<String, Value> =
        signature.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let part = if signature.get("type").is_some_and(|kind| kind == "refusal") {
        json!({"type": "refusal", "refusal": text.text})
    } else {
        let annotations = signature.remove("annotations").filter(Value::is_array);
        let annotations = annotations.unwrap_or_else(|| json!([]));
        json!({"type": "output_text", "text": text.text, "annotations": annotations})
    };
    Some((part, signature.remove("phase")))
}

/// Returns the reasoning item that the decoder stored in the signature, with its text restored. Removes the parts that
/// `wanted` excludes, and returns `None` if nothing can be sent back.
fn reasoning_item(thinking: &Thinking, wanted: ReasoningItems) -> Option<Value> {
    let mut item: Map<String, Value> = serde_json::from_str(thinking.signature.as_deref()?).ok()?;
    if item.get("type")? != "reasoning" {
        return None;
    }
    for key in ["summary", "content"] {
        for part in item.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(part) = part {
                part.entry("text").or_insert_with(|| Value::from(&*thinking.text));
            }
        }
    }
    let readable = item.contains_key("content");
    let encrypted = item.contains_key("encrypted_content");
    let goes = match wanted {
        ReasoningItems::All => readable || encrypted,
        ReasoningItems::Encrypted => {
            item.shift_remove("content");
            encrypted
        }
        ReasoningItems::Readable => {
            item.shift_remove("encrypted_content");
            readable
        }
        ReasoningItems::Never => false,
    };
    goes.then_some(Value::Object(item))
}

/// The ids of tool calls on the wire. Each id has a length that the service accepts and is unique in a conversation. An
/// id depends only on earlier calls, so that the encoded beginning of a conversation stays the same when the
/// conversation grows.
#[derive(Default)]
struct CallIds<'a> {
    taken: HashSet<String>,
    /// For each id of a call, its id on the wire, and how many calls have had the id so far. If several calls share an
    /// id, the entry is that of the latest call, because a result directly follows its call.
    sent: HashMap<&'a str, (String, usize)>,
}

impl<'a> CallIds<'a> {
    fn assign(&mut self, id: &'a str) -> String {
        let mut uses = self.sent.get(id).map_or(0, |(_, uses)| *uses);
        let wire = loop {
            uses += 1;
            let wire = match (uses, id) {
                (1, id) if !id.is_empty() && id.len() <= ID_LIMIT => id.to_owned(),
                (1, id) => format!("call_{:016x}", hash(id)),
                (_, id) => format!("call_{:016x}_{uses}", hash(id)),
            };
            if self.taken.insert(wire.clone()) {
                break wire;
            }
        };
        self.sent.insert(id, (wire.clone(), uses));
        wire
    }

    fn of(&self, id: &str) -> String {
        self.sent.get(id).map_or_else(|| id.chars().take(ID_LIMIT).collect(), |(wire, _)| wire.clone())
    }
}

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
};

use serde_json::{Map, Value, json};

use super::{
    NAME, OpenAiResponses, ReasoningItems,
    item::{answered, asked, text},
};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, Text, Thinking, ToolResult, ToolUse},
    provider::{
        CacheHint, ProviderError, Request, ToolChoice,
        catalogue::OpenAiTraits,
        dialect::{
            EffortWords, Encoded, OutputSupport,
            encoding::{self, effort_word, mention, placeholder},
            names::{NAME_LIMIT, ToolNames, hash},
            output::{self, JsonObjectOrSchema},
            tool_schema::tool_schema,
        },
    },
};

/// The maximum number of labels, and the maximum lengths of a label's name and value, in characters:
/// <https://platform.openai.com/docs/api-reference/responses/create#responses-create-metadata>.
const LABELS: (usize, usize, usize) = (16, 64, 512);

/// The maximum length of the id of an item or of a tool call, in characters, as stated in OpenAI's error
/// `string_above_max_length`.
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

/// The type of the items with generated images. The service rejects their other members, such as `action`, in requests.
const IMAGE_CALL: &str = "image_generation_call";

pub(super) fn encode(format: &OpenAiResponses, request: &Request) -> Result<Encoded, ProviderError> {
    let traits = &request.traits().openai;
    let output = output::supported(format.output, request);
    let names = ToolNames::of(request, NAME_LIMIT, "");
    let mut encoder =
        ResponsesEncoder { format, request, names: &names, traits, output, out: Encoded::default() };
    encoder.out.set("model", &*request.model);
    // The service rejects a history with reasoning if the model cannot reason.
    let reasoning = if traits.reasons() { format.reasoning } else { ReasoningItems::Never };
    let mut input = ResponsesInput::of(request, &names, format, reasoning)?;
    encoder.instructions(&mut input);
    encoder.out.set("input", input);
    encoder.out.set("stream", true);
    encoder.out.set("store", false);
    if reasoning != ReasoningItems::Never {
        encoder.out.set("include", json!(["reasoning.encrypted_content"]));
    }
    encoder.tools();
    encoder.thinking();
    encoder.limits();
    encoder.sampling();
    encoder.output();
    encoder.labels();
    encoder.cache();
    Ok(encoder.out)
}

struct ResponsesEncoder<'a> {
    format: &'a OpenAiResponses,
    request: &'a Request,
    names: &'a ToolNames<'a>,
    traits: &'a OpenAiTraits,
    /// How an output schema is sent in this request.
    output: OutputSupport,
    out: Encoded,
}

impl ResponsesEncoder<'_> {
    fn instructions(&mut self, input: &mut Vec<Value>) {
        let system = output::system(self.request, self.output);
        if system.trim().is_empty() {
            return;
        }
        if self.traits.late_instructions {
            // The service places instructions behind the input, so a cached prompt would end before them.
            input.insert(0, json!({"type": "message", "role": "developer", "content": system}));
        } else {
            self.out.set("instructions", system);
        }
    }

    fn tools(&mut self) {
        let request = self.request;
        let names = self.names;
        let tools = request.tools.iter().map(|tool| {
            let (name, schema) = (names.get(tool.name()), tool_schema(tool.schema()));
            // Turn off `strict`, which is the service's default and would require every property.
            json!({
                "type": "function", "name": name, "description": encoding::description(&**tool),
                "parameters": schema, "strict": false,
            })
        });
        let tools: Vec<Value> = tools.collect();
        let choice = request.options.tool_choice();
        if tools.is_empty() {
            return encoding::warn_without_tools(choice, &mut self.out);
        }
        self.out.set("tools", tools);
        let choice = match choice {
            None => return,
            Some(ToolChoice::Auto) => Value::from("auto"),
            Some(ToolChoice::None) => Value::from("none"),
            Some(ToolChoice::Required) => Value::from("required"),
            Some(ToolChoice::Tool(tool)) => json!({"type": "function", "name": names.get(tool)}),
        };
        self.out.set("tool_choice", choice);
    }

    fn limits(&mut self) {
        let options = &self.request.options;
        if let Some(max) = options.max_tokens() {
            let least = self.format.min_output_tokens;
            if max < least {
                self.out.warn(format!(
                    "`max_tokens` is raised from {max} to {least}, the smallest possible value"
                ));
            }
            self.out.set("max_output_tokens", max.max(least));
        }
        if options.stop_sequences().into_iter().flatten().any(|stop| !stop.is_empty()) {
            self.out.warn("`stop_sequences` is ignored: the Responses wire format does not support it");
        }
    }

    fn sampling(&mut self) {
        let effort = self.out.body.get("reasoning").and_then(|reasoning| reasoning["effort"].as_str());
        let taken = self.traits.takes_sampling(effort);
        let accepted = encoding::sampling(&self.request.options, taken, &mut self.out);
        self.out.body.extend(accepted);
    }

    fn thinking(&mut self) {
        let Some(mode) = self.request.options.thinking() else {
            return;
        };
        let Some(words) = self.format.effort else {
            return self.out.warn("`thinking` is ignored: this service has no setting for it");
        };
        let on = mode.is_on();
        if !self.traits.reasons() {
            if on {
                self.out.warn("`thinking` is ignored: this model does not reason");
            }
            return;
        }
        let mut words = words.narrowed(self.traits);
        if self.traits.max_in_responses && words.max == EffortWords::OPENAI.max {
            words.max = "max";
        }
        let Some(word) = effort_word(words, mode, &mut self.out) else {
            return;
        };
        let mut reasoning = Map::from_iter([("effort".to_owned(), Value::from(word))]);
        if self.format.summaries && on {
            reasoning.insert("summary".to_owned(), "auto".into());
        }
        self.out.set("reasoning", reasoning);
    }

    fn output(&mut self) {
        let Some(output) = self.request.options.output() else {
            return;
        };
        let format = match output::format(self.output, output, &mut self.out) {
            None => return,
            Some(JsonObjectOrSchema::Object) => json!({"type": "json_object"}),
            Some(JsonObjectOrSchema::Schema(schema, strict)) => {
                let name = output::schema_name(output);
                json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict})
            }
        };
        self.out.set("text", json!({"format": format}));
    }

    fn labels(&mut self) {
        let Some(metadata) = self.request.options.metadata() else {
            return;
        };
        if !self.format.metadata {
            return self.out.warn("`metadata` is ignored: this service does not support it");
        }
        let (count, name, value) = LABELS;
        let mut labels = encoding::labels(metadata);
        labels.retain(|key, text| {
            let long = |text: &str, limit| text.chars().nth(limit).is_some();
            !long(key, name) && !text.as_str().is_some_and(|text| long(text, value))
        });
        let labels: Map<String, Value> = labels.into_iter().take(count).collect();
        let left_out = metadata.len() - labels.len();
        if left_out > 0 {
            self.out.warn(format!(
                "`metadata` is shortened by {left_out} labels: the service supports {count}, with {name} characters in \
                 the name and {value} in the value"
            ));
        }
        self.out.set("metadata", labels);
    }

    /// Encodes a cache hint. Source: <https://platform.openai.com/docs/guides/prompt-caching>.
    fn cache(&mut self) {
        let Some(hint) = self.request.options.cache() else {
            return;
        };
        if !self.format.cache_hints {
            if hint == CacheHint::Long {
                self.out.warn(encoding::NO_LONG_CACHE);
            }
            return;
        }
        // The key depends on the first message of the conversation, which may follow a developer message.
        let system = self.out.body["input"].get(0).filter(|item| item["role"] == "developer");
        let first = self.out.body["input"].get(usize::from(system.is_some()));
        let beginning = [self.out.body.get("instructions").or(system), first];
        let beginning: String = beginning.into_iter().flatten().map(Value::to_string).collect();
        self.out.set("prompt_cache_key", format!("{NAME}_{:016x}", hash(&beginning)));
        match hint {
            CacheHint::Long if self.traits.keeps_long(&self.request.model) => {
                self.out.set("prompt_cache_retention", "24h");
            }
            CacheHint::Long => self.out.warn(encoding::NO_LONG_CACHE),
            CacheHint::Short => {}
        }
    }
}

/// The history as input items. Source of the rules:
/// <https://platform.openai.com/docs/api-reference/responses/create#responses-create-input>.
struct ResponsesInput<'a> {
    request: &'a Request,
    names: &'a ToolNames<'a>,
    reasoning: ReasoningItems,
    ids: ResponsesInputCallIds<'a>,
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

impl<'a> ResponsesInput<'a> {
    /// Returns the input for the request's history.
    fn of(
        request: &'a Request,
        names: &'a ToolNames<'a>,
        format: &OpenAiResponses,
        reasoning: ReasoningItems,
    ) -> Result<Vec<Value>, ProviderError> {
        let ids = ResponsesInputCallIds::default();
        let items = request.history.iter().flat_map(|message| &message.content).filter_map(own_item);
        let answered = items.filter_map(answered).collect();
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
            let opening = json!({"type": "message", "role": "user", "content": encoding::OPENING});
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
            if self.continues || answered(item).is_none_or(|asked| self.sent.contains(asked)) {
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
                Content::ToolUse(tool_use) => self.call(tool_use, message, native),
                Content::Attachment(attachment) => {
                    let why = "the wire format does not support files in assistant messages";
                    let text = mention(self.request, message, attachment, why)?;
                    assistant_message(json!({"type": "output_text", "text": text, "annotations": []}), None)
                }
                other => match own_item(other) {
                    // The service rejects an item without its answer, an image call without its image, and reasoning
                    // without the item that follows it.
                    Some(item)
                        if asked(item).is_some_and(|asked| !self.answered.contains(asked))
                            || is_unfinished_image(item) =>
                    {
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

    /// Returns an item of this wire format as the service accepts it, and remembers its ids for its answer.
    fn own(&mut self, item: &'a Value) -> Value {
        self.sent.extend(["call_id", "id"].map(|key| text(item, key)));
        let Value::Object(mut members) = item.clone() else { return item.clone() };
        if text(item, "type") == IMAGE_CALL {
            members.retain(|key, _| ["id", "type", "status", "result"].contains(&key.as_str()));
        }
        // The answer to this request names its id.
        if text(item, "type") != "mcp_approval_request" {
            drop_refused_id(&mut members);
        }
        Value::Object(members)
    }

    fn call(&mut self, tool_use: &'a ToolUse, message: &Message, native: bool) -> Value {
        let arguments = encoding::input_text(tool_use);
        // The item's own id is not sent. If it were sent, the service would look for the reasoning that belongs to the
        // item.
        let keeps_id = encoding::keeps_ids(self.request, message, NAME);
        let id = self.ids.assign(tool_use.id.as_str(), keeps_id);
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
        let media_type = encoding::essence(attachment);
        if media_type.starts_with("image/") {
            let url = match &attachment.source {
                Source::Url { url } => Cow::Borrowed(url.as_str()),
                Source::Base64 { data } => encoding::data_url(&media_type, data).into(),
            };
            return Ok(json!({"type": "input_image", "image_url": url, "detail": "auto"}));
        }
        let known = FILES.iter().find(|(known, _)| *known == media_type).map(|(_, name)| *name);
        let Some(name) = known.or(media_type.starts_with("text/").then_some("document.txt")) else {
            let why = "the wire format supports only images, PDF, text and office files";
            let text = match encoding::inlined(self.request, attachment)? {
                Some(text) => text,
                None => placeholder(self.request, attachment, why)?,
            };
            return Ok(input_text(&text));
        };
        Ok(match &attachment.source {
            Source::Url { url } => json!({"type": "input_file", "file_url": url}),
            Source::Base64 { data } => {
                let name = attachment.name.as_deref().filter(|name| !name.trim().is_empty()).unwrap_or(name);
                json!({"type": "input_file", "filename": name, "file_data": encoding::data_url(&media_type, data)})
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

/// Removes an item's id if the service does not accept the id in requests. GitHub Copilot itself makes longer ids. The
/// service does not need the id, because it has not stored the item.
fn drop_refused_id(item: &mut Map<String, Value>) {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_refused = |id: &str| id.len() > ID_LIMIT || !id.chars().all(is_plain);
    if item.get("id").and_then(Value::as_str).is_some_and(is_refused) {
        item.shift_remove("id");
    }
}

/// Returns whether the item is a call of the service's image generation that has no image.
fn is_unfinished_image(item: &Value) -> bool {
    text(item, "type") == IMAGE_CALL && text(item, "result").is_empty()
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
    drop_refused_id(&mut item);
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

/// The ids of tool calls on the wire. Each id is unique in a conversation, and has a length that every service accepts,
/// unless the service itself made the id. An id depends only on earlier calls, so that the encoded beginning of a
/// conversation stays the same when the conversation grows.
#[derive(Default)]
struct ResponsesInputCallIds<'a> {
    taken: HashSet<String>,
    /// For each id of a call, its id on the wire, and how many calls have had the id so far. If several calls share an
    /// id, the entry is that of the latest call, because a result directly follows its call.
    sent: HashMap<&'a str, (String, usize)>,
}

impl<'a> ResponsesInputCallIds<'a> {
    fn assign(&mut self, id: &'a str, keeps: bool) -> String {
        let mut uses = self.sent.get(id).map_or(0, |(_, uses)| *uses);
        let wire = loop {
            uses += 1;
            let wire = match (uses, id) {
                (1, id) if !id.is_empty() && (keeps || id.len() <= ID_LIMIT) => id.to_owned(),
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

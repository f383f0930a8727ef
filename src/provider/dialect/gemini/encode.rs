use std::{borrow::Cow, collections::HashMap};

use serde_json::{Map, Number, Value, json};

use super::{NAME, NAME_LIMIT, NAME_SIGNS, SOURCES};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, ToolResult, ToolUse, ToolUseId},
    provider::{
        CacheHint, Effort, ProviderError, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        catalogue::{GeminiThinking as Thinking, GeminiTraits},
        dialect::{
            EffortWords, Encoded,
            encoding::{self, budget_of, mention, nearest, supported_effort},
            names::ToolNames,
            strict::{SchemaInlining, without},
            tool_schema::tool_schema,
        },
    },
    tool::{
        resolve_reference,
        walk::{describe, parts},
    },
};

type GeminiObject = Map<String, Value>;

/// The maximum number of stop sequences that the service supports.
const STOP_LIMIT: usize = 5;

/// The service's words for thinking levels.
const WORDS: EffortWords = EffortWords { minimal: "minimal", ..EffortWords::COMMON };

/// The placeholder signature for a tool use that no Gemini model made and that therefore has no signature:
/// <https://ai.google.dev/gemini-api/docs/thought-signatures#faqs>.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The image types that the service supports: <https://ai.google.dev/gemini-api/docs/image-understanding>.
const IMAGES: [&str; 5] = ["image/png", "image/jpeg", "image/webp", "image/heic", "image/heif"];

/// The keywords of a schema that are sent unchanged.
const KEPT: [&str; 14] = [
    "$id",
    "$anchor",
    "type",
    "format",
    "title",
    "description",
    "enum",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "required",
    "propertyOrdering",
    "additionalProperties",
];

/// Keywords that do not restrict a value.
const SILENT: [&str; 7] =
    ["$schema", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"];

pub(super) fn encode(request: &Request) -> Result<Encoded, ProviderError> {
    // The id of the model is part of the request's path. An empty segment, `.` or `..` in the id would change that
    // path.
    if request.model.split('/').any(|segment| segment.is_empty() || segment == "." || segment == "..") {
        let message =
            format!("the model id {:?} is invalid: it has an empty segment, `.` or `..`", request.model);
        return Err(ProviderError::new(ProviderErrorKind::InvalidRequest, message));
    }
    let traits = &request.traits().gemini;
    let names = ToolNames::of(request, NAME_LIMIT, NAME_SIGNS);
    let (turns, calls, out) = (Vec::new(), HashMap::new(), Encoded::default());
    let mut encoder = GeminiEncoder { request, names: &names, traits, turns, calls, out };
    encoder.contents()?;
    encoder.system();
    encoder.tools();
    encoder.generation();
    encoder.labels();
    Ok(encoder.out)
}

struct GeminiEncoder<'a> {
    request: &'a Request,
    names: &'a ToolNames<'a>,
    traits: &'a GeminiTraits,
    turns: Vec<GeminiTurn>,
    /// The position and the name on the wire of each tool use in the last assistant message.
    calls: HashMap<&'a ToolUseId, (usize, Cow<'a, str>)>,
    out: Encoded,
}

impl GeminiEncoder<'_> {
    fn system(&mut self) {
        let system = self.request.system.as_deref().unwrap_or_default();
        if !system.trim().is_empty() {
            self.out.set("systemInstruction", json!({"parts": [{"text": system}]}));
        }
    }

    fn tools(&mut self) {
        let request = self.request;
        let names = self.names;
        let tools = request.tools.iter().map(|tool| {
            let schema = restricted(tool_schema(tool.schema()));
            let description = encoding::description(&**tool);
            json!({"name": names.get(tool.name()), "description": description, "parametersJsonSchema": schema})
        });
        let tools: Vec<Value> = tools.collect();
        let choice = self.request.options.tool_choice();
        if tools.is_empty() {
            return encoding::warn_without_tools(choice, &mut self.out);
        }
        self.out.set("tools", json!([{"functionDeclarations": tools}]));
        let config = match choice {
            None => return,
            Some(ToolChoice::Auto) => json!({"mode": "AUTO"}),
            Some(ToolChoice::None) => json!({"mode": "NONE"}),
            Some(ToolChoice::Required) => json!({"mode": "ANY"}),
            Some(ToolChoice::Tool(tool)) => json!({"mode": "ANY", "allowedFunctionNames": [names.get(tool)]}),
        };
        self.out.set("toolConfig", json!({"functionCallingConfig": config}));
    }

    fn generation(&mut self) {
        let options = &self.request.options;
        let mut config = Map::new();
        if let Some(max) = options.max_tokens() {
            config.insert("maxOutputTokens".to_owned(), max.into());
        }
        for (name, key, value) in
            [("temperature", "temperature", options.temperature()), ("top_p", "topP", options.top_p())]
        {
            match value.map(Number::from_f64) {
                None => {}
                Some(_) if !self.traits.sampling => {
                    self.out.warn(format!("`{name}` is ignored: this model does not support it"));
                }
                Some(Some(number)) => {
                    config.insert(key.to_owned(), Value::Number(number));
                }
                Some(None) => self.out.warn(format!("`{name}` is ignored: it is not a finite number")),
            }
        }
        let stop = encoding::stop_sequences(options, STOP_LIMIT, "Gemini", &mut self.out);
        if !stop.is_empty() {
            config.insert("stopSequences".to_owned(), stop.into());
        }
        if let Some(thinking) = self.thinking() {
            config.insert("thinkingConfig".to_owned(), thinking);
        }
        if let Some(output) = options.output() {
            config.insert("responseMimeType".to_owned(), "application/json".into());
            config.insert("responseJsonSchema".to_owned(), restricted(output.schema.as_value()));
        }
        if !config.is_empty() {
            self.out.set("generationConfig", config);
        }
    }

    fn thinking(&mut self) -> Option<Value> {
        let mode = match self.request.options.thinking()? {
            ThinkingMode::Budget(0) => ThinkingMode::Off,
            mode => mode,
        };
        match &self.traits.thinking {
            Thinking::None => {
                if mode != ThinkingMode::Off {
                    self.out.warn("`thinking` is ignored: this model has no setting for it");
                }
                None
            }
            &Thinking::Budget { min, max, off } => {
                let wanted = match mode {
                    ThinkingMode::Off if off => return Some(json!({"thinkingBudget": 0})),
                    ThinkingMode::Off => {
                        self.out.warn(format!(
                            "`thinking` is set to {min} tokens: it cannot be turned off for this model"
                        ));
                        min
                    }
                    ThinkingMode::Effort(effort) => budget_of(effort).clamp(min, max),
                    ThinkingMode::Budget(budget) => {
                        let fitting = budget.clamp(min, max);
                        if fitting != budget {
                            self.out.warn(format!(
                                "`thinking` is set to {fitting} tokens: the budget of this model ranges from {min} to {max}"
                            ));
                        }
                        fitting
                    }
                };
                Some(json!({"includeThoughts": mode != ThinkingMode::Off, "thinkingBudget": wanted}))
            }
            Thinking::Levels(levels) => {
                let wanted = match mode {
                    ThinkingMode::Off => Effort::Minimal,
                    ThinkingMode::Effort(effort) => effort,
                    ThinkingMode::Budget(budget) => nearest(budget),
                };
                let level = supported_effort(levels, wanted)?;
                let word = WORDS.word(level);
                match mode {
                    ThinkingMode::Off => {
                        self.out.warn(format!(
                            "`thinking` is set to level {word}: it cannot be turned off for this model"
                        ));
                    }
                    ThinkingMode::Budget(budget) => {
                        self.out.warn(format!(
                            "`thinking` is changed from a budget of {budget} tokens to level {word}: this model \
                             does not support budgets"
                        ));
                    }
                    ThinkingMode::Effort(_) if level != wanted => {
                        self.out.warn(format!(
                            "`thinking` is set to level {word}: this model does not support the requested effort"
                        ));
                    }
                    ThinkingMode::Effort(_) => {}
                }
                Some(json!({"includeThoughts": mode != ThinkingMode::Off, "thinkingLevel": word}))
            }
        }
    }

    fn labels(&mut self) {
        if self.request.options.metadata().is_some_and(|metadata| !metadata.is_empty()) {
            self.out.warn("`metadata` is ignored: Gemini does not support it");
        }
        if self.request.options.cache() == Some(CacheHint::Long) {
            self.out.warn(
                "`cache` is not extended: Gemini keeps prompts for minutes, and has no setting for the time",
            );
        }
    }
}

/// A message of the conversation, which this wire format calls a content.
struct GeminiTurn {
    role: Role,
    parts: Vec<GeminiObject>,
    /// Whether the content has only tool results.
    results: bool,
}

impl GeminiTurn {
    fn into_value(self) -> Value {
        let role = match self.role {
            Role::User => "user",
            Role::Assistant => "model",
        };
        json!({"role": role, "parts": self.parts})
    }
}

impl<'a> GeminiEncoder<'a> {
    /// Encodes a history as contents, which are the messages of this wire format.
    fn contents(&mut self) -> Result<(), ProviderError> {
        for message in &self.request.history {
            match message.role {
                Role::User => self.user(message)?,
                Role::Assistant => self.assistant(message)?,
            }
        }
        // The service rejects a conversation that begins with a content of the model.
        if self.turns.first().is_some_and(|turn| turn.role == Role::Assistant) {
            let parts = vec![part("text", encoding::OPENING)];
            self.turns.insert(0, GeminiTurn { role: Role::User, parts, results: false });
        }
        let turns = std::mem::take(&mut self.turns);
        self.out.set("contents", turns.into_iter().map(GeminiTurn::into_value).collect::<Value>());
        Ok(())
    }

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
        moved: &mut Vec<GeminiObject>,
    ) -> Result<GeminiObject, ProviderError> {
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
        Ok(GeminiObject::from_iter([("functionResponse".to_owned(), answer)]))
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let native = message.is_native_to(NAME);
        let given = |signature: &'a Option<String>| {
            signature.as_deref().filter(|signature| native && !signature.is_empty())
        };
        self.calls.clear();
        let mut parts: Vec<GeminiObject> = Vec::new();
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
                    let missing = self.traits.signed_calls && self.calls.is_empty();
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

    fn tool_use(&mut self, tool_use: &'a ToolUse) -> GeminiObject {
        let name = self.names.get(&tool_use.name);
        let call = json!({"id": tool_use.id, "name": name, "args": encoding::input_object(tool_use)});
        self.calls.insert(&tool_use.id, (self.calls.len(), name));
        GeminiObject::from_iter([("functionCall".to_owned(), call)])
    }

    fn push(&mut self, role: Role, parts: Vec<GeminiObject>, results: bool) {
        match self.turns.last_mut() {
            _ if parts.is_empty() => {}
            Some(last) if last.role == role && last.results == results => last.parts.extend(parts),
            _ => self.turns.push(GeminiTurn { role, parts, results }),
        }
    }

    /// Encodes a file in the form that the service supports. Unsupported files become a text, or an error.
    fn attachment(&self, message: &Message, attachment: &Attachment) -> Result<GeminiObject, ProviderError> {
        let essence = encoding::essence(attachment);
        let media_type = match &*essence {
            "image/jpg" => "image/jpeg",
            other if encoding::is_text(other) && !other.starts_with("text/") => "text/plain",
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

fn part(key: &str, value: impl Into<Value>) -> GeminiObject {
    GeminiObject::from_iter([(key.to_owned(), value.into())])
}

/// Encodes a text part. Returns `None` for a blank text, which is useless to the service. The service rejects a blank
/// text that is the only part.
fn text_part(text: &str) -> Option<GeminiObject> {
    (!text.trim().is_empty()).then(|| part("text", text))
}

fn sign(part: &mut GeminiObject, signature: &str) {
    part.insert("thoughtSignature".to_owned(), signature.into());
}

/// Returns the schema in the subset of JSON Schema that the service accepts. Other keywords move to the description,
/// where the model can read them. Source: `responseJsonSchema` in
/// <https://ai.google.dev/api/generate-content#generationconfig>.
fn restricted(schema: &Value) -> Value {
    GeminiSchemaRestrictor { root: schema, inlining: SchemaInlining::default() }.schema(schema)
}

struct GeminiSchemaRestrictor<'a> {
    root: &'a Value,
    inlining: SchemaInlining,
}

impl GeminiSchemaRestrictor<'_> {
    /// Rewrites a schema.
    fn schema(&mut self, schema: &Value) -> Value {
        let Value::Object(schema) = schema else {
            // `true` accepts any value, so it is replaced by a schema without keywords.
            return json!({});
        };
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            return self.reference(reference, schema);
        }
        if let [Value::Object(part)] = parts(schema, "allOf") {
            // An `allOf` with a single part, which is often used to add annotations to a reference, is merged into the
            // schema.
            let mut merged = part.clone();
            merged.extend(without(schema, "allOf"));
            return self.schema(&Value::Object(merged));
        }
        let mut out = Map::new();
        let mut notes = Vec::new();
        for (key, value) in schema {
            match (key.as_str(), value) {
                ("$defs" | "definitions", Value::Object(_)) => {
                    out.insert("$defs".to_owned(), self.each(value));
                }
                ("properties", Value::Object(_)) => {
                    out.insert(key.clone(), self.each(value));
                }
                ("anyOf" | "oneOf" | "prefixItems", Value::Array(parts)) => {
                    let key = if key == "oneOf" { "anyOf" } else { key };
                    let parts: Vec<Value> = parts.iter().map(|part| self.schema(part)).collect();
                    out.insert(key.to_owned(), parts.into());
                }
                ("items", Value::Object(_) | Value::Bool(_)) | ("additionalProperties", Value::Object(_)) => {
                    out.insert(key.clone(), self.schema(value));
                }
                ("const", Value::String(_) | Value::Number(_)) => {
                    out.insert("enum".to_owned(), json!([value]));
                }
                (key, _) if KEPT.contains(&key) => {
                    out.insert(key.to_owned(), value.clone());
                }
                (key, _) if SILENT.contains(&key) => {}
                (key, value) => notes.push(format!("{key}: {value}")),
            }
        }
        if !notes.is_empty() {
            describe(&mut out, " ", &format!("({})", notes.join(", ")));
        }
        Value::Object(out)
    }

    fn each(&mut self, schemas: &Value) -> Value {
        let schemas = schemas.as_object().into_iter().flatten();
        Value::Object(schemas.map(|(name, schema)| (name.clone(), self.schema(schema))).collect())
    }

    /// Rewrites a reference. No other keywords may accompany a reference, so a reference with keywords is replaced by
    /// its target.
    fn reference(&mut self, reference: &str, schema: &Map<String, Value>) -> Value {
        let target = resolve_reference(self.root, reference);
        let beside: Map<String, Value> =
            without(schema, "$ref").filter(|(key, _)| !SILENT.contains(&key.as_str())).collect();
        let place = reference.split_once('#').map_or(Some(String::new()), |(_, pointer)| place(pointer));
        match target {
            Some(Value::Object(target))
                if (!beside.is_empty() || place.is_none()) && self.inlining.begin(reference) =>
            {
                let mut merged = target.clone();
                merged.extend(beside);
                let restricted = self.schema(&Value::Object(merged));
                self.inlining.end();
                restricted
            }
            // A schema that cannot be expressed is replaced by a schema that accepts any value. The response is
            // validated later.
            _ => place.map_or_else(|| json!({}), |place| json!({"$ref": format!("#{place}")})),
        }
    }
}

/// Converts the JSON pointer of a subschema to the pointer of this subschema in the rewritten schema. Returns `None` if
/// the subset has no such location.
fn place(pointer: &str) -> Option<String> {
    let mut place = String::new();
    let mut steps = pointer.split('/').skip(1);
    while let Some(keyword) = steps.next() {
        let (keyword, has_name) = match keyword {
            "oneOf" | "anyOf" => ("anyOf", true),
            "definitions" | "$defs" => ("$defs", true),
            "properties" | "prefixItems" => (keyword, true),
            "items" | "additionalProperties" => (keyword, false),
            _ => return None,
        };
        place.push('/');
        place.push_str(keyword);
        if has_name {
            place.push('/');
            place.push_str(steps.next()?);
        }
    }
    Some(place)
}

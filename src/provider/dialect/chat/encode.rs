use std::{borrow::Cow, collections::HashSet};

use serde_json::{Map, Value, json};

use super::{
    CacheField, ChatCompletions, Files, NAME, OutputSupport, ReasoningReturn, ThinkingField, ToolChoices,
    decode::append_details,
};
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, ProviderError, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
        catalogue::{ChatToolSupport, ModelTraits, OpenAiTraits},
        dialect::{
            EffortWords, Encoded,
            encoding::{
                self, budget_of, cache_control, effort_name, effort_word, is_forced, mention, placeholder,
            },
            names::{NAME_LIMIT, ToolNames, hash},
            output::{self, JsonObjectOrSchema},
            tool_schema::{moonshot_schema, tool_schema},
        },
    },
};

/// The maximum length of a tool call's id, in characters, that every service accepts. This is OpenAI's own limit for
/// Chat Completions, as stated in its error `string_above_max_length`.
const ID_LIMIT: usize = 40;

/// The maximum number of tool calls in a message that OpenAI accepts, as stated in its error `array_above_max_length`. Its
/// models make more calls than that.
const CALL_LIMIT: usize = 128;

/// The assistant message between tool results and a user message, for models that require one.
const AFTER_RESULTS: &str = "OK.";

/// The wire format that supports the combinations of options that OpenAI's models reject in Chat Completions.
const RESPONSES: &str = "the Responses wire format (`openai_responses`)";

pub(super) fn encode(chat: &ChatCompletions, request: &Request) -> Result<Encoded, ProviderError> {
    let traits = match chat.thinking {
        ThinkingField::Effort(_) => &request.traits().openai,
        // A service that has its own member for thinking converts the requested thinking to a value that the model
        // supports. Therefore, the facts about OpenAI's models are not applied.
        _ => &ModelTraits::unknown().openai,
    };
    let output = output_support(chat, request);
    let names = ToolNames::of(request, NAME_LIMIT, "");
    let (messages, said, kept_ids) = (Vec::new(), Vec::new(), HashSet::new());
    let out = Encoded::default();
    let mut encoder = ChatEncoder { chat, request, names, traits, output, messages, said, kept_ids, out };
    let (mut messages, passing) = encoder.messages()?;
    encoder.cache(&mut messages, passing);
    encoder.out.set("model", &*request.model);
    encoder.out.set("messages", messages);
    encoder.out.set("stream", true);
    if chat.stream_usage {
        encoder.out.set("stream_options", json!({"include_usage": true}));
    }
    encoder.tools();
    encoder.thinking()?;
    encoder.sampling();
    encoder.output();
    encoder.labels();
    let mut out = encoder.out;
    out.body.extend(chat.members.clone());
    if out.body.contains_key("tools") {
        out.body.extend(chat.tool_members.clone());
    }
    Ok(out)
}

struct ChatEncoder<'a> {
    chat: &'a ChatCompletions,
    request: &'a Request,
    names: ToolNames<'a>,
    traits: &'a OpenAiTraits,
    /// How an output schema is sent in this request.
    output: OutputSupport,
    messages: Vec<Value>,
    /// The content of the user message that ends `messages` once it is complete.
    said: Vec<ChatContentPart<'a>>,
    /// The ids of tool uses that are sent unchanged.
    kept_ids: HashSet<&'a str>,
    out: Encoded,
}

/// Returns how an output schema is sent together with the other options of the request.
pub(super) fn output_support(chat: &ChatCompletions, request: &Request) -> OutputSupport {
    let support = match chat.output {
        OutputSupport::None => OutputSupport::None,
        _ if !chat.output_beside_tools && !request.tools.is_empty() => OutputSupport::Tool,
        // While a model thinks, Alibaba rejects `json_object`: "Json mode response is not supported when
        // enable_thinking is true".
        OutputSupport::Object if thinks(chat, request) => OutputSupport::Tool,
        output => output,
    };
    output::supported(support, request)
}

/// Returns the tool choices that are supported together with the other options of the request.
pub(super) fn tool_choices(chat: &ChatCompletions, request: &Request) -> ToolChoices {
    match chat.tool_choices {
        // While a model thinks, Alibaba rejects a forced tool: "The tool_choice parameter does not support being set to
        // required or object in thinking mode".
        ToolChoices::All if thinks(chat, request) => ToolChoices::Unforced,
        choices => choices,
    }
}

/// Returns whether the model thinks. Always returns false for services where thinking does not restrict other options.
fn thinks(chat: &ChatCompletions, request: &Request) -> bool {
    match chat.thinking {
        ThinkingField::Enable { off: false, .. } => true,
        ThinkingField::Enable { off: true, unasked } => {
            request.options.thinking().map_or(unasked, ThinkingMode::is_on)
        }
        _ => false,
    }
}

/// A part of a message's content.
enum ChatContentPart<'a> {
    Text(Cow<'a, str>),
    Other(Value),
}

impl ChatEncoder<'_> {
    fn tools(&mut self) {
        let names = &self.names;
        let tools = self.request.tools.iter().map(|tool| {
            let (name, schema) = (names.get(tool.name()), tool_schema(tool.schema()));
            let schema = if self.chat.moonshot_schemas { &moonshot_schema(schema) } else { schema };
            json!({
                "type": "function",
                "function": {"name": name, "description": encoding::description(&**tool), "parameters": schema},
            })
        });
        let tools: Vec<Value> = tools.collect();
        let choice = self.request.options.tool_choice();
        if tools.is_empty() {
            return encoding::warn_without_tools(choice, &mut self.out);
        }
        let choices = tool_choices(self.chat, self.request);
        if choices == ToolChoices::Auto && matches!(choice, Some(ToolChoice::None)) {
            return;
        }
        self.out.set("tools", tools);
        let choice = match choice {
            None => return,
            choice if is_forced(choice) && choices != ToolChoices::All => {
                self.out
                    .warn("`tool_choice` is set to auto: the service cannot force a tool in this request");
                Value::from("auto")
            }
            Some(ToolChoice::Auto) => Value::from("auto"),
            Some(ToolChoice::None) => Value::from("none"),
            Some(ToolChoice::Required) => Value::from("required"),
            Some(ToolChoice::Tool(tool)) => {
                json!({"type": "function", "function": {"name": names.get(tool)}})
            }
        };
        self.out.set("tool_choice", choice);
    }

    fn sampling(&mut self) {
        let options = &self.request.options;
        if let Some(max) = options.max_tokens() {
            self.out.set(self.chat.max_tokens_field, max);
        }
        let effort = self.out.body.get("reasoning_effort").and_then(Value::as_str);
        let taken = self.chat.sampling && self.traits.takes_sampling(effort);
        let accepted = encoding::sampling(options, taken, &mut self.out);
        self.out.body.extend(accepted);
        if !self.traits.stop {
            if options.stop_sequences().into_iter().flatten().any(|stop| !stop.is_empty()) {
                self.out.warn("`stop_sequences` is ignored: this model does not support it");
            }
            return;
        }
        let limit = self.chat.max_stop_sequences;
        let stop = encoding::stop_sequences(options, limit, "this service", &mut self.out);
        if !stop.is_empty() {
            self.out.set("stop", stop);
        }
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
                json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}})
            }
        };
        self.out.set("response_format", format);
    }

    fn labels(&mut self) {
        match self.request.options.metadata() {
            Some(metadata) if self.chat.metadata => self.out.set("metadata", encoding::labels(metadata)),
            Some(_) => self.out.warn("`metadata` is ignored: this service does not support it"),
            None => {}
        }
    }

    fn cache(&mut self, messages: &mut [Value], passing: usize) {
        let Some(hint) = self.request.options.cache() else {
            return;
        };
        match (self.chat.cache, hint) {
            (CacheField::Breakpoints, hint) => mark(messages, hint, passing),
            (CacheField::Retention, CacheHint::Long)
                if self.request.traits().openai.keeps_long(&self.request.model) =>
            {
                self.out.set("prompt_cache_retention", "24h");
            }
            (CacheField::None | CacheField::Retention, CacheHint::Long) => {
                self.out.warn(encoding::NO_LONG_CACHE);
            }
            (CacheField::None | CacheField::Retention, CacheHint::Short) => {}
        }
    }
}

impl<'a> ChatEncoder<'a> {
    /// Encodes the system prompt and the history. Also returns the number of messages at the end that the next requests
    /// don't contain.
    fn messages(&mut self) -> Result<(Vec<Value>, usize), ProviderError> {
        self.system();
        let start = self.messages.len();
        let mut end = None;
        // DeepSeek and the templates of many models require an answer after each user message. A service with
        // breakpoints needs no joined messages, and counts the messages that the next requests don't contain.
        let joins = self.chat.user_first && self.chat.cache != CacheField::Breakpoints;
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
            if !joins {
                self.end_user_message();
            }
        }
        self.end_user_message();
        if self.chat.mistral_calls {
            self.obey_mistral();
        }
        let passing = end.map_or(0, |end| self.messages.len().saturating_sub(end));
        self.split_calls();
        if self.chat.user_first && self.messages.get(start).is_some_and(|first| first["role"] == "assistant")
        {
            self.messages.insert(start, json!({"role": "user", "content": encoding::OPENING}));
        }
        Ok((std::mem::take(&mut self.messages), passing))
    }

    /// Splits assistant messages with more calls than the service accepts. The results of a part follow it directly.
    fn split_calls(&mut self) {
        let count = |message: &Value| message["tool_calls"].as_array().map_or(0, Vec::len);
        while let Some(place) = self.messages.iter().position(|message| count(message) > CALL_LIMIT) {
            let mut rest = self.messages[place].clone();
            let Some(calls) = self.messages[place]["tool_calls"].as_array_mut() else { return };
            rest["tool_calls"] = calls.split_off(CALL_LIMIT).into();
            rest["content"] = Value::Null;
            let ids: HashSet<String> = calls.iter().map(|call| call["id"].to_string()).collect();
            let results = self.messages[place + 1..].iter().take_while(|message| message["role"] == "tool");
            let results = place + 1..place + 1 + results.count();
            let all: Vec<Value> = self.messages.drain(results).collect();
            let (own, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|result| ids.contains(&result["tool_call_id"].to_string()));
            let next = place + 1;
            self.messages.splice(next..next, own.into_iter().chain([rest]).chain(others));
        }
    }

    /// Shortens the ids of the calls, and separates results from user messages. Mistral's models otherwise refuse them.
    fn obey_mistral(&mut self) {
        for mut message in std::mem::take(&mut self.messages) {
            let follows_result = self.messages.last().is_some_and(|last| last["role"] == "tool");
            if message["role"] == "user" && follows_result {
                self.messages.push(json!({"role": "assistant", "content": AFTER_RESULTS}));
            }
            let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
            calls.into_iter().flatten().filter_map(|call| call.get_mut("id")).for_each(shorten);
            message.get_mut("tool_call_id").into_iter().for_each(shorten);
            self.messages.push(message);
        }
    }

    fn system(&mut self) {
        let system = output::system(self.request, self.output);
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
            self.end_user_message();
            let content = self.tool_result(result, &mut parts)?;
            let id = self.call_id(result.tool_use_id.as_str());
            self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
        }
        for block in &message.content {
            match block {
                Content::Text(text) => parts.push(ChatContentPart::Text(Cow::Borrowed(&text.text))),
                Content::Attachment(attachment) => parts.push(self.attachment(attachment)?),
                _ => {}
            }
        }
        self.said.append(&mut parts);
        Ok(())
    }

    fn end_user_message(&mut self) {
        if let Some(content) = content(std::mem::take(&mut self.said)) {
            self.messages.push(json!({"role": "user", "content": content}));
        }
    }

    /// Returns the text of a tool result. A tool message can contain only text, so attachments move to the user message
    /// that follows.
    fn tool_result(
        &self,
        result: &'a ToolResult,
        moved: &mut Vec<ChatContentPart<'a>>,
    ) -> Result<String, ProviderError> {
        let mut texts: Vec<Cow<'_, str>> = Vec::new();
        let mut attachments = Vec::new();
        for block in &result.content {
            match block {
                ResultBlock::Text(text) if text.text.is_empty() => {}
                ResultBlock::Text(text) => texts.push(Cow::Borrowed(&text.text)),
                ResultBlock::Attachment(attachment) => match self.attachment(attachment)? {
                    ChatContentPart::Text(text) => texts.push(text),
                    other @ ChatContentPart::Other(_) => attachments.push(other),
                },
            }
        }
        if !attachments.is_empty() {
            let id = self.call_id(result.tool_use_id.as_str());
            let heading = format!("Files from the result of the tool {} (call {id}):", result.name);
            moved.push(ChatContentPart::Text(heading.into()));
            moved.append(&mut attachments);
            texts.push("(The files follow in the next user message.)".into());
        }
        let text = texts.join("\n");
        Ok(encoding::result_text(text, result.is_error))
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut parts = Vec::new();
        let mut reasoning = Vec::new();
        let mut calls = Vec::new();
        let mut extra = Map::new();
        for block in &message.content {
            match block {
                Content::Text(text) => parts.push(ChatContentPart::Text(Cow::Borrowed(&text.text))),
                Content::Thinking(thinking) if message.is_native_to(NAME) && !thinking.text.is_empty() => {
                    reasoning.push(thinking.text.as_str());
                }
                Content::ToolUse(tool_use) => {
                    if encoding::keeps_ids(self.request, message, NAME) {
                        self.kept_ids.insert(tool_use.id.as_str());
                    }
                    calls.push(self.call(tool_use, message.is_native_to(NAME)));
                }
                Content::ProviderItem(item) if item.format == NAME => self.item(&item.data, &mut extra),
                Content::Attachment(attachment) => {
                    let why = "the wire format does not support files in assistant messages";
                    parts
                        .push(ChatContentPart::Text(mention(self.request, message, attachment, why)?.into()));
                }
                _ => {}
            }
        }
        let content = content(parts);
        if content.is_none() && calls.is_empty() {
            return Ok(());
        }
        self.end_user_message();
        let mut out = Map::new();
        out.insert("role".to_owned(), Value::from("assistant"));
        out.insert("content".to_owned(), content.unwrap_or(Value::Null));
        // DeepSeek requires the reasoning of each message if the request has tools:
        // <https://api-docs.deepseek.com/guides/thinking_mode>.
        let needs_reasoning = !calls.is_empty() || !self.request.tools.is_empty();
        match self.chat.reasoning {
            ReasoningReturn::Content | ReasoningReturn::ContentWithCalls if !reasoning.is_empty() => {
                out.insert("reasoning_content".to_owned(), reasoning.join("\n\n").into());
            }
            // These services require reasoning, and treat an empty text as missing. Therefore, a message without
            // reasoning gets a space.
            ReasoningReturn::ContentWithCalls if needs_reasoning => {
                out.insert("reasoning_content".to_owned(), " ".into());
            }
            _ => {}
        }
        if !calls.is_empty() {
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        if needs_reasoning {
            out.extend(self.chat.call_members.clone());
        }
        out.extend(extra);
        self.messages.push(Value::Object(out));
        Ok(())
    }

    /// Returns the id in a form that the service accepts. A call and its result get the same id.
    fn call_id<'b>(&self, id: &'b str) -> Cow<'b, str> {
        if !id.is_empty() && (id.len() <= ID_LIMIT || self.kept_ids.contains(id)) {
            return Cow::Borrowed(id);
        }
        Cow::Owned(format!("call_{:016x}", hash(id)))
    }

    fn call(&self, tool_use: &ToolUse, native: bool) -> Value {
        let name = self.names.get(&tool_use.name);
        let arguments = encoding::input_text(tool_use);
        let mut call = json!({
            "id": self.call_id(tool_use.id.as_str()),
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
                        append_details(list, more);
                    }
                    (Some(Value::Array(list)), Value::Array(more)) => list.extend(more.iter().cloned()),
                    _ => {
                        extra.insert(key.clone(), value.clone());
                    }
                },
            }
        }
    }

    fn attachment(&self, attachment: &Attachment) -> Result<ChatContentPart<'a>, ProviderError> {
        let media_type = encoding::essence(attachment);
        let (kind, subtype) = media_type.split_once('/').unwrap_or((&media_type, ""));
        if let Some(text) = encoding::inlined(self.request, attachment)? {
            return Ok(ChatContentPart::Text(text.into()));
        }
        let files = self.chat.files;
        let data = matches!(files, Files::Data | Files::DataOrUrl);
        let part = match (&attachment.source, kind, subtype) {
            (Source::Url { url }, "image", _) if files != Files::ImageData => {
                json!({"type": "image_url", "image_url": {"url": url}})
            }
            (Source::Base64 { data }, "image", _) => {
                json!({"type": "image_url", "image_url": {"url": encoding::data_url(&media_type, data)}})
            }
            (Source::Url { url }, "application" | "text", _) if files == Files::FileUrl => {
                json!({"type": "file_url", "file_url": {"url": url}})
            }
            (Source::Url { url }, "application", "pdf") if files == Files::DataOrUrl => {
                json!({"type": "file", "file": {"filename": file_name(attachment), "file_data": url}})
            }
            (Source::Base64 { data: bytes }, "application", "pdf") if data => {
                let url = encoding::data_url(&media_type, bytes);
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
                return Ok(ChatContentPart::Text(placeholder(self.request, attachment, why)?.into()));
            }
        };
        Ok(ChatContentPart::Other(part))
    }
}

/// Returns the name of a file. A file without a name gets a default name, because OpenAI rejects a file without one.
fn file_name(attachment: &Attachment) -> &str {
    attachment.name.as_deref().unwrap_or("document.pdf")
}

/// Replaces an id that does not have the form of Mistral's own ids. The same id gives the same result.
fn shorten(id: &mut Value) {
    let Some(text) = id.as_str() else { return };
    if text.len() != 9 || !text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        *id = format!("{:09x}", hash(text) & 0xf_ffff_ffff).into();
    }
}

/// Returns the content of a message, or `None` if all parts are blank. Content that consists only of text is returned
/// as a single string, because the simplest servers require a string.
fn content(mut parts: Vec<ChatContentPart<'_>>) -> Option<Value> {
    parts.retain(|part| !matches!(part, ChatContentPart::Text(text) if text.trim().is_empty()));
    if parts.is_empty() {
        return None;
    }
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part {
            ChatContentPart::Text(text) => Some(&**text),
            ChatContentPart::Other(_) => None,
        })
        .collect();
    Some(match texts {
        Some(texts) => Value::String(texts.join("\n\n")),
        None => parts
            .into_iter()
            .map(|part| match part {
                ChatContentPart::Text(text) => json!({"type": "text", "text": text}),
                ChatContentPart::Other(value) => value,
            })
            .collect(),
    })
}

fn at_rest() -> String {
    format!(
        "`thinking` is turned off: in Chat Completions this model cannot use tools while it thinks; \
         {RESPONSES} supports both"
    )
}

impl ChatEncoder<'_> {
    /// Encodes the thinking option. Must be called after the tools are encoded, because the result depends on the
    /// encoded tools.
    fn thinking(&mut self) -> Result<(), ProviderError> {
        let with_tools = !self.chat.tools_beside_effort && self.out.body.contains_key("tools");
        match self.traits.chat_tools {
            ChatToolSupport::Never if with_tools => {
                let message = format!(
                    "{} does not support tools in Chat Completions; use {RESPONSES}",
                    self.request.model
                );
                return Err(ProviderError::new(ProviderErrorKind::Unsupported, message));
            }
            ChatToolSupport::IfOff if with_tools => {
                self.out.set("reasoning_effort", "none");
                // The model reasons by default, so the warning is also needed if the option is not set.
                if self.request.options.thinking().is_none_or(ThinkingMode::is_on) {
                    self.out.warn(at_rest());
                }
            }
            ChatToolSupport::WithoutEffort if with_tools => {
                if self.request.options.thinking().is_some_and(ThinkingMode::is_on) {
                    self.out.warn(at_rest());
                }
            }
            _ => self.encode_thinking(),
        }
        Ok(())
    }

    fn encode_thinking(&mut self) {
        let enabled = || {
            let mut thinking = Map::from_iter([("type".to_owned(), "enabled".into())]);
            thinking.extend(self.chat.thinking_members.clone());
            thinking
        };
        let Some(mode) = self.request.options.thinking() else {
            // These models think by default. The members are needed even if the request does not set the option, unless
            // it has its own `thinking`, into which these members must not be mixed.
            let own = self.request.options.extra().is_some_and(|extra| extra.contains_key("thinking"));
            if !own && !self.chat.thinking_members.is_empty() {
                self.out.set("thinking", enabled());
            }
            return;
        };
        let on = mode.is_on();
        match self.chat.thinking {
            ThinkingField::None if !on => {}
            ThinkingField::None => self.out.warn("`thinking` is ignored: this service has no setting for it"),
            ThinkingField::Always | ThinkingField::Enable { off: false, .. } if !on => {
                self.out.warn("`thinking` stays on: this service has no setting to turn it off");
            }
            ThinkingField::Always => {
                self.out.warn("`thinking` is ignored: this model decides how much to think");
            }
            ThinkingField::Effort(_) if !self.traits.reasons() => {
                if on {
                    self.out.warn("`thinking` is ignored: this model does not reason");
                }
            }
            ThinkingField::Effort(words) => {
                if let Some(word) = effort_word(words.narrowed(self.traits), mode, &mut self.out) {
                    if mode == Effort::Max.into()
                        && self.traits.max_in_responses
                        && word == EffortWords::OPENAI.max
                    {
                        self.out.warn(format!(
                            "`thinking` is changed from effort max to {word}: only {RESPONSES} supports max"
                        ));
                    }
                    self.out.set("reasoning_effort", word);
                }
            }
            ThinkingField::Reasoning(words) => {
                let reasoning = match mode {
                    ThinkingMode::Budget(tokens) if on => json!({"max_tokens": tokens}),
                    ThinkingMode::Effort(_) => {
                        json!({"effort": effort_word(words, mode, &mut self.out)})
                    }
                    ThinkingMode::Off | ThinkingMode::Budget(_) => json!({"enabled": false}),
                };
                self.out.set("reasoning", reasoning);
                // Anthropic rejects thinking together with a forced tool. OpenRouter then drops the thinking without an
                // error, so this crate warns.
                let demanded = is_forced(self.request.options.tool_choice());
                let tools = !self.request.tools.is_empty();
                if on && demanded && tools && !self.chat.thinking_beside_forced_tools {
                    self.out.warn(
                        "`thinking` has no effect: \
                         at this service, Anthropic's models do not think while a tool is forced",
                    );
                }
            }
            ThinkingField::Type(words) => {
                if !on && words.is_none_or(|words| words.off != Some(words.low)) {
                    self.out.set("thinking", json!({"type": "disabled"}));
                    return;
                }
                self.out.set("thinking", enabled());
                match words {
                    Some(words) => {
                        if let Some(word) = effort_word(words, mode, &mut self.out) {
                            self.out.set("reasoning_effort", word);
                        }
                    }
                    None => self.out.warn(match mode {
                        ThinkingMode::Effort(effort) => {
                            format!(
                                "`thinking` is turned on without effort {}: this service has no setting for it",
                                effort_name(effort)
                            )
                        }
                        _ => "`thinking` is turned on without a budget: this service has no setting for it".to_owned(),
                    }),
                }
            }
            ThinkingField::Enable { off, .. } => {
                if off {
                    self.out.set("enable_thinking", on);
                }
                let budget = match mode {
                    ThinkingMode::Effort(effort) => budget_of(effort),
                    ThinkingMode::Budget(tokens) => tokens,
                    ThinkingMode::Off => 0,
                };
                if on {
                    self.out.set("thinking_budget", budget);
                }
            }
        }
    }
}

/// Marks the system prompt and the last text. The service caches the messages up to each mark, so that the next request
/// can reuse them. The next requests don't contain the last `passing` messages, so the last text before them is marked
/// too.
fn mark(messages: &mut [Value], hint: CacheHint, passing: usize) {
    let control = cache_control(hint);
    if let Some((first, rest)) = messages.split_first_mut() {
        let is_system = matches!(first["role"].as_str(), Some("system" | "developer"));
        let mut mark_last =
            |skipped: usize| rest.iter_mut().rev().skip(skipped).any(|it| mark_text(it, &control));
        let marked = mark_last(0) && mark_last(passing);
        if is_system || !marked {
            mark_text(first, &control);
        }
    }
}

/// Marks a message's last text. Returns whether the message has a text.
fn mark_text(message: &mut Value, control: &Value) -> bool {
    let Some(content) = message.get_mut("content") else {
        return false;
    };
    if let Value::String(text) = content {
        *content = json!([{"type": "text", "text": text}]);
    }
    let parts = content.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut);
    let is_text = |part: &Map<String, Value>| part.get("type").is_some_and(|kind| kind == "text");
    match parts.filter(|part| is_text(part)).last() {
        Some(part) => {
            part.insert("cache_control".to_owned(), control.clone());
            true
        }
        None => false,
    }
}

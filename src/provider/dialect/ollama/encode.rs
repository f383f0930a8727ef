use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::NAME;
use crate::{
    message::{Attachment, Content, Message, ResultBlock, Role, Source, ToolResult, ToolUse},
    provider::{
        CacheHint, Effort, ProviderError, Request, ThinkingMode, ToolChoice,
        dialect::{
            EffortWords, Encoded,
            encoding::{self, is_forced, mention, nearest, placeholder},
            tool_schema::tool_schema,
        },
    },
};

/// Encodes a request. `levels` indicates whether the service has levels of thinking for every model.
pub(super) fn encode(request: &Request, levels: bool) -> Result<Encoded, ProviderError> {
    let mut encoder = OllamaEncoder { request, levels, messages: Vec::new(), out: Encoded::default() };
    let tools = encoder.tools();
    encoder.system();
    for message in &request.history {
        match message.role {
            Role::User => encoder.user(message)?,
            Role::Assistant => encoder.assistant(message)?,
        }
    }
    encoder.out.set("model", &*request.model);
    let messages = std::mem::take(&mut encoder.messages);
    encoder.out.set("messages", messages);
    encoder.out.set("stream", true);
    // Without these members, the server drops the beginning of a conversation that is too long, and reports no error.
    encoder.out.set("truncate", false);
    encoder.out.set("shift", false);
    if !tools.is_empty() {
        encoder.out.set("tools", tools);
    }
    if let Some(think) = encoder.think() {
        encoder.out.set("think", think);
    }
    if let Some(output) = request.options.output() {
        encoder.out.set("format", output.schema.as_value().clone());
    }
    let options = encoder.options();
    if !options.is_empty() {
        encoder.out.set("options", options);
    }
    if request.options.cache() == Some(CacheHint::Long) {
        encoder.out.set("keep_alive", "1h");
    }
    if request.options.metadata().is_some_and(|metadata| !metadata.is_empty()) {
        encoder.out.warn("`metadata` is ignored: Ollama does not support it");
    }
    Ok(encoder.out)
}

struct OllamaEncoder<'a> {
    request: &'a Request,
    levels: bool,
    messages: Vec<Value>,
    out: Encoded,
}

/// The content of a message: its texts, and its images in base64.
#[derive(Default)]
struct OllamaParts<'a> {
    texts: Vec<Cow<'a, str>>,
    images: Vec<&'a str>,
}

impl<'a> OllamaEncoder<'a> {
    fn system(&mut self) {
        let system = self.request.system.as_deref().unwrap_or_default();
        if !system.trim().is_empty() {
            self.messages.push(json!({"role": "system", "content": system}));
        }
    }

    /// Encodes a user message. Tool results come first, each in its own message.
    fn user(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let mut parts = OllamaParts::default();
        for result in message.tool_results() {
            let content = self.tool_result(result, &mut parts)?;
            self.messages.push(json!({
                "role": "tool",
                "tool_name": result.name,
                "tool_call_id": result.tool_use_id,
                "content": content,
            }));
        }
        for block in &message.content {
            match block {
                Content::Text(text) => parts.texts.push(Cow::Borrowed(&text.text)),
                Content::Attachment(attachment) => self.attachment(attachment, &mut parts)?,
                _ => {}
            }
        }
        let content = joined(&parts.texts);
        if content.is_empty() && parts.images.is_empty() {
            return Ok(());
        }
        let mut out = object("user", content);
        let mut images: Vec<Value> = parts.images.into_iter().map(Value::from).collect();
        // Prompt templates expect an answer after each user message, so a second one is joined to the first.
        if let Some(before) = self.messages.pop_if(|last| last["role"] == "user") {
            let texts =
                [&before["content"], &out["content"]].map(|text| text.as_str().unwrap_or_default().into());
            out = object("user", joined(&texts));
            images.splice(..0, before["images"].as_array().into_iter().flatten().cloned());
        }
        if !images.is_empty() {
            out.insert("images".to_owned(), images.into());
        }
        self.messages.push(Value::Object(out));
        Ok(())
    }

    /// Returns the text of a tool result. Few models support images in tool results, so the images move to the user
    /// message that follows.
    fn tool_result(
        &self,
        result: &'a ToolResult,
        moved: &mut OllamaParts<'a>,
    ) -> Result<String, ProviderError> {
        let mut parts = OllamaParts::default();
        for block in &result.content {
            match block {
                ResultBlock::Text(text) if text.text.is_empty() => {}
                ResultBlock::Text(text) => parts.texts.push(Cow::Borrowed(&text.text)),
                ResultBlock::Attachment(attachment) => self.attachment(attachment, &mut parts)?,
            }
        }
        if !parts.images.is_empty() {
            let id = &result.tool_use_id;
            moved
                .texts
                .push(format!("Images from the result of the tool {} (call {id}).", result.name).into());
            moved.images.append(&mut parts.images);
            parts.texts.push("(The images follow in the next user message.)".into());
        }
        let text = parts.texts.join("\n");
        Ok(encoding::result_text(text, result.is_error))
    }

    fn assistant(&mut self, message: &'a Message) -> Result<(), ProviderError> {
        let native = message.is_native_to(NAME);
        let mut texts = Vec::new();
        let mut thinking = Vec::new();
        let mut calls = Vec::new();
        for block in &message.content {
            match block {
                Content::Text(text) => texts.push(Cow::Borrowed(text.text.as_str())),
                Content::Thinking(thought) if native && !thought.text.is_empty() => {
                    thinking.push(Cow::Borrowed(thought.text.as_str()));
                }
                Content::ToolUse(tool_use) => calls.push(call(tool_use)),
                Content::Attachment(attachment) => {
                    let why = "the wire format does not support files in assistant messages";
                    texts.push(mention(self.request, message, attachment, why)?.into());
                }
                _ => {}
            }
        }
        let content = joined(&texts);
        if content.is_empty() && calls.is_empty() {
            return Ok(());
        }
        let mut out = object("assistant", content);
        if !thinking.is_empty() {
            out.insert("thinking".to_owned(), joined(&thinking).into());
        }
        if !calls.is_empty() {
            out.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        self.messages.push(Value::Object(out));
        Ok(())
    }

    fn attachment(
        &self,
        attachment: &'a Attachment,
        parts: &mut OllamaParts<'a>,
    ) -> Result<(), ProviderError> {
        if let Some(text) = encoding::inlined(self.request, attachment)? {
            parts.texts.push(text.into());
            return Ok(());
        }
        let why = match &attachment.source {
            Source::Base64 { data } if attachment.is_image() => {
                parts.images.push(data);
                return Ok(());
            }
            Source::Url { .. } if attachment.is_image() => {
                "the wire format does not support images by URL; send the image as base64"
            }
            _ => "the wire format supports only images and text files, as base64",
        };
        parts.texts.push(placeholder(self.request, attachment, why)?.into());
        Ok(())
    }

    /// Encodes the tools. If the request forbids the use of tools, no tools are sent, because the wire format has no
    /// setting for this.
    fn tools(&mut self) -> Vec<Value> {
        let tools = self.request.tools.iter().map(|tool| {
            let mut schema = tool_schema(tool.schema()).clone();
            plain_properties(&mut schema);
            let description = encoding::description(&**tool);
            json!({
                "type": "function",
                "function": {"name": tool.name(), "description": description, "parameters": schema},
            })
        });
        match self.request.options.tool_choice() {
            Some(ToolChoice::None) => return Vec::new(),
            choice if is_forced(choice) => {
                self.out.warn("`tool_choice` is ignored: Ollama cannot force a tool");
            }
            _ => {}
        }
        tools.collect()
    }

    fn think(&mut self) -> Option<Value> {
        let mode = self.request.options.thinking()?;
        let traits = &self.request.traits().ollama;
        // The end of a tag states that Ollama's own service runs the model, and that a local server only passes the
        // request on: <https://docs.ollama.com/cloud>.
        let tag = self.request.model.rsplit_once(':').map_or("", |(_, tag)| tag);
        let levels = self.levels || traits.levels || tag == "cloud" || tag.ends_with("-cloud");
        let effort = match mode {
            ThinkingMode::Off | ThinkingMode::Budget(0) if traits.levels => {
                self.out.warn("`thinking` is set to low: it cannot be turned off for this model");
                return Some("low".into());
            }
            ThinkingMode::Off | ThinkingMode::Budget(0) => return Some(false.into()),
            ThinkingMode::Effort(effort) => effort,
            ThinkingMode::Budget(budget) => nearest(budget),
        };
        if !levels {
            self.out
                .warn("`thinking` is only turned on: Ollama has no efforts and no budgets for this model");
            return Some(true.into());
        }
        // Ollama's own service replaces a level that the model does not have with the model's default:
        // <https://docs.ollama.com/capabilities/thinking>.
        let max = if traits.levels { "high" } else { "max" };
        let word = EffortWords { max, ..EffortWords::COMMON }.word(effort);
        match mode {
            ThinkingMode::Budget(budget) => {
                self.out.warn(format!(
                    "`thinking` is changed from a budget of {budget} tokens to effort {word}: Ollama does not \
                     support budgets"
                ));
            }
            ThinkingMode::Effort(Effort::Minimal) => {
                self.out.warn("`thinking` minimal is sent to Ollama as low");
            }
            ThinkingMode::Effort(Effort::Max) if word != "max" => {
                self.out.warn("`thinking` max is sent to Ollama as high");
            }
            _ => {}
        }
        Some(word.into())
    }

    fn options(&mut self) -> Map<String, Value> {
        let options = &self.request.options;
        let mut out = Map::new();
        if let Some(max) = options.max_tokens() {
            out.insert("num_predict".to_owned(), max.into());
        }
        out.extend(encoding::sampling(options, true, &mut self.out));
        let stop = encoding::stop_sequences(options, usize::MAX, "Ollama", &mut self.out);
        if !stop.is_empty() {
            out.insert("stop".to_owned(), stop.into());
        }
        out
    }
}

fn object(role: &str, content: String) -> Map<String, Value> {
    Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())])
}

fn joined(texts: &[Cow<'_, str>]) -> String {
    let parts: Vec<&str> = texts.iter().map(|text| &**text).filter(|text| !text.trim().is_empty()).collect();
    parts.join("\n\n")
}

fn call(tool_use: &ToolUse) -> Value {
    let arguments = encoding::input_object(tool_use);
    json!({"id": tool_use.id, "function": {"name": tool_use.name, "arguments": arguments}})
}

/// Replaces the schemas of properties that accept any value with `{}`, because the server rejects `true` as a schema.
fn plain_properties(schema: &mut Value) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    for property in properties.values_mut() {
        if property.is_boolean() {
            *property = json!({});
        }
        plain_properties(property);
    }
}

use serde_json::{Map, Value, json};

use super::{CacheField, ChatCompletions, OutputSupport, ThinkingField, ToolChoices, cache};
use crate::provider::{
    CacheHint, OutputSchema, ProviderError, Request, ThinkingMode, ToolChoice,
    catalogue::{OpenAiTraits, Traits},
    dialect::{
        Encoded,
        names::ToolNames,
        openai::{self, Format},
        tool_schema::tool_schema,
        words,
    },
};

pub(super) fn encode(chat: &ChatCompletions, request: &Request) -> Result<Encoded, ProviderError> {
    let traits = match chat.thinking {
        ThinkingField::Effort(_) => &request.traits().openai,
        // A service that has its own member for thinking converts the requested thinking to a value that the model
        // supports. Therefore, the facts about OpenAI's models are not applied.
        _ => &Traits::unknown().openai,
    };
    let output = output_support(chat, request);
    let names = ToolNames::of(request, openai::NAME_LIMIT, "");
    let mut encoder =
        Encoder { chat, request, names, traits, output, messages: Vec::new(), warnings: Vec::new() };
    let (mut messages, passing) = encoder.messages()?;
    let mut body = Map::new();
    encoder.cache(&mut messages, passing, &mut body);
    body.insert("model".to_owned(), Value::from(&*request.model));
    body.insert("messages".to_owned(), Value::Array(messages));
    body.insert("stream".to_owned(), Value::Bool(true));
    if chat.stream_usage {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    encoder.tools(&mut body);
    encoder.thinking(&mut body)?;
    encoder.sampling(&mut body);
    encoder.output(&mut body);
    encoder.labels(&mut body);
    body.extend(chat.members.clone());
    if body.contains_key("tools") {
        body.extend(chat.tool_members.clone());
    }
    Ok(Encoded { body, warnings: encoder.warnings })
}

pub(super) struct Encoder<'a> {
    pub(super) chat: &'a ChatCompletions,
    pub(super) request: &'a Request,
    pub(super) names: ToolNames<'a>,
    pub(super) traits: &'a OpenAiTraits,
    /// How an output schema is sent in this request.
    pub(super) output: OutputSupport,
    pub(super) messages: Vec<Value>,
    pub(super) warnings: Vec<String>,
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
    openai::supported(support, request)
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

impl Encoder<'_> {
    fn tools(&mut self, body: &mut Map<String, Value>) {
        let names = &self.names;
        let tools = self.request.tools.iter().map(|tool| {
            let (name, schema) = (names.get(tool.name()), tool_schema(tool.schema()));
            json!({
                "type": "function",
                "function": {"name": name, "description": tool.description(), "parameters": schema},
            })
        });
        let tools: Vec<Value> = tools.collect();
        let choice = self.request.options.tool_choice();
        if tools.is_empty() {
            // The service rejects a tool choice without tools.
            if matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) {
                self.warn("`tool_choice` is ignored: the request has no tools");
            }
            return;
        }
        let choices = tool_choices(self.chat, self.request);
        if choices == ToolChoices::Auto && matches!(choice, Some(ToolChoice::None)) {
            return;
        }
        body.insert("tools".to_owned(), Value::Array(tools));
        let choice = match choice {
            None => return,
            Some(ToolChoice::Required | ToolChoice::Tool(_)) if choices != ToolChoices::All => {
                self.warn("`tool_choice` is set to auto: the service cannot force a tool in this request");
                Value::from("auto")
            }
            Some(ToolChoice::Auto) => Value::from("auto"),
            Some(ToolChoice::None) => Value::from("none"),
            Some(ToolChoice::Required) => Value::from("required"),
            Some(ToolChoice::Tool(tool)) => {
                json!({"type": "function", "function": {"name": names.get(tool)}})
            }
        };
        body.insert("tool_choice".to_owned(), choice);
    }

    fn sampling(&mut self, body: &mut Map<String, Value>) {
        let options = &self.request.options;
        if let Some(max) = options.max_tokens() {
            let field = self.chat.max_tokens_field;
            body.insert(field.to_owned(), max.into());
        }
        let effort = body.get("reasoning_effort").and_then(Value::as_str);
        let taken = self.chat.sampling && self.traits.takes_sampling(effort);
        openai::sampling(options, taken, body, &mut self.warnings);
        let sequences = options.stop_sequences().into_iter().flatten().filter(|stop| !stop.is_empty());
        if !self.traits.stop {
            if sequences.count() > 0 {
                self.warn("`stop_sequences` is ignored: this model does not support it");
            }
            return;
        }
        let stop: Vec<Value> =
            sequences.clone().take(self.chat.max_stop_sequences).map(|s| s.as_str().into()).collect();
        let left_out = sequences.count() - stop.len();
        if left_out > 0 {
            self.warn(format!(
                "`stop_sequences` is shortened: this service supports only {}, and the last {left_out} are ignored",
                stop.len()
            ));
        }
        if !stop.is_empty() {
            body.insert("stop".to_owned(), Value::Array(stop));
        }
    }

    fn output(&mut self, body: &mut Map<String, Value>) {
        let Some(output) = self.request.options.output() else {
            return;
        };
        let format = match openai::format(self.output, Some(output), &mut self.warnings) {
            None => return,
            Some(Format::Object) => json!({"type": "json_object"}),
            Some(Format::Schema(schema, strict)) => named_schema(output, &schema, strict),
        };
        body.insert("response_format".to_owned(), format);
    }

    fn labels(&mut self, body: &mut Map<String, Value>) {
        match self.request.options.metadata() {
            Some(metadata) if self.chat.metadata => {
                body.insert("metadata".to_owned(), Value::Object(openai::labels(metadata)));
            }
            Some(_) => self.warn("`metadata` is ignored: this service does not support it"),
            None => {}
        }
    }

    fn cache(&mut self, messages: &mut [Value], passing: usize, body: &mut Map<String, Value>) {
        let Some(hint) = self.request.options.cache() else {
            return;
        };
        match (self.chat.cache, hint) {
            (CacheField::Breakpoints, hint) => cache::mark(messages, hint, passing),
            (CacheField::Retention, CacheHint::Long)
                if self.request.traits().openai.keeps_long(&self.request.model) =>
            {
                body.insert("prompt_cache_retention".to_owned(), "24h".into());
            }
            (CacheField::None | CacheField::Retention, CacheHint::Long) => self.warn(words::NO_LONG_CACHE),
            (CacheField::None | CacheField::Retention, CacheHint::Short) => {}
        }
    }

    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

fn named_schema(output: &OutputSchema, schema: &Value, strict: bool) -> Value {
    let name = openai::schema_name(output);
    json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}})
}

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{NAME, OpenAiResponses, ReasoningItems, input::Input};
use crate::provider::{
    CacheHint, OutputSchema, ProviderError, Request, ToolChoice,
    catalogue::OpenAiTraits,
    dialect::{
        EffortWords, Encoded, OutputSupport,
        ids::hash,
        names::ToolNames,
        openai::{self, Format},
        tool_schema::tool_schema,
        words,
    },
};

/// The maximum number of labels, and the maximum lengths of a label's name and value, in characters:
/// <https://platform.openai.com/docs/api-reference/responses/create#responses-create-metadata>.
const LABELS: (usize, usize, usize) = (16, 64, 512);

pub(super) fn encode(format: &OpenAiResponses, request: &Request) -> Result<Encoded, ProviderError> {
    let traits = &request.traits().openai;
    let output = openai::supported(format.output, request);
    let names = ToolNames::of(request, openai::NAME_LIMIT, "");
    let mut encoder =
        Encoder { format, request, names: &names, traits, output, body: Map::new(), warnings: Vec::new() };
    encoder.set("model", &*request.model);
    let mut input = Input::of(request, &names, format)?;
    encoder.instructions(&mut input);
    encoder.set("input", input);
    encoder.set("stream", true);
    encoder.set("store", false);
    if format.reasoning != ReasoningItems::Never && traits.reasons() {
        encoder.set("include", json!(["reasoning.encrypted_content"]));
    }
    encoder.tools();
    encoder.thinking();
    encoder.limits();
    encoder.sampling();
    encoder.output();
    encoder.labels();
    encoder.cache();
    Ok(Encoded { body: encoder.body, warnings: encoder.warnings })
}

struct Encoder<'a> {
    format: &'a OpenAiResponses,
    request: &'a Request,
    names: &'a ToolNames<'a>,
    traits: &'a OpenAiTraits,
    /// How an output schema is sent in this request.
    output: OutputSupport,
    body: Map<String, Value>,
    warnings: Vec<String>,
}

impl Encoder<'_> {
    fn instructions(&mut self, input: &mut Vec<Value>) {
        let mut system = Cow::Borrowed(self.request.system.as_deref().unwrap_or_default());
        if let (true, Some(output)) = (self.output.needs_words(), self.request.options.output()) {
            system = words::with_schema(&system, output).into();
        }
        if system.trim().is_empty() {
            return;
        }
        if self.traits.late_instructions {
            // The service places instructions behind the input, so a cached prompt would end before them.
            input.insert(0, json!({"type": "message", "role": "developer", "content": system}));
        } else {
            self.set("instructions", system);
        }
    }

    fn tools(&mut self) {
        let request = self.request;
        let names = self.names;
        let tools = request.tools.iter().map(|tool| {
            let (name, schema) = (names.get(tool.name()), tool_schema(tool.schema()));
            // Turn off `strict`, which is the service's default and would require every property.
            json!({
                "type": "function", "name": name, "description": tool.description(),
                "parameters": schema, "strict": false,
            })
        });
        let tools: Vec<Value> = tools.collect();
        let choice = request.options.tool_choice();
        if tools.is_empty() {
            // The service rejects a tool choice without tools, so none is sent.
            if matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) {
                self.warn("`tool_choice` is ignored: the request has no tools");
            }
            return;
        }
        self.set("tools", tools);
        let choice = match choice {
            None => return,
            Some(ToolChoice::Auto) => Value::from("auto"),
            Some(ToolChoice::None) => Value::from("none"),
            Some(ToolChoice::Required) => Value::from("required"),
            Some(ToolChoice::Tool(tool)) => json!({"type": "function", "name": names.get(tool)}),
        };
        self.set("tool_choice", choice);
    }

    fn limits(&mut self) {
        let options = &self.request.options;
        if let Some(max) = options.max_tokens() {
            let least = self.format.min_output_tokens;
            if max < least {
                self.warn(format!(
                    "`max_tokens` is raised from {max} to {least}, the smallest possible value"
                ));
            }
            self.set("max_output_tokens", max.max(least));
        }
        if options.stop_sequences().into_iter().flatten().any(|stop| !stop.is_empty()) {
            self.warn("`stop_sequences` is ignored: the Responses wire format does not support it");
        }
    }

    fn sampling(&mut self) {
        let effort = self.body.get("reasoning").and_then(|reasoning| reasoning["effort"].as_str());
        let taken = self.traits.takes_sampling(effort);
        openai::sampling(&self.request.options, taken, &mut self.body, &mut self.warnings);
    }

    fn thinking(&mut self) {
        let Some(mode) = self.request.options.thinking() else {
            return;
        };
        let Some(words) = self.format.effort else {
            return self.warn("`thinking` is ignored: this service has no setting for it");
        };
        let on = mode.is_on();
        if !self.traits.reasons() {
            if on {
                self.warn("`thinking` is ignored: this model does not reason");
            }
            return;
        }
        let mut words = words.narrowed(self.traits);
        if self.traits.max_in_responses && words.max == EffortWords::OPENAI.max {
            words.max = "max";
        }
        let Some(word) = openai::effort(words, mode, &mut self.warnings) else {
            return;
        };
        let mut reasoning = Map::from_iter([("effort".to_owned(), Value::from(word))]);
        if self.format.summaries && on {
            reasoning.insert("summary".to_owned(), "auto".into());
        }
        self.set("reasoning", reasoning);
    }

    fn output(&mut self) {
        let Some(output) = self.request.options.output() else {
            return;
        };
        let format = match openai::format(self.output, Some(output), &mut self.warnings) {
            None => return,
            Some(Format::Object) => json!({"type": "json_object"}),
            Some(Format::Schema(schema, strict)) => named_schema(output, &schema, strict),
        };
        self.set("text", json!({"format": format}));
    }

    fn labels(&mut self) {
        let Some(metadata) = self.request.options.metadata() else {
            return;
        };
        if !self.format.metadata {
            return self.warn("`metadata` is ignored: this service does not support it");
        }
        let (count, name, value) = LABELS;
        let mut labels = openai::labels(metadata);
        labels.retain(|key, text| {
            let long = |text: &str, limit| text.chars().nth(limit).is_some();
            !long(key, name) && !text.as_str().is_some_and(|text| long(text, value))
        });
        let labels: Map<String, Value> = labels.into_iter().take(count).collect();
        let left_out = metadata.len() - labels.len();
        if left_out > 0 {
            self.warn(format!(
                "`metadata` is shortened by {left_out} labels: the service supports {count}, with {name} characters in \
                 the name and {value} in the value"
            ));
        }
        self.set("metadata", labels);
    }

    /// Encodes a cache hint. Source: <https://platform.openai.com/docs/guides/prompt-caching>.
    fn cache(&mut self) {
        let Some(hint) = self.request.options.cache() else {
            return;
        };
        if !self.format.cache_hints {
            if hint == CacheHint::Long {
                self.warn(words::NO_LONG_CACHE);
            }
            return;
        }
        // The key depends on the first message of the conversation, which may follow a developer message.
        let system = self.body["input"].get(0).filter(|item| item["role"] == "developer");
        let first = self.body["input"].get(usize::from(system.is_some()));
        let beginning = [self.body.get("instructions").or(system), first];
        let beginning: String = beginning.into_iter().flatten().map(Value::to_string).collect();
        self.set("prompt_cache_key", format!("{NAME}_{:016x}", hash(&beginning)));
        match hint {
            CacheHint::Long if self.traits.keeps_long(&self.request.model) => {
                self.set("prompt_cache_retention", "24h");
            }
            CacheHint::Long => self.warn(words::NO_LONG_CACHE),
            CacheHint::Short => {}
        }
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.body.insert(key.to_owned(), value.into());
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

fn named_schema(output: &OutputSchema, schema: &Value, strict: bool) -> Value {
    let name = openai::schema_name(output);
    json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict})
}

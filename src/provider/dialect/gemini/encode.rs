use serde_json::{Map, Number, Value, json};

use super::{content, schema::restricted};
use crate::provider::{
    CacheHint, Effort, ProviderError, ProviderErrorKind, Request, ThinkingMode, ToolChoice,
    catalogue::{GeminiThinking as Thinking, GeminiTraits},
    dialect::{
        EffortWords, Encoded,
        effort::{budget_of, nearest, supported},
        names::ToolNames,
        tool_schema::tool_schema,
    },
};

/// The maximum number of stop sequences that the service supports.
const STOP_LIMIT: usize = 5;

/// The service's words for thinking levels.
const WORDS: EffortWords = EffortWords { minimal: "minimal", ..EffortWords::COMMON };

pub(super) fn encode(request: &Request) -> Result<Encoded, ProviderError> {
    // The id of the model is part of the request's path. An empty segment, `.` or `..` in the id would change that
    // path.
    if request.model.split('/').any(|segment| segment.is_empty() || segment == "." || segment == "..") {
        let message =
            format!("the model id {:?} is invalid: it has an empty segment, `.` or `..`", request.model);
        return Err(ProviderError::new(ProviderErrorKind::InvalidRequest, message));
    }
    let traits = &request.traits().gemini;
    let names = ToolNames::of(request, content::NAME_LIMIT, content::NAME_SIGNS);
    let mut encoder = Encoder { request, names: &names, traits, body: Map::new(), warnings: Vec::new() };
    encoder.set("contents", content::contents(request, &names, traits.signed_calls)?);
    encoder.system();
    encoder.tools();
    encoder.generation();
    encoder.labels();
    Ok(Encoded { body: encoder.body, warnings: encoder.warnings })
}

struct Encoder<'a> {
    request: &'a Request,
    names: &'a ToolNames<'a>,
    traits: &'a GeminiTraits,
    body: Map<String, Value>,
    warnings: Vec<String>,
}

impl Encoder<'_> {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.body.insert(key.to_owned(), value.into());
    }

    fn system(&mut self) {
        let system = self.request.system.as_deref().unwrap_or_default();
        if !system.trim().is_empty() {
            self.set("systemInstruction", json!({"parts": [{"text": system}]}));
        }
    }

    fn tools(&mut self) {
        let request = self.request;
        let names = self.names;
        let tools = request.tools.iter().map(|tool| {
            let schema = restricted(tool_schema(tool.schema()));
            json!({"name": names.get(tool.name()), "description": tool.description(), "parametersJsonSchema": schema})
        });
        let tools: Vec<Value> = tools.collect();
        let choice = self.request.options.tool_choice();
        if tools.is_empty() {
            if matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_))) {
                self.warn("`tool_choice` is ignored: the request has no tools");
            }
            return;
        }
        self.set("tools", json!([{"functionDeclarations": tools}]));
        let config = match choice {
            None => return,
            Some(ToolChoice::Auto) => json!({"mode": "AUTO"}),
            Some(ToolChoice::None) => json!({"mode": "NONE"}),
            Some(ToolChoice::Required) => json!({"mode": "ANY"}),
            Some(ToolChoice::Tool(tool)) => json!({"mode": "ANY", "allowedFunctionNames": [names.get(tool)]}),
        };
        self.set("toolConfig", json!({"functionCallingConfig": config}));
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
                    self.warn(format!("`{name}` is ignored: this model does not support it"));
                }
                Some(Some(number)) => {
                    config.insert(key.to_owned(), Value::Number(number));
                }
                Some(None) => self.warn(format!("`{name}` is ignored: it is not a finite number")),
            }
        }
        let sequences = options.stop_sequences().into_iter().flatten().filter(|stop| !stop.is_empty());
        let stop: Vec<&str> = sequences.clone().map(String::as_str).take(STOP_LIMIT).collect();
        let left_out = sequences.count() - stop.len();
        if left_out > 0 {
            self.warn(format!(
                "`stop_sequences` is shortened: Gemini supports only {STOP_LIMIT}, and the last {left_out} are ignored"
            ));
        }
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
            self.set("generationConfig", config);
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
                    self.warn("`thinking` is ignored: this model has no setting for it");
                }
                None
            }
            &Thinking::Budget { min, max, off } => {
                let wanted = match mode {
                    ThinkingMode::Off if off => return Some(json!({"thinkingBudget": 0})),
                    ThinkingMode::Off => {
                        self.warn(format!(
                            "`thinking` is set to {min} tokens: it cannot be turned off for this model"
                        ));
                        min
                    }
                    ThinkingMode::Effort(effort) => budget_of(effort).clamp(min, max),
                    ThinkingMode::Budget(budget) => {
                        let fitting = budget.clamp(min, max);
                        if fitting != budget {
                            self.warn(format!(
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
                let level = supported(levels, wanted)?;
                let word = WORDS.word(level);
                match mode {
                    ThinkingMode::Off => {
                        self.warn(format!(
                            "`thinking` is set to level {word}: it cannot be turned off for this model"
                        ));
                    }
                    ThinkingMode::Budget(budget) => {
                        self.warn(format!(
                            "`thinking` is changed from a budget of {budget} tokens to level {word}: this model \
                             does not support budgets"
                        ));
                    }
                    ThinkingMode::Effort(_) if level != wanted => {
                        self.warn(format!(
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
            self.warn("`metadata` is ignored: Gemini does not support it");
        }
        if self.request.options.cache() == Some(CacheHint::Long) {
            self.warn(
                "`cache` is not extended: Gemini keeps prompts for minutes, and has no setting for the time",
            );
        }
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

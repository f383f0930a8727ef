//! Requests as the format's JSON bodies. Source of the rules: <https://platform.claude.com/docs/en/api/messages>.

use serde_json::{Map, Value, json};

use super::{
    content::{self, Kept, NAME_LIMIT, object},
    models::{Off, Sampling, Thinking, Traits},
    schema,
};
use crate::provider::{
    CacheHint, Effort, Options, ProviderError, Request, ThinkingMode, ToolChoice,
    dialect::{
        Encoded,
        effort::{budget_of, nearest},
        names::ToolNames,
        tool_schema::tool_schema,
    },
};

/// The format demands a limit; this one goes for none. It comes on top of a thinking budget.
const MAX_TOKENS: u32 = 4096;

/// The smallest thinking budget that the service takes.
const MIN_BUDGET: u32 = 1024;

/// `block_binding`: whether the service knows that word.
pub(super) fn encode(request: &Request, block_binding: bool) -> Result<Encoded, ProviderError> {
    let options = &request.options;
    let cache = options.cache.map(|hint| match hint {
        CacheHint::Short => json!({"type": "ephemeral"}),
        CacheHint::Long => json!({"type": "ephemeral", "ttl": "1h"}),
    });
    let names = ToolNames::of(request, NAME_LIMIT, "");
    let mut encoder = Encoder {
        options,
        names: &names,
        traits: Traits::of(&request.model),
        output_limit: request.model_info.as_ref().and_then(|info| u32::try_from(info.output_limit?).ok()),
        cache: cache.as_ref(),
        body: Map::new(),
        warnings: Vec::new(),
    };
    encoder.set("model", &*request.model);
    let thinking = encoder.thinking();
    let kept = encoder.unbind_thinking(block_binding);
    encoder.set("stream", true);
    encoder.system(request.system.as_deref());
    encoder.tools(request);
    encoder.tool_choice(request, thinking.on);
    encoder.set("messages", content::messages(request, &names, encoder.cache, kept)?);
    encoder.sampling(thinking.on);
    encoder.stop_sequences();
    encoder.output(thinking.effort);
    encoder.metadata();
    Ok(Encoded { body: encoder.body, warnings: encoder.warnings })
}

struct Encoder<'a> {
    options: &'a Options,
    names: &'a ToolNames<'a>,
    traits: Traits,
    /// The most that the model can give, where that is known.
    output_limit: Option<u32>,
    cache: Option<&'a Value>,
    body: Map<String, Value>,
    warnings: Vec<String>,
}

/// What was decided about thinking.
#[derive(Default)]
struct Decided {
    /// Whether the request turns it on.
    on: bool,
    effort: Option<&'static str>,
}

impl Encoder<'_> {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.body.insert(key.to_owned(), value.into());
    }

    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Sets `max_tokens` and `thinking`, which depend on each other.
    fn thinking(&mut self) -> Decided {
        let Traits { thinking, off, .. } = self.traits;
        let mut decided = Decided::default();
        let mut budget = None;
        match self.options.thinking {
            None => {}
            Some(ThinkingMode::Off | ThinkingMode::Budget(0)) => match off {
                _ if thinking == Thinking::Unsupported => {}
                Off::Disabled => self.set("thinking", json!({"type": "disabled"})),
                Off::BetweenTools => self.set("thinking", json!({"type": "between_tools"})),
                Off::Never => {
                    decided.effort = Some("low");
                    self.warn("this model always thinks; its effort is set to low instead");
                }
            },
            Some(_) if thinking == Thinking::Unsupported => {
                self.warn("this model does not think; the thinking option is left out");
            }
            Some(ThinkingMode::Effort(effort)) if thinking == Thinking::Budget => {
                budget = Some(budget_of(effort));
            }
            Some(ThinkingMode::Effort(effort)) => decided.effort = Some(word(effort)),
            Some(ThinkingMode::Budget(tokens)) if thinking == Thinking::Adaptive => {
                let effort = nearest(tokens);
                let effort = word(effort);
                self.warn(format!(
                    "this model takes no thinking budget; its effort is set to {effort} instead"
                ));
                decided.effort = Some(effort);
            }
            Some(ThinkingMode::Budget(tokens)) => {
                if tokens < MIN_BUDGET {
                    self.warn(format!(
                        "the thinking budget is raised to {MIN_BUDGET}, the smallest there is"
                    ));
                }
                budget = Some(tokens.max(MIN_BUDGET));
            }
        }
        let (max_tokens, budget) = self.limits(budget);
        self.set("max_tokens", max_tokens);
        if let Some(budget) = budget {
            decided.on = true;
            self.set("thinking", json!({"type": "enabled", "budget_tokens": budget}));
        } else if decided.effort.is_some() && !self.is_off() {
            decided.on = true;
            self.set("thinking", json!({"type": "adaptive"}));
        }
        decided
    }

    /// Lets the service drop thinking that stands behind something else than when it was thought. It would refuse the
    /// request, and every later one: what stands there changes with tools, system prompts and answers that were asked
    /// for again.
    ///
    /// Gives which thinking can go back. Where a model is told to think in another way, or not to, nothing lets it be
    /// dropped.
    fn unbind_thinking(&mut self, block_binding: bool) -> Kept {
        if !self.traits.bound_thinking {
            return Kept::All;
        }
        // What the user says of it is laid over this body.
        let extra = self.options.extra.as_ref().and_then(|extra| extra.get("thinking"));
        let said = match extra {
            Some(Value::Object(extra)) => {
                extra.get("type").or_else(|| self.body.get("thinking")?.get("type"))
            }
            Some(_) => extra,
            None => self.body.get("thinking").and_then(|thinking| thinking.get("type")),
        };
        // They think adaptively unless told otherwise.
        match said.map(Value::as_str) {
            None | Some(Some("adaptive")) => {}
            Some(Some("disabled")) => return Kept::None,
            Some(_) => return Kept::Open,
        }
        if block_binding {
            let thinking = self.body.entry("thinking").or_insert_with(|| json!({"type": "adaptive"}));
            thinking["block_binding"] = json!({"prefix_mismatch_behavior": "drop_block"});
        }
        Kept::All
    }

    fn is_off(&self) -> bool {
        matches!(self.options.thinking, Some(ThinkingMode::Off | ThinkingMode::Budget(0)))
    }

    /// `max_tokens` and the thinking budget, which must be below it: thinking counts towards the limit.
    fn limits(&mut self, budget: Option<u32>) -> (u32, Option<u32>) {
        let room = budget.unwrap_or(0).saturating_add(MAX_TOKENS);
        let limit = self.options.max_tokens.or_else(|| self.output_limit.filter(|limit| *limit < room));
        match (limit, budget) {
            (None, budget) => (room, budget),
            (Some(limit), None) => (limit, None),
            (Some(limit), Some(budget)) if budget < limit => (limit, Some(budget)),
            // A limit is a promise, so the thinking gives way and leaves a quarter to the answer.
            (Some(limit), Some(_)) if limit > MIN_BUDGET => {
                let fitting = (limit - limit / 4).clamp(MIN_BUDGET, limit - 1);
                self.warn(format!("the thinking budget is lowered to {fitting}, to fit into max_tokens"));
                (limit, Some(fitting))
            }
            (Some(limit), Some(_)) => {
                let raised = limit.saturating_add(MIN_BUDGET);
                self.warn(format!(
                    "max_tokens is raised to {raised}: it has to be above the smallest thinking budget, {MIN_BUDGET}"
                ));
                (raised, Some(MIN_BUDGET))
            }
        }
    }

    fn system(&mut self, system: Option<&str>) {
        let Some(system) = system.filter(|system| !system.trim().is_empty()) else {
            return;
        };
        match self.cache {
            Some(cache) => {
                self.set("system", json!([{"type": "text", "text": system, "cache_control": cache}]));
            }
            None => self.set("system", system),
        }
    }

    fn tools(&mut self, request: &Request) {
        let mut tools: Vec<Map<String, Value>> = request
            .tools
            .iter()
            .map(|tool| {
                let name = self.names.get(tool.name());
                let mut value = object(json!({"name": name}));
                let description = tool.description();
                if !description.trim().is_empty() {
                    value.insert("description".to_owned(), (*description).into());
                }
                let schema = tool_schema(tool.schema());
                value.insert("input_schema".to_owned(), schema.clone());
                value
            })
            .collect();
        if let (Some(last), Some(cache)) = (tools.last_mut(), self.cache) {
            last.insert("cache_control".to_owned(), cache.clone());
        }
        if !tools.is_empty() {
            self.set("tools", tools.into_iter().map(Value::Object).collect::<Vec<_>>());
        }
    }

    fn tool_choice(&mut self, request: &Request, thinking: bool) {
        let Some(choice) = &self.options.tool_choice else {
            return;
        };
        let forced = matches!(choice, ToolChoice::Required | ToolChoice::Tool(_));
        if request.tools.is_empty() {
            // The service refuses a choice among nothing.
            if forced {
                self.warn("there is no tool to demand; the tool choice is left out");
            }
            return;
        }
        let value = match choice {
            ToolChoice::None => json!({"type": "none"}),
            _ if forced && !self.traits.forced_tools => {
                self.warn("this model can't be made to use a tool; the tool choice is set to auto");
                json!({"type": "auto"})
            }
            _ if forced && thinking => {
                self.warn("a model that thinks can't be made to use a tool; the tool choice is set to auto");
                json!({"type": "auto"})
            }
            ToolChoice::Auto => json!({"type": "auto"}),
            ToolChoice::Required => json!({"type": "any"}),
            ToolChoice::Tool(name) => {
                json!({"type": "tool", "name": self.names.get(name)})
            }
        };
        self.set("tool_choice", value);
    }

    fn sampling(&mut self, thinking: bool) {
        let taken = self.traits.sampling;
        let mut set = false;
        if let Some(temperature) = self.options.temperature {
            // The default may be said to any model, and need not be.
            let is_default = (temperature - 1.0).abs() < f64::EPSILON;
            if taken == Sampling::Fixed {
                if !is_default {
                    self.warn("this model takes no temperature; it is left out");
                }
            } else if thinking && !is_default {
                self.warn("a model that thinks takes no temperature; it is left out");
            } else if !temperature.is_finite() {
                self.warn("the temperature is no number; it is left out");
            } else {
                let allowed = if taken == Sampling::Any { temperature } else { temperature.clamp(0.0, 1.0) };
                if allowed.total_cmp(&temperature).is_ne() {
                    self.warn(format!("the temperature is set to {allowed}: it goes from 0 to 1"));
                }
                self.set("temperature", allowed);
                set = true;
            }
        }
        if let Some(top_p) = self.options.top_p {
            if taken == Sampling::Fixed {
                self.warn("this model takes no top_p; it is left out");
            } else if thinking && !(0.95..=1.0).contains(&top_p) {
                self.warn("a model that thinks takes no top_p below 0.95; it is left out");
            } else if taken == Sampling::One && set {
                self.warn("this model takes no top_p beside a temperature; it is left out");
            } else if !top_p.is_finite() {
                self.warn("top_p is no number; it is left out");
            } else {
                self.set("top_p", top_p);
            }
        }
    }

    fn stop_sequences(&mut self) {
        let all = self.options.stop_sequences.as_deref().unwrap_or_default();
        let taken: Vec<&str> =
            all.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
        if taken.len() < all.len() {
            self.warn("blank stop sequences are left out");
        }
        if !taken.is_empty() {
            self.set("stop_sequences", taken);
        }
    }

    fn output(&mut self, effort: Option<&'static str>) {
        let mut config = Map::new();
        if let Some(effort) = effort {
            config.insert("effort".to_owned(), effort.into());
        }
        if let Some(output) = &self.options.output {
            match schema::output(output.schema.as_value()) {
                Some((schema, closed)) => {
                    if closed {
                        self.warn(
                            "the output schema's objects are closed: the service takes no additionalProperties",
                        );
                    }
                    config.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema}));
                }
                None => self.warn("the output schema can't be said in this format; it is left out"),
            }
        }
        if !config.is_empty() {
            self.set("output_config", config);
        }
    }

    fn metadata(&mut self) {
        for (key, value) in self.options.metadata.iter().flatten() {
            match value {
                Value::String(user) if key == "user_id" => self.set("metadata", json!({"user_id": user})),
                _ if key == "user_id" => self.warn("metadata user_id is no text; it is left out"),
                _ => self.warn(format!("metadata {key} is left out: the service takes user_id alone")),
            }
        }
    }
}

const fn word(effort: Effort) -> &'static str {
    match effort {
        Effort::Minimal | Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
        Effort::Max => "max",
    }
}

//! Encoding of requests as JSON bodies. Source of the rules: <https://platform.claude.com/docs/en/api/messages>.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{
    NAME,
    content::{self, Kept, NAME_LIMIT, object},
    schema,
};
use crate::message::History;
use crate::provider::{
    ModelInfo, Options, ProviderError, Request, ThinkingMode, ToolChoice,
    catalogue::{MessagesSampling as Sampling, MessagesThinking as Thinking, MessagesTraits, ThinkingOff},
    dialect::{
        EffortWords, Encoded, cache_control,
        effort::{budget_of, budget_within, nearest},
        limits,
        names::ToolNames,
        tool_schema::tool_schema,
    },
};

/// The smallest thinking budget that the service accepts.
const MIN_BUDGET: u32 = 1024;

/// The time before its expiry from which a container is not used any more.
const CONTAINER_MARGIN: Duration = Duration::from_mins(1);

/// The wire format's words for efforts.
const WORDS: EffortWords = EffortWords { max: "max", ..EffortWords::COMMON };

/// Encodes a request. `block_binding` indicates whether the service supports the member of the same name.
pub(super) fn encode(request: &Request, block_binding: bool) -> Result<Encoded, ProviderError> {
    let options = &request.options;
    let cache = options.cache().map(cache_control);
    let names = ToolNames::of(request, NAME_LIMIT, "");
    let mut encoder = Encoder {
        options,
        names: &names,
        traits: &request.traits().messages,
        info: request.model_info.as_deref(),
        cache: cache.as_ref(),
        body: Map::new(),
        warnings: Vec::new(),
    };
    encoder.set("model", &*request.model);
    let thinking = encoder.thinking();
    encoder.show_thinking();
    let kept = encoder.unbind_thinking(block_binding);
    encoder.set("stream", true);
    encoder.system(request.system.as_deref());
    encoder.tools(request);
    encoder.tool_choice(request, thinking.on);
    let marked = encoder.breakpoints();
    encoder.set("messages", content::messages(request, &names, encoder.cache, marked, kept)?);
    encoder.container(&request.history);
    encoder.sampling(thinking.on);
    encoder.stop_sequences();
    encoder.output(thinking.effort);
    encoder.metadata();
    encoder.limits(thinking.budget);
    Ok(Encoded { body: encoder.body, warnings: encoder.warnings })
}

struct Encoder<'a> {
    options: &'a Options,
    names: &'a ToolNames<'a>,
    traits: &'a MessagesTraits,
    info: Option<&'a ModelInfo>,
    cache: Option<&'a Value>,
    body: Map<String, Value>,
    warnings: Vec<String>,
}

/// The thinking settings that were chosen for the request.
#[derive(Default)]
struct Decided {
    /// Whether the request turns thinking on.
    on: bool,
    effort: Option<&'static str>,
    budget: Option<u32>,
}

impl Encoder<'_> {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.body.insert(key.to_owned(), value.into());
    }

    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Sets `thinking`. The output limit may lower its budget later.
    fn thinking(&mut self) -> Decided {
        let MessagesTraits { thinking, off, .. } = *self.traits;
        let mut decided = Decided::default();
        match self.options.thinking() {
            None => {}
            Some(ThinkingMode::Off | ThinkingMode::Budget(0)) => match off {
                _ if thinking == Thinking::None => {}
                ThinkingOff::Disabled => self.set("thinking", json!({"type": "disabled"})),
                ThinkingOff::BetweenTools => self.set("thinking", json!({"type": "between_tools"})),
                ThinkingOff::Never => {
                    decided.effort = Some("low");
                    self.warn("`thinking` is set to effort low: this model cannot turn thinking off");
                }
            },
            Some(_) if thinking == Thinking::None => {
                self.warn("`thinking` is ignored: this model does not think");
            }
            Some(ThinkingMode::Effort(effort)) if thinking == Thinking::Budget => {
                decided.budget = Some(budget_of(effort));
            }
            Some(ThinkingMode::Effort(effort)) => decided.effort = Some(WORDS.word(effort)),
            Some(ThinkingMode::Budget(tokens)) if thinking == Thinking::Adaptive => {
                let effort = WORDS.word(nearest(tokens));
                self.warn(format!(
                    "`thinking` is set to effort {effort}: this model does not support a budget"
                ));
                decided.effort = Some(effort);
            }
            Some(ThinkingMode::Budget(tokens)) => {
                if tokens < MIN_BUDGET {
                    self.warn(format!(
                        "`thinking` is raised to {MIN_BUDGET} tokens, the smallest possible budget"
                    ));
                }
                decided.budget = Some(tokens.max(MIN_BUDGET));
            }
        }
        if let Some(budget) = decided.budget {
            decided.on = true;
            self.set("thinking", json!({"type": "enabled", "budget_tokens": budget}));
        } else if decided.effort.is_some() && self.options.thinking().is_some_and(ThinkingMode::is_on) {
            decided.on = true;
            self.set("thinking", json!({"type": "adaptive"}));
        }
        decided
    }

    /// Asks for the text of the thinking if the request turns thinking on, unless the user decides about the text.
    /// Models that think only adaptively hide the text otherwise. Earlier models show it, and don't know the member.
    fn show_thinking(&mut self) {
        let own = self.own_thinking();
        if self.traits.thinking != Thinking::Adaptive || own.is_some_and(|own| own.get("display").is_some()) {
            return;
        }
        let on = if let Some(kind) = self.thinking_type() {
            kind == "adaptive"
        } else {
            // These models think if a request has no setting. A setting that turns thinking on would conflict with a
            // forced tool use.
            let choice = self.options.tool_choice();
            self.options.thinking().is_none()
                && (self.traits.bound_thinking || self.traits.off == ThinkingOff::Never)
                && !matches!(choice, Some(ToolChoice::Required | ToolChoice::Tool(_)))
        };
        if on {
            let thinking = self.body.entry("thinking").or_insert_with(|| json!({"type": "adaptive"}));
            thinking["display"] = "summarized".into();
        }
    }

    /// Returns the user's `thinking` option, which is merged over that of the body.
    fn own_thinking(&self) -> Option<&Value> {
        self.options.extra().and_then(|extra| extra.get("thinking"))
    }

    /// Returns the type of thinking that the user's `thinking` option or the body requests.
    fn thinking_type(&self) -> Option<&Value> {
        let of_body = || self.body.get("thinking")?.get("type");
        match self.own_thinking() {
            Some(Value::Object(own)) => own.get("type").or_else(of_body),
            Some(own) => Some(own),
            None => of_body(),
        }
    }

    /// If `block_binding` is true, lets the service drop thinking whose preceding content has changed since the
    /// thinking was produced. Without the member `block_binding`, the service rejects this request and every later one.
    /// Changed tools, changed system prompts and repeated steps change the preceding content.
    ///
    /// Returns which thinking can be sent back. If thinking is turned off or set to a mode other than adaptive, the
    /// request can't let the service drop thinking, so less thinking is sent back.
    fn unbind_thinking(&mut self, block_binding: bool) -> Kept {
        if !self.traits.bound_thinking {
            return Kept::All;
        }
        // Models with bound thinking think adaptively by default, so a missing type has the same effect as `adaptive`.
        match self.thinking_type().map(Value::as_str) {
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

    /// Sets `max_tokens`, which the wire format requires, and lowers the thinking budget if necessary. Thinking counts
    /// towards the limit, so the budget has to be below the limit. A lowered budget causes a warning only if the user
    /// has set the limit or the budget. The limit does not belong to the prompt that the service caches, so it may
    /// change with each request:
    /// <https://platform.claude.com/docs/en/build-with-claude/prompt-caching>.
    fn limits(&mut self, budget: Option<u32>) {
        let mut limit = self.options.max_tokens().unwrap_or_else(|| match self.info {
            // Claude models before 3.7 have limits from 4,096 tokens on.
            None if self.traits.thinking == Thinking::None => limits::MIN_TOKENS,
            info => limits::default_limit(info, &self.body, budget),
        });
        if budget.is_some_and(|budget| budget >= limit) {
            let fitting = if limit > MIN_BUDGET {
                // The limit must not be exceeded, so the budget is lowered. The lowered budget leaves a quarter of the
                // limit for the rest of the response.
                let rest = (limit - limit / 4).clamp(MIN_BUDGET, limit - 1);
                // A default limit may shrink with each request, and a changed budget invalidates the cached messages.
                let fixed = self.options.max_tokens().is_some();
                let fitting = if fixed { rest } else { budget_within(rest) };
                if fixed || matches!(self.options.thinking(), Some(ThinkingMode::Budget(_))) {
                    self.warn(format!(
                        "`thinking` is lowered to {fitting} tokens: the budget has to be below max_tokens"
                    ));
                }
                fitting
            } else {
                limit = limit.saturating_add(MIN_BUDGET);
                self.warn(format!(
                    "`max_tokens` is raised to {limit}: it has to be above the smallest thinking budget, \
                     {MIN_BUDGET} tokens"
                ));
                MIN_BUDGET
            };
            self.set("thinking", json!({"type": "enabled", "budget_tokens": fitting}));
        }
        self.body.shift_insert(1, "max_tokens".to_owned(), limit.into());
    }

    /// Names the newest container of the conversation in which the service ran code and that has not expired. The
    /// service rejects the results of the application's tools without the container in which a code execution waits for
    /// them: <https://platform.claude.com/docs/en/agents-and-tools/tool-use/programmatic-tool-calling>.
    fn container(&mut self, history: &History) {
        if self.options.extra().is_some_and(|extra| extra.contains_key("container")) {
            return;
        }
        // The encoding of a request does not depend on a clock. A request is usually sent soon after its newest message
        // was created.
        let newest = history.iter().map(|message| message.timestamp).max().unwrap_or_default();
        let now = newest.after(CONTAINER_MARGIN).rfc_3339();
        let mut containers =
            history.iter().rev().filter_map(|message| message.provider_data.get(NAME)?.get("container"));
        let of = |container: &Value| container.get("id").filter(|_| !has_expired(container, &now)).cloned();
        if let Some(id) = containers.find_map(of) {
            self.set("container", id);
        }
    }

    /// Returns the number of cache breakpoints in the system prompt, the tools and the user's own options.
    fn breakpoints(&self) -> usize {
        let extra = |key: &str| self.options.extra().and_then(|extra| extra.get(key));
        let system = extra("system").or(self.body.get("system"));
        let lists = [system, extra("tools"), self.body.get("tools")].into_iter().flatten();
        let whole = extra("cache_control").is_some_and(|control| !control.is_null());
        usize::from(whole) + lists.map(content::breakpoints).sum::<usize>()
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
        let Some(choice) = self.options.tool_choice() else {
            return;
        };
        let forced = matches!(choice, ToolChoice::Required | ToolChoice::Tool(_));
        if request.tools.is_empty() {
            // The service rejects a tool choice without tools, so none is sent.
            if forced {
                self.warn("`tool_choice` is ignored: the request has no tools");
            }
            return;
        }
        let value = match choice {
            ToolChoice::None => json!({"type": "none"}),
            _ if forced && !self.traits.forced_tools => {
                self.warn("`tool_choice` is set to auto: this model cannot be forced to use a tool");
                json!({"type": "auto"})
            }
            _ if forced && thinking => {
                self.warn("`tool_choice` is set to auto: a model that thinks cannot be forced to use a tool");
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
        if let Some(temperature) = self.options.temperature() {
            // Every model accepts the default value, so the default value causes no warning.
            let is_default = (temperature - 1.0).abs() < f64::EPSILON;
            if taken == Sampling::Fixed {
                if !is_default {
                    self.warn("`temperature` is ignored: this model does not support it");
                }
            } else if thinking && !is_default {
                self.warn("`temperature` is ignored: a model that thinks does not support it");
            } else if !temperature.is_finite() {
                self.warn("`temperature` is ignored: it is not a finite number");
            } else {
                let allowed = if taken == Sampling::Any { temperature } else { temperature.clamp(0.0, 1.0) };
                if allowed.total_cmp(&temperature).is_ne() {
                    self.warn(format!("`temperature` is set to {allowed}: it ranges from 0 to 1"));
                }
                self.set("temperature", allowed);
                set = true;
            }
        }
        if let Some(top_p) = self.options.top_p() {
            if taken == Sampling::Fixed {
                self.warn("`top_p` is ignored: this model does not support it");
            } else if thinking && !(0.95..=1.0).contains(&top_p) {
                self.warn("`top_p` is ignored: a model that thinks supports only values from 0.95 to 1");
            } else if taken == Sampling::One && set {
                self.warn("`top_p` is ignored: this model does not support it together with a temperature");
            } else if !top_p.is_finite() {
                self.warn("`top_p` is ignored: it is not a finite number");
            } else {
                self.set("top_p", top_p);
            }
        }
    }

    fn stop_sequences(&mut self) {
        let all = self.options.stop_sequences().map(Vec::as_slice).unwrap_or_default();
        let taken: Vec<&str> =
            all.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
        if taken.len() < all.len() {
            self.warn("blank entries of `stop_sequences` are ignored: the service rejects them");
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
        if let Some(output) = self.options.output() {
            match schema::output(output.schema.as_value()) {
                Some((schema, closed)) => {
                    if closed {
                        self.warn(
                            "the objects of the `output` schema are closed: the service rejects additionalProperties",
                        );
                    }
                    config.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema}));
                }
                None => self.warn("`output` is ignored: the service cannot express this schema"),
            }
        }
        if !config.is_empty() {
            self.set("output_config", config);
        }
    }

    fn metadata(&mut self) {
        for (key, value) in self.options.metadata().into_iter().flatten() {
            match value {
                Value::String(user) if key == "user_id" => self.set("metadata", json!({"user_id": user})),
                _ if key == "user_id" => self.warn("`metadata` user_id is ignored: it is not a string"),
                _ => self.warn(format!("`metadata` {key} is ignored: the service supports only user_id")),
            }
        }
    }
}

/// Returns whether a container has expired at `now`, to the second. The times are in the format of RFC 3339, so times
/// in UTC are in the order of their texts. A container whose time is missing or not in UTC counts as valid.
fn has_expired(container: &Value, now: &str) -> bool {
    const SECONDS: usize = "2026-01-01T00:00:00".len();
    let expiry = container.get("expires_at").and_then(Value::as_str).unwrap_or_default();
    let is_utc = expiry.ends_with('Z') || expiry.ends_with("+00:00");
    is_utc && expiry.get(..SECONDS) <= now.get(..SECONDS)
}

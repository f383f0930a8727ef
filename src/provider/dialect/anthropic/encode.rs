//! Encoding of requests as JSON bodies. Source of the rules: <https://platform.claude.com/docs/en/api/messages>.

use std::{collections::HashSet, time::Duration};

use serde_json::{Map, Value, json};

use super::{
    NAME, NAME_LIMIT,
    content::{self, KeptThinking, object},
};
use crate::{
    message::History,
    provider::{
        ModelInfo, Options, ProviderError, Request, ThinkingMode, ToolChoice,
        catalogue::{
            AnthropicSampling as Sampling, AnthropicThinking as Thinking, AnthropicThinkingOff,
            AnthropicTraits,
        },
        dialect::{
            EffortWords, Encoded,
            encoding::{self, budget_of, budget_within, cache_control, is_forced, nearest},
            names::ToolNames,
        },
    },
    tool::walk::{describe, includes_type, references},
};

/// The smallest thinking budget that the service accepts.
const MIN_BUDGET: u32 = 1024;

/// The time before its expiry from which a container is not used any more.
const CONTAINER_MARGIN: Duration = Duration::from_mins(1);

/// The wire format's words for efforts.
const WORDS: EffortWords = EffortWords { max: "max", ..EffortWords::COMMON };

/// Keywords that the service rejects. They move to the description, where the model can read them.
const REFUSED: [&str; 15] = [
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "maxItems",
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "minProperties",
    "maxProperties",
    "propertyNames",
];

/// The string formats that the service supports.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"];

/// Encodes a request. `block_binding` indicates whether the service supports the member of the same name.
pub(super) fn encode(request: &Request, block_binding: bool) -> Result<Encoded, ProviderError> {
    let options = &request.options;
    let cache = options.cache().map(cache_control);
    let names = ToolNames::of(request, NAME_LIMIT, "").with_properties();
    let mut encoder = AnthropicEncoder {
        options,
        names: &names,
        traits: &request.traits().messages,
        info: request.model_info.as_deref(),
        cache: cache.as_ref(),
        out: Encoded::default(),
    };
    encoder.out.set("model", &*request.model);
    let thinking =
        encoder.thinking(encoding::is_strict(request) && content::is_open_without_thinking(request));
    encoder.show_thinking();
    let kept = encoder.unbind_thinking(block_binding);
    encoder.out.set("stream", true);
    encoder.system(request.system.as_deref());
    encoder.tools(request);
    encoder.tool_choice(request, thinking.on);
    let marked = encoder.breakpoints();
    let fills =
        encoder.traits.needs_thinking && encoder.thinking_type().is_none_or(|kind| kind != "disabled");
    let messages = content::messages(request, &names, encoder.cache, marked, kept, fills)?;
    encoder.out.set("messages", messages);
    encoder.container(&request.history);
    encoder.sampling(thinking.on);
    encoder.stop_sequences();
    encoder.output(thinking.effort);
    encoder.metadata();
    encoder.limits(thinking.budget);
    Ok(encoder.out)
}

struct AnthropicEncoder<'a> {
    options: &'a Options,
    names: &'a ToolNames<'a>,
    traits: &'a AnthropicTraits,
    info: Option<&'a ModelInfo>,
    cache: Option<&'a Value>,
    out: Encoded,
}

/// The thinking settings that were chosen for the request.
#[derive(Default)]
struct AnthropicThinkingChoice {
    /// Whether the request turns thinking on.
    on: bool,
    effort: Option<&'static str>,
    budget: Option<u32>,
}

impl AnthropicEncoder<'_> {
    /// Sets `thinking`. The output limit may lower its budget later. `is_late` indicates whether the turn in flight began
    /// without thinking, so that no budget is accepted before the next turn.
    fn thinking(&mut self, is_late: bool) -> AnthropicThinkingChoice {
        let AnthropicTraits { thinking, off, .. } = *self.traits;
        let mut decided = AnthropicThinkingChoice::default();
        match self.options.thinking() {
            None => {}
            Some(ThinkingMode::Off | ThinkingMode::Budget(0)) => match off {
                _ if thinking == Thinking::None => {}
                AnthropicThinkingOff::Disabled => self.out.set("thinking", json!({"type": "disabled"})),
                AnthropicThinkingOff::BetweenTools => {
                    self.out.set("thinking", json!({"type": "between_tools"}));
                }
                AnthropicThinkingOff::Never => {
                    decided.effort = Some("low");
                    self.out.warn("`thinking` is set to effort low: this model cannot turn thinking off");
                }
            },
            Some(_) if thinking == Thinking::None => {
                self.out.warn("`thinking` is ignored: this model does not think");
            }
            Some(ThinkingMode::Effort(effort)) if thinking == Thinking::Budget => {
                decided.budget = Some(budget_of(effort));
            }
            Some(ThinkingMode::Effort(effort)) => decided.effort = Some(WORDS.word(effort)),
            Some(ThinkingMode::Budget(tokens)) if thinking == Thinking::Adaptive => {
                let effort = WORDS.word(nearest(tokens));
                self.out.warn(format!(
                    "`thinking` is set to effort {effort}: this model does not support a budget"
                ));
                decided.effort = Some(effort);
            }
            Some(ThinkingMode::Budget(tokens)) => {
                if tokens < MIN_BUDGET {
                    self.out.warn(format!(
                        "`thinking` is raised to {MIN_BUDGET} tokens, the smallest possible budget"
                    ));
                }
                decided.budget = Some(tokens.max(MIN_BUDGET));
            }
        }
        if let Some(budget) = decided.budget {
            if is_late {
                self.out.warn("`thinking` is ignored in this turn: the turn began without thinking");
                return AnthropicThinkingChoice::default();
            }
            decided.on = true;
            self.out.set("thinking", json!({"type": "enabled", "budget_tokens": budget}));
        } else if decided.effort.is_some() && self.options.thinking().is_some_and(ThinkingMode::is_on) {
            decided.on = true;
            self.out.set("thinking", json!({"type": "adaptive"}));
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
            self.options.thinking().is_none()
                && (self.traits.bound_thinking || self.traits.off == AnthropicThinkingOff::Never)
                && !is_forced(self.options.tool_choice())
        };
        if on {
            let thinking = self.out.body.entry("thinking").or_insert_with(|| json!({"type": "adaptive"}));
            thinking["display"] = "summarized".into();
        }
    }

    /// Returns the user's `thinking` option, which is merged over that of the body.
    fn own_thinking(&self) -> Option<&Value> {
        self.options.extra().and_then(|extra| extra.get("thinking"))
    }

    /// Returns the type of thinking that the user's `thinking` option or the body requests.
    fn thinking_type(&self) -> Option<&Value> {
        let of_body = || self.out.body.get("thinking")?.get("type");
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
    fn unbind_thinking(&mut self, block_binding: bool) -> KeptThinking {
        if !self.traits.bound_thinking {
            return KeptThinking::All;
        }
        // Models with bound thinking think adaptively by default, so a missing type has the same effect as `adaptive`.
        match self.thinking_type().map(Value::as_str) {
            None | Some(Some("adaptive")) => {}
            Some(Some("disabled")) => return KeptThinking::None,
            Some(_) => return KeptThinking::Open,
        }
        if block_binding {
            let thinking = self.out.body.entry("thinking").or_insert_with(|| json!({"type": "adaptive"}));
            thinking["block_binding"] = json!({"prefix_mismatch_behavior": "drop_block"});
        }
        KeptThinking::All
    }

    /// Sets `max_tokens`, which the wire format requires, and lowers the thinking budget if necessary. Thinking counts
    /// towards the limit, so the budget has to be below the limit. A lowered budget causes a warning only if the user
    /// has set the limit or the budget. The limit does not belong to the prompt that the service caches, so it may
    /// change with each request:
    /// <https://platform.claude.com/docs/en/build-with-claude/prompt-caching>.
    fn limits(&mut self, budget: Option<u32>) {
        let mut limit = self.options.max_tokens().unwrap_or_else(|| match self.info {
            // Claude models before 3.7 have limits from 4,096 tokens on.
            None if self.traits.thinking == Thinking::None => encoding::MIN_TOKENS,
            info => encoding::default_limit(info, &self.out.body, budget),
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
                    self.out.warn(format!(
                        "`thinking` is lowered to {fitting} tokens: the budget has to be below max_tokens"
                    ));
                }
                fitting
            } else {
                limit = limit.saturating_add(MIN_BUDGET);
                self.out.warn(format!(
                    "`max_tokens` is raised to {limit}: it has to be above the smallest thinking budget, \
                     {MIN_BUDGET} tokens"
                ));
                MIN_BUDGET
            };
            self.out.set("thinking", json!({"type": "enabled", "budget_tokens": fitting}));
        }
        self.out.body.shift_insert(1, "max_tokens".to_owned(), limit.into());
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
            self.out.set("container", id);
        }
    }

    /// Returns the number of cache breakpoints in the system prompt, the tools and the user's own options.
    fn breakpoints(&self) -> usize {
        let extra = |key: &str| self.options.extra().and_then(|extra| extra.get(key));
        let system = extra("system").or(self.out.body.get("system"));
        let lists = [system, extra("tools"), self.out.body.get("tools")].into_iter().flatten();
        let whole = extra("cache_control").is_some_and(|control| !control.is_null());
        usize::from(whole) + lists.map(content::breakpoints).sum::<usize>()
    }

    fn system(&mut self, system: Option<&str>) {
        let Some(system) = system.filter(|system| !system.trim().is_empty()) else {
            return;
        };
        match self.cache {
            Some(cache) => {
                self.out.set("system", json!([{"type": "text", "text": system, "cache_control": cache}]));
            }
            None => self.out.set("system", system),
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
                let schema = self.names.schema(tool.name(), tool.schema());
                value.insert("input_schema".to_owned(), schema);
                value
            })
            .collect();
        if let (Some(last), Some(cache)) = (tools.last_mut(), self.cache) {
            last.insert("cache_control".to_owned(), cache.clone());
        }
        if !tools.is_empty() {
            self.out.set("tools", tools.into_iter().map(Value::Object).collect::<Vec<_>>());
        }
    }

    fn tool_choice(&mut self, request: &Request, thinking: bool) {
        let Some(choice) = self.options.tool_choice() else {
            return;
        };
        if request.tools.is_empty() {
            return encoding::warn_without_tools(Some(choice), &mut self.out);
        }
        let forced = is_forced(Some(choice));
        let value = match choice {
            ToolChoice::None => json!({"type": "none"}),
            _ if forced && !self.traits.forced_tools => {
                self.out.warn("`tool_choice` is set to auto: this model cannot be forced to use a tool");
                json!({"type": "auto"})
            }
            _ if forced && thinking => {
                self.out
                    .warn("`tool_choice` is set to auto: a model that thinks cannot be forced to use a tool");
                json!({"type": "auto"})
            }
            ToolChoice::Auto => json!({"type": "auto"}),
            ToolChoice::Required => json!({"type": "any"}),
            ToolChoice::Tool(name) => {
                json!({"type": "tool", "name": self.names.get(name)})
            }
        };
        self.out.set("tool_choice", value);
    }

    fn sampling(&mut self, thinking: bool) {
        let taken = self.traits.sampling;
        let mut set = false;
        if let Some(temperature) = self.options.temperature() {
            // Every model accepts the default value, so the default value causes no warning.
            let is_default = (temperature - 1.0).abs() < f64::EPSILON;
            if taken == Sampling::Fixed {
                if !is_default {
                    self.out.warn("`temperature` is ignored: this model does not support it");
                }
            } else if thinking && !is_default {
                self.out.warn("`temperature` is ignored: a model that thinks does not support it");
            } else if !temperature.is_finite() {
                self.out.warn("`temperature` is ignored: it is not a finite number");
            } else {
                let allowed = if taken == Sampling::Any { temperature } else { temperature.clamp(0.0, 1.0) };
                if allowed.total_cmp(&temperature).is_ne() {
                    self.out.warn(format!("`temperature` is set to {allowed}: it ranges from 0 to 1"));
                }
                self.out.set("temperature", allowed);
                set = true;
            }
        }
        if let Some(top_p) = self.options.top_p() {
            if taken == Sampling::Fixed {
                self.out.warn("`top_p` is ignored: this model does not support it");
            } else if thinking && !(0.95..=1.0).contains(&top_p) {
                self.out.warn("`top_p` is ignored: a model that thinks supports only values from 0.95 to 1");
            } else if taken == Sampling::One && set {
                self.out
                    .warn("`top_p` is ignored: this model does not support it together with a temperature");
            } else if !top_p.is_finite() {
                self.out.warn("`top_p` is ignored: it is not a finite number");
            } else {
                self.out.set("top_p", top_p);
            }
        }
    }

    fn stop_sequences(&mut self) {
        let all = self.options.stop_sequences().map(Vec::as_slice).unwrap_or_default();
        let taken: Vec<&str> =
            all.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
        if taken.len() < all.len() {
            self.out.warn("blank entries of `stop_sequences` are ignored: the service rejects them");
        }
        if !taken.is_empty() {
            self.out.set("stop_sequences", taken);
        }
    }

    fn output(&mut self, effort: Option<&'static str>) {
        let mut config = Map::new();
        if let Some(effort) = effort {
            config.insert("effort".to_owned(), effort.into());
        }
        if let Some(output) = self.options.output() {
            match output_schema(output.schema.as_value()) {
                Some((schema, closed)) => {
                    if closed {
                        self.out.warn(
                            "the objects of the `output` schema are closed: the service rejects additionalProperties",
                        );
                    }
                    config.insert("format".to_owned(), json!({"type": "json_schema", "schema": schema}));
                }
                None => self.out.warn("`output` is ignored: the service cannot express this schema"),
            }
        }
        if !config.is_empty() {
            self.out.set("output_config", config);
        }
    }

    fn metadata(&mut self) {
        for (key, value) in self.options.metadata().into_iter().flatten() {
            match value {
                Value::String(user) if key == "user_id" => self.out.set("metadata", json!({"user_id": user})),
                _ if key == "user_id" => self.out.warn("`metadata` user_id is ignored: it is not a string"),
                _ => self.out.warn(format!("`metadata` {key} is ignored: the service supports only user_id")),
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

/// Returns the schema in the subset of JSON Schema that the service accepts, in which every object is closed
/// (`additionalProperties: false`), and whether the rewriting closed an open object. A schema that is
/// already in the subset is returned unchanged.
///
/// Returns `None` if the subset cannot express the schema, for example for a recursive schema, for a map (closed, it
/// could only be empty), and for an object with both properties and alternatives (closed, each side would forbid the
/// properties of the other).
///
/// Source: <https://platform.claude.com/docs/en/build-with-claude/structured-outputs>.
pub(super) fn output_schema(schema: &Value) -> Option<(Value, bool)> {
    if is_recursive(schema) {
        return None;
    }
    let mut schema = schema.clone();
    if let Value::Object(map) = &mut schema {
        map.shift_remove("$schema");
    }
    let mut closed = false;
    restrict(&mut schema, &mut closed)?;
    Some((schema, closed))
}

fn restrict(schema: &mut Value, closed: &mut bool) -> Option<()> {
    // A schema that is not a JSON object, such as `true`, accepts any value. The supported subset cannot express such a
    // schema.
    let map = schema.as_object_mut()?;
    if let Some(one_of) = map.shift_remove("oneOf")
        && map.insert("anyOf".to_owned(), one_of).is_some()
    {
        return None;
    }
    let combined = ["anyOf", "allOf", "$ref"].iter().any(|key| map.contains_key(*key));
    if includes_type(map, "object") == Some(true) || map.contains_key("properties") {
        if combined {
            return None;
        }
        match map.insert("additionalProperties".to_owned(), Value::Bool(false)) {
            Some(Value::Bool(false)) => {}
            // The schema is a map, whose keys are arbitrary. A closed object does not allow arbitrary keys.
            Some(Value::Object(_)) => return None,
            None | Some(Value::Bool(true)) if has_none(map.get("properties")) => return None,
            before => *closed |= before.is_some(),
        }
        if map.contains_key("patternProperties") {
            return None;
        }
    } else if !combined && !["type", "enum", "const"].iter().any(|key| map.contains_key(*key)) {
        return None;
    }
    describe_refused(map);
    for (key, value) in map {
        match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(schemas)) => {
                schemas.values_mut().try_for_each(|schema| restrict(schema, closed))?;
            }
            // Each schema in `allOf` would become a closed object and reject the properties of the other schemas.
            ("allOf", Value::Array(schemas)) if schemas.len() > 1 => return None,
            ("anyOf" | "allOf" | "prefixItems", Value::Array(schemas)) => {
                schemas.iter_mut().try_for_each(|schema| restrict(schema, closed))?;
            }
            ("items", schema) => restrict(schema, closed)?,
            _ => {}
        }
    }
    Some(())
}

fn has_none(properties: Option<&Value>) -> bool {
    properties.and_then(Value::as_object).is_none_or(Map::is_empty)
}

/// Returns whether the schema contains a reference that is recursive or that cannot be resolved.
fn is_recursive(root: &Value) -> bool {
    let mut references = AnthropicSchemaRecursionCheck { root, open: Vec::new(), done: HashSet::new() };
    references.lead_back(root)
}

struct AnthropicSchemaRecursionCheck<'a> {
    root: &'a Value,
    /// The references that are being followed.
    open: Vec<&'a str>,
    /// The references that are known not to be recursive.
    done: HashSet<&'a str>,
}

impl<'a> AnthropicSchemaRecursionCheck<'a> {
    fn lead_back(&mut self, schema: &'a Value) -> bool {
        references(schema).into_iter().any(|(_, reference)| self.leads_back(reference))
    }

    fn leads_back(&mut self, reference: &'a str) -> bool {
        if self.done.contains(reference) {
            return false;
        }
        if self.open.contains(&reference) {
            return true;
        }
        let Some(target) = reference.strip_prefix('#').and_then(|place| self.root.pointer(place)) else {
            return true;
        };
        self.open.push(reference);
        let back = self.lead_back(target);
        self.open.pop();
        self.done.insert(reference);
        back
    }
}

/// Moves the keywords that the service rejects to the description.
fn describe_refused(map: &mut Map<String, Value>) {
    let refused: Vec<String> = map
        .iter()
        .filter(|(key, value)| match key.as_str() {
            "format" => !value.as_str().is_some_and(|format| FORMATS.contains(&format)),
            "minItems" => value.as_u64().is_none_or(|items| items > 1),
            key => REFUSED.contains(&key),
        })
        .map(|(key, _)| key.clone())
        .collect();
    if refused.is_empty() {
        return;
    }
    let notes: Vec<String> = refused
        .iter()
        .filter_map(|key| map.shift_remove(key).map(|value| format!("{key}: {value}")))
        .collect();
    describe(map, " ", &format!("({})", notes.join(", ")));
}

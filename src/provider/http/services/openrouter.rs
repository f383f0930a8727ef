//! <https://openrouter.ai/docs/api-reference/overview>,
//! <https://openrouter.ai/docs/features/provider-routing>,
//! <https://openrouter.ai/docs/use-cases/reasoning-tokens>,
//! <https://openrouter.ai/docs/features/prompt-caching>, <https://openrouter.ai/docs/app-attribution>

use serde::Serialize;
use serde_json::{Map, Value};

use super::Endpoint;
use crate::provider::dialect::{
    CacheField, ChatCompletions, EffortWords, Files, ReasoningReturn, ThinkingField,
};

/// How OpenRouter is to be used: who may serve the requests, what stands in for a model that fails, and for
/// which application.
///
/// What it leaves out of the service's options goes through
/// [`Options::extra`](crate::provider::OptionFields::extra), which also overrides it for single requests.
///
/// ```
/// use omni_agent::provider::http::{Endpoint, OpenRouter, RoutingSort};
///
/// let settings = OpenRouter::default()
///     .with_order(["anthropic", "google-vertex"])
///     .with_data_collection(false)
///     .with_sort(RoutingSort::Throughput)
///     .with_fallback_models(["openai/gpt-5.2"])
///     .with_app("https://example.com", "My application");
/// let endpoint = Endpoint::openrouter_with(settings);
/// # let _ = endpoint;
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct OpenRouter {
    #[serde(skip_serializing_if = "Routing::is_empty")]
    provider: Routing,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    models: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    transforms: Option<Vec<String>>,
    #[serde(skip)]
    app: Option<(String, String)>,
}

/// Who may serve a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Routing {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    order: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    only: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignore: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allow_fallbacks: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    require_parameters: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_collection: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zdr: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quantizations: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort: Option<RoutingSort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_price: Option<MaxPrice>,
}

/// In US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct MaxPrice {
    prompt: f64,
    completion: f64,
}

/// What those who serve a model are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoutingSort {
    /// The cheapest first.
    Price,
    /// The most tokens a second first.
    Throughput,
    /// The shortest time to the first token first.
    Latency,
}

impl Routing {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn texts(texts: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    texts.into_iter().map(Into::into).collect()
}

impl OpenRouter {
    /// The same settings, trying these providers first, in this order.
    pub fn with_order(mut self, providers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.provider.order = texts(providers);
        self
    }

    /// The same settings with these providers alone.
    pub fn with_only(mut self, providers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.provider.only = texts(providers);
        self
    }

    /// The same settings without these providers.
    pub fn with_ignored(mut self, providers: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.provider.ignore = texts(providers);
        self
    }

    /// The same settings, letting other providers stand in for those asked for, or not. They do by default.
    pub fn with_fallbacks(mut self, allowed: bool) -> Self {
        self.provider.allow_fallbacks = Some(allowed);
        self
    }

    /// The same settings, with only those providers that know everything in the request, or with all, who
    /// overlook what they don't know. All is the default.
    pub fn with_required_parameters(mut self, required: bool) -> Self {
        self.provider.require_parameters = Some(required);
        self
    }

    /// The same settings, with providers that may keep and use what is sent, or without. With them by
    /// default.
    pub fn with_data_collection(mut self, allowed: bool) -> Self {
        self.provider.data_collection = Some(if allowed { "allow" } else { "deny" });
        self
    }

    /// The same settings, with only those providers that retain nothing, or with all.
    pub fn with_zero_data_retention(mut self, required: bool) -> Self {
        self.provider.zdr = Some(required);
        self
    }

    /// The same settings with models of these quantizations alone, say `fp8`.
    pub fn with_quantizations(mut self, levels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.provider.quantizations = texts(levels);
        self
    }

    /// The same settings with providers in this order, instead of balanced over them.
    pub fn with_sort(mut self, sort: RoutingSort) -> Self {
        self.provider.sort = Some(sort);
        self
    }

    /// The same settings, with only those providers that ask no more than this, in US dollars per million
    /// tokens of the prompt and of the answer.
    pub fn with_max_price(mut self, prompt: f64, completion: f64) -> Self {
        self.provider.max_price = Some(MaxPrice { prompt, completion });
        self
    }

    /// The same settings with models that are tried in this order if the one asked for fails.
    pub fn with_fallback_models(mut self, models: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.models = texts(models);
        self
    }

    /// The same settings with the service's `route`, say `fallback`.
    pub fn with_route(mut self, route: impl Into<String>) -> Self {
        self.route = Some(route.into());
        self
    }

    /// The same settings with these `transforms` of the prompt, say `middle-out`, which shortens what does
    /// not fit; an empty list forbids those that are done by default.
    pub fn with_transforms(mut self, transforms: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.transforms = Some(texts(transforms));
        self
    }

    /// The same settings in the name of an application, which the service shows in its rankings.
    pub fn with_app(mut self, url: impl Into<String>, title: impl Into<String>) -> Self {
        self.app = Some((url.into(), title.into()));
        self
    }

    /// The members of the body.
    fn members(&self) -> Map<String, Value> {
        match serde_json::to_value(self) {
            Ok(Value::Object(members)) => members,
            other => unreachable!("a struct of texts, flags and numbers gave {other:?}"),
        }
    }
}

impl Endpoint {
    /// OpenRouter, with the key from `OPENROUTER_API_KEY`.
    ///
    /// Reasoning goes back as it came (`reasoning_details`). The price that it tells is in the usage. A hint
    /// for the cache marks what models of Anthropic are to keep; other models keep prompts by themselves.
    pub fn openrouter() -> Self {
        Self::openrouter_with(OpenRouter::default())
    }

    /// OpenRouter with these settings, and the key from `OPENROUTER_API_KEY`.
    pub fn openrouter_with(settings: OpenRouter) -> Self {
        let chat = ChatCompletions::default()
            .with_thinking(ThinkingField::Reasoning(EffortWords::OPENAI))
            .with_reasoning(ReasoningReturn::Details)
            .with_files(Files::DataOrUrl)
            .with_model_rules(rules);
        let chat =
            settings.members().into_iter().fold(chat, |chat, (name, value)| chat.with_member(name, value));
        let endpoint = Self::custom("openrouter", "https://openrouter.ai/api", chat)
            .with_key_variable("OPENROUTER_API_KEY");
        match settings.app {
            Some((url, title)) => {
                endpoint.with_plain_header("http-referer", url).with_plain_header("x-title", title)
            }
            None => endpoint,
        }
    }
}

fn rules(model: &str, chat: ChatCompletions) -> ChatCompletions {
    if model.starts_with("anthropic/") { chat.with_cache(CacheField::Breakpoints) } else { chat }
}

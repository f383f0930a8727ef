//! OpenRouter. Sources: <https://openrouter.ai/docs/api-reference/overview>,
//! <https://openrouter.ai/docs/features/provider-routing>, <https://openrouter.ai/docs/use-cases/reasoning-tokens>,
//! <https://openrouter.ai/docs/features/prompt-caching>, <https://openrouter.ai/docs/app-attribution>

use serde::Serialize;
use serde_json::{Map, Value};

use super::Endpoint;
use crate::provider::dialect::{ChatCompletions, EffortWords, Files, ReasoningReturn, ThinkingField};

/// Settings of OpenRouter: the providers that may serve the requests, the models that replace a model that fails, and
/// the application's name.
///
/// Options of the service that have no setting here can be sent with
/// [`Options::extra`](crate::provider::Options::extra), which also overrides these settings for single requests.
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

/// The providers that may serve a request.
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

/// The highest price, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct MaxPrice {
    prompt: f64,
    completion: f64,
}

/// The order of the providers that serve a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoutingSort {
    /// The cheapest provider first.
    Price,
    /// The provider with the most tokens per second first.
    Throughput,
    /// The provider with the shortest time to the first token first.
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
    crate::setters::setters! {
        /// Returns the same settings, where these providers are tried first, in this order.
        pub fn with_order(self, providers: impl IntoIterator<Item = impl Into<String>>) {
            self.provider.order = texts(providers);
        }

        /// Returns the same settings, where only these providers are used.
        pub fn with_only(self, providers: impl IntoIterator<Item = impl Into<String>>) {
            self.provider.only = texts(providers);
        }

        /// Returns the same settings, where these providers are not used.
        pub fn with_ignored(self, providers: impl IntoIterator<Item = impl Into<String>>) {
            self.provider.ignore = texts(providers);
        }

        /// Returns the same settings, and sets whether other providers may replace the requested ones. By default, this
        /// is allowed.
        pub fn with_fallbacks(self, allowed: bool) { self.provider.allow_fallbacks = Some(allowed) }

        /// Returns the same settings, and sets whether a provider must support every parameter of the request. By
        /// default, a provider need not support them and ignores the parameters that it does not know.
        pub fn with_required_parameters(self, required: bool) {
            self.provider.require_parameters = Some(required);
        }

        /// Returns the same settings, and sets whether providers that store and use the prompts are allowed. By
        /// default, they are allowed.
        pub fn with_data_collection(self, allowed: bool) {
            self.provider.data_collection = Some(if allowed { "allow" } else { "deny" });
        }

        /// Returns the same settings, and sets whether providers must retain no data.
        pub fn with_zero_data_retention(self, required: bool) { self.provider.zdr = Some(required) }

        /// Returns the same settings, where only models with these quantizations are used, for example `fp8`.
        pub fn with_quantizations(self, levels: impl IntoIterator<Item = impl Into<String>>) {
            self.provider.quantizations = texts(levels);
        }

        /// Returns the same settings, and sets the order in which providers are tried. By default, requests are
        /// balanced between providers.
        pub fn with_sort(self, sort: RoutingSort) { self.provider.sort = Some(sort) }

        /// Returns the same settings, where only providers are used that charge at most these prices, in US dollars per
        /// million tokens of the prompt and of the response.
        pub fn with_max_price(self, prompt: f64, completion: f64) {
            self.provider.max_price = Some(MaxPrice { prompt, completion });
        }

        /// Returns the same settings, where these models are tried in order if the requested model fails.
        pub fn with_fallback_models(self, models: impl IntoIterator<Item = impl Into<String>>) {
            self.models = texts(models);
        }

        /// Returns the same settings with this `route` of the service, for example `fallback`.
        pub fn with_route(self, route: impl Into<String>) { self.route = Some(route.into()) }

        /// Returns the same settings with these `transforms` of the prompt, for example `middle-out`, which shortens a
        /// prompt that is too long. An empty list disables the default transforms.
        pub fn with_transforms(self, transforms: impl IntoIterator<Item = impl Into<String>>) {
            self.transforms = Some(texts(transforms));
        }

        /// Returns the same settings with the name of an application, which the service shows in its rankings.
        pub fn with_app(self, url: impl Into<String>, title: impl Into<String>) {
            self.app = Some((url.into(), title.into()));
        }
    }

    /// Returns the members that the settings add to the body of a request.
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
    /// Reasoning is sent back unchanged (`reasoning_details`). Models of DeepSeek reject tool calls without it, so that
    /// a call without reasoning is sent to them with an empty list. The usage contains the price that the service
    /// reports. A cache hint marks the parts of a prompt that models of Anthropic should cache; other models cache
    /// prompts without it.
    pub fn openrouter() -> Self {
        Self::openrouter_with(OpenRouter::default())
    }

    /// OpenRouter with these settings, and the key from `OPENROUTER_API_KEY`.
    pub fn openrouter_with(settings: OpenRouter) -> Self {
        let chat = ChatCompletions::default()
            .with_thinking(ThinkingField::Reasoning(EffortWords::OPENAI))
            .with_reasoning(ReasoningReturn::Details)
            .with_files(Files::DataOrUrl)
            .of_service("openrouter");
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

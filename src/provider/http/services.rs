//! The services that this crate knows, with each service's address, how it receives its key, and how it deviates from the
//! wire format.

use std::env;

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Auth, Endpoint};
use crate::{
    provider::dialect::{
        AnthropicMessages, ChatCompletions, EffortWords, Files, GoogleGemini, OllamaChat, OpenAiResponses,
        OutputSupport, ReasoningReturn, ThinkingField, ToolChoices, default_limit,
    },
    setters::setters,
};

impl Endpoint {
    /// Returns the endpoints of all services that this crate knows.
    pub fn all() -> Vec<Self> {
        vec![
            Self::anthropic(),
            Self::openai(),
            Self::openai_responses(),
            Self::google(),
            Self::ollama(),
            Self::ollama_cloud(),
            Self::openrouter(),
            Self::groq(),
            Self::moonshot(),
            Self::zai(),
            Self::alibaba(),
            Self::opencode(),
        ]
    }
}

// Anthropic. Source: <https://platform.claude.com/docs/en/api/overview>
impl Endpoint {
    /// Anthropic, with the key from `ANTHROPIC_API_KEY`.
    pub fn anthropic() -> Self {
        let messages = AnthropicMessages::default().with_block_binding();
        anthropic_format("anthropic", "https://api.anthropic.com", messages)
            .with_key_variable("ANTHROPIC_API_KEY")
    }

    /// A service with the Messages wire format of Anthropic. The model's id determines what the model supports. A model
    /// other than Claude thinks with a token budget. If there is a key, it is sent in `x-api-key`.
    /// [`with_auth`](Self::with_auth) changes that.
    ///
    /// Members that only Anthropic understands are not sent. Thinking of Claude 5.1 and later is sent back unchanged.
    /// It is sent without the member that allows the service to drop thinking that no longer fits its position. If the
    /// service accepts that member too, create the endpoint with [`custom`](Self::custom) and
    /// [`AnthropicMessages::with_block_binding`](crate::provider::custom::AnthropicMessages::with_block_binding).
    pub fn anthropic_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        anthropic_format(name, base_url, AnthropicMessages::default())
    }
}

fn anthropic_format(
    name: impl Into<String>,
    base_url: impl Into<String>,
    messages: AnthropicMessages,
) -> Endpoint {
    Endpoint::custom(name, base_url, messages).with_auth(Auth::Header("x-api-key".to_owned()))
}

const OPENAI_URL: &str = "https://api.openai.com";
const OPENAI_KEY: &str = "OPENAI_API_KEY";

// OpenAI. Source: <https://platform.openai.com/docs/api-reference/introduction>. Sources for models of others:
// <https://docs.mistral.ai/capabilities/reasoning/adjustable>, <https://github.com/MoonshotAI/walle>
impl Endpoint {
    /// OpenAI with the Chat Completions wire format, and the key from `OPENAI_API_KEY`.
    ///
    /// In this wire format, models since GPT-5.4 accept tools only if they do not reason, and some accept no tools at
    /// all. [`openai_responses`](Self::openai_responses) supports both tools and reasoning.
    pub fn openai() -> Self {
        Self::custom("openai", OPENAI_URL, ChatCompletions::openai()).with_key_variable(OPENAI_KEY)
    }

    /// OpenAI with the Responses wire format, and the key from `OPENAI_API_KEY`.
    pub fn openai_responses() -> Self {
        Self::custom("openai_responses", OPENAI_URL, OpenAiResponses::openai()).with_key_variable(OPENAI_KEY)
    }

    /// A service with the Chat Completions wire format in the form that most services support, for example a local
    /// model server. It has the defaults of [`ChatCompletions`]. If there is a key, it is sent as a bearer token.
    ///
    /// Models of Mistral and Moonshot are known by their ids. Their deviations apply without any switch.
    ///
    /// The switches of [`ChatCompletions`] describe how a service deviates and what it can't do. There are switches for
    /// the name of the output limit, the role of the system prompt, the form of requests for thinking and for an output
    /// schema, the return of reasoning, sampling, tool choices, attachments, labels, the cache, stop sequences, and
    /// rules for single models. If a request uses an option that is switched off, the option is replaced by the nearest
    /// supported value, or a warning reports that it is ignored.
    ///
    /// ```
    /// use omni_agent::provider::{
    ///     custom::{ChatCompletions, OutputSupport, ReasoningReturn, ThinkingField},
    ///     http::Endpoint,
    /// };
    ///
    /// let chat = ChatCompletions::default()
    ///     .with_thinking(ThinkingField::Type(None))
    ///     .with_reasoning(ReasoningReturn::ContentWithCalls)
    ///     .with_output(OutputSupport::Object);
    /// let deepseek = Endpoint::custom("deepseek", "https://api.deepseek.com", chat)
    ///     .with_key_variable("DEEPSEEK_API_KEY");
    /// # let _ = deepseek;
    /// ```
    pub fn openai_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, ChatCompletions::default())
    }

    /// A service with the Responses wire format in OpenAI's form, for example a local model server. It has the defaults
    /// of [`OpenAiResponses`]. If there is a key, it is sent as a bearer token. For a service that deviates, pass an
    /// [`OpenAiResponses`] with other switches to [`custom`](Self::custom).
    pub fn openai_responses_compatible(name: impl Into<String>, base_url: impl Into<String>) -> Self {
        Self::custom(name, base_url, OpenAiResponses::default())
    }
}

// Google. Source: <https://ai.google.dev/api>
impl Endpoint {
    /// Google, with the key from `GEMINI_API_KEY`. The key is sent in a header, and never in the URL.
    pub fn google() -> Self {
        Self::custom("google", "https://generativelanguage.googleapis.com", GoogleGemini::default())
            .with_version("/v1beta")
            .with_auth(Auth::Header("x-goog-api-key".to_owned()))
            .with_key_variable("GEMINI_API_KEY")
    }
}

/// The port on which Ollama listens by default.
const OLLAMA_PORT: u16 = 11434;
/// The host of Ollama's own service.
const OLLAMA_CLOUD: &str = "ollama.com";

// Ollama. Sources: <https://docs.ollama.com/api>, <https://docs.ollama.com/cloud>
impl Endpoint {
    /// An Ollama server: the server that `OLLAMA_HOST` names, or the server on this machine if `OLLAMA_HOST` is not
    /// set. Requests have no key, unless the endpoint is given one or `OLLAMA_HOST` names [Ollama's own
    /// service](Self::ollama_at).
    pub fn ollama() -> Self {
        Self::ollama_at(&env::var("OLLAMA_HOST").unwrap_or_default())
    }

    /// An Ollama server at `host`, in the form in which Ollama itself reads `OLLAMA_HOST`: an address with or without
    /// scheme, port and path, each of which has a default. An address that means every interface, such as `0.0.0.0`, is
    /// only useful for listening. It is replaced by the address of this machine. The key from `OLLAMA_API_KEY` is sent
    /// only to Ollama's own service.
    ///
    /// Source: `envconfig.Host` in <https://github.com/ollama/ollama>.
    pub fn ollama_at(host: &str) -> Self {
        let base_url = ollama_url(host);
        let endpoint = |chat| Self::custom("ollama", &*base_url, chat).with_version("/api");
        match base_url.strip_prefix("https://").and_then(|rest| rest.split([':', '/']).next()) {
            Some(OLLAMA_CLOUD) => {
                endpoint(OllamaChat::default().with_levels()).with_key_variable("OLLAMA_API_KEY")
            }
            _ => endpoint(OllamaChat::default()),
        }
    }

    /// Ollama's own service, with the key from `OLLAMA_API_KEY`. It has levels of thinking for every model.
    pub fn ollama_cloud() -> Self {
        Self::ollama_at("https://ollama.com").with_name("ollama-cloud")
    }
}

fn ollama_url(host: &str) -> String {
    let host = host.trim().trim_matches(['"', '\'']);
    let (scheme, rest, port) = match host.split_once("://") {
        Some(("http", rest)) => ("http", rest, 80),
        Some(("https", rest)) => ("https", rest, 443),
        Some((_, rest)) => ("http", rest, OLLAMA_PORT),
        None if host.split(['/', ':']).next() == Some(OLLAMA_CLOUD) => ("https", host, 443),
        None => ("http", host, OLLAMA_PORT),
    };
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    if address.contains('@') {
        // An address with user information is invalid. It is passed on unchanged, so that the first request fails,
        // which is better than a wrong interpretation of the address.
        return format!("{scheme}://{rest}");
    }
    let (name, port) = match address.rsplit_once(':') {
        // The colons of an IPv6 address without brackets don't separate a port.
        Some((name, given)) if !name.contains(':') || name.ends_with(']') => {
            (name, given.parse().unwrap_or(port))
        }
        _ => (address, port),
    };
    let name = match name {
        "" | "0.0.0.0" => "127.0.0.1".to_owned(),
        "[::]" | "::" => "[::1]".to_owned(),
        name if name.contains(':') && !name.starts_with('[') => format!("[{name}]"),
        name => name.to_owned(),
    };
    let path = path.trim_end_matches('/');
    let slash = if path.is_empty() { "" } else { "/" };
    format!("{scheme}://{name}:{port}{slash}{path}")
}

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
    #[serde(skip_serializing_if = "OpenRouterRouting::is_empty")]
    provider: OpenRouterRouting,
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
struct OpenRouterRouting {
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
    max_price: Option<OpenRouterMaxPrice>,
}

/// The highest price, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct OpenRouterMaxPrice {
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

impl OpenRouterRouting {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

fn texts(texts: impl IntoIterator<Item = impl Into<String>>) -> Vec<String> {
    texts.into_iter().map(Into::into).collect()
}

impl OpenRouter {
    setters! {
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
            self.provider.max_price = Some(OpenRouterMaxPrice { prompt, completion });
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

// OpenRouter. Sources: <https://openrouter.ai/docs/api-reference/overview>,
// <https://openrouter.ai/docs/features/provider-routing>, <https://openrouter.ai/docs/use-cases/reasoning-tokens>,
// <https://openrouter.ai/docs/features/prompt-caching>, <https://openrouter.ai/docs/app-attribution>
impl Endpoint {
    /// OpenRouter, with the key from `OPENROUTER_API_KEY`.
    ///
    /// Reasoning is sent back unchanged (`reasoning_details`). Models of DeepSeek reject answers without it if there are
    /// tools, so that an answer without reasoning is sent to them with an empty list. The usage contains the price that
    /// the service reports. A cache hint marks the parts of a prompt that models of Anthropic should cache; other models
    /// cache prompts without it.
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

// Groq. Sources: <https://console.groq.com/docs/openai>, <https://console.groq.com/docs/reasoning>,
// <https://console.groq.com/docs/structured-outputs>
impl Endpoint {
    /// Groq, with the key from `GROQ_API_KEY`.
    ///
    /// Groq accepts no `response_format` for streamed responses, and this crate streams all responses. Therefore, an
    /// output schema is sent as the input schema of a tool. Groq's compound systems accept no tools, so for them the
    /// schema is only in the system prompt.
    pub fn groq() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field("max_completion_tokens")
            .with_output(OutputSupport::Tool)
            .with_files(Files::Images)
            .without_metadata()
            .of_service("groq");
        Self::custom("groq", "https://api.groq.com/openai", chat).with_key_variable("GROQ_API_KEY")
    }
}

const MOONSHOT_LIMIT: &str = "max_completion_tokens";

// Moonshot. Sources: <https://platform.kimi.ai/docs/api/chat>, <https://platform.kimi.ai/docs/api/models-overview>,
// <https://platform.kimi.ai/docs/guide/use-kimi-k2-thinking-model>,
// <https://platform.kimi.ai/docs/guide/use-thinking-effort>
impl Endpoint {
    /// Moonshot, with the key from `MOONSHOT_API_KEY`.
    ///
    /// Models that think reject a conversation that lacks their earlier reasoning. Therefore, the reasoning is sent
    /// back. While Kimi K2.6 thinks, it is asked to use the reasoning of earlier turns (`keep: "all"`), which later
    /// models always do.
    ///
    /// The input schemas of tools are rewritten to the subset of JSON Schema that the service accepts. See
    /// [`with_moonshot_schemas`](crate::provider::custom::ChatCompletions::with_moonshot_schemas).
    ///
    /// If a request sets no output limit, the service's own limit may be as small as 1,024 tokens, and thinking counts
    /// towards it. Therefore, a request to a model that thinks, according to the catalogue, gets a limit as with
    /// [`AnthropicMessages`](crate::provider::custom::AnthropicMessages).
    pub fn moonshot() -> Self {
        let chat = ChatCompletions::default()
            .with_max_tokens_field(MOONSHOT_LIMIT)
            .with_output(OutputSupport::Object)
            .with_tool_choices(ToolChoices::Unforced)
            .with_files(Files::ImageData)
            .without_metadata()
            .with_moonshot_schemas()
            .of_service("moonshot");
        Self::custom("moonshot", "https://api.moonshot.ai", chat)
            .with_key_variable("MOONSHOT_API_KEY")
            .with_body_hook(|body, request| {
                let info = request.model_info.as_deref().filter(|info| info.thinking == Some(true));
                let own = |key| request.options.extra().is_some_and(|extra| extra.contains_key(key));
                if info.is_some()
                    && !body.contains_key(MOONSHOT_LIMIT)
                    && !own(MOONSHOT_LIMIT)
                    && !own("max_tokens")
                {
                    body.insert(MOONSHOT_LIMIT.to_owned(), default_limit(info, body, None).into());
                }
                Ok(())
            })
    }
}

// Z.ai. Sources: <https://docs.z.ai/api-reference/llm/chat-completion>,
// <https://docs.z.ai/guides/capabilities/thinking-mode>
impl Endpoint {
    /// Z.ai, with the key from `ZAI_API_KEY`.
    ///
    /// Models that think expect their earlier reasoning in a loop of tool calls, so the reasoning is sent back. If the
    /// model supports it, reasoning of earlier turns is kept too (`clear_thinking: false`), and the arguments of tool
    /// calls are requested as a stream (`tool_stream`), because the service would otherwise send nothing for a long
    /// time.
    pub fn zai() -> Self {
        let chat = ChatCompletions::default()
            .with_output(OutputSupport::Object)
            .with_reasoning(ReasoningReturn::Content)
            .with_tool_choices(ToolChoices::Auto)
            .with_files(Files::FileUrl)
            .without_metadata()
            .with_max_stop_sequences(1)
            .of_service("zai");
        Self::custom("zai", "https://api.z.ai/api/paas", chat)
            .with_version("/v4")
            .with_key_variable("ZAI_API_KEY")
    }
}

/// A region of Alibaba Cloud's Model Studio. Keys and models differ between regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AlibabaRegion {
    /// Singapore.
    #[default]
    International,
    /// Virginia.
    UnitedStates,
    /// Beijing.
    China,
    /// Hong Kong.
    HongKong,
}

impl AlibabaRegion {
    const fn base_url(self) -> &'static str {
        match self {
            Self::International => "https://dashscope-intl.aliyuncs.com/compatible-mode",
            Self::UnitedStates => "https://dashscope-us.aliyuncs.com/compatible-mode",
            Self::China => "https://dashscope.aliyuncs.com/compatible-mode",
            Self::HongKong => "https://cn-hongkong.dashscope.aliyuncs.com/compatible-mode",
        }
    }
}

// Alibaba. Sources: <https://www.alibabacloud.com/help/en/model-studio/compatibility-of-openai-with-dashscope>,
// <https://www.alibabacloud.com/help/en/model-studio/deep-thinking>,
// <https://www.alibabacloud.com/help/en/model-studio/qwen-structured-output>,
// <https://docs.qwencloud.com/developer-guides/text-generation/thinking>
impl Endpoint {
    /// Alibaba's international region, with the key from `DASHSCOPE_API_KEY`.
    ///
    /// Models that can use the reasoning of earlier turns are asked to do so (`preserve_thinking`), and the reasoning
    /// is sent back to them.
    ///
    /// Only some models accept a `json_schema`. Therefore, an output schema is requested as a JSON object, and the
    /// schema is added to the system prompt. The service can't combine this with thinking. If the model thinks, the
    /// schema is sent as the input schema of a tool instead, but the use of this tool can't be forced. For models
    /// without tools, the schema is only in the system prompt.
    pub fn alibaba() -> Self {
        Self::alibaba_in(AlibabaRegion::default())
    }

    /// Alibaba in one of its regions, with the key from `DASHSCOPE_API_KEY`.
    pub fn alibaba_in(region: AlibabaRegion) -> Self {
        let chat = ChatCompletions::default()
            .with_output(OutputSupport::Object)
            .with_files(Files::Images)
            .without_metadata()
            .of_service("alibaba");
        Self::custom("alibaba", region.base_url(), chat).with_key_variable("DASHSCOPE_API_KEY")
    }
}

// OpenCode Zen. Source: <https://opencode.ai/docs/zen>
impl Endpoint {
    /// OpenCode Zen, with the key from `OPENCODE_API_KEY`.
    ///
    /// The wire format depends on the model: Messages for `claude-…` and `qwen3.…`, Responses for `gpt-…`, `grok-4…`,
    /// `grok-build…` and `muse-…`, Gemini for `gemini-…`, and Chat Completions for all other models. The key is sent in
    /// the header that the wire format requires.
    pub fn opencode() -> Self {
        let chat =
            ChatCompletions::default().with_files(Files::Images).without_metadata().of_service("opencode");
        Self::custom("opencode", "https://opencode.ai/zen", chat)
            .with_key_variable("OPENCODE_API_KEY")
            .with_dialect_for(
                |model| model.starts_with("claude-") || model.starts_with("qwen3."),
                AnthropicMessages::default().with_block_binding(),
                Auth::Header("x-api-key".to_owned()),
            )
            .with_dialect_for(|model| model.starts_with("gpt-"), OpenAiResponses::openai(), Auth::Bearer)
            .with_dialect_for(
                |model| ["grok-4", "grok-build", "muse-"].iter().any(|start| model.starts_with(start)),
                OpenAiResponses::default().without_metadata(),
                Auth::Bearer,
            )
            .with_dialect_for(
                |model| model.starts_with("gemini-"),
                GoogleGemini::default(),
                Auth::Header("x-goog-api-key".to_owned()),
            )
    }
}

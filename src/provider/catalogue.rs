mod info;
mod models_dev;
mod traits;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, LazyLock},
};

pub use info::{Modality, ModelInfo, Price, Rates};
pub use models_dev::CatalogueError;
pub(in crate::provider) use traits::{
    AnthropicSampling, AnthropicThinking, AnthropicThinkingOff, AnthropicTraits, ChatToolSupport,
    GeminiThinking, GeminiTraits, ModelFamilyRules, ModelTraits, OpenAiTraits, find,
};

/// Facts about models: context window, limits, modalities, price, and how options are encoded for each model.
///
/// The built-in catalogue contains the main models of the services that this crate supports. Its figures are from
/// <https://models.dev>, as of October 2026. Figures that could not be verified at that time are missing. Prices
/// change: extend the catalogue with a current `api.json` from that site, or with custom entries. Models without an
/// entry work too.
///
/// ```
/// use omni_agent::provider::{Catalogue, ModelInfo, Registry};
///
/// let mut catalogue = Catalogue::clone(Catalogue::built_in());
/// let json = r#"{"anthropic": {"models": {"claude-next": {"limit": {"context": 2000000}}}}}"#;
/// let (current, _skipped) = Catalogue::from_models_dev(json)?;
/// catalogue.merge(current);
/// catalogue.insert("house", ModelInfo::new("small").with_context_window(8_000));
///
/// let registry = Registry::default().with_catalogue(catalogue);
/// # #[cfg(feature = "http")] {
/// let info = registry.model("anthropic:claude-next")?.info().cloned();
/// assert_eq!(info.and_then(|info| info.context_window), Some(2_000_000));
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # How models take options
///
/// Models of one service differ in how thinking is requested, and in what else they support. These facts are part of
/// the catalogue too. Rules in the built-in file yield the facts for each id, whether the model is known or not. The
/// member `traits` of an entry replaces single facts. It contains one object per wire format. For facts that it does
/// not contain, the rules for the entry's id apply.
///
/// ```
/// use omni_agent::provider::{Catalogue, Effort, Options, Request};
/// use omni_agent::provider::custom::{AnthropicMessages, Dialect};
///
/// let json = r#"{"house": {"models": {
///     "thinker-2": {"traits": {"messages": {"thinking": "adaptive", "sampling": "fixed"}}}
/// }}}"#;
/// let (catalogue, _skipped) = Catalogue::from_models_dev(json)?;
/// let info = catalogue.find("house", "thinker-2").expect("the entry is valid");
///
/// // `Model::with_info` sets the facts for all requests of a model.
/// let request = Request::prompt("Hi").with_options(Options::default().with_thinking(Effort::High));
/// let body = AnthropicMessages::default().encode(&request.with_model_info(info))?.body;
/// assert_eq!(body["thinking"]["type"], "adaptive");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// | object | member | values |
/// | --- | --- | --- |
/// | `messages` (Anthropic Messages) | `thinking` | `"none"`, `"budget"`, `"budget_or_effort"`, `"adaptive"` |
/// | | `off`: how thinking is turned off | `"disabled"`, `"between_tools"`, `"never"` |
/// | | `sampling` | `"any"`, `"both"` (from 0 to 1), `"one"` parameter at a time, `"fixed"` |
/// | | `forced_tools`, `structured_output` | `true` or `false` |
/// | | `bound_thinking`: thinking is only valid after the content that preceded it | `true` or `false` |
/// | | `needs_thinking`: earlier answers without thinking are rejected, so they are sent with a blank one | `true` or `false` |
/// | `openai` (Chat Completions, Responses) | `efforts`, sorted | of `"minimal"`, `"low"`, `"medium"`, `"high"`, `"max"`; `[]` if the model does not reason |
/// | | `off`: reasoning can be turned off | `true` or `false` |
/// | | `max_in_responses`: Responses has an effort above `xhigh` | `true` or `false` |
/// | | `sampling` | `"always"`, `"unless_reasoning"`, `"if_off"`, `"never"` |
/// | | `stop`: stop sequences are supported | `true` or `false` |
/// | | `chat_tools`: tools in Chat Completions | `"always"`, `"without_effort"`, `"if_off"`, `"never"` |
/// | | `long_cache` | `true` or `false` |
/// | `gemini` | `thinking` | `"none"`, `{"levels": ["low", "high"]}`, `{"budget": {"min": 1, "max": 24576, "off": true}}` |
/// | | `signed_calls`, `schema_beside_tools`, `sampling` | `true` or `false` |
/// | `ollama` | `levels`: thinking has levels | `true` or `false` |
#[derive(Clone, Default)]
pub struct Catalogue {
    providers: BTreeMap<String, BTreeMap<String, Arc<ModelInfo>>>,
}

/// The built-in data, in the format of models.dev's `api.json`. It was made from the files of
/// <https://github.com/anomalyco/models.dev> in October 2026. Some rows were added later, from packages that contain
/// data of models.dev:
///
/// - `claude-opus-5-5`, `claude-fable-5-1`, `gpt-6-sol`, `gpt-6-luna`, `gpt-6.1-sol` and `glm-5.3-flash` are from the
///   npm package `opencode-linux-x64` 1.18.34. The Python package `model-prices` 0.0.5, which contains the prices of
///   models.dev of 23 October 2026, has the same prices.
/// - The price of `claude-haiku-5-5` is from the same `model-prices`. Its limits are from the npm package
///   `@earendil-works/pi-ai` 1.6.0. So are the limits of `claude-fable-5-2`, which has no price in the other packages.
pub(in crate::provider) const BUILT_IN: &str = include_str!("catalogue/models.json");

impl Catalogue {
    /// Creates a catalogue without models.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Returns the catalogue of this crate. The catalogue is parsed at the first call.
    pub fn built_in() -> &'static Arc<Self> {
        static CATALOGUE: LazyLock<Arc<Catalogue>> = LazyLock::new(|| {
            let (catalogue, _) = models_dev::read(BUILT_IN).expect("a test reads the built-in catalogue");
            Arc::new(catalogue)
        });
        &CATALOGUE
    }

    /// Reads the text of a file in the shape of <https://models.dev/api.json>. Providers that have a different name in
    /// the file are renamed to the names that this crate uses. If a member is missing, the fact counts as unknown.
    /// Members that this crate does not know are ignored. Invalid entries are returned as errors, next to the
    /// catalogue.
    ///
    /// # Errors
    ///
    /// Fails if the text is not JSON or does not have the expected structure.
    pub fn from_models_dev(json: &str) -> Result<(Self, Vec<CatalogueError>), CatalogueError> {
        models_dev::read(json)
    }

    /// Adds a model of a provider. If there is an entry with the same id, replaces and returns this entry.
    pub fn insert(&mut self, provider: &str, info: ModelInfo) -> Option<Arc<ModelInfo>> {
        let models = self.providers.entry(listed_as(provider).to_owned()).or_default();
        models.insert(info.id.clone(), Arc::new(info))
    }

    /// Adds all models of `other`. They replace existing entries with the same ids.
    pub fn merge(&mut self, other: Self) {
        for (provider, models) in other.providers {
            self.providers.entry(provider).or_default().extend(models);
        }
    }

    /// Returns the entry of the provider's model with exactly this id.
    pub fn get(&self, provider: &str, id: &str) -> Option<&Arc<ModelInfo>> {
        self.providers.get(listed_as(provider))?.get(id)
    }

    /// Returns the facts about a model. `id` can be any id that a service accepts for the model.
    ///
    /// If the id has no entry, related ids are tried. A dated build (`-2025-08-07`, `-20250929`, `-latest`) gets the
    /// facts of the model without the date. A reseller's variant (`:free`, `:nitro`) gets the facts of the model
    /// without the suffix. The price is an exception: it is zero for `:free` and unknown for other variants.
    /// `vendor/model` gets the facts of the vendor's model, with an unknown price.
    pub fn find(&self, provider: &str, id: &str) -> Option<Arc<ModelInfo>> {
        if let Some(info) = self.build(provider, id) {
            return Some(Arc::clone(info));
        }
        if let Some((model, variant)) = variant(provider, id) {
            let price = (variant == "free").then(|| Price::new(0.0, 0.0));
            return Some(Arc::new(ModelInfo { price, ..(*self.find(provider, model)?).clone() }));
        }
        let (vendor, model) = vendor(id)?;
        Some(Arc::new(ModelInfo { price: None, ..(**self.build(vendor, &model)?).clone() }))
    }

    /// Returns the model with this id. If there is none, but the id names a build of a model, returns that model.
    fn build(&self, provider: &str, id: &str) -> Option<&Arc<ModelInfo>> {
        self.get(provider, id).or_else(|| self.get(provider, base(id)?))
    }

    /// Returns all models with their providers' names, sorted by provider and id.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<ModelInfo>)> {
        let models = self.providers.iter().map(|(provider, models)| (provider.as_str(), models.values()));
        models.flat_map(|(provider, models)| models.map(move |info| (provider, info)))
    }

    /// Returns the models of one provider, sorted by id.
    pub fn models_of(&self, provider: &str) -> impl Iterator<Item = &Arc<ModelInfo>> {
        self.providers.get(listed_as(provider)).into_iter().flat_map(BTreeMap::values)
    }

    /// Returns the number of models.
    pub fn len(&self) -> usize {
        self.providers.values().map(BTreeMap::len).sum()
    }

    /// Returns whether the catalogue has no models.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.providers.iter().map(|(name, models)| (name, models.keys()))).finish()
    }
}

/// Returns the name under which the catalogue lists the models of this provider.
fn listed_as(provider: &str) -> &str {
    match provider {
        "openai_responses" => "openai",
        other => other,
    }
}

/// Returns the name that this crate uses for a provider of models.dev.
pub(super) fn from_models_dev(provider: &str) -> &str {
    match provider {
        "moonshotai" => "moonshot",
        other => other,
    }
}

/// Splits an id such as `deepseek/deepseek-r1:free` at its last colon, if it has one. The suffix names a way of serving
/// the model. At Ollama, the suffix is the model's size, so the id is not split.
///
/// Source: <https://openrouter.ai/docs/guides/routing/model-variants>.
fn variant<'a>(provider: &str, id: &'a str) -> Option<(&'a str, &'a str)> {
    if provider.starts_with("ollama") { None } else { id.rsplit_once(':') }
}

/// Returns the id without the suffix of a build (`-2025-08-07`, `-20250929`, `@20250929`, `-latest`) and without the
/// prefix `models/`, which ids in Gemini's lists have. Returns `None` if the id has neither.
fn base(id: &str) -> Option<&str> {
    let name = id.strip_prefix("models/").unwrap_or(id);
    let name = name.strip_suffix("-latest").unwrap_or_else(|| undated(name));
    (name != id && !name.is_empty()).then_some(name)
}

fn undated(name: &str) -> &str {
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    if let Some((head, date)) = name.rsplit_once(['-', '@'])
        && digits(date, 8)
    {
        return head;
    }
    let mut parts = name.rsplitn(4, '-');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(day), Some(month), Some(year), Some(head))
            if digits(day, 2) && digits(month, 2) && digits(year, 4) =>
        {
            head
        }
        _ => name,
    }
}

/// Returns the provider and the model's id to which a reseller's id refers, or `None` if the vendor in the id is
/// unknown. For example, `anthropic/claude-opus-4.8` refers to `claude-opus-4-8` of `anthropic`.
fn vendor(id: &str) -> Option<(&str, String)> {
    let (vendor, name) = id.split_once('/')?;
    match vendor {
        "anthropic" => Some((vendor, name.replace('.', "-"))),
        "openai" | "google" => Some((vendor, name.to_owned())),
        "moonshotai" => Some(("moonshot", name.to_owned())),
        "z-ai" => Some(("zai", name.to_owned())),
        "qwen" => Some(("alibaba", name.to_owned())),
        _ => None,
    }
}

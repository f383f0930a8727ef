use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use super::ModelTraits;
use crate::{message::Usage, provider::CacheHint, setters::setters};

/// Facts about a model. A fact that is `None` is unknown, and restricts nothing.
///
/// ```
/// use omni_agent::provider::{Modality, ModelInfo, Price};
///
/// let info = ModelInfo::new("house-model")
///     .with_context_window(32_000)
///     .with_input([Modality::Text, Modality::Image])
///     .with_price(Price::new(0.5, 1.5));
/// assert!(!info.input.is_some_and(|input| input.contains(&Modality::Audio)));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ModelInfo {
    /// The model's id at the service.
    pub id: String,
    /// The model's display name.
    pub name: Option<String>,
    /// The maximum number of tokens of a prompt and its response together.
    pub context_window: Option<u64>,
    /// The maximum number of tokens of a prompt, if it is less than the context window.
    pub input_limit: Option<u64>,
    /// The maximum number of tokens of a response, including reasoning.
    pub output_limit: Option<u64>,
    /// The kinds of content that the model accepts.
    pub input: Option<BTreeSet<Modality>>,
    /// The kinds of content that the model generates.
    pub output: Option<BTreeSet<Modality>>,
    /// Whether the model can reason before it responds.
    pub thinking: Option<bool>,
    /// Whether the model can use tools.
    pub tools: Option<bool>,
    /// Whether the service can enforce a schema for the model's responses.
    pub structured_output: Option<bool>,
    /// The price of the model's tokens.
    pub price: Option<Price>,
    /// The month or day on which the model's training data ends, such as `2026-05` or `2026-05-31`.
    pub knowledge_cutoff: Option<String>,
    /// The month or day of the model's release, such as `2026-05` or `2026-05-31`.
    pub release_date: Option<String>,
    /// How options are encoded for the model, if the entry differs from the rules for the model's id.
    pub(in crate::provider) traits: Option<Arc<ModelTraits>>,
}

impl ModelInfo {
    /// Creates an entry without any facts.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    setters! {
        /// Sets the size of the context window in tokens.
        pub fn with_context_window(self, tokens: u64) { self.context_window = Some(tokens) }

        /// Sets the maximum number of tokens of a response.
        pub fn with_output_limit(self, tokens: u64) { self.output_limit = Some(tokens) }

        /// Sets the accepted kinds of content.
        pub fn with_input(self, modalities: impl IntoIterator<Item = Modality>) {
            self.input = Some(modalities.into_iter().collect());
        }
    }

    /// Returns whether the model accepts a file of this media type. Returns `true` if the accepted types are unknown,
    /// as for many models. Also returns `true` for text and for every other type that has no [`Modality`], because the
    /// wire format decides about these types. A model that accepts images counts as accepting PDFs too, because its
    /// service shows the pages as images.
    pub fn takes(&self, media_type: &str) -> bool {
        let (Some(input), Some(modality)) = (&self.input, Modality::of(media_type)) else {
            return true;
        };
        input.contains(&modality) || modality == Modality::Pdf && input.contains(&Modality::Image)
    }
}

setters!(ModelInfo:
    with_name(name: some String),
    with_thinking(thinking: some bool),
    with_tools(tools: some bool),
    with_structured_output(structured_output: some bool),
    with_price(price: some Price),
);

/// A kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the names say it")]
pub enum Modality {
    Text,
    Image,
    Pdf,
    Audio,
    Video,
}

impl Modality {
    const ALL: [Self; 5] = [Self::Text, Self::Image, Self::Pdf, Self::Audio, Self::Video];

    /// Returns the kind's name in a models.dev file, in lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Image => "image",
            Self::Pdf => "pdf",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }

    /// Returns the kind of content with this name.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|modality| modality.as_str() == word)
    }

    /// Returns the kind that a model must accept for a file of this media type. Returns `None` for text and for all
    /// types that are not images, PDFs, audio or video.
    pub fn of(media_type: &str) -> Option<Self> {
        let full = media_type.trim().to_ascii_lowercase();
        let essence = full.split(';').next().unwrap_or_default().trim();
        match essence.split('/').next().unwrap_or_default() {
            "image" => Some(Self::Image),
            "audio" => Some(Self::Audio),
            "video" => Some(Self::Video),
            _ if essence == "application/pdf" => Some(Self::Pdf),
            _ => None,
        }
    }
}

impl fmt::Display for Modality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The price of a model's tokens: the standard rates, and other rates for long prompts.
///
/// The price covers only tokens. Searches, cache storage, separate audio rates, faster service and discounts are not
/// included.
///
/// ```
/// use omni_agent::{message::Usage, provider::Price};
///
/// let price = Price::new(3.0, 15.0);
/// let usage = Usage::default().with_input(1_000_000).with_output(100_000);
/// assert_eq!(price.cost(&usage, None), Some(4.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Price {
    /// The rates for prompts that are too short for every tier.
    pub rates: Rates,
    /// The rates for longer prompts. Each key is the number of tokens that a prompt must exceed. The rates of a tier
    /// apply to the whole request, including its response.
    pub tiers: BTreeMap<u64, Rates>,
}

/// The rates of a model's tokens, in US dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Rates {
    /// The rate of prompt tokens that are neither read from nor written to a cache.
    pub input: f64,
    /// The rate of response tokens.
    pub output: f64,
    /// The rate of prompt tokens read from a cache. If unset, the input rate applies.
    pub cache_read: Option<f64>,
    /// The rate of prompt tokens written to a cache. If unset, the input rate applies.
    pub cache_write: Option<f64>,
    /// The rate of prompt tokens written to a cache that is kept for an hour or longer. If unset, the rate of other
    /// cache writes applies.
    pub cache_write_long: Option<f64>,
    /// The rate of response tokens used for reasoning. If unset, the output rate applies.
    pub reasoning: Option<f64>,
}

impl Price {
    /// Creates a price from two rates in US dollars per million tokens.
    pub fn new(input: f64, output: f64) -> Self {
        Self { rates: Rates { input, output, ..Rates::default() }, tiers: BTreeMap::new() }
    }

    /// Sets the rates of tokens read from and written to a cache.
    pub fn with_cache(mut self, read: f64, write: f64) -> Self {
        (self.rates.cache_read, self.rates.cache_write) = (Some(read), Some(write));
        self
    }

    /// Sets the rates for prompts of more than `tokens` tokens.
    pub fn with_tier(mut self, tokens: u64, rates: Rates) -> Self {
        self.tiers.insert(tokens, rates);
        self
    }

    /// Returns the rates for a prompt with this number of tokens.
    pub fn rates_for(&self, prompt: u64) -> &Rates {
        self.tiers.range(..prompt).next_back().map_or(&self.rates, |(_, rates)| rates)
    }

    /// Returns the cost of one request in US dollars, computed from its usage and its cache hint.
    ///
    /// Returns `None` if a rate that applies or the sum is not a finite number.
    pub fn cost(&self, usage: &Usage, cache: Option<CacheHint>) -> Option<f64> {
        self.cost_of(usage, if cache == Some(CacheHint::Long) { usage.cache_write } else { 0 })
    }

    /// Returns the cost of one request in US dollars, as [`cost`](Self::cost) does. `long` of the tokens that were
    /// written to a cache are kept for an hour or longer.
    pub(in crate::provider) fn cost_of(&self, usage: &Usage, long: u64) -> Option<f64> {
        let rates = self.rates_for(usage.prompt());
        let write = rates.cache_write.unwrap_or(rates.input);
        let long = long.min(usage.cache_write);
        let reasoning = usage.reasoning.min(usage.output);
        let parts = [
            (usage.input, rates.input),
            (usage.cache_read, rates.cache_read.unwrap_or(rates.input)),
            (usage.cache_write - long, write),
            (long, rates.cache_write_long.unwrap_or(write)),
            (usage.output - reasoning, rates.output),
            (reasoning, rates.reasoning.unwrap_or(rates.output)),
        ];
        #[expect(clippy::cast_precision_loss, reason = "nobody uses 2^53 tokens")]
        let dollars: f64 = parts.iter().map(|(tokens, rate)| *tokens as f64 * rate).sum();
        Some(dollars / 1_000_000.0).filter(|dollars| dollars.is_finite())
    }
}

impl Rates {
    /// Creates rates from an input rate and an output rate, in US dollars per million tokens.
    pub fn new(input: f64, output: f64) -> Self {
        Self { input, output, ..Self::default() }
    }
}

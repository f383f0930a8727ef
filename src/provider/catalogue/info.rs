use std::{collections::BTreeSet, fmt};

use super::Price;

/// What is known of a model. What is `None` is unknown, and nothing follows from it.
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
    /// The id at the service.
    pub id: String,
    /// The name to show.
    pub name: Option<String>,
    /// Tokens that a prompt and its answer may have together.
    pub context_window: Option<u64>,
    /// Tokens that a prompt may have, where that is less than the window.
    pub input_limit: Option<u64>,
    /// Tokens that an answer may have, reasoning included.
    pub output_limit: Option<u64>,
    /// What it takes.
    pub input: Option<BTreeSet<Modality>>,
    /// What it gives.
    pub output: Option<BTreeSet<Modality>>,
    /// Whether it can reason before it answers.
    pub thinking: Option<bool>,
    /// Whether it can use tools.
    pub tools: Option<bool>,
    /// Whether the service can hold its answers to a schema.
    pub structured_output: Option<bool>,
    /// What its tokens cost.
    pub price: Option<Price>,
    /// The month or day up to which its training data reaches, `2026-05` or `2026-05-31`.
    pub knowledge_cutoff: Option<String>,
    /// The month or day on which it came out, `2026-05` or `2026-05-31`.
    pub release_date: Option<String>,
}

impl ModelInfo {
    /// A model of which nothing is known.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), ..Self::default() }
    }

    /// The same model with a name to show.
    pub fn with_name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The same model with a context window of so many tokens.
    pub fn with_context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// The same model with answers of at most so many tokens.
    pub fn with_output_limit(mut self, tokens: u64) -> Self {
        self.output_limit = Some(tokens);
        self
    }

    /// The same model, which takes these alone.
    pub fn with_input(mut self, modalities: impl IntoIterator<Item = Modality>) -> Self {
        self.input = Some(modalities.into_iter().collect());
        self
    }

    /// The same model, which can or can't reason.
    pub fn with_thinking(mut self, can: bool) -> Self {
        self.thinking = Some(can);
        self
    }

    /// The same model, which can or can't use tools.
    pub fn with_tools(mut self, can: bool) -> Self {
        self.tools = Some(can);
        self
    }

    /// The same model, whose answers the service can or can't hold to a schema.
    pub fn with_structured_output(mut self, can: bool) -> Self {
        self.structured_output = Some(can);
        self
    }

    /// The same model at a price.
    pub fn with_price(mut self, price: Price) -> Self {
        self.price = Some(price);
        self
    }

    /// Whether the model takes a file of this media type, as far as that is known: what it takes is unknown
    /// of many models, and text in all its types is the format's to judge. Services that show images to a
    /// model show it the pages of a PDF, so whoever takes images takes those.
    pub fn takes(&self, media_type: &str) -> bool {
        let (Some(input), Some(modality)) = (&self.input, Modality::of(media_type)) else {
            return true;
        };
        input.contains(&modality) || modality == Modality::Pdf && input.contains(&Modality::Image)
    }
}

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

    /// The word for it in a models.dev file: lower case.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Image => "image",
            Self::Pdf => "pdf",
            Self::Audio => "audio",
            Self::Video => "video",
        }
    }

    /// The kind that a word means.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|modality| modality.as_str() == word)
    }

    /// What a model must take to take a file of this media type, if that is more than text.
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

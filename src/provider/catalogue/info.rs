use std::{collections::BTreeSet, fmt, sync::Arc};

use super::{Price, Traits};
use crate::setters::setters;

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
    pub(in crate::provider) traits: Option<Arc<Traits>>,
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

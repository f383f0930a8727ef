//! Conversions between reasoning efforts, the words that services use for them, and token budgets.

use serde::Deserialize;

use crate::{
    provider::{Effort, catalogue::OpenAiTraits},
    setters::setters,
};

/// The words that a service uses for reasoning efforts, in `reasoning_effort` and similar members.
///
/// Two efforts may share a word. If an effort is sent as the word of another effort, the request gets a warning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct EffortWords {
    /// The word for no reasoning. `None` if reasoning cannot be turned off. If the word is the word for
    /// [`Effort::Low`], a request that turns reasoning off gets this effort and a warning.
    pub off: Option<&'static str>,
    /// The word for [`Effort::Minimal`].
    pub minimal: &'static str,
    /// The word for [`Effort::Low`].
    pub low: &'static str,
    /// The word for [`Effort::Medium`].
    pub medium: &'static str,
    /// The word for [`Effort::High`].
    pub high: &'static str,
    /// The word for [`Effort::Max`].
    pub max: &'static str,
}

setters!(EffortWords:
    with_off(off: Option<&'static str>),
    with_minimal(minimal: &'static str),
    with_low(low: &'static str),
    with_medium(medium: &'static str),
    with_high(high: &'static str),
    with_max(max: &'static str),
);

impl EffortWords {
    /// The words for the three efforts that every service with `reasoning_effort` supports, and for no reasoning.
    pub const COMMON: Self =
        Self { off: Some("none"), minimal: "low", low: "low", medium: "medium", high: "high", max: "high" };

    /// The words for all efforts of OpenAI. Each model supports only some of them.
    pub const OPENAI: Self = Self { minimal: "minimal", max: "xhigh", ..Self::COMMON };

    /// Limits the words to the efforts that a model supports.
    pub(in crate::provider) fn narrowed(self, traits: &OpenAiTraits) -> Self {
        let word = |effort| self.word(supported(&traits.efforts, effort).unwrap_or(effort));
        Self {
            off: self.off.filter(|_| traits.off),
            minimal: word(Effort::Minimal),
            low: word(Effort::Low),
            medium: word(Effort::Medium),
            high: word(Effort::High),
            max: word(Effort::Max),
        }
    }

    pub(super) const fn word(self, effort: Effort) -> &'static str {
        match effort {
            Effort::Minimal => self.minimal,
            Effort::Low => self.low,
            Effort::Medium => self.medium,
            Effort::High => self.high,
            Effort::Max => self.max,
        }
    }
}

/// Returns the lowest of the supported efforts that is not below `wanted`. If all supported efforts are below `wanted`,
/// returns the highest of them. Returns `None` if the list is empty.
pub(super) fn supported(efforts: &[Effort], wanted: Effort) -> Option<Effort> {
    efforts.iter().find(|effort| **effort >= wanted).or(efforts.last()).copied()
}

/// Returns this crate's name for an effort.
pub(super) const fn name(effort: Effort) -> &'static str {
    EffortWords { minimal: "minimal", max: "max", ..EffortWords::COMMON }.word(effort)
}

/// Returns the usual token budget of an effort.
pub(super) const fn budget_of(effort: Effort) -> u32 {
    match effort {
        Effort::Minimal => 1024,
        Effort::Low => 4096,
        Effort::Medium => 16_384,
        Effort::High => 24_576,
        Effort::Max => 32_768,
    }
}

/// Returns the highest usual budget that is not above `tokens`, or else the smallest one.
pub(super) fn budget_within(tokens: u32) -> u32 {
    let levels = [Effort::Max, Effort::High, Effort::Medium, Effort::Low].map(budget_of);
    levels.into_iter().find(|budget| *budget <= tokens).unwrap_or(budget_of(Effort::Minimal))
}

/// Returns the effort whose usual budget is nearest to `tokens`.
pub(super) fn nearest(tokens: u32) -> Effort {
    let levels = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::Max];
    let distance = |effort: &Effort| budget_of(*effort).abs_diff(tokens);
    levels.into_iter().min_by_key(distance).unwrap_or(Effort::Max)
}

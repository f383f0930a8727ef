//! Levels of reasoning, the words that services have for them, and budgets of tokens, one in terms of the
//! other.

use crate::provider::Effort;

/// The words that a service has for levels of reasoning, in `reasoning_effort` and its like. A level may have
/// the word of another: the answer's warnings tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct EffortWords {
    /// No reasoning; `None` where it can't be turned off.
    pub off: Option<&'static str>,
    pub minimal: &'static str,
    pub low: &'static str,
    pub medium: &'static str,
    pub high: &'static str,
    pub max: &'static str,
}

impl EffortWords {
    /// The three levels that every service with the member knows.
    pub const COMMON: Self =
        Self { off: Some("none"), minimal: "low", low: "low", medium: "medium", high: "high", max: "high" };

    /// All that OpenAI has; each model takes only some of them.
    pub const OPENAI: Self = Self { minimal: "minimal", max: "xhigh", ..Self::COMMON };

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

/// A level's own name.
pub(super) const fn name(effort: Effort) -> &'static str {
    match effort {
        Effort::Minimal => "minimal",
        Effort::Low => "low",
        Effort::Medium => "medium",
        Effort::High => "high",
        Effort::Max => "max",
    }
}

/// The usual budget of a level.
pub(super) const fn budget_of(effort: Effort) -> u32 {
    match effort {
        Effort::Minimal => 1024,
        Effort::Low => 4096,
        Effort::Medium => 16_384,
        Effort::High => 24_576,
        Effort::Max => 32_768,
    }
}

/// The level whose usual budget is nearest to this one.
pub(super) fn nearest(tokens: u32) -> Effort {
    let levels = [Effort::Minimal, Effort::Low, Effort::Medium, Effort::High, Effort::Max];
    let distance = |effort: &Effort| budget_of(*effort).abs_diff(tokens);
    levels.into_iter().min_by_key(distance).unwrap_or(Effort::Max)
}

//! Levels of reasoning and budgets of tokens, one in terms of the other.

use crate::provider::Effort;

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

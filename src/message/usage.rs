use std::ops::{Add, AddAssign};

use serde::{Deserialize, Serialize};

/// Tokens that a model service counted, and what they cost.
///
/// The counts do not overlap, but for `reasoning`, which is a part of `output`: the whole prompt is
/// [`Usage::prompt`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usage {
    /// Prompt tokens that were neither read from nor written to a cache.
    pub input: u64,
    /// Prompt tokens read from a cache.
    pub cache_read: u64,
    /// Prompt tokens written to a cache.
    pub cache_write: u64,
    /// Generated tokens, reasoning included.
    pub output: u64,
    /// The part of `output` spent on reasoning, where the service tells.
    pub reasoning: u64,
    /// Price in US dollars, where it is known. The crate takes a number that is not finite for an unknown price.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

impl Usage {
    /// All prompt tokens, cached or not.
    pub fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }

    /// Prompt and generated tokens together.
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }

    /// The same usage. A cost that is infinite or not a number becomes `None`: it would differ from itself, and JSON can't
    /// write it.
    pub(crate) fn with_finite_cost(mut self) -> Self {
        self.cost = self.cost.filter(|cost| cost.is_finite());
        self
    }
}

impl Add for Usage {
    type Output = Self;

    /// Counts add up; the cost is known as soon as one side knows it. A sum that is too large for a finite number is unknown.
    fn add(self, other: Self) -> Self {
        let (this, other) = (self.with_finite_cost(), other.with_finite_cost());
        let sum = Self {
            input: this.input.saturating_add(other.input),
            cache_read: this.cache_read.saturating_add(other.cache_read),
            cache_write: this.cache_write.saturating_add(other.cache_write),
            output: this.output.saturating_add(other.output),
            reasoning: this.reasoning.saturating_add(other.reasoning),
            cost: match (this.cost, other.cost) {
                (None, None) => None,
                (a, b) => Some(a.unwrap_or(0.0) + b.unwrap_or(0.0)),
            },
        };
        sum.with_finite_cost()
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Usage {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::default(), Add::add)
    }
}

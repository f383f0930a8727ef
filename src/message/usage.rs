use std::ops::{Add, AddAssign};

use crate::setters::setters;
use serde::{Deserialize, Serialize};

/// The tokens that a model service counted, and their cost.
///
/// The counts do not overlap, except that `reasoning` is a part of `output`. [`Usage::prompt`] returns the size of the
/// whole prompt.
///
/// ```
/// use omni_agent::message::Usage;
///
/// let usage = Usage::default().with_input(12).with_cache_read(100).with_output(30);
/// assert_eq!((usage.prompt(), usage.total()), (112, 142));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The tokens that a model service counted, and their cost. The counts do not overlap, except that \
                       `reasoning` is a part of `output`."
    )
)]
#[serde(default)]
#[non_exhaustive]
pub struct Usage {
    /// Prompt tokens that were neither read from nor written to a cache.
    pub input: u64,
    /// Prompt tokens read from a cache.
    pub cache_read: u64,
    /// Prompt tokens written to a cache.
    pub cache_write: u64,
    /// Generated tokens, including those for reasoning.
    pub output: u64,
    /// The part of `output` that was spent on reasoning, if the service reports it.
    pub reasoning: u64,
    /// The cost in US dollars, if it is known. The crate treats a number that is not finite as an unknown cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
}

setters! {
    Usage: with_input(input: u64), with_cache_read(cache_read: u64), with_cache_write(cache_write: u64), with_output(output: u64),
    with_reasoning(reasoning: u64), with_cost(cost: into Option<f64>)
}

impl Usage {
    /// Returns the number of all prompt tokens, cached or not.
    pub fn prompt(&self) -> u64 {
        self.input.saturating_add(self.cache_read).saturating_add(self.cache_write)
    }

    /// Returns the number of prompt and generated tokens together.
    pub fn total(&self) -> u64 {
        self.prompt().saturating_add(self.output)
    }

    /// Returns whether no tokens were counted and no cost is known.
    pub(crate) fn is_zero(&self) -> bool {
        self.total() == 0 && self.cost.is_none()
    }

    /// Returns the same usage, but replaces a cost that is infinite or not a number with `None`. A cost that is not a
    /// number would differ from itself, and JSON can represent neither kind of cost.
    pub(crate) fn with_finite_cost(mut self) -> Self {
        self.cost = self.cost.filter(|cost| cost.is_finite());
        self
    }
}

impl Add for Usage {
    type Output = Self;

    /// Adds the counts. If the cost of either side is known, the cost of the sum is known. A cost that is too large for
    /// a finite number becomes unknown.
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

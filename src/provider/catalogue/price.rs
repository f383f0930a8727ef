use std::collections::BTreeMap;

use crate::{message::Usage, provider::CacheHint};

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

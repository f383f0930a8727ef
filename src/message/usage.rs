//! The usage of requests, and the rows and sums of the usage ledger.

use std::{
    ops::{Add, AddAssign},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{MessageId, Timestamp, TurnId};
use crate::setters::setters;

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

    /// Returns the size of the conversation after the response, unless no tokens were counted. Reasoning is not part of
    /// later requests.
    pub(crate) fn context_tokens(&self) -> Option<u32> {
        let size = self.prompt().saturating_add(self.output.saturating_sub(self.reasoning));
        (size > 0).then(|| u32::try_from(size).unwrap_or(u32::MAX))
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

/// The usage of one request to a model, as an entry of the usage ledger.
///
/// The ledger contains one row for each request whose usage is known, whether or not its response became part of the
/// conversation. A request whose process has ended in the meantime has a row without usage, if the store has recorded
/// that the request was sent, and its turn is continued. A session stores the rows with its next write.
///
/// ```
/// use omni_agent::message::{RequestEnd, Usage, UsageRow};
///
/// let row = UsageRow::new(RequestEnd::Failed, Usage::default().with_input(120)).with_model("claude-sonnet-4-6".to_owned());
/// assert_eq!(serde_json::to_value(&row)?["end"], "failed");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UsageRow {
    /// The purpose of the request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub purpose: Purpose,
    /// The turn that the request belongs to. `None` if the request belongs to no turn, or if the row was derived from a
    /// conversation that was stored without a ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<TurnId>,
    /// The number of the request, counted from the prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The id of the response's message, which `Event::StepStart` has announced. If the request did not end as
    /// [`Answered`](RequestEnd::Answered), or if its run was cancelled or has failed, the conversation may have no
    /// message with this id. `None` if the request belongs to no turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<MessageId>,
    /// The time of the response, or the time at which the request ended without one.
    pub at: Timestamp,
    /// The model's name, as the service reports it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The tokens and their cost.
    pub usage: Usage,
    /// How the request ended.
    #[serde(default, skip_serializing_if = "is_default")]
    pub end: RequestEnd,
    /// The conversation whose session stores the row, if it is a sub-agent of the conversation whose agent emits the
    /// row. A stored row contains no conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Arc<str>>,
}

setters! {
    UsageRow: with_purpose(purpose: Purpose), with_turn(turn: into Option<TurnId>), with_step(step: into Option<u32>),
    with_message(message: into Option<MessageId>), with_at(at: Timestamp), with_model(model: into Option<String>)
}

impl UsageRow {
    /// Returns a row for a request that was part of an answer to a prompt. The time of the row is 0.
    pub fn new(end: RequestEnd, usage: Usage) -> Self {
        Self {
            purpose: Purpose::default(),
            turn: None,
            step: None,
            message: None,
            at: Timestamp(0),
            model: None,
            usage: usage.with_finite_cost(),
            end,
            conversation: None,
        }
    }

    /// Returns whether the row says nothing: its usage is zero, and known.
    pub(crate) fn is_empty(&self) -> bool {
        self.usage.is_zero() && self.end != RequestEnd::Lost
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Defines an enum whose variants have names in snake case, in JSON and in databases.
macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$about:meta])* $variant:ident = $name:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum $type { $($(#[$about])* $variant),+ }

        impl $type {
            /// Returns the name, which is also the JSON form.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }

            /// Returns the value with this name.
            #[cfg(any(feature = "sqlite", feature = "postgres"))]
            pub(crate) fn named(name: &str) -> Option<Self> {
                [$(Self::$variant),+].into_iter().find(|value| value.as_str() == name)
            }
        }
    };
}

named! {
    /// The purpose of a request.
    Purpose {
        /// The request was part of an answer to a prompt.
        #[default]
        Answer = "answer",
        /// The request made a title for the conversation.
        Title = "title",
        /// The request summarised messages.
        Summary = "summary",
        /// A sub-agent made the request.
        SubAgent = "sub_agent",
    }
}

named! {
    /// How a request ended.
    RequestEnd {
        /// The response is complete. Its row keeps this value even if the turn is discarded later.
        #[default]
        Answered = "answered",
        /// The response was discarded, and the request was made again.
        Void = "void",
        /// The run was interrupted during the request.
        Interrupted = "interrupted",
        /// The run was cancelled during the request.
        Cancelled = "cancelled",
        /// The request failed.
        Failed = "failed",
        /// The process ended during the request, so its usage is unknown.
        Lost = "lost",
    }
}

/// The sum of the usage of several requests to one model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UsageSum {
    /// The model's name. `None` for requests whose model is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The number of requests.
    pub requests: u64,
    /// The sum of the requests' usage.
    pub usage: Usage,
}

impl UsageSum {
    /// Returns a sum for this model, without requests.
    pub fn new(model: Option<String>) -> Self {
        Self { model, ..Self::default() }
    }

    /// Adds this number of requests, and their usage together.
    pub fn add(&mut self, requests: u64, usage: Usage) {
        self.requests = self.requests.saturating_add(requests);
        self.usage += usage;
    }
}

use serde::{Deserialize, Serialize};

use super::{MessageId, Timestamp, TurnId, Usage};
use crate::setters::setters;

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
        }
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

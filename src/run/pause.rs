use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    message::{DecisionKind, Timestamp, ToolUse, ToolUseId, TurnId, UseDecision, value_weight},
    tool::Decision,
};

/// A tool use that waits for a decision, or a question of a running tool, and the reason for the pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PendingUse {
    /// The turn that the tool use belongs to.
    pub turn: TurnId,
    /// The tool use that waits for a decision. [`Decision::Execute`] runs the tool with the input of this tool use.
    pub tool_use: ToolUse,
    /// Whether `handle_tool_use` has replaced the input that the model sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub input_replaced: bool,
    /// The reason for the pause, in a format that the application defines. If the tool merely needs an approval, this
    /// is the text `needs approval`. If a running tool asks, this is its question.
    pub reason: Value,
    /// The time limit of the pause, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expiry: Option<Box<Expiry>>,
    /// The id of the tool use whose running tool asks a question. The tool use in the pause then has this id, followed
    /// by `?` and a number, so that an answer never applies to a later question of the same call. `None` if the pause
    /// is about whether a tool may run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<ToolUseId>,
}

impl PendingUse {
    /// Returns the id of the model's tool use that this pause belongs to: the tool use itself or, if a running tool
    /// asks a question, the tool use that runs this tool.
    pub fn call(&self) -> &ToolUseId {
        self.asked_by.as_ref().unwrap_or(&self.tool_use.id)
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        64 + self.tool_use.weight() + value_weight(&self.reason)
    }
}

/// The time limit of a pause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Expiry {
    /// The time from the report of the pause until the decision applies.
    pub after: Duration,
    /// The moment when the decision applies, by the system clock.
    pub at: Timestamp,
    /// The decision that applies if nobody has decided by then.
    pub decision: Decision,
}

impl Expiry {
    /// The longest time limit of a pause. A longer one means no limit.
    pub(crate) const LONGEST: Duration = Duration::from_hours(365 * 24);
}

/// A decision about a tool use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Decided {
    /// The turn that the tool use belongs to.
    pub turn: TurnId,
    /// The id of the tool use.
    pub tool_use_id: ToolUseId,
    /// The decision.
    pub decision: Decision,
    /// The name that was given to [`resume_as`](crate::agent::Agent::resume_as). `None` for a decision of
    /// [`resume`](crate::agent::Agent::resume) or of a callback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(
            description = "The name of the decider. Absent if a callback has decided, or if the decider gave no name."
        )
    )]
    pub by: Option<Arc<str>>,
    /// Whether the time limit of the pause ended before anybody decided, so that the decision for its expiry applies.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expired: bool,
    /// The time of the decision.
    pub at: Timestamp,
}

impl Decided {
    /// Returns the decision in the form in which the result of its tool use contains it, without an input.
    pub(crate) fn as_use_decision(&self) -> UseDecision {
        let kind = if self.expired { DecisionKind::Expired } else { (&self.decision).into() };
        UseDecision { by: self.by.clone(), ..UseDecision::new(kind, self.at) }
    }
}

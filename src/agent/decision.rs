//! The decisions about the turn in flight that somebody made under a name.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Decided;
use crate::{
    message::{Timestamp, ToolUseId},
    tool::Decision,
};

/// The maximum number of decisions that a turn and its snapshot contain. Older decisions are forgotten.
pub(super) const MAX_NAMED: usize = 256;

/// A decision about a tool use of the turn in flight, and the name of the person or system that made it.
///
/// It does not contain inputs, reasons and results, because the messages contain them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct NamedDecision {
    /// The id of the tool use, or of the question of a running tool.
    pub tool_use_id: ToolUseId,
    /// The name that was given to [`resume_as`](super::Agent::resume_as).
    #[cfg_attr(feature = "schema", schemars(description = "The name of the decider."))]
    pub by: Arc<str>,
    /// The kind of the decision.
    pub kind: DecisionKind,
    /// The time of the decision.
    pub at: Timestamp,
}

/// The kind of a [`Decision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DecisionKind {
    /// The tool runs with the model's input.
    Execute,
    /// The tool runs with another input.
    ExecuteWith,
    /// The tool does not run. The model receives an error result.
    Reject,
    /// The tool does not run. The model receives the decider's result.
    Provide,
}

impl From<&Decision> for DecisionKind {
    fn from(decision: &Decision) -> Self {
        match decision {
            Decision::Execute => Self::Execute,
            Decision::ExecuteWith(_) => Self::ExecuteWith,
            Decision::Reject(_) => Self::Reject,
            Decision::Provide(_) => Self::Provide,
        }
    }
}

impl NamedDecision {
    /// Adds a decision to the list of its turn, if it was made under a name.
    pub(super) fn add(list: &mut Vec<Self>, decided: &Decided) {
        let Some(by) = &decided.by else { return };
        if list.len() >= MAX_NAMED {
            list.remove(0);
        }
        list.push(Self {
            tool_use_id: decided.tool_use_id.clone(),
            by: Arc::clone(by),
            kind: (&decided.decision).into(),
            at: decided.at,
        });
    }
}

use std::{sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    message::{DecisionKind, Timestamp, ToolUse, ToolUseId, TurnId, UseDecision, value_weight},
    setters::setters,
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
    #[serde(default)]
    pub reason: Value,
    /// The id of the tool use that the pause asks about, if the tool has started: the running tool asks a question, or
    /// a restart has interrupted the tool and the pause asks whether the tool may run again. The tool use in the pause
    /// then has this id, followed by `?` and a number for a question, or by `?again` and a number for a repetition, so
    /// that an answer never applies to a later question about the same call. If a sub-agent waits, the turn and the tool
    /// use of the sub-agent follow in place of the number. `None` if the pause is about whether a tool of this agent may
    /// run for the first time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_by: Option<ToolUseId>,
    /// The pause of a sub-agent that this pause stands for. The tool use then has the name and the input of the
    /// sub-agent's tool, and a decision is the decision about the sub-agent's pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_agent: Option<Box<SubAgentUse>>,
    /// Whether the pause survives the end of its process if the turn is recorded. A pause does not survive if a running
    /// tool asks, or if the provider waits for the decision in the middle of its response.
    #[serde(default = "yes", skip_serializing_if = "is_true")]
    pub survives: bool,
    /// The time since which the tool use waits. It is a time of the system clock in events and snapshots, and of the
    /// store's clock in lists. `None` in a record of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The time limit of the pause. `None` if the pause has no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Duration>,
    /// The moment at which the time limit ends, by the same clock as [`since`](Self::since). `None` if the pause has no
    /// limit, and in a record of a turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<Timestamp>,
    /// The decision that applies after the time limit. `None` rejects the tool use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<Decision>,
}

/// The pause of a sub-agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SubAgentUse {
    /// The name of the sub-agent.
    pub name: Arc<str>,
    /// The id of the sub-agent's conversation. `None` if the sub-agent has no session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Arc<str>>,
    /// The turn of the sub-agent that the pause belongs to.
    pub turn: TurnId,
    /// The id of the tool use that waits in the sub-agent.
    pub tool_use: ToolUseId,
    /// Whether a running tool asks a question, in the sub-agent or in a sub-agent of it. Otherwise, the pause is about
    /// whether a tool may run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_question: bool,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_true(flag: &bool) -> bool {
    *flag
}

setters! {
    PendingUse: with_input_replaced(input_replaced: bool), with_reason(reason: Value),
        with_asked_by(asked_by: some ToolUseId), with_survives(survives: bool), with_limit(limit: some Duration),
        with_on_expiry(on_expiry: some Decision)
}

impl PendingUse {
    /// The longest time limit of a pause. A longer one means no limit.
    pub(crate) const LONGEST: Duration = Duration::from_hours(365 * 24);

    /// Returns a tool use of this turn that waits without a time limit and without a reason.
    pub fn new(turn: TurnId, tool_use: ToolUse) -> Self {
        Self {
            turn,
            tool_use,
            input_replaced: false,
            reason: Value::Null,
            asked_by: None,
            sub_agent: None,
            survives: true,
            since: None,
            limit: None,
            expires: None,
            on_expiry: None,
        }
    }

    /// Returns the id of the model's tool use that this pause belongs to: the tool use itself or, if the tool has
    /// started, [`asked_by`](Self::asked_by).
    pub fn call(&self) -> &ToolUseId {
        self.asked_by.as_ref().unwrap_or(&self.tool_use.id)
    }

    /// Returns whether a running tool asks a question, and the decision is its answer. Otherwise, the pause is about
    /// whether a tool may run, possibly a tool of a sub-agent.
    pub fn is_question(&self) -> bool {
        self.sub_agent.as_ref().map_or_else(|| self.is_of_running_tool(), |own| own.is_question)
    }

    /// Returns whether the tool runs while the pause waits: the tool asks a question, or its sub-agent waits.
    pub(crate) fn is_of_running_tool(&self) -> bool {
        self.asked_by.is_some() && !self.survives
    }

    /// Returns the pause as a question of the call that runs the agent `name`, whose pause this is. [`below`](Self::below)
    /// completes it.
    pub(crate) fn of_sub_agent(&self, name: Arc<str>, conversation: Option<Arc<str>>) -> Self {
        let (turn, tool_use) = (self.turn, self.tool_use.id.clone());
        let own = SubAgentUse { name, conversation, turn, tool_use, is_question: self.is_question() };
        Self { sub_agent: Some(Box::new(own)), survives: false, on_expiry: None, ..self.clone() }
    }

    /// Returns the pause of a sub-agent as a question of this call in this turn. Its id is never that of another one.
    pub(crate) fn below(mut self, call: &ToolUseId, turn: TurnId) -> Self {
        if let Some(own) = &self.sub_agent {
            self.tool_use.id = format!("{call}?{}/{}", own.turn, own.tool_use).into();
        }
        (self.turn, self.asked_by) = (turn, Some(call.clone()));
        self
    }

    /// Returns the decision that applies after the time limit.
    pub(crate) fn expiry_decision(&self) -> Decision {
        let rejected = || Decision::reject("The approval was not given in time.");
        self.on_expiry.clone().unwrap_or_else(rejected)
    }

    /// Returns whether the time limit has passed at the time `now`.
    pub(crate) fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Sets the time since which the tool use waits, and the end of its time limit.
    pub(crate) fn begin(&mut self, since: Timestamp) {
        self.since = Some(since);
        self.expires = self.limit.map(|limit| since.after(limit));
    }

    /// Returns the approximate size in bytes.
    pub(crate) fn weight(&self) -> usize {
        let on_expiry = self.on_expiry.as_ref().map_or(0, Decision::weight);
        64 + self.tool_use.weight() + value_weight(&self.reason) + on_expiry
    }
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

//! Persons who decide, also while no process has the conversation open.

use serde_json::Value;

use super::World;
use crate::{
    agent::{Decided, record::TurnRecord},
    message::Timestamp,
    tool::Decision,
};

impl World {
    /// Returns the decision of a person about a pause with this reason.
    pub(super) fn verdict(&mut self, reason: &Value) -> Decision {
        let key = reason.pointer("/uncertain/idempotency_key").and_then(Value::as_str);
        let Some(key) = key else { return Decision::Execute };
        if self.rng.percent(50) {
            return Decision::reject("It has happened already.");
        }
        self.oracle.allow(key);
        Decision::Execute
    }

    /// Decides about some stored approvals.
    pub(super) fn decide_stored(&mut self) {
        let Some(turn) = self.disk.turn.clone() else { return };
        for waiting in turn.waiting.iter().filter(|waiting| waiting.survives) {
            if self.rng.percent(40) {
                let decision = self.verdict(&waiting.reason);
                let stored = self.disk.turn.take();
                self.disk.turn = stored.map(|turn| decided(turn, &waiting.tool_use.id, decision));
            }
        }
    }
}

/// Returns the record with a decision, as a store keeps it.
fn decided(mut turn: TurnRecord, id: &crate::message::ToolUseId, decision: Decision) -> TurnRecord {
    let (tool_use_id, at) = (id.clone(), Timestamp(1));
    let decided = Decided { turn: turn.turn, tool_use_id, decision, by: None, expired: false, at };
    let mut core: Value = serde_json::from_str(&turn.core).expect("the record was written as JSON");
    let list = core
        .as_object_mut()
        .and_then(|core| core.entry("decided").or_insert_with(|| Value::Array(Vec::new())).as_array_mut());
    if let Some(list) = list {
        list.push(serde_json::to_value(decided).expect("it is data"));
    }
    turn.core = core.to_string().into();
    turn.waiting.retain(|waiting| waiting.tool_use.id != *id);
    turn
}

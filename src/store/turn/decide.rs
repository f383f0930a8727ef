//! Decisions about a stored turn whose conversation no process has open.
//!
//! The core in a turn's record has the list `decided`. A decision is appended to it, and the new record is written only
//! on the version that was read, so of two simultaneous decisions one fails. The agent applies the list when it
//! continues the turn.

use serde_json::{Map, Value};

use super::{PendingUse, StoredTurn, TurnRecord};
use crate::{
    message::{Timestamp, ToolUseId},
    run::Decided,
    store::json,
};

/// The member of the JSON object in [`TurnRecord::core`] with the decisions that were made while no process had the
/// conversation open, in their order. The agent applies these decisions when it continues the turn, and then records
/// its state without this member. The member has the same meaning in every version of the record's format.
const DECIDED: &str = "decided";

/// The reason why a decision does not apply to a stored turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Undecidable {
    /// The tool use does not wait for a decision: it was already decided, or it belongs to another turn.
    Stale(ToolUseId),
    /// The time limit of the tool use has passed, so the decision for the end of the time limit applies instead. The
    /// contained record includes such decisions for all time limits that have passed.
    Expired(ToolUseId, Box<TurnRecord>),
    /// The turn can't be read.
    Damaged(String),
}

impl StoredTurn {
    /// Returns a record of the turn that includes these decisions, one for each tool use. Their field `at` must be the
    /// time at which the turn was read.
    pub(crate) fn decide(&self, decided: Vec<Decided>) -> Result<TurnRecord, Undecidable> {
        if let Some(problem) = &self.damage {
            return Err(Undecidable::Damaged(problem.clone()));
        }
        let approvals = self.approvals();
        for Decided { turn, tool_use_id, at, .. } in &decided {
            let wanted = approvals.iter().find(|pause| {
                pause.survives && pause.tool_use.id == *tool_use_id && self.record.turn == *turn
            });
            match wanted {
                None => return Err(Undecidable::Stale(tool_use_id.clone())),
                Some(pause) if pause.has_expired(*at) => {
                    let id = tool_use_id.clone();
                    return Err(match self.expire(*at) {
                        Ok(Some(record)) => Undecidable::Expired(id, Box::new(record)),
                        Ok(None) => Undecidable::Stale(id),
                        Err(problem) => Undecidable::Damaged(problem),
                    });
                }
                Some(_) => {}
            }
        }
        self.with_decided(decided).map_err(Undecidable::Damaged)
    }

    /// Returns a record of the turn that includes the expiry decisions for all time limits that have passed, or `None`
    /// if no time limit has passed. If the turn can't be read, the error describes the problem.
    pub(crate) fn expire(&self, now: Timestamp) -> Result<Option<TurnRecord>, String> {
        if let Some(problem) = &self.damage {
            return Err(problem.clone());
        }
        let has_expired = |pause: &PendingUse| pause.survives && pause.has_expired(now);
        let expired = self.approvals().into_iter().filter(has_expired);
        let decided = expired.map(|pause| Decided {
            turn: self.record.turn,
            decision: pause.expiry_decision(),
            tool_use_id: pause.tool_use.id,
            by: None,
            expired: true,
            at: now,
        });
        let decided: Vec<_> = decided.collect();
        if decided.is_empty() { Ok(None) } else { self.with_decided(decided).map(Some) }
    }

    fn with_decided(&self, decided: Vec<Decided>) -> Result<TurnRecord, String> {
        let is_open =
            |pause: &&PendingUse| decided.iter().all(|decided| decided.tool_use_id != pause.tool_use.id);
        let waiting = self.record.waiting.iter().filter(is_open).cloned().collect();
        let mut core: Map<String, Value> = json::parse(&self.record.core)?;
        let list = core.entry(DECIDED).or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(list) = list else { return Err(format!("`{DECIDED}` is not an array")) };
        for decided in decided {
            list.push(serde_json::to_value(decided).map_err(|error| error.to_string())?);
        }
        let mut record = self.record.clone().with_append(Vec::new());
        record.keep = u32::try_from(self.record.append.len()).unwrap_or(u32::MAX);
        (record.core, record.waiting) = (Value::Object(core).to_string().into(), waiting);
        Ok(record)
    }
}

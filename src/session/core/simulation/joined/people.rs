//! Persons who decide, also while no process has the conversation open.

use serde_json::Value;

use super::{Common, Place};
use crate::{
    actor::simulation::{Check, ensure},
    agent::process::{Outside, Reply},
    message::Timestamp,
    run::{Decided, TurnRecord},
    store::{Change, Commit, InapplicableDecisionReason, Write, WriteId},
    tool::Decision,
};

/// Returns the decision of a person about a pause with this reason.
pub(super) fn verdict(outside: &mut Outside, reason: &Value) -> Decision {
    let key = reason.pointer("/uncertain/idempotency_key").and_then(Value::as_str);
    let Some(key) = key else { return Decision::Execute };
    if outside.rng.percent(50) {
        return Decision::reject("It has happened already.");
    }
    outside.oracle.allow(key);
    Decision::Execute
}

/// Decides about some stored approvals, or lets their time limits end.
pub(super) fn decide_stored(common: &mut Common) -> Check {
    let Common { outside, place, .. } = common;
    if outside.rng.percent(10)
        && let Some(turn) = place.turn()
        && let Some(record) = turn.expire(Timestamp(u64::MAX))?
    {
        outside.note(|| "stored time limits end".to_owned());
        store(outside, place, record)?;
    }
    let waiting = place.turn().map(|turn| turn.record.waiting.clone()).unwrap_or_default();
    for waiting in waiting.into_iter().filter(|waiting| waiting.survives) {
        if !outside.rng.percent(40) {
            continue;
        }
        let turn = place.turn().ok_or("a decision removed the turn")?;
        let decided = Decided {
            turn: turn.record.turn,
            tool_use_id: waiting.tool_use.id.clone(),
            decision: verdict(outside, &waiting.reason),
            by: Some("ann".into()),
            expired: false,
            at: Timestamp(1),
        };
        let record = turn.decide(vec![decided.clone()]).map_err(|problem| format!("{problem:?}"))?;
        outside.note(|| format!("stored decision {decided:?}"));
        store(outside, place, record)?;
        let id = decided.tool_use_id.clone();
        outside.oracle.acknowledge(Reply::Decision(decided.turn, id.clone()));
        let again = place.turn().ok_or("a decision removed the turn")?.decide(vec![decided]);
        ensure!(again == Err(InapplicableDecisionReason::Stale(id)), "a second decision gives {again:?}");
    }
    Ok(())
}

fn store(outside: &mut Outside, place: &mut Place, record: TurnRecord) -> Check {
    let version = place.stored().ok_or("nothing is stored")?.version;
    let mut id = [1; 16];
    id[..8].copy_from_slice(&outside.rng.next().to_be_bytes());
    let write = Write::on(version).with_id(WriteId::from_bytes(id));
    let job = (write, Change::Commit(Commit::new(record.head).with_turn(record)));
    let epoch = place.acquire();
    place.write(&job, epoch)?.map(drop).map_err(|error| error.to_string())
}

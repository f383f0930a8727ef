//! The rows of a turn in flight.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;

#[cfg(feature = "sqlite")]
use super::number;
use super::{FileRows, OF_TURN, json, node_id};
use crate::{
    message::{Message, Timestamp},
    run::{PendingUse, TurnRecord},
    store::{Commit, ConversationId, StoreError, StoredTurn, TurnChange, Version, digest::ContentHasher},
};

/// The change of a write to the turn in flight.
#[derive(Default)]
pub(in crate::store) struct TurnRowChange {
    /// Whether the write ends the turn in flight. A write that changes the head always ends it, regardless of this
    /// field.
    pub(in crate::store) ends: bool,
    pub(in crate::store) record: Option<Box<RecordRow>>,
    /// The last event of the session's feed.
    pub(in crate::store) mark: Option<String>,
}

/// A record of the turn in flight.
pub(in crate::store) struct RecordRow {
    pub(in crate::store) turn: String,
    /// The record as JSON, without its head, its messages and the tool uses that wait.
    pub(in crate::store) record: String,
    /// The head of the commit that contains the record. Only SQLite needs it: PostgreSQL takes the head from the row of
    /// the conversation.
    #[cfg(feature = "sqlite")]
    pub(in crate::store) head: Option<i64>,
    /// Whether the turn waits only for decisions.
    pub(in crate::store) waits: bool,
    /// The number of messages from earlier records that are kept.
    pub(in crate::store) keep: i32,
    pub(in crate::store) messages: Vec<String>,
    /// For each tool use that waits for a decision, the key that identifies it within the turn.
    pub(in crate::store) keys: Vec<String>,
    pub(in crate::store) approvals: Vec<String>,
    pub(in crate::store) survives: Vec<bool>,
    /// The time limits in milliseconds.
    pub(in crate::store) limits: Vec<Option<i64>>,
}

impl TurnRowChange {
    pub(super) fn of(id: &ConversationId, commit: &Commit, files: &mut FileRows) -> Result<Self, StoreError> {
        let row = Self { ends: commit.ends_turn(commit.head), ..Self::default() };
        Ok(match commit.turn.as_deref() {
            Some(TurnChange::Record(record)) => Self {
                mark: record.mark.map(|mark| mark.to_string()),
                record: if row.ends {
                    None
                } else {
                    Some(Box::new(RecordRow::of(id, record.clone(), files)?))
                },
                ..row
            },
            Some(TurnChange::End(end)) => Self { mark: end.mark.map(|mark| mark.to_string()), ..row },
            None => row,
        })
    }
}

impl RecordRow {
    fn of(id: &ConversationId, mut record: TurnRecord, files: &mut FileRows) -> Result<Self, StoreError> {
        record.normalise();
        let waits = record.only_waits();
        let waiting = || record.waiting.iter();
        let limit = |limit: Duration| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        let keys = waiting().map(|pause| key_of(pause.tool_use.id.as_str())).collect();
        let approvals = waiting().map(|pause| json::encode(id, pause)).collect::<Result<_, _>>()?;
        let survives = waiting().map(|pause| pause.survives).collect();
        let limits = waiting().map(|pause| pause.limit.map(limit)).collect();
        let message = |own: &Arc<Message>| files.encode(OF_TURN, || json::encode(id, &**own));
        let messages = record.append.iter().map(message).collect::<Result<_, _>>()?;
        let keep = i32::try_from(record.keep).unwrap_or(i32::MAX);
        #[cfg(feature = "sqlite")]
        let head = record.head.map(number);
        let (append, waiting) = (Vec::new(), Vec::new());
        let record = TurnRecord { head: None, keep: 0, append, waiting, mark: None, ..record };
        Ok(Self {
            turn: record.turn.to_string(),
            record: files.encode(OF_TURN, || json::encode(id, &record))?,
            #[cfg(feature = "sqlite")]
            head,
            waits,
            keep,
            messages,
            keys,
            approvals,
            survives,
            limits,
        })
    }
}

/// Returns the key of a tool use. It is the id as JSON, because a database's text may not contain U+0000. Long ids,
/// which an index can't contain, are replaced by a digest.
fn key_of(tool_use: &str) -> String {
    const LONGEST: usize = 500;

    if tool_use.len() <= LONGEST {
        return serde_json::Value::from(tool_use).to_string();
    }
    let mut digest = ContentHasher::default();
    digest.part(tool_use.as_bytes());
    format!("digest {:032x}", digest.value())
}

/// The rows of a turn in flight, as they were read. The texts have not been checked.
#[derive(Default)]
pub(in crate::store) struct StoredTurnRows {
    pub(in crate::store) turn: String,
    pub(in crate::store) record: String,
    pub(in crate::store) head: Option<i64>,
    pub(in crate::store) since: Timestamp,
    pub(in crate::store) recorded: Timestamp,
    /// The time at which the rows were read.
    pub(in crate::store) now: Timestamp,
    pub(in crate::store) pending: Vec<String>,
    /// The tool uses that wait for decisions, each with the time since which it waits.
    pub(in crate::store) approvals: Vec<(String, Timestamp)>,
}

impl StoredTurnRows {
    /// Returns the turn. If a part can't be read, the turn is damaged, and the rest of the conversation can be used.
    pub(in crate::store) fn into_turn(self, version: Version) -> StoredTurn {
        let Self { since, recorded, now, .. } = self;
        let (turn, head) = (self.turn.parse().unwrap_or_default(), self.head.and_then(node_id));
        let read = parse(&self.record, "the record").and_then(|record: TurnRecord| {
            let is_named = self.turn.parse().ok() == Some(record.turn);
            is_named.then_some(record).ok_or_else(|| "the record belongs to another turn".to_owned())
        });
        let facts = read.as_ref().map_or((0, 0, false), |own| (own.format, own.lives, own.orderly));
        let unreadable = |problem: String| {
            let (format, lives, orderly) = facts;
            (TurnRecord { format, lives, orderly, ..TurnRecord::unreadable(turn, problem) }, Vec::new())
        };
        let whole = read.and_then(|record| self.complete(record));
        let (record, waiting_since) = whole.unwrap_or_else(unreadable);
        let damage = record.damage().map(str::to_owned);
        StoredTurn { version, record: record.with_head(head), since, recorded, waiting_since, now, damage }
    }

    /// Adds the messages and the approvals to the record. Also returns the times since which the approvals wait.
    fn complete(self, record: TurnRecord) -> Result<(TurnRecord, Vec<Timestamp>), String> {
        let append = self.pending.iter().map(|message| parse(message, "a pending message"));
        let (approvals, waiting_since): (Vec<_>, Vec<_>) = self.approvals.into_iter().unzip();
        let waiting = approvals
            .iter()
            .map(|pause| parse(pause, "a tool use").map(|pause| PendingUse { turn: record.turn, ..pause }));
        let (append, waiting) = (append.collect::<Result<_, _>>()?, waiting.collect::<Result<_, _>>()?);
        Ok((TurnRecord { keep: 0, append, waiting, mark: None, ..record }, waiting_since))
    }
}

fn parse<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, String> {
    json::parse(text).map_err(|problem| format!("{what}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turn_with_an_unreadable_approval_keeps_the_facts_of_its_record() {
        let turn = "00112233445566778899aabbccddeeff";
        let record = TurnRecord::new(7, turn.parse().unwrap(), "{}").with_lives(3).with_orderly(true);
        let read = |approvals, turn: &str| {
            let (turn, record) = (turn.to_owned(), serde_json::to_string(&record).unwrap());
            let read = StoredTurnRows { turn, record, approvals, ..StoredTurnRows::default() };
            let StoredTurn { record, damage, .. } = read.into_turn(Version::new(1));
            (record.format, record.lives, record.orderly, damage.is_some())
        };
        assert_eq!(read(Vec::new(), turn), (7, 3, true, false));
        assert_eq!(read(vec![("nonsense".to_owned(), Timestamp(1))], turn), (7, 3, true, true));
        assert_eq!(read(Vec::new(), &turn.replace("00", "11")), (0, 0, false, true));
    }
}

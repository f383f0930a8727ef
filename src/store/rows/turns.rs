//! The rows of a turn in flight.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;

#[cfg(feature = "sqlite")]
use super::number;
use super::{FileRows, OF_TURN, json, node_id};
use crate::{
    message::{Message, Timestamp},
    run::{BranchPoint, PendingUse, Settled, TurnRecord},
    store::{Commit, ConversationId, StoreError, StoredTurn, TurnChange, Version, digest::Digest},
};

/// The change of a write to the turn in flight.
#[derive(Default)]
pub(in crate::store) struct TurnRow {
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
    pub(in crate::store) lives: u32,
    pub(in crate::store) orderly: bool,
    pub(in crate::store) format: u32,
    pub(in crate::store) core: Box<str>,
    /// The head of the commit that contains the record. Only SQLite needs it: PostgreSQL takes the head from the row of
    /// the conversation.
    #[cfg(feature = "sqlite")]
    pub(in crate::store) head: Option<i64>,
    pub(in crate::store) branch: Option<String>,
    /// The time that the turn has taken, in microseconds.
    pub(in crate::store) spent: i64,
    pub(in crate::store) prompts: String,
    /// Whether the turn waits only for decisions.
    pub(in crate::store) waits: bool,
    /// The number of messages from earlier records that are kept.
    pub(in crate::store) keep: i32,
    pub(in crate::store) messages: Vec<String>,
    pub(in crate::store) slots: Vec<i32>,
    pub(in crate::store) results: Vec<String>,
    pub(in crate::store) approvals: Vec<ApprovalRow>,
}

/// A tool use that waits for a decision.
pub(in crate::store) struct ApprovalRow {
    /// Identifies the tool use within the turn.
    pub(in crate::store) key: String,
    pub(in crate::store) content: String,
    pub(in crate::store) survives: bool,
    /// The time limit in milliseconds.
    pub(in crate::store) limit: Option<i64>,
}

impl TurnRow {
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
        let approval = |pause: &PendingUse| {
            Ok::<_, StoreError>(ApprovalRow {
                key: key_of(pause.tool_use.id.as_str()),
                content: json::encode(id, pause)?,
                survives: pause.survives,
                limit: pause.limit.map(|limit| i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)),
            })
        };
        Ok(Self {
            turn: record.turn.to_string(),
            lives: record.lives,
            orderly: record.orderly,
            format: record.format,
            #[cfg(feature = "sqlite")]
            head: record.head.map(number),
            branch: record.branch.map(|branch| json::encode(id, &branch)).transpose()?,
            spent: i64::try_from(record.spent.as_micros()).unwrap_or(i64::MAX),
            prompts: json::encode(id, &record.prompts)?,
            waits,
            keep: i32::try_from(record.keep).unwrap_or(i32::MAX),
            messages: record
                .append
                .iter()
                .map(|message| files.encode(OF_TURN, || json::encode(id, &**message)))
                .collect::<Result<_, _>>()?,
            slots: record.results.iter().map(|result| result.slot.cast_signed()).collect(),
            results: record
                .results
                .iter()
                .map(|result| files.encode(OF_TURN, || json::encode(id, result)))
                .collect::<Result<_, _>>()?,
            approvals: record.waiting.iter().map(approval).collect::<Result<_, _>>()?,
            core: record.core,
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
    let mut digest = Digest::default();
    digest.part(tool_use.as_bytes());
    format!("digest {:032x}", digest.value())
}

/// The rows of a turn in flight, as they were read. The texts have not been checked.
#[derive(Default)]
pub(in crate::store) struct ReadTurn {
    pub(in crate::store) turn: String,
    pub(in crate::store) lives: u32,
    pub(in crate::store) orderly: bool,
    pub(in crate::store) format: u32,
    pub(in crate::store) core: String,
    pub(in crate::store) head: Option<i64>,
    pub(in crate::store) branch: Option<String>,
    /// The time that the turn has taken, in microseconds.
    pub(in crate::store) spent: i64,
    pub(in crate::store) prompts: String,
    pub(in crate::store) since: Timestamp,
    pub(in crate::store) recorded: Timestamp,
    /// The time at which the rows were read.
    pub(in crate::store) now: Timestamp,
    /// The pending messages and the results, each as its place (the index of the message), its slot (-1 for a message,
    /// otherwise the index of the result), and its content. Sorted by place and slot.
    pub(in crate::store) pending: Vec<(i64, i64, String)>,
    /// The tool uses that wait for decisions, each with the time since which it waits.
    pub(in crate::store) approvals: Vec<(String, Timestamp)>,
}

impl ReadTurn {
    /// Returns the turn. If a part can't be read, the turn is damaged, and the rest of the conversation can be used.
    pub(in crate::store) fn into_turn(self, version: Version) -> StoredTurn {
        let (since, recorded, now) = (self.since, self.recorded, self.now);
        let turn = |record, waiting_since, damage| StoredTurn {
            version,
            record,
            since,
            recorded,
            waiting_since,
            now,
            damage,
        };
        let id = self.turn.parse().unwrap_or_default();
        let (format, lives, orderly) = (self.format, self.lives, self.orderly);
        let head = self.head.and_then(node_id);
        match self.record() {
            Ok((record, waiting_since)) => turn(record, waiting_since, None),
            Err(problem) => {
                let record =
                    TurnRecord { format, lives, orderly, head, ..TurnRecord::unreadable(id, &*problem) };
                turn(record, Vec::new(), Some(problem))
            }
        }
    }

    fn record(self) -> Result<(TurnRecord, Vec<Timestamp>), String> {
        let turn = self.turn.parse().map_err(|_| format!("{:?} is not the id of a turn", self.turn))?;
        let last = self.pending.iter().filter(|(_, slot, _)| *slot < 0).map(|(place, ..)| *place).max();
        let (mut append, mut results) = (Vec::<Arc<Message>>::new(), Vec::<Settled>::new());
        for (place, slot, content) in &self.pending {
            if *slot < 0 {
                append.push(parse(content, "a pending message")?);
            } else if *place == last.unwrap_or(-1) {
                results.push(parse(content, "a result")?);
            }
        }
        let (approvals, waiting_since): (Vec<_>, Vec<_>) = self.approvals.into_iter().unzip();
        let waiting = approvals.iter().map(|pause| parse::<PendingUse>(pause, "a tool use"));
        let waiting = waiting.map(|pause| pause.map(|pause| PendingUse { turn, ..pause }));
        let waiting = waiting.collect::<Result<Vec<_>, _>>()?;
        let branch: Option<BranchPoint> =
            self.branch.map(|branch| parse(&branch, "the place in the tree")).transpose()?;
        Ok((
            TurnRecord {
                lives: self.lives,
                orderly: self.orderly,
                head: self.head.and_then(node_id),
                branch,
                append,
                results,
                waiting,
                prompts: parse(&self.prompts, "the known prompts")?,
                spent: Duration::from_micros(u64::try_from(self.spent).unwrap_or_default()),
                ..TurnRecord::new(self.format, turn, self.core)
            },
            waiting_since,
        ))
    }
}

fn parse<T: DeserializeOwned>(text: &str, what: &str) -> Result<T, String> {
    json::parse(text).map_err(|problem| format!("{what}: {problem}"))
}

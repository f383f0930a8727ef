//! The stored form of a turn in flight.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::Commit;
use crate::{
    message::{Message, Timestamp, ToolUseId, TurnId},
    run::{Decided, PendingUse, RunEnd, TurnRecord},
    store::{ConversationId, Labels, Owner, Page, Position, Version, json},
    tree::NodeId,
};

/// A change to the turn in flight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TurnChange {
    /// The turn is in flight, in this state.
    #[serde(deserialize_with = "TurnRecord::deserialize_any")]
    Record(TurnRecord),
    /// The run has ended. No turn is in flight any more.
    End(RunEnd),
}

impl Commit {
    crate::setters::setters! {
        /// Returns the same commit, which now also contains this record of the turn in flight.
        pub fn with_turn(self, record: TurnRecord) { self.turn = Some(Box::new(TurnChange::Record(record))) }

        /// Returns the same commit, which now also records this end of a run.
        pub fn with_run_end(self, end: RunEnd) { self.turn = Some(Box::new(TurnChange::End(end))) }
    }

    /// Returns whether the commit ends a turn in flight that an earlier commit has recorded on this head.
    pub(crate) fn ends_turn(&self, head: Option<NodeId>) -> bool {
        match self.turn.as_deref() {
            Some(TurnChange::Record(record)) => record.head != self.head,
            Some(TurnChange::End(_)) => true,
            None => !self.nodes.is_empty() || self.head != head,
        }
    }
}

// Decisions about a stored turn whose conversation no process has open.
//
// The core in a turn's record has the list `decided`. A decision is appended to it, and the new record is written only
// on the version that was read, so of two simultaneous decisions one fails. The agent applies the list when it
// continues the turn.

/// The member of the JSON object in [`TurnRecord::core`] with the decisions that were made while no process had the
/// conversation open, in their order. The agent applies these decisions when it continues the turn, and then records
/// its state without this member. The member has the same meaning in every version of the record's format.
const DECIDED: &str = "decided";

/// The reason why a decision does not apply to a stored turn.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum InapplicableDecisionReason {
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
    pub(crate) fn decide(&self, decided: Vec<Decided>) -> Result<TurnRecord, InapplicableDecisionReason> {
        if let Some(problem) = &self.damage {
            return Err(InapplicableDecisionReason::Damaged(problem.clone()));
        }
        let approvals = self.approvals();
        for Decided { turn, tool_use_id, at, .. } in &decided {
            let wanted = approvals.iter().find(|pause| {
                pause.survives && pause.tool_use.id == *tool_use_id && self.record.turn == *turn
            });
            match wanted {
                None => return Err(InapplicableDecisionReason::Stale(tool_use_id.clone())),
                Some(pause) if pause.has_expired(*at) => {
                    let id = tool_use_id.clone();
                    return Err(match self.expire(*at) {
                        Ok(Some(record)) => InapplicableDecisionReason::Expired(id, Box::new(record)),
                        Ok(None) => InapplicableDecisionReason::Stale(id),
                        Err(problem) => InapplicableDecisionReason::Damaged(problem),
                    });
                }
                Some(_) => {}
            }
        }
        self.with_decided(decided).map_err(InapplicableDecisionReason::Damaged)
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

// ---- stored ----

/// The turn in flight of a conversation, as a store returns it: the sum of its records.
///
/// Times are those of the store's clock. Two equal turns may have been read at different times.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StoredTurn {
    /// The version of the conversation, on which the next write builds.
    pub version: Version,
    /// The sum of the records, as one record. Its [`append`](TurnRecord::append) contains all messages, and its
    /// [`keep`](TurnRecord::keep) is 0.
    pub record: TurnRecord,
    /// The time of the first record of the turn.
    pub since: Timestamp,
    /// The time of the last record.
    pub recorded: Timestamp,
    /// The time since which each tool use waits, in the order of [`waiting`](TurnRecord::waiting).
    pub waiting_since: Vec<Timestamp>,
    /// The time at which the turn was read.
    #[serde(skip)]
    pub now: Timestamp,
    /// The problem, if the records can't be read. The rest of the conversation can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl PartialEq for StoredTurn {
    fn eq(&self, other: &Self) -> bool {
        let facts = |turn: &Self| (turn.version, turn.since, turn.recorded);
        facts(self) == facts(other)
            && self.record == other.record
            && (&self.waiting_since, &self.damage) == (&other.waiting_since, &other.damage)
    }
}

impl StoredTurn {
    /// Returns the turn in flight after a store has written `record` at the time `now`, which resulted in `version`.
    /// `earlier` is the turn in flight before this write.
    pub fn fold(earlier: Option<Self>, mut record: TurnRecord, now: Timestamp, version: Version) -> Self {
        record.normalise();
        let earlier = earlier.filter(|earlier| earlier.record.turn == record.turn);
        let since = earlier.as_ref().map_or(now, |earlier| earlier.since);
        let waiting_since = record.waiting.iter().map(|waiting| {
            let before = earlier.as_ref().and_then(|earlier| earlier.waits_since(waiting));
            before.unwrap_or(now)
        });
        let waiting_since = waiting_since.collect();
        let mut record = match earlier {
            Some(earlier) => earlier.record.then(record),
            None => record,
        };
        // The turn contains no mark. Stores return the mark in `Stored::mark`, because it is valid only until the next
        // write.
        (record.keep, record.mark) = (0, None);
        let damage = record.damage().map(str::to_owned);
        Self { version, record, since, recorded: now, waiting_since, now, damage }
    }

    /// Reads a turn of any kind. A turn that this version of the crate can't read must not prevent the conversation
    /// from being read, so it becomes a damaged turn.
    pub(in crate::store) fn deserialize_any<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Box<Self>>, D::Error> {
        let Some(value) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
        let head = value.pointer("/record/head").and_then(|head| NodeId::deserialize(head).ok());
        let id = value.pointer("/record/turn").and_then(|turn| TurnId::deserialize(turn).ok());
        Ok(Some(Box::new(Self::deserialize(value).unwrap_or_else(|error: serde_json::Error| Self {
            version: Version::new(0),
            record: TurnRecord { head, ..TurnRecord::unreadable(id.unwrap_or_default(), error.to_string()) },
            since: Timestamp(0),
            recorded: Timestamp(0),
            waiting_since: Vec::new(),
            now: Timestamp(0),
            damage: Some(error.to_string()),
        }))))
    }

    fn waits_since(&self, waiting: &PendingUse) -> Option<Timestamp> {
        let place = self.record.waiting.iter().position(|other| other.tool_use.id == waiting.tool_use.id)?;
        self.waiting_since.get(place).copied()
    }

    /// Returns whether the turn builds on this head of its conversation. If not, the records are void.
    pub fn is_on(&self, head: Option<NodeId>) -> bool {
        self.record.head == head
    }

    /// Returns the pending messages: those of the turn so far.
    pub fn pending(&self) -> &[Arc<Message>] {
        &self.record.append
    }

    /// Returns the open approvals with their times by the store's clock, in the order of the tool uses.
    pub fn approvals(&self) -> Vec<PendingUse> {
        let times = self.waiting_since.iter().copied().chain(std::iter::repeat(self.recorded));
        let mut waiting = self.record.waiting.clone();
        waiting.iter_mut().zip(times).for_each(|(pause, since)| pause.begin(since));
        waiting
    }
}

// ---- summary ----

/// The turns in flight to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Turns {
    /// The turns with open approvals. An approval that does not [survive](PendingUse::survives) the end of its process is
    /// open only while the conversation has an owner.
    Waiting,
    /// The turns that no process continues. Their conversations have no owner. In addition, each of these turns waits
    /// for more than decisions, or the time limit of one of its approvals has passed.
    Left,
    /// All turns.
    All,
}

/// The entry of a turn in flight in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TurnSummary {
    /// The conversation's id.
    pub id: ConversationId,
    /// The conversation's labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The current owner of the conversation, if the store supports ownership.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// The current version of the conversation.
    pub version: Version,
    /// The id of the turn.
    pub turn: TurnId,
    /// The format of the turn's record.
    pub format: u32,
    /// The number of restarts since the turn last made progress.
    pub lives: u32,
    /// Whether the last owner handed the turn over in an orderly way.
    pub orderly: bool,
    /// The time of the first record of the turn.
    pub since: Timestamp,
    /// The time of the last record.
    pub recorded: Timestamp,
    /// The open approvals, with times of the store's clock, in the order of the tool uses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub approvals: Vec<PendingUse>,
    /// The position in the list, after which the next page begins. Its time is the one by which the list is sorted.
    pub position: Position,
    /// The time of the list, by the store's clock.
    #[serde(skip)]
    pub now: Timestamp,
    /// The problem, if the turn can't be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl From<&TurnSummary> for Position {
    fn from(summary: &TurnSummary) -> Self {
        summary.position.clone()
    }
}

impl TurnSummary {
    /// Returns the entry that a turn has in the list of all turns.
    pub fn new(id: ConversationId, turn: &StoredTurn) -> Self {
        Self {
            position: Position { updated: turn.since, id: id.clone() },
            id,
            labels: Labels::NONE,
            owner: None,
            version: turn.version,
            turn: turn.record.turn,
            format: turn.record.format,
            lives: turn.record.lives,
            orderly: turn.record.orderly,
            since: turn.since,
            recorded: turn.recorded,
            approvals: turn.approvals(),
            now: turn.now,
            damage: turn.damage.clone(),
        }
    }

    /// Returns the entry as the list `which` shows it at the time `now`, or `None` if the turn does not belong to this
    /// list.
    pub(in crate::store) fn listed(mut self, which: Turns, now: Timestamp) -> Option<Self> {
        self.now = now;
        let only_waits =
            !self.approvals.is_empty() && self.approvals.iter().all(|approval| approval.survives);
        let is_expired = self.approvals.iter().any(|approval| approval.has_expired(now));
        let is_owned = self.owner.is_some();
        self.approvals.retain(|approval| approval.survives || is_owned);
        let time = match which {
            Turns::Waiting => self.approvals.iter().filter_map(|approval| approval.since).min(),
            Turns::Left => (!is_owned && (!only_waits || is_expired)).then_some(self.since),
            Turns::All => Some(self.since),
        };
        self.position = Position { updated: time?, id: self.id.clone() };
        Some(self)
    }

    /// Returns the entry with the time by which the list is sorted, as the database has computed it. If the
    /// conversation has no owner, removes the approvals that do not survive the end of their process.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(in crate::store) fn aged(mut self, age: Timestamp) -> Self {
        let is_owned = self.owner.is_some();
        self.approvals.retain(|approval| approval.survives || is_owned);
        self.position.updated = age;
        self
    }

    /// Sorts these entries, and returns those that are on this page.
    pub(in crate::store) fn page(mut all: Vec<Self>, page: &Page) -> Vec<Self> {
        let key = |position: &Position| (position.updated, position.id.clone());
        if let Some(after) = &page.after {
            all.retain(|entry| key(&entry.position) > key(after));
        }
        all.sort_by_cached_key(|entry| key(&entry.position));
        all.into_iter().skip(page.offset).take(page.limit).collect()
    }
}

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{PendingUse, TurnRecord};
use crate::{
    message::{Message, Timestamp, TurnId},
    store::Version,
    tree::NodeId,
};

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

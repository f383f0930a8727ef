use serde::{Deserialize, Serialize};

use super::{PendingUse, StoredTurn};
use crate::{
    message::{Timestamp, TurnId},
    store::{ConversationId, Labels, Owner, Page, Position, Version},
};

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

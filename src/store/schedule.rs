//! The schedules of conversations, as stores keep them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::{Change, Page, Store};
use super::{ConversationId, Position};
use crate::{message::Timestamp, run::Schedule};

/// The greatest number of schedules of a conversation.
pub(crate) const MAX_SCHEDULES: usize = 64;

/// A change to a schedule of a conversation: [`Change::Schedule`].
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScheduleChange {
    /// The name of the schedule, unique in the conversation.
    pub name: String,
    /// The new schedule. `None` removes it.
    pub entry: Option<ScheduleEntry>,
    /// The time and the number of the stored schedule that the change replaces. If the conversation has no such schedule
    /// under this name, the change is a conflict. `None` replaces any schedule, or none.
    pub was: Option<(Timestamp, u32)>,
}

impl ScheduleChange {
    /// Creates a change that sets or removes the schedule with this name.
    pub fn new(name: impl Into<String>, entry: Option<ScheduleEntry>) -> Self {
        Self { name: name.into(), entry, was: None }
    }

    crate::setters::setters! {
        /// Returns the same change for a stored schedule with this time and this number only.
        pub fn with_was(self, due: Timestamp, rev: u32) { self.was = Some((due, rev)) }
    }
}

/// A schedule with the time at which its prompt is sent next.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ScheduleEntry {
    /// The time at which the prompt is sent next, by the store's clock.
    pub due: Timestamp,
    /// A number that distinguishes the schedule from earlier ones with its name.
    pub rev: u32,
    /// The schedule.
    pub schedule: Schedule,
}

impl ScheduleEntry {
    /// Creates an entry.
    pub fn new(due: Timestamp, rev: u32, schedule: Schedule) -> Self {
        Self { due, rev, schedule }
    }
}

/// The schedules to list.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Schedules {
    /// All schedules.
    All,
    /// The schedules of this conversation.
    Of(ConversationId),
    /// The schedules whose time has passed, or passes within this duration. Those of conversations whose stored turn
    /// needs nothing but decisions are left out, because their prompts would only be staged.
    Within(Duration),
}

/// A list of schedules.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ScheduleList {
    /// The time of the list, by the store's clock.
    pub now: Timestamp,
    /// The schedules on the page.
    pub schedules: Vec<Scheduled>,
}

/// A schedule of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Scheduled {
    /// The conversation's id.
    pub id: ConversationId,
    /// The name of the schedule.
    pub name: String,
    /// The time at which the prompt is sent next, by the store's clock.
    pub due: Timestamp,
    /// A number that distinguishes the schedule from earlier ones with its name.
    pub rev: u32,
    /// The schedule. It has an empty prompt if it can't be read.
    pub schedule: Schedule,
    /// The problem, if the schedule can't be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl From<&Scheduled> for Position {
    fn from(scheduled: &Scheduled) -> Self {
        Self { updated: scheduled.due, id: scheduled.id.clone() }
    }
}

impl Scheduled {
    pub(in crate::store) fn new(id: ConversationId, name: String, entry: ScheduleEntry) -> Self {
        let ScheduleEntry { due, rev, schedule } = entry;
        Self { id, name, due, rev, schedule, damage: None }
    }
}

impl ScheduleList {
    pub(in crate::store) fn new(now: Timestamp) -> Self {
        Self { now, schedules: Vec::new() }
    }

    /// Returns the number of entries that a store reads for a page of this size, so that [`cut`](Self::cut) finds the
    /// whole group at its end.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(in crate::store) const fn read_for(limit: usize) -> usize {
        limit.saturating_add(MAX_SCHEDULES)
    }

    /// Cuts a list that begins where the page does. A position does not tell the schedules of a conversation with the same
    /// time apart, so the page contains all of them or none.
    pub(in crate::store) fn cut(mut self, limit: usize) -> Self {
        let schedules = &mut self.schedules;
        let Some(last) = limit.checked_sub(1).and_then(|last| schedules.get(last)) else {
            schedules.truncate(limit);
            return self;
        };
        let key = (last.due, last.id.clone());
        let rest = schedules[limit..].iter().take_while(|entry| (entry.due, &entry.id) == (key.0, &key.1));
        let end = limit + rest.count();
        schedules.truncate(end);
        self
    }
}

//! The rows of schedules.

use super::{DatabaseRow, conversation_id, json};
use crate::{
    message::Timestamp,
    run::{Prompt, Schedule},
    store::{ConversationId, ScheduleChange, ScheduleEntry, Scheduled, StoreError},
};

/// A change to a schedule, as columns.
pub(in crate::store) struct ScheduleRowChange {
    pub(in crate::store) name: String,
    /// The time, the number and the JSON of the new schedule.
    pub(in crate::store) entry: Option<(i64, i64, String)>,
    /// The time and the number of the replaced schedule.
    pub(in crate::store) was: Option<(i64, i64)>,
}

impl ScheduleRowChange {
    pub(in crate::store) fn of(id: &ConversationId, change: ScheduleChange) -> Result<Self, StoreError> {
        let entry = change.entry.map(|ScheduleEntry { due, rev, schedule }| {
            json::encode(id, &schedule).map(|schedule| (millis(due), rev.into(), schedule))
        });
        let was = change.was.map(|(due, rev)| (millis(due), rev.into()));
        Ok(Self { name: change.name, entry: entry.transpose()?, was })
    }
}

/// Returns a time in the form in which it is stored. Times that are too large for the column are limited. No real clock
/// reaches such times.
pub(in crate::store) fn millis(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

/// Decodes a schedule from these columns: id of the conversation, name, time, number, schedule.
pub(in crate::store) fn scheduled<C: DatabaseRow>(
    row: &C,
    at: usize,
    place: &str,
) -> Result<Scheduled, C::Misread> {
    let id = conversation_id(row, at, place)?;
    let (name, text) = (row.lossy(at + 1)?.unwrap_or_default(), row.lossy(at + 4)?.unwrap_or_default());
    let (due, rev) = (Timestamp(row.bits(at + 2)?), row.small(at + 3)?);
    let (schedule, damage) = match json::parse(&text) {
        Ok(schedule) => (schedule, None),
        Err(problem) => (Schedule::at(due, Prompt::default()), Some(problem)),
    };
    Ok(Scheduled { damage, ..Scheduled::new(id, name, ScheduleEntry::new(due, rev, schedule)) })
}

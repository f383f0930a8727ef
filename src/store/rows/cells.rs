//! The columns that both databases select in one order, and their decoding.

use std::borrow::Cow;

use super::{Origin, ReadTurn};
use crate::{
    message::{MessageId, Purpose, RequestEnd, Timestamp, Usage, UsageRow},
    store::{ConversationId, Labels, Owner, StoreError, Stored, Summary, TitleBy, Version, json},
};

/// A row of a database.
pub(in crate::store) trait Cells {
    /// The error of a column that can't be read.
    type Misread: From<StoreError>;

    fn int(&self, column: usize) -> Result<Option<i64>, Self::Misread>;
    fn real(&self, column: usize) -> Result<Option<f64>, Self::Misread>;
    fn flag(&self, column: usize) -> Result<bool, Self::Misread>;
    fn time(&self, column: usize) -> Result<Timestamp, Self::Misread>;
    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, Self::Misread>;

    /// Returns a text that may contain U+0000, or a description of the problem if another program has written an invalid
    /// text.
    fn any_text(&self, column: usize) -> Result<Result<Option<String>, String>, Self::Misread>;

    /// Returns a text, with U+FFFD in place of invalid bytes, which another program may have written.
    fn lossy(&self, column: usize) -> Result<Option<String>, Self::Misread> {
        Ok(self.text(column)?.map(Cow::into_owned))
    }

    /// Returns a number that the database stores with the same bits.
    fn bits(&self, column: usize) -> Result<u64, Self::Misread> {
        Ok(self.int(column)?.unwrap_or_default().cast_unsigned())
    }

    /// Returns a number, limited to the range of numbers that this crate writes.
    fn small(&self, column: usize) -> Result<u32, Self::Misread> {
        Ok(u32::try_from(self.int(column)?.unwrap_or_default().max(0)).unwrap_or(u32::MAX))
    }
}

pub(in crate::store) fn conversation_id<C: Cells>(
    row: &C,
    column: usize,
    place: &str,
) -> Result<ConversationId, C::Misread> {
    let id = ConversationId::new(row.lossy(column)?.unwrap_or_default());
    let damaged =
        |problem: String| StoreError::damaged(format!("the id of a conversation in {place}"), problem);
    Ok(id.map_err(|error| damaged(error.to_string()))?)
}

/// Returns the current owner. This column contains the owner's name, and the next column contains its address.
pub(in crate::store) fn owner<C: Cells>(row: &C, column: usize) -> Result<Option<Owner>, C::Misread> {
    let (name, address) = (row.lossy(column)?, row.lossy(column + 1)?);
    Ok(name.map(|name| Owner { address, ..Owner::new(name) }))
}

/// Returns the labels, or a description of the problem if another program has written invalid labels.
pub(in crate::store) fn labels<C: Cells>(
    row: &C,
    column: usize,
) -> Result<Result<Labels, String>, C::Misread> {
    Ok(row.lossy(column)?.map_or(Ok(Labels::default()), |labels| json::parse(&labels)))
}

/// Decodes an entry of a list from these columns: id, version, created, updated, title, owner, owner's address, labels,
/// number of open approvals (null if no turn is in flight).
pub(in crate::store) fn summary<C: Cells>(row: &C, place: &str) -> Result<Summary, C::Misread> {
    let id = conversation_id(row, 0, place)?;
    let (title, labels, waiting) = (row.any_text(4)?, labels(row, 7)?, row.int(8)?);
    let damage = title.as_ref().err().map(|problem| format!("its title: {problem}"));
    Ok(Summary {
        updated: row.time(3)?,
        damage: damage.or_else(|| labels.as_ref().err().map(|problem| format!("its labels: {problem}"))),
        labels: labels.unwrap_or_default(),
        title: title.unwrap_or_default(),
        owner: owner(row, 5)?,
        in_flight: waiting.is_some(),
        waiting: row.small(8)?,
        ..Summary::new(id, Version::new(row.bits(1)?), row.time(2)?)
    })
}

/// Decodes a conversation without nodes, cursors and turn from these columns: version, created, updated, title, state,
/// head, id of the next node, labels, end of the last run and its prompts, mark and its version, whether a person set the
/// title, sum of the ledger.
pub(in crate::store) fn stored<C: Cells>(row: &C, origin: &Origin<'_>) -> Result<Stored, C::Misread> {
    let labels = labels(row, 7)?.map_err(|problem| origin.damaged("the labels", problem))?;
    let title = row.any_text(3)?.map_err(|problem| origin.damaged("the title", problem))?;
    let state = row.text(4)?.ok_or_else(|| origin.damaged("the state", "it is missing"))?;
    let version = Version::new(row.bits(0)?);
    let title_by = if row.flag(12)? { TitleBy::Person } else { TitleBy::Derived };
    let mut stored = Stored::new(version, row.time(1)?, origin.state(&state, title, title_by, labels)?);
    stored.updated = row.time(2)?;
    (stored.head, stored.next) = (origin.head(row.int(5)?)?, origin.next(row.int(6)?)?);
    stored.last_run = origin.last_run(row.text(8)?.as_deref(), row.text(9)?.as_deref())?;
    stored.mark = Origin::mark(row.lossy(10)?.as_deref(), row.int(11)?, version);
    let (requests, usage) = sum(row, 13)?;
    stored.used.add(requests, usage);
    Ok(stored)
}

/// Decodes a row of the usage ledger from these columns: the usage, purpose, turn, step, time, model, end, message.
pub(in crate::store) fn usage_row<C: Cells>(row: &C, origin: &Origin<'_>) -> Result<UsageRow, C::Misread> {
    let damaged = |what: &str| origin.damaged("a row of the usage ledger", format!("its {what} is invalid"));
    let turn = row.text(7)?.map(|turn| turn.parse().map_err(|_| damaged("turn")));
    let end = RequestEnd::named(&row.text(11)?.unwrap_or_default()).ok_or_else(|| damaged("end"))?;
    let message = row.any_text(12)?.map_err(|_| damaged("message"))?;
    Ok(UsageRow {
        purpose: Purpose::named(&row.text(6)?.unwrap_or_default()).ok_or_else(|| damaged("purpose"))?,
        turn: turn.transpose()?,
        step: row.int(8)?.and_then(|step| u32::try_from(step).ok()),
        message: message.map(MessageId::from),
        model: row.any_text(10)?.map_err(|_| damaged("model"))?,
        ..UsageRow::new(end, usage(row, 0)?).with_at(Timestamp(row.bits(9)?))
    })
}

/// Decodes the usage in this column and the columns after it: tokens and cost.
fn usage<C: Cells>(row: &C, column: usize) -> Result<Usage, C::Misread> {
    let mut usage = Usage::default()
        .with_input(row.bits(column)?)
        .with_cache_read(row.bits(column + 1)?)
        .with_cache_write(row.bits(column + 2)?)
        .with_output(row.bits(column + 3)?)
        .with_reasoning(row.bits(column + 4)?);
    usage.cost = row.real(column + 5)?;
    Ok(usage)
}

/// Decodes the sum in this column and the columns after it: the number of requests and their usage.
pub(in crate::store) fn sum<C: Cells>(row: &C, column: usize) -> Result<(u64, Usage), C::Misread> {
    Ok((row.bits(column)?, usage(row, column + 1)?))
}

/// Decodes a turn in flight without messages and approvals, which was read at this time. Its columns begin at `at`: turn,
/// record, head, since, recorded.
pub(in crate::store) fn turn<C: Cells>(row: &C, at: usize, now: Timestamp) -> Result<ReadTurn, C::Misread> {
    Ok(ReadTurn {
        turn: row.lossy(at)?.unwrap_or_default(),
        record: row.lossy(at + 1)?.unwrap_or_default(),
        head: row.int(at + 2)?,
        since: row.time(at + 3)?,
        recorded: row.time(at + 4)?,
        now,
        ..ReadTurn::default()
    })
}

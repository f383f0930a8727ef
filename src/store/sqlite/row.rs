//! The row of a conversation, and the columns of any row.

use std::borrow::Cow;

use rusqlite::Connection;

use super::database::SqliteOperationError;
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Epoch, Owner, StoreError, Summary, Version,
        rows::{self, DatabaseRow},
    },
};

impl DatabaseRow for rusqlite::Row<'_> {
    type Misread = SqliteOperationError;

    fn int(&self, column: usize) -> Result<Option<i64>, SqliteOperationError> {
        Ok(self.get(column)?)
    }

    fn real(&self, column: usize) -> Result<Option<f64>, SqliteOperationError> {
        Ok(self.get(column)?)
    }

    fn flag(&self, column: usize) -> Result<bool, SqliteOperationError> {
        Ok(self.get(column)?)
    }

    fn time(&self, column: usize) -> Result<Timestamp, SqliteOperationError> {
        Ok(Timestamp(u64::try_from(self.get::<_, i64>(column)?).unwrap_or_default()))
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, SqliteOperationError> {
        Ok(self.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from)?.map(Cow::Borrowed))
    }

    // SQLite accepts any bytes as text. Invalid text in one conversation must not make a list of all conversations fail.
    fn any_text(&self, column: usize) -> Result<Result<Option<String>, String>, SqliteOperationError> {
        let bytes = self.get_ref(column)?.as_bytes_or_null().ok().flatten();
        let text = bytes.map(|bytes| std::str::from_utf8(bytes).map(str::to_owned)).transpose();
        Ok(text.map_err(|error| error.to_string()))
    }

    fn lossy(&self, column: usize) -> Result<Option<String>, SqliteOperationError> {
        let bytes = self.get_ref(column)?.as_bytes_or_null().ok().flatten();
        Ok(bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned()))
    }
}

/// The condition that a conversation has an owner, as in [`ConversationRowForWrite::is_held`].
pub(super) const HELD: &str = "(conversations.owner IS NOT NULL \
     AND conversations.expires > CAST(round(unixepoch('subsec') * 1000) AS INTEGER) \
     AND conversations.expires <= CAST(round(unixepoch('subsec') * 1000) AS INTEGER) + 2 * conversations.lasts)";

/// The labels of a conversation as a JSON object.
pub(super) const LABELS: &str =
    "(SELECT json_group_object(name, value) FROM labels WHERE conversation = conversations.key)";

/// Returns the columns of an entry in a list, as [`rows::summary`] expects them.
pub(super) fn listed() -> String {
    format!(
        "id, version, created, updated, title, iif({HELD}, owner, NULL), owner_address, {LABELS}, \
         (SELECT (SELECT count(*) FROM approvals WHERE approvals.conversation = turns.conversation) FROM turns \
          WHERE turns.conversation = key AND turns.head IS conversations.head)"
    )
}

/// Returns the entries of rows with the columns of [`listed`].
pub(super) fn summaries(
    found: &mut rusqlite::Rows<'_>,
    place: &str,
) -> Result<Vec<Summary>, SqliteOperationError> {
    let mut summaries = Vec::new();
    while let Some(row) = found.next()? {
        summaries.push(rows::summary(row, place)?);
    }
    Ok(summaries)
}

/// Returns the entry of the conversation with this key.
pub(super) fn summary(
    connection: &Connection,
    key: i64,
    place: &str,
) -> Result<Summary, SqliteOperationError> {
    let sql = format!("SELECT {} FROM conversations WHERE key = ?", listed());
    let mut query = connection.prepare_cached(&sql)?;
    let mut found = query.query([key])?;
    rows::summary(found.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?, place)
}

/// The facts that a write needs.
pub(super) struct ConversationRowForWrite {
    pub(super) key: i64,
    pub(super) version: Version,
    pub(super) updated: Timestamp,
    /// The head's id as a number. The number has not been checked.
    pub(super) head: Option<i64>,
    pub(super) epoch: Epoch,
    owner: Option<Owner>,
    expires: Timestamp,
    /// The duration of the lease in milliseconds.
    lasts: u64,
}

impl ConversationRowForWrite {
    pub(super) fn find(
        connection: &Connection,
        id: &ConversationId,
    ) -> Result<Option<Self>, SqliteOperationError> {
        let mut query = connection.prepare_cached(
            "SELECT key, version, updated, head, epoch, expires, lasts, owner, owner_address
             FROM conversations WHERE id = ?",
        )?;
        let mut found = query.query([id.as_str()])?;
        let Some(row) = found.next()? else { return Ok(None) };
        Ok(Some(Self {
            key: row.get(0)?,
            version: Version::new(row.bits(1)?),
            updated: Timestamp(row.bits(2)?),
            head: row.int(3)?,
            epoch: Epoch(row.bits(4)?),
            owner: rows::owner(row, 7)?,
            expires: Timestamp(row.bits(5)?),
            lasts: row.bits(6)?,
        }))
    }

    pub(super) fn get(connection: &Connection, id: &ConversationId) -> Result<Self, SqliteOperationError> {
        Self::find(connection, id)?.ok_or_else(|| StoreError::NotFound { id: id.clone() }.into())
    }

    /// Returns whether writes with this epoch are accepted: until a release or the next acquisition, even if the lease has
    /// expired.
    pub(super) fn accepts(&self, epoch: Epoch) -> bool {
        self.epoch == epoch && self.owner.is_some()
    }

    fn is_held(&self, now: Timestamp) -> bool {
        // If the clock was set back so far that a lease would last for more than twice its duration, the lease counts
        // as ended. A smaller difference makes the lease last longer, which is accepted.
        let furthest = now.0.saturating_add(self.lasts.saturating_mul(2));
        self.owner.is_some() && self.expires > now && self.expires.0 <= furthest
    }

    /// Returns the current owner.
    pub(super) fn owner(&self, now: Timestamp) -> Option<&Owner> {
        self.owner.as_ref().filter(|_| self.is_held(now))
    }
}

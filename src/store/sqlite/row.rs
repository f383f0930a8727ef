//! The row of a conversation.

use std::str::{self, Utf8Error};

use rusqlite::{Connection, OptionalExtension};

use super::database::Fault;
use crate::{
    message::Timestamp,
    store::{ConversationId, Epoch, Labels, Owner, StoreError, Summary, Version, json, rows::in_flight},
};

pub(super) struct Row {
    pub(super) key: i64,
    pub(super) id: String,
    pub(super) version: Version,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    /// The title, or the error that prevents reading it.
    pub(super) title: Result<Option<String>, Utf8Error>,
    /// The head's id as a number. The number has not been checked.
    pub(super) head: Option<i64>,
    pub(super) epoch: Epoch,
    /// The id of the next node as a number, if it is known. The number has not been checked.
    pub(super) next: Option<i64>,
    /// The labels as JSON. They are present if the row was read with [`Row::LISTED`].
    labels: Option<String>,
    /// The number of open approvals, if a turn is in flight and the row was read with [`Row::LISTED`].
    waiting: Option<i64>,
    owner: Option<Owner>,
    expires: Timestamp,
    /// The duration of the lease in milliseconds.
    lasts: u64,
}

impl Row {
    pub(super) const COLUMNS: &str = "key, id, version, created, updated, title, head, epoch, owner, owner_address, expires, lasts, next_node";
    /// The columns for lists, which also show the labels and the number of open approvals.
    pub(super) const LISTED: &str = "key, id, version, created, updated, title, head, epoch, owner, owner_address, \
         expires, lasts, next_node, \
         (SELECT json_group_object(name, value) FROM labels WHERE conversation = key), \
         (SELECT (SELECT count(*) FROM approvals WHERE approvals.conversation = turns.conversation) FROM turns \
          WHERE turns.conversation = key AND turns.head IS conversations.head)";

    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Self, rusqlite::Error> {
        // SQLite accepts any bytes as text. Invalid text in one conversation must not make a list of all conversations
        // fail.
        let text = |column| row.get_ref(column).map(|value| value.as_bytes_or_null().ok().flatten());
        let lossy = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let owner = text(8)?.map(|name| Owner::new(lossy(name)));
        let address = text(9)?.map(lossy);
        Ok(Self {
            key: row.get(0)?,
            id: row.get(1)?,
            version: Version::new(row.get::<_, i64>(2)?.cast_unsigned()),
            created: Timestamp(row.get::<_, i64>(3)?.cast_unsigned()),
            updated: Timestamp(row.get::<_, i64>(4)?.cast_unsigned()),
            title: text(5)?.map(|title| str::from_utf8(title).map(str::to_owned)).transpose(),
            head: row.get(6)?,
            epoch: Epoch(row.get::<_, i64>(7)?.cast_unsigned()),
            next: row.get(12)?,
            labels: if row.as_ref().column_count() > 13 { text(13)?.map(lossy) } else { None },
            waiting: if row.as_ref().column_count() > 14 { row.get(14)? } else { None },
            owner: match (owner, address) {
                (Some(owner), Some(address)) => Some(owner.at(address)),
                (owner, _) => owner,
            },
            expires: Timestamp(row.get::<_, i64>(10)?.cast_unsigned()),
            lasts: row.get::<_, i64>(11)?.cast_unsigned(),
        })
    }

    pub(super) fn find(connection: &Connection, id: &ConversationId) -> Result<Option<Self>, Fault> {
        Self::find_with(Self::COLUMNS, connection, id)
    }

    fn find_with(columns: &str, connection: &Connection, id: &ConversationId) -> Result<Option<Self>, Fault> {
        let mut query =
            connection.prepare_cached(&format!("SELECT {columns} FROM conversations WHERE id = ?"))?;
        Ok(query.query_row([id.as_str()], Self::read).optional()?)
    }

    pub(super) fn get(connection: &Connection, id: &ConversationId) -> Result<Self, Fault> {
        Self::find(connection, id)?.ok_or_else(|| StoreError::NotFound { id: id.clone() }.into())
    }

    /// Returns the row of this conversation, read with [`Row::LISTED`].
    pub(super) fn get_listed(connection: &Connection, id: &ConversationId) -> Result<Self, Fault> {
        let row = Self::find_with(Self::LISTED, connection, id)?;
        row.ok_or_else(|| StoreError::NotFound { id: id.clone() }.into())
    }

    /// Returns the row with this key, read with [`Row::LISTED`].
    pub(super) fn listed(connection: &Connection, key: i64) -> Result<Self, Fault> {
        let columns = Self::LISTED;
        let mut query =
            connection.prepare_cached(&format!("SELECT {columns} FROM conversations WHERE key = ?"))?;
        Ok(query.query_row([key], Self::read)?)
    }

    /// Returns the id, or an error if another program has written an invalid id.
    pub(super) fn conversation_id(&self, place: &str) -> Result<ConversationId, StoreError> {
        ConversationId::new(&self.id).map_err(|error| {
            StoreError::damaged(format!("the id of a conversation in {place}"), error.to_string())
        })
    }

    /// Returns the labels, or a description of the problem if another program has written invalid labels.
    pub(super) fn labels(&self) -> Result<Labels, String> {
        self.labels.as_deref().map_or(Ok(Labels::default()), json::parse)
    }

    /// Returns whether a lease with this epoch is still valid.
    pub(super) fn is_held_under(&self, epoch: Epoch, now: Timestamp) -> bool {
        self.epoch == epoch && self.is_held(now)
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

    pub(super) fn into_summary(self, id: ConversationId, now: Timestamp) -> Summary {
        let labels = self.labels();
        let (in_flight, waiting) = in_flight(self.waiting);
        let title = self.title.as_ref().err().map(|error| format!("its title: {error}"));
        Summary {
            updated: self.updated,
            owner: self.owner(now).cloned(),
            damage: title.or_else(|| labels.as_ref().err().map(|problem| format!("its labels: {problem}"))),
            labels: labels.unwrap_or_default(),
            title: self.title.unwrap_or_default(),
            in_flight,
            waiting,
            ..Summary::new(id, self.version, self.created)
        }
    }
}

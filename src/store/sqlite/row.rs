//! A conversation's row.

use rusqlite::{Connection, OptionalExtension};

use super::database::Fault;
use crate::{
    message::Timestamp,
    store::{ConversationId, Epoch, Owner, StoreError, Summary, Version},
    tree::NodeId,
};

pub(super) struct Row {
    pub(super) key: i64,
    pub(super) id: String,
    pub(super) version: Version,
    pub(super) created: Timestamp,
    pub(super) updated: Timestamp,
    pub(super) title: Option<String>,
    pub(super) head: Option<NodeId>,
    pub(super) epoch: Epoch,
    owner: Option<Owner>,
    expires: Timestamp,
}

impl Row {
    pub(super) const COLUMNS: &str =
        "key, id, version, created, updated, title, head, epoch, owner, owner_address, expires";

    pub(super) fn read(row: &rusqlite::Row<'_>) -> Result<Self, rusqlite::Error> {
        let owner = row.get::<_, Option<String>>(8)?.map(Owner::new);
        let address: Option<String> = row.get(9)?;
        Ok(Self {
            key: row.get(0)?,
            id: row.get(1)?,
            version: Version::new(row.get::<_, i64>(2)?.cast_unsigned()),
            created: Timestamp(row.get::<_, i64>(3)?.cast_unsigned()),
            updated: Timestamp(row.get::<_, i64>(4)?.cast_unsigned()),
            title: row.get(5)?,
            head: row.get::<_, Option<i64>>(6)?.and_then(|head| NodeId::new(head.cast_unsigned())),
            epoch: Epoch(row.get::<_, i64>(7)?.cast_unsigned()),
            owner: match (owner, address) {
                (Some(owner), Some(address)) => Some(owner.at(address)),
                (owner, _) => owner,
            },
            expires: Timestamp(row.get::<_, i64>(10)?.cast_unsigned()),
        })
    }

    pub(super) fn find(connection: &Connection, id: &ConversationId) -> Result<Option<Self>, Fault> {
        let mut query = connection
            .prepare_cached(&format!("SELECT {} FROM conversations WHERE id = ?", Self::COLUMNS))?;
        Ok(query.query_row([id.as_str()], Self::read).optional()?)
    }

    pub(super) fn get(connection: &Connection, id: &ConversationId) -> Result<Self, Fault> {
        Self::find(connection, id)?.ok_or_else(|| StoreError::NotFound { id: id.clone() }.into())
    }

    /// Whether a lease with this epoch lasts.
    pub(super) fn is_held_under(&self, epoch: Epoch, now: Timestamp) -> bool {
        self.owner.is_some() && self.epoch == epoch && self.expires > now
    }

    /// Who has the conversation now.
    pub(super) fn into_owner(self, now: Timestamp) -> Option<Owner> {
        self.owner.filter(|_| self.expires > now)
    }

    pub(super) fn into_summary(mut self, id: ConversationId, now: Timestamp) -> Summary {
        Summary {
            updated: self.updated,
            title: self.title.take(),
            owner: self.owner.filter(|_| self.expires > now),
            ..Summary::new(id, self.version, self.created)
        }
    }
}

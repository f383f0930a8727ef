//! Reading: each in one transaction, so that what is read is of one moment.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    database::{Database, Fault},
    row::Row,
};
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Page, StoreError, Stored, Summary,
        rows::{Origin, count},
    },
};

pub(super) fn load(
    connection: &mut Connection,
    database: &Database,
    id: &ConversationId,
) -> Result<Stored, Fault> {
    let transaction = connection.transaction()?;
    let row = Row::get(&transaction, id)?;
    let origin = Origin { id, place: &database.place() };
    let state: Option<String> = transaction
        .prepare_cached("SELECT state FROM states WHERE conversation = ?")?
        .query_row([row.key], |row| row.get(0))
        .optional()?;
    let state = state.ok_or_else(|| origin.damaged("the state", "it is missing"))?;
    let title = row.title.map_err(|error| origin.damaged("the title", error.to_string()))?;
    let mut stored = Stored::new(row.version, row.created, origin.state(&state, title)?);
    (stored.updated, stored.head) = (row.updated, origin.head(row.head)?);

    let mut nodes = transaction.prepare_cached(
        "SELECT id, parent, message, usage FROM nodes WHERE conversation = ? ORDER BY version, place",
    )?;
    let mut nodes = nodes.query([row.key])?;
    while let Some(row) = nodes.next()? {
        let text = |column| row.get_ref(column)?.as_str_or_null().map_err(rusqlite::Error::from);
        let message = text(2)?.unwrap_or_default();
        stored.nodes.push(origin.node(row.get(0)?, row.get(1)?, message, text(3)?)?);
    }
    let mut cursors = transaction.prepare_cached("SELECT node, child FROM cursors WHERE conversation = ?")?;
    let mut cursors = cursors.query([row.key])?;
    while let Some(row) = cursors.next()? {
        stored.cursors.extend([origin.cursor(row.get(0)?, row.get(1)?)?]);
    }
    Ok(stored)
}

pub(super) fn summary(connection: &mut Connection, id: &ConversationId) -> Result<Summary, Fault> {
    Ok(Row::get(connection, id)?.into_summary(id.clone(), Timestamp::now()))
}

pub(super) fn list(
    connection: &mut Connection,
    database: &Database,
    page: Page,
) -> Result<Vec<Summary>, Fault> {
    let mut query = connection.prepare_cached(&format!(
        "SELECT {} FROM conversations ORDER BY updated DESC, id LIMIT ? OFFSET ?",
        Row::COLUMNS
    ))?;
    let now = Timestamp::now();
    let rows = query.query_map(params![count(page.limit), count(page.offset)], Row::read)?;
    rows.map(|row| {
        let row = row?;
        let id = ConversationId::new(&row.id).map_err(|error| {
            StoreError::damaged(
                format!("the id of a conversation in {}", database.place()),
                error.to_string(),
            )
        })?;
        Ok(row.into_summary(id, now))
    })
    .collect()
}

//! Writes, each in one statement. If the statement changes no row, a second statement finds the reason.

use std::{collections::BTreeMap, sync::OnceLock, time::Duration};

use tokio_postgres::types::ToSql;

use super::{
    connect::PgConnection, error::PostgresOperationError, ledger, schedules, server::PostgresPools, turns,
};
use crate::{
    store::{
        Change, ConversationId, Labels, Lease, StoreError, Version, Write, WriteId,
        rows::{ColumnChange, NodeRow, RowChanges, RowErrorContext, number},
        words::spaced,
    },
    tree::Erased,
};

/// The number of attempts if a statement changes no row and the second statement finds no reason. This happens if the
/// conversation was deleted or created between the two statements.
pub(super) const TRIES: usize = 5;
/// The maximum size of a write in bytes. The server ends the connection at a message of 1 GiB, which looks like an
/// outage.
const MAX_BYTES: usize = 1_000_000_000;

pub(super) async fn write(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    write: &Write,
    change: &Change,
) -> Result<Version, PostgresOperationError> {
    if let Change::Schedule(change) = change {
        return schedules::write(connection, server, id, change).await;
    }
    let rows = RowChanges::of(id, change.clone())?;
    check_size(id, &rows, MAX_BYTES)?;
    match change {
        Change::Create(_) => create(connection, server, id, write.id, &rows).await,
        Change::Erase(erased) => erase(connection, server, id, write, erased).await,
        _ => self::change(connection, server, id, write, &rows).await,
    }
}

/// Fails if the long values of the rows have more than `limit` bytes. The session can then divide the write.
fn check_size(id: &ConversationId, rows: &RowChanges, limit: usize) -> Result<(), StoreError> {
    let texts = |texts: &[String]| texts.iter().map(String::len).sum::<usize>();
    let nodes = rows.nodes.iter().map(|node| node.message.len() + node.words().len());
    let record = rows.turn.record.as_ref();
    let size = nodes.sum::<usize>()
        + rows.files.bytes.iter().map(Vec::len).sum::<usize>()
        + rows.run.as_ref().map_or(0, |run| run.ending.len() + run.prompts.as_ref().map_or(0, String::len))
        + record.map_or(0, |record| record.record.len() + texts(&record.messages) + texts(&record.approvals));
    if size <= limit {
        return Ok(());
    }
    let problem = format!("the write has {size} bytes, but PostgreSQL accepts at most {limit}");
    Err(StoreError::Unstorable { id: id.clone(), problem })
}

async fn create(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    write: WriteId,
    change: &RowChanges,
) -> Result<Version, PostgresOperationError> {
    let (ColumnChange::Set(title), ColumnChange::Set(state)) = (&change.title, &change.state) else {
        unreachable!("a whole state sets both");
    };
    let (names, values) = label_columns(&change.labels).unwrap_or_default();
    let create = connection.prepare_cached(&server.sql.create).await?;
    for _ in 0..TRIES {
        let version = Version::first();
        let first = version.get().cast_signed();
        let created = connection
            .query_opt(
                &create,
                &[
                    &id.as_str(),
                    // The first epoch equals the version, which is random. So a lease of an earlier conversation with
                    // this id is not valid for the new conversation.
                    &first,
                    &encode_title(title.as_deref()),
                    &state,
                    &write.as_bytes().as_slice(),
                    &names,
                    &values,
                    &change.title_by_person,
                    &spaced(title.as_deref().unwrap_or_default()),
                ],
            )
            .await?;
        if created.is_some() {
            return Ok(version);
        }
        let created_by = connection.prepare_cached(&server.sql.created_by).await?;
        if let Some(row) = connection.query_opt(&created_by, &[&id.as_str()]).await? {
            return if row.try_get::<_, &[u8]>(1)? == write.as_bytes() {
                Ok(Version::new(row.try_get::<_, i64>(0)?.cast_unsigned()))
            } else {
                Err(StoreError::AlreadyExists { id: id.clone() }.into())
            };
        }
    }
    Err(restless(id).into())
}

async fn change(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    write: &Write,
    change: &RowChanges,
) -> Result<Version, PostgresOperationError> {
    let RowChanges {
        head,
        title,
        title_by_person,
        state,
        labels,
        nodes,
        cursors,
        usage,
        run,
        turn: flight,
        files,
        is_record,
        ..
    } = change;
    let (sets_head, head) = match head {
        ColumnChange::Keep => (false, None),
        ColumnChange::Set(head) => (true, head.map(number)),
    };
    let (sets_title, title) = match title {
        ColumnChange::Keep => (false, None),
        ColumnChange::Set(title) => (true, title.as_deref()),
    };
    let (title, title_words) = (encode_title(title), title.map_or_else(|| spaced(""), spaced));
    let state = match state {
        ColumnChange::Keep => None,
        ColumnChange::Set(state) => Some(state),
    };
    let ids: Vec<_> = nodes.iter().map(|node| number(node.id)).collect();
    let parents: Vec<_> = nodes.iter().map(|node| node.parent.map(number)).collect();
    let messages: Vec<_> = nodes.iter().map(|node| node.message.as_str()).collect();
    let usages: Vec<_> = nodes.iter().map(|node| node.usage.as_deref()).collect();
    let left_open: Vec<_> = nodes.iter().map(|node| node.left_open).collect();
    let words: Vec<_> = nodes.iter().map(NodeRow::words).collect();
    // The map contains each cursor once, with its last value.
    let cursors: BTreeMap<_, _> =
        cursors.iter().map(|(node, child)| (number(*node), number(*child))).collect();
    let (cursors, children): (Vec<_>, Vec<_>) = cursors.into_iter().unzip();

    let labels = label_columns(labels);
    let (names, values) = labels.unzip();
    let usage = ledger::encode(usage);
    let (turn, ending, prompts) = match run {
        Some(run) => (run.turn.as_deref(), Some(run.ending.as_str()), run.prompts.as_deref()),
        None => (None, None, None),
    };
    let (statement, mut more) = match &flight.record {
        Some(record) => (&server.sql.record, turns::params(record)),
        None => (&server.sql.write, vec![&flight.ends as &(dyn ToSql + Sync)]),
    };
    let files: [&(dyn ToSql + Sync); 4] = [&files.digests, &files.bytes, &files.places, &files.uses];
    more.extend(files);
    let params: [&(dyn ToSql + Sync); 23] = [
        &sets_head,
        &head,
        &sets_title,
        &title,
        &state,
        &ids,
        &parents,
        &messages,
        &usages,
        &cursors,
        &children,
        &names,
        &values,
        &usage,
        &turn,
        &ending,
        is_record,
        &prompts,
        &flight.mark,
        title_by_person,
        &left_open,
        &words,
        &title_words,
    ];
    perform(connection, server, id, write, statement, &[&params[..], &more].concat()).await
}

/// Removes nodes.
async fn erase(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    write: &Write,
    erased: &Erased,
) -> Result<Version, PostgresOperationError> {
    let nodes: Vec<_> = erased.nodes.iter().map(|node| number(*node)).collect();
    let (head, next) = (erased.head.map(number), number(erased.next));
    // The statement changes nothing if the conversation no longer has this version, so the end that is read here is
    // still the last one.
    let last_run = connection.prepare_cached(&server.sql.last_run).await?;
    let row = connection.query_opt(&last_run, &[&id.as_str(), &write.base.get().cast_signed()]).await?;
    let run = match &row {
        None => None,
        Some(row) => {
            let origin = RowErrorContext { id, place: &server.place };
            origin.run_after_erasure(row.try_get(0)?, row.try_get(1)?, erased)?
        }
    };
    let (ending, prompts) = run.map(|run| (run.ending, run.prompts)).unzip();
    let prompts = prompts.flatten();
    let more: [&(dyn ToSql + Sync); 6] = [&head, &next, &nodes, &ending, &prompts, &erased.title];
    perform(connection, server, id, write, &server.sql.erase, &more).await
}

/// Performs a write with a statement. The first parameters of the statement are those of the write, and `more` follows.
async fn perform(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    write: &Write,
    statement: &str,
    more: &[&(dyn ToSql + Sync)],
) -> Result<Version, PostgresOperationError> {
    let (base, version) = (write.base.get().cast_signed(), write.base.next());
    let led_to = version.get().cast_signed();
    let epoch = write.epoch.map(|epoch| epoch.0.cast_signed());
    let (name, write_id) = (id.as_str(), write.id.as_bytes().as_slice());
    let first: [&(dyn ToSql + Sync); 5] = [&name, &base, &led_to, &write_id, &epoch];
    let params = [&first[..], more].concat();
    for _ in 0..TRIES {
        let statement = connection.prepare_cached(statement).await?;
        let written = connection.query_opt(&statement, &params).await?;
        if written.is_some() {
            return Ok(version);
        }
        let examine = connection.prepare_cached(&server.sql.examine).await?;
        let row = connection.query_opt(&examine, &[&id.as_str(), &led_to, &epoch]).await?;
        let row = row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
        let current = Version::new(row.try_get::<_, i64>(0)?.cast_unsigned());
        let holds: Option<bool> = row.try_get(1)?;
        let earlier: Option<&[u8]> = row.try_get(2)?;
        if current != write.base && earlier == Some(write.id.as_bytes()) {
            return Ok(version);
        }
        if write.epoch.is_some() && holds != Some(true) {
            return Err(StoreError::LeaseLost { id: id.clone() }.into());
        }
        if current != write.base {
            return Err(StoreError::Conflict { id: id.clone(), current }.into());
        }
    }
    Err(restless(id).into())
}

/// Deletes a conversation, under a lease if one is given, and keeps the sums of its usage. `found` is the key of the row
/// that the first attempt found under this id. A repetition after a lost response uses this key, so it does not delete a
/// later conversation.
pub(super) async fn delete(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    lease: Option<&Lease>,
    found: &OnceLock<i64>,
) -> Result<(), PostgresOperationError> {
    let key = if let Some(key) = found.get() {
        *key
    } else {
        let find = connection.prepare_cached(&server.sql.find).await?;
        let Some(row) = connection.query_opt(&find, &[&id.as_str()]).await? else {
            return Ok(());
        };
        let key = row.try_get(0)?;
        *found.get_or_init(|| key)
    };
    let epoch = lease.map(|lease| lease.epoch.0.cast_signed());
    for _ in 0..TRIES {
        let current = connection.prepare_cached(&server.sql.version).await?;
        let Some(row) = connection.query_opt(&current, &[&key, &epoch]).await? else { return Ok(()) };
        let is_held: Option<bool> = row.try_get(1)?;
        if lease.is_some() && is_held != Some(true) {
            return Err(StoreError::LeaseLost { id: id.clone() }.into());
        }
        let version: i64 = row.try_get(0)?;
        let delete = connection.prepare_cached(&server.sql.delete).await?;
        if connection.execute(&delete, &[&key, &version, &epoch]).await? > 0 {
            return Ok(());
        }
    }
    Err(restless(id).into())
}

/// Returns the error for a conversation that other processes create, change or delete faster than its state can be
/// read.
pub(super) fn restless(id: &ConversationId) -> StoreError {
    StoreError::Busy { place: format!("conversation {id}"), waited: Duration::ZERO }
}

/// Returns the names and the values of labels, if a write replaces the labels.
fn label_columns(labels: &ColumnChange<Labels>) -> Option<(Vec<&str>, Vec<&str>)> {
    match labels {
        ColumnChange::Keep => None,
        ColumnChange::Set(labels) => Some(labels.iter().unzip()),
    }
}

/// Returns a title as JSON, because the database type `text` can't contain U+0000.
fn encode_title(title: Option<&str>) -> Option<String> {
    title.map(|title| serde_json::Value::from(title).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        message::Message,
        store::Commit,
        tree::{Node, NodeId},
    };

    #[test]
    fn write_of_more_bytes_than_the_server_accepts_is_unstorable() {
        let (id, node) = (ConversationId::generate(), NodeId::new(1).unwrap());
        let nodes = [Node::new(node, None, Message::user("word ".repeat(100)))];
        let commit = Change::Commit(Commit::new(Some(node)).with_nodes(nodes));
        let rows = RowChanges::of(&id, commit).unwrap();
        assert!(check_size(&id, &rows, 2000).is_ok());
        let refused = check_size(&id, &rows, 1000);
        assert!(matches!(refused, Err(StoreError::Unstorable { .. })), "{refused:?}");
    }
}

//! Writes, each in one transaction that excludes other writers.
//!
//! The version, the lease and the content are checked and written in one transaction, so the lock that each write takes
//! anyway also keeps former owners out. A process that is stopped inside a transaction holds the lock, and no other
//! process can break it. Therefore the transaction only writes and syncs, and everything is encoded before. A separate
//! process for the writes could be killed instead, but each write would then need a round trip to it.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    database::{SqliteDatabase, SqliteOperationError, begin},
    ledger,
    read::last_run,
    row::ConversationRowForWrite,
    search, turns,
};
pub(super) use crate::store::rows::millis;
use crate::{
    message::{Content, Message, Timestamp},
    store::{
        Commit, ConversationId, Epoch, Lease, Owner, StoreError, Version, Write, WriteId,
        rows::{ColumnChange, RowChanges, RowErrorContext, RunEndRow, number},
    },
    subscription::EventId,
    tree::{Erased, Node},
};

/// Returns whether a commit is small enough to be encoded on the caller's thread: it has no state and no change of a
/// turn, and its messages are short texts. Other commits are encoded on the writing thread, which limits the number of
/// commits per second.
pub(super) fn is_light(commit: &Commit) -> bool {
    /// The maximum weight of all messages together, in bytes.
    const LIGHT: usize = 16 * 1024;

    // JSON values can be nested, and the caller's thread may have little stack left.
    let is_text = |message: &Message| {
        let is_text = |block: &Content| matches!(block, Content::Text(_) | Content::Thinking(_));
        message.provider_data.is_empty() && message.app_data.is_none() && message.content.iter().all(is_text)
    };
    let mut weight = 0;
    let mut is_short = |message: &Message| {
        weight += message.weight();
        weight <= LIGHT
    };
    commit.turn.is_none()
        && commit.state.is_none()
        && commit.nodes.iter().map(Node::message).all(|message| is_text(message) && is_short(message))
}

pub(super) fn write(
    connection: &mut Connection,
    id: &ConversationId,
    write: &Write,
    change: &RowChanges,
) -> Result<Version, SqliteOperationError> {
    if change.creates {
        create(connection, id, write.id, change)
    } else {
        self::change(connection, id, write, change)
    }
}

fn create(
    connection: &mut Connection,
    id: &ConversationId,
    write: WriteId,
    change: &RowChanges,
) -> Result<Version, SqliteOperationError> {
    let transaction = begin(connection)?;
    if let Some(row) = ConversationRowForWrite::find(&transaction, id)? {
        let (first, created_by) = transaction
            .prepare_cached(
                "SELECT version, write FROM writes WHERE conversation = ? ORDER BY version LIMIT 1",
            )?
            .query_row([row.key], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, [u8; 16]>(1)?)))?;
        return if WriteId::from_bytes(created_by) == write {
            Ok(Version::new(first.cast_unsigned()))
        } else {
            Err(StoreError::AlreadyExists { id: id.clone() }.into())
        };
    }
    let (version, now) = (Version::first(), Timestamp::now());
    transaction
        .prepare_cached(
            // The first epoch equals the version, which is random. So a lease of an earlier conversation with this id
            // is not valid for the new conversation.
            "INSERT INTO conversations (id, version, created, updated, epoch) VALUES (?1, ?2, ?3, ?3, ?2)",
        )?
        .execute(params![id.as_str(), version.get().cast_signed(), millis(now)])?;
    let key = transaction.last_insert_rowid();
    apply(&transaction, key, version, write, change, now)?;
    transaction.commit()?;
    Ok(version)
}

fn change(
    connection: &mut Connection,
    id: &ConversationId,
    write: &Write,
    change: &RowChanges,
) -> Result<Version, SqliteOperationError> {
    let transaction = begin(connection)?;
    let row = ConversationRowForWrite::get(&transaction, id)?;
    let (version, now) = (write.base.next(), Timestamp::now());
    if row.version != write.base && written(&transaction, row.key, version)? == Some(write.id) {
        return Ok(version);
    }
    if write.epoch.is_some_and(|epoch| !row.accepts(epoch)) {
        return Err(StoreError::LeaseLost { id: id.clone() }.into());
    }
    if row.version != write.base {
        return Err(StoreError::Conflict { id: id.clone(), current: row.version }.into());
    }
    let head = match change.head {
        ColumnChange::Set(head) => head.map(number),
        ColumnChange::Keep => row.head,
    };
    let updated = if change.is_record && head == row.head { row.updated } else { now };
    transaction
        .prepare_cached(
            "UPDATE conversations SET version = ?2, updated = max(updated, ?3), head = ?4 WHERE key = ?1",
        )?
        .execute(params![row.key, version.get().cast_signed(), millis(updated), head])?;
    apply(&transaction, row.key, version, write.id, change, now)?;
    if let Some(erased) = &change.erased {
        let (ending, prompts) = last_run(&transaction, row.key)?;
        let run = RowErrorContext { id, place: "" }.run_after_erasure(
            ending.as_deref(),
            prompts.as_deref(),
            erased,
        )?;
        remove_nodes(&transaction, row.key, erased)?;
        if let Some(run) = run {
            insert_run(&transaction, row.key, version, &run)?;
        }
    }
    transaction.commit()?;
    Ok(version)
}

/// Returns the id of the write that resulted in this version.
fn written(
    transaction: &Connection,
    key: i64,
    version: Version,
) -> Result<Option<WriteId>, SqliteOperationError> {
    let write = transaction
        .prepare_cached("SELECT write FROM writes WHERE conversation = ? AND version = ?")?
        .query_row([key, version.get().cast_signed()], |row| row.get(0))
        .optional()?;
    Ok(write.map(WriteId::from_bytes))
}

fn apply(
    transaction: &Connection,
    key: i64,
    version: Version,
    write: WriteId,
    change: &RowChanges,
    now: Timestamp,
) -> Result<(), SqliteOperationError> {
    let is_indexed = search::is_kept(transaction)?;
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
        turn,
        files,
        ..
    } = change;
    let (at, version) = (version, version.get().cast_signed());
    transaction
        .prepare_cached("INSERT INTO writes (conversation, version, write) VALUES (?, ?, ?)")?
        .execute(params![key, version, write.as_bytes()])?;
    if let ColumnChange::Set(title) = title {
        if is_indexed {
            search::retitle(transaction, key, title.as_deref())?;
        }
        transaction
            .prepare_cached("UPDATE conversations SET title = ?2, title_by_person = ?3 WHERE key = ?1")?
            .execute(params![key, title, title_by_person])?;
    }
    if let ColumnChange::Set(state) = state {
        transaction
            .prepare_cached(
                "INSERT INTO states (conversation, state) VALUES (?, ?)
                 ON CONFLICT DO UPDATE SET state = excluded.state",
            )?
            .execute(params![key, state])?;
    }
    if let ColumnChange::Set(labels) = labels {
        transaction.prepare_cached("DELETE FROM labels WHERE conversation = ?")?.execute([key])?;
        for (name, value) in labels.iter() {
            transaction
                .prepare_cached("INSERT INTO labels (conversation, name, value) VALUES (?, ?, ?)")?
                .execute(params![key, name, value])?;
        }
    }
    for (node, place) in nodes.iter().zip(0_i64..) {
        transaction
            .prepare_cached(
                "INSERT INTO nodes (conversation, version, place, id, parent, message, usage, left_open)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                key,
                version,
                place,
                number(node.id),
                node.parent.map(number),
                node.message,
                node.usage,
                node.left_open
            ])?;
        if is_indexed {
            search::add(transaction, key, Some((version, place)), node.words())?;
        }
    }
    for (node, child) in cursors {
        transaction
            .prepare_cached(
                "INSERT INTO cursors (conversation, node, child) VALUES (?, ?, ?)
                 ON CONFLICT DO UPDATE SET child = excluded.child",
            )?
            .execute(params![key, number(*node), number(*child)])?;
    }
    let refer = |of_nodes: bool| {
        let uses = || files.places.iter().zip(&files.uses).filter(|(place, _)| (**place >= 0) == of_nodes);
        for (digest, bytes) in files.digests.iter().zip(&files.bytes) {
            if uses().any(|(_, used)| used == digest) {
                let insert =
                    "INSERT INTO files (conversation, digest, bytes) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
                transaction.prepare_cached(insert)?.execute(params![key, digest, bytes])?;
            }
        }
        uses().try_for_each(|(place, digest)| {
            let insert = "INSERT INTO file_uses (conversation, place, version, digest) VALUES (?, ?, ?, ?)
                 ON CONFLICT DO NOTHING";
            transaction.prepare_cached(insert)?.execute(params![key, place, version, digest]).map(drop)
        })
    };
    // The end of a turn removes the references of the turn. The nodes refer to its files before, so these files stay.
    refer(true)?;
    if let Some(run) = run {
        insert_run(transaction, key, at, run)?;
    }
    if matches!(head, ColumnChange::Set(_)) {
        turns::apply(transaction, key, version, turn, now)?;
    }
    // The new run and the new record have replaced the earlier ones with their references.
    refer(false)?;
    ledger::insert(transaction, key, version, usage)
}

fn insert_run(
    transaction: &Connection,
    key: i64,
    version: Version,
    run: &RunEndRow,
) -> Result<(), SqliteOperationError> {
    transaction
        .prepare_cached(
            "INSERT INTO runs (conversation, version, turn, ending, prompts) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT DO UPDATE SET version = excluded.version, turn = excluded.turn, ending = excluded.ending,
                 prompts = excluded.prompts",
        )?
        .execute(params![key, version.get().cast_signed(), run.turn, run.ending, run.prompts])?;
    Ok(())
}

/// Removes nodes, the cursors from and to them, the end of the last run, the turn in flight and a derived title.
fn remove_nodes(transaction: &Connection, key: i64, erased: &Erased) -> Result<(), SqliteOperationError> {
    // One statement for all nodes: `nodes` has no index on the id, so each statement reads the whole conversation.
    let ids: Vec<i64> = erased.nodes.iter().map(|node| number(*node)).collect();
    let ids = serde_json::Value::from(ids).to_string();
    let is_indexed = search::is_kept(transaction)?;
    if is_indexed {
        search::remove_nodes(transaction, key, Some(&ids))?;
    }
    transaction
        .prepare_cached(
            "DELETE FROM nodes WHERE conversation = ?1 AND id IN (SELECT value FROM json_each(?2))",
        )?
        .execute(params![key, ids])?;
    transaction
        .prepare_cached(
            "DELETE FROM cursors WHERE conversation = ?1 AND (node IN (SELECT value FROM json_each(?2))
                 OR child IN (SELECT value FROM json_each(?2)))",
        )?
        .execute(params![key, ids])?;
    // The end of the last run and the turn in flight may contain an erased message, so delete both.
    transaction.prepare_cached("DELETE FROM runs WHERE conversation = ?")?.execute([key])?;
    transaction.prepare_cached("DELETE FROM turns WHERE conversation = ?")?.execute([key])?;
    transaction
        .prepare_cached("UPDATE conversations SET next_node = ?2 WHERE key = ?1")?
        .execute([key, number(erased.next)])?;
    let is_derived = "SELECT NOT title_by_person FROM conversations WHERE key = ?";
    if erased.title && transaction.prepare_cached(is_derived)?.query_row([key], |row| row.get(0))? {
        if is_indexed {
            search::retitle(transaction, key, None)?;
        }
        transaction.prepare_cached("UPDATE conversations SET title = NULL WHERE key = ?")?.execute([key])?;
    }
    Ok(())
}

/// Deletes a conversation, under a lease if one is given.
pub(super) fn delete(
    connection: &mut Connection,
    id: &ConversationId,
    lease: Option<&Lease>,
) -> Result<(), SqliteOperationError> {
    let transaction = begin(connection)?;
    let Some(row) = ConversationRowForWrite::find(&transaction, id)? else { return Ok(()) };
    if lease.is_some_and(|lease| !row.accepts(lease.epoch)) {
        return Err(StoreError::LeaseLost { id: id.clone() }.into());
    }
    ledger::keep(&transaction, row.key)?;
    if search::is_kept(&transaction)? {
        search::remove_nodes(&transaction, row.key, None)?;
        search::retitle(&transaction, row.key, None)?;
    }
    transaction.prepare_cached("DELETE FROM conversations WHERE key = ?")?.execute([row.key])?;
    transaction.commit()?;
    Ok(())
}

pub(super) fn acquire(
    connection: &mut Connection,
    database: &SqliteDatabase,
    id: &ConversationId,
    owner: &Owner,
) -> Result<Lease, SqliteOperationError> {
    let transaction = begin(connection)?;
    let row = ConversationRowForWrite::get(&transaction, id)?;
    let now = Timestamp::now();
    let epoch = Epoch(row.epoch.0.saturating_add(1));
    if let Some(other) = row.owner(now).filter(|other| other.name != owner.name) {
        return Err(StoreError::Owned { id: id.clone(), owner: other.clone() }.into());
    }
    let lease = Lease::lasting(epoch, database.lease);
    let (expires, lasts) = term(now, &lease, database);
    transaction
        .prepare_cached(
            "UPDATE conversations SET epoch = ?2, owner = ?3, owner_address = ?4, expires = ?5, lasts = ?6
             WHERE id = ?1",
        )?
        .execute(params![id.as_str(), epoch.0.cast_signed(), owner.name, owner.address, expires, lasts])?;
    transaction.commit()?;
    Ok(lease)
}

/// Renews leases. An expired lease is also renewed if nobody else has acquired the conversation. Returns the
/// conversations whose leases are lost.
pub(super) fn renew(
    connection: &mut Connection,
    database: &SqliteDatabase,
    leases: &[(ConversationId, Lease)],
) -> Result<Vec<ConversationId>, SqliteOperationError> {
    let transaction = begin(connection)?;
    let now = Timestamp::now();
    let mut lost = Vec::new();
    for (id, lease) in leases {
        let (expires, lasts) = term(now, lease, database);
        let renewed = transaction
            .prepare_cached(
                "UPDATE conversations SET expires = ?3, lasts = ?4
                 WHERE id = ?1 AND epoch = ?2 AND owner IS NOT NULL",
            )?
            .execute(params![id.as_str(), lease.epoch.0.cast_signed(), expires, lasts])?;
        if renewed == 0 {
            lost.push(id.clone());
        }
    }
    transaction.commit()?;
    Ok(lost)
}

/// Releases a lease, unless a later lease exists. Also records the last event of the session's feed, unless the
/// conversation no longer has an owner.
pub(super) fn release(
    connection: &mut Connection,
    id: &ConversationId,
    lease: &Lease,
    mark: Option<EventId>,
) -> Result<(), SqliteOperationError> {
    connection
        .prepare_cached(
            "UPDATE conversations SET owner = NULL, owner_address = NULL, expires = 0,
                 mark = iif(owner IS NULL, mark, coalesce(?3, mark)),
                 mark_version = iif(owner IS NULL OR ?3 IS NULL, mark_version, version)
             WHERE id = ?1 AND epoch = ?2",
        )?
        .execute(params![id.as_str(), lease.epoch.0.cast_signed(), mark.map(|mark| mark.to_string())])?;
    Ok(())
}

/// Returns the end of a lease that starts now, and its duration.
fn term(now: Timestamp, lease: &Lease, database: &SqliteDatabase) -> (i64, i64) {
    let lasts = lease.lasts.unwrap_or(database.lease).as_millis();
    let lasts = u64::try_from(lasts).unwrap_or(u64::MAX);
    (millis(Timestamp(now.0.saturating_add(lasts))), millis(Timestamp(lasts)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::{
        message::{Role, ToolUse, TurnId},
        run::TurnRecord,
        store::StoredState,
        tree::NodeId,
    };

    fn commit(messages: impl IntoIterator<Item = Message>) -> Commit {
        let node = |(number, message)| Node::new(NodeId::new(number).unwrap(), None, message);
        Commit::new(None).with_nodes((1..).zip(messages).map(node))
    }

    #[test]
    fn is_light_holds_for_short_texts_without_anything_else() {
        let text = |length| Message::user("a".repeat(length));
        assert!(is_light(&commit([])));
        assert!(is_light(&commit([text(8_000), Message::assistant("b".repeat(8_000))])));
        assert!(!is_light(&commit([text(16 * 1024)])), "the message itself has a weight too");
        assert!(!is_light(&commit([text(8_000), text(8_200)])));
        assert!(!is_light(&commit([text(1)]).with_state(StoredState::default())));
        assert!(!is_light(&commit([Message::new(Role::Assistant, [ToolUse::new("a", "b", json!({}))])])));
        let mut annotated = text(1);
        annotated.app_data = Some(Arc::new(json!([[[1]]])));
        assert!(!is_light(&commit([annotated])));
        let mut private = text(1);
        private.provider_data.insert("format".to_owned(), json!([[[1]]]));
        assert!(!is_light(&commit([private])));
        let turn: TurnId = format!("{:032x}", 1).parse().unwrap();
        assert!(!is_light(&commit([]).with_turn(TurnRecord::new(1, turn, "{}"))));
    }
}

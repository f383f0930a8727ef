//! Reads of conversations, summaries and lists. Each read is one transaction, so that all parts of its result are from
//! the same moment.

use std::rc::Rc;

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    database::{SqliteDatabase, SqliteOperationError},
    ledger::SUMS,
    row::{self, ConversationRowForWrite, LABELS, listed, summaries},
    turns,
    write::millis,
};
use crate::store::{
    ConversationId, Page, Stored, Summary,
    attachments::AttachmentCodec,
    rows::{self, DatabaseRow, RowErrorContext, count},
};

pub(super) fn load(
    connection: &mut Connection,
    database: &SqliteDatabase,
    id: &ConversationId,
) -> Result<Stored, SqliteOperationError> {
    let transaction = connection.transaction()?;
    let row = ConversationRowForWrite::get(&transaction, id)?;
    let files = files(&transaction, row.key, None)?;
    files.apply(|| stored(&transaction, &RowErrorContext { id, place: &database.place() }, &row))
}

fn stored(
    transaction: &Connection,
    origin: &RowErrorContext<'_>,
    row: &ConversationRowForWrite,
) -> Result<Stored, SqliteOperationError> {
    let sql = format!(
        "SELECT conversations.version, created, updated, title, state, head, next_node, {LABELS}, ending, prompts,
             mark, mark_version, title_by_person, used.*
         FROM conversations LEFT JOIN states ON states.conversation = key
             LEFT JOIN runs ON runs.conversation = key AND NOT EXISTS (
                 SELECT 1 FROM nodes WHERE nodes.conversation = key AND nodes.version > runs.version
             ),
             (SELECT {SUMS} FROM usage WHERE conversation = ?1) AS used
         WHERE key = ?1",
    );
    let mut query = transaction.prepare_cached(&sql)?;
    let mut found = query.query([row.key])?;
    let mut stored = rows::stored(found.next()?.ok_or(rusqlite::Error::QueryReturnedNoRows)?, origin)?;
    stored.turn = turns::read(transaction, origin, row)?.map(Box::new);

    let mut nodes = transaction.prepare_cached(
        "SELECT id, parent, message, usage, left_open FROM nodes WHERE conversation = ? ORDER BY version, place",
    )?;
    let mut nodes = nodes.query([row.key])?;
    while let Some(row) = nodes.next()? {
        let (message, usage) = (row.text(2)?.unwrap_or_default(), row.text(3)?);
        let node = origin.node(row.get(0)?, row.int(1)?, &message, usage.as_deref(), row.flag(4)?)?;
        stored.nodes.push(node);
    }
    let mut cursors = transaction.prepare_cached("SELECT node, child FROM cursors WHERE conversation = ?")?;
    let mut cursors = cursors.query([row.key])?;
    while let Some(row) = cursors.next()? {
        stored.cursors.extend([origin.cursor(row.get(0)?, row.get(1)?)?]);
    }
    Ok(stored)
}

/// Reads the files of a conversation. If a place is given, reads only the files with references from this place.
pub(super) fn files(
    connection: &Connection,
    key: i64,
    place: Option<i32>,
) -> Result<Rc<AttachmentCodec>, SqliteOperationError> {
    let mut query = connection.prepare_cached(
        "SELECT digest, bytes FROM files WHERE conversation = ?1
         AND (?2 IS NULL OR digest IN (SELECT digest FROM file_uses WHERE conversation = ?1 AND place = ?2))",
    )?;
    let mut found = query.query(params![key, place])?;
    let files = Rc::<AttachmentCodec>::default();
    while let Some(row) = found.next()? {
        files.add(row.get(0)?, &row.get::<_, Vec<u8>>(1)?);
    }
    Ok(files)
}

pub(super) fn summary(
    connection: &mut Connection,
    database: &SqliteDatabase,
    id: &ConversationId,
) -> Result<Summary, SqliteOperationError> {
    let transaction = connection.transaction()?;
    row::summary(&transaction, ConversationRowForWrite::get(&transaction, id)?.key, &database.place())
}

/// Returns the query that lists conversations, sorted by their last write.
fn list_all() -> String {
    format!("SELECT {} FROM conversations ORDER BY updated DESC, id LIMIT ?1 OFFSET ?2", listed())
}

/// Returns the query that lists conversations after a position. The query has two parts, so that each part reads one
/// range of the index. A query with one part would scan all conversations with the same time.
fn list_after() -> String {
    let columns = listed();
    format!(
        "SELECT {columns} FROM conversations WHERE updated = ?3 AND id > ?4
         UNION ALL
         SELECT {columns} FROM conversations WHERE updated < ?3
         ORDER BY updated DESC, id LIMIT ?1 OFFSET ?2"
    )
}

pub(super) fn list(
    connection: &mut Connection,
    database: &SqliteDatabase,
    page: Page,
) -> Result<Vec<Summary>, SqliteOperationError> {
    let (limit, offset) = (count(page.limit), count(page.offset));
    let (mut query, mut rows);
    if let Some(after) = page.after {
        query = connection.prepare_cached(&list_after())?;
        rows = query.query(params![limit, offset, millis(after.updated), after.id.as_str()])?;
    } else {
        query = connection.prepare_cached(&list_all())?;
        rows = query.query(params![limit, offset])?;
    }
    summaries(&mut rows, &database.place())
}

/// Returns the columns of the end of the last run, unless a turn was committed after it.
pub(super) fn last_run(
    transaction: &Connection,
    key: i64,
) -> Result<(Option<String>, Option<String>), SqliteOperationError> {
    let run: Option<(String, Option<String>)> = transaction
        .prepare_cached(
            "SELECT ending, prompts FROM runs WHERE conversation = ?1
             AND NOT EXISTS (SELECT 1 FROM nodes WHERE nodes.conversation = ?1 AND nodes.version > runs.version)",
        )?
        .query_row([key], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let (ending, prompts) = run.unzip();
    Ok((ending, prompts.flatten()))
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    /// Returns a database with 10,000 conversations, of which 1,000 have the same time.
    fn many() -> Connection {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(include_str!("migrations/1.sql")).expect("the schema");
        let rows =
            "WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < 10000)
                    INSERT INTO conversations (id, version, created, updated, epoch)
                    SELECT printf('c%05d', n), 1, 1, iif(n BETWEEN 2000 AND 3000, 2000, n), 1 FROM number";
        connection.execute(rows, []).expect("the rows");
        connection
    }

    fn steps(connection: &Connection, updated: i64, id: &str) -> i32 {
        let mut query = connection.prepare(&list_after()).expect("it is SQL");
        let rows = query.query_map(params![50, 0, updated, id], |row| row.get::<_, String>(0)).expect("rows");
        assert_eq!(rows.count(), 50);
        query.get_status(StatementStatus::VmStep)
    }

    #[test]
    fn list_after_a_position_takes_as_many_steps_at_the_end_as_at_the_beginning() {
        let connection = many();
        let first = steps(&connection, 9990, "c09990");
        assert!(first < 5000, "{first} steps");
        for (updated, id) in
            [(5000, "c05000"), (100, "c00100"), (2000, "c02001"), (2000, "c02940"), (2000, "c03000")]
        {
            let later = steps(&connection, updated, id);
            assert!(later < first * 2, "{later} steps after {id}, {first} at the beginning");
        }
    }

    #[test]
    fn list_after_a_position_searches_the_index_and_sorts_nothing() {
        let connection = many();
        let mut query =
            connection.prepare(&format!("EXPLAIN QUERY PLAN {}", list_after())).expect("it is SQL");
        let plan = query.query_map(params![50, 0, 1, "a"], |row| row.get::<_, String>(3)).expect("rows");
        let plan: Vec<String> = plan.map(|line| line.expect("text")).collect();
        let searches =
            plan.iter().filter(|line| line.contains("SEARCH") && line.contains("conversations_by_update"));
        assert_eq!(searches.count(), 2, "{plan:?}");
        assert!(
            !plan.iter().any(|line| line.contains("TEMP B-TREE") || line.starts_with("SCAN")),
            "{plan:?}"
        );
    }
}

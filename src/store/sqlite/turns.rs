//! Turns in flight.

use std::fmt::Write as _;

use rusqlite::{Connection, params, params_from_iter, types::Value};

use super::{
    database::{SqliteDatabase, SqliteOperationError},
    filter::{SqlCondition, rarest},
    read::files,
    row::{self, ConversationRowForWrite, HELD},
    write::millis,
};
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Filter, Listing, Page, StoredTurn, Summary, TurnSummary, Turns,
        attachments::AttachmentCodec,
        rows::{
            self, DatabaseRow, OF_TURN, RecordRow, RowErrorContext, SORTED, StoredTurnRows, TurnRowChange,
            count,
        },
    },
};

/// The year 10000. If another program has written a later time, this limit prevents an overflow.
const LAST: i64 = 253_402_300_800_000;

/// Writes the change of the turn in flight. The head of the conversation is already the new one.
pub(super) fn apply(
    transaction: &Connection,
    key: i64,
    version: i64,
    turn: &TurnRowChange,
    now: Timestamp,
) -> Result<(), SqliteOperationError> {
    if let Some(mark) = &turn.mark {
        transaction
            .prepare_cached("UPDATE conversations SET mark = ?2, mark_version = ?3 WHERE key = ?1")?
            .execute(params![key, mark, version])?;
    }
    if let Some(record) = &turn.record {
        return self::record(transaction, key, record, now);
    }
    transaction
        .prepare_cached(
            "DELETE FROM turns WHERE conversation = ?1
             AND (?2 OR head IS NOT (SELECT head FROM conversations WHERE key = ?1))",
        )?
        .execute(params![key, turn.ends])?;
    Ok(())
}

fn record(
    transaction: &Connection,
    key: i64,
    record: &RecordRow,
    now: Timestamp,
) -> Result<(), SqliteOperationError> {
    // Records of another turn, or on another head, are replaced as a whole.
    transaction
        .prepare_cached("DELETE FROM turns WHERE conversation = ? AND (turn <> ? OR head IS NOT ?)")?
        .execute(params![key, record.turn, record.head])?;
    let now = millis(now);
    transaction
        .prepare_cached(
            "INSERT INTO turns (conversation, turn, record, head, since, recorded, waits)
             VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)
             ON CONFLICT DO UPDATE SET record = excluded.record, recorded = excluded.recorded,
                 waits = excluded.waits",
        )?
        .execute(params![key, record.turn, record.record, record.head, now, record.waits])?;
    let stored: i64 = transaction
        .prepare_cached("SELECT count(*) FROM pending WHERE conversation = ?")?
        .query_row([key], |row| row.get(0))?;
    let kept = stored.min(record.keep.into());
    transaction
        .prepare_cached("DELETE FROM pending WHERE conversation = ? AND place >= ?")?
        .execute(params![key, kept])?;
    for (content, place) in record.messages.iter().zip(kept..) {
        transaction
            .prepare_cached("INSERT INTO pending (conversation, place, content) VALUES (?, ?, ?)")?
            .execute(params![key, place, content])?;
    }
    ask(transaction, key, record, now)
}

/// Replaces the open approvals. Approvals that were already open keep their age.
fn ask(transaction: &Connection, key: i64, record: &RecordRow, now: i64) -> Result<(), SqliteOperationError> {
    transaction
        .prepare_cached(
            "DELETE FROM approvals WHERE conversation = ?1
             AND tool_use NOT IN (SELECT value FROM json_each(?2))",
        )?
        .execute(params![key, serde_json::Value::from(record.keys.clone()).to_string()])?;
    for (place, tool_use) in record.keys.iter().enumerate() {
        transaction
            .prepare_cached(
                "INSERT INTO approvals (conversation, tool_use, place, content, survives, since, expires)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, min(?6, ?8) + ?7)
                 ON CONFLICT DO UPDATE SET place = excluded.place, content = excluded.content,
                     survives = excluded.survives, expires = min(since, ?8) + ?7",
            )?
            .execute(params![
                key,
                tool_use,
                count(place),
                record.approvals[place],
                record.survives[place],
                now,
                record.limits[place],
                LAST
            ])?;
    }
    Ok(())
}

fn approvals(connection: &Connection, key: i64) -> Result<Vec<(String, Timestamp)>, SqliteOperationError> {
    let mut query = connection
        .prepare_cached("SELECT content, since FROM approvals WHERE conversation = ? ORDER BY place")?;
    let mut found = query.query([key])?;
    let mut approvals = Vec::new();
    while let Some(row) = found.next()? {
        approvals.push((row.lossy(0)?.unwrap_or_default(), row.time(1)?));
    }
    Ok(approvals)
}

/// Returns the turn in flight of the conversation with this key, without its messages.
fn recorded(connection: &Connection, key: i64) -> Result<Option<StoredTurnRows>, SqliteOperationError> {
    let mut query = connection
        .prepare_cached("SELECT turn, record, head, since, recorded FROM turns WHERE conversation = ?")?;
    let mut found = query.query([key])?;
    let Some(row) = found.next()? else { return Ok(None) };
    let turn = rows::turn(row, 0, Timestamp::now())?;
    Ok(Some(StoredTurnRows { approvals: approvals(connection, key)?, ..turn }))
}

/// Returns the turn in flight of a conversation.
pub(super) fn read(
    connection: &Connection,
    origin: &RowErrorContext<'_>,
    row: &ConversationRowForWrite,
) -> Result<Option<StoredTurn>, SqliteOperationError> {
    let Some(mut turn) = recorded(connection, row.key)? else { return Ok(None) };
    if turn.head != row.head {
        origin.warn_of_void_turn();
        return Ok(None);
    }
    let mut pending =
        connection.prepare_cached("SELECT content FROM pending WHERE conversation = ? ORDER BY place")?;
    let mut found = pending.query([row.key])?;
    while let Some(row) = found.next()? {
        turn.pending.push(row.lossy(0)?.unwrap_or_default());
    }
    Ok(Some(turn.into_turn(row.version)))
}

pub(super) fn turn(
    connection: &mut Connection,
    database: &SqliteDatabase,
    id: &ConversationId,
) -> Result<Option<StoredTurn>, SqliteOperationError> {
    let transaction = connection.transaction()?;
    let row = ConversationRowForWrite::get(&transaction, id)?;
    let files = files(&transaction, row.key, Some(OF_TURN))?;
    files.apply(|| read(&transaction, &RowErrorContext { id, place: &database.place() }, &row))
}

/// Returns the query for the keys and ages of the turns on a page, with its parameters.
fn page_of(
    which: Turns,
    rarest: Option<(&str, &str)>,
    filter: &Filter,
    page: &Page,
    now: Timestamp,
) -> (String, Vec<Value>) {
    let text = |text: &str| Value::from(text.to_owned());
    let now = Value::from(millis(now));
    let mut params = Vec::new();
    let mut sql = match which {
        // The list has the oldest open approval of each conversation.
        Turns::Waiting => {
            // If few conversations have the label, only their approvals are read. Otherwise, all approvals are read in
            // their order.
            let approvals = if let Some((name, value)) = rarest {
                params.extend([text(name), text(value)]);
                "(SELECT conversation AS key FROM labels WHERE name = ? AND value = ?) AS rare
                     CROSS JOIN approvals ON approvals.conversation = rare.key"
            } else {
                "approvals INDEXED BY approvals_by_age"
            };
            format!(
                "SELECT conversations.key, approvals.since AS age FROM {approvals}
                     CROSS JOIN turns ON turns.conversation = approvals.conversation
                     CROSS JOIN conversations ON conversations.key = approvals.conversation
                 WHERE turns.head IS conversations.head AND (approvals.survives OR {HELD})
                     AND NOT EXISTS (SELECT 1 FROM approvals AS earlier
                         WHERE earlier.conversation = approvals.conversation AND (earlier.survives OR {HELD})
                             AND (earlier.since, earlier.place) < (approvals.since, approvals.place))"
            )
        }
        Turns::Left => {
            params.push(now);
            format!(
                "SELECT conversations.key, turns.since AS age FROM (
                     SELECT conversation AS key FROM turns INDEXED BY turns_at_work WHERE NOT waits
                     UNION SELECT conversation FROM approvals INDEXED BY approvals_by_expiry WHERE expires <= ?
                 ) AS wanted JOIN turns ON turns.conversation = wanted.key
                     JOIN conversations ON conversations.key = wanted.key
                 WHERE turns.head IS conversations.head AND NOT {HELD}"
            )
        }
        Turns::All => "SELECT conversations.key, turns.since AS age
                 FROM turns JOIN conversations ON conversations.key = turns.conversation
                 WHERE turns.head IS conversations.head"
            .to_owned(),
    };
    let matches = SqlCondition::on("conversations.key", filter);
    let _ = write!(sql, " AND {}", matches.sql);
    params.extend(matches.params);
    if let Some(after) = &page.after {
        let age = if which == Turns::Waiting { "approvals.since" } else { "turns.since" };
        let _ = write!(sql, " AND {age} >= ? AND ({age} > ? OR conversations.id > ?)");
        let time = millis(after.updated);
        params.extend([time.into(), time.into(), text(after.id.as_str())]);
    }
    sql.push_str(" ORDER BY age, conversations.id LIMIT ? OFFSET ?");
    params.extend([Value::from(count(page.limit)), Value::from(count(page.offset))]);
    (sql, params)
}

pub(super) fn list(
    connection: &mut Connection,
    database: &SqliteDatabase,
    which: Turns,
    Listing { filter, page }: &Listing,
) -> Result<Vec<TurnSummary>, SqliteOperationError> {
    let transaction = connection.transaction()?;
    let now = Timestamp::now();
    let (sql, params) = page_of(which, rarest(&transaction, filter, SORTED)?, filter, page, now);
    let mut query = transaction.prepare_cached(&sql)?;
    let mut found = query.query(params_from_iter(params))?;
    let mut turns = Vec::new();
    while let Some(row) = found.next()? {
        let (key, age) = (row.get(0)?, row.time(1)?);
        let Summary { id, labels, owner, version, .. } = row::summary(&transaction, key, &database.place())?;
        let turn = recorded(&transaction, key)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
        let turn = AttachmentCodec::ignored().apply(|| turn.into_turn(version));
        turns.push(TurnSummary { labels, owner, ..TurnSummary::new(id, &turn) }.aged(age));
    }
    Ok(turns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Labels;

    fn plan(which: Turns, rarest: Option<(&str, &str)>, page: &Page) -> Vec<String> {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("migrations/1.sql")).unwrap();
        let filter = Filter::with(Labels::new([("tenant", "a")]).unwrap());
        let (sql, params) = page_of(which, rarest, &filter, page, Timestamp::now());
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let lines = query.query_map(params_from_iter(params), |row| row.get::<_, String>(3)).unwrap();
        lines.map(Result::unwrap).collect()
    }

    #[test]
    fn waiting_turns_are_read_in_the_order_of_the_index_of_approvals() {
        let after = Page::first(50)
            .after(crate::store::Position { updated: Timestamp(1), id: ConversationId::new("a").unwrap() });
        for page in [Page::first(50), after] {
            let plan = plan(Turns::Waiting, None, &page);
            assert!(plan[0].contains("approvals_by_age"), "{plan:?}");
            // The whole result must not be sorted. A sort of the approvals that have the same time is allowed.
            assert!(!plan.iter().any(|line| line == "USE TEMP B-TREE FOR ORDER BY"), "{plan:?}");
            let scans =
                plan.iter().filter(|line| line.starts_with("SCAN") && !line.contains("approvals_by_age"));
            assert_eq!(scans.count(), 0, "{plan:?}");
        }
    }

    #[test]
    fn waiting_turns_of_a_rare_label_are_found_by_its_index() {
        let plan = plan(Turns::Waiting, Some(("tenant", "a")), &Page::first(50));
        assert!(plan[0].contains("labels_by_value"), "{plan:?}");
        assert!(!plan.iter().any(|line| line.starts_with("SCAN")), "{plan:?}");
    }

    #[test]
    fn turns_that_were_left_are_found_by_the_partial_indexes() {
        let plan = plan(Turns::Left, None, &Page::first(50));
        for index in ["turns_at_work", "approvals_by_expiry"] {
            assert!(plan.iter().any(|line| line.contains(index)), "{plan:?}");
        }
    }
}

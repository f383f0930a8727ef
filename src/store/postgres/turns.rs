//! Turns in flight.

use std::fmt::Write as _;

use futures_util::future::join4;
use tokio_postgres::{Row, types::ToSql};

use super::{
    connect::PgConnection,
    error::PostgresOperationError,
    filter::{SqlQuery, rarest},
    read::{SNAPSHOT, files, system_time},
    server::PostgresPools,
    sql::millis,
};
use crate::store::{
    ConversationId, Filter, Listing, Page, StoreError, StoredTurn, TurnSummary, Turns, Version,
    attachments::AttachmentCodec,
    json,
    rows::{
        self, DatabaseRow, OF_TURN, RecordRow, RowErrorContext, SORTED, StoredTurnRows, conversation_id,
        count, labels, owner,
    },
};

/// Returns a record of a turn as the parameters of an SQL statement.
pub(super) fn params(record: &RecordRow) -> Vec<&(dyn ToSql + Sync)> {
    vec![
        &record.turn,
        &record.record,
        &record.waits,
        &record.keep,
        &record.messages,
        &record.keys,
        &record.approvals,
        &record.survives,
        &record.limits,
    ]
}

/// Reads the columns of a turn, which begin at the column `at` of the row.
fn columns(row: &Row, at: usize) -> Result<StoredTurnRows, PostgresOperationError> {
    let approvals: Option<&str> = row.try_get(at + 5)?;
    let approvals = approvals.map(json::parse).transpose().map_err(damaged)?.unwrap_or_default();
    Ok(StoredTurnRows { approvals, ..rows::turn(row, at, row.time(at + 6)?)? })
}

/// Returns the error for approvals or pending messages whose JSON from the database can't be read.
fn damaged(problem: String) -> StoreError {
    StoreError::damaged("the turn in flight", problem)
}

/// Returns the turn in flight from the row of a conversation that the statement for turns has returned.
pub(super) fn read(
    row: &Row,
    origin: &RowErrorContext<'_>,
) -> Result<Option<StoredTurn>, PostgresOperationError> {
    if row.try_get::<_, Option<&str>>(0)?.is_none() {
        return Ok(None);
    }
    let is_valid: bool = row.try_get(8)?;
    if !is_valid {
        origin.warn_of_void_turn();
        return Ok(None);
    }
    let pending: Option<&str> = row.try_get(9)?;
    let turn = StoredTurnRows {
        pending: pending.map(json::parse).transpose().map_err(damaged)?.unwrap_or_default(),
        ..columns(row, 0)?
    };
    Ok(Some(turn.into_turn(Version::new(row.bits(7)?))))
}

pub(super) async fn turn(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
) -> Result<Option<StoredTurn>, PostgresOperationError> {
    let turn = connection.prepare_cached(&server.sql.turn).await?;
    let files = connection.prepare_cached(&server.sql.files).await?;
    let (name, place) = (id.as_str(), Some(OF_TURN));
    let (turn_params, file_params): ([&(dyn ToSql + Sync); 1], [&(dyn ToSql + Sync); 2]) =
        ([&name], [&name, &place]);
    let (begun, row, files, ended) = join4(
        connection.batch_execute(SNAPSHOT),
        connection.query_opt(&turn, &turn_params),
        connection.query(&files, &file_params),
        connection.batch_execute("COMMIT"),
    )
    .await;
    begun?;
    let (row, files) = (row?, files?);
    ended?;
    let row = row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
    self::files(&files)?.apply(|| read(&row, &RowErrorContext { id, place: &server.place }))
}

/// Returns the query for the keys and ages of the turns on a page.
fn page_of(
    server: &PostgresPools,
    which: Turns,
    rarest: Option<(&str, &str)>,
    filter: &Filter,
    page: &Page,
) -> SqlQuery {
    let (schema, held) = (&server.sql.schema, &server.sql.held);
    let mut query = SqlQuery::default();
    // The condition `held` uses column names without a table, so it is evaluated in a subquery on one table.
    let owned =
        |key: &str| format!("(SELECT {held} FROM {schema}.conversations AS owned WHERE owned.key = {key})");
    let matches = query.matches(schema, "conversations.key", filter, rarest.map(|(name, _)| name));
    let is_current = format!("turns.head IS NOT DISTINCT FROM conversations.head AND {matches}");
    let (mut sql, age, key) = match which {
        // The oldest open approval of each conversation. `OFFSET 0` keeps the planner from reading all conversations.
        Turns::Waiting => {
            let owned = owned("approvals.conversation");
            let sql = format!(
                "SELECT found.key, approvals.since AS age, found.id FROM {schema}.approvals, LATERAL (
                     SELECT conversations.key, conversations.id
                     FROM {schema}.turns JOIN {schema}.conversations ON conversations.key = turns.conversation
                     WHERE turns.conversation = approvals.conversation AND {is_current} OFFSET 0
                 ) AS found
                 WHERE (approvals.survives OR {owned})
                     AND (SELECT count(*) FROM {schema}.approvals AS earlier
                         WHERE earlier.conversation = approvals.conversation AND (earlier.survives OR {owned})
                             AND (earlier.since, earlier.place) < (approvals.since, approvals.place)) = 0"
            );
            (sql, "approvals.since", "approvals.conversation")
        }
        Turns::Left => {
            let owned = owned("wanted.key");
            let sql = format!(
                "SELECT found.key, found.since AS age, found.id FROM (
                     SELECT conversation AS key FROM {schema}.turns WHERE NOT waits
                     UNION SELECT conversation FROM {schema}.approvals WHERE expires <= statement_timestamp()
                 ) AS wanted, LATERAL (
                     SELECT conversations.key, conversations.id, turns.since
                     FROM {schema}.turns JOIN {schema}.conversations ON conversations.key = turns.conversation
                     WHERE turns.conversation = wanted.key AND {is_current} OFFSET 0
                 ) AS found
                 WHERE {owned} IS NOT TRUE"
            );
            (sql, "found.since", "wanted.key")
        }
        Turns::All => {
            let sql = format!(
                "SELECT found.key, turns.since AS age, found.id FROM {schema}.turns
                     JOIN {schema}.conversations AS found ON found.key = turns.conversation
                     JOIN {schema}.conversations ON conversations.key = found.key
                 WHERE {is_current}"
            );
            (sql, "turns.since", "found.key")
        }
    };
    if let Some((name, value)) = rarest {
        let labelled = query.labelled(schema, name, value);
        let _ = write!(sql, " AND {key} = ANY ({labelled})");
    }
    if let Some(after) = &page.after {
        let (time, id) = (query.param(system_time(after.updated)), query.param(after.id.as_str().to_owned()));
        let _ = write!(sql, " AND {age} >= {time} AND ({age} > {time} OR found.id > {id})");
    }
    let (limit, offset) = (query.param(count(page.limit)), query.param(count(page.offset)));
    query.sql = format!("{sql} ORDER BY age, found.id LIMIT {limit} OFFSET {offset}");
    query
}

pub(super) async fn list(
    connection: &PgConnection,
    server: &PostgresPools,
    which: Turns,
    Listing { filter, page }: &Listing,
) -> Result<Vec<TurnSummary>, PostgresOperationError> {
    let query = page_of(server, which, rarest(connection, server, filter, SORTED).await?, filter, page);
    let (listed, schema) = (&server.sql.listed_turn, &server.sql.schema);
    let sql = format!(
        "SELECT {}, {listed}
         FROM ({}) AS page JOIN {schema}.conversations USING (key)
             JOIN {schema}.turns ON turns.conversation = key
         ORDER BY page.age, conversations.id",
        millis("page.age"),
        query.sql
    );
    let statement = connection.prepare(&sql).await?;
    let rows = connection.query(&statement, &query.params()).await?;
    let listed = rows.iter().map(|row| {
        let age = row.time(0)?;
        let (id, version) = (conversation_id(row, 1, &server.place)?, Version::new(row.bits(2)?));
        let (owner, labels) = (owner(row, 3)?, labels(row, 5)?.unwrap_or_default());
        let turn = columns(row, 6)?;
        let turn = AttachmentCodec::ignored().apply(|| turn.into_turn(version));
        Ok(TurnSummary { labels, owner, ..TurnSummary::new(id, &turn) }.aged(age))
    });
    listed.collect()
}

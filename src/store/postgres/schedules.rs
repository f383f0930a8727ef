//! Schedules.

use std::fmt::Write as _;

use tokio_postgres::types::ToSql;

use super::{
    connect::PgConnection, error::PostgresOperationError, filter::SqlQuery, server::PostgresPools,
    sql::millis,
};
use crate::store::{
    ConversationId, Listing, ScheduleChange, ScheduleList, Schedules, StoreError, Version,
    rows::{self, DatabaseRow, ScheduleRowChange, count, scheduled},
};

pub(super) async fn write(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    change: &ScheduleChange,
) -> Result<Version, PostgresOperationError> {
    let ScheduleRowChange { name, entry, was } = ScheduleRowChange::of(id, change.clone())?;
    let (due, rev) = was.unzip();
    let id_text = id.as_str();
    let mut params: Vec<&(dyn ToSql + Sync)> = vec![&id_text, &name, &due, &rev];
    let statement = match &entry {
        None => &server.sql.unschedule,
        Some((due, rev, entry)) => {
            params.extend([due as &(dyn ToSql + Sync), rev, entry]);
            &server.sql.schedule
        }
    };
    let statement = connection.prepare_cached(statement).await?;
    let row = connection.query_opt(&statement, &params).await?;
    let row = row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
    let (current, is_changed) = (Version::new(row.bits(0)?), row.flag(1)?);
    if was.is_some() && !is_changed {
        return Err(StoreError::Conflict { id: id.clone(), current }.into());
    }
    Ok(current)
}

pub(super) async fn list(
    connection: &PgConnection,
    server: &PostgresPools,
    which: &Schedules,
    Listing { filter, page }: &Listing,
) -> Result<ScheduleList, PostgresOperationError> {
    let (schema, mut query) = (&server.sql.schema, SqlQuery::default());
    let selected = match which {
        Schedules::All => "true".to_owned(),
        Schedules::Of(id) => format!("conversations.id = {}", query.param(id.as_str().to_owned())),
        Schedules::Within(time) => {
            let time = query.param(i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2).min(i64::MAX / 2));
            format!(
                "due <= clock.now + {time} AND NOT EXISTS (SELECT FROM {schema}.turns
                     WHERE turns.conversation = conversations.key AND turns.waits
                         AND turns.head IS NOT DISTINCT FROM conversations.head)"
            )
        }
    };
    let matches = query.matches(schema, "conversations.key", filter, None);
    let mut sql = format!(
        "SELECT id, name, due, rev, entry
         FROM {schema}.schedules JOIN {schema}.conversations ON conversation = key WHERE {selected} AND {matches}"
    );
    if let Some(after) = &page.after {
        let due = query.param(rows::millis(after.updated));
        let id = query.param(after.id.as_str().to_owned());
        let _ = write!(sql, " AND due >= {due} AND (due > {due} OR id > {id})");
    }
    let limit = query.param(count(ScheduleList::read_for(page.limit)));
    let offset = query.param(count(page.offset));
    // The row with the time is there even if the page is empty.
    let sql = format!(
        "SELECT clock.now, page.*
         FROM (SELECT {} AS now) AS clock
             LEFT JOIN LATERAL ({sql} ORDER BY due, id, name LIMIT {limit} OFFSET {offset}) AS page ON true
         ORDER BY due, id, name",
        millis("date_trunc('milliseconds', clock_timestamp())")
    );
    let statement = connection.prepare(&sql).await?;
    let found = connection.query(&statement, &query.params()).await?;
    let mut list = ScheduleList::default();
    for row in &found {
        list.now = row.time(0)?;
        if row.text(1)?.is_some() {
            list.schedules.push(scheduled(row, 1, &server.place)?);
        }
    }
    Ok(list.cut(page.limit))
}

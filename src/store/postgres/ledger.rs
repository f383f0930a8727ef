//! The usage ledger.

use std::ops::Range;

use serde::Serialize;

use super::{connect::PgConnection, error::PostgresOperationError, filter::SqlQuery, server::PostgresPools};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        ConversationId, Filter, Page, StoreError,
        ledger::UsageSumsByModel,
        rows::{DatabaseRow, RowErrorContext, cost, count, sum, tokens, usage_row},
    },
};

/// A row of the ledger, in the form in which it is passed to the SQL statement that inserts it.
#[derive(Serialize)]
struct EncodedUsageRow<'r> {
    purpose: &'static str,
    turn: Option<String>,
    step: Option<u32>,
    /// The message's id as JSON, because the database type `text` cannot contain U+0000.
    message: Option<String>,
    at: i64,
    /// The model's name as JSON, because the database type `text` cannot contain U+0000.
    model: Option<String>,
    input: i64,
    cache_read: i64,
    cache_write: i64,
    output: i64,
    reasoning: i64,
    cost: Option<f64>,
    ending: &'r str,
}

/// Returns rows as a JSON array.
pub(super) fn encode(rows: &[UsageRow]) -> String {
    let encoded = rows.iter().map(|row| EncodedUsageRow {
        purpose: row.purpose.as_str(),
        turn: row.turn.map(|turn| turn.to_string()),
        step: row.step,
        message: row.message.as_ref().map(|id| serde_json::Value::from(id.to_string()).to_string()),
        at: millis(row.at),
        model: row.model.as_deref().map(|model| serde_json::Value::from(model).to_string()),
        input: tokens(row.usage.input),
        cache_read: tokens(row.usage.cache_read),
        cache_write: tokens(row.usage.cache_write),
        output: tokens(row.usage.output),
        reasoning: tokens(row.usage.reasoning),
        cost: cost(row.usage.cost),
        ending: row.end.as_str(),
    });
    serde_json::to_string(&encoded.collect::<Vec<_>>()).unwrap_or_default()
}

fn millis(time: Timestamp) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

pub(super) async fn rows(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
    page: &Page,
) -> Result<Vec<UsageRow>, PostgresOperationError> {
    let find = connection.prepare_cached(&server.sql.find).await?;
    let found = connection.query_opt(&find, &[&id.as_str()]).await?;
    let key: i64 = found.ok_or_else(|| StoreError::NotFound { id: id.clone() })?.try_get(0)?;
    let usage = connection.prepare_cached(&server.sql.usage).await?;
    let rows = connection.query(&usage, &[&key, &count(page.limit), &count(page.offset)]).await?;
    let origin = RowErrorContext { id, place: &server.place };
    rows.iter().map(|row| usage_row(row, &origin)).collect()
}

pub(super) async fn used(
    connection: &PgConnection,
    server: &PostgresPools,
    filter: &Filter,
    period: &Range<Timestamp>,
) -> Result<Vec<UsageSum>, PostgresOperationError> {
    let schema = &server.sql.schema;
    let mut sums = UsageSumsByModel::default();
    let mut of_rows = SqlQuery::default();
    let (from, to) = (of_rows.param(millis(period.start)), of_rows.param(millis(period.end)));
    let matches = of_rows.matches(schema, "usage.conversation", filter, None);
    of_rows.sql = format!(
        "SELECT model, {} FROM {schema}.usage WHERE at >= {from} AND at < {to} AND {matches} GROUP BY model",
        server.sql.sums
    );
    let mut of_kept = SqlQuery::default();
    let (from, to) = (of_kept.param(millis(period.start)), of_kept.param(millis(period.end)));
    let mut matches = vec!["true".to_owned()];
    for (name, value) in filter.labels.iter() {
        let (name, value) = (of_kept.param(name.to_owned()), of_kept.param(value.to_owned()));
        matches.push(format!("labels ->> {name} = {value}"));
    }
    for name in filter.without.iter().filter(|name| !name.contains('\0')) {
        matches.push(format!("labels ->> {} IS NULL", of_kept.param(name.clone())));
    }
    of_kept.sql = format!(
        "SELECT nullif(model, ''), {} FROM {schema}.kept_usage
         WHERE hour >= {from} AND hour < {to} AND {} GROUP BY 1",
        server.sql.sums.replace("count(*)", "sum(requests)::bigint"),
        matches.join(" AND ")
    );
    for query in [of_rows, of_kept] {
        let statement = connection.prepare(&query.sql).await?;
        for row in connection.query(&statement, &query.params()).await? {
            let model = row.any_text(0)?;
            let model = model.map_err(|problem| StoreError::damaged(&*server.place, problem))?;
            let (requests, usage) = sum(&row, 1)?;
            sums.add(model.as_deref(), requests, usage);
        }
    }
    Ok(sums.into_vec())
}

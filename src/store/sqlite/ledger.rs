//! The usage ledger.

use std::ops::Range;

use rusqlite::{Connection, params, params_from_iter, types::Value};

use super::{
    database::{SqliteDatabase, SqliteOperationError},
    filter::SqlCondition,
    row::ConversationRowForWrite,
    write::millis,
};
use crate::{
    message::{Timestamp, UsageRow, UsageSum},
    store::{
        ConversationId, Filter, Page,
        ledger::{IS_KEPT_LABEL, UsageSumsByModel},
        rows::{RowErrorContext, cost, count, sum, tokens, usage_row},
    },
};

/// Adds rows to the ledger of a conversation.
pub(super) fn insert(
    transaction: &Connection,
    key: i64,
    version: i64,
    rows: &[UsageRow],
) -> Result<(), SqliteOperationError> {
    for (row, place) in rows.iter().zip(0_i64..) {
        let UsageRow { usage, .. } = row;
        transaction
            .prepare_cached(
                "INSERT INTO usage (conversation, version, place, purpose, turn, step, message, at, model, input,
                     cache_read, cache_write, output, reasoning, cost, ending)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute(params![
                key,
                version,
                place,
                row.purpose.as_str(),
                row.turn.map(|turn| turn.to_string()),
                row.step,
                row.message.as_ref().map(ToString::to_string),
                millis(row.at),
                row.model,
                tokens(usage.input),
                tokens(usage.cache_read),
                tokens(usage.cache_write),
                tokens(usage.output),
                tokens(usage.reasoning),
                cost(usage.cost),
                row.end.as_str(),
            ])?;
    }
    Ok(())
}

/// The columns of a sum of usage: the number of requests, the tokens and the cost.
pub(super) const SUMS: &str =
    "count(*), sum(input), sum(cache_read), sum(cache_write), sum(output), sum(reasoning), sum(cost)";

/// Keeps the sums of the usage of a conversation that is about to be deleted.
pub(super) fn keep(transaction: &Connection, key: i64) -> Result<(), SqliteOperationError> {
    let sql = format!(
        "INSERT INTO kept_usage
             (labels, hour, model, requests, input, cache_read, cache_write, output, reasoning, cost)
         SELECT
             (SELECT json_group_object(name, value)
              FROM (SELECT name, value FROM labels WHERE conversation = ?1 AND {IS_KEPT_LABEL} ORDER BY name)),
             at / 3600000 * 3600000, coalesce(model, ''), {SUMS}
         FROM usage WHERE conversation = ?1 GROUP BY 2, 3
         ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, input = input + excluded.input,
             cache_read = cache_read + excluded.cache_read, cache_write = cache_write + excluded.cache_write,
             output = output + excluded.output, reasoning = reasoning + excluded.reasoning,
             cost = CASE WHEN cost IS NULL THEN excluded.cost ELSE cost + coalesce(excluded.cost, 0) END"
    );
    transaction.prepare_cached(&sql)?.execute([key])?;
    Ok(())
}

pub(super) fn rows(
    connection: &mut Connection,
    database: &SqliteDatabase,
    id: &ConversationId,
    page: &Page,
) -> Result<Vec<UsageRow>, SqliteOperationError> {
    let transaction = connection.transaction()?;
    let key = ConversationRowForWrite::get(&transaction, id)?.key;
    let origin = RowErrorContext { id, place: &database.place() };
    let mut query = transaction.prepare_cached(
        "SELECT input, cache_read, cache_write, output, reasoning, cost, purpose, turn, step, at, model, ending,
             message
         FROM usage WHERE conversation = ? ORDER BY version DESC, place DESC LIMIT ? OFFSET ?",
    )?;
    let mut found = query.query([key, count(page.limit), count(page.offset)])?;
    let mut rows = Vec::new();
    while let Some(row) = found.next()? {
        rows.push(usage_row(row, &origin)?);
    }
    Ok(rows)
}

pub(super) fn used(
    connection: &mut Connection,
    filter: &Filter,
    period: Range<Timestamp>,
) -> Result<Vec<UsageSum>, SqliteOperationError> {
    let transaction = connection.transaction()?;
    let mut sums = UsageSumsByModel::default();
    let kept = "sum(requests), sum(input), sum(cache_read), sum(cache_write), sum(output), sum(reasoning), sum(cost)";
    for (table, time, columns, condition) in [
        ("usage", "at", SUMS, SqlCondition::on("usage.conversation", filter)),
        ("kept_usage", "hour", kept, SqlCondition::on_json("labels", filter)),
    ] {
        let sql = format!(
            "SELECT nullif(model, ''), {columns} FROM {table} WHERE {time} >= ? AND {time} < ? AND {} GROUP BY 1",
            condition.sql
        );
        let period = [millis(period.start), millis(period.end)].map(Value::from);
        let mut query = transaction.prepare_cached(&sql)?;
        let mut rows = query.query(params_from_iter(period.into_iter().chain(condition.params)))?;
        while let Some(row) = rows.next()? {
            let model: Option<String> = row.get(0)?;
            let (requests, usage) = sum(row, 1)?;
            sums.add(model.as_deref(), requests, usage);
        }
    }
    Ok(sums.into_vec())
}

//! Searches by words.
//!
//! The triggers of `search.sql` keep the index up to date, no matter which process writes. Conversations that are older
//! than the index are indexed in batches, between the jobs of callers.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params, params_from_iter};

use super::{
    database::{Database, Fault, begin},
    filter, row,
    workers::Behind,
};
use crate::store::{
    Filter, Found, Hit, Listing, Page, Query, StoreError,
    attachments::Files,
    rows::{Candidates, Origin},
};

/// The number of older nodes that one job indexes.
const BATCH: i64 = 500;
/// If at most this many texts match, all of them are read and sorted. Otherwise, the conversations are examined in the
/// order of the list until the page is full.
const SORTED: i64 = 20_000;

/// Returns whether the file has an index.
pub(super) fn is_enabled(connection: &Connection) -> Result<bool, Fault> {
    let mut query =
        connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'words')")?;
    Ok(query.query_row([], |row| row.get(0))?)
}

/// Creates the index if it does not exist.
pub(super) fn enable(connection: &mut Connection) -> Result<(), Fault> {
    let transaction = begin(connection)?;
    if !is_enabled(&transaction)? {
        transaction.execute_batch(include_str!("search.sql"))?;
    }
    Ok(transaction.commit()?)
}

/// Queues jobs that index the conversations that are older than the index.
pub(super) fn index_older(behind: &Behind) {
    let again = behind.clone();
    behind.leave(move |connection| {
        match index_batch(connection) {
            Ok(true) => index_older(&again),
            Ok(false) => {}
            // The next process that opens the file continues the indexing.
            Err(_) => tracing::debug!("older conversations could not be indexed; the next opening continues"),
        }
        false
    });
}

/// Indexes some of the conversations that are older than the index. Returns whether more of them remain.
fn index_batch(connection: &mut Connection) -> Result<bool, Fault> {
    if !is_enabled(connection)? {
        return Ok(false);
    }
    let transaction = begin(connection)?;
    let bounds = "SELECT conversation, last FROM indexing";
    let (mut done, last): (i64, i64) =
        transaction.query_row(bounds, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut left = BATCH;
    while left > 0 && done < last {
        let next = "SELECT key, title FROM conversations WHERE key > ?1 AND key <= ?2 ORDER BY key LIMIT 1";
        let next = transaction.prepare_cached(next)?.query_row([done, last], |row| row.get(0)).optional()?;
        let Some(key) = next else {
            done = last;
            break;
        };
        left -= 1 + index_conversation(&transaction, key)?;
        done = key;
    }
    transaction.execute("UPDATE indexing SET conversation = ?", [done])?;
    transaction.commit()?;
    Ok(done < last)
}

/// Indexes the title and the nodes of a conversation that are not indexed yet. Returns their number.
fn index_conversation(transaction: &Connection, key: i64) -> Result<i64, Fault> {
    let mut added = 0;
    let texts = [
        "SELECT version, place, text FROM node_texts WHERE conversation = ?1 AND text <> '' AND NOT EXISTS (
             SELECT 1 FROM texts
             WHERE (texts.conversation, texts.version, texts.place) = (?1, node_texts.version, node_texts.place)
         )",
        "SELECT NULL, NULL, title FROM conversations WHERE key = ?1 AND title <> '' AND instr(title, char(0)) = 0
             AND NOT EXISTS (SELECT 1 FROM texts WHERE conversation = ?1 AND version IS NULL)",
    ];
    for sql in texts {
        let mut query = transaction.prepare_cached(sql)?;
        let mut rows = query.query([key])?;
        while let Some(row) = rows.next()? {
            let (version, place): (Option<i64>, Option<i64>) = (row.get(0)?, row.get(1)?);
            transaction
                .prepare_cached("INSERT INTO texts (conversation, version, place) VALUES (?, ?, ?)")?
                .execute(params![key, version, place])?;
            transaction
                .prepare_cached("INSERT INTO words (rowid, text) VALUES (?, ?)")?
                .execute(params![transaction.last_insert_rowid(), row.get::<_, String>(2)?])?;
            added += 1;
        }
    }
    Ok(added)
}

/// The position of a matching text: the version that added the node, and the node's index among the nodes of that
/// version. `None` for a title.
type Place = Option<(i64, i64)>;

pub(super) fn search(
    connection: &mut Connection,
    database: &Database,
    query: &Query,
    Listing { filter, page }: &Listing,
) -> Result<Found, Fault> {
    let transaction = connection.transaction()?;
    if !is_enabled(&transaction)? {
        return Err(
            StoreError::unsupported("searches unless the file was once opened with `search(true)`").into()
        );
    }
    let query_text = query.to_string();
    let found = match few(&transaction, &query_text)? {
        Some(matches) => sorted(&transaction, filter, &matches, page)?,
        None => filter::read_page(&transaction, filter, page, |candidates| {
            walked(&transaction, candidates, filter, &query_text, page)
        })?,
    };
    let complete = "SELECT conversation >= last FROM indexing";
    let complete = transaction.query_row(complete, [], |row| row.get(0))?;
    let mut hits = Vec::with_capacity(found.len());
    for (key, place) in found {
        hits.push(hit(&transaction, database, query, key, place)?);
    }
    Ok(Found { hits, complete })
}

/// Returns the position of the last matching text of each conversation. Returns `None` if too many texts match.
fn few(transaction: &Connection, query: &str) -> Result<Option<HashMap<i64, Place>>, Fault> {
    let mut matching = transaction.prepare_cached(
        "SELECT conversation, version, place FROM texts
         JOIN (SELECT rowid FROM words WHERE words MATCH ?1 LIMIT ?2) AS matching ON texts.key = matching.rowid",
    )?;
    let mut rows = matching.query(params![query, SORTED + 1])?;
    let (mut found, mut count) = (HashMap::new(), 0);
    while let Some(row) = rows.next()? {
        count += 1;
        if count > SORTED {
            return Ok(None);
        }
        let (version, place): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
        let last: &mut Place = found.entry(row.get(0)?).or_default();
        *last = (*last).max(version.zip(place));
    }
    Ok(Some(found))
}

/// Sorts the conversations and returns those on the page.
fn sorted(
    transaction: &Connection,
    filter: &Filter,
    matches: &HashMap<i64, Place>,
    page: &Page,
) -> Result<Vec<(i64, Place)>, Fault> {
    // The keys are passed as one JSON array, because a statement has a limited number of parameters.
    let keys: Vec<i64> = matches.keys().copied().collect();
    let keys = serde_json::Value::from(keys).to_string();
    let (sql, params) = filter::keys_among(keys, filter, page);
    let mut query = transaction.prepare_cached(&sql)?;
    let mut rows = query.query(params_from_iter(params))?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let key = row.get(0)?;
        found.push((key, matches.get(&key).copied().flatten()));
    }
    Ok(found)
}

/// Examines the matching conversations in the order of the list until the page is full.
fn walked(
    transaction: &Connection,
    candidates: Candidates<'_>,
    filter: &Filter,
    query: &str,
    page: &Page,
) -> Result<Vec<(i64, Place)>, Fault> {
    let all = Page { limit: usize::MAX, offset: 0, ..page.clone() };
    let (keys, params) = filter::keys(candidates, filter, &all);
    let mut keys = transaction.prepare_cached(&keys)?;
    let mut keys = keys.query(params_from_iter(params))?;
    let mut texts = transaction.prepare_cached(
        "SELECT version, place FROM texts WHERE conversation = ?1
             AND EXISTS (SELECT 1 FROM words WHERE words MATCH ?2 AND words.rowid = texts.key)
         ORDER BY version DESC NULLS LAST, place DESC LIMIT 1",
    )?;
    let (mut found, mut skipped) = (Vec::new(), 0);
    while found.len() < page.limit
        && let Some(row) = keys.next()?
    {
        let key: i64 = row.get(0)?;
        let last = texts.query_row(params![key, query], |row| {
            Ok(row.get::<_, Option<i64>>(0)?.zip(row.get::<_, Option<i64>>(1)?))
        });
        let Some(place) = last.optional()? else { continue };
        if skipped < page.offset {
            skipped += 1;
        } else {
            found.push((key, place));
        }
    }
    Ok(found)
}

fn hit(
    transaction: &Connection,
    database: &Database,
    query: &Query,
    key: i64,
    place: Place,
) -> Result<Hit, Fault> {
    let summary = row::summary(transaction, key, &database.place())?;
    let Some((version, place)) = place else { return Ok(Hit::title(summary)) };
    let mut node = transaction.prepare_cached(
        "SELECT id, parent, message FROM nodes WHERE (conversation, version, place) = (?, ?, ?)",
    )?;
    let node = node.query_row([key, version, place], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, String>(2)?))
    })?;
    let origin = Origin { id: &summary.id, place: &database.place() };
    let node = Files::ignored().apply(|| origin.node(node.0, node.1, &node.2, None))?;
    Ok(Hit::message(summary.clone(), node.id(), node.message(), query))
}

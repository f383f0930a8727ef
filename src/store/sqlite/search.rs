//! Searches by words.
//!
//! Each write updates the index, no matter which process writes and whether it searches. Conversations that are older than
//! the index are indexed in batches, between the jobs of callers.

use std::{collections::HashMap, time::Duration};

use rusqlite::{Connection, OptionalExtension, params, params_from_iter, types::ValueRef};

use super::{
    database::{SqliteDatabase, SqliteOperationError, begin},
    filter, row, upkeep,
    workers::FollowUpJobSender,
};
use crate::{
    message::Message,
    store::{
        Filter, Found, Hit, Listing, Page, Query, StoreError,
        attachments::AttachmentCodec,
        json,
        rows::{PageCandidates, RowErrorContext},
        search::searched_text,
        words::{RULE, spaced},
    },
};

/// The maximum number of older texts that one job indexes.
const BATCH: usize = 500;
/// The number of bytes of older messages and their words after which a job ends.
const BATCH_BYTES: usize = 1 << 20;
/// The pause after the first job that failed. It doubles with each further failure, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// If at most this many texts match, all of them are read and sorted. Otherwise, the conversations are examined in the
/// order of the list until the page is full.
const SORTED: i64 = 20_000;

/// Returns the number of the rule by which the words in the index were made. Returns `None` if the file has no index.
pub(super) fn rule(connection: &Connection) -> Result<Option<i64>, SqliteOperationError> {
    let mut exists =
        connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'indexing')")?;
    if !exists.query_row([], |row| row.get::<_, bool>(0))? {
        return Ok(None);
    }
    Ok(Some(connection.prepare_cached("SELECT rule FROM indexing")?.query_row([], |row| row.get(0))?))
}

/// Creates the index if it does not exist and `creates` is set. Replaces an index that was made by another rule.
pub(super) fn prepare(connection: &mut Connection, creates: bool) -> Result<(), SqliteOperationError> {
    let is_right = |rule: Option<i64>| rule.map_or(!creates, |rule| rule == RULE);
    if is_right(rule(connection)?) {
        return Ok(());
    }
    let transaction = begin(connection)?;
    let rule = rule(&transaction)?;
    if !is_right(rule) {
        if rule.is_some() {
            transaction.execute_batch("DROP TABLE texts; DROP TABLE words; DROP TABLE indexing")?;
        }
        transaction.execute_batch(include_str!("search.sql"))?;
        let all = "INSERT INTO indexing SELECT ?, 0, coalesce(max(key), 0) FROM conversations";
        transaction.execute(all, [RULE])?;
    }
    Ok(transaction.commit()?)
}

/// Returns whether a write has to update the index. If the index was made by another rule, the write voids it, and the
/// next opening of the file builds it anew.
pub(super) fn is_kept(transaction: &Connection) -> Result<bool, SqliteOperationError> {
    let rule = rule(transaction)?;
    if rule.is_some_and(|rule| rule != RULE) {
        transaction.prepare_cached("UPDATE indexing SET rule = 0")?.execute([])?;
    }
    Ok(rule == Some(RULE))
}

/// Adds the words of a text to the index, each between two spaces, unless there are none or the text is already indexed.
pub(super) fn add(
    transaction: &Connection,
    key: i64,
    place: MatchPosition,
    words: &str,
) -> Result<(), SqliteOperationError> {
    let (version, at) = place.unzip();
    let added = if words.trim().is_empty() {
        0
    } else {
        transaction
            .prepare_cached(
                "INSERT INTO texts (conversation, version, place) SELECT ?1, ?2, ?3 WHERE NOT EXISTS (
                     SELECT 1 FROM texts WHERE conversation = ?1 AND version IS ?2 AND place IS ?3)",
            )?
            .execute(params![key, version, at])?
    };
    if added > 0 {
        transaction
            .prepare_cached("INSERT INTO words (rowid, text) VALUES (?, ?)")?
            .execute(params![transaction.last_insert_rowid(), words])?;
    }
    Ok(())
}

/// Removes a text from the index. The words of a text that can't be read any more stay, but nothing finds them.
fn remove(
    transaction: &Connection,
    key: i64,
    place: MatchPosition,
    text: Option<&str>,
) -> Result<(), SqliteOperationError> {
    let (version, at) = place.unzip();
    let removed: Option<i64> = transaction
        .prepare_cached(
            "DELETE FROM texts WHERE conversation = ?1 AND version IS ?2 AND place IS ?3 RETURNING key",
        )?
        .query_row(params![key, version, at], |row| row.get(0))
        .optional()?;
    if let Some((removed, text)) = removed.zip(text) {
        transaction
            .prepare_cached("INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)")?
            .execute(params![removed, spaced(text)])?;
    }
    Ok(())
}

/// Removes nodes of a conversation from the index, before their rows are deleted. `ids` is a JSON array, or `None` for
/// all nodes.
pub(super) fn remove_nodes(
    transaction: &Connection,
    key: i64,
    ids: Option<&str>,
) -> Result<(), SqliteOperationError> {
    visit_nodes(transaction, key, ids, |place, text| remove(transaction, key, place, text.as_deref()))
}

/// Replaces the title in the index, before the title is replaced in its row.
pub(super) fn retitle(
    transaction: &Connection,
    key: i64,
    title: Option<&str>,
) -> Result<(), SqliteOperationError> {
    remove(transaction, key, None, title_of(transaction, key)?.as_deref())?;
    add(transaction, key, None, &title.map(spaced).unwrap_or_default())
}

/// Returns the title of a conversation. Returns `None` if it has none, if another program has written an invalid one, or
/// if the conversation does not exist.
fn title_of(transaction: &Connection, key: i64) -> Result<Option<String>, SqliteOperationError> {
    let mut title = transaction.prepare_cached("SELECT title FROM conversations WHERE key = ?")?;
    let title = title.query_row([key], |row| Ok(row.get_ref(0)?.as_str().ok().map(str::to_owned)));
    Ok(title.optional()?.flatten())
}

/// Returns the searched text of a stored message. Returns `None` if the message can't be read.
fn text_of(message: ValueRef<'_>) -> Option<String> {
    let message: Message = AttachmentCodec::ignored().apply(|| json::parse(message.as_str().ok()?).ok())?;
    Some(searched_text(&message))
}

/// Calls `visit` with the place and the searched text of each node. The text is `None` if the message can't be read.
fn visit_nodes(
    transaction: &Connection,
    key: i64,
    ids: Option<&str>,
    mut visit: impl FnMut(MatchPosition, Option<String>) -> Result<(), SqliteOperationError>,
) -> Result<(), SqliteOperationError> {
    let mut nodes = transaction.prepare_cached(
        "SELECT version, place, message FROM nodes
         WHERE conversation = ?1 AND (?2 IS NULL OR id IN (SELECT value FROM json_each(?2)))",
    )?;
    let mut nodes = nodes.query(params![key, ids])?;
    while let Some(row) = nodes.next()? {
        visit(Some((row.get(0)?, row.get(1)?)), text_of(row.get_ref(2)?))?;
    }
    Ok(())
}

/// Returns the query in the language of FTS5.
fn match_of(query: &Query) -> String {
    let phrases = query.phrases().map(|(words, is_open)| {
        let end = if is_open { " *" } else { "" };
        format!("\"{}\"{end}", words.join(" "))
    });
    phrases.collect::<Vec<_>>().join(" ")
}

/// Queues jobs that index the conversations that are older than the index.
pub(super) fn index_older(behind: FollowUpJobSender) {
    behind.clone().leave(|connection| index_from(connection, behind, None, PAUSE));
}

/// Indexes one batch and queues the next one. If other processes lock the file or the disk is full, repeats the batch
/// after a pause. Returns whether the file was locked.
fn index_from(
    connection: &mut Connection,
    behind: FollowUpJobSender,
    from: Option<IndexingCursor>,
    pause: Duration,
) -> bool {
    match index_batch(connection, from) {
        Ok(None) => false,
        Ok(from) => {
            behind.clone().leave(move |connection| index_from(connection, behind, from, PAUSE));
            false
        }
        Err(fault) => {
            let next = (2 * pause).min(LONGEST_PAUSE);
            if next == LONGEST_PAUSE && pause < next {
                tracing::warn!(
                    ?fault,
                    "older conversations can't be indexed; searches miss them until it works"
                );
            } else {
                tracing::debug!(?fault, "older conversations could not be indexed; another attempt follows");
            }
            behind.clone().leave_for(pause, move |connection| index_from(connection, behind, from, next));
            matches!(fault, SqliteOperationError::Sqlite(error) if upkeep::is_busy(&error))
        }
    }
}

/// The conversation, the version and the place of the last text that was indexed.
type IndexingCursor = (i64, i64, i64);

/// Indexes some of the texts of conversations that are older than the index. Returns the cursor for the next batch, or
/// `None` if no texts remain. The words are made before the transaction begins, so that the file is locked only while
/// they are written.
fn index_batch(
    connection: &mut Connection,
    from: Option<IndexingCursor>,
) -> Result<Option<IndexingCursor>, SqliteOperationError> {
    if rule(connection)?.is_none() {
        return Ok(None);
    }
    let (done, last) = bounds(connection)?;
    if done >= last {
        return Ok(None);
    }
    // If another process has moved the bounds, its progress counts.
    let from = from.filter(|(key, ..)| key - 1 == done).unwrap_or((done, i64::MAX, i64::MAX));
    let (mut texts, mut bytes, mut next) = (Vec::new(), 0, None);
    {
        let mut rows = connection.prepare_cached(
            "SELECT key, -1, -1, NULL FROM conversations WHERE key > ?1 AND key <= ?4
             UNION ALL
             SELECT conversation, version, place, message FROM nodes
             WHERE (conversation, version, place) > (?1, ?2, ?3) AND conversation <= ?4
             ORDER BY 1, 2, 3",
        )?;
        let mut rows = rows.query(params![from.0, from.1, from.2, last])?;
        while let Some(row) = rows.next()? {
            let (key, version, place) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let message = row.get_ref(3)?;
            let words = text_of(message).as_deref().map(spaced).unwrap_or_default();
            bytes += message.as_str().map_or(0, str::len) + words.len();
            texts.push(((key, version, place), words));
            if texts.len() >= BATCH || bytes >= BATCH_BYTES {
                next = Some((key, version, place));
                break;
            }
        }
    }
    let transaction = begin(connection)?;
    if !is_kept(&transaction)? {
        return Ok(None);
    }
    if bounds(&transaction)? != (done, last) {
        return Ok(Some(from));
    }
    for ((key, version, place), words) in texts {
        if version < 0 {
            let title = title_of(&transaction, key)?;
            add(&transaction, key, None, &title.as_deref().map(spaced).unwrap_or_default())?;
            continue;
        }
        // Another process may have deleted the node.
        let mut exists = transaction.prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM nodes WHERE (conversation, version, place) = (?, ?, ?))",
        )?;
        if exists.query_row([key, version, place], |row| row.get(0))? {
            add(&transaction, key, Some((version, place)), &words)?;
        }
    }
    transaction.execute("UPDATE indexing SET conversation = ?", [next.map_or(last, |(key, ..)| key - 1)])?;
    transaction.commit()?;
    Ok(next)
}

/// Returns the key of the last conversation that is indexed as a whole, and the key of the last one to index.
fn bounds(connection: &Connection) -> Result<(i64, i64), SqliteOperationError> {
    let mut bounds = connection.prepare_cached("SELECT conversation, last FROM indexing")?;
    Ok(bounds.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// The position of a matching text: the version that added the node, and the node's index among the nodes of that
/// version. `None` for a title.
type MatchPosition = Option<(i64, i64)>;

pub(super) fn search(
    connection: &mut Connection,
    database: &SqliteDatabase,
    query: &Query,
    Listing { filter, page }: &Listing,
) -> Result<Found, SqliteOperationError> {
    let transaction = connection.transaction()?;
    match rule(&transaction)? {
        None => {
            let what = "searches unless the file was once opened with `search(true)`";
            return Err(StoreError::unsupported(what).into());
        }
        Some(RULE) => {}
        // The next opening of the file builds the index anew.
        Some(_) => return Ok(Found { hits: Vec::new(), complete: false }),
    }
    let found = match few(&transaction, &match_of(query))? {
        Some(matches) => sorted(&transaction, filter, &matches, page)?,
        None => filter::read_page(&transaction, filter, page, |candidates| {
            walked(&transaction, candidates, filter, query, page)
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
fn few(
    transaction: &Connection,
    query: &str,
) -> Result<Option<HashMap<i64, MatchPosition>>, SqliteOperationError> {
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
        let last: &mut MatchPosition = found.entry(row.get(0)?).or_default();
        *last = (*last).max(version.zip(place));
    }
    Ok(Some(found))
}

/// Sorts the conversations and returns those on the page.
fn sorted(
    transaction: &Connection,
    filter: &Filter,
    matches: &HashMap<i64, MatchPosition>,
    page: &Page,
) -> Result<Vec<(i64, MatchPosition)>, SqliteOperationError> {
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

/// Examines the conversations in the order of the list until the page is full. Reads their texts, because the index would
/// collect all matches of the beginning of a word anew for each conversation. There are many matches, so the page is full
/// soon.
fn walked(
    transaction: &Connection,
    candidates: PageCandidates<'_>,
    filter: &Filter,
    query: &Query,
    page: &Page,
) -> Result<Vec<(i64, MatchPosition)>, SqliteOperationError> {
    let all = Page { limit: usize::MAX, offset: 0, ..page.clone() };
    let (keys, params) = filter::keys(candidates, filter, &all);
    let mut keys = transaction.prepare_cached(&keys)?;
    let mut keys = keys.query(params_from_iter(params))?;
    let (mut found, mut skipped) = (Vec::new(), 0);
    while found.len() < page.limit
        && let Some(row) = keys.next()?
    {
        let key: i64 = row.get(0)?;
        let Some(place) = last_match(transaction, key, query)? else { continue };
        if skipped < page.offset {
            skipped += 1;
        } else {
            found.push((key, place));
        }
    }
    Ok(found)
}

/// Returns the position of the last text of a conversation that contains the words. Returns `None` if none does.
fn last_match(
    transaction: &Connection,
    key: i64,
    query: &Query,
) -> Result<Option<MatchPosition>, SqliteOperationError> {
    let mut nodes = transaction.prepare_cached(
        "SELECT version, place, message FROM nodes WHERE conversation = ? ORDER BY version DESC, place DESC",
    )?;
    let mut nodes = nodes.query([key])?;
    while let Some(row) = nodes.next()? {
        if text_of(row.get_ref(2)?).is_some_and(|text| query.is_in(&text)) {
            return Ok(Some(Some((row.get(0)?, row.get(1)?))));
        }
    }
    Ok(title_of(transaction, key)?.filter(|title| query.is_in(title)).map(|_| None))
}

fn hit(
    transaction: &Connection,
    database: &SqliteDatabase,
    query: &Query,
    key: i64,
    place: MatchPosition,
) -> Result<Hit, SqliteOperationError> {
    let summary = row::summary(transaction, key, &database.place())?;
    let Some((version, place)) = place else { return Ok(Hit::title(summary)) };
    let mut node = transaction.prepare_cached(
        "SELECT id, parent, message FROM nodes WHERE (conversation, version, place) = (?, ?, ?)",
    )?;
    let node = node.query_row([key, version, place], |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?, row.get::<_, String>(2)?))
    })?;
    let origin = RowErrorContext { id: &summary.id, place: &database.place() };
    let node = AttachmentCodec::ignored().apply(|| origin.node(node.0, node.1, &node.2, None, false))?;
    Ok(Hit::message(summary.clone(), node.id(), node.message(), query))
}

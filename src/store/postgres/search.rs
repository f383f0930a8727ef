//! Searches by words.

use std::time::Duration;

use tokio::time::sleep;
use tokio_postgres::Row;

use super::{
    connect::PgConnection,
    error::PostgresOperationError,
    filter::{self, SqlQuery},
    read::system_time,
    server::PostgresPools,
};
use crate::{
    message::Message,
    store::{
        Filter, Found, Hit, Listing, Page, Query as Words, StoreError,
        attachments::AttachmentCodec,
        json,
        rows::{PageCandidates, RowErrorContext, count, summary},
        search::searched_text,
        words::{RULE, spaced},
    },
};

/// Returns an SQL expression of type `tsvector` for the words in this column.
fn vector(column: &str) -> String {
    format!("array_to_tsvector(string_to_array(btrim({column}), ' '))")
}

/// Returns the names of the indexes, which contain the number of the rule for words. Each name has its table with it, and
/// the columns of the conversation's key and of the text.
fn indexes(rule: i64) -> [(String, &'static str, &'static str, &'static str); 2] {
    [
        (format!("nodes_by_words_{rule}"), "nodes", "conversation", "message"),
        (format!("conversations_by_words_{rule}"), "conversations", "key", "title"),
    ]
}

/// The number of rows whose words are made anew in one statement.
const BATCH: i64 = 500;

/// If at most this many messages are expected to match, all of them are read and sorted. Otherwise, the conversations
/// are examined in the order of the list until the page is full.
const SORTED: f64 = 20_000.0;

/// The pause between two attempts to get the lock for creating the indexes.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until no other connection creates the indexes, and keeps others from it until this connection is closed. No
/// statement waits for the lock, because the creation of an index waits for all statements that run.
async fn lock(connection: &PgConnection, schema: &str) -> Result<(), PostgresOperationError> {
    let lock = format!("omni-agent search in {schema}");
    let locked = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
    while !connection.query_one(locked, &[&lock]).await?.try_get::<_, bool>(0)? {
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Creates the indexes, without blocking writers. If several processes call this at the same time, one of them does the
/// work and the others wait. A broken index from an interrupted attempt is replaced, and so is an
/// index that was made by an earlier rule for words.
pub(super) async fn create_index(
    connection: &PgConnection,
    server: &PostgresPools,
) -> Result<(), PostgresOperationError> {
    let schema = &server.sql.schema;
    // Remove the time limits of statements, because creating an index can take long.
    connection.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    lock(connection, schema).await?;
    for (name, table, key, text) in indexes(RULE) {
        // A process with an earlier rule may have written rows since the index was created.
        renew(connection, &format!("{schema}.{table}"), key, text).await?;
        if is_usable(connection, server, &name).await? {
            continue;
        }
        connection.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{name}")).await?;
        let on = format!("{schema}.{table} USING gin ({})", vector("words"));
        connection.batch_execute(&format!("CREATE INDEX CONCURRENTLY {name} ON {on}")).await?;
    }
    for (name, ..) in (0..RULE).flat_map(indexes) {
        connection.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{name}")).await?;
    }
    // Update the planner's statistics about the frequency of words.
    Ok(connection.batch_execute(&format!("ANALYZE {schema}.nodes, {schema}.conversations")).await?)
}

/// Makes the words of all rows of a table whose words were made by another rule. `key` is the column with the key of the
/// conversation.
async fn renew(
    connection: &PgConnection,
    table: &str,
    key: &str,
    text: &str,
) -> Result<(), PostgresOperationError> {
    let select = format!(
        "SELECT {key}, {text} FROM {table} WHERE rule <> {RULE} AND {text} IS NOT NULL AND {key} >= $1
         ORDER BY {key} LIMIT {BATCH}"
    );
    // Rows of a conversation with the same text have the same words. A text that was replaced in the meantime already
    // has words by this rule.
    let update = format!(
        "UPDATE {table} SET words = new.words, rule = {RULE}
         FROM unnest($1::bigint[], $2::text[], $3::text[]) AS new (of_key, of_text, words)
         WHERE {key} = of_key AND {text} = of_text AND rule <> {RULE}"
    );
    let mut first = i64::MIN;
    loop {
        let rows = connection.query(&select, &[&first]).await?;
        let (mut keys, mut texts, mut words) = (Vec::new(), Vec::new(), Vec::new());
        for row in &rows {
            first = row.try_get(0)?;
            let text: &str = row.try_get(1)?;
            // A title is a JSON string. A damaged message has no words.
            let message = AttachmentCodec::ignored().apply(|| json::parse::<Message>(text));
            let shown = message.map(|message| searched_text(&message));
            let shown = shown.or_else(|_| json::parse(text)).unwrap_or_default();
            keys.push(first);
            texts.push(text);
            words.push(spaced(&shown));
        }
        if rows.is_empty() {
            return Ok(());
        }
        connection.execute(&update, &[&keys, &texts, &words]).await?;
    }
}

async fn is_usable(
    connection: &PgConnection,
    server: &PostgresPools,
    name: &str,
) -> Result<bool, PostgresOperationError> {
    let usable = connection.prepare_cached(&server.sql.usable_index).await?;
    Ok(connection.query_opt(&usable, &[&name]).await?.is_some())
}

/// Adds the words and phrases as parameters, and returns an SQL condition that the words in a column fulfil if they
/// contain them. The index finds single words. Words that must follow each other are then searched for in the text of
/// the words.
fn contained(query: &mut SqlQuery, words: &Words) -> impl Fn(&str) -> String + use<> {
    let mut lexemes = Vec::new();
    let mut sequences = Vec::new();
    for (phrase, is_open) in words.phrases() {
        let last = phrase.len().saturating_sub(1);
        let lexeme = |(index, word): (usize, &String)| {
            format!("'{word}'{}", if is_open && index == last { ":*" } else { "" })
        };
        lexemes.extend(phrase.iter().enumerate().map(lexeme));
        if last > 0 {
            sequences.push(query.param(format!(" {}{}", phrase.join(" "), if is_open { "" } else { " " })));
        }
    }
    let wanted = query.param(lexemes.join(" & "));
    move |column| {
        let follow = sequences.iter().map(|sequence| format!(" AND strpos({column}, {sequence}) > 0"));
        format!("({} @@ {wanted}::text::tsquery{})", vector(column), follow.collect::<String>())
    }
}

pub(super) async fn search(
    connection: &PgConnection,
    server: &PostgresPools,
    words: &Words,
    Listing { filter, page }: &Listing,
) -> Result<Found, PostgresOperationError> {
    for (index, ..) in indexes(RULE) {
        if !is_usable(connection, server, &index).await? {
            return Err(StoreError::unsupported("searches before `create_search_index` was called").into());
        }
    }
    let rows = if expected(connection, server, words).await? <= SORTED {
        filter::rows(connection, &sorted(server, filter, words, page)).await?
    } else {
        let walked = |candidates: PageCandidates<'_>| walked(server, candidates, filter, words, page);
        filter::read_page(connection, server, filter, page, walked).await?
    };
    Ok(Found::new(rows.iter().map(|row| hit(row, server, words)).collect::<Result<_, _>>()?))
}

/// Returns the number of messages that the planner expects to match.
async fn expected(
    connection: &PgConnection,
    server: &PostgresPools,
    words: &Words,
) -> Result<f64, PostgresOperationError> {
    let (schema, mut query) = (&server.sql.schema, SqlQuery::default());
    let contain = contained(&mut query, words);
    query.sql = format!("EXPLAIN SELECT FROM {schema}.nodes WHERE {}", contain("words"));
    let statement = connection.prepare(&query.sql).await?;
    let rows = connection.query(&statement, &query.params()).await?;
    let Some(row) = rows.first() else { return Ok(0.0) };
    // The first line ends like `(cost=0.00..1.00 rows=10 width=0)`.
    let plan: &str = row.try_get(0)?;
    let rows = plan.split_once("rows=").and_then(|(_, rows)| rows.split(' ').next()?.parse().ok());
    Ok(rows.unwrap_or_default())
}

/// Returns the condition that a conversation follows the position of the page, and the end of the query, which sorts
/// the conversations and limits their number.
fn paged(query: &mut SqlQuery, page: &Page) -> (String, String) {
    let after = page.after.as_ref().map_or("true".to_owned(), |after| {
        let updated = query.param(system_time(after.updated));
        let id = query.param(after.id.as_str().to_owned());
        format!("(updated <= {updated} AND (updated < {updated} OR id > {id}))")
    });
    let (limit, offset) = (query.param(count(page.limit)), query.param(count(page.offset)));
    (after, format!("ORDER BY updated DESC, id LIMIT {limit} OFFSET {offset}"))
}

/// Returns a query that reads all matching texts from the indexes.
fn sorted(server: &PostgresPools, filter: &Filter, words: &Words, page: &Page) -> SqlQuery {
    let (schema, mut query) = (&server.sql.schema, SqlQuery::default());
    let contain = contained(&mut query, words);
    let matches = query.matches(schema, "conversations.key", filter, None);
    let (after, end) = paged(&mut query, page);
    let (columns, in_node, in_title) = (columns(server), contain("words"), contain("conversations.words"));
    query.sql = format!(
        "WITH found AS MATERIALIZED (
             SELECT conversation, version, place FROM {schema}.nodes WHERE {in_node}
             UNION ALL
             SELECT key, NULL, NULL FROM {schema}.conversations WHERE {in_title}
         ), latest AS MATERIALIZED (
             SELECT DISTINCT ON (conversation) conversation, version, place FROM found
             ORDER BY conversation, version DESC NULLS LAST, place DESC
         ), page AS MATERIALIZED (
             SELECT conversations.key AS page_key, latest.version AS at, latest.place AS at_place
             FROM latest, LATERAL (
                 SELECT * FROM {schema}.conversations WHERE key = latest.conversation OFFSET 0
             ) AS conversations
             WHERE {after} AND {matches} {end}
         )
         {columns}"
    );
    query
}

/// Returns a query that examines the conversations in the order of the list until the page is full.
fn walked(
    server: &PostgresPools,
    candidates: PageCandidates<'_>,
    filter: &Filter,
    words: &Words,
    page: &Page,
) -> SqlQuery {
    let (schema, mut query) = (&server.sql.schema, SqlQuery::default());
    let contain = contained(&mut query, words);
    let matches = query.matches(schema, "conversations.key", filter, candidates.label());
    let (after, end) = paged(&mut query, page);
    let all = format!("SELECT * FROM {schema}.conversations");
    let source = match candidates {
        PageCandidates::Labelled(name, value) => {
            let labelled = query.labelled(schema, name, value);
            format!("({all} WHERE key = ANY ({labelled}) AND {after} ORDER BY updated DESC, id)")
        }
        PageCandidates::Listed(examined) => {
            let examined = query.param(examined);
            format!("({all} WHERE {after} ORDER BY updated DESC, id LIMIT {examined} OFFSET 0)")
        }
    };
    let (columns, in_node, in_title) = (columns(server), contain("words"), contain("conversations.words"));
    query.sql = format!(
        "WITH page AS MATERIALIZED (
             SELECT conversations.key AS page_key, found.version AS at, found.place AS at_place
             FROM {source} AS conversations, LATERAL (
                 SELECT version, place FROM (
                     (SELECT version, place FROM (
                         SELECT version, place, words FROM {schema}.nodes WHERE conversation = conversations.key
                         ORDER BY version DESC, place DESC OFFSET 0
                     ) AS latest WHERE {in_node} LIMIT 1)
                     UNION ALL
                     (SELECT NULL, NULL WHERE {in_title})
                 ) AS texts LIMIT 1
             ) AS found
             WHERE {matches} {end}
         )
         {columns}"
    );
    query
}

/// Returns the part of a query that reads the conversations and messages of a page.
fn columns(server: &PostgresPools) -> String {
    let (columns, _) = server.sql.summary_columns.split_once("\nFROM ").unwrap_or_default();
    let schema = &server.sql.schema;
    let columns = columns.replace("SELECT id, version,", "SELECT conversations.id, conversations.version,");
    format!(
        "{columns}, nodes.id, nodes.parent, nodes.message
         FROM page JOIN {schema}.conversations ON key = page_key
             LEFT JOIN {schema}.nodes ON nodes.conversation = key AND nodes.version = at AND nodes.place = at_place
         ORDER BY updated DESC, conversations.id"
    )
}

fn hit(row: &Row, server: &PostgresPools, words: &Words) -> Result<Hit, PostgresOperationError> {
    let summary = summary(row, &server.place)?;
    let Some(number) = row.try_get::<_, Option<i64>>(9)? else { return Ok(Hit::title(summary)) };
    let origin = RowErrorContext { id: &summary.id, place: &server.place };
    let (parent, message) = (row.try_get(10)?, row.try_get(11)?);
    let node = AttachmentCodec::ignored().apply(|| origin.node(number, parent, message, None, false))?;
    Ok(Hit::message(summary.clone(), node.id(), node.message(), words))
}

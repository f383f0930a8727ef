//! Searches by words.

use tokio_postgres::Row;

use super::{
    connect::Object,
    error::Fault,
    filter::{self, Query},
    read::system_time,
    server::Server,
};
use crate::store::{
    Filter, Found, Hit, Listing, Page, Query as Words, StoreError,
    attachments::Files,
    rows::{Candidates, Origin, count, summary},
};

/// Returns an SQL expression for the words of a message. The column `content` is null for messages that can't be
/// indexed.
fn of_node(schema: &str) -> String {
    format!("{schema}.words_of_message(content)")
}

/// Returns an SQL expression for the words of a title.
fn of_title(schema: &str) -> String {
    format!("{schema}.words_of_title(title)")
}

/// If at most this many messages are expected to match, all of them are read and sorted. Otherwise, the conversations
/// are examined in the order of the list until the page is full.
const SORTED: f64 = 20_000.0;

/// Creates the indexes, without blocking writers. A broken index from an interrupted attempt is replaced.
pub(super) async fn create_index(connection: &Object, server: &Server) -> Result<(), Fault> {
    let schema = &server.sql.schema;
    let indexes = [
        ("nodes_by_words", format!("{schema}.nodes USING gin ({})", of_node(schema))),
        ("conversations_by_words", format!("{schema}.conversations USING gin ({})", of_title(schema))),
    ];
    // Remove the time limits of statements, because creating an index can take long.
    connection.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    for (name, on) in indexes {
        if is_usable(connection, server, name).await? {
            continue;
        }
        connection.batch_execute(&format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{name}")).await?;
        connection.batch_execute(&format!("CREATE INDEX CONCURRENTLY {name} ON {on}")).await?;
    }
    // Update the planner's statistics about the frequency of words.
    Ok(connection.batch_execute(&format!("ANALYZE {schema}.nodes, {schema}.conversations")).await?)
}

async fn is_usable(connection: &Object, server: &Server, name: &str) -> Result<bool, Fault> {
    let usable = connection.prepare_cached(&server.sql.usable_index).await?;
    Ok(connection.query_opt(&usable, &[&name]).await?.is_some())
}

/// Adds the words and phrases as parameters, and returns an SQL expression of type `tsquery` for them.
fn words_of(query: &mut Query, words: &Words) -> String {
    let phrases = words.phrases().map(|phrase| {
        let text = query.param(phrase.join(" "));
        format!("phraseto_tsquery('simple', {text})")
    });
    format!("({})", phrases.collect::<Vec<_>>().join(" && "))
}

pub(super) async fn search(
    connection: &Object,
    server: &Server,
    words: &Words,
    Listing { filter, page }: &Listing,
) -> Result<Found, Fault> {
    for index in ["nodes_by_words", "conversations_by_words"] {
        if !is_usable(connection, server, index).await? {
            return Err(StoreError::unsupported("searches before `create_search_index` was called").into());
        }
    }
    let rows = if expected(connection, server, words).await? <= SORTED {
        filter::rows(connection, &sorted(server, filter, words, page)).await?
    } else {
        let walked = |candidates: Candidates<'_>| walked(server, candidates, filter, words, page);
        filter::read_page(connection, server, filter, page, walked).await?
    };
    Ok(Found::new(rows.iter().map(|row| hit(row, server, words)).collect::<Result<_, _>>()?))
}

/// Returns the number of messages that the planner expects to match.
async fn expected(connection: &Object, server: &Server, words: &Words) -> Result<f64, Fault> {
    let (schema, mut query) = (&server.sql.schema, Query::default());
    let wanted = words_of(&mut query, words);
    query.sql = format!("EXPLAIN SELECT FROM {schema}.nodes WHERE {} @@ {wanted}", of_node(schema));
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
fn paged(query: &mut Query, page: &Page) -> (String, String) {
    let after = page.after.as_ref().map_or("true".to_owned(), |after| {
        let updated = query.param(system_time(after.updated));
        let id = query.param(after.id.as_str().to_owned());
        format!("(updated <= {updated} AND (updated < {updated} OR id > {id}))")
    });
    let (limit, offset) = (query.param(count(page.limit)), query.param(count(page.offset)));
    (after, format!("ORDER BY updated DESC, id LIMIT {limit} OFFSET {offset}"))
}

/// Returns a query that reads all matching texts from the indexes.
fn sorted(server: &Server, filter: &Filter, words: &Words, page: &Page) -> Query {
    let (schema, mut query) = (&server.sql.schema, Query::default());
    let wanted = words_of(&mut query, words);
    let matches = query.matches(schema, "conversations.key", filter, None);
    let (after, end) = paged(&mut query, page);
    let (columns, of_node, of_title) = (columns(server), of_node(schema), of_title(schema));
    query.sql = format!(
        "WITH found AS MATERIALIZED (
             SELECT conversation, version, place FROM {schema}.nodes WHERE {of_node} @@ {wanted}
             UNION ALL
             SELECT key, NULL, NULL FROM {schema}.conversations WHERE {of_title} @@ {wanted}
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
fn walked(server: &Server, candidates: Candidates<'_>, filter: &Filter, words: &Words, page: &Page) -> Query {
    let (schema, mut query) = (&server.sql.schema, Query::default());
    let wanted = words_of(&mut query, words);
    let matches = query.matches(schema, "conversations.key", filter, candidates.label());
    let (after, end) = paged(&mut query, page);
    let all = format!("SELECT * FROM {schema}.conversations");
    let source = match candidates {
        Candidates::Labelled(name, value) => {
            let labelled = query.labelled(schema, name, value);
            format!("({all} WHERE key = ANY ({labelled}) AND {after} ORDER BY updated DESC, id)")
        }
        Candidates::Listed(examined) => {
            let examined = query.param(examined);
            format!("({all} WHERE {after} ORDER BY updated DESC, id LIMIT {examined} OFFSET 0)")
        }
    };
    let (columns, of_node, of_title) = (columns(server), of_node(schema), of_title(schema));
    query.sql = format!(
        "WITH page AS MATERIALIZED (
             SELECT conversations.key AS page_key, found.version AS at, found.place AS at_place
             FROM {source} AS conversations, LATERAL (
                 SELECT version, place FROM (
                     (SELECT version, place FROM (
                         SELECT version, place, content FROM {schema}.nodes WHERE conversation = conversations.key
                         ORDER BY version DESC, place DESC OFFSET 0
                     ) AS latest WHERE {of_node} @@ {wanted} LIMIT 1)
                     UNION ALL
                     (SELECT NULL, NULL WHERE {of_title} @@ {wanted})
                 ) AS texts LIMIT 1
             ) AS found
             WHERE {matches} {end}
         )
         {columns}"
    );
    query
}

/// Returns the part of a query that reads the conversations and messages of a page.
fn columns(server: &Server) -> String {
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

fn hit(row: &Row, server: &Server, words: &Words) -> Result<Hit, Fault> {
    let summary = summary(row, &server.place)?;
    let Some(number) = row.try_get::<_, Option<i64>>(9)? else { return Ok(Hit::title(summary)) };
    let origin = Origin { id: &summary.id, place: &server.place };
    let (parent, message) = (row.try_get(10)?, row.try_get(11)?);
    let node = Files::ignored().apply(|| origin.node(number, parent, message, None))?;
    Ok(Hit::message(summary.clone(), node.id(), node.message(), words))
}

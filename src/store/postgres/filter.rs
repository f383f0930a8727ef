//! Lists of the conversations that match a filter.

use deadpool_postgres::Object;
use tokio_postgres::types::ToSql;

use super::{
    error::Fault,
    read::{list, summarise, system_time},
    server::Server,
};
use crate::store::{Filter, Page, Summary, rows::count};

/// If at most this many conversations have a label, all of them are read, and those that match are sorted. Otherwise,
/// the conversations are read in the order of the list until the page is full.
const SORTED: i64 = 5000;

/// The text of a query with its parameters. Such a query is prepared anew each time, because the best plan depends on
/// the parameters.
#[derive(Default)]
pub(super) struct Query {
    pub(super) sql: String,
    pub(super) params: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl Query {
    /// Adds a parameter and returns its place in the SQL text.
    pub(super) fn param(&mut self, param: impl ToSql + Sync + Send + 'static) -> String {
        self.params.push(Box::new(param));
        format!("${}", self.params.len())
    }

    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect()
    }

    /// Adds the condition that a conversation matches the filter. `key` is the SQL of the conversation's key.
    ///
    /// Each subquery returns one value, so that the planner can't turn it into a join. With a join, the planner would
    /// first read all rows of a frequent label.
    pub(super) fn matches(&mut self, schema: &str, key: &str, filter: &Filter) -> String {
        let label = format!("SELECT value FROM {schema}.labels WHERE conversation = {key}");
        let mut conditions = vec!["true".to_owned()];
        for (name, value) in filter.labels.iter() {
            let (name, value) = (self.param(name.to_owned()), self.param(value.to_owned()));
            conditions.push(format!("({label} AND name = {name}) = {value}"));
        }
        // No label has a name with U+0000, and the database would reject it.
        for name in filter.without.iter().filter(|name| !name.contains('\0')) {
            let name = self.param(name.clone());
            conditions.push(format!("({label} AND name = {name}) IS NULL"));
        }
        conditions.join(" AND ")
    }
}

/// Returns the label of the filter that the fewest conversations have, if at most [`SORTED`] conversations have it.
pub(super) async fn rarest<'f>(
    connection: &Object,
    server: &Server,
    filter: &'f Filter,
) -> Result<Option<(&'f str, &'f str)>, Fault> {
    let mut rarest = (SORTED + 1, None);
    let query = connection.prepare_cached(&server.sql.label_count).await?;
    for (name, value) in filter.labels.iter() {
        let found: i64 = connection.query_one(&query, &[&name, &value, &rarest.0]).await?.try_get(0)?;
        if found < rarest.0 {
            rarest = (found, Some((name, value)));
        }
    }
    Ok(rarest.1)
}

/// Returns the query for the conversations of a page.
pub(super) fn page(schema: &str, rarest: Option<(&str, &str)>, filter: &Filter, page: &Page) -> Query {
    let (mut query, all) = (Query::default(), format!("SELECT * FROM {schema}.conversations"));
    let (limit, offset) = (query.param(count(page.limit)), query.param(count(page.offset)));
    let position = page
        .after
        .as_ref()
        .map(|after| (query.param(system_time(after.updated)), query.param(after.id.as_str().to_owned())));
    let matches = query.matches(schema, "conversations.key", filter);
    if let Some((name, value)) = rarest {
        let (name, value) = (query.param(name.to_owned()), query.param(value.to_owned()));
        let after = position.map_or("true".to_owned(), |(updated, id)| {
            format!("(updated < {updated} OR updated = {updated} AND id > {id})")
        });
        // With `OFFSET 0`, the planner can't turn the subquery into a join, for which it would read all conversations.
        query.sql = format!(
            "SELECT conversations.* FROM {schema}.labels AS rare, LATERAL (
                 SELECT * FROM {schema}.conversations WHERE key = rare.conversation OFFSET 0
             ) AS conversations
             WHERE rare.name = {name} AND rare.value = {value} AND {after} AND {matches}
             ORDER BY updated DESC, id LIMIT {limit} OFFSET {offset}"
        );
    } else if let Some((updated, id)) = position {
        let both = query.param(count(page.limit).saturating_add(count(page.offset)));
        query.sql = format!(
            "({all} WHERE updated = {updated} AND id > {id} AND {matches} ORDER BY id LIMIT {both})
             UNION ALL ({all} WHERE updated < {updated} AND {matches} ORDER BY updated DESC, id LIMIT {both})
             ORDER BY updated DESC, id LIMIT {limit} OFFSET {offset}"
        );
    } else {
        query.sql = format!("{all} WHERE {matches} ORDER BY updated DESC, id LIMIT {limit} OFFSET {offset}");
    }
    query
}

pub(super) async fn list_where(
    connection: &Object,
    server: &Server,
    filter: &Filter,
    page_wanted: Page,
) -> Result<Vec<Summary>, Fault> {
    if filter.is_empty() {
        return list(connection, server, page_wanted).await;
    }
    let rarest = rarest(connection, server, filter).await?;
    let query = page(&server.sql.schema, rarest, filter, &page_wanted);
    let statement = connection.prepare(&server.sql.page_of(&query.sql)).await?;
    let rows = connection.query(&statement, &query.params()).await?;
    rows.iter().map(|row| summarise(row, &server.place)).collect()
}

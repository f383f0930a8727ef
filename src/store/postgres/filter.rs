//! Lists of the conversations that match a filter.

use tokio_postgres::{Row, types::ToSql};

use super::{
    connect::PgConnection,
    error::PostgresOperationError,
    read::{self, system_time},
    server::PostgresPools,
};
use crate::store::{
    Filter, Listing, Page, Summary,
    rows::{FilteredPagePlan, FilteredPageStep, PageCandidates, RarestLabelFinder, WALKED, count, summary},
};

impl<'f> PageCandidates<'f> {
    /// Returns the name of the label that all candidates have.
    pub(super) const fn label(self) -> Option<&'f str> {
        match self {
            Self::Labelled(name, _) => Some(name),
            Self::Listed(_) => None,
        }
    }
}

/// The text of a query with its parameters. Such a query is prepared anew each time, because the best plan depends on
/// the parameters.
#[derive(Default)]
pub(super) struct SqlQuery {
    pub(super) sql: String,
    pub(super) params: Vec<Box<dyn ToSql + Sync + Send>>,
}

impl SqlQuery {
    /// Adds a parameter and returns its place in the SQL text.
    pub(super) fn param(&mut self, param: impl ToSql + Sync + Send + 'static) -> String {
        self.params.push(Box::new(param));
        format!("${}", self.params.len())
    }

    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.params.iter().map(|param| &**param as &(dyn ToSql + Sync)).collect()
    }

    /// Adds a label, and returns the SQL of an array with the keys of the conversations that have the label.
    pub(super) fn labelled(&mut self, schema: &str, name: &str, value: &str) -> String {
        let (name, value) = (self.param(name.to_owned()), self.param(value.to_owned()));
        format!("ARRAY(SELECT conversation FROM {schema}.labels WHERE name = {name} AND value = {value})")
    }

    /// Adds the condition that a conversation matches the filter. `key` is the SQL of the conversation's key. The label
    /// with the name `known` is not checked again.
    ///
    /// Each subquery returns one value, so that the planner can't turn it into a join. With a join, the planner would
    /// first read all rows of a frequent label.
    pub(super) fn matches(
        &mut self,
        schema: &str,
        key: &str,
        filter: &Filter,
        known: Option<&str>,
    ) -> String {
        let label = format!("SELECT value FROM {schema}.labels WHERE conversation = {key}");
        let mut conditions = vec!["true".to_owned()];
        for (name, value) in filter.labels.iter().filter(|(name, _)| Some(*name) != known) {
            let (name, value) = (self.param(name.to_owned()), self.param(value.to_owned()));
            conditions.push(format!("({label} AND name = {name}) = {value}"));
        }
        // No label has a name with U+0000, so such a name excludes nothing. It is left out, because the database would
        // reject it.
        for name in filter.without.iter().filter(|name| !name.contains('\0')) {
            let name = self.param(name.clone());
            conditions.push(format!("({label} AND name = {name}) IS NULL"));
        }
        conditions.join(" AND ")
    }
}

/// Returns the number of conversations with this label, counted up to a bound.
async fn counted(
    connection: &PgConnection,
    server: &PostgresPools,
    name: &str,
    value: &str,
    most: i64,
) -> Result<i64, PostgresOperationError> {
    let query = connection.prepare_cached(&server.sql.label_count).await?;
    Ok(connection.query_one(&query, &[&name, &value, &most]).await?.try_get(0)?)
}

/// Returns the label of the filter that the fewest conversations have, if at most `most` conversations have it.
pub(super) async fn rarest<'f>(
    connection: &PgConnection,
    server: &PostgresPools,
    filter: &'f Filter,
    most: i64,
) -> Result<Option<(&'f str, &'f str)>, PostgresOperationError> {
    let mut rarest = RarestLabelFinder::new(filter, most);
    while let Some((name, value, most)) = rarest.question() {
        rarest.answer(counted(connection, server, name, value, most).await?);
    }
    Ok(rarest.found())
}

/// Reads a page with the query that the function makes, from the candidates that are likely to be the fastest.
pub(super) async fn read_page(
    connection: &PgConnection,
    server: &PostgresPools,
    filter: &Filter,
    page: &Page,
    query: impl Fn(PageCandidates<'_>) -> SqlQuery,
) -> Result<Vec<Row>, PostgresOperationError> {
    let mut plan = FilteredPagePlan::new(filter);
    loop {
        match plan.next() {
            FilteredPageStep::Count(name, value, most) => {
                plan.counted(counted(connection, server, name, value, most).await?);
            }
            FilteredPageStep::Read(candidates) => return rows(connection, &query(candidates)).await,
            FilteredPageStep::Walk => {
                let first = rows(connection, &query(PageCandidates::Listed(Some(WALKED)))).await?;
                if first.len() >= page.limit {
                    return Ok(first);
                }
                plan.walked();
            }
        }
    }
}

pub(super) async fn rows(
    connection: &PgConnection,
    query: &SqlQuery,
) -> Result<Vec<Row>, PostgresOperationError> {
    let statement = connection.prepare(&query.sql).await?;
    Ok(connection.query(&statement, &query.params()).await?)
}

/// Returns the query for the conversations of a page.
fn page(schema: &str, candidates: PageCandidates<'_>, filter: &Filter, page: &Page) -> SqlQuery {
    let (mut query, all) = (SqlQuery::default(), format!("SELECT * FROM {schema}.conversations"));
    let (limit, offset) = (query.param(count(page.limit)), query.param(count(page.offset)));
    let end = format!("ORDER BY updated DESC, id LIMIT {limit} OFFSET {offset}");
    let position = page
        .after
        .as_ref()
        .map(|after| (query.param(system_time(after.updated)), query.param(after.id.as_str().to_owned())));
    let matches = query.matches(schema, "conversations.key", filter, candidates.label());
    let examined = match candidates {
        PageCandidates::Labelled(name, value) => {
            let labelled = query.labelled(schema, name, value);
            let after = position.map_or("true".to_owned(), |(updated, id)| {
                format!("(updated < {updated} OR updated = {updated} AND id > {id})")
            });
            query.sql = format!("{all} WHERE key = ANY ({labelled}) AND {after} AND {matches} {end}");
            return query;
        }
        PageCandidates::Listed(examined) => examined.map(|examined| query.param(examined)),
    };
    // The planner uses the index only if the limit is next to the condition.
    let part = |examined: Option<&String>, range: &str, order: &str, last: &str| match examined {
        Some(examined) => format!(
            "SELECT * FROM ({all} WHERE {range} ORDER BY {order} LIMIT {examined}) AS conversations
             WHERE {matches} ORDER BY {order} {last}"
        ),
        None => format!("{all} WHERE {range} AND {matches} ORDER BY {order} {last}"),
    };
    // With a position, each part reads one range of the index, as for a list without a filter.
    query.sql = if let Some((updated, id)) = position {
        let both = format!("LIMIT {}", query.param(count(page.limit).saturating_add(count(page.offset))));
        // All conversations with the time of the position are examined. Otherwise earlier ones could fill the page, and
        // the rest would be skipped.
        let same = part(None, &format!("updated = {updated} AND id > {id}"), "id", &both);
        let earlier = part(examined.as_ref(), &format!("updated < {updated}"), "updated DESC, id", &both);
        format!("({same}) UNION ALL ({earlier}) {end}")
    } else {
        part(examined.as_ref(), "true", "updated DESC, id", &format!("LIMIT {limit} OFFSET {offset}"))
    };
    query
}

pub(super) async fn list(
    connection: &PgConnection,
    server: &PostgresPools,
    Listing { filter, page: wanted }: &Listing,
) -> Result<Vec<Summary>, PostgresOperationError> {
    if filter.is_empty() {
        return read::list(connection, server, wanted).await;
    }
    let of_page = |candidates: PageCandidates<'_>| {
        let query = page(&server.sql.schema, candidates, filter, wanted);
        SqlQuery { sql: server.sql.page_of(&query.sql), ..query }
    };
    let rows = read_page(connection, server, filter, wanted, of_page).await?;
    rows.iter().map(|row| summary(row, &server.place)).collect()
}

//! Lists of the conversations that match a filter.

use std::fmt::Write as _;

use rusqlite::{Connection, OptionalExtension, ToSql, params, params_from_iter, types::Value};

use super::{
    database::{SqliteDatabase, SqliteOperationError},
    read,
    row::{listed, summaries},
    write::millis,
};
use crate::store::{
    Filter, Listing, Page, Summary,
    rows::{FilteredPagePlan, FilteredPageStep, PageCandidates, RarestLabelFinder, WALKED, count},
};

/// A condition with its parameters.
#[derive(Default)]
pub(super) struct SqlCondition {
    pub(super) sql: String,
    pub(super) params: Vec<Value>,
}

impl SqlCondition {
    /// Returns the condition that a conversation matches the filter. `key` is the SQL of the conversation's key.
    pub(super) fn on(key: &str, filter: &Filter) -> Self {
        Self::on_rest(key, filter, None)
    }

    /// Like [`on`](Self::on), but the label with the name `known` is not checked again.
    fn on_rest(key: &str, filter: &Filter, known: Option<&str>) -> Self {
        let mut condition = Self { sql: "true".to_owned(), params: Vec::new() };
        for (name, value) in filter.labels.iter().filter(|(name, _)| Some(*name) != known) {
            let sql = format!(
                " AND EXISTS (SELECT 1 FROM labels WHERE conversation = {key} AND name = ? AND value = ?)"
            );
            condition.push(&sql, [name, value]);
        }
        for name in &filter.without {
            let sql =
                format!(" AND NOT EXISTS (SELECT 1 FROM labels WHERE conversation = {key} AND name = ?)");
            condition.push(&sql, [name.as_str()]);
        }
        condition
    }

    /// Returns the condition that labels in their JSON form match the filter.
    pub(super) fn on_json(labels: &str, filter: &Filter) -> Self {
        let mut condition = Self { sql: "true".to_owned(), params: Vec::new() };
        for (name, value) in filter.labels.iter() {
            let sql = format!(" AND EXISTS (SELECT 1 FROM json_each({labels}) WHERE key = ? AND value = ?)");
            condition.push(&sql, [name, value]);
        }
        for name in &filter.without {
            let sql = format!(" AND NOT EXISTS (SELECT 1 FROM json_each({labels}) WHERE key = ?)");
            condition.push(&sql, [name.as_str()]);
        }
        condition
    }

    fn push<'a>(&mut self, sql: &str, params: impl IntoIterator<Item = &'a str>) {
        self.sql.push_str(sql);
        self.params.extend(params.into_iter().map(|param| Value::from(param.to_owned())));
    }
}

/// Returns the number of conversations with this label, counted up to a bound.
fn counted(connection: &Connection, name: &str, value: &str, most: i64) -> Result<i64, SqliteOperationError> {
    let mut query = connection.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM labels WHERE name = ?1 AND value = ?2 LIMIT ?3)",
    )?;
    Ok(query.query_row(params![name, value, most], |row| row.get(0))?)
}

/// Returns the label of the filter that the fewest conversations have, if at most `most` conversations have it.
pub(super) fn rarest<'f>(
    connection: &Connection,
    filter: &'f Filter,
    most: i64,
) -> Result<Option<(&'f str, &'f str)>, SqliteOperationError> {
    let mut rarest = RarestLabelFinder::new(filter, most);
    while let Some((name, value, most)) = rarest.question() {
        rarest.answer(counted(connection, name, value, most)?);
    }
    Ok(rarest.found())
}

/// Reads a page with the function `read`, from the candidates that are likely to be the fastest.
pub(super) fn read_page<T>(
    connection: &Connection,
    filter: &Filter,
    page: &Page,
    read: impl Fn(PageCandidates<'_>) -> Result<Vec<T>, SqliteOperationError>,
) -> Result<Vec<T>, SqliteOperationError> {
    let mut plan = FilteredPagePlan::new(filter);
    loop {
        match plan.next() {
            FilteredPageStep::Count(name, value, most) => {
                plan.counted(counted(connection, name, value, most)?);
            }
            FilteredPageStep::Read(candidates) => return read(candidates),
            FilteredPageStep::Walk => {
                let since = walked_since(connection, page)?;
                let first = read(PageCandidates::Listed(since))?;
                if since.is_none() || first.len() >= page.limit {
                    return Ok(first);
                }
                plan.walked();
            }
        }
    }
}

/// Returns the time of the last of the first [`WALKED`] conversations that the page can contain. Returns `None` if the
/// list has fewer conversations.
fn walked_since(connection: &Connection, page: &Page) -> Result<Option<i64>, SqliteOperationError> {
    let mut query = connection.prepare_cached(
        "SELECT updated FROM conversations INDEXED BY conversations_by_update WHERE updated <= ?1
         ORDER BY updated DESC, id LIMIT 1 OFFSET ?2",
    )?;
    let begin = page.after.as_ref().map_or(i64::MAX, |after| millis(after.updated));
    Ok(query.query_row([begin, WALKED - 1], |row| row.get(0)).optional()?)
}

/// Returns the query for the keys of the conversations on this page, with its parameters.
pub(super) fn keys(candidates: PageCandidates<'_>, filter: &Filter, page: &Page) -> (String, Vec<Value>) {
    match candidates {
        PageCandidates::Labelled(name, value) => {
            let labelled = "SELECT conversation FROM labels WHERE name = ? AND value = ?";
            let params = [name, value].map(|text| Value::from(text.to_owned()));
            keys_in(labelled, params.into(), &SqlCondition::on_rest(KEY, filter, Some(name)), page)
        }
        PageCandidates::Listed(since) => keys_since(since, filter, page),
    }
}

/// Like [`keys`], but returns a query that considers only the conversations whose keys are in the JSON array `keys`.
pub(super) fn keys_among(keys: String, filter: &Filter, page: &Page) -> (String, Vec<Value>) {
    keys_in("SELECT value FROM json_each(?)", vec![keys.into()], &SqlCondition::on(KEY, filter), page)
}

/// The SQL of a conversation's key.
const KEY: &str = "conversations.key";
/// The end of the query for the keys on a page.
const PAGED: &str = " ORDER BY updated DESC, id LIMIT ? OFFSET ?";

fn paged(page: &Page) -> [Value; 2] {
    [Value::from(count(page.limit)), Value::from(count(page.offset))]
}

/// Returns a query that reads all conversations whose keys are in `set`, and sorts those that match.
fn keys_in(set: &str, mut params: Vec<Value>, matches: &SqlCondition, page: &Page) -> (String, Vec<Value>) {
    // Without NOT INDEXED, the planner might read the conversations in the order of the list.
    let mut sql = format!("SELECT key, updated, id FROM conversations NOT INDEXED WHERE key IN ({set})");
    if let Some(after) = &page.after {
        sql.push_str(" AND updated <= ? AND (updated < ? OR id > ?)");
        let updated = Value::from(millis(after.updated));
        params.extend([updated.clone(), updated, after.id.as_str().to_owned().into()]);
    }
    let _ = write!(sql, " AND {}{PAGED}", matches.sql);
    params.extend(matches.params.iter().cloned().chain(paged(page)));
    (sql, params)
}

/// Returns a query that reads the conversations in the order of the list, at most until those with the time `since`.
fn keys_since(since: Option<i64>, filter: &Filter, page: &Page) -> (String, Vec<Value>) {
    let matches = SqlCondition::on(KEY, filter);
    let (mut sql, mut params) = (String::new(), Vec::new());
    let mut part = |range: &str, bounds: &[Value]| {
        if !sql.is_empty() {
            sql.push_str(" UNION ALL ");
        }
        let _ = write!(
            sql,
            "SELECT key, updated, id FROM conversations INDEXED BY conversations_by_update WHERE {range} AND {}",
            matches.sql
        );
        params.extend(bounds.iter().chain(&matches.params).cloned());
    };
    let since = Value::from(since.unwrap_or(i64::MIN));
    match &page.after {
        // The query has two parts, so that each part reads one range of the index, as for a list without a filter.
        Some(after) => {
            let (updated, id) = (Value::from(millis(after.updated)), after.id.as_str().to_owned());
            part("updated = ? AND id > ?", &[updated.clone(), id.into()]);
            part("updated < ? AND updated >= ?", &[updated, since]);
        }
        None => part("updated >= ?", &[since]),
    }
    sql.push_str(PAGED);
    params.extend(paged(page));
    (sql, params)
}

pub(super) fn list(
    connection: &mut Connection,
    database: &SqliteDatabase,
    Listing { filter, page }: Listing,
) -> Result<Vec<Summary>, SqliteOperationError> {
    if filter.is_empty() {
        return read::list(connection, database, page);
    }
    let transaction = connection.transaction()?;
    read_page(&transaction, &filter, &page, |candidates| {
        let (keys, params) = keys(candidates, &filter, &page);
        let columns = listed();
        let sql = format!(
            "SELECT {columns} FROM conversations JOIN (SELECT key AS page_key FROM ({keys})) ON key = page_key
             ORDER BY updated DESC, id"
        );
        let mut query = transaction.prepare_cached(&sql)?;
        let mut rows = query.query(params_from_iter(params.iter().map(|param| param as &dyn ToSql)))?;
        summaries(&mut rows, &database.place())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Labels;

    /// Returns the plan of the query for a page.
    fn plan(candidates: PageCandidates<'_>, page: &Page) -> Vec<String> {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("migrations/1.sql")).unwrap();
        let filter = Filter::with(Labels::new([("tenant", "a")]).unwrap()).without("archived");
        let (sql, params) = keys(candidates, &filter, page);
        let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let lines = query.query_map(params_from_iter(params), |row| row.get::<_, String>(3)).unwrap();
        lines.map(Result::unwrap).collect()
    }

    #[test]
    fn keys_of_a_frequent_label_are_read_in_the_order_of_the_list() {
        let after = Page::first(50).after(crate::store::Position {
            updated: crate::message::Timestamp(1),
            id: crate::store::ConversationId::new("a").unwrap(),
        });
        let pages = [Page::first(50), after];
        for (page, since) in pages.iter().flat_map(|page| [(page, None), (page, Some(1))]) {
            let plan = plan(PageCandidates::Listed(since), page);
            assert!(!plan.iter().any(|line| line.contains("TEMP B-TREE FOR ORDER BY")), "{plan:?}");
            assert!(plan.iter().any(|line| line.contains("conversations_by_update")), "{plan:?}");
        }
    }

    #[test]
    fn keys_of_a_rare_label_are_found_by_its_index() {
        let plan = plan(PageCandidates::Labelled("tenant", "a"), &Page::first(50));
        assert!(plan.iter().any(|line| line.contains("labels_by_value")), "{plan:?}");
        assert!(!plan.iter().any(|line| line.starts_with("SCAN conversations")), "{plan:?}");
    }
}

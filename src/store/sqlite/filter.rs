//! Lists of the conversations that match a filter.

use std::fmt::Write as _;

use rusqlite::{Connection, ToSql, params, params_from_iter, types::Value};

use super::{
    database::{Database, Fault},
    read,
    row::Row,
    write::millis,
};
use crate::store::{Filter, Page, Summary, rows::count};

/// If at most this many conversations have a label, all of them are read, and those that match are sorted. Otherwise,
/// the conversations are read in the order of the list until the page is full.
const SORTED: i64 = 5000;

/// A condition with its parameters.
#[derive(Default)]
pub(super) struct Condition {
    pub(super) sql: String,
    pub(super) params: Vec<Value>,
}

impl Condition {
    /// Returns the condition that a conversation matches the filter. `key` is the SQL of the conversation's key.
    pub(super) fn on(key: &str, filter: &Filter) -> Self {
        let mut condition = Self { sql: "true".to_owned(), params: Vec::new() };
        for (name, value) in filter.labels.iter() {
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

/// Returns the label of the filter that the fewest conversations have, if at most [`SORTED`] conversations have it.
pub(super) fn rarest<'f>(
    connection: &Connection,
    filter: &'f Filter,
) -> Result<Option<(&'f str, &'f str)>, Fault> {
    let mut rarest = (SORTED + 1, None);
    let mut query = connection.prepare_cached(
        "SELECT count(*) FROM (SELECT 1 FROM labels WHERE name = ?1 AND value = ?2 LIMIT ?3)",
    )?;
    for (name, value) in filter.labels.iter() {
        let count: i64 = query.query_row(params![name, value, rarest.0], |row| row.get(0))?;
        if count < rarest.0 {
            rarest = (count, Some((name, value)));
        }
    }
    Ok(rarest.1)
}

/// Returns the query for the keys of the conversations on this page, with its parameters.
pub(super) fn keys(rarest: Option<(&str, &str)>, filter: &Filter, page: &Page) -> (String, Vec<Value>) {
    match rarest {
        Some((name, value)) => {
            // Without NOT INDEXED, the planner might read the conversations in the order of the list.
            let source =
                "NOT INDEXED WHERE key IN (SELECT conversation FROM labels WHERE name = ? AND value = ?) AND";
            keys_from(source, &[name, value].map(|text| Value::from(text.to_owned())), filter, page)
        }
        None => keys_from("INDEXED BY conversations_by_update WHERE", &[], filter, page),
    }
}

/// Like [`keys`], but returns a query that considers only the conversations whose keys are in the JSON array `keys`.
pub(super) fn keys_among(keys: String, filter: &Filter, page: &Page) -> (String, Vec<Value>) {
    keys_from("NOT INDEXED WHERE key IN (SELECT value FROM json_each(?)) AND", &[keys.into()], filter, page)
}

fn keys_from(source: &str, listed: &[Value], filter: &Filter, page: &Page) -> (String, Vec<Value>) {
    let Condition { sql: matches, params } = Condition::on("conversations.key", filter);
    let (mut sql, mut all) = (String::new(), listed.to_vec());
    let mut part = |condition: &str, bounds: &[Value]| {
        if !sql.is_empty() {
            sql.push_str(" UNION ALL ");
            all.extend(listed.iter().cloned());
        }
        let _ = write!(sql, "SELECT key, updated, id FROM conversations {source} {condition}{matches}");
        all.extend(bounds.iter().chain(&params).cloned());
    };
    match &page.after {
        // The query has two parts, so that each part reads one range of the index, as for a list without a filter.
        Some(after) => {
            let (updated, id) = (millis(after.updated), after.id.as_str().to_owned());
            part("updated = ? AND id > ? AND ", &[updated.into(), id.into()]);
            part("updated < ? AND ", &[updated.into()]);
        }
        None => part("", &[]),
    }
    sql.push_str(" ORDER BY updated DESC, id LIMIT ? OFFSET ?");
    all.extend([Value::from(count(page.limit)), Value::from(count(page.offset))]);
    (sql, all)
}

pub(super) fn list(
    connection: &mut Connection,
    database: &Database,
    filter: &Filter,
    page: Page,
) -> Result<Vec<Summary>, Fault> {
    if filter.is_empty() {
        return read::list(connection, database, page);
    }
    let transaction = connection.transaction()?;
    let (keys, params) = keys(rarest(&transaction, filter)?, filter, &page);
    let columns = Row::LISTED;
    let sql = format!(
        "SELECT {columns} FROM conversations JOIN (SELECT key AS page_key FROM ({keys})) ON key = page_key
         ORDER BY updated DESC, id"
    );
    let mut query = transaction.prepare_cached(&sql)?;
    let mut rows = query.query(params_from_iter(params.iter().map(|param| param as &dyn ToSql)))?;
    read::summaries(&mut rows, database)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Labels;

    /// Returns the plan of the query for a page.
    fn plan(rarest: Option<(&str, &str)>, page: &Page) -> Vec<String> {
        let connection = Connection::open_in_memory().unwrap();
        for migration in [include_str!("migrations/1.sql"), include_str!("migrations/2.sql")] {
            connection.execute_batch(migration).unwrap();
        }
        let filter = Filter::with(Labels::new([("tenant", "a")]).unwrap()).without("archived");
        let (sql, params) = keys(rarest, &filter, page);
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
        for page in [Page::first(50), after] {
            let plan = plan(None, &page);
            assert!(!plan.iter().any(|line| line.contains("TEMP B-TREE FOR ORDER BY")), "{plan:?}");
            assert!(plan.iter().any(|line| line.contains("conversations_by_update")), "{plan:?}");
        }
    }

    #[test]
    fn keys_of_a_rare_label_are_found_by_its_index() {
        let plan = plan(Some(("tenant", "a")), &Page::first(50));
        assert!(plan.iter().any(|line| line.contains("labels_by_value")), "{plan:?}");
        assert!(!plan.iter().any(|line| line.starts_with("SCAN conversations")), "{plan:?}");
    }
}

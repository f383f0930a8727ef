//! Schedules.

use std::fmt::Write as _;

use rusqlite::{Connection, params, params_from_iter, types::Value};

use super::{
    database::{SqliteDatabase, SqliteOperationError, begin},
    filter::SqlCondition,
    row::ConversationRowForWrite,
};
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Listing, ScheduleList, Schedules, StoreError, Version,
        rows::{ScheduleRowChange, count, millis, scheduled},
    },
};

pub(super) fn write(
    connection: &mut Connection,
    id: &ConversationId,
    change: &ScheduleRowChange,
) -> Result<Version, SqliteOperationError> {
    let transaction = begin(connection)?;
    let row = ConversationRowForWrite::get(&transaction, id)?;
    let (is_any, (due, rev)) = (change.was.is_none(), change.was.unwrap_or_default());
    let changed = match &change.entry {
        Some((due, rev, entry)) if is_any => transaction
            .prepare_cached(
                "INSERT INTO schedules (conversation, name, due, rev, entry) VALUES (?, ?, ?, ?, ?)
                 ON CONFLICT DO UPDATE SET due = excluded.due, rev = excluded.rev, entry = excluded.entry",
            )?
            .execute(params![row.key, change.name, due, rev, entry])?,
        Some((new_due, new_rev, entry)) => transaction
            .prepare_cached(
                "UPDATE schedules SET due = ?5, rev = ?6, entry = ?7
                 WHERE conversation = ?1 AND name = ?2 AND (due, rev) = (?3, ?4)",
            )?
            .execute(params![row.key, change.name, due, rev, new_due, new_rev, entry])?,
        None => transaction
            .prepare_cached(
                "DELETE FROM schedules
                 WHERE conversation = ?1 AND name = ?2 AND (?5 OR (due, rev) = (?3, ?4))",
            )?
            .execute(params![row.key, change.name, due, rev, is_any])?,
    };
    if changed == 0 && !is_any {
        return Err(StoreError::Conflict { id: id.clone(), current: row.version }.into());
    }
    transaction.commit()?;
    Ok(row.version)
}

/// Returns the query for the schedules of a page, with its parameters.
fn page_of(which: &Schedules, Listing { filter, page }: &Listing, now: Timestamp) -> (String, Vec<Value>) {
    let text = |text: &str| Value::from(text.to_owned());
    let (selected, mut params) = match which {
        Schedules::All => ("true", Vec::new()),
        Schedules::Of(id) => ("conversations.id = ?", vec![text(id.as_str())]),
        Schedules::Within(time) => (
            "due <= ? AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.conversation = conversations.key
                 AND turns.waits AND turns.head IS conversations.head)",
            vec![millis(now.after(*time)).into()],
        ),
    };
    let join = if matches!(which, Schedules::Of(_)) {
        "conversations CROSS JOIN schedules ON conversation = key"
    } else {
        "schedules INDEXED BY schedules_by_due CROSS JOIN conversations ON conversation = key"
    };
    let matches = SqlCondition::on("conversations.key", filter);
    let mut sql = format!(
        "SELECT conversations.id, name, due, rev, entry FROM {join} WHERE {selected} AND {}",
        matches.sql
    );
    params.extend(matches.params);
    if let Some(after) = &page.after {
        let _ = write!(sql, " AND due >= ? AND (due > ? OR conversations.id > ?)");
        let due = millis(after.updated);
        params.extend([due.into(), due.into(), text(after.id.as_str())]);
    }
    sql.push_str(" ORDER BY due, conversations.id, name LIMIT ? OFFSET ?");
    params.extend([count(ScheduleList::read_for(page.limit)), count(page.offset)].map(Value::from));
    (sql, params)
}

pub(super) fn list(
    connection: &mut Connection,
    database: &SqliteDatabase,
    which: &Schedules,
    listing: &Listing,
) -> Result<ScheduleList, SqliteOperationError> {
    let mut list = ScheduleList::new(Timestamp::now());
    let (sql, params) = page_of(which, listing, list.now);
    let mut query = connection.prepare_cached(&sql)?;
    let mut found = query.query(params_from_iter(params))?;
    while let Some(row) = found.next()? {
        list.schedules.push(scheduled(row, 0, &database.place())?);
    }
    Ok(list.cut(listing.page.limit))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::{Filter, Page, Position};

    #[test]
    fn schedules_that_are_due_are_read_in_the_order_of_their_index() {
        let connection = Connection::open_in_memory().unwrap();
        for migration in [include_str!("migrations/1.sql"), include_str!("migrations/2.sql")] {
            connection.execute_batch(migration).unwrap();
        }
        let position = Position { updated: Timestamp(1), id: ConversationId::new("a").unwrap() };
        for page in [Page::first(50), Page::first(50).after(position)] {
            let which = Schedules::Within(Duration::from_secs(10));
            let (sql, params) = page_of(&which, &(Filter::default(), page).into(), Timestamp(5));
            let mut query = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let lines = query.query_map(params_from_iter(params), |row| row.get::<_, String>(3)).unwrap();
            let plan: Vec<_> = lines.map(Result::unwrap).collect();
            assert!(plan[0].starts_with("SEARCH schedules USING INDEX schedules_by_due"), "{plan:?}");
            assert!(!plan.iter().any(|line| line == "USE TEMP B-TREE FOR ORDER BY"), "{plan:?}");
        }
    }
}

//! Reads of conversations, summaries and lists.

use std::time::{Duration, SystemTime};

use futures_util::future::{join, join5};
use tokio_postgres::Row;

use super::{connect::Object, error::Fault, ledger, server::Server, turns};
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Labels, Owner, Page, StoreError, Stored, Summary, Version, json,
        rows::{Origin, count, in_flight},
    },
};

/// Reads a conversation in one transaction and one round trip. All parts of the result are from the same moment.
pub(super) async fn load(connection: &Object, server: &Server, id: &ConversationId) -> Result<Stored, Fault> {
    let conversation = connection.prepare_cached(&server.sql.conversation).await?;
    let nodes = connection.prepare_cached(&server.sql.nodes).await?;
    let cursors = connection.prepare_cached(&server.sql.cursors).await?;
    let turn = connection.prepare_cached(&server.sql.turn).await?;
    let name = id.as_str();
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&name];
    // The statements are sent in this order. No statement waits for the result of an earlier one.
    let (begun, (conversation, turn), nodes, cursors, ended) = join5(
        connection.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"),
        join(connection.query_opt(&conversation, &params), connection.query_opt(&turn, &params)),
        connection.query(&nodes, &params),
        connection.query(&cursors, &params),
        connection.batch_execute("COMMIT"),
    )
    .await;
    begun?;
    let (row, turn, nodes, cursors) = (conversation?, turn?, nodes?, cursors?);
    ended?;

    let row = row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
    let origin = Origin { id, place: &server.place };
    let labels = labels(&row, 7)?.map_err(|problem| origin.damaged("the labels", problem))?;
    let title = title(&row, 3)?.map_err(|problem| origin.damaged("the title", problem))?;
    let version = Version::new(row.try_get::<_, i64>(0)?.cast_unsigned());
    let mut stored = Stored::new(version, time(&row, 1)?, origin.state(row.try_get(4)?, title, labels)?);
    stored.updated = time(&row, 2)?;
    stored.head = origin.head(row.try_get(5)?)?;
    stored.next = origin.next(row.try_get(6)?)?;
    stored.last_run = origin.last_run(row.try_get(8)?, row.try_get(9)?)?;
    stored.mark = Origin::mark(row.try_get(10)?, row.try_get(11)?, version);
    stored.turn = turn.map(|turn| turns::read(&turn, &origin)).transpose()?.flatten().map(Box::new);
    let (requests, usage) = ledger::sum(&row, 12)?;
    stored.used.add(requests, usage);
    stored.nodes.reserve(nodes.len());
    for row in nodes {
        let (number, parent) = (row.try_get(0)?, row.try_get(1)?);
        stored.nodes.push(origin.node(number, parent, row.try_get(2)?, row.try_get(3)?)?);
    }
    for row in cursors {
        stored.cursors.extend([origin.cursor(row.try_get(0)?, row.try_get(1)?)?]);
    }
    Ok(stored)
}

pub(super) async fn summary(
    connection: &Object,
    server: &Server,
    id: &ConversationId,
) -> Result<Summary, Fault> {
    let summary = connection.prepare_cached(&server.sql.summary).await?;
    let row = connection.query_opt(&summary, &[&id.as_str()]).await?;
    summarise(&row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?, &server.place)
}

pub(super) async fn list(connection: &Object, server: &Server, page: &Page) -> Result<Vec<Summary>, Fault> {
    let (limit, offset) = (count(page.limit), count(page.offset));
    let rows = if let Some(after) = &page.after {
        let list = connection.prepare_cached(&server.sql.list_after).await?;
        let updated = system_time(after.updated);
        let both = limit.saturating_add(offset);
        connection.query(&list, &[&limit, &offset, &updated, &after.id.as_str(), &both]).await?
    } else {
        let list = connection.prepare_cached(&server.sql.list).await?;
        connection.query(&list, &[&limit, &offset]).await?
    };
    rows.iter().map(|row| summarise(row, &server.place)).collect()
}

pub(super) fn summarise(row: &Row, place: &str) -> Result<Summary, Fault> {
    let id = id(row, 0, place)?;
    let version = Version::new(row.try_get::<_, i64>(1)?.cast_unsigned());
    let (title, labels) = (title(row, 4)?, labels(row, 7)?);
    let (in_flight, waiting) = in_flight(row.try_get(8)?);
    let damage = title.as_ref().err().map(|problem| format!("its title: {problem}"));
    Ok(Summary {
        updated: time(row, 3)?,
        damage: damage.or_else(|| labels.as_ref().err().map(|problem| format!("its labels: {problem}"))),
        labels: labels.unwrap_or_default(),
        title: title.unwrap_or_default(),
        owner: owner(row, 5)?,
        in_flight,
        waiting,
        ..Summary::new(id, version, time(row, 2)?)
    })
}

pub(super) fn id(row: &Row, column: usize, place: &str) -> Result<ConversationId, Fault> {
    let id = ConversationId::new(row.try_get::<_, &str>(column)?);
    Ok(id.map_err(|error| {
        StoreError::damaged(format!("the id of a conversation in {place}"), error.to_string())
    })?)
}

/// Returns the owner. This column contains the owner's name, and the next column contains its address.
pub(super) fn owner(row: &Row, column: usize) -> Result<Option<Owner>, Fault> {
    let name: Option<String> = row.try_get(column)?;
    let address: Option<String> = row.try_get(column + 1)?;
    Ok(name.map(|name| Owner { address, ..Owner::new(name) }))
}

/// Returns the title, or a description of the problem if another program has written an invalid title.
fn title(row: &Row, column: usize) -> Result<Result<Option<String>, String>, Fault> {
    let title: Option<&str> = row.try_get(column)?;
    Ok(title.map(json::parse).transpose())
}

/// Returns the labels, or a description of the problem if another program has written invalid labels.
pub(super) fn labels(row: &Row, column: usize) -> Result<Result<Labels, String>, Fault> {
    let labels: Option<&str> = row.try_get(column)?;
    Ok(labels.map_or(Ok(Labels::default()), json::parse))
}

fn time(row: &Row, column: usize) -> Result<Timestamp, Fault> {
    let time: SystemTime = row.try_get(column)?;
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Ok(Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
}

/// Returns the time in the form that the database expects, limited to times that the database supports.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    /// The year 10000, in seconds.
    const LATEST: u64 = 253_402_300_800;
    SystemTime::UNIX_EPOCH + Duration::from_millis(time.0.min(LATEST * 1000))
}

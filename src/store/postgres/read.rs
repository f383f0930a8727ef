//! Reads of conversations, summaries and lists.

use std::{
    borrow::Cow,
    rc::Rc,
    time::{Duration, SystemTime},
};

use futures_util::future::{join, join5};
use tokio_postgres::{Row, types::Type};

use super::{connect::PgConnection, error::PostgresOperationError, server::PostgresPools, turns};
use crate::{
    message::Timestamp,
    store::{
        ConversationId, Page, StoreError, Stored, Summary,
        attachments::AttachmentCodec,
        json,
        rows::{self, DatabaseRow, RowErrorContext, count},
    },
};

/// Begins a transaction whose statements all read the same moment.
pub(super) const SNAPSHOT: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// Reads a conversation in one transaction and one round trip. All parts of the result are from the same moment.
pub(super) async fn load(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
) -> Result<Stored, PostgresOperationError> {
    let conversation = connection.prepare_cached(&server.sql.conversation).await?;
    let nodes = connection.prepare_cached(&server.sql.nodes).await?;
    let cursors = connection.prepare_cached(&server.sql.cursors).await?;
    let turn = connection.prepare_cached(&server.sql.turn).await?;
    let files = connection.prepare_cached(&server.sql.files).await?;
    let name = id.as_str();
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&name];
    // The statements are sent in this order. No statement waits for the result of an earlier one.
    let (begun, (conversation, turn), nodes, (cursors, files), ended) = join5(
        connection.batch_execute(SNAPSHOT),
        join(connection.query_opt(&conversation, &params), connection.query_opt(&turn, &params)),
        connection.query(&nodes, &params),
        join(connection.query(&cursors, &params), connection.query(&files, &[&name, &None::<i32>])),
        connection.batch_execute("COMMIT"),
    )
    .await;
    begun?;
    let (row, turn, nodes, cursors) = (conversation?, turn?, nodes?, cursors?);
    let files = files?;
    ended?;

    let row = row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?;
    let origin = RowErrorContext { id, place: &server.place };
    self::files(&files)?.apply(|| {
        let mut stored = rows::stored(&row, &origin)?;
        stored.turn = turn.map(|turn| turns::read(&turn, &origin)).transpose()?.flatten().map(Box::new);
        stored.nodes.reserve(nodes.len());
        for row in nodes {
            let (number, parent) = (row.try_get(0)?, row.try_get(1)?);
            stored.nodes.push(origin.node(
                number,
                parent,
                row.try_get(2)?,
                row.try_get(3)?,
                row.try_get(4)?,
            )?);
        }
        for row in cursors {
            stored.cursors.extend([origin.cursor(row.try_get(0)?, row.try_get(1)?)?]);
        }
        Ok(stored)
    })
}

/// Decodes the rows of files.
pub(super) fn files(rows: &[Row]) -> Result<Rc<AttachmentCodec>, PostgresOperationError> {
    let files = Rc::<AttachmentCodec>::default();
    for row in rows {
        files.add(row.try_get(0)?, row.try_get(1)?);
    }
    Ok(files)
}

pub(super) async fn summary(
    connection: &PgConnection,
    server: &PostgresPools,
    id: &ConversationId,
) -> Result<Summary, PostgresOperationError> {
    let summary = connection.prepare_cached(&server.sql.summary).await?;
    let row = connection.query_opt(&summary, &[&id.as_str()]).await?;
    rows::summary(&row.ok_or_else(|| StoreError::NotFound { id: id.clone() })?, &server.place)
}

pub(super) async fn list(
    connection: &PgConnection,
    server: &PostgresPools,
    page: &Page,
) -> Result<Vec<Summary>, PostgresOperationError> {
    let (limit, offset) = (count(page.limit), count(page.offset));
    let found = if let Some(after) = &page.after {
        let list = connection.prepare_cached(&server.sql.list_after).await?;
        let updated = system_time(after.updated);
        let both = limit.saturating_add(offset);
        connection.query(&list, &[&limit, &offset, &updated, &after.id.as_str(), &both]).await?
    } else {
        let list = connection.prepare_cached(&server.sql.list).await?;
        connection.query(&list, &[&limit, &offset]).await?
    };
    found.iter().map(|row| rows::summary(row, &server.place)).collect()
}

impl DatabaseRow for Row {
    type Misread = PostgresOperationError;

    /// The numbers in columns of 32 bits have no sign.
    fn int(&self, column: usize) -> Result<Option<i64>, PostgresOperationError> {
        if *self.columns()[column].type_() == Type::INT4 {
            let number: Option<i32> = self.try_get(column)?;
            return Ok(number.map(|number| number.cast_unsigned().into()));
        }
        Ok(self.try_get(column)?)
    }

    fn real(&self, column: usize) -> Result<Option<f64>, PostgresOperationError> {
        Ok(self.try_get(column)?)
    }

    fn flag(&self, column: usize) -> Result<bool, PostgresOperationError> {
        Ok(self.try_get(column)?)
    }

    /// Times are timestamps, or milliseconds since 1970.
    fn time(&self, column: usize) -> Result<Timestamp, PostgresOperationError> {
        if *self.columns()[column].type_() == Type::INT8 {
            return Ok(Timestamp(self.bits(column)?));
        }
        let time: SystemTime = self.try_get(column)?;
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }

    fn text(&self, column: usize) -> Result<Option<Cow<'_, str>>, PostgresOperationError> {
        Ok(self.try_get::<_, Option<&str>>(column)?.map(Cow::Borrowed))
    }

    /// Such a text is stored as a JSON string, because the database type `text` can't contain U+0000.
    fn any_text(&self, column: usize) -> Result<Result<Option<String>, String>, PostgresOperationError> {
        Ok(self.try_get::<_, Option<&str>>(column)?.map(json::parse).transpose())
    }
}

/// Returns the time in the form that the database expects, limited to times that the database supports.
pub(super) fn system_time(time: Timestamp) -> SystemTime {
    /// The year 10000, in seconds.
    const LATEST: u64 = 253_402_300_800;
    SystemTime::UNIX_EPOCH + Duration::from_millis(time.0.min(LATEST * 1000))
}

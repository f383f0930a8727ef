//! Updates the schema.

use std::time::{Duration, Instant};

use tokio_postgres::{Error, error::SqlState};

use super::{connect::PgConnection, error::PostgresOperationError, sql::quote};
use crate::store::StoreError;

/// The migrations. The first one creates the schema with the version [`FIRST`]. Each other one updates it to the next
/// version.
const MIGRATIONS: &[&str] = &[include_str!("migrations/1.sql"), include_str!("migrations/2.sql")];
/// The version of the schema after the first migration.
const FIRST: i32 = 10;

/// The total time to wait for other processes that migrate the schema or use its tables.
const PATIENCE: Duration = Duration::from_mins(5);

/// Returns whether the schema is up to date. If it is, a user without the right to create schemas can use it.
pub(super) async fn is_current(
    connection: &PgConnection,
    schema: &str,
    place: &str,
) -> Result<bool, PostgresOperationError> {
    Ok(found(connection, schema, place).await? == MIGRATIONS.len())
}

/// Creates or updates the schema. If several processes call this at the same time, one of them does the work and the
/// others wait.
pub(super) async fn migrate(
    connection: &PgConnection,
    schema: &str,
    place: &str,
) -> Result<(), PostgresOperationError> {
    connection.batch_execute("BEGIN").await?;
    let done = migrate_locked(connection, schema, place).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.batch_execute(end).await;
    done?;
    Ok(ended?)
}

async fn migrate_locked(
    connection: &PgConnection,
    schema: &str,
    place: &str,
) -> Result<(), PostgresOperationError> {
    let begun = Instant::now();
    let failed = |error: Error| match error.code() {
        // The time limits of operations do not apply here, so the error contains the time that has passed.
        code if is_in_use(&error) || code == Some(&SqlState::QUERY_CANCELED) => {
            PostgresOperationError::Store(StoreError::Busy {
                place: place.to_owned(),
                waited: begun.elapsed(),
            })
        }
        _ => PostgresOperationError::Database(error),
    };
    // The time limits of operations would be too short, because other processes may have much to migrate and creating
    // an index takes long.
    let patience = PATIENCE.as_millis();
    let limits = format!("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = {patience}");
    connection.batch_execute(&limits).await?;
    let lock = format!("omni-agent {schema}");
    connection
        .execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock])
        .await
        .map_err(failed)?;
    let found = found(connection, schema, place).await?;
    // While a schema change waits for the users of a table, all new users of the table wait for the schema change. So
    // it waits only briefly, and pauses before the next attempt.
    connection.batch_execute("SET LOCAL lock_timeout = '2s'; SAVEPOINT before").await?;
    loop {
        match apply(connection, &quote(schema), found).await {
            Err(error) if is_in_use(&error) && begun.elapsed() < PATIENCE => {
                tracing::debug!(%error, %place, "the schema is in use; its update is tried again");
            }
            done => return done.map_err(failed),
        }
        connection.batch_execute("ROLLBACK TO before; SELECT pg_sleep(2)").await.map_err(failed)?;
    }
}

/// Returns whether the change failed because other transactions had locked an affected table.
fn is_in_use(error: &Error) -> bool {
    matches!(error.code(), Some(&SqlState::LOCK_NOT_AVAILABLE | &SqlState::T_R_DEADLOCK_DETECTED))
}

/// Applies all migrations except the first `found` ones.
async fn apply(connection: &PgConnection, quoted: &str, found: usize) -> Result<(), Error> {
    if found == 0 {
        let versions = format!(
            "CREATE SCHEMA IF NOT EXISTS {quoted};
             CREATE TABLE {quoted}.migrations (
                 version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now()
             )"
        );
        connection.batch_execute(&versions).await?;
    }
    for (migration, version) in MIGRATIONS.iter().zip(FIRST..).skip(found) {
        connection.batch_execute(&migration.replace("{schema}", quoted)).await?;
        let applied = format!("INSERT INTO {quoted}.migrations (version) VALUES ($1)");
        connection.execute(&applied, &[&version]).await?;
    }
    Ok(())
}

/// Returns the number of migrations that were applied, which is 0 if the schema does not exist.
async fn found(
    connection: &PgConnection,
    schema: &str,
    place: &str,
) -> Result<usize, PostgresOperationError> {
    let there = connection
        .query_one(
            "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')",
            &[&schema],
        )
        .await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let versions = format!("SELECT max(version) FROM {}.migrations", quote(schema));
    let Some(version) = connection.query_one(&versions, &[]).await?.try_get::<_, Option<i32>>(0)? else {
        return Ok(0);
    };
    match usize::try_from(i64::from(version) - i64::from(FIRST) + 1) {
        Ok(applied) if (1..=MIGRATIONS.len()).contains(&applied) => Ok(applied),
        _ => Err(StoreError::UnknownFormat {
            place: format!("schema {schema:?} of {place}"),
            found: version.unsigned_abs().into(),
            known: u64::from(FIRST.unsigned_abs()) + MIGRATIONS.len() as u64 - 1,
        }
        .into()),
    }
}

//! Bringing the schema up to date.

use deadpool_postgres::Object;

use super::{error::Fault, sql::quote};
use crate::store::StoreError;

/// Each takes the schema from the version of its place to the next.
const MIGRATIONS: &[&str] = &[include_str!("migrations/1.sql"), include_str!("migrations/2.sql")];

/// Whether there is nothing to do. Who may not create anything can still use what is there.
pub(super) async fn is_current(connection: &Object, schema: &str, place: &str) -> Result<bool, Fault> {
    Ok(found(connection, schema, place).await? == MIGRATIONS.len())
}

/// Creates the schema, or brings it up to date. Of several that do so at once, one does it, and the others wait for it.
pub(super) async fn migrate(connection: &Object, schema: &str, place: &str) -> Result<(), Fault> {
    connection.batch_execute("BEGIN").await?;
    let done = migrate_locked(connection, schema, place).await;
    let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.batch_execute(end).await;
    done?;
    Ok(ended?)
}

async fn migrate_locked(connection: &Object, schema: &str, place: &str) -> Result<(), Fault> {
    // Others may have a good deal to migrate; and creating an index takes its time.
    connection.batch_execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '5min'").await?;
    let lock = format!("omni-agent {schema}");
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", &[&lock]).await?;
    let quoted = quote(schema);
    let found = found(connection, schema, place).await?;
    if found == 0 {
        let versions = format!(
            "CREATE SCHEMA IF NOT EXISTS {quoted};
             CREATE TABLE {quoted}.migrations (
                 version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now()
             )"
        );
        connection.batch_execute(&versions).await?;
    }
    for (migration, version) in MIGRATIONS.iter().zip(1_i32..).skip(found) {
        connection.batch_execute(&migration.replace("{schema}", &quoted)).await?;
        let applied = format!("INSERT INTO {quoted}.migrations (version) VALUES ($1)");
        connection.execute(&applied, &[&version]).await?;
    }
    Ok(())
}

/// The version of the schema; 0 if there is none.
async fn found(connection: &Object, schema: &str, place: &str) -> Result<usize, Fault> {
    let there = connection
        .query_one(
            "SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = $1 AND tablename = 'migrations')",
            &[&schema],
        )
        .await?;
    if !there.try_get::<_, bool>(0)? {
        return Ok(0);
    }
    let versions = format!("SELECT coalesce(max(version), 0) FROM {}.migrations", quote(schema));
    let version: i32 = connection.query_one(&versions, &[]).await?.try_get(0)?;
    match usize::try_from(version) {
        Ok(version) if version <= MIGRATIONS.len() => Ok(version),
        _ => Err(StoreError::UnknownFormat {
            place: format!("schema {schema:?} of {place}"),
            found: version.unsigned_abs().into(),
            known: MIGRATIONS.len() as u64,
        }
        .into()),
    }
}

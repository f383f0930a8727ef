//! The creation of the schema, which is the first migration, and its update.

use std::{fs, time::Duration};

use omni_agent::store::{ConversationId, Listing, PostgresStore, Store, StoreError, custom::Schedules};
use tokio_postgres::Client;

use super::server::{raw, url};
use crate::support::{Folder, child, child_folder, create, id};

/// Returns the statements of the migration. No statement may contain a semicolon except at its end.
fn statements(schema: &str) -> Vec<String> {
    let migration = include_str!("../../../src/store/postgres/migrations/1.sql");
    let lines = migration.lines().filter(|line| !line.trim_start().starts_with("--"));
    let all = lines.collect::<Vec<_>>().join("\n").replace("{schema}", &format!("\"{schema}\""));
    // The bodies of functions have semicolons, too, but no empty lines.
    all.split(";\n\n").filter(|sql| !sql.trim().is_empty()).map(str::to_owned).collect()
}

fn unused() -> String {
    format!("created {}", ConversationId::generate())
}

async fn versions(client: &Client, schema: &str) -> Vec<i32> {
    let versions = format!("SELECT version FROM \"{schema}\".migrations ORDER BY version");
    client.query(&versions, &[]).await.unwrap().iter().map(|row| row.get(0)).collect()
}

#[tokio::test]
async fn creation_interrupted_after_any_statement_starts_again() {
    let Some(url) = url() else { return };
    let count = statements("any").len();
    assert!(count > 10);
    for done in 0..=count {
        let schema = unused();
        // Drop the connection before the transaction ends, as if the process had died.
        let interrupted = raw(url).await;
        interrupted.batch_execute(&format!("BEGIN; CREATE SCHEMA \"{schema}\"")).await.unwrap();
        for statement in &statements(&schema)[..done] {
            interrupted.batch_execute(statement).await.unwrap();
        }
        drop(interrupted);
        let store = PostgresStore::builder(url).schema(&schema).connections(2).open().await.unwrap();
        create(&store, &id("a")).await;
    }
}

/// Child process: opens the schema at the same time as another process.
#[tokio::test]
async fn child_creates_the_schema() {
    let Some(folder) = child_folder() else { return };
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let store =
        PostgresStore::builder(read("url")).schema(read("schema")).connections(2).open().await.unwrap();
    create(&store, &id("child")).await;
}

/// Waits until this many connections wait for the lock of the migration.
async fn waiting(holder: &Client, lock: &str, count: i64) {
    let key = "SELECT count(*) FROM pg_locks, hashtextextended($1, 0) AS key WHERE NOT granted
        AND locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = key";
    while holder.query_one(key, &[&lock]).await.unwrap().get::<_, i64>(0) < count {
        tokio::task::yield_now().await;
    }
}

const HOLD: &str = "SELECT pg_advisory_lock(hashtextextended($1, 0))";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn creation_by_two_processes_at_once_happens_once() {
    let Some(url) = url() else { return };
    let (schema, folder) = (unused(), Folder::new());
    fs::write(folder.path().join("url"), url).unwrap();
    fs::write(folder.path().join("schema"), &schema).unwrap();
    // Both processes wait for this lock, and one of them has to wait for the other one afterwards.
    let holder = raw(url).await;
    let lock = format!("omni-agent {schema}");
    holder.query_one(HOLD, &[&lock]).await.unwrap();
    let mut child = child("postgres::migration::child_creates_the_schema", folder.path()).spawn().unwrap();
    let opened = tokio::spawn(PostgresStore::builder(url).schema(&schema).connections(2).open());
    waiting(&holder, &lock, 2).await;
    let release = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
    holder.query_one(release, &[&lock]).await.unwrap();
    let store = opened.await.unwrap().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(versions(&holder, &schema).await, [10, 11]);
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn open_that_was_cancelled_while_another_migrates_reports_how_long_it_waited() {
    let Some(url) = url() else { return };
    let (schema, holder) = (unused(), raw(url).await);
    let lock = format!("omni-agent {schema}");
    holder.query_one(HOLD, &[&lock]).await.unwrap();
    // Both limits are much longer than the wait that the error reports, so this wait does not depend on them.
    let limit = Duration::from_hours(1);
    let builder = PostgresStore::builder(url).schema(&schema).statement_timeout(limit).lock_wait(limit);
    let opened = tokio::spawn(builder.open());
    waiting(&holder, &lock, 1).await;
    let cancel =
        "SELECT pg_cancel_backend(pid) FROM pg_locks, hashtextextended($1, 0) AS key WHERE NOT granted
        AND locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = key";
    holder.query(cancel, &[&lock]).await.unwrap();
    match opened.await.unwrap() {
        Err(error @ StoreError::Busy { waited, .. }) => {
            assert!(error.is_transient());
            assert!(waited < limit, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn open_of_an_older_or_later_schema_is_rejected() {
    let Some(url) = url() else { return };
    let (schema, client) = (unused(), raw(url).await);
    let builder = PostgresStore::builder(url).schema(&schema).connections(2);
    drop(builder.clone().open().await.unwrap());
    for version in [1, 3, 9, 12] {
        let change = format!(
            "DELETE FROM \"{schema}\".migrations; INSERT INTO \"{schema}\".migrations (version) VALUES ({version})"
        );
        client.batch_execute(&change).await.unwrap();
        match builder.clone().open().await {
            Err(error @ StoreError::UnknownFormat { found, known: 11, .. }) => {
                assert_eq!((found, error.is_transient()), (version, false));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(versions(&client, &schema).await, [i32::try_from(version).unwrap()]);
    }
}

#[tokio::test]
async fn open_of_the_schema_before_schedules_updates_it() {
    let Some(url) = url() else { return };
    let (schema, client) = (unused(), raw(url).await);
    let open = || PostgresStore::builder(url).schema(&schema).connections(2).open();
    let first = open().await.unwrap();
    create(&first, &id("a")).await;
    let before = first.load(&id("a")).await.unwrap();
    drop(first);
    let back =
        format!("DROP TABLE \"{schema}\".schedules; DELETE FROM \"{schema}\".migrations WHERE version = 11");
    client.batch_execute(&back).await.unwrap();
    let store = open().await.unwrap();
    assert_eq!(versions(&client, &schema).await, [10, 11]);
    assert_eq!(store.load(&id("a")).await.unwrap(), before);
    crate::support::schedule(&store, &id("a")).await;
    assert_eq!(store.schedules(&Schedules::All, &Listing::default()).await.unwrap().schedules.len(), 1);
}

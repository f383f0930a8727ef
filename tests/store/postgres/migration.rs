//! The update of the schema while other programs use it.

use std::{fs, thread, time::Duration};

use omni_agent::store::{Listing, PostgresStore, Store, StoreError};
use tokio_postgres::Client;

use super::{
    golden::{has_all, restored},
    server::{raw, url},
};
use crate::support::{Folder, child, child_folder};

/// Waits until the statement that changes the table is waiting for a lock. Returns the process id of the server process
/// that runs this statement.
async fn waiting(observer: &Client, schema: &str) -> i32 {
    let waits = "SELECT pid FROM pg_stat_activity
        WHERE wait_event_type = 'Lock' AND query LIKE '%ADD COLUMN%' AND strpos(query, $1) > 0";
    loop {
        if let Some(row) = observer.query_opt(waits, &[&schema]).await.unwrap() {
            return row.get(0);
        }
        thread::yield_now();
    }
}

/// Returns the statements of the migration. No statement may contain a semicolon except at its end.
fn statements(schema: &str) -> Vec<String> {
    let migration = include_str!("../../../src/store/postgres/migrations/3.sql");
    let lines = migration.lines().filter(|line| !line.trim_start().starts_with("--"));
    let all = lines.collect::<Vec<_>>().join("\n").replace("{schema}", &format!("\"{schema}\""));
    all.split(';').filter(|sql| !sql.trim().is_empty()).map(str::to_owned).collect()
}

#[tokio::test]
async fn update_interrupted_after_any_statement_starts_again() {
    let Some(url) = url() else { return };
    let count = statements("any").len();
    assert!(count > 10);
    for done in 0..=count {
        let schema = restored(url, "postgres-2.sql").await;
        // Drop the connection before the transaction ends, as if the process had died.
        let interrupted = raw(url).await;
        interrupted.batch_execute("BEGIN").await.unwrap();
        for statement in &statements(&schema)[..done] {
            interrupted.batch_execute(statement).await.unwrap();
        }
        drop(interrupted);
        let store = PostgresStore::builder(url).schema(&schema).connections(2).open().await.unwrap();
        has_all(&store).await;
        for summary in store.list(&Listing::default()).await.unwrap() {
            let stored = store.load(&summary.id).await.unwrap();
            let usage = stored.nodes.iter().filter_map(|node| node.usage()).copied().sum();
            assert_eq!(stored.used.usage, usage, "{}", summary.id);
        }
    }
}

/// Child process: opens the schema at the same time as another process.
#[tokio::test]
async fn child_opens_an_earlier_schema() {
    let Some(folder) = child_folder() else { return };
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let store =
        PostgresStore::builder(read("url")).schema(read("schema")).connections(2).open().await.unwrap();
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn update_by_two_processes_at_once_happens_once() {
    let Some(url) = url() else { return };
    for dump in ["postgres-1.sql", "postgres-2.sql"] {
        let schema = restored(url, dump).await;
        let folder = Folder::new();
        fs::write(folder.path().join("url"), url).unwrap();
        fs::write(folder.path().join("schema"), &schema).unwrap();
        // Both processes wait for this lock, and one of them has to wait for the other one afterwards.
        let holder = raw(url).await;
        let lock = format!("omni-agent {schema}");
        let hold = "SELECT pg_advisory_lock(hashtextextended($1, 0))";
        holder.query_one(hold, &[&lock]).await.unwrap();
        let mut child =
            child("postgres::migration::child_opens_an_earlier_schema", folder.path()).spawn().unwrap();
        let opened = tokio::spawn(PostgresStore::builder(url).schema(&schema).connections(2).open());
        let key = "SELECT count(*) FROM pg_locks, hashtextextended($1, 0) AS key WHERE NOT granted
            AND locktype = 'advisory' AND (classid::bigint << 32 | objid::bigint) = key";
        while holder.query_one(key, &[&lock]).await.unwrap().get::<_, i64>(0) < 2 {
            tokio::task::yield_now().await;
        }
        let release = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        holder.query_one(release, &[&lock]).await.unwrap();
        let store = opened.await.unwrap().unwrap();
        assert!(child.wait().unwrap().success(), "{dump}");
        let versions = format!("SELECT version FROM \"{schema}\".migrations ORDER BY version");
        let versions: Vec<i32> =
            holder.query(&versions, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
        assert_eq!(versions, [1, 2, 3], "{dump}");
        has_all(&store).await;
    }
}

#[tokio::test]
async fn update_of_rows_with_unusual_usage_succeeds() {
    let Some(url) = url() else { return };
    for usage in
        ["no JSON", "null", r#"{"input":99999999999999999999,"cost":"free"}"#, r#"{"input":-1,"cost":1e999}"#]
    {
        let schema = restored(url, "postgres-2.sql").await;
        let odd = format!("UPDATE \"{schema}\".nodes SET usage = $1 WHERE usage IS NOT NULL");
        assert!(raw(url).await.execute(&odd, &[&usage]).await.unwrap() > 0);
        let store = PostgresStore::builder(url).schema(&schema).connections(2).open().await.unwrap();
        assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 2, "{usage}");
    }
}

#[tokio::test]
async fn open_of_an_earlier_schema_with_a_reader_does_not_block_others() {
    let Some(url) = url() else { return };
    let schema = restored(url, "postgres-1.sql").await;
    // The reader behaves like a dump, or like an application that forgot to end its transaction.
    let mut reader = raw(url).await;
    let reading = reader.transaction().await.unwrap();
    reading.execute(&format!("SELECT FROM \"{schema}\".conversations"), &[]).await.unwrap();
    let opened = tokio::spawn(PostgresStore::builder(url).schema(&schema).open());
    let observer = raw(url).await;
    waiting(&observer, &schema).await;

    // The reader still holds its lock, but writes of running processes wait only briefly for the schema change.
    let write = format!("SET lock_timeout = '30s'; UPDATE \"{schema}\".conversations SET owner = owner");
    observer.batch_execute(&write).await.unwrap();
    waiting(&observer, &schema).await;
    reading.rollback().await.unwrap();
    let store = opened.await.unwrap().unwrap();
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 2);
    let changed = format!("SELECT lasts FROM \"{schema}\".conversations");
    assert_eq!(observer.query(&changed, &[]).await.unwrap().len(), 2);
}

#[tokio::test]
async fn open_of_an_earlier_schema_that_was_cancelled_reports_how_long_it_waited() {
    let Some(url) = url() else { return };
    let schema = restored(url, "postgres-1.sql").await;
    let mut reader = raw(url).await;
    let reading = reader.transaction().await.unwrap();
    reading.execute(&format!("SELECT FROM \"{schema}\".conversations"), &[]).await.unwrap();
    // Both limits are much longer than the wait that the error reports, so this wait does not depend on them.
    let limit = Duration::from_hours(1);
    let builder = PostgresStore::builder(url).schema(&schema).statement_timeout(limit).lock_wait(limit);
    let opened = tokio::spawn(builder.open());
    let observer = raw(url).await;
    let pid = waiting(&observer, &schema).await;
    observer.execute("SELECT pg_cancel_backend($1)", &[&pid]).await.unwrap();
    match opened.await.unwrap() {
        Err(error @ StoreError::Busy { waited, .. }) => {
            assert!(error.is_transient());
            assert!(waited < limit, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
    let versions = format!("SELECT FROM \"{schema}\".migrations");
    assert_eq!(observer.query(&versions, &[]).await.unwrap().len(), 1, "the schema was changed");
}

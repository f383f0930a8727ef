//! Dumps of every released version of the schema. Files in `golden/` never change and must remain readable.

use std::{fs, path::PathBuf};

use omni_agent::store::{ConversationId, Listing, Owner, PostgresStore, Store, Stored};

use super::server::{raw, url};
use crate::{
    full::check_all,
    support::{commit, id},
};

/// The name of the schema in the dumps.
const DUMPED: &str = "golden_schema";

fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/store/golden").join(name)
}

/// Creates a schema from this dump, and returns its name.
pub(super) async fn restored(url: &str, dump: &str) -> String {
    let schema = format!("golden {}", ConversationId::generate());
    let dump = fs::read_to_string(golden(dump)).unwrap();
    raw(url).await.batch_execute(&dump.replace(DUMPED, &format!("\"{schema}\""))).await.unwrap();
    schema
}

#[tokio::test]
async fn load_from_each_schema_version_returns_what_was_stored() {
    let Some(url) = url() else { return };
    for dump in ["postgres-1.sql", "postgres-2.sql"] {
        let schema = restored(url, dump).await;
        let store = PostgresStore::builder(url).schema(&schema).connections(2).open().await.unwrap();
        has_all(&store).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_of_schema_version_1_by_many_at_once_updates_it_once() {
    let Some(url) = url() else { return };
    let schema = restored(url, "postgres-1.sql").await;
    let held = format!(
        "UPDATE \"{schema}\".conversations SET owner = 'ann', expires = now() + interval '1 hour' WHERE id = 'talk'"
    );
    let other = raw(url).await;
    other.batch_execute(&held).await.unwrap();
    let builder = PostgresStore::builder(url).schema(&schema).connections(2);
    let opened = (0..5).map(|_| tokio::spawn(builder.clone().open()));
    for store in futures_util::future::join_all(opened).await {
        let store = store.unwrap().unwrap();
        // The lease is valid, although a program of schema version 1 has not stored its duration.
        assert_eq!(store.summary(&id("talk")).await.unwrap().owner, Some(Owner::new("ann")));
    }
    let versions = format!("SELECT version FROM \"{schema}\".migrations ORDER BY version");
    let versions: Vec<i32> =
        other.query(&versions, &[]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(versions, [1, 2, 3]);
}

#[tokio::test]
async fn load_from_schema_version_3_returns_what_was_stored() {
    let Some(url) = url() else { return };
    let schema = restored(url, "postgres-3.sql").await;
    let store = PostgresStore::builder(url).schema(&schema).connections(2).open().await.unwrap();
    check_all(&store).await;
    for name in ["full", "flight", "known"] {
        store.delete(&id(name), None).await.unwrap();
    }
    has_all(&store).await;
}

pub(super) async fn has_all(store: &PostgresStore) {
    let listed = store.list(&Listing::default()).await.unwrap();
    assert_eq!(listed.len(), 2);
    for name in ["empty", "talk"] {
        let expected = fs::read(golden(&format!("v1/{name}.expected.json"))).unwrap();
        let expected: Stored = serde_json::from_slice(&expected).unwrap();
        let stored = store.load(&id(name)).await.unwrap();
        assert_eq!(stored.state, expected.state, "{name}");
        assert_eq!((&stored.nodes, stored.head), (&expected.nodes, expected.head), "{name}");
        assert_eq!(stored.cursors, expected.cursors, "{name}");
        let summary = store.summary(&id(name)).await.unwrap();
        assert_eq!((summary.version, &summary.title), (stored.version, &expected.state.title), "{name}");
        assert!(listed.contains(&summary), "{name}");
        // The conversation can still be continued.
        store.acquire(&id(name), &Owner::new("ann")).await.unwrap();
        commit(store, &id(name), stored.version, 1000, "more").await;
    }
}

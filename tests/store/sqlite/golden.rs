//! A database file of every released version of the schema. Files in `golden/` never change and must remain readable.

use std::{fs, path::Path};

use omni_agent::store::{Listing, Query, SqliteStore, Store, Stored};

use super::{file, quick};
use crate::{
    full::check_all,
    support::{Folder, commit, id},
};

pub(super) fn golden(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/golden").join(name)
}

#[tokio::test]
async fn load_from_schema_version_1_returns_what_was_stored() {
    let folder = Folder::new();
    fs::copy(golden("sqlite-1.sqlite"), file(&folder)).unwrap();
    let store = quick(&folder).await;
    for name in ["empty", "talk"] {
        let expected = fs::read(golden(&format!("v1/{name}.expected.json"))).unwrap();
        let expected: Stored = serde_json::from_slice(&expected).unwrap();
        let stored = store.load(&id(name)).await.unwrap();
        assert_eq!(stored.state, expected.state, "{name}");
        assert_eq!((&stored.nodes, stored.head), (&expected.nodes, expected.head), "{name}");
        assert_eq!(stored.cursors, expected.cursors, "{name}");
        // The conversation can still be continued.
        commit(&store, &id(name), stored.version, 1000, "more").await;
    }
}

#[tokio::test]
async fn load_from_schema_version_2_returns_what_was_stored() {
    let folder = Folder::new();
    fs::copy(golden("sqlite-2.sqlite"), file(&folder)).unwrap();
    let store = quick(&folder).await;
    check_all(&store).await;
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 5);
}

#[tokio::test]
async fn search_of_schema_version_2_finds_what_was_stored() {
    let folder = Folder::new();
    fs::copy(golden("sqlite-2-search.sqlite"), file(&folder)).unwrap();
    let store = SqliteStore::builder(file(&folder)).search(true).open().await.unwrap();
    check_all(&store).await;
    let found = async |query: &str| {
        let query: Query = query.parse().unwrap();
        let found = store.search(&query, &Listing::default()).await.unwrap();
        assert!(found.complete);
        found.hits.into_iter().map(|hit| hit.conversation.id.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(found("because").await, ["flight"]);
    assert_eq!(found("full").await, ["full"], "titles are indexed");
    let version = store.summary(&id("flight")).await.unwrap().version;
    commit(&store, &id("flight"), version, 1000, "more").await;
    assert_eq!(found("more").await, ["flight"]);
}

//! Paths that lead to something other than the store's file. Some of these paths change only after the store was
//! opened.

use std::fs;

use omni_agent::store::{
    Listing, SqliteStore, Store, StoreError,
    custom::{Change, Write},
};
use rusqlite::Connection;

use super::{file, quick};
use crate::support::{Folder, commit, create, id, says};

#[tokio::test]
async fn open_of_a_folder_is_unreachable() {
    let folder = Folder::new();
    let error = SqliteStore::open(folder.path()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains(&folder.path().display().to_string()), "{error}");
    assert_eq!(folder.names(), [""; 0]);
}

#[tokio::test]
async fn open_of_an_empty_file_creates_a_store_in_it() {
    let folder = Folder::new();
    fs::write(file(&folder), "").unwrap();
    create(&quick(&folder).await, &id("a")).await;
    quick(&folder).await.summary(&id("a")).await.unwrap();
}

/// The schema version and the application id of the file are correct, but a table is missing.
#[tokio::test]
async fn load_from_a_file_without_a_table_names_the_file() {
    let folder = Folder::new();
    drop(quick(&folder).await);
    Connection::open(file(&folder)).unwrap().execute_batch("DROP TABLE cursors").unwrap();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let error = store.load(&id("a")).await.unwrap_err();
    let cause = error.to_string();
    assert!(
        error.to_string().contains("conversations.sqlite") && cause.contains("no such table"),
        "{error:?}"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn operations_after_the_file_was_removed_are_unreachable_until_it_returns() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    let aside = folder.path().join("aside.sqlite");
    fs::rename(file(&folder), &aside).unwrap();

    let write = Write::on(version);
    for failed in [
        store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.map(drop),
        store.load(&id("a")).await.map(drop),
        store.list(&Listing::default()).await.map(drop),
    ] {
        let error = failed.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }) && error.is_transient(), "{error:?}");
    }
    fs::rename(&aside, file(&folder)).unwrap();
    // The first attempt may or may not have been written. In both cases, the result is one node.
    assert_eq!(store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap(), version.next());
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 1);
}

#[cfg(unix)]
#[tokio::test]
async fn write_after_another_file_took_its_place_is_not_acknowledged() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    for part in folder.names() {
        fs::remove_file(folder.path().join(part)).unwrap();
    }
    let other = quick(&folder).await;
    let error = store.write(&id("a"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    let cause = error.to_string();
    assert!(cause.contains("another file has taken its place"), "{cause}");
    assert_eq!(other.list(&Listing::default()).await.unwrap(), [], "nothing was written to the other file");
}

//! Searches in SQLite files.

use std::{fs, sync::Arc, time::Duration};

use futures_util::future::join_all;
use omni_agent::store::{
    Listing, Page, Query, SqliteStore, Store, StoreError,
    custom::{Change, StateChange, Write, conformance},
    file_system::Durability,
};

use super::{Subject, file, quick, raw};
use crate::support::{Folder, commit, create, id};

async fn searching(folder: &Folder) -> SqliteStore {
    let builder = SqliteStore::builder(file(folder)).durability(Durability::Process);
    builder.search(true).open().await.unwrap()
}

/// Returns the ids of the conversations that contain the words, and whether the index is complete.
async fn find(store: &SqliteStore, query: &str) -> (Vec<String>, bool) {
    let query: Query = query.parse().unwrap();
    let found = store.search(&query, &Page::first(1000).into()).await.unwrap();
    (found.hits.iter().map(|hit| hit.conversation.id.to_string()).collect(), found.complete)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_on_sqlite_store_with_a_search_index_passes() {
    let make = async || {
        let folder = Folder::new();
        let store = Arc::new(searching(&folder).await);
        Subject { folder, store }
    };
    let report = conformance::check(make).await;
    assert_eq!(report.skipped, ["torn_write_is_dropped_completely"]);
}

#[tokio::test]
async fn search_index_created_while_another_connection_writes_waits_for_it() {
    let folder = Folder::new();
    drop(quick(&folder).await);
    let other = raw(&folder);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let builder = SqliteStore::builder(file(&folder)).lock_wait(Duration::from_mins(1)).search(true);
    let mut opening = tokio::spawn(builder.open());
    let early = tokio::time::timeout(Duration::from_millis(300), &mut opening).await;
    assert!(early.is_err(), "{early:?}");
    other.execute_batch("COMMIT").unwrap();
    let store = opening.await.unwrap().unwrap();
    assert_eq!(find(&store, "word").await, (Vec::new(), true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn search_index_created_by_many_at_once_is_created_once() {
    let folder = Folder::new();
    let builder = SqliteStore::builder(file(&folder)).lock_wait(Duration::from_mins(1)).search(true);
    let opened = join_all((0..8).map(|_| tokio::spawn(builder.clone().open()))).await;
    for store in opened {
        assert_eq!(find(&store.unwrap().unwrap(), "word").await, (Vec::new(), true));
    }
}

#[tokio::test]
async fn search_without_an_index_is_unsupported() {
    let folder = Folder::new();
    let query: Query = "word".parse().unwrap();
    let found = quick(&folder).await.search(&query, &Listing::default()).await;
    assert!(matches!(found, Err(StoreError::Unsupported { .. })), "{found:?}");
}

#[tokio::test]
async fn search_index_created_later_contains_older_conversations() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    for number in 0..700 {
        let id = id(&format!("n{number}"));
        let version = create(&store, &id).await;
        let version = store
            .write(&id, &Write::on(version), &Change::State(StateChange::title("a title")))
            .await
            .unwrap();
        commit(&store, &id, version, 1, &format!("common word{number}")).await;
    }
    let searching = searching(&folder).await;
    // A process that opened the file without searches updates the index, too.
    store.delete(&id("n3"), None).await.unwrap();
    let version = store.load(&id("n4")).await.unwrap().version;
    commit(&store, &id("n4"), version, 2, "newer").await;
    while !find(&searching, "newer").await.1 {
        tokio::task::yield_now().await;
    }
    assert_eq!(find(&searching, "common").await.0.len(), 699);
    assert_eq!(find(&searching, "title").await.0.len(), 699);
    assert_eq!(find(&searching, "\"word3\"").await.0, [""; 0]);
    assert_eq!(find(&searching, "newer").await.0, ["n4"]);
    assert_eq!(find(&store, "word699").await.0, ["n699"], "the index belongs to the file");
}

#[tokio::test]
async fn search_ignores_marks_and_case() {
    let folder = Folder::new();
    let store = searching(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Über den Dächern von Zürich, 東京").await;
    for query in ["uber", "DÄCHERN", "zurich", "東京"] {
        assert_eq!(find(&store, query).await.0, ["a"], "{query}");
    }
}

#[tokio::test]
async fn delete_and_erase_leave_no_words_in_the_index() {
    let folder = Folder::new();
    let store = searching(&folder).await;
    let mut version = create(&store, &id("a")).await;
    create(&store, &id("b")).await;
    let version_b = store.load(&id("b")).await.unwrap().version;
    commit(&store, &id("b"), version_b, 1, "zzzsecretofb").await;
    version = store
        .write(&id("a"), &Write::on(version), &Change::State(StateChange::title("zzztitle")))
        .await
        .unwrap();
    version = commit(&store, &id("a"), version, 1, "zzzkept").await;
    version = commit(&store, &id("a"), version, 2, "zzzerased").await;
    let erased: omni_agent::tree::Erased =
        serde_json::from_str(r#"{"nodes": [2], "head": 1, "next": 3}"#).unwrap();
    store.write(&id("a"), &Write::on(version), &Change::Erase(erased)).await.unwrap();
    store.delete(&id("b"), None).await.unwrap();
    let terms = |wanted: &str| {
        let connection = raw(&folder);
        connection
            .execute_batch("CREATE VIRTUAL TABLE temp.terms USING fts5vocab(main, words, row)")
            .unwrap();
        connection
            .query_row("SELECT count(*) FROM temp.terms WHERE term = ?", [wanted], |row| row.get::<_, i64>(0))
            .unwrap()
    };
    assert_eq!((terms("zzzkept"), terms("zzztitle")), (1, 1));
    assert_eq!((terms("zzzerased"), terms("zzzsecretofb")), (0, 0));
    // The store stays open, because closing it would remove files that this test searches.
    for name in folder.names() {
        let bytes = fs::read(folder.path().join(&name)).unwrap();
        for text in ["zzzerased", "zzzsecretofb"] {
            assert!(!bytes.windows(text.len()).any(|part| part == text.as_bytes()), "{text} is in {name}");
        }
    }
}

#[tokio::test]
async fn index_of_another_rule_is_built_anew() {
    let folder = Folder::new();
    let store = searching(&folder).await;
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "天气很好").await;
    assert_eq!(find(&store, "天气").await, (vec!["a".to_owned()], true));
    raw(&folder).execute_batch("UPDATE indexing SET rule = 7").unwrap();
    assert_eq!(find(&store, "天气").await, (Vec::new(), false));
    // A write by this rule leaves the words of the other rule as they are.
    commit(&store, &id("a"), version, 2, "later").await;
    drop(store);
    // The index is built anew even if the file is opened without searches.
    let store = quick(&folder).await;
    while !find(&store, "天气").await.1 {
        tokio::task::yield_now().await;
    }
    for query in ["天气", "later"] {
        assert_eq!(find(&store, query).await, (vec!["a".to_owned()], true));
    }
}

#[tokio::test]
async fn text_that_can_no_longer_be_read_is_deleted_without_a_trace_in_searches() {
    let folder = Folder::new();
    let store = searching(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "lost").await;
    raw(&folder).execute_batch("UPDATE nodes SET message = '[]'").unwrap();
    store.delete(&id("a"), None).await.unwrap();
    let version = create(&store, &id("b")).await;
    commit(&store, &id("b"), version, 1, "other").await;
    assert_eq!(find(&store, "lost").await.0, [""; 0]);
    assert_eq!(find(&store, "other").await.0, ["b"]);
}

/// Closes the store, and makes its index as if all conversations were older than the index.
async fn make_older(store: SqliteStore, folder: &Folder) {
    store.close().await;
    let all = "DELETE FROM texts; UPDATE indexing SET conversation = 0, last = (SELECT max(key) FROM conversations)";
    raw(folder).execute_batch(all).unwrap();
}

#[tokio::test]
async fn indexing_of_older_conversations_that_failed_is_repeated() {
    let folder = Folder::new();
    let store = searching(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "word").await;
    make_older(store, &folder).await;
    // Opening needs the lock of the file, too, so the first batch fails for another reason.
    let fails = "CREATE TABLE gate (opened INTEGER);
        CREATE TRIGGER gate BEFORE UPDATE ON indexing WHEN NOT EXISTS (SELECT 1 FROM gate)
        BEGIN SELECT RAISE(ABORT, 'not yet'); END";
    raw(&folder).execute_batch(fails).unwrap();
    let store = quick(&folder).await;
    // This write waits behind the first batch.
    create(&store, &id("b")).await;
    assert!(!find(&store, "word").await.1);
    raw(&folder).execute_batch("INSERT INTO gate VALUES (1)").unwrap();
    let found = async {
        while !find(&store, "word").await.1 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), found).await.expect("the indexing is repeated");
    assert_eq!(find(&store, "word").await.0, ["a"]);
}

#[tokio::test]
async fn indexing_of_a_long_older_conversation_takes_several_short_transactions() {
    let folder = Folder::new();
    let store = searching(&folder).await;
    let mut version = create(&store, &id("a")).await;
    for number in 1..=1200 {
        // The last messages are long.
        let text = format!("word{number} {}", "long ".repeat(if number > 1190 { 50_000 } else { 0 }));
        version = commit(&store, &id("a"), version, number, &text).await;
    }
    let version = create(&store, &id("b")).await;
    commit(&store, &id("b"), version, 1, "word").await;
    make_older(store, &folder).await;
    // Each transaction updates the progress once.
    let progress = "CREATE TABLE progress (texts INTEGER);
        CREATE TRIGGER progress AFTER UPDATE ON indexing
        BEGIN INSERT INTO progress SELECT count(*) FROM texts; END";
    raw(&folder).execute_batch(progress).unwrap();
    let store = quick(&folder).await;
    while !find(&store, "word").await.1 {
        tokio::task::yield_now().await;
    }
    for (word, found) in [("word1", "a"), ("word600", "a"), ("word1200", "a"), ("\"word\"", "b")] {
        assert!(find(&store, word).await.0.iter().any(|id| id == found), "{word}");
    }
    let connection = raw(&folder);
    let mut query = connection.prepare("SELECT texts FROM progress ORDER BY rowid").unwrap();
    let counts: Vec<i64> = query.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    assert_eq!(counts.last(), Some(&1201), "{counts:?}");
    assert!(counts[0] <= 500 && counts.windows(2).all(|pair| pair[1] - pair[0] <= 500), "{counts:?}");
    assert!(counts.len() > 4, "a transaction has a limit in bytes, too: {counts:?}");
}

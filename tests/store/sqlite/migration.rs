//! The update of a file of schema version 1.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write as _},
};

use omni_agent::message::Timestamp;
use omni_agent::store::{Filter, Listing, Page, SqliteStore, Store};
use rusqlite::{Batch, Connection, fallible_iterator::FallibleIterator};

use super::{file, golden::golden, quick, raw};
use crate::support::{Folder, child, child_folder};

/// Returns a folder with the file of schema version 1.
fn earlier() -> Folder {
    let folder = Folder::new();
    fs::copy(golden("sqlite-1.sqlite"), file(&folder)).unwrap();
    folder
}

/// Checks that both conversations are listed, and that the usage ledger contains the usage of their nodes.
async fn check(store: &SqliteStore) {
    let listed = store.list(&Listing::default()).await.unwrap();
    assert_eq!(listed.len(), 2);
    for summary in listed {
        let stored = store.load(&summary.id).await.unwrap();
        let usage = stored.nodes.iter().filter_map(|node| node.usage()).copied().sum();
        assert_eq!(stored.used.usage, usage, "{}", summary.id);
        let rows = store.usage(&summary.id, &Page::first(1000)).await.unwrap();
        assert_eq!(rows.len() as u64, stored.used.requests, "{}", summary.id);
    }
    assert!(!store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap().is_empty());
}

#[tokio::test]
async fn open_of_schema_version_1_begins_the_ledger_with_the_usage_of_its_turns() {
    let folder = earlier();
    check(&quick(&folder).await).await;
}

#[tokio::test]
async fn update_interrupted_after_any_statement_starts_again() {
    let migration = include_str!("../../../src/store/sqlite/migrations/2.sql");
    let count = {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../../../src/store/sqlite/migrations/1.sql")).unwrap();
        let mut count = 0;
        let mut statements = Batch::new(&connection, migration);
        while let Some(mut statement) = statements.next().unwrap() {
            statement.execute([]).unwrap();
            count += 1;
        }
        count
    };
    assert!(count > 10);
    for done in 0..=count {
        let folder = earlier();
        let interrupted = raw(&folder);
        interrupted.execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE").unwrap();
        let mut statements = Batch::new(&interrupted, migration);
        for _ in 0..done {
            statements.next().unwrap().unwrap().execute([]).unwrap();
        }
        // The connection is dropped without a commit, as if its process had died.
        interrupted.cache_flush().unwrap();
        drop(interrupted);
        check(&quick(&folder).await).await;
    }
}

/// Child process: opens the file at the same time as another process.
#[tokio::test]
async fn child_opens_an_earlier_schema() {
    let Some(folder) = child_folder() else {
        return;
    };
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    check(&SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap()).await;
}

#[tokio::test]
async fn update_by_two_processes_at_once_happens_once() {
    for _ in 0..4 {
        let folder = earlier();
        let mut child =
            child("sqlite::migration::child_opens_an_earlier_schema", folder.path()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        child.stdin.take().unwrap().write_all(b"!").unwrap();
        check(&quick(&folder).await).await;
        assert!(child.wait().unwrap().success());
    }
}

#[tokio::test]
async fn update_of_rows_with_unusual_usage_succeeds() {
    let folder = earlier();
    let connection = raw(&folder);
    let count: i64 = connection
        .query_row("SELECT count(*) FROM nodes WHERE usage IS NOT NULL", [], |row| row.get(0))
        .unwrap();
    assert!(count > 0);
    for usage in [
        "no JSON",
        "null",
        "7",
        r#"{"input": 99999999999999999999, "output": "x", "cost": "free", "cache_read": null}"#,
        r#"{"input": -1, "cost": 1e999}"#,
    ] {
        let folder = earlier();
        let connection = raw(&folder);
        connection.execute("UPDATE nodes SET usage = ? WHERE usage IS NOT NULL", [usage]).unwrap();
        drop(connection);
        assert_eq!(quick(&folder).await.list(&Listing::default()).await.unwrap().len(), 2, "{usage}");
    }
}

//! The creation of the schema, which is the first migration, and its update.

use std::io::{BufRead, BufReader, Read, Write as _};

use omni_agent::store::{Listing, SqliteStore, Store, StoreError, custom::Schedules};
use rusqlite::{Batch, Connection, fallible_iterator::FallibleIterator};

use super::{file, quick, raw};
use crate::support::{Folder, child, child_folder, create, id};

#[tokio::test]
async fn creation_interrupted_after_any_statement_starts_again() {
    let migration = include_str!("../../../src/store/sqlite/migrations/1.sql");
    let count = {
        let connection = Connection::open_in_memory().unwrap();
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
        let folder = Folder::new();
        let interrupted = raw(&folder);
        interrupted.execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE").unwrap();
        let mut statements = Batch::new(&interrupted, migration);
        for _ in 0..done {
            statements.next().unwrap().unwrap().execute([]).unwrap();
        }
        // The connection is dropped without a commit, as if its process had died.
        interrupted.cache_flush().unwrap();
        drop(interrupted);
        create(&quick(&folder).await, &id("a")).await;
    }
}

/// Child process: opens the file at the same time as another process.
#[tokio::test]
async fn child_creates_the_schema() {
    let Some(folder) = child_folder() else {
        return;
    };
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    create(&SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap(), &id("child")).await;
}

#[tokio::test]
async fn creation_by_two_processes_at_once_happens_once() {
    for _ in 0..4 {
        let folder = Folder::new();
        let mut child = child("sqlite::migration::child_creates_the_schema", folder.path()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        child.stdin.take().unwrap().write_all(b"!").unwrap();
        let store = quick(&folder).await;
        create(&store, &id("parent")).await;
        assert!(child.wait().unwrap().success());
        assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 2);
    }
}

#[tokio::test]
async fn open_of_an_older_or_later_schema_is_rejected() {
    for version in [1, 2, 9, 12] {
        let folder = Folder::new();
        create(&quick(&folder).await, &id("a")).await;
        raw(&folder).execute_batch(&format!("PRAGMA user_version = {version}")).unwrap();
        match SqliteStore::open(file(&folder)).await {
            Err(error @ StoreError::UnknownFormat { found, known: 11, .. }) => {
                assert_eq!((found, error.is_transient()), (version, false));
            }
            other => panic!("{other:?}"),
        }
        raw(&folder).execute_batch("PRAGMA user_version = 11").unwrap();
        quick(&folder).await.load(&id("a")).await.unwrap();
    }
}

#[tokio::test]
async fn open_of_the_schema_before_schedules_updates_it() {
    let folder = Folder::new();
    create(&quick(&folder).await, &id("a")).await;
    let before = quick(&folder).await.load(&id("a")).await.unwrap();
    raw(&folder).execute_batch("DROP TABLE schedules; PRAGMA user_version = 10").unwrap();
    let store = quick(&folder).await;
    assert_eq!(store.load(&id("a")).await.unwrap(), before);
    crate::support::schedule(&store, &id("a")).await;
    assert_eq!(store.schedules(&Schedules::All, &Listing::default()).await.unwrap().schedules.len(), 1);
}

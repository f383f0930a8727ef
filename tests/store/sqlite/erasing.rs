//! The text of deleted conversations remains neither in the database file nor in the files next to it.

use std::fs;

use omni_agent::store::{
    Listing, SqliteStore, Store,
    custom::{Change, StateChange, StoredState, Write},
};

use super::{file, quick, raw};
use crate::support::{Folder, child, child_folder, commit, create, id};

/// Returns the markers that occur in any file of the folder. When the database is read as a plain file, this process
/// loses its locks on it. Therefore nothing else may write in the meantime, and an open reader no longer blocks later
/// writes.
fn found<'a>(folder: &Folder, markers: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let files: Vec<_> =
        folder.names().iter().map(|name| fs::read(folder.path().join(name)).unwrap()).collect();
    let is_there = |marker: &String| {
        files.iter().any(|file| file.windows(marker.len()).any(|bytes| bytes == marker.as_bytes()))
    };
    markers.into_iter().filter(|marker| is_there(marker)).cloned().collect()
}

/// Creates a conversation whose title, system prompt and messages contain a marker. The title and the system prompt are
/// written twice, so that old versions also exist. Returns the marker.
async fn marked(store: &SqliteStore, number: usize) -> String {
    let (id, marker) = (id(&format!("n{number}")), format!("marker-{number:03}-of-a-conversation"));
    let mut version = create(store, &id).await;
    for long in [3000, 3] {
        let system = format!("{marker} {}", "s".repeat(long));
        let state = StoredState::default().with_system(system).with_title(&marker);
        version =
            store.write(&id, &Write::on(version), &Change::State(StateChange::whole(state))).await.unwrap();
    }
    for (turn, long) in (1..).zip([10, 200, 700, 9000]) {
        version = commit(store, &id, version, turn, &format!("{marker} {}", "m".repeat(long))).await;
    }
    marker
}

async fn many_marked(store: &SqliteStore, count: usize) -> Vec<String> {
    let mut markers = Vec::new();
    for number in 0..count {
        markers.push(marked(store, number).await);
    }
    markers
}

#[tokio::test]
async fn delete_leaves_no_text_in_the_file_or_its_log() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let markers = many_marked(&store, 67).await;
    assert_eq!(found(&folder, &markers).len(), 67, "the search must find all markers");
    for (number, marker) in markers.iter().enumerate() {
        store.delete(&id(&format!("n{number}")), None).await.unwrap();
        assert_eq!(found(&folder, [marker]), [""; 0], "after delete {number}");
    }
    assert_eq!(found(&folder, &markers), [""; 0]);
    drop(store);
    // The text does not come back when the file is opened again. The new store stays open, because closing it would
    // remove files that this test searches.
    let store = quick(&folder).await;
    store.list(&Listing::default()).await.unwrap();
    assert_eq!(found(&folder, &markers), [""; 0]);
}

#[tokio::test]
async fn delete_during_a_read_keeps_the_text_in_the_log_until_the_reader_has_ended() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let marker = [marked(&store, 0).await];
    let reader = raw(&folder);
    reader.execute_batch("BEGIN; SELECT * FROM conversations").unwrap();
    store.delete(&id("n0"), None).await.unwrap();
    assert_eq!(found(&folder, &marker), marker, "the reader may still read it");
    reader.execute_batch("COMMIT").unwrap();
    // Each deletion tries again to erase the text, even if the deleted conversation does not exist.
    store.delete(&id("nothing"), None).await.unwrap();
    assert_eq!(found(&folder, &marker), [""; 0]);
}

/// Child process: deletes a conversation, and then aborts immediately.
#[tokio::test]
async fn child_deletes_under_a_reader_and_is_killed() {
    let Some(folder) = child_folder() else {
        return;
    };
    let reader = rusqlite::Connection::open(folder.join("conversations.sqlite")).unwrap();
    let store = SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM conversations").unwrap();
    store.delete(&id("n0"), None).await.unwrap();
    std::process::abort();
}

#[tokio::test]
async fn open_after_a_process_died_behind_a_delete_erases_the_text() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let marker = [marked(&store, 0).await];
    drop(store);
    let test = "sqlite::erasing::child_deletes_under_a_reader_and_is_killed";
    assert!(!child(test, folder.path()).status().unwrap().success());
    assert_eq!(found(&folder, &marker), marker, "the log must still contain the text");
    let store = quick(&folder).await;
    assert_eq!(found(&folder, &marker), [""; 0]);
    assert!(store.summary(&id("n0")).await.is_err());
}

#[tokio::test]
async fn vacuum_erases_text_that_another_program_deleted() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let markers = many_marked(&store, 20).await;
    let other = raw(&folder);
    other.execute_batch("PRAGMA foreign_keys = ON; DELETE FROM conversations WHERE key % 2").unwrap();
    let kept: Vec<_> = markers.iter().skip(1).step_by(2).cloned().collect();
    assert!(found(&folder, &markers).len() > kept.len(), "another program must leave the text in the file");
    store.vacuum().await.unwrap();
    assert_eq!(found(&folder, &markers), kept);
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), kept.len());
    assert_eq!(store.load(&id("n1")).await.unwrap().nodes.len(), 4);
    let integrity = raw(&folder).query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(integrity.unwrap(), "ok");
    assert!(file(&folder).is_file());
}

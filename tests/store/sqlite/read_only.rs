//! Files that can only be read.
//!
//! File modes don't restrict the superuser. Each test therefore runs in a child process. If necessary, the child runs
//! without the superuser's capabilities.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use omni_agent::store::{
    Listing, MemoryStore, Owner, SqliteStore, Store, StoreError, copy,
    custom::{Change, StateChange, StoredState, TitleBy, Version, Write},
    export_json,
};

use super::{file, quick, raw};
use crate::{
    skip::skip,
    support::{Folder, child, child_folder, commit, create, id, says},
};

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs this test in a child process. The child can't write to the file in the folder.
fn passes_in_child(name: &str, folder: &Folder) {
    const UNABLE: &str = "--bounding-set=-dac_override,-dac_read_search,-linux_immutable";

    let mut command = child(&format!("sqlite::read_only::{name}"), folder.path());
    if fs::File::options().write(true).open(file(folder)).is_ok() {
        let tried = Command::new("setpriv").args([UNABLE, "true"]).output();
        if !tried.is_ok_and(|tried| tried.status.success()) {
            skip("the superuser can write to every file, and there is no setpriv");
            return;
        }
        let mut without = Command::new("setpriv");
        without.arg(UNABLE).arg(command.get_program()).args(command.get_args());
        command = without;
        command.env("OMNI_CHILD", folder.path());
    }
    let output = command.output().unwrap();
    // Restore the mode of the folder, so that it can be removed.
    set_mode(folder.path(), 0o755);
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("all checks passed"), "{text}");
}

/// Waits until the file is closed and its log is removed. SQLite removes the log when the last connection closes. The
/// threads of a store close their connections after the store was dropped. If two connections close at the same moment,
/// neither of them removes the log. Therefore, this function opens a connection, which removes the log when it closes.
async fn closed(file: &Path) {
    let beside = ["-wal", "-shm"].map(|ending| PathBuf::from(format!("{}{ending}", file.display())));
    while beside.iter().any(|path| path.exists()) {
        let connection = rusqlite::Connection::open(file).unwrap();
        // If the file is busy, the loop tries again.
        let _ = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        drop(connection);
        tokio::task::yield_now().await;
    }
}

/// Creates a file with one conversation and without a log.
async fn filled(folder: &Folder) -> Version {
    let store = quick(folder).await;
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "Hi").await;
    drop(store);
    closed(&file(folder)).await;
    assert_eq!(folder.names(), ["conversations.sqlite"]);
    version
}

async fn reads(store: &SqliteStore, nodes: usize) -> Version {
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!(stored.nodes.len(), nodes);
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1);
    assert_eq!(store.summary(&id("a")).await.unwrap().version, stored.version);
    assert!(export_json(store, &id("a")).await.unwrap().contains("\"Hi\""));
    stored.version
}

async fn refuses_writes(store: &SqliteStore, version: Version) {
    let write = Write::on(version);
    for refused in [
        store.write(&id("a"), &write, &Change::Commit(says(2, "more"))).await.map(drop),
        store
            .write(&id("a"), &write, &Change::State(StateChange::Title { title: None, by: TitleBy::Derived }))
            .await
            .map(drop),
        store.write(&id("b"), &Write::first(), &Change::create(StoredState::default())).await.map(drop),
        store.acquire(&id("a"), &Owner::new("ann")).await.map(drop),
        store.delete(&id("a"), None).await,
        store.vacuum().await,
    ] {
        match refused {
            Err(error @ StoreError::Denied { .. }) => {
                let text = error.to_string();
                assert!(
                    text.contains("conversations.sqlite") && text.contains("open the store anew"),
                    "{text}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn child_reads_a_file_that_is_read_only() {
    let Some(folder) = child_folder() else { return };
    let file = folder.join("conversations.sqlite");
    assert!(fs::File::options().write(true).open(&file).is_err(), "the file is writable");
    let store = SqliteStore::open(&file).await.unwrap();
    let version = reads(&store, 1).await;
    refuses_writes(&store, version).await;
    let memory = MemoryStore::new();
    assert!(copy(&store, &memory, |_, _| {}).await.is_complete());
    assert_eq!(memory.load(&id("a")).await.unwrap().nodes.len(), 1);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no file was created");
    println!("\nall checks passed");
}

#[tokio::test]
async fn write_to_a_file_that_is_read_only_is_denied_and_reading_works() {
    for folder_mode in [0o755, 0o555] {
        let folder = Folder::new();
        filled(&folder).await;
        set_mode(&file(&folder), 0o444);
        set_mode(folder.path(), folder_mode);
        passes_in_child("child_reads_a_file_that_is_read_only", &folder);
    }
}

#[tokio::test]
async fn child_reads_what_is_in_the_log() {
    let Some(folder) = child_folder() else { return };
    let store = SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap();
    let version = reads(&store, 2).await;
    refuses_writes(&store, version).await;
    println!("\nall checks passed");
}

#[tokio::test]
async fn read_of_a_read_only_file_while_another_process_writes_includes_its_log() {
    let folder = Folder::new();
    let version = filled(&folder).await;
    // This process keeps the file open, and the child can't write to the file.
    let store = quick(&folder).await;
    commit(&store, &id("a"), version, 2, "more").await;
    for name in folder.names() {
        set_mode(&folder.path().join(name), 0o444);
    }
    set_mode(folder.path(), 0o555);
    passes_in_child("child_reads_what_is_in_the_log", &folder);
    commit(&store, &id("a"), version.next(), 3, "still written to").await;
}

#[tokio::test]
async fn child_fails_on_an_unreadable_log() {
    let Some(folder) = child_folder() else { return };
    let error = SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("write-ahead log"), "{error}");
    println!("\nall checks passed");
}

/// The files were copied while the database was open, so only the log contains the newest turn.
#[tokio::test]
async fn open_of_a_read_only_file_with_an_unreadable_log_is_denied() {
    let (made, folder) = (Folder::new(), Folder::new());
    let version = filled(&made).await;
    let store = quick(&made).await;
    commit(&store, &id("a"), version, 2, "more").await;
    for name in ["conversations.sqlite", "conversations.sqlite-wal"] {
        fs::copy(made.path().join(name), folder.path().join(name)).unwrap();
        set_mode(&folder.path().join(name), 0o444);
    }
    set_mode(folder.path(), 0o555);
    passes_in_child("child_fails_on_an_unreadable_log", &folder);
}

#[tokio::test]
async fn child_reads_while_the_file_changes() {
    let Some(folder) = child_folder() else { return };
    let file = folder.join("conversations.sqlite");
    let store = SqliteStore::open(&file).await.unwrap();
    let version = reads(&store, 1).await;
    set_mode(&file, 0o644);
    let writer = SqliteStore::open(&file).await.unwrap();
    commit(&writer, &id("a"), version, 2, "more").await;
    for failed in [store.load(&id("a")).await.map(drop), store.list(&Listing::default()).await.map(drop)] {
        let error = failed.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("open it anew"), "{error}");
    }
    drop(writer);
    // The operation also fails after the writer has closed the file and the log was removed.
    closed(&file).await;
    store.load(&id("a")).await.unwrap_err();
    reads(&SqliteStore::open(&file).await.unwrap(), 2).await;
    println!("\nall checks passed");
}

#[tokio::test]
async fn read_of_a_read_only_file_after_another_wrote_to_it_is_unreachable() {
    let folder = Folder::new();
    filled(&folder).await;
    set_mode(&file(&folder), 0o444);
    passes_in_child("child_reads_while_the_file_changes", &folder);
}

#[tokio::test]
async fn child_opens_an_empty_file() {
    let Some(folder) = child_folder() else { return };
    let error = SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap_err();
    assert!(matches!(error, StoreError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("schema"), "{error}");
    println!("\nall checks passed");
}

#[tokio::test]
async fn open_of_an_empty_file_that_is_read_only_is_denied() {
    let folder = Folder::new();
    fs::write(file(&folder), "").unwrap();
    set_mode(&file(&folder), 0o444);
    passes_in_child("child_opens_an_empty_file", &folder);
}

#[tokio::test]
async fn child_opens_a_database_of_another_application() {
    let Some(folder) = child_folder() else { return };
    let error = SqliteStore::open(folder.join("conversations.sqlite")).await.unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
    println!("\nall checks passed");
}

#[tokio::test]
async fn open_of_a_read_only_database_of_another_application_is_damaged() {
    let folder = Folder::new();
    raw(&folder).execute_batch("CREATE TABLE customers (name TEXT)").unwrap();
    set_mode(&file(&folder), 0o444);
    passes_in_child("child_opens_a_database_of_another_application", &folder);
}

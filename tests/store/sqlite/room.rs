//! The disk space that the database file and its log use.

use futures_util::FutureExt;
use omni_agent::store::{SqliteStore, Store, file_system::Durability};
use rusqlite::Connection;

use super::{file, quick, raw};
use crate::support::{Folder, commit, create, id};

fn free_pages(file: &Connection) -> i64 {
    file.pragma_query_value(None, "freelist_count", |row| row.get(0)).unwrap()
}

#[tokio::test]
async fn delete_of_a_large_conversation_frees_its_space_between_writes() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("large")).await;
    commit(&store, &id("large"), version, 1, "Hi").await;
    let other = raw(&folder);
    // The message has 80 MiB, about five times the amount of space that the store frees at once. The deletion itself
    // frees the first part of this space.
    other.execute("UPDATE nodes SET message = hex(zeroblob(40 << 20))", []).unwrap();
    store.delete(&id("large"), None).await.unwrap();
    // Before each of these writes, the store frees at least one further part.
    for number in 0..8 {
        create(&store, &id(&format!("small{number}"))).await;
    }
    assert!(free_pages(&other) <= 1024, "{}", free_pages(&other));
}

/// A reader that has an open transaction at every moment.
struct Reader {
    reading: Connection,
    next: Connection,
}

impl Reader {
    fn begin(folder: &Folder) -> Self {
        let reader = Self { reading: raw(folder), next: raw(folder) };
        read(&reader.reading);
        reader
    }

    /// Begins a new transaction, and then ends the previous one.
    fn go_on(&mut self) {
        read(&self.next);
        self.reading.execute_batch("COMMIT").unwrap();
        std::mem::swap(&mut self.reading, &mut self.next);
    }
}

fn read(connection: &Connection) {
    connection.execute_batch("BEGIN; SELECT count(*) FROM conversations").unwrap();
}

#[tokio::test]
async fn log_with_overlapping_readers_stays_bounded() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    begins_anew_while_readers_overlap(&folder, &store).await;
}

#[cfg(unix)]
#[tokio::test]
async fn log_of_a_linked_file_with_overlapping_readers_stays_bounded() {
    let (folder, elsewhere) = (Folder::new(), Folder::new());
    let link = elsewhere.path().join("link");
    std::os::unix::fs::symlink(file(&folder), &link).unwrap();
    drop(quick(&folder).await);
    let store = SqliteStore::builder(link).durability(Durability::Process).open().await.unwrap();
    begins_anew_while_readers_overlap(&folder, &store).await;
}

/// Asserts that the log in this folder is restarted, even though the transactions of readers overlap.
async fn begins_anew_while_readers_overlap(folder: &Folder, store: &SqliteStore) {
    const MIB: u64 = 1024 * 1024;

    let mut log = file(folder).into_os_string();
    log.push("-wal");
    let len = || std::fs::metadata(&log).unwrap().len();
    let other = raw(folder);
    // The other connection has the same size limit as the store, so if it restarts the log, it also truncates the log.
    other.pragma_update(None, "journal_size_limit", 16 << 20).unwrap();
    other.execute_batch("CREATE TABLE ballast (content BLOB)").unwrap();
    let mut reader = Reader::begin(folder);
    for number in 0..20 {
        // During each write, there is a reader that began before the write. Therefore SQLite's automatic checkpoints
        // can't restart the log.
        reader.go_on();
        other.execute("INSERT INTO ballast VALUES (zeroblob(16 << 20))", []).unwrap();
        create(store, &id(&format!("n{number}"))).await;
        // After the previous write, the store works on the log, and this work waits for readers. The following
        // operation ends after this work.
        let mut behind = store.renew(&[]);
        while (&mut behind).now_or_never().is_none() {
            reader.go_on();
        }
        if number > 4 && len() < 32 * MIB {
            return;
        }
    }
    panic!("the log has {} MiB", len() / MIB);
}

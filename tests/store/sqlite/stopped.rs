//! A process that is stopped during a write.

use std::{
    io::{BufRead, BufReader, Lines, Read, Write as _},
    process::{Child, ChildStdout, Command},
    time::Duration,
};

use omni_agent::store::{
    Listing, Owner, SqliteStore, Store, StoreError,
    custom::{Change, Write},
};
use rusqlite::{Connection, TransactionBehavior};

use super::file;
use crate::support::{Folder, child, child_folder, create, id, says};

/// Child process: begins a write, and ends the write when the parent process sends a byte.
#[tokio::test]
async fn child_writes_for_as_long_as_its_parent_wants() {
    let Some(folder) = child_folder() else { return };
    let mut connection = Connection::open(folder.join("conversations.sqlite")).unwrap();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    assert_eq!(transaction.execute("UPDATE conversations SET title = 'mine'", []).unwrap(), 1);
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    transaction.rollback().unwrap();
}

/// A child process that is writing. It is killed when this value is dropped, even if it is stopped.
struct Writer {
    child: Child,
    /// The child's output. It stays open so that the child can write to it.
    _lines: Lines<BufReader<ChildStdout>>,
}

impl Writer {
    /// Starts a child and waits until it has begun a write.
    fn start(folder: &Folder) -> Self {
        let name = "sqlite::stopped::child_writes_for_as_long_as_its_parent_wants";
        let mut child = child(name, folder.path()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"));
        Self { child, _lines: lines }
    }

    fn send(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn write_while_a_stopped_process_writes_is_busy_until_it_continues_or_ends() {
    for is_killed in [false, true] {
        let folder = Folder::new();
        let open = SqliteStore::builder(file(&folder)).lock_wait(Duration::from_millis(50)).open();
        let store = open.await.unwrap();
        let version = create(&store, &id("a")).await;
        let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
        let mut other = Writer::start(&folder);
        other.send("-STOP");

        let write = Write::on(version).under(&lease);
        for refused in [
            store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.map(drop),
            store.renew(&[(id("a"), lease.clone())]).await.map(drop),
            store.delete(&id("a"), None).await,
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error, StoreError::Busy { .. }) && error.is_transient(), "{error:?}");
            assert!(error.to_string().contains("stopped process"), "{error}");
        }
        assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1, "reads must work");

        if is_killed {
            other.send("-KILL");
        } else {
            other.send("-CONT");
            other.child.stdin.take().unwrap().write_all(b"!").unwrap();
        }
        assert_eq!(other.child.wait().unwrap().success(), !is_killed);
        assert_eq!(
            store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap(),
            version.next()
        );
        assert_eq!(store.load(&id("a")).await.unwrap().state.title, None);
    }
}

//! The SQLite store: the conformance suite, its settings, its locks, and unexpected files.

mod damage;
mod erasing;
mod hostile;
mod migration;
mod pages;
mod queue;
#[cfg(unix)]
mod read_only;
mod room;
mod searching;
mod shared;
#[cfg(unix)]
mod stopped;

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, mpsc},
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::store::{
    ConversationId, Listing, Owner, SqliteStore, Store, StoreError,
    custom::{Change, StateChange, Write, conformance},
    file_system::Durability,
};
use rusqlite::{Connection, TransactionBehavior};

use crate::support::{Folder, commit, create, id, says};

pub(crate) fn file(folder: &Folder) -> PathBuf {
    folder.path().join("conversations.sqlite")
}

/// Opens a store that does not sync, for tests that don't depend on syncing.
pub(crate) async fn quick(folder: &Folder) -> SqliteStore {
    SqliteStore::builder(file(folder)).durability(Durability::Process).open().await.unwrap()
}

/// Opens the file as another program would.
pub(crate) fn raw(folder: &Folder) -> Connection {
    Connection::open(file(folder)).unwrap()
}

struct Subject {
    folder: Folder,
    store: Arc<SqliteStore>,
}

#[async_trait]
impl conformance::StoreUnderTest for Subject {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn another(&self) -> Arc<dyn Store> {
        Arc::new(quick(&self.folder).await)
    }

    async fn damage(&self, id: &ConversationId) -> bool {
        let nodes = "SELECT min(nodes.version) FROM nodes JOIN conversations ON key = conversation WHERE conversations.id = ?1";
        let damage = format!("UPDATE nodes SET message = substr(message, 2) WHERE version = ({nodes})");
        raw(&self.folder).execute(&damage, [id.as_str()]).unwrap() == 1
    }

    async fn run_out(&self, id: &ConversationId) -> bool {
        raw(&self.folder).execute("UPDATE conversations SET expires = 1 WHERE id = ?", [id.as_str()]).unwrap()
            == 1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_on_sqlite_store_passes() {
    let make = async || {
        let folder = Folder::new();
        let store = Arc::new(quick(&folder).await);
        Subject { folder, store }
    };
    let report = conformance::check(make).await;
    // The write-ahead log is written by SQLite, not by this store, so the check of torn writes is skipped. The tests in
    // `damage.rs` tear this log.
    let skipped = [
        "search_finds_words_in_titles_and_texts",
        "search_after_a_removal_finds_nothing",
        "search_splits_the_words_of_every_script",
    ];
    assert_eq!(report.skipped, [&skipped[..], &["torn_write_is_dropped_completely"]].concat());
}

#[tokio::test]
async fn open_again_finds_the_stored_conversations() {
    let folder = Folder::new();
    let store = SqliteStore::open(file(&folder)).await.unwrap();
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "Hi").await;
    assert_eq!(store.file(), file(&folder));
    drop(store);
    let store = SqliteStore::open(file(&folder)).await.unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len()), (version, 1));
}

#[tokio::test]
async fn close_completes_what_has_begun_and_leaves_only_the_file() {
    let folder = Folder::new();
    let store = SqliteStore::open(file(&folder)).await.unwrap();
    let version = create(&store, &id("a")).await;
    assert!(folder.names().len() >= 2, "the log is missing: {:?}", folder.names());
    let clone = store.clone();
    let other = id("b");
    let (_, ()) = tokio::join!(create(&store, &other), clone.close());
    assert_eq!(folder.names(), ["conversations.sqlite"]);
    let write = Write::on(version);
    let change = Change::State(StateChange::title("Late"));
    for error in
        [store.load(&id("a")).await.unwrap_err(), store.write(&id("a"), &write, &change).await.unwrap_err()]
    {
        assert!(matches!(&error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("was closed"), "{error}");
    }
    store.close().await;
    let store = SqliteStore::open(file(&folder)).await.unwrap();
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_by_many_at_once_creates_one_schema() {
    let folder = Folder::new();
    let opened = (0..8).map(|_| tokio::spawn(SqliteStore::open(file(&folder))));
    let stores: Vec<_> = futures_util::future::join_all(opened).await;
    for store in stores {
        store.unwrap().unwrap().list(&Listing::default()).await.unwrap();
    }
}

#[cfg(unix)]
#[tokio::test]
async fn open_makes_the_file_accessible_only_to_its_owner() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    let store = SqliteStore::open(file(&folder)).await.unwrap();
    create(&store, &id("a")).await;
    let names = folder.names();
    assert!(names.len() >= 2, "the log is missing: {names:?}");
    for name in names {
        let mode = fs::metadata(folder.path().join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn open_in_a_missing_folder_is_unreachable() {
    let folder = Folder::new();
    let nowhere = folder.path().join("nowhere/conversations.sqlite");
    let error = SqliteStore::open(&nowhere).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("nowhere/conversations.sqlite"), "{error}");
}

#[tokio::test]
async fn open_of_another_kind_of_file_names_it_and_leaves_it_unchanged() {
    let folder = Folder::new();
    fs::write(file(&folder), "notes, not a database, and long enough to have a header of one ".repeat(20))
        .unwrap();
    let before = fs::read(file(&folder)).unwrap();
    match SqliteStore::open(file(&folder)).await {
        Err(StoreError::Damaged { place, .. }) => assert!(place.contains("conversations.sqlite"), "{place}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(fs::read(file(&folder)).unwrap(), before);

    // These are databases of other applications. Some have a table, and the others have only an application id or a
    // version.
    for made in [
        "CREATE TABLE customers (name TEXT)",
        "PRAGMA application_id = 7",
        "PRAGMA user_version = 1",
        "PRAGMA application_id = 7; CREATE TABLE customers (name TEXT)",
    ] {
        fs::remove_file(file(&folder)).unwrap();
        raw(&folder).execute_batch(made).unwrap();
        let before = fs::read(file(&folder)).unwrap();
        match SqliteStore::open(file(&folder)).await {
            Err(StoreError::Damaged { problem, .. }) => {
                assert!(problem.contains("not one that this crate made"), "{made}: {problem}");
            }
            other => panic!("{made}: {other:?}"),
        }
        assert_eq!(fs::read(file(&folder)).unwrap(), before, "{made}");
        assert_eq!(folder.names(), ["conversations.sqlite"], "{made}");
    }
}

/// The database is in the state after a crash: only its log contains the newest writes.
#[tokio::test]
async fn open_of_another_applications_database_leaves_its_log_unchanged() {
    let (made, left) = (Folder::new(), Folder::new());
    let other = raw(&made);
    other.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE customers (name TEXT)").unwrap();
    let names = ["conversations.sqlite", "conversations.sqlite-wal"];
    let read = |folder: &Folder| names.map(|name| fs::read(folder.path().join(name)).unwrap());
    for name in names {
        fs::copy(made.path().join(name), left.path().join(name)).unwrap();
    }
    let before = read(&left);
    let opened = SqliteStore::open(file(&left)).await;
    assert!(matches!(opened, Err(StoreError::Damaged { .. })), "{opened:?}");
    assert!(read(&left) == before, "the files were changed");
}

#[tokio::test]
async fn write_while_another_writes_is_busy_after_the_wait() {
    let folder = Folder::new();
    let store =
        SqliteStore::builder(file(&folder)).lock_wait(Duration::from_millis(50)).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let mut other = raw(&folder);
    let transaction = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();

    let write = Write::on(version);
    let owner = Owner::new("ann");
    for refused in [
        store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.map(drop),
        store.acquire(&id("a"), &owner).await.map(drop),
        store.delete(&id("a"), None).await,
    ] {
        match refused {
            Err(error @ StoreError::Busy { waited, .. }) => {
                assert!(error.is_transient());
                assert_ne!(waited, Duration::ZERO);
            }
            other => panic!("{other:?}"),
        }
    }
    // Reads don't wait.
    assert_eq!(store.load(&id("a")).await.unwrap().version, version);
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1);

    transaction.rollback().unwrap();
    store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap();
}

#[tokio::test]
async fn delete_of_most_conversations_shrinks_the_file() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let text = "x".repeat(100_000);
    for number in 0..200 {
        let id = id(&format!("n{number}"));
        let version = create(&store, &id).await;
        commit(&store, &id, version, 1, &text).await;
    }
    let pages = || -> i64 { raw(&folder).pragma_query_value(None, "page_count", |row| row.get(0)).unwrap() };
    let full = pages();
    for number in 1..200 {
        store.delete(&id(&format!("n{number}")), None).await.unwrap();
    }
    let left = pages();
    assert!(left < full / 3, "{left} of {full} pages are left");
    assert_eq!(store.load(&id("n0")).await.unwrap().nodes[0].message().text(), text);
}

#[tokio::test]
async fn commit_size_is_constant_as_the_conversation_grows() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let mut version = create(&store, &id("a")).await;
    let state = omni_agent::store::custom::StoredState::default().with_system("Be brief. ".repeat(10_000));
    version =
        store.write(&id("a"), &Write::on(version), &Change::State(StateChange::whole(state))).await.unwrap();
    // The log is emptied before each commit, so that it contains only that commit.
    let observer = raw(&folder);
    let empty = || observer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let log = folder.path().join("conversations.sqlite-wal");
    let mut added = Vec::new();
    for number in 1001..2001 {
        empty();
        version = commit(&store, &id("a"), version, number, "of the same length").await;
        added.push(fs::metadata(&log).unwrap().len());
    }
    let (first, last) = (added[..100].iter().max(), added[900..].iter().max());
    // A commit may be larger now and then, because a B-tree sometimes gets another level.
    assert!(last <= first.map(|first| first * 2).as_ref(), "{first:?} bytes at first, {last:?} at last");
}

#[tokio::test]
async fn lease_from_before_the_clock_was_set_back_expires_early() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
    let set_back = |by: &str| {
        let later = format!("UPDATE conversations SET expires = expires + {by} WHERE id = 'a'");
        assert_eq!(raw(&folder).execute(&later, []).unwrap(), 1);
    };
    let (write, turn) = (Write::on(version).under(&lease), says(1, "Hi"));

    // If the clock was set back only a little, the lease is still valid.
    set_back("lasts / 2");
    let refused = store.acquire(&id("a"), &Owner::new("ben")).await;
    assert!(matches!(refused, Err(StoreError::Owned { .. })), "{refused:?}");
    // If the clock was set back by an hour, the lease has expired. Its owner can still write and renew it, unless another
    // owner has acquired the conversation.
    set_back("3600000");
    assert_eq!(store.summary(&id("a")).await.unwrap().owner, None);
    store.write(&id("a"), &write, &Change::Commit(turn)).await.unwrap();
    assert_eq!(store.renew(&[(id("a"), lease.clone())]).await.unwrap(), []);
    assert_eq!(store.summary(&id("a")).await.unwrap().owner, Some(Owner::new("ann")));
    set_back("3600000");
    let bens = store.acquire(&id("a"), &Owner::new("ben")).await.unwrap();
    assert_eq!(bens.epoch.0, lease.epoch.0 + 1);
}

/// Renewals run in a separate thread. They must not wait for the application's threads.
#[test]
fn renew_while_the_runtime_of_others_is_blocked_succeeds() {
    let folder = Folder::new();
    let own = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (store, lease) = own.block_on(async {
        let store = quick(&folder).await;
        create(&store, &id("a")).await;
        let lease = store.acquire(&id("a"), &Owner::new("ann")).await.unwrap();
        (store, lease)
    });

    let application = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (blocked, is_blocked) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let other = store.clone();
    let thread = std::thread::spawn(move || {
        application.block_on(async {
            // Each of these operations has started and is waiting for an answer, but the runtime does not poll it.
            let begun = (0..100).map(|number| {
                let store = other.clone();
                tokio::spawn(async move { create(&store, &id(&format!("n{number}"))).await })
            });
            let begun: Vec<_> = begun.collect();
            tokio::task::yield_now().await;
            blocked.send(()).unwrap();
            may_go_on.recv().unwrap();
            for begun in begun {
                begun.await.unwrap();
            }
        });
    });
    is_blocked.recv().unwrap();
    assert_eq!(own.block_on(store.renew(&[(id("a"), lease)])).unwrap(), []);
    go_on.send(()).unwrap();
    thread.join().unwrap();
}

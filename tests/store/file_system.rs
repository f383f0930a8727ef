//! The file-system store: the conformance suite, settings, locks, permissions and lists.

use std::{
    fs::{self, File},
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use omni_agent::store::{
    ConversationId, FileSystemStore, Listing, Store, StoreError,
    custom::{Change, Write, conformance},
};

use crate::{
    full::{check_all, create_all},
    support::{Folder, commit, create, id, says},
};

struct Subject {
    folder: Folder,
    store: Arc<FileSystemStore>,
}

#[async_trait]
impl conformance::StoreUnderTest for Subject {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    async fn another(&self) -> Arc<dyn Store> {
        Arc::new(self.folder.store().await)
    }

    async fn tear(&self, id: &ConversationId) -> bool {
        let log = File::options().write(true).open(self.folder.log(id)).unwrap();
        log.set_len(log.metadata().unwrap().len() - 20).unwrap();
        true
    }

    async fn damage(&self, id: &ConversationId) -> bool {
        let mut log = fs::read(self.folder.log(id)).unwrap();
        let middle = log.len() / 2;
        log[middle] ^= 1;
        fs::write(self.folder.log(id), log).unwrap();
        true
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_on_file_system_store_passes() {
    let make = async || {
        let folder = Folder::new();
        let store = Arc::new(FileSystemStore::builder(folder.path()).exclusive().open().await.unwrap());
        Subject { folder, store }
    };
    let report = conformance::check(make).await;
    assert_eq!(
        report.skipped,
        [
            "search_finds_words_in_titles_and_texts",
            "search_after_a_removal_finds_nothing",
            "search_splits_the_words_of_every_script",
            "erase_requires_a_valid_lease",
            "turns_of_an_owner_are_not_left",
            "schedules_are_listed_by_time_and_labels",
            "schedule_moves_only_from_its_stored_time",
            "schedules_of_a_turn_that_waits_are_not_due",
            "schedules_are_deleted_with_their_conversation",
            "lease_excludes_other_owners",
            "expired_lease_can_be_acquired_by_another",
            "renew_returns_the_lost_leases",
            "lease_of_a_deleted_conversation_is_invalid_for_a_later_one",
            "delete_under_a_lease_requires_a_valid_lease",
            "write_after_a_release_is_rejected",
            "write_during_an_acquisition_precedes_it_or_is_rejected",
            "renewal_during_an_acquisition_leaves_one_owner"
        ]
    );
}

#[tokio::test]
async fn load_returns_everything_that_commits_can_contain() {
    let folder = Folder::new();
    create_all(&folder.quick_store().await).await;
    check_all(&folder.quick_store().await).await;
}

/// The files in `golden/` never change and must remain readable.
#[tokio::test]
async fn load_from_format_10_returns_what_was_stored() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/store/golden/files-10");
    let folder = Folder::new();
    for file in fs::read_dir(golden).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), folder.path().join(file.file_name())).unwrap();
    }
    let store = folder.quick_store().await;
    check_all(&store).await;
    let listed = store.list(&Listing::default()).await.unwrap();
    assert_eq!(listed.len(), 3);
    for conversation in listed {
        // The conversation can still be continued.
        commit(&store, &conversation.id, conversation.version, 1000, "more").await;
    }
}

#[tokio::test]
async fn open_without_folder_creates_it() {
    let folder = Folder::new();
    let inner = folder.path().join("a/b");
    let store = FileSystemStore::open(&inner).await.unwrap();
    create(&store, &id("a")).await;
    assert_eq!(store.folder(), inner);
}

#[cfg(unix)]
#[tokio::test]
async fn create_makes_files_readable_only_by_their_owner() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    let inner = folder.path().join("private");
    let store = FileSystemStore::open(&inner).await.unwrap();
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&inner), 0o700);
    for entry in fs::read_dir(&inner).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
}

#[tokio::test]
async fn delete_leaves_nothing_behind() {
    let folder = Folder::new();
    let store = folder.store().await;
    create(&store, &id("a")).await;
    assert_eq!(folder.names(), ["a.jsonl"]);
    fs::write(folder.path().join("a.jsonl.new"), "left by a crash").unwrap();
    store.delete(&id("a"), None).await.unwrap();
    assert_eq!(folder.names(), [""; 0]);

    fs::write(folder.path().join("a.jsonl.new"), "left by a crash").unwrap();
    store.delete(&id("a"), None).await.unwrap();
    assert_eq!(folder.names(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn write_while_another_holds_the_lock_is_busy_after_the_wait() {
    let folder = Folder::new();
    let store =
        FileSystemStore::builder(folder.path()).lock_wait(Duration::from_secs(3)).open().await.unwrap();
    let version = create(&store, &id("a")).await;
    let other = File::open(folder.log(&id("a"))).unwrap();
    other.lock().unwrap();

    let begun = tokio::time::Instant::now();
    let write = Write::on(version);
    match store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await {
        Err(error @ StoreError::Busy { waited, .. }) => {
            assert_eq!((waited, begun.elapsed()), (Duration::from_secs(3), Duration::from_secs(3)));
            assert!(error.is_transient());
        }
        other => panic!("{other:?}"),
    }
    // Reads don't wait.
    assert_eq!(store.load(&id("a")).await.unwrap().version, version);
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1);

    other.unlock().unwrap();
    store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap();
}

#[tokio::test]
async fn write_while_another_holds_the_lock_continues_when_it_is_free() {
    let folder = Folder::new();
    let store = folder.store().await;
    let version = create(&store, &id("a")).await;
    let other = File::open(folder.log(&id("a"))).unwrap();
    other.lock().unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.write(&id("a"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await }
    });
    // Writes to other conversations don't wait.
    create(&store, &id("b")).await;
    other.unlock().unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), version.next());
}

#[tokio::test]
async fn list_ignores_other_files() {
    let folder = Folder::new();
    let store = folder.store().await;
    for name in ["notes.txt", ".jsonl", "..jsonl", "a b.jsonl", "con.jsonl"] {
        fs::write(folder.path().join(name), "not the store's").unwrap();
    }
    create(&store, &id("a")).await;
    let listed = store.list(&Listing::default()).await.unwrap();
    assert_eq!(listed.iter().map(|summary| summary.id.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn idle_conversations_hold_no_file_descriptor() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let held = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|path| path.starts_with(folder.path()))).count()
    };
    for number in 0..20 {
        let id = id(&format!("n{number}"));
        let version = create(&store, &id).await;
        commit(&store, &id, version, 1, "Hi").await;
        store.load(&id).await.unwrap();
    }
    assert_eq!(held(), 0);
}

#[tokio::test]
async fn commit_size_is_constant_as_the_conversation_grows() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut version = create(&store, &id("a")).await;
    let size = || fs::metadata(folder.log(&id("a"))).unwrap().len();
    let mut added = Vec::new();
    for number in 1001..2001 {
        let before = size();
        version = commit(&store, &id("a"), version, number, "of the same length").await;
        added.push(size() - before);
    }
    assert_eq!(added[0], added[999]);
    assert_eq!(folder.names(), ["a.jsonl"]);
}

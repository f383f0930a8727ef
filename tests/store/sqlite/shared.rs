//! Writes that wait at the same time share one transaction, and so one sync of the file.

use std::fs;

use futures_util::{FutureExt, future::join_all};
use omni_agent::store::{
    ConversationId, SqliteStore, Store, StoreError,
    custom::{Change, Commit, Version, Write},
};
use rusqlite::TransactionBehavior;

use super::{file, quick, raw};
use crate::support::{Folder, create, id, says};

/// Starts these commits while another program has locked the file, then unlocks the file and waits for all commits. The
/// commits wait behind a delete, which shares no transaction, and which empties the write-ahead log.
async fn commit_at_once(
    folder: &Folder,
    store: &SqliteStore,
    commits: &[(ConversationId, Write, Commit)],
) -> Vec<Result<Version, StoreError>> {
    let (deleted, written) = commit_at_once_after(folder, store, commits, || ()).await;
    deleted.unwrap();
    written
}

/// Like [`commit_at_once`], but runs `action` before the file is unlocked. Also returns the result of the delete.
async fn commit_at_once_after(
    folder: &Folder,
    store: &SqliteStore,
    commits: &[(ConversationId, Write, Commit)],
    action: impl FnOnce(),
) -> (Result<(), StoreError>, Vec<Result<Version, StoreError>>) {
    let mut other = raw(folder);
    let lock = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let absent = id("absent");
    let mut delete = store.delete(&absent, None);
    assert!((&mut delete).now_or_never().is_none());
    let commit = |(id, write, commit): &(_, _, Commit)| {
        (ConversationId::clone(id), *write, Change::Commit(commit.clone()))
    };
    let commits: Vec<(_, Write, _)> = commits.iter().map(commit).collect();
    let mut waiting: Vec<_> =
        commits.iter().map(|(id, write, commit)| store.write(id, write, commit)).collect();
    for commit in &mut waiting {
        assert!(commit.now_or_never().is_none());
    }
    action();
    lock.rollback().unwrap();
    (delete.await, join_all(waiting).await)
}

/// Returns the number of transactions in the write-ahead log.
///
/// A frame that ends a transaction contains the size of the database. The format is in SQLite's documentation,
/// "Database File Format", section 4.1.
fn transactions(folder: &Folder) -> usize {
    let log = fs::read(format!("{}-wal", file(folder).display())).unwrap();
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
    let page = word(&log[8..12]) as usize;
    let salts = &log[16..24];
    let frames = log[32..].chunks_exact(24 + page).filter(|frame| &frame[8..16] == salts);
    frames.filter(|frame| word(&frame[4..8]) > 0).count()
}

/// Adds a trigger with which SQLite fails in this way when a message of the conversation `c3` is inserted.
fn fail_c3(folder: &Folder, how: &str) {
    let trigger = format!(
        "CREATE TRIGGER fails BEFORE INSERT ON nodes
         WHEN new.conversation = (SELECT key FROM conversations WHERE id = 'c3')
         BEGIN SELECT RAISE({how}, 'no'); END"
    );
    raw(folder).execute_batch(&trigger).unwrap();
}

async fn conversations(store: &SqliteStore, count: usize) -> Vec<(ConversationId, Write, Commit)> {
    let mut commits = Vec::new();
    for number in 0..count {
        let id = id(&format!("c{number}"));
        let version = create(store, &id).await;
        commits.push((id, Write::on(version), says(1, "Hi")));
    }
    commits
}

#[tokio::test]
async fn commits_that_wait_at_the_same_time_share_one_transaction() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let commits = conversations(&store, 40).await;
    for (written, (_, write, _)) in commit_at_once(&folder, &store, &commits).await.iter().zip(&commits) {
        assert_eq!(written.as_ref().unwrap(), &write.base.next());
    }
    assert_eq!(transactions(&folder), 1);
    for (id, ..) in &commits {
        assert_eq!(store.load(id).await.unwrap().nodes.len(), 1);
    }
}

#[tokio::test]
async fn commit_that_is_refused_is_undone_alone() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let mut commits = conversations(&store, 5).await;
    let stale = Write::on(Version::new(7));
    commits[2].1 = stale;
    // A repetition in the same transaction finds the first result.
    commits.push(commits[1].clone());
    let written = commit_at_once(&folder, &store, &commits).await;
    for (number, (written, (id, write, _))) in written.into_iter().zip(&commits).enumerate() {
        if number == 2 {
            assert!(matches!(written, Err(StoreError::Conflict { .. })), "{written:?}");
            assert!(store.load(id).await.unwrap().nodes.is_empty());
        } else {
            assert_eq!(written.unwrap(), write.base.next());
            assert_eq!(store.load(id).await.unwrap().nodes.len(), 1);
        }
    }
}

#[tokio::test]
async fn commit_that_rolls_the_shared_transaction_back_fails_alone_and_can_be_repeated() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let commits = conversations(&store, 6).await;
    // Some failures, such as a full disk, make SQLite roll the whole transaction back. This trigger does the same.
    fail_c3(&folder, "ROLLBACK");
    let written = commit_at_once(&folder, &store, &commits).await;
    for (number, written) in written.iter().enumerate() {
        // The other writes are performed again, each in its own transaction.
        assert_eq!(written.is_ok(), number != 3, "{number}: {written:?}");
    }
    raw(&folder).execute_batch("DROP TRIGGER fails").unwrap();
    for (id, write, commit) in &commits {
        assert_eq!(store.write(id, write, &Change::Commit(commit.clone())).await.unwrap(), write.base.next());
        assert_eq!(store.load(id).await.unwrap().nodes.len(), 1);
    }
}

#[tokio::test]
async fn commit_that_fails_after_a_change_leaves_nothing_of_it_and_the_others_succeed() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let commits = conversations(&store, 6).await;
    // The statements before the failing one have already changed the conversation.
    fail_c3(&folder, "ABORT");
    let written = commit_at_once(&folder, &store, &commits).await;
    for (number, (written, (id, write, _))) in written.into_iter().zip(&commits).enumerate() {
        let stored = store.load(id).await.unwrap();
        if number == 3 {
            assert!(matches!(written, Err(StoreError::Failed { .. })), "{written:?}");
            assert_eq!((stored.version, stored.nodes.len()), (write.base, 0));
        } else {
            assert_eq!(written.unwrap(), write.base.next());
            assert_eq!(stored.nodes.len(), 1);
        }
    }
}

#[cfg(unix)]
#[tokio::test]
async fn commits_to_a_replaced_file_all_fail() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let commits = conversations(&store, 5).await;
    let replace = || {
        fs::rename(file(&folder), folder.path().join("moved")).unwrap();
        fs::write(file(&folder), "").unwrap();
    };
    let (deleted, written) = commit_at_once_after(&folder, &store, &commits, replace).await;
    for written in written.into_iter().map(|written| written.map(|_| ())).chain([deleted]) {
        let error = written.unwrap_err();
        assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("another file has taken its place"), "{error}");
    }
}

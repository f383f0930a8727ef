//! Two processes that use the same conversation.

use std::io::{BufRead, BufReader, Read, Write as _};

use omni_agent::store::{
    FileSystemStore, Store, StoreError,
    custom::{Change, Write},
};

use crate::support::{Folder, child, child_folder, commit, create, id, says};

const COMMITS: u64 = 100;

/// Child process: makes commits while another process also makes commits.
#[tokio::test]
async fn child_commits_among_others() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(folder).await.unwrap();
    println!("\nready");
    std::io::stdout().flush().unwrap();
    // The parent sends a byte, so that both processes start at the same time.
    std::io::stdin().read_exact(&mut [0]).unwrap();
    compete(&store, "child").await;
}

/// Makes `COMMITS` commits of one node with this text. The id of each node is its position in the history. Returns the
/// number of commits that were refused because of a conflict.
async fn compete(store: &FileSystemStore, text: &str) -> u64 {
    let id = id("shared");
    let mut stored = store.load(&id).await.unwrap();
    let mut conflicts = 0;
    for _ in 0..COMMITS {
        loop {
            let number = stored.nodes.len() as u64 + 1;
            match store.write(&id, &Write::on(stored.version), &Change::Commit(says(number, text))).await {
                Ok(_) => break,
                Err(StoreError::Conflict { .. }) => conflicts += 1,
                Err(error) => panic!("{text}: {error}"),
            }
            stored = store.load(&id).await.unwrap();
        }
        stored = store.load(&id).await.unwrap();
    }
    conflicts
}

#[tokio::test]
async fn commits_of_two_processes_form_one_history() {
    let folder = Folder::new();
    let store = folder.store().await;
    let first = create(&store, &id("shared")).await;
    let mut child = child("processes::child_commits_among_others", folder.path()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    child.stdin.take().unwrap().write_all(b"!").unwrap();
    compete(&store, "parent").await;
    assert!(child.wait().unwrap().success());

    let stored = store.load(&id("shared")).await.unwrap();
    assert_eq!(stored.version.get(), first.get() + 2 * COMMITS);
    let texts: Vec<_> = stored.nodes.iter().map(|node| node.message().text()).collect();
    for who in ["parent", "child"] {
        assert_eq!(texts.iter().filter(|text| *text == who).count() as u64, COMMITS, "{texts:?}");
    }
    assert!(stored.nodes.iter().zip(1..).all(|(node, number)| node.id().get() == number));
}

/// Child process: makes one commit, and prints a line afterwards.
#[tokio::test]
async fn child_commits_once() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(folder).await.unwrap();
    let version = store.load(&id("shared")).await.unwrap().version;
    commit(&store, &id("shared"), version, 1, "child").await;
}

#[tokio::test]
async fn commit_after_another_process_was_faster_is_a_conflict() {
    let folder = Folder::new();
    let store = folder.store().await;
    let version = create(&store, &id("shared")).await;
    assert!(child("processes::child_commits_once", folder.path()).status().unwrap().success());

    let late = store.write(&id("shared"), &Write::on(version), &Change::Commit(says(1, "parent"))).await;
    assert!(
        matches!(late, Err(StoreError::Conflict { current, .. }) if current == version.next()),
        "{late:?}"
    );
    let stored = store.load(&id("shared")).await.unwrap();
    assert_eq!(stored.nodes.len(), 1);
    assert_eq!(stored.nodes[0].message().text(), "child", "the first commit was changed");
}

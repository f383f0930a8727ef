//! Logs of format version 1: how they are read, written, and converted to version 2.

use std::fs;

use omni_agent::{
    store::{Commit, ConversationId, Labels, Page, StateChange, Store, StoreError, StoredState, Write},
    tree::Tree,
};

use crate::{
    golden,
    support::{Folder, id, node, says},
};

fn labels() -> Labels {
    Labels::new([("tenant", "acme")]).unwrap()
}

/// Returns the version of the log's format, according to its first line.
fn format(folder: &Folder, id: &ConversationId) -> u64 {
    let log = fs::read_to_string(folder.log(id)).unwrap();
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    first["record"]["format_version"].as_u64().unwrap()
}

#[tokio::test]
async fn first_label_of_a_version_1_log_upgrades_it_and_keeps_everything() {
    for name in ["compacted", "empty", "talk", "torn"] {
        let folder = golden::copy(1);
        let store = folder.quick_store().await;
        let id = id(name);
        let mut expected = store.load(&id).await.unwrap();
        fs::write(folder.path().join(format!("{name}.jsonl.new")), "left by a crash").unwrap();
        let write = Write::on(expected.version);
        let version = store.save_state(&id, &write, &StateChange::Labels(labels())).await.unwrap();
        assert_eq!(format(&folder, &id), 2);
        assert!(!folder.path().join(format!("{name}.jsonl.new")).exists());

        let stored = store.load(&id).await.unwrap();
        expected.state.labels = labels();
        (expected.version, expected.updated) = (version, stored.updated);
        assert_eq!(stored, expected);
        let listed = store.list_where(&labels().into(), Page::default()).await.unwrap().remove(0);
        assert_eq!((listed.id, &listed.title, listed.labels), (id.clone(), &stored.state.title, labels()));
        let repeated = store.save_state(&id, &write, &StateChange::Title(None)).await.unwrap();
        assert_eq!(repeated, version, "the write is known");
    }
}

#[tokio::test]
async fn write_that_version_1_knows_keeps_the_version() {
    let folder = golden::copy(1);
    let store = folder.quick_store().await;
    let id = id("talk");
    let mut stored = store.load(&id).await.unwrap();
    let before = fs::read(folder.log(&id)).unwrap();
    for change in [StateChange::title("new"), StateChange::whole(StoredState::default().with_title("newer"))]
    {
        stored.version = store.save_state(&id, &Write::on(stored.version), &change).await.unwrap();
    }
    for commit in [says(7, "Hi"), Commit::new(Some(node(6))).with_state(stored.state.clone())] {
        stored.version = store.commit(&id, &Write::on(stored.version), &commit).await.unwrap();
    }
    assert_eq!(format(&folder, &id), 1);
    assert!(fs::read(folder.log(&id)).unwrap().starts_with(&before), "the log only grew");
    assert!(fs::read_to_string(folder.summary(&id)).unwrap().starts_with(r#"{"format_version":1,"#));
}

#[tokio::test]
async fn list_of_version_1_accepts_its_summaries() {
    let folder = golden::copy(1);
    let store = folder.quick_store().await;
    let read = || ["empty", "talk"].map(|name| fs::read(folder.summary(&id(name))).unwrap());
    // A title that only the summary contains shows that the log is not read.
    let talk = fs::read_to_string(folder.summary(&id("talk"))).unwrap();
    fs::write(folder.summary(&id("talk")), talk.replace("A talk", "From the summary")).unwrap();
    let before = read();
    let listed = store.list(Page::default()).await.unwrap();
    let talk = listed.into_iter().find(|summary| summary.id == id("talk")).unwrap();
    assert!(talk.title.unwrap().starts_with("From the summary"));
    assert_eq!(read(), before);
}

#[tokio::test]
async fn each_write_that_version_1_does_not_know_upgrades_the_log() {
    let end = serde_json::from_value(serde_json::json!({"outcome": "cancelled"})).unwrap();
    let state = StoredState::default().with_labels(labels());
    let commits = [
        Commit::new(Some(node(6))).with_state(state.clone()),
        Commit::new(Some(node(6))).with_usage([]),
        Commit::new(Some(node(6))).with_run_end(end),
    ];
    for commit in commits {
        let folder = golden::copy(1);
        let store = folder.quick_store().await;
        let before = store.load(&id("talk")).await.unwrap();
        store.commit(&id("talk"), &Write::on(before.version), &commit).await.unwrap();
        assert_eq!(format(&folder, &id("talk")), 2, "{commit:?}");
        assert_eq!(store.load(&id("talk")).await.unwrap().nodes, before.nodes);
    }
    let folder = golden::copy(1);
    let store = folder.quick_store().await;
    let talk = store.load(&id("talk")).await.unwrap();
    let change = StateChange::whole(state);
    store.save_state(&id("talk"), &Write::on(talk.version), &change).await.unwrap();
    assert_eq!(format(&folder, &id("talk")), 2);

    let torn = store.load(&id("torn")).await.unwrap();
    let mut tree = Tree::hydrate(torn.nodes, torn.head, torn.cursors).unwrap();
    let erased = tree.erase(node(2)).unwrap();
    store.erase(&id("torn"), &Write::on(torn.version), &erased).await.unwrap();
    assert_eq!(format(&folder, &id("torn")), 2);
    assert_eq!(store.load(&id("torn")).await.unwrap().nodes.len(), tree.len());
}

/// Checks that each write that needs an upgrade of the log fails with `problem` and leaves the log unchanged. Other
/// writes must succeed, and the log must keep its version.
async fn refuses_to_upgrade(folder: &Folder, problem: &str) {
    let store = folder.quick_store().await;
    let id = id("talk");
    let before = (fs::read(folder.log(&id)).unwrap(), store.load(&id).await.unwrap());
    let write = Write::on(before.1.version);
    let mut tree = Tree::hydrate(before.1.nodes.clone(), before.1.head, before.1.cursors.clone()).unwrap();
    let erased = tree.erase(node(2)).unwrap();
    let refused = [
        store.save_state(&id, &write, &StateChange::Labels(labels())).await,
        store.commit(&id, &write, &Commit::new(Some(node(6))).with_usage([])).await,
        store.erase(&id, &write, &erased).await,
    ];
    for refused in refused {
        match refused {
            Err(error @ StoreError::Failed { .. }) => {
                let text = error.to_string();
                assert!(text.contains("talk.jsonl") && text.contains(problem), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fs::read(folder.log(&id)).unwrap(), before.0);
        assert!(!folder.path().join("talk.jsonl.new").exists());
    }
    assert_eq!(store.load(&id).await.unwrap(), before.1);
    store.save_state(&id, &write, &StateChange::title("new")).await.unwrap();
    assert_eq!(format(folder, &id), 1);
}

#[cfg(unix)]
#[tokio::test]
async fn upgrade_and_erase_behind_a_symbolic_link_are_refused() {
    let folder = golden::copy(1);
    let target = folder.path().join("elsewhere");
    fs::rename(folder.log(&id("talk")), &target).unwrap();
    std::os::unix::fs::symlink(&target, folder.log(&id("talk"))).unwrap();
    refuses_to_upgrade(&folder, "symbolic link").await;
    assert!(fs::symlink_metadata(folder.log(&id("talk"))).unwrap().is_symlink());
}

#[cfg(unix)]
#[tokio::test]
async fn upgrade_and_erase_of_a_log_of_another_user_are_refused() {
    let folder = golden::copy(1);
    if std::os::unix::fs::chown(folder.log(&id("talk")), Some(65_533), Some(65_533)).is_err() {
        crate::skip::skip("only root can give a file to another user");
        return;
    }
    refuses_to_upgrade(&folder, "different owner").await;
}

/// One of the writers upgrades the log while the others wait for the lock, or read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_by_many_handles_at_once_keeps_all_writes() {
    let folder = golden::copy(1);
    let mut writers = Vec::new();
    for number in 0..8_u64 {
        let store = folder.quick_store().await;
        writers.push(tokio::spawn(async move {
            loop {
                let version = store.load(&id("talk")).await.unwrap().version;
                let labels = Labels::new([("writer", number.to_string())]).unwrap();
                let change = StateChange::Labels(labels);
                match store.save_state(&id("talk"), &Write::on(version), &change).await {
                    Err(StoreError::Conflict { .. }) => {}
                    written => return written.unwrap(),
                }
            }
        }));
    }
    let mut versions = Vec::new();
    for writer in writers {
        versions.push(writer.await.unwrap());
    }
    versions.sort_unstable();
    assert!(versions.windows(2).all(|two| two[0].next() == two[1]), "{versions:?}");
    let stored = folder.quick_store().await.load(&id("talk")).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len()), (versions[7], 6));
}

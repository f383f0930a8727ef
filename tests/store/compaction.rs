//! Compaction: a log is rewritten when its outdated records use more space than its other records.

use std::fs;

use omni_agent::{
    message::{RequestEnd, Usage, UsageRow},
    run::RunEnd,
    store::{
        Commit, ConversationId, FileSystemStore, Labels, Page, StateChange, Store, StoreError, Stored,
        StoredState, Version, Write, WriteId,
    },
};

use crate::support::{Folder, commit, create, id, node, says};

struct Grown {
    folder: Folder,
    store: FileSystemStore,
    /// The write that created the conversation, and the version after this write.
    first: (WriteId, Version),
    /// All other writes, each with the version that it produced.
    writes: Vec<(Write, Version)>,
    stored: Stored,
}

/// Creates a conversation with a few nodes. Between and after the nodes, many titles, states and changes of the path
/// are written.
async fn grown(rounds: u64) -> Grown {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let id = id("a");
    let write = WriteId::generate();
    let mut version =
        store.create(&id, write, &StoredState::default().with_system("Be brief.")).await.unwrap();
    let first = (write, version);
    let mut writes = Vec::new();
    for round in 0..rounds {
        let write = Write::on(version);
        let title = format!("title {round} {}", "long ".repeat(100));
        version = match round % 4 {
            _ if round < 12 => store.commit(&id, &write, &says(round + 1, &format!("node {round}"))).await,
            0 => store.save_state(&id, &write, &StateChange::Title(Some(title))).await,
            1 => {
                let state = StoredState::default().with_system("Be kind.").with_title(title);
                store.save_state(&id, &write, &StateChange::whole(state)).await
            }
            2 => store.commit(&id, &write, &says(round + 1, "in between")).await,
            _ => {
                let moved = Commit::new(Some(node(round % 12 + 1))).with_cursors([(node(3), node(round))]);
                store.commit(&id, &write, &moved).await
            }
        }
        .unwrap();
        writes.push((write, version));
    }
    // This value is loaded before any compaction. The tests compare later loads with it.
    let stored = expected(&store, &id).await;
    Grown { folder, store, first, writes, stored }
}

/// Loads the conversation while its log is locked, so that the load does not write anything.
async fn expected(store: &FileSystemStore, id: &ConversationId) -> Stored {
    let log = store.folder().join(format!("{id}.jsonl"));
    let held = fs::File::open(log).unwrap();
    held.lock().unwrap();
    store.load(id).await.unwrap()
}

fn size(grown: &Grown) -> u64 {
    fs::metadata(grown.folder.log(&id("a"))).unwrap().len()
}

#[tokio::test]
async fn load_of_an_outgrown_log_compacts_it_and_changes_nothing() {
    let grown = grown(500).await;
    let before = size(&grown);
    assert_eq!(grown.store.load(&id("a")).await.unwrap(), grown.stored);
    let after = size(&grown);
    assert!(after * 2 < before, "{before} bytes became {after}");
    assert_eq!(grown.folder.names(), ["a.jsonl", "a.summary.json"]);

    assert_eq!(grown.store.load(&id("a")).await.unwrap(), grown.stored, "read from the new log");
    assert_eq!(size(&grown), after, "the second load compacts nothing");
    let summary = grown.store.list(Page::default()).await.unwrap().remove(0);
    assert_eq!((summary.version, summary.updated), (grown.stored.version, grown.stored.updated));
    assert_eq!(summary.title, grown.stored.state.title);
    fs::remove_file(grown.folder.summary(&id("a"))).unwrap();
    assert_eq!(grown.store.list(Page::default()).await.unwrap(), [summary]);
}

#[tokio::test]
async fn write_repeated_after_compactions_returns_the_first_result() {
    let mut grown = grown(500).await;
    for _ in 0..3 {
        grown.store.load(&id("a")).await.unwrap();
        for (write, version) in grown.writes.iter().step_by(31) {
            let repeated = grown.store.commit(&id("a"), write, &says(1, "never written")).await;
            assert_eq!(repeated.unwrap(), *version);
        }
        let created = grown.store.create(&id("a"), grown.first.0, &StoredState::default()).await;
        assert_eq!(created.unwrap(), grown.first.1);
        let other = grown.store.commit(&id("a"), &Write::on(grown.first.1), &says(1, "never written")).await;
        assert!(matches!(other, Err(StoreError::Conflict { .. })), "{other:?}");

        // Let the log outgrow its compaction limit again.
        for round in 0..300 {
            let write = Write::on(grown.stored.version);
            let title = StateChange::Title(Some(format!("another title {round} {}", "long ".repeat(100))));
            let version = grown.store.save_state(&id("a"), &write, &title).await.unwrap();
            grown.writes.push((write, version));
            grown.stored.version = version;
        }
    }
    let log = fs::read_to_string(grown.folder.log(&id("a"))).unwrap();
    assert!(log.lines().next().unwrap().ends_with("\"compactions\":3}}"), "{}", log.lines().next().unwrap());
}

#[tokio::test]
async fn write_after_compaction_builds_on_it() {
    let grown = grown(500).await;
    grown.store.load(&id("a")).await.unwrap();
    let version = commit(&grown.store, &id("a"), grown.stored.version, 5000, "after").await;
    let stored = grown.store.load(&id("a")).await.unwrap();
    assert_eq!(stored.version, version);
    assert_eq!(stored.nodes.len(), grown.stored.nodes.len() + 1);
    assert_eq!((stored.state, stored.cursors), (grown.stored.state, grown.stored.cursors));
}

#[tokio::test]
async fn load_while_another_holds_the_lock_compacts_nothing() {
    let grown = grown(500).await;
    let before = fs::read(grown.folder.log(&id("a"))).unwrap();
    expected(&grown.store, &id("a")).await;
    assert!(fs::read(grown.folder.log(&id("a"))).unwrap() == before);
}

#[tokio::test]
async fn load_of_a_log_that_is_mostly_nodes_leaves_it_unchanged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut version = create(&store, &id("a")).await;
    for number in 1..200 {
        version = commit(&store, &id("a"), version, number, &"x".repeat(1000)).await;
        let title = StateChange::Title(Some(number.to_string()));
        version = store.save_state(&id("a"), &Write::on(version), &title).await.unwrap();
    }
    let before = fs::read(folder.log(&id("a"))).unwrap();
    store.load(&id("a")).await.unwrap();
    assert!(fs::read(folder.log(&id("a"))).unwrap() == before);
}

#[tokio::test]
async fn compaction_interrupted_by_a_crash_leaves_the_old_log() {
    let grown = grown(500).await;
    fs::write(grown.folder.path().join("a.jsonl.new"), "half of a new log").unwrap();
    assert_eq!(grown.store.load(&id("a")).await.unwrap(), grown.stored);
    assert_eq!(grown.store.load(&id("a")).await.unwrap(), grown.stored);
    assert_eq!(grown.folder.names(), ["a.jsonl", "a.summary.json"]);
}

#[tokio::test]
async fn compacted_log_with_a_line_missing_is_damaged() {
    let grown = grown(500).await;
    grown.store.load(&id("a")).await.unwrap();
    let log = fs::read_to_string(grown.folder.log(&id("a"))).unwrap();
    let lines: Vec<&str> = log.split_inclusive('\n').collect();
    for missing in 1..lines.len() {
        if missing % 20 != 1 && missing + 1 != lines.len() {
            continue;
        }
        let rest: String =
            lines.iter().enumerate().filter(|(line, _)| *line != missing).map(|(_, line)| *line).collect();
        fs::write(grown.folder.log(&id("a")), rest).unwrap();
        let loaded = grown.store.load(&id("a")).await;
        assert!(matches!(loaded, Err(StoreError::Damaged { .. })), "without line {}", missing + 1);
    }
}

/// Writers that arrive while the log is being replaced must not write to the old log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_during_compactions_are_all_kept() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut version = create(&store, &id("a")).await;
    let loading = tokio::spawn({
        let store = folder.quick_store().await;
        async move {
            loop {
                store.load(&id("a")).await.unwrap();
            }
        }
    });
    let mut nodes = 0;
    for round in 0..1500_u64 {
        let write = Write::on(version);
        version = if round % 100 == 0 {
            nodes += 1;
            store.commit(&id("a"), &write, &says(nodes, "a node")).await.unwrap()
        } else {
            let title = StateChange::Title(Some(format!("{round} {}", "x".repeat(500))));
            store.save_state(&id("a"), &write, &title).await.unwrap()
        };
    }
    loading.abort();
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len() as u64), (version, nodes));
    let log = fs::read_to_string(folder.log(&id("a"))).unwrap();
    assert!(!log.lines().next().unwrap().ends_with("\"compactions\":0}}"), "no compaction happened");
}

/// The summary is out of date, as after a crash between the writing of the new log and that of its summary.
#[tokio::test]
async fn list_after_compaction_does_not_use_an_older_summary() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let id = id("a");
    let mut version = create(&store, &id).await;
    for round in 0..300 {
        let title = StateChange::Title(Some(format!("old {round} {}", "x".repeat(500))));
        version = store.save_state(&id, &Write::on(version), &title).await.unwrap();
    }
    let size = || fs::metadata(folder.log(&id)).unwrap().len();
    let old = size();
    // Prevent the store from saving new summaries.
    fs::create_dir(folder.path().join("a.summary.json.new")).unwrap();
    store.load(&id).await.unwrap();
    let compacted = size();
    assert!(compacted < old / 2, "{old} bytes became {compacted}");

    // Choose the length of the title so that the new log becomes as long as the old log.
    let title = |len: u64| StateChange::title("n".repeat(usize::try_from(len).unwrap()));
    version = store.save_state(&id, &Write::on(version), &title(1)).await.unwrap();
    let line = size() - compacted;
    let rest = old - size() - (line - 1);
    version = store.save_state(&id, &Write::on(version), &title(rest)).await.unwrap();
    assert_eq!(size(), old, "the old and the new log must be equally long");
    let summary = store.list(Page::default()).await.unwrap().remove(0);
    assert_eq!((summary.version, summary.title), (version, Some("n".repeat(usize::try_from(rest).unwrap()))));
}

#[cfg(unix)]
#[tokio::test]
async fn compaction_keeps_the_permissions_of_the_log() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

    let grown = grown(500).await;
    let log = grown.folder.log(&id("a"));
    let before = size(&grown);
    fs::set_permissions(&log, fs::Permissions::from_mode(0o640)).unwrap();
    let others = chown(&log, Some(65_533), Some(65_533)).is_ok();
    assert_eq!(grown.store.load(&id("a")).await.unwrap(), grown.stored);
    let metadata = fs::metadata(&log).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o640);
    if others {
        // The log is not rewritten, because the new file would belong to this user and the former owner could not read
        // it.
        assert_eq!((metadata.uid(), metadata.len()), (65_533, before));
    } else {
        assert!(metadata.len() < before / 2);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn compaction_of_a_log_behind_a_symbolic_link_keeps_the_link() {
    let grown = grown(500).await;
    let (log, target) = (grown.folder.log(&id("a")), grown.folder.path().join("elsewhere"));
    fs::rename(&log, &target).unwrap();
    std::os::unix::fs::symlink(&target, &log).unwrap();
    assert_eq!(grown.store.load(&id("a")).await.unwrap(), grown.stored);
    assert!(fs::symlink_metadata(&log).unwrap().is_symlink());
    commit(&grown.store, &id("a"), grown.stored.version, 5000, "after").await;
    assert!(fs::read_to_string(&target).unwrap().contains("after"));
}

/// Compaction keeps the lines that contain rows of the usage ledger. The labels and the end of the last run are copied
/// from the removed lines to the last line.
#[tokio::test]
async fn compaction_keeps_labels_usage_and_the_last_run() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let id = id("a");
    let mut version = create(&store, &id).await;
    let row = |input| UsageRow::new(RequestEnd::Answered, Usage::default().with_input(input));
    let mut rows = Vec::new();
    for round in 0..400_u64 {
        let write = Write::on(version);
        let name = format!("{round} {}", "x".repeat(500));
        let commit = says(round + 1, "a node");
        let with_nodes = round < 12 && round % 2 == 0;
        let commit = if with_nodes { commit } else { Commit::new(Some(node(11))) };
        version = match round % 4 {
            _ if round % 50 == 0 => {
                rows.extend([row(round), row(round + 1)]);
                store.commit(&id, &write, &commit.with_usage(rows[rows.len() - 2..].to_vec())).await
            }
            0 | 2 => store.commit(&id, &write, &commit.with_usage([]).with_run_end(cancelled(&name))).await,
            1 => store.save_state(&id, &write, &StateChange::Title(Some(name))).await,
            _ => {
                let labels = Labels::new([("round", round.to_string())]).unwrap();
                store.save_state(&id, &write, &StateChange::Labels(labels)).await
            }
        }
        .unwrap();
    }
    rows.reverse();
    let before = expected(&store, &id).await;
    assert!(before.last_run.is_some() && before.used.requests == 16 && before.nodes.len() == 6);
    let size = || fs::metadata(folder.log(&id)).unwrap().len();
    let outgrown = size();
    for _ in 0..2 {
        assert_eq!(store.load(&id).await.unwrap(), before);
        assert_eq!(store.usage(&id, Page::first(100)).await.unwrap(), rows);
        let summary = store.summary(&id).await.unwrap();
        assert_eq!(
            (summary.title, summary.labels),
            (before.state.title.clone(), before.state.labels.clone())
        );
        fs::remove_file(folder.summary(&id)).unwrap();
        assert!(size() < outgrown / 4, "{outgrown} bytes became {}", size());
    }
    // The end of a run is forgotten when the next turn is committed.
    let turn = says(13, "more").with_usage([]);
    store.commit(&id, &Write::on(version), &turn).await.unwrap();
    assert_eq!(store.load(&id).await.unwrap().last_run, None);
}

fn cancelled(text: &str) -> RunEnd {
    let unanswered = [omni_agent::message::Message::user(text)];
    serde_json::from_value(serde_json::json!({"outcome": "cancelled", "unanswered": unanswered})).unwrap()
}

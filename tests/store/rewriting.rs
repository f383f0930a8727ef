//! A load rewrites a log that consists mostly of records of turns that have ended.

use std::fs;

use omni_agent::{
    message::{Message, RequestEnd, Timestamp, Usage, UsageRow},
    run::{RunEnd, RunOutcome},
    store::{
        FileSystemStore, Listing, Page, Store, StoreError,
        custom::{Change, Commit, StateChange, Stored, StoredState, TurnRecord, Version, Write, WriteId},
    },
    subscription::EventId,
};

use crate::support::{Folder, commit, create, id, node, says};

fn row() -> UsageRow {
    UsageRow::new(RequestEnd::Failed, Usage::default().with_input(3)).with_at(Timestamp(5))
}

/// A record of 100 KiB, together with rows of the usage ledger in every second round.
fn recorded(round: u64) -> Commit {
    let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
    let message = Message::user(format!("pending {round} {}", "x".repeat(100 * 1024)));
    let record = TurnRecord::new(1, turn, "{}").with_head(node(1)).with_append(vec![message.into()]);
    let rows = if round.is_multiple_of(2) { vec![row()] } else { Vec::new() };
    Commit::new(Some(node(1))).with_usage(rows).with_turn(record)
}

fn ended() -> Commit {
    let end = RunEnd::new(RunOutcome::Cancelled).with_mark(EventId::new(1, 2));
    Commit::new(Some(node(1))).with_usage([]).with_run_end(end)
}

/// The writes of a conversation, each with the version that it produced.
struct Grown {
    first: (WriteId, Version),
    writes: Vec<(Write, Version)>,
}

/// Creates a conversation with a node, a title and many records of a turn in flight.
async fn in_flight(store: &dyn Store) -> Grown {
    let (write, state) = (WriteId::generate(), StoredState::default().with_system("Be brief."));
    let first = store.write(&id("a"), &Write::first().with_id(write), &Change::create(state)).await.unwrap();
    let mut grown = Grown { first: (write, first), writes: Vec::new() };
    for round in 0..22 {
        let write = Write::on(grown.writes.last().map_or(first, |(_, version)| *version));
        let written = match round {
            0 => store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await,
            7 => store.write(&id("a"), &write, &Change::State(StateChange::title("A talk"))).await,
            _ => store.write(&id("a"), &write, &Change::Commit(recorded(round))).await,
        };
        grown.writes.push((write, written.unwrap()));
    }
    grown
}

/// Creates a conversation whose log the next load rewrites, and returns the conversation.
pub(crate) async fn outgrown(folder: &Folder) -> Stored {
    grown(folder, &folder.quick_store().await).await.1
}

async fn grown(folder: &Folder, store: &FileSystemStore) -> (Grown, Stored) {
    let mut grown = in_flight(store).await;
    let write = Write::on(grown.writes.last().unwrap().1);
    grown.writes.push((write, store.write(&id("a"), &write, &Change::Commit(ended())).await.unwrap()));
    // A load of a locked log does not write anything.
    let held = fs::File::open(folder.log(&id("a"))).unwrap();
    held.lock().unwrap();
    let before = fs::read(folder.log(&id("a"))).unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    assert!(fs::read(folder.log(&id("a"))).unwrap() == before);
    (grown, stored)
}

fn size(folder: &Folder) -> u64 {
    fs::metadata(folder.log(&id("a"))).unwrap().len()
}

#[tokio::test]
async fn load_after_long_turns_drops_their_records_and_changes_nothing() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let (grown, expected) = grown(&folder, &store).await;
    let before = size(&folder);
    assert!(before > 2_000_000 && expected.used.requests == 10 && expected.mark == Some(EventId::new(1, 2)));
    fs::write(folder.path().join("a.jsonl.new"), "left by a crash").unwrap();
    for _ in 0..2 {
        assert_eq!(store.load(&id("a")).await.unwrap(), expected);
        assert!(size(&folder) < 20_000, "{before} bytes became {}", size(&folder));
        assert_eq!(folder.names(), ["a.jsonl"]);
    }
    let text = fs::read_to_string(folder.log(&id("a"))).unwrap();
    assert!(!text.contains("pending"), "the records are gone");
    assert_eq!(text.lines().count(), grown.writes.len() + 1, "each line stays");
    assert_eq!(store.usage(&id("a"), &Page::default()).await.unwrap(), vec![row(); 10]);
    let summary = store.list(&Listing::default()).await.unwrap().remove(0);
    assert_eq!((summary.version, summary.updated), (expected.version, expected.updated));
    assert_eq!((summary.title, summary.in_flight), (expected.state.title.clone(), false));

    // Repeated writes are known, and the conversation can be continued.
    for (write, version) in &grown.writes {
        assert_eq!(
            store.write(&id("a"), write, &Change::Commit(says(9, "never written"))).await.unwrap(),
            *version
        );
    }
    let created = store
        .write(&id("a"), &Write::first().with_id(grown.first.0), &Change::create(StoredState::default()))
        .await;
    assert_eq!(created.unwrap(), grown.first.1);
    let other =
        store.write(&id("a"), &Write::on(grown.first.1), &Change::Commit(says(9, "never written"))).await;
    assert!(matches!(other, Err(StoreError::Conflict { .. })), "{other:?}");
    commit(&store, &id("a"), expected.version, 2, "Go on").await;
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 2);
}

#[tokio::test]
async fn load_with_a_turn_in_flight_keeps_its_records() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    in_flight(&store).await;
    let before = fs::read(folder.log(&id("a"))).unwrap();
    assert!(store.load(&id("a")).await.unwrap().turn.is_some());
    assert!(fs::read(folder.log(&id("a"))).unwrap() == before);
}

#[tokio::test]
async fn load_of_a_log_that_is_mostly_nodes_leaves_it_unchanged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let (_, stored) = grown(&folder, &store).await;
    commit(&store, &id("a"), stored.version, 2, &"x".repeat(4_000_000)).await;
    let before = size(&folder);
    store.load(&id("a")).await.unwrap();
    assert_eq!(size(&folder), before);
}

/// Writers that arrive while the log is being replaced must not write to the old log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_while_loads_rewrite_the_log_are_all_kept() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut version = create(&store, &id("a")).await;
    version = commit(&store, &id("a"), version, 1, "a node").await;
    let loading = tokio::spawn({
        let store = folder.quick_store().await;
        async move {
            loop {
                store.load(&id("a")).await.unwrap();
            }
        }
    });
    for round in 0..100_u64 {
        let is_end = round % 20 == 19;
        let commit = if is_end { ended() } else { recorded(round) };
        version = store.write(&id("a"), &Write::on(version), &Change::Commit(commit)).await.unwrap();
        if is_end {
            // Gives the other task time to begin to rewrite the log.
            store.load(&id("a")).await.unwrap();
        }
    }
    assert!(!loading.is_finished(), "a load has failed");
    loading.abort();
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.version, stored.used.requests), (version, 50));
    assert!(size(&folder) < 4_000_000, "the log was not rewritten");
}

#[cfg(unix)]
#[tokio::test]
async fn rewriting_keeps_the_permissions_and_the_owner_of_the_log() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};

    let folder = Folder::new();
    let store = folder.quick_store().await;
    let (_, expected) = grown(&folder, &store).await;
    let (log, before) = (folder.log(&id("a")), size(&folder));
    fs::set_permissions(&log, fs::Permissions::from_mode(0o640)).unwrap();
    let others = chown(&log, Some(65_533), Some(65_533)).is_ok();
    assert_eq!(store.load(&id("a")).await.unwrap(), expected);
    let metadata = fs::metadata(&log).unwrap();
    assert_eq!(metadata.mode() & 0o777, 0o640);
    if !others {
        assert!(metadata.len() < before / 2);
        return;
    }
    // The new file would belong to this user, and the owner could not read it. So the log stays, and can't be erased.
    assert_eq!((metadata.uid(), metadata.len()), (65_533, before));
    refuses_to_erase(&store, &expected, "different owner").await;
}

async fn refuses_to_erase(store: &dyn Store, stored: &Stored, problem: &str) {
    let erased =
        serde_json::from_str::<omni_agent::tree::Erased>(r#"{"nodes": [1], "head": null, "next": 2}"#)
            .unwrap();
    match store.write(&id("a"), &Write::on(stored.version), &Change::Erase(erased)).await {
        Err(error @ StoreError::Failed { .. }) => {
            let text = error.to_string();
            assert!(text.contains("a.jsonl") && text.contains(problem), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(store.load(&id("a")).await.unwrap(), *stored);
}

#[cfg(unix)]
#[tokio::test]
async fn rewriting_of_a_log_behind_a_symbolic_link_keeps_the_link() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let (_, expected) = grown(&folder, &store).await;
    let (log, target) = (folder.log(&id("a")), folder.path().join("elsewhere"));
    fs::rename(&log, &target).unwrap();
    std::os::unix::fs::symlink(&target, &log).unwrap();
    let before = size(&folder);
    assert_eq!(store.load(&id("a")).await.unwrap(), expected);
    assert_eq!(size(&folder), before);
    assert!(fs::symlink_metadata(&log).unwrap().is_symlink());
    refuses_to_erase(&store, &expected, "symbolic link").await;
    commit(&store, &id("a"), expected.version, 2, "after").await;
    assert!(fs::read_to_string(&target).unwrap().contains("after"));
}

/// A new log must not be written through a link that another program has put in its place.
#[cfg(unix)]
#[tokio::test]
async fn rewriting_does_not_follow_a_link_in_place_of_the_new_log() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let (_, expected) = grown(&folder, &store).await;
    let other = folder.path().join("other");
    fs::write(&other, "of another program").unwrap();
    std::os::unix::fs::symlink(&other, folder.path().join("a.jsonl.new")).unwrap();
    assert_eq!(store.load(&id("a")).await.unwrap(), expected);
    assert!(size(&folder) < 20_000);
    assert_eq!(fs::read_to_string(other).unwrap(), "of another program");
}

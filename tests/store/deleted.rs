//! The file with the usage of deleted conversations.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write as _},
    path::PathBuf,
    time::Duration,
};

use omni_agent::{
    message::{RequestEnd, Timestamp, Usage, UsageRow},
    store::{
        FileSystemStore, Filter, Labels, Listing, Store, StoreError,
        custom::{Change, Commit, StateChange, StoredState, Version, Write},
    },
};

use crate::support::{Folder, child, child_folder, commit, create, id, line};

const NAME: &str = "@deleted-usage.jsonl";

fn file(folder: &Folder) -> PathBuf {
    folder.path().join(NAME)
}

fn labels(tenant: &str) -> Labels {
    Labels::new([("tenant", tenant)]).unwrap()
}

fn row(input: u64) -> UsageRow {
    let usage = Usage::default().with_input(input);
    UsageRow::new(RequestEnd::Answered, usage)
        .with_model("m".to_owned())
        .with_at(Timestamp(1_763_769_600_000))
}

/// Creates a conversation with this label and this usage.
async fn spent(store: &dyn Store, name: &str, tenant: &str, input: u64) -> Version {
    let state = StoredState::default().with_labels(labels(tenant));
    let version = store.write(&id(name), &Write::first(), &Change::create(state)).await.unwrap();
    let turn = Commit::new(None).with_usage([row(input)]);
    store.write(&id(name), &Write::on(version), &Change::Commit(turn)).await.unwrap()
}

async fn try_used(store: &dyn Store, filter: Filter) -> Result<u64, StoreError> {
    let sums = store.used(&filter, Timestamp(0)..Timestamp(u64::MAX)).await?;
    Ok(sums.iter().map(|sum| sum.usage.input).sum())
}

pub(crate) async fn used(store: &dyn Store) -> u64 {
    try_used(store, Filter::default()).await.unwrap()
}

#[tokio::test]
async fn delete_without_usage_writes_no_ledger() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    store.delete(&id("a"), None).await.unwrap();
    assert_eq!(folder.names(), [""; 0]);
}

#[cfg(unix)]
#[tokio::test]
async fn ledger_contains_no_id_and_is_readable_only_by_its_owner() {
    use std::os::unix::fs::PermissionsExt;

    let folder = Folder::new();
    let store = folder.store().await;
    spent(&store, "the-id", "acme", 7).await;
    store.delete(&id("the-id"), None).await.unwrap();
    assert_eq!(folder.names(), [NAME]);
    assert!(!fs::read_to_string(file(&folder)).unwrap().contains("the-id"));
    assert_eq!(fs::metadata(file(&folder)).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(store.list(&Listing::default()).await.unwrap(), []);
}

/// After a crash between the line in the ledger and the removal of the log, the conversation still exists.
#[tokio::test]
async fn delete_repeated_after_a_crash_counts_once() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = spent(&store, "a", "acme", 7).await;
    let log = fs::read(folder.log(&id("a"))).unwrap();
    store.delete(&id("a"), None).await.unwrap();
    assert_eq!(used(&store).await, 7);
    // Restore the log, as a crash would leave it.
    fs::write(folder.log(&id("a")), log).unwrap();
    assert_eq!(used(&store).await, 7, "it is not counted twice");
    // The labels may change, too. Then only the new ones count.
    let change = StateChange::Labels(labels("other"));
    let version = store.write(&id("a"), &Write::on(version), &Change::State(change)).await.unwrap();
    assert_eq!(try_used(&store, labels("acme").into()).await.unwrap(), 0);
    assert_eq!(try_used(&store, labels("other").into()).await.unwrap(), 7);

    // The conversation may even get another turn before it is deleted again.
    let turn = Commit::new(None).with_usage([row(100)]);
    store.write(&id("a"), &Write::on(version), &Change::Commit(turn)).await.unwrap();
    assert_eq!(used(&store).await, 107);
    for _ in 0..2 {
        store.delete(&id("a"), None).await.unwrap();
        assert_eq!(used(&store).await, 107);
    }
    // A later conversation with the same id has its own usage, which is counted in addition.
    spent(&store, "a", "acme", 1000).await;
    assert_eq!(used(&store).await, 1107);
    store.delete(&id("a"), None).await.unwrap();
    assert_eq!(used(&store).await, 1107);
}

#[tokio::test]
async fn ledger_cut_at_any_byte_drops_only_the_last_line() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for (name, input) in [("a", 1), ("b", 10)] {
        spent(&store, name, "acme", input).await;
        store.delete(&id(name), None).await.unwrap();
    }
    let ledger = fs::read(file(&folder)).unwrap();
    let ends: Vec<_> = (1..=ledger.len()).filter(|end| ledger[end - 1] == b'\n').collect();
    assert_eq!(ends.len(), 2, "one line per conversation");
    for cut in 0..ledger.len() {
        fs::write(file(&folder), &ledger[..cut]).unwrap();
        let expected = u64::from(cut >= ends[0]) + if cut >= ends[1] { 10 } else { 0 };
        assert_eq!(used(&store).await, expected, "cut at byte {cut}");
        assert_eq!(fs::read(file(&folder)).unwrap(), &ledger[..cut], "reads change nothing");
        if cut % 7 == 0 || ends.contains(&cut) {
            spent(&store, "c", "acme", 100).await;
            store.delete(&id("c"), None).await.unwrap();
            assert_eq!(used(&store).await, expected + 100, "cut at byte {cut}");
        }
    }
}

/// The number of deleted conversations after which their lines are merged is lower.
const MANY: u64 = 600;

async fn spend_and_delete(store: &FileSystemStore, times: u64) {
    for _ in 0..times {
        spent(store, "a", "acme", 1).await;
        store.delete(&id("a"), None).await.unwrap();
    }
}

#[tokio::test]
async fn ledger_of_many_deleted_conversations_stays_small() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    spent(&store, "b", "other", 10_000).await;
    store.delete(&id("b"), None).await.unwrap();
    spend_and_delete(&store, 2 * MANY).await;
    assert!(fs::metadata(file(&folder)).unwrap().len() < 70 * 1024);
    assert_eq!(folder.names(), [NAME]);
    assert_eq!(try_used(&store, labels("acme").into()).await.unwrap(), 2 * MANY);
    assert_eq!(try_used(&store, labels("other").into()).await.unwrap(), 10_000);
    let hour = Timestamp(1_763_769_600_000);
    let sums = store.used(&Filter::default(), hour..Timestamp(hour.0 + 1)).await.unwrap();
    assert_eq!(sums.iter().map(|sum| sum.requests).collect::<Vec<_>>(), [2 * MANY + 1]);
    assert!(store.used(&Filter::default(), Timestamp(0)..hour).await.unwrap().is_empty());
}

/// After a crash between the line in the ledger and the removal of the log, the line must not be merged.
#[tokio::test]
async fn ledger_merged_while_a_crash_has_left_a_log_counts_it_once() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    spent(&store, "b", "acme", 10_000).await;
    let log = fs::read(folder.log(&id("b"))).unwrap();
    store.delete(&id("b"), None).await.unwrap();
    fs::write(folder.log(&id("b")), log).unwrap();
    fs::write(folder.path().join("@deleted-usage.jsonl.new"), "a merge that was interrupted").unwrap();
    spend_and_delete(&store, MANY).await;
    assert!(fs::metadata(file(&folder)).unwrap().len() < 70 * 1024);
    for _ in 0..2 {
        assert_eq!(used(&store).await, 10_000 + MANY);
        store.delete(&id("b"), None).await.unwrap();
    }
    spend_and_delete(&store, MANY).await;
    assert_eq!(used(&store).await, 10_000 + 2 * MANY);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledger_merged_while_it_is_read_counts_each_conversation_once() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for number in 0..MANY {
        spent(&store, &format!("n{number}"), "acme", 1).await;
    }
    let deleting = tokio::spawn({
        let store = store.clone();
        async move {
            for number in 0..MANY {
                store.delete(&id(&format!("n{number}")), None).await.unwrap();
            }
        }
    });
    while !deleting.is_finished() {
        assert_eq!(used(&store).await, MANY);
    }
    deleting.await.unwrap();
    assert_eq!(used(&store).await, MANY);
}

/// Returns the names of the files that were set aside.
fn set_aside(folder: &Folder) -> Vec<String> {
    folder.names().into_iter().filter(|name| name != NAME && name.starts_with('@')).collect()
}

#[tokio::test]
async fn ledger_with_a_flipped_bit_is_reported_and_set_aside_by_the_next_delete() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for name in ["a", "b", "c"] {
        spent(&store, name, "acme", 1).await;
        store.delete(&id(name), None).await.unwrap();
    }
    let sound = fs::read(file(&folder)).unwrap();
    let ends: Vec<_> = (1..=sound.len()).filter(|end| sound[end - 1] == b'\n').collect();
    // Every bit of the frame, and some bits of the record.
    for at in (0..sound.len()).filter(|at| at % 23 == 0 || ends.iter().any(|end| end.abs_diff(*at) < 45)) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1 << (at % 8);
        fs::write(file(&folder), &damaged).unwrap();
        let line = ends.partition_point(|end| *end <= at) + 1;
        match try_used(&store, Filter::default()).await {
            Err(StoreError::Damaged { place, .. }) => {
                assert!(place.ends_with(&format!("{NAME}, line {line}")), "byte {at}: {place}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(set_aside(&folder), [""; 0], "reads change nothing");
        spent(&store, "d", "acme", 10).await;
        store.delete(&id("d"), None).await.unwrap();
        assert!(store.summary(&id("d")).await.is_err());
        let aside = set_aside(&folder).remove(0);
        assert_eq!(fs::read(folder.path().join(&aside)).unwrap(), damaged);
        assert_eq!(used(&store).await, 10, "the file was begun again");
        assert_eq!(store.list(&Listing::default()).await.unwrap(), [], "the file is not a conversation");
        fs::remove_file(folder.path().join(aside)).unwrap();
    }
    for number in 1..4 {
        fs::write(file(&folder), "not a ledger\n").unwrap();
        spent(&store, "d", "acme", 10).await;
        store.delete(&id("d"), None).await.unwrap();
        assert_eq!(set_aside(&folder).len(), number, "no file replaces another");
    }
}

#[tokio::test]
async fn ledger_of_another_format_version_is_refused_and_stays() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let known = r#"{"format_version":11,"birth":[7,"AAAAAAAAAAAAAAAAAAAAAA"],"labels":{},"used":[]}"#;
    let earlier = r#"{"format":"omni-agent usage of deleted conversations","format_version":1,"merged":0}"#;
    for (record, version) in [(known, 11), (earlier, 1), (r#"{"format_version":12,"more":true}"#, 12)] {
        fs::write(file(&folder), line(record)).unwrap();
        let _ = fs::remove_file(folder.log(&id("b")));
        spent(&store, "b", "acme", 10).await;
        for refused in
            [store.delete(&id("b"), None).await, try_used(&store, Filter::default()).await.map(drop)]
        {
            assert!(
                matches!(&refused, Err(StoreError::UnknownFormat { found, known: 10, .. }) if *found == version),
                "{refused:?}"
            );
        }
        assert!(store.summary(&id("b")).await.is_ok());
        assert_eq!(fs::read_to_string(file(&folder)).unwrap(), line(record));
    }
}

#[tokio::test]
async fn delete_of_a_damaged_log_succeeds_without_its_usage() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    spent(&store, "a", "acme", 1).await;
    spent(&store, "b", "other", 10).await;
    let mut log = fs::read(folder.log(&id("a"))).unwrap();
    // A list checks only the last line, so it still finds the label.
    log[10] ^= 1;
    fs::write(folder.log(&id("a")), log).unwrap();
    let damaged = try_used(&store, Filter::default()).await;
    assert!(
        matches!(&damaged, Err(StoreError::Damaged { place, .. }) if place.contains("a.jsonl")),
        "{damaged:?}"
    );
    assert_eq!(try_used(&store, labels("other").into()).await.unwrap(), 10, "the log has another label");
    store.delete(&id("a"), None).await.unwrap();
    assert_eq!(used(&store).await, 10);
}

/// The log may have the labels.
#[tokio::test]
async fn used_of_a_log_whose_labels_are_damaged_fails() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    spent(&store, "a", "acme", 1).await;
    spent(&store, "b", "other", 10).await;
    let log = fs::read_to_string(folder.log(&id("a"))).unwrap();
    fs::write(folder.log(&id("a")), log.replace("\"entry\"", "\"entrx\"")).unwrap();
    for tenant in ["acme", "other"] {
        let damaged = try_used(&store, labels(tenant).into()).await;
        assert!(matches!(&damaged, Err(StoreError::Damaged { .. })), "{tenant}: {damaged:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn delete_while_the_ledger_is_locked_is_busy_after_the_wait() {
    let folder = Folder::new();
    let store =
        FileSystemStore::builder(folder.path()).lock_wait(Duration::from_secs(3)).open().await.unwrap();
    for name in ["a", "b"] {
        spent(&store, name, "acme", 1).await;
    }
    store.delete(&id("a"), None).await.unwrap();
    let other = File::open(file(&folder)).unwrap();
    other.lock().unwrap();
    match store.delete(&id("b"), None).await {
        Err(StoreError::Busy { waited, place }) => {
            assert_eq!(waited, Duration::from_secs(3));
            assert!(place.ends_with(NAME), "{place}");
        }
        other => panic!("{other:?}"),
    }
    assert!(store.summary(&id("b")).await.is_ok());
    assert_eq!(used(&store).await, 2, "reads don't wait");
    other.unlock().unwrap();
    store.delete(&id("b"), None).await.unwrap();
    assert_eq!(used(&store).await, 2);
}

const EACH: u64 = 60;

/// Child process: deletes conversations while another process also deletes conversations.
#[tokio::test]
async fn child_deletes_among_others() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(folder).await.unwrap();
    println!("\nready");
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    delete_all(&store, "child").await;
}

async fn delete_all(store: &FileSystemStore, who: &str) {
    for number in 0..EACH {
        store.delete(&id(&format!("{who}-{number}")), None).await.unwrap();
    }
}

#[tokio::test]
async fn deletes_of_two_processes_keep_the_usage_of_all() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for number in 0..EACH {
        for who in ["parent", "child"] {
            spent(&store, &format!("{who}-{number}"), who, number).await;
        }
    }
    let expected = used(&store).await;
    let mut child = child("deleted::child_deletes_among_others", folder.path()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "ready"));
    child.stdin.take().unwrap().write_all(b"!").unwrap();
    let counting = async {
        for _ in 0..20 {
            assert_eq!(used(&store).await, expected, "each is counted once while it is deleted");
        }
    };
    tokio::join!(delete_all(&store, "parent"), counting);
    assert!(child.wait().unwrap().success());
    assert_eq!(used(&store).await, expected);
    assert_eq!(folder.names(), [NAME]);
}

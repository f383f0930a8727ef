//! How many bytes a list reads from a log.
#![cfg(target_os = "linux")]

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use omni_agent::store::{
    FileSystemStore, Listing, Store, Summary,
    custom::{Change, StateChange, Write},
};

use crate::support::{Folder, child, child_folder, commit, create, id};

const MIB: u64 = 1024 * 1024;

/// Creates a log of 24 MiB whose last line contains a long title or is short.
async fn long_log(folder: &Folder, title: usize) {
    let store = folder.quick_store().await;
    let mut version = create(&store, &id("long")).await;
    for number in 1..=24 {
        version = commit(&store, &id("long"), version, number, &"x".repeat(1 << 20)).await;
    }
    let title = StateChange::title("t".repeat(title));
    store.write(&id("long"), &Write::on(version), &Change::State(title)).await.unwrap();
}

/// Returns a number that a file in `/proc/self` reports about this process.
fn counted(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(Path::new("/proc/self").join(file)).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap()
}

/// Returns the only listed conversation, and the number of bytes that the list read.
async fn list(store: &FileSystemStore) -> (Summary, u64) {
    let before = counted("io", "rchar");
    let mut listed = store.list(&Listing::default()).await.unwrap();
    (listed.remove(0), counted("io", "rchar") - before)
}

/// Child process: lists in a process in which nothing else reads files.
#[tokio::test]
async fn child_lists() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(folder).await.unwrap();
    let memory = counted("status", "VmHWM");
    let (listed, read) = list(&store).await;
    let memory = counted("status", "VmHWM") - memory;
    assert!(memory < 16 * 1024, "the list took {memory} KiB");
    assert_eq!((listed.version, listed.damage), (store.load(&id("long")).await.unwrap().version, None));
    let most = if listed.title.is_some_and(|title| title.len() < 10_000) { 64 * 1024 } else { MIB };
    assert!(read < most, "the list read {read} bytes");
}

fn child_succeeds(folder: &Folder) {
    let child = child("listing::child_lists", folder.path()).output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[tokio::test]
async fn list_with_a_long_log_reads_its_end() {
    for title in [10, 20_000] {
        let folder = Folder::new();
        long_log(&folder, title).await;
        child_succeeds(&folder);
        // The last line is incomplete.
        let log = OpenOptions::new().write(true).open(folder.log(&id("long"))).unwrap();
        let len = log.metadata().unwrap().len();
        log.write_all_at(b"{\"sum\":\"00", len).unwrap();
        child_succeeds(&folder);
    }
}

#[tokio::test]
async fn list_after_a_repair_shows_no_damage() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    create(&store, &id("a")).await;
    let sound = fs::read(folder.log(&id("a"))).unwrap();
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() = b'#';
    fs::write(folder.log(&id("a")), damaged).unwrap();
    assert!(list(&store).await.0.damage.is_some());
    fs::write(folder.log(&id("a")), sound).unwrap();
    assert_eq!(list(&store).await.0.damage, None);
}

//! How many bytes a list reads from logs without a usable summary.
#![cfg(target_os = "linux")]

use std::{
    fs::{self, File, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
    time::{Duration, SystemTime},
};

use omni_agent::store::{FileSystemStore, Page, Store, Summary};

use crate::support::{Folder, child, child_folder, commit, create, id};

const MIB: u64 = 1024 * 1024;

/// Creates a log of 24 MiB that has no summary and was last modified a minute ago.
async fn long_log(folder: &Folder) {
    let store = folder.quick_store().await;
    let mut version = create(&store, &id("long")).await;
    for number in 1..=24 {
        version = commit(&store, &id("long"), version, number, &"x".repeat(1 << 20)).await;
    }
    fs::remove_file(folder.summary(&id("long"))).unwrap();
    settle(folder);
}

fn settle(folder: &Folder) {
    let log = OpenOptions::new().append(true).open(folder.log(&id("long"))).unwrap();
    log.set_modified(SystemTime::now() - Duration::from_mins(1)).unwrap();
}

/// Overwrites the byte of the log that is `from_end` bytes before its end.
fn damage(folder: &Folder, from_end: u64) {
    let log = OpenOptions::new().write(true).open(folder.log(&id("long"))).unwrap();
    log.write_all_at(b"#", log.metadata().unwrap().len() - from_end).unwrap();
    drop(log);
    settle(folder);
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
    let mut listed = store.list(Page::default()).await.unwrap();
    (listed.remove(0), counted("io", "rchar") - before)
}

/// Child process: lists twice in a process in which nothing else reads files.
#[tokio::test]
async fn child_lists_twice() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(folder).await.unwrap();
    let memory = counted("status", "VmHWM");
    let (first, read) = list(&store).await;
    // The list reads the log once. Before that, it reads the last line of the log in pieces of growing size.
    assert!(read < 30 * MIB, "the first list read {read} bytes");
    let memory = counted("status", "VmHWM") - memory;
    assert!(memory < 16 * 1024, "the first list took {memory} KiB");
    let (second, read) = list(&store).await;
    assert!(read < MIB / 8, "the second list read {read} bytes");
    assert_eq!(second, first);
    assert_eq!(store.summary(&id("long")).await.unwrap(), first);
}

fn is_listed_with_one_read(folder: &Folder) {
    let child = child("listing::child_lists_twice", folder.path()).output().unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}

#[tokio::test]
async fn list_with_a_log_damaged_in_the_middle_reads_it_once() {
    let folder = Folder::new();
    long_log(&folder).await;
    damage(&folder, 2 * MIB);
    is_listed_with_one_read(&folder);
}

#[tokio::test]
async fn list_with_a_log_damaged_at_its_end_reads_it_once() {
    let folder = Folder::new();
    long_log(&folder).await;
    damage(&folder, 100);
    is_listed_with_one_read(&folder);
}

#[tokio::test]
async fn list_with_a_summary_that_cannot_be_saved_reads_the_log_once() {
    let folder = Folder::new();
    long_log(&folder).await;
    fs::create_dir(folder.path().join("long.summary.json.new")).unwrap();
    is_listed_with_one_read(&folder);
}

#[tokio::test]
async fn list_after_a_repair_shows_no_damage() {
    let folder = Folder::new();
    long_log(&folder).await;
    let sound = fs::read(folder.log(&id("long"))).unwrap();
    damage(&folder, 2 * MIB);
    let store = folder.quick_store().await;
    assert!(list(&store).await.0.damage.is_some());
    // The repaired log has the same length and a later modification time.
    fs::write(folder.log(&id("long")), sound).unwrap();
    assert_eq!(list(&store).await.0.damage, None);

    damage(&folder, 2 * MIB);
    fs::remove_file(folder.summary(&id("long"))).unwrap();
    assert!(list(&store).await.0.damage.is_some());
    fs::remove_file(folder.log(&id("long"))).unwrap();
    assert_eq!(store.list(Page::default()).await.unwrap(), []);
    File::create(folder.log(&id("long"))).unwrap();
    assert_eq!(store.list(Page::default()).await.unwrap(), [], "nothing of the removed log is remembered");
}

//! An operation whose process ends early. The tests repeat the operation, and let the process end before, or in the
//! middle of, each change that the operation makes to the folder.
//!
//! A preloaded library replaces the functions of the C library that change files. It counts their calls, and ends the
//! process at one of them.
#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use omni_agent::{
    store::{
        FileSystemStore, Store,
        custom::{Change, Lease, Stored, Version, Write, WriteId},
    },
    subscription::EventId,
};

use crate::{
    deleted, erasing, rewriting,
    skip::skip,
    support::{Folder, child, child_folder, create, id},
};

const LIBRARY: &str = r#"
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/types.h>
    #include <unistd.h>

    static long left = -1;

    static int is_inside(const char *path) {
        const char *folder = getenv("OMNI_CHILD");
        return folder && strncmp(path, folder, strlen(folder)) == 0;
    }

    static int is_open_inside(int file) {
        char link[64], path[4096];
        snprintf(link, sizeof link, "/proc/self/fd/%d", file);
        ssize_t len = readlink(link, path, sizeof path - 1);
        if (len < 0) return 0;
        path[len] = 0;
        return is_inside(path);
    }

    /* Returns whether the next step is the last one. */
    static int is_last(void) {
        if (left < 0) left = atol(getenv("OMNI_STEPS"));
        return left == 1;
    }

    static void step(void) {
        if (is_last()) _exit(42);
        left--;
    }

    #define REAL(name) \
        static __typeof__(&name) real; \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

    ssize_t write(int file, const void *bytes, size_t len) {
        REAL(write);
        if (is_open_inside(file)) {
            step();
            if (is_last()) real(file, bytes, len / 2);
            step();
        }
        return real(file, bytes, len);
    }

    ssize_t copy_file_range(int from, off64_t *from_at, int to, off64_t *to_at, size_t len, unsigned flags) {
        REAL(copy_file_range);
        if (is_open_inside(to)) step();
        return real(from, from_at, to, to_at, len, flags);
    }

    #define OF_FILE(name) int name(int file) { \
        REAL(name); \
        if (is_open_inside(file)) step(); \
        return real(file); \
    }
    OF_FILE(fsync)
    OF_FILE(fdatasync)

    int ftruncate64(int file, off64_t len) {
        REAL(ftruncate64);
        if (is_open_inside(file)) step();
        return real(file, len);
    }

    int rename(const char *from, const char *to) {
        REAL(rename);
        if (is_inside(to)) step();
        return real(from, to);
    }

    int unlink(const char *path) {
        REAL(unlink);
        if (is_inside(path)) step();
        return real(path);
    }
"#;

/// Returns the path of the compiled library. If no C compiler is installed, reports that the test is skipped, and
/// returns `None`.
fn library(folder: &Path) -> Option<PathBuf> {
    let (source, library) = (folder.join("steps.c"), folder.join("steps.so"));
    fs::write(&source, LIBRARY).unwrap();
    let Ok(made) = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status()
    else {
        skip("a C compiler is not installed");
        return None;
    };
    assert!(made.success(), "the library can't be compiled");
    Some(library)
}

/// For each step of the child's operation, runs the child's test on a new copy of the folder, ends the child at this
/// step, and calls `check` with the folder. At last, does the same without ending the child early. Returns the number
/// of steps, or `u64::MAX` if the test is skipped.
async fn at_each_step(test: &str, from: &Folder, check: impl AsyncFn(&Folder)) -> u64 {
    let tools = Folder::new();
    let Some(library) = library(tools.path()) else { return u64::MAX };
    for steps in 1.. {
        let folder = Folder::new();
        for name in from.names() {
            fs::copy(from.path().join(&name), folder.path().join(&name)).unwrap();
        }
        let mut child = child(test, folder.path());
        let output = child.env("LD_PRELOAD", &library).env("OMNI_STEPS", steps.to_string()).output().unwrap();
        match output.status.code() {
            Some(42) => check(&folder).await,
            Some(0) if steps == 1 => {
                skip("LD_PRELOAD has no effect on the program of the tests");
                return u64::MAX;
            }
            Some(0) => {
                check(&folder).await;
                return steps - 1;
            }
            _ => panic!("step {steps}: {}", String::from_utf8_lossy(&output.stderr)),
        }
    }
    unreachable!("the child has a limited number of steps")
}

/// Returns the write of the child, so that the parent can repeat it.
fn write(base: Version) -> Write {
    let id = serde_json::from_str::<WriteId>("\"AAAAAAAAAAAAAAAAAAAAAA\"").unwrap();
    Write::on(base).with_id(id)
}

async fn erase(store: &dyn Store, stored: &Stored) -> Version {
    store
        .write(&id("a"), &write(stored.version), &Change::Erase(erasing::without_secret(stored)))
        .await
        .unwrap()
}

#[tokio::test]
async fn child_erases_messages() {
    let Some(folder) = child_folder() else { return };
    let store = FileSystemStore::open(folder).await.unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    erase(&store, &stored).await;
}

#[tokio::test]
async fn erase_interrupted_at_any_step_is_done_or_not_and_is_repeated() {
    let from = Folder::new();
    let store = from.quick_store().await;
    erasing::conversation(&store).await;
    let before = store.load(&id("a")).await.unwrap();
    let ledger = erasing::ledger(&store).await;
    let mut after = before.clone();
    after.erase(&erasing::without_secret(&before));
    let steps = at_each_step("steps::child_erases_messages", &from, async |folder| {
        let store = folder.quick_store().await;
        let listed = store.summary(&id("a")).await.unwrap();
        let stored = store.load(&id("a")).await.unwrap();
        if stored.version == before.version {
            assert_eq!(stored, before);
        } else {
            let mut expected = after.clone();
            (expected.version, expected.updated) = (before.version.next(), stored.updated);
            assert_eq!(stored, expected);
            assert_eq!(erasing::found(folder), [""; 0]);
        }
        assert_eq!((listed.version, &listed.title), (stored.version, &before.state.title));
        assert_eq!(erasing::ledger(&store).await, ledger);

        assert_eq!(erase(&store, &before).await, before.version.next());
        assert_eq!(erasing::found(folder), [""; 0]);
        let stored = store.load(&id("a")).await.unwrap();
        assert_eq!((stored.nodes, stored.next), (after.nodes.clone(), after.next));
        assert_eq!(erasing::ledger(&store).await, ledger);
    });
    assert!(steps.await >= 6);
}

#[tokio::test]
async fn child_deletes_a_conversation() {
    let Some(folder) = child_folder() else { return };
    let store = FileSystemStore::open(folder).await.unwrap();
    store.delete(&id("a"), None).await.unwrap();
}

#[tokio::test]
async fn delete_interrupted_at_any_step_counts_the_usage_once() {
    let from = Folder::new();
    let store = from.quick_store().await;
    erasing::conversation(&store).await;
    let used = deleted::used(&store).await;
    fs::write(from.path().join("a.jsonl.new"), "left by a crash").unwrap();
    let steps = at_each_step("steps::child_deletes_a_conversation", &from, async |folder| {
        let is_there = |name| folder.path().join(name).exists();
        assert!(is_there("a.jsonl") || !is_there("a.jsonl.new"), "the log is removed last");
        let store = folder.quick_store().await;
        assert_eq!(deleted::used(&store).await, used);
        for _ in 0..2 {
            store.delete(&id("a"), None).await.unwrap();
            assert_eq!(deleted::used(&store).await, used);
        }
        assert_eq!(folder.names(), ["@deleted-usage.jsonl"]);
    });
    assert!(steps.await >= 6);
}

/// An earlier delete may have removed the log and not the new log, or may have failed to sync the folder.
#[tokio::test]
async fn delete_without_a_log_syncs_the_folder_and_removes_the_new_log() {
    let from = Folder::new();
    fs::write(from.path().join("a.jsonl.new"), "left by a crash").unwrap();
    let steps = at_each_step("steps::child_deletes_a_conversation", &from, async |folder| {
        folder.quick_store().await.delete(&id("a"), None).await.unwrap();
        assert_eq!(folder.names(), [""; 0]);
    });
    // The folder is synced, both files are removed, and the folder is synced.
    assert!(steps.await >= 4);
}

#[tokio::test]
async fn child_records_the_last_event() {
    let Some(folder) = child_folder() else { return };
    let store = FileSystemStore::open(folder).await.unwrap();
    store.release(&id("a"), &Lease::unlimited(), Some(EventId::new(7, 1))).await.unwrap();
}

/// Without the sync, a power failure during the next write could leave an incomplete line in the middle of the log.
#[tokio::test]
async fn mark_is_synced() {
    let from = Folder::new();
    let version = create(&from.quick_store().await, &id("a")).await;
    let steps = at_each_step("steps::child_records_the_last_event", &from, async |folder| {
        assert_eq!(folder.quick_store().await.load(&id("a")).await.unwrap().version, version);
    });
    // A write has two steps, before and in the middle of it, and the sync has one.
    assert!(steps.await >= 3);
}

#[tokio::test]
async fn child_loads_an_outgrown_log() {
    let Some(folder) = child_folder() else { return };
    let store = FileSystemStore::open(folder).await.unwrap();
    store.load(&id("a")).await.unwrap();
}

#[tokio::test]
async fn rewriting_interrupted_at_any_step_changes_nothing_and_is_repeated() {
    let from = Folder::new();
    let grown = rewriting::outgrown(&from).await;
    let size = |folder: &Folder| fs::metadata(folder.log(&id("a"))).unwrap().len();
    let before = size(&from);
    let steps = at_each_step("steps::child_loads_an_outgrown_log", &from, async |folder| {
        let store = folder.quick_store().await;
        assert_eq!(store.summary(&id("a")).await.unwrap().version, grown.version);
        for _ in 0..2 {
            assert_eq!(store.load(&id("a")).await.unwrap(), grown);
            assert!(size(folder) < before / 2, "the load repeats the rewriting");
        }
        assert_eq!(folder.names(), ["a.jsonl"]);
    });
    assert!(steps.await >= 5);
}

//! Faults of the file system: no space is left, a permission is missing, or a folder is missing.

use std::{fs, process::Command};

use omni_agent::store::{
    FileSystemStore, Listing, Store, StoreError,
    custom::{Change, StateChange, TitleBy, Write},
};

use crate::{
    skip::skip,
    support::{Folder, child, child_folder, commit, create, id, says},
};

/// Child process: writes until the disk is full, and continues after space was freed.
#[cfg(unix)]
#[tokio::test]
async fn child_writes_until_the_disk_is_full() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(&folder).await.unwrap();
    let log = folder.join("a.jsonl");
    let mut version = create(&store, &id("a")).await;
    let mut number = 1;
    version = commit(&store, &id("a"), version, number, "fits").await;
    // Each commit is longer than the space that remains at the end. A part of the last commit is therefore written
    // before the error.
    let text = "x".repeat(40_000);
    let (write, error) = loop {
        let write = Write::on(version);
        match store.write(&id("a"), &write, &Change::Commit(says(number + 1, &text))).await {
            Ok(next) => (version, number) = (next, number + 1),
            Err(error) => break (write, error),
        }
    };
    assert!(matches!(&error, StoreError::Full { place, .. } if place.ends_with("a.jsonl")), "{error:?}");
    assert!(error.to_string().contains("free some"), "{error}");
    assert!(error.is_transient());
    assert!(fs::read(&log).unwrap().ends_with(b"\n"), "the partial write was not removed");
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len() as u64), (version, number), "earlier commits were lost");

    // A new conversation does not fit either, and its creation leaves no file behind.
    let state = omni_agent::store::custom::StoredState::default().with_system("x".repeat(200_000));
    let created = store
        .write(
            &id("b"),
            &Write::first().with_id(omni_agent::store::custom::WriteId::generate()),
            &Change::create(state),
        )
        .await;
    assert!(matches!(created, Err(StoreError::Full { .. })), "{created:?}");
    assert!(store.summary(&id("b")).await.is_err());
    assert!(!folder.join("b.jsonl").exists());

    // A small commit fits, either immediately or after space was freed.
    let next = store.write(&id("a"), &write, &Change::Commit(says(number + 1, "short"))).await;
    let next = match next {
        Err(StoreError::Full { .. }) => {
            fs::remove_file(folder.join("ballast")).unwrap();
            store.write(&id("a"), &write, &Change::Commit(says(number + 1, "short"))).await.unwrap()
        }
        next => next.unwrap(),
    };
    assert_eq!(next, version.next());
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len() as u64, number + 1);
    println!("\nall checks passed");
}

fn sees_all(mut command: Command) {
    let text = succeeds(&mut command);
    assert!(text.contains("all checks passed"), "{text}");
}

/// Runs the command, asserts that it succeeds, and returns its output.
fn succeeds(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

/// Returns a shell that executes `script` and then `child`.
fn after(script: &str, child: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &format!("{script} && exec \"$0\" \"$@\"")])
        .arg(child.get_program())
        .args(child.get_args());
    for (key, value) in child.get_envs() {
        shell.env(key, value.unwrap());
    }
    shell
}

#[cfg(unix)]
#[tokio::test]
async fn write_beyond_a_file_size_limit_is_full_and_leaves_the_log_intact() {
    let folder = Folder::new();
    let child = child("faults::child_writes_until_the_disk_is_full", folder.path());
    // The limit is 100 blocks of 512 bytes or of 1 KiB, depending on the shell. Without the trap, the signal for
    // exceeding the limit would end the child.
    sees_all(after("trap '' XFSZ && ulimit -f 100", &child));
}

/// Returns whether the current user may mount file systems in a separate namespace.
#[allow(clippy::print_stdout, reason = "a skipped test prints the reason")]
fn can_mount() -> bool {
    let tried = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/mnt"]).output();
    let can = tried.is_ok_and(|output| output.status.success());
    if !can {
        println!("skipped: mounting needs `unshare` and user namespaces");
    }
    can
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn write_to_a_full_disk_is_full_and_leaves_the_log_intact() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let child = child("faults::child_writes_until_the_disk_is_full", folder.path());
    let script = "mount -t tmpfs -o size=256k none \"$OMNI_CHILD\" && head -c 65536 /dev/zero > \"$OMNI_CHILD/ballast\"";
    let shell = after(script, &child);
    let mut unshared = Command::new("unshare");
    unshared.arg("-rm").arg(shell.get_program()).args(shell.get_args());
    unshared.env("OMNI_CHILD", folder.path());
    sees_all(unshared);
}

/// Child process: opens a read-only folder.
#[tokio::test]
async fn child_finds_a_read_only_folder() {
    let Some(folder) = child_folder() else {
        return;
    };
    let store = FileSystemStore::open(&folder).await.unwrap();
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!(stored.nodes.len(), 1, "reading works");
    assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1);
    let write = Write::on(stored.version);
    let refused = [
        store.write(&id("a"), &write, &Change::Commit(says(2, "more"))).await.map(drop),
        store
            .write(&id("a"), &write, &Change::State(StateChange::Title { title: None, by: TitleBy::Derived }))
            .await
            .map(drop),
        store
            .write(&id("b"), &Write::first().with_id(write.id), &Change::create(stored.state.clone()))
            .await
            .map(drop),
        store.delete(&id("a"), None).await,
    ];
    for refused in refused {
        match refused {
            Err(error @ StoreError::Denied { .. }) => {
                assert!(error.to_string().contains("mode"), "{error}");
                assert!(error.to_string().contains("(os error "), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    println!("\nall checks passed");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn write_to_a_read_only_folder_is_denied_and_reading_works() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let store = folder.store().await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let child = child("faults::child_finds_a_read_only_folder", folder.path());
    let script = "mount --bind \"$OMNI_CHILD\" \"$OMNI_CHILD\" && mount -o remount,bind,ro \"$OMNI_CHILD\"";
    let shell = after(script, &child);
    let mut unshared = Command::new("unshare");
    unshared.arg("-rm").arg(shell.get_program()).args(shell.get_args());
    unshared.env("OMNI_CHILD", folder.path());
    sees_all(unshared);
}

/// Child process: uses a file system on which a file can't be locked if it was opened only for reading.
#[tokio::test]
async fn child_cannot_lock_what_it_reads() {
    let Some(folder) = child_folder() else {
        return;
    };
    let log = folder.join("a.jsonl");
    let file = fs::File::open(&log).unwrap();
    if file.try_lock().is_ok() {
        println!("\ncan be locked");
        return;
    }
    let store = FileSystemStore::open(&folder).await.unwrap();
    let before = fs::read(&log).unwrap();
    let version = store.list(&Listing::default()).await.unwrap()[0].version;
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!(stored.version, version);
    assert!(fs::read(&log).unwrap() == before, "without a lock, the log is not rewritten");
    store.write(&id("a"), &Write::on(version), &Change::Commit(says(2, "more"))).await.unwrap();
    println!("\nall checks passed");
}

/// NFS on Linux behaves in this way: `flock` becomes a lock for which the file must be open for writing.
#[cfg(target_os = "linux")]
#[tokio::test]
#[allow(clippy::print_stdout, reason = "a skipped test prints the reason")]
async fn load_on_a_file_system_without_read_locks_leaves_an_outgrown_log_unchanged() {
    const FLOCK: &str = "
        #include <errno.h>
        #include <fcntl.h>
        int flock(int file, int operation) {
            if ((fcntl(file, F_GETFL) & O_ACCMODE) != O_RDONLY) return 0;
            errno = EBADF;
            return -1;
        }";

    let folder = Folder::new();
    let (source, library) = (folder.path().join("flock.c"), folder.path().join("flock.so"));
    fs::write(&source, FLOCK).unwrap();
    let made = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    if !made.is_ok_and(|made| made.success()) {
        skip("a C compiler is not installed");
        return;
    }
    crate::rewriting::outgrown(&folder).await;
    let mut child = child("faults::child_cannot_lock_what_it_reads", folder.path());
    child.env("LD_PRELOAD", library);
    let text = succeeds(&mut child);
    if text.contains("\ncan be locked") {
        // The preloaded library was ignored, for example because the file system is mounted with `noexec` or the
        // program is statically linked.
        println!("skipped: LD_PRELOAD has no effect on the program of the tests");
        return;
    }
    assert!(text.contains("all checks passed"), "{text}");
}

#[tokio::test]
async fn operations_in_a_missing_folder_are_unreachable() {
    let folder = Folder::new();
    let inner = folder.path().join("store");
    let store = FileSystemStore::open(&inner).await.unwrap();
    let version = create(&store, &id("a")).await;
    let moved = folder.path().join("elsewhere");
    fs::rename(&inner, &moved).unwrap();

    let write = Write::on(version);
    let state = omni_agent::store::custom::StoredState::default();
    let refused = [
        store.write(&id("b"), &Write::first().with_id(write.id), &Change::create(state)).await.map(drop),
        store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.map(drop),
        store.load(&id("a")).await.map(drop),
        store.list(&Listing::default()).await.map(drop),
        store.summary(&id("a")).await.map(drop),
        store.delete(&id("a"), None).await,
    ];
    for refused in refused {
        match refused {
            Err(error @ StoreError::Unreachable { .. }) => {
                assert!(error.to_string().contains("/store can't be reached"), "{error}");
                assert!(error.is_transient());
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(!inner.exists(), "a missing folder, such as one that is not mounted, must not be created");

    fs::rename(&moved, &inner).unwrap();
    store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap();
}

#[tokio::test]
async fn open_of_a_file_instead_of_a_folder_is_unreachable() {
    let folder = Folder::new();
    let file = folder.path().join("file");
    fs::write(&file, "no folder").unwrap();
    assert!(matches!(FileSystemStore::open(&file).await, Err(StoreError::Unreachable { .. })));
    assert!(FileSystemStore::open(file.join("below")).await.is_err());
}

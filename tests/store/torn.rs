//! Logs that were torn by a crash, and logs that are damaged.

use std::fs::{self, OpenOptions};

use omni_agent::{
    store::{
        Listing, Store, StoreError,
        custom::{Change, Commit, Lease, StateChange, Stored, StoredState, TitleBy, TurnRecord, Write},
    },
    subscription::EventId,
    tree::Erased,
};
use serde_json::json;

use crate::support::{Folder, commit, create, id, line, node, says};

/// Creates a log of a state and three commits. The last commit has multibyte characters. Returns the log and the
/// offsets of its lines.
async fn log(folder: &Folder) -> (Vec<u8>, Vec<usize>) {
    let store = folder.quick_store().await;
    let state = StoredState::default().with_title("A talk");
    let mut version = store.write(&id("a"), &Write::first(), &Change::create(state)).await.unwrap();
    for (number, text) in [(1, "one"), (2, "two\n\0"), (3, "drei \u{fc}\u{1f600}")] {
        version = commit(&store, &id("a"), version, number, text).await;
    }
    let log = fs::read(folder.log(&id("a"))).unwrap();
    let ends = log.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let begins = [0].into_iter().chain(ends).collect();
    (log, begins)
}

/// Replaces the log with a new file that has this content. The old file is not overwritten, because some file systems
/// then wait for the disk.
fn put(folder: &Folder, log: impl AsRef<[u8]>) {
    let _ = fs::remove_file(folder.log(&id("a")));
    fs::write(folder.log(&id("a")), log).unwrap();
}

/// A log can be longer than the memory, for example after space was allocated for it and never written.
#[tokio::test]
async fn log_with_a_line_longer_than_any_write_is_listed_as_damaged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "one").await;
    create(&store, &id("b")).await;
    let log = OpenOptions::new().append(true).open(folder.log(&id("a"))).unwrap();
    log.set_len(1 << 40).unwrap();
    let mut listed = store.list(&Listing::default()).await.unwrap();
    listed.sort_by_key(|summary| summary.id.clone());
    let damage: Vec<_> =
        listed.iter().map(|summary| (summary.id.as_str(), summary.damage.is_some())).collect();
    assert_eq!(damage, [("a", true), ("b", false)]);
    let loaded = store.load(&id("a")).await;
    assert!(matches!(&loaded, Err(StoreError::Damaged { .. })), "{loaded:?}");
    store.delete(&id("a"), None).await.unwrap();
}

#[tokio::test]
async fn log_with_a_long_last_line_is_torn_or_damaged_like_one_with_a_short_line() {
    const SECTOR: usize = 512;

    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "one").await;
    let begin = fs::read(folder.log(&id("a"))).unwrap().len();
    commit(&store, &id("a"), version, 2, &"long ".repeat(200_000)).await;
    let log = fs::read(folder.log(&id("a"))).unwrap();
    let zeros = |from: usize, to: usize| {
        let mut log = log.clone();
        log[from..to].fill(0);
        log
    };
    let edge = (begin + 500_000).next_multiple_of(SECTOR);
    let longer = [&log[..log.len() - 1], b" }\n"].concat();
    let cases = [
        ("whole", log.clone(), Ok(2)),
        ("cut near its beginning", log[..begin + 20].to_vec(), Ok(1)),
        ("cut", log[..begin + 700_000].to_vec(), Ok(1)),
        ("without a line feed", log[..log.len() - 1].to_vec(), Ok(1)),
        ("with an end that was never filled", zeros(edge, log.len()), Ok(1)),
        ("never filled", zeros(begin, log.len()), Ok(1)),
        ("followed by space that was never filled", [&log[..], &vec![0; 300_000]].concat(), Ok(2)),
        ("with a beginning that was never filled", zeros(begin, edge), Ok(1)),
        ("with zero bytes elsewhere", zeros(edge + 1, edge + 9), Err(())),
        ("with another frame", zeros(begin + 3, begin + 4), Err(())),
        ("longer than it states", longer, Err(())),
    ];
    for (name, log, nodes) in cases {
        put(&folder, &log);
        let loaded = store.load(&id("a")).await;
        assert_eq!(
            loaded.as_ref().map(|loaded| loaded.nodes.len()).map_err(|_| ()),
            nodes,
            "{name}: {loaded:?}"
        );
        let summary = store.summary(&id("a")).await.unwrap();
        assert_eq!(summary.damage.is_some(), nodes.is_err(), "{name}: {:?}", summary.damage);
    }
}

#[tokio::test]
async fn log_cut_at_any_byte_of_its_last_commit_drops_that_commit() {
    let folder = Folder::new();
    let (log, begins) = log(&folder).await;
    assert_eq!(begins.len(), 5);
    let store = folder.quick_store().await;
    let last = begins[3];
    for cut in last..log.len() {
        put(&folder, &log[..cut]);
        let stored = store.load(&id("a")).await.unwrap();
        assert_eq!(stored.nodes.len(), 2, "cut at byte {cut}");
        let summary = store.list(&Listing::default()).await.unwrap().remove(0);
        assert_eq!((summary.version, summary.damage), (stored.version, None));
        assert_eq!(fs::read(folder.log(&id("a"))).unwrap(), &log[..cut], "reads must not change the log");
        // The next write may be shorter or longer than the torn write.
        for text in ["", "a text that is longer than what was torn off, and more than that"] {
            put(&folder, &log[..cut]);
            let version = commit(&store, &id("a"), stored.version, 3, text).await;
            commit(&store, &id("a"), version, 4, "and one more").await;
            let nodes = store.load(&id("a")).await.unwrap().nodes;
            assert_eq!((nodes.len(), nodes[2].message().text().as_str()), (4, text));
        }
    }
}

/// A log of each kind of line: each prefix of the log contains the writes whose lines are complete.
#[tokio::test]
async fn log_cut_at_any_byte_is_a_prefix_of_its_writes() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let end = || fs::metadata(folder.log(&id("a"))).unwrap().len();
    let mut version = create(&store, &id("a")).await;
    // For each write, the end of its line, and the conversation after it.
    let mut written = vec![(end(), store.load(&id("a")).await.unwrap())];
    let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
    let erased: Erased = serde_json::from_value(json!({ "nodes": [2], "head": 1, "next": 3 })).unwrap();
    for number in 1..=6 {
        let write = Write::on(version);
        let head = Commit::new(Some(node(2)));
        let next = match number {
            1 | 2 => store.write(&id("a"), &write, &Change::Commit(says(number, "text"))).await,
            3 => store.write(&id("a"), &write, &Change::State(StateChange::title("x,\"version\":7"))).await,
            4 => {
                store
                    .write(
                        &id("a"),
                        &write,
                        &Change::Commit(head.with_turn(TurnRecord::new(1, turn, "{}").with_head(node(2)))),
                    )
                    .await
            }
            5 => {
                store.release(&id("a"), &Lease::unlimited(), Some(EventId::new(7, 1))).await.map(|()| version)
            }
            _ => {
                let before = fs::read(folder.log(&id("a"))).unwrap();
                check_prefixes(&folder, &before, &written).await;
                put(&folder, &before);
                store.write(&id("a"), &write, &Change::Erase(erased.clone())).await.unwrap();
                // The lines have changed, so only the prefix with the last line is known.
                let last = (end(), store.load(&id("a")).await.unwrap());
                let log = fs::read(folder.log(&id("a"))).unwrap();
                let ends = (1..=log.len()).filter(|end| log[end - 1] == b'\n').collect::<Vec<_>>();
                assert_eq!(ends.len(), written.len() + 1);
                for (old, end) in written.iter_mut().zip(ends) {
                    put(&folder, &log[..end]);
                    let stored = store.load(&id("a")).await.unwrap();
                    assert_eq!(stored.version, old.1.version);
                    *old = (end as u64, stored);
                }
                written.push(last);
                check_prefixes(&folder, &log, &written).await;
                return;
            }
        };
        version = next.unwrap();
        written.push((end(), store.load(&id("a")).await.unwrap()));
    }
}

/// Checks each prefix of the log. `written` contains the end of each line and the conversation up to it.
async fn check_prefixes(folder: &Folder, log: &[u8], written: &[(u64, Stored)]) {
    let store = folder.quick_store().await;
    for cut in 0..=log.len() {
        put(folder, &log[..cut]);
        let listed = store.list(&Listing::default()).await.unwrap();
        let loaded = store.load(&id("a")).await;
        let Some((_, expected)) = written.iter().rfind(|(end, _)| *end <= cut as u64) else {
            assert!(matches!(loaded, Err(StoreError::NotFound { .. })), "cut at byte {cut}: {loaded:?}");
            assert_eq!(listed, []);
            continue;
        };
        assert_eq!(&loaded.unwrap(), expected, "cut at byte {cut}");
        assert_eq!((&listed[0].title, &listed[0].damage), (&expected.state.title, &None));
        assert_eq!((listed[0].version, listed[0].updated), (expected.version, expected.updated));
        assert_eq!(listed[0].in_flight, expected.turn.is_some(), "cut at byte {cut}");
    }
}

#[tokio::test]
async fn log_with_an_unwritten_last_line_drops_that_line() {
    let folder = Folder::new();
    log(&folder).await;
    let store = folder.quick_store().await;
    let version = store.load(&id("a")).await.unwrap().version;
    let last = fs::read(folder.log(&id("a"))).unwrap().len();
    commit(&store, &id("a"), version, 4, &"a text over many sectors ".repeat(1000)).await;
    let log = fs::read(folder.log(&id("a"))).unwrap();
    // After a power failure, a file may have its full length, although only some of its sectors were written. The other
    // sectors contain zeros.
    let sector = (last + 1).next_multiple_of(512);
    for zeros in [
        vec![(last, log.len())],
        vec![(last, sector)],
        vec![(last, sector + 1024)],
        vec![(sector, sector + 512)],
        vec![(sector + 512, log.len())],
        vec![(last, sector), (sector + 512, sector + 1024)],
    ] {
        let mut torn = log.clone();
        for (from, to) in &zeros {
            torn[*from..*to].fill(0);
        }
        put(&folder, &torn);
        let stored = store.load(&id("a")).await.unwrap();
        assert_eq!(stored.nodes.len(), 3, "bytes {zeros:?}");
        let listed = store.list(&Listing::default()).await.unwrap().remove(0);
        assert_eq!((listed.version, listed.damage), (stored.version, None), "bytes {zeros:?}");
        commit(&store, &id("a"), stored.version, 4, "anew").await;
        assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 4);
    }
}

#[tokio::test]
async fn log_with_other_zeros_in_its_last_line_is_damaged() {
    let folder = Folder::new();
    let (log, begins) = log(&folder).await;
    let store = folder.quick_store().await;
    let version = store.load(&id("a")).await.unwrap().version;
    for at in begins[3]..log.len() {
        // A zero that is alone in its sector looks like a sector that was never written, so this case is skipped.
        if (at == begins[3] && (at + 1) % 512 == 0) || (at + 1 == log.len() && at % 512 == 0) {
            continue;
        }
        let mut damaged = log.clone();
        damaged[at] = 0;
        put(&folder, &damaged);
        let loaded = store.load(&id("a")).await;
        assert!(
            matches!(&loaded, Err(StoreError::Damaged { place, .. }) if place.ends_with("line 4")),
            "byte {at}: {loaded:?}"
        );
        let written = store.write(&id("a"), &Write::on(version), &Change::Commit(says(4, "more"))).await;
        assert!(matches!(written, Err(StoreError::Damaged { .. })), "byte {at}: {written:?}");
    }
}

#[tokio::test]
async fn create_cut_at_any_byte_leaves_no_conversation() {
    let folder = Folder::new();
    let (log, begins) = log(&folder).await;
    let store = folder.quick_store().await;
    for cut in 0..begins[1] {
        put(&folder, &log[..cut]);
        assert!(store.summary(&id("a")).await.is_err(), "cut at byte {cut}");
        assert!(matches!(store.load(&id("a")).await, Err(StoreError::NotFound { .. })));
        assert_eq!(store.list(&Listing::default()).await.unwrap(), []);
        let version = create(&store, &id("a")).await;
        commit(&store, &id("a"), version, 1, "Hi").await;
        assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 1);
    }
}

#[tokio::test]
async fn log_with_a_flipped_byte_in_the_middle_is_damaged_in_its_line() {
    let folder = Folder::new();
    let (log, begins) = log(&folder).await;
    let store = folder.quick_store().await;
    for at in 0..begins[3] {
        for flip in [0x01, 0x20, log[at] ^ b'\n', log[at]] {
            let mut damaged = log.clone();
            damaged[at] ^= flip;
            if damaged == log {
                continue;
            }
            put(&folder, &damaged);
            let line = begins.partition_point(|begin| *begin <= at);
            match store.load(&id("a")).await {
                Err(StoreError::Damaged { place, .. }) => {
                    assert!(place.ends_with(&format!("a.jsonl, line {line}")), "byte {at}: {place}");
                }
                other => panic!("byte {at} flipped by {flip:#x}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn log_with_a_flipped_byte_in_its_last_line_is_damaged_and_rejects_writes() {
    let folder = Folder::new();
    let (log, begins) = log(&folder).await;
    let store = folder.quick_store().await;
    let version = store.load(&id("a")).await.unwrap().version;
    for at in begins[3]..log.len() {
        let mut damaged = log.clone();
        damaged[at] ^= 1;
        put(&folder, &damaged);
        let loaded = store.load(&id("a")).await;
        assert!(
            matches!(&loaded, Err(StoreError::Damaged { place, .. }) if place.ends_with("line 4")),
            "byte {at}: {loaded:?}"
        );
        let written = store.write(&id("a"), &Write::on(version), &Change::Commit(says(4, "more"))).await;
        assert!(
            matches!(&written, Err(StoreError::Damaged { place, .. }) if place.ends_with("line 4")),
            "{written:?}"
        );
        assert_eq!(store.list(&Listing::default()).await.unwrap()[0].id, id("a"));
    }
}

#[tokio::test]
async fn log_with_a_missing_or_repeated_line_is_damaged() {
    let folder = Folder::new();
    let (log, begins) = log(&folder).await;
    let store = folder.quick_store().await;
    let lines: Vec<&[u8]> = begins.windows(2).map(|span| &log[span[0]..span[1]]).collect();
    for (order, line) in [
        (vec![0, 2, 3], 2),
        (vec![0, 1, 3], 3),
        (vec![0, 1, 1, 2, 3], 3),
        (vec![0, 2, 1, 3], 2),
        (vec![1, 2, 3], 1),
        (vec![0, 0, 1], 2),
    ] {
        let changed: Vec<u8> = order.iter().flat_map(|line| lines[*line]).copied().collect();
        put(&folder, changed);
        let loaded = store.load(&id("a")).await;
        let place = format!("line {line}");
        assert!(
            matches!(&loaded, Err(StoreError::Damaged { place: at, .. }) if at.ends_with(&place)),
            "{order:?}: {loaded:?}"
        );
    }
}

#[tokio::test]
async fn log_of_another_conversation_is_damaged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    fs::copy(folder.log(&id("a")), folder.log(&id("b"))).unwrap();
    let loaded = store.load(&id("b")).await;
    assert!(
        matches!(&loaded, Err(StoreError::Damaged { problem, .. }) if problem.contains("conversation a")),
        "{loaded:?}"
    );
    let written = store
        .write(
            &id("b"),
            &Write::on(version),
            &Change::State(StateChange::Title { title: None, by: TitleBy::Derived }),
        )
        .await;
    assert!(matches!(written, Err(StoreError::Damaged { .. })), "{written:?}");
}

#[tokio::test]
async fn last_line_of_another_conversation_or_format_is_reported_with_its_number() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    let version = commit(&store, &id("a"), version, 1, "Hi").await;
    let log = fs::read_to_string(folder.log(&id("a"))).unwrap();
    let (first, last) = log.trim_end().split_once('\n').unwrap();
    for (from, to) in [("\"id\":\"a\"", "\"id\":\"b\""), ("\"format\":10", "\"format\":11")] {
        let record = last[44..last.len() - 1].replace(from, to);
        put(&folder, format!("{first}\n{}", line(&record)));
        let refused = [
            store.load(&id("a")).await.map(drop),
            store.write(&id("a"), &Write::on(version), &Change::Commit(says(2, "more"))).await.map(drop),
        ];
        for refused in refused {
            let place = match &refused {
                Err(StoreError::Damaged { place, .. }) if to.contains("id") => place,
                Err(StoreError::UnknownFormat { place, found: 11, .. }) if to.contains("11") => place,
                _ => panic!("{to}: {refused:?}"),
            };
            assert!(place.ends_with("line 2"), "{place}");
        }
    }
}

#[tokio::test]
async fn list_with_a_damaged_conversation_reports_it_and_shows_the_others() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    create(&store, &id("sound")).await;
    fs::write(folder.log(&id("damaged")), "this is no log\n").unwrap();
    let listed = store.list(&Listing::default()).await.unwrap();
    let damage = |name: &str| listed.iter().find(|summary| summary.id == id(name)).unwrap().damage.clone();
    assert_eq!(damage("sound"), None);
    assert!(damage("damaged").unwrap().contains("damaged.jsonl, line 1"));
}

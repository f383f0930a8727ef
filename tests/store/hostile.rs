//! Content that neither a crash nor a store produces: handmade logs, and unexpected kinds of files.

use std::fs;

use omni_agent::{
    run::TurnRecord,
    store::{Commit, Filter, Page, Store, StoreError, StoredState, Turns, Version, Write, WriteId},
};
use serde_json::json;

use crate::support::{Folder, create, id, says};

/// Returns a line with this record and its correct checksum and length.
fn line(record: &str) -> String {
    format!(
        "{{\"sum\":\"{:08x}\",\"len\":{:10},\"record\":{record}}}\n",
        crc32fast::hash(record.as_bytes()),
        record.len()
    )
}

fn header(compactions: u64) -> String {
    line(&format!(
        r#"{{"format":"omni-agent conversation","format_version":1,"id":"a","created":7,"compactions":{compactions}}}"#
    ))
}

fn write(version: u64, change: &str) -> String {
    let id = WriteId::generate();
    line(&format!(
        r#"{{"version":{version},"write":"{id}","time":7,"state_version":{version},"change":{change}}}"#
    ))
}

/// Records with a correct checksum and invalid content. The error must name the line of the record.
#[tokio::test]
async fn log_with_invalid_records_is_damaged_in_their_line() {
    let deep = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"create":{{"title":"x","options":{{"extra":{{"a":{open}{close}}}}}}}}}"#)
    };
    let begun = || header(0) + &write(5, r#"{"create":{}}"#);
    let commit = |nodes: &str| format!(r#"{{"commit":{{"head":1,"nodes":[{nodes}]}}}}"#);
    let stamp = r#""write":"AAAAAAAAAAAAAAAAAAAAAA","time":7,"state_version":6"#;
    let logs = [
        (header(0) + &write(5, &deep(100_000)), 2),
        (header(0) + &write(5, r#"{"title":"x"}"#), 2),
        (begun() + &write(6, r#"{"create":{}}"#), 3),
        (begun() + &write(6, r#"{"later":{}}"#), 3),
        (begun() + &write(6, r#"{"compacted":{"state":{},"head":null,"cursors":[],"writes":[]}}"#), 3),
        (begun() + &write(6, &commit(r#"{"id":0}"#)), 3),
        (begun() + &write(6, &commit(r#"{"id":18446744073709551616}"#)), 3),
        (begun() + &write(6, &commit(r#"{"id":1e300}"#)), 3),
        (begun() + &write(7, r#"{"title":null}"#), 3),
        (begun() + &write(0, r#"{"title":null}"#), 3),
        (begun() + &write(u64::MAX, r#"{"title":null}"#), 3),
        (begun() + &line("null"), 3),
        (begun() + &line("7"), 3),
        (begun() + &line(r#"{"version":6}"#), 3),
        (begun() + &line(&format!(r#"{{"version":-6,{stamp},"change":{{"title":null}}}}"#)), 3),
        (
            begun()
                + &line(&format!(r#"{{"version":99999999999999999999,{stamp},"change":{{"title":null}}}}"#)),
            3,
        ),
        (begun() + &line(&format!(r#"{{"version":6,{stamp},"change":{{"title":null}},"more":1}}"#)), 3),
        (begun() + &line(&format!(r#"{{"version":6,"version":6,{stamp},"change":{{"title":null}}}}"#)), 3),
        (begun() + "{\"sum\":\"00000000\",\"len\":9999999999,\"record\":{}}\n", 3),
        (begun() + "\n", 3),
        (header(0) + &write(u64::MAX, r#"{"create":{}}"#) + &write(u64::MAX, r#"{"title":null}"#), 3),
        (line(r#"{"format":"another","format_version":1}"#), 1),
    ];
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for (log, number) in logs {
        let shown = log.chars().take(600).collect::<String>();
        fs::write(folder.log(&id("a")), &log).unwrap();
        let loaded = store.load(&id("a")).await;
        let expected = format!("a.jsonl, line {number}");
        assert!(
            matches!(&loaded, Err(StoreError::Damaged { place, .. }) if place.ends_with(&expected)),
            "{shown}: {loaded:?}"
        );
        // A write reads only the beginning and the end of the log. If both are valid, the write fails only because of
        // its conflict.
        let written = store.commit(&id("a"), &Write::on(Version::new(1)), &says(1, "")).await;
        match &written {
            Err(StoreError::Conflict { .. }) => {}
            Err(StoreError::Damaged { place, .. }) => assert!(place.ends_with(&expected), "{place}"),
            other => panic!("{shown}: {other:?}"),
        }
        assert_eq!(store.list(Page::default()).await.unwrap().len(), 1, "{shown}");
        assert_eq!(
            fs::read_to_string(folder.log(&id("a"))).unwrap(),
            log,
            "a damaged log must not be changed"
        );
        store.delete(&id("a")).await.unwrap();
    }
}

#[tokio::test]
async fn log_that_is_not_text_is_damaged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut log = (header(0) + &write(5, r#"{"create":{"title":"xx"}}"#)).into_bytes();
    let at = log.windows(2).position(|two| two == b"xx").unwrap();
    log[at] = 0xff;
    // The checksum is computed again from the changed bytes, so that only the text is invalid.
    let begin = log.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let record = begin + 44..log.len() - 2;
    let sum = format!("{:08x}", crc32fast::hash(&log[record]));
    log[begin + 8..begin + 16].copy_from_slice(sum.as_bytes());
    fs::write(folder.log(&id("a")), log).unwrap();
    let loaded = store.load(&id("a")).await;
    assert!(
        matches!(&loaded, Err(StoreError::Damaged { place, problem }) if place.ends_with("line 2") && problem.contains("utf-8")),
        "{loaded:?}"
    );
}

#[tokio::test]
async fn write_after_the_last_version_is_rejected() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    fs::write(folder.log(&id("a")), header(0) + &write(u64::MAX, r#"{"create":{}}"#)).unwrap();
    let version = store.load(&id("a")).await.unwrap().version;
    let written = store.commit(&id("a"), &Write::on(version), &says(1, "Hi")).await;
    assert!(matches!(written, Err(StoreError::Unstorable { .. })), "{written:?}");
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 0);
}

#[tokio::test]
async fn log_with_the_highest_count_of_compactions_is_read_and_compacted() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let id_of_write = WriteId::generate();
    let compacted = format!(
        r#"{{"compacted":{{"state":{{}},"head":null,"cursors":[],"writes":[[5,"{id_of_write}"]]}}}}"#
    );
    let title = "x".repeat(1000);
    let titles: String =
        (6..200).map(|version| write(version, &format!(r#"{{"title":"{title}"}}"#))).collect();
    let log = header(u64::MAX) + &write(5, &compacted) + &titles;
    fs::write(folder.log(&id("a")), &log).unwrap();
    for _ in 0..2 {
        assert_eq!(store.load(&id("a")).await.unwrap().state.title.as_deref(), Some(title.as_str()));
    }
    assert!(fs::metadata(folder.log(&id("a"))).unwrap().len() < log.len() as u64 / 4);
}

#[tokio::test]
async fn create_of_an_unstorable_state_leaves_nothing_behind() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let deep = (0..500).fold(json!({}), |inner, _| json!({ "a": inner }));
    let options = omni_agent::provider::Options::default().with_extra([("deep", deep)]);
    let state = StoredState::default().with_options(options);
    let created = store.create(&id("a"), WriteId::generate(), &state).await;
    assert!(matches!(created, Err(StoreError::Unstorable { .. })), "{created:?}");
    assert_eq!(folder.names(), [""; 0]);
}

/// One file has two names. This happens if two ids differ only in case and the file system ignores case.
#[tokio::test]
async fn operations_on_an_id_whose_file_belongs_to_another_leave_it_unchanged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("case")).await;
    let stored = store.load(&id("case")).await.unwrap();
    fs::hard_link(folder.log(&id("case")), folder.log(&id("CASE"))).unwrap();
    fs::hard_link(folder.summary(&id("case")), folder.summary(&id("CASE"))).unwrap();

    let created = store.create(&id("CASE"), WriteId::generate(), &StoredState::default()).await;
    assert!(matches!(created, Err(StoreError::AlreadyExists { .. })), "{created:?}");
    let written = store.commit(&id("CASE"), &Write::on(version), &says(1, "Hi")).await;
    assert!(matches!(written, Err(StoreError::NotFound { .. })), "{written:?}");
    assert!(matches!(store.load(&id("CASE")).await, Err(StoreError::NotFound { .. })));
    assert!(!store.exists(&id("CASE")).await.unwrap());
    store.delete(&id("CASE")).await.unwrap();
    assert!(folder.log(&id("CASE")).exists(), "it is the log of `case`");
    assert!(folder.summary(&id("CASE")).exists(), "it is the summary of `case`");
    assert_eq!(store.load(&id("case")).await.unwrap(), stored);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn list_with_an_unreadable_log_reports_it_and_shows_the_others() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    create(&store, &id("sound")).await;
    // A read of this file at an unmapped address fails with an input/output error.
    std::os::unix::fs::symlink("/proc/self/mem", folder.log(&id("unreadable"))).unwrap();
    // This symbolic link points to itself.
    std::os::unix::fs::symlink(folder.log(&id("loop")), folder.log(&id("loop"))).unwrap();
    fs::create_dir(folder.log(&id("folder"))).unwrap();
    let listed = store.list(Page::default()).await.unwrap();
    let damage = |name: &str| {
        let listed = listed.iter().find(|summary| summary.id == id(name));
        listed.map(|summary| summary.damage.clone())
    };
    assert_eq!(damage("sound"), Some(None));
    for name in ["unreadable", "loop"] {
        let damage_text = damage(name).unwrap().expect("the damage is reported");
        assert!(
            damage_text.contains(&format!("{name}.jsonl")) && damage_text.contains("error"),
            "{damage_text}"
        );
    }
    assert_eq!(damage("folder"), None, "a folder is not a log");
    assert!(store.load(&id("unreadable")).await.is_err());
}

/// A log that became unreadable still has the length that its summary names, so the list of conversations does not read
/// the log.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn turns_with_a_log_that_became_unreadable_lists_the_others() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for name in ["sound", "unreadable", "later"] {
        let version = create(&store, &id(name)).await;
        let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
        let commit = Commit::new(None).with_turn(TurnRecord::new(1, turn, "{}"));
        store.commit(&id(name), &Write::on(version), &commit).await.unwrap();
    }
    store.list(Page::default()).await.expect("the list updates all summaries");
    let later = fs::read_to_string(folder.log(&id("later"))).unwrap();
    let header = later.lines().next().unwrap();
    let record = header.split_once("\"record\":").unwrap().1.strip_suffix('}').unwrap();
    let newer = record.replace("\"format_version\":2", "\"format_version\":9");
    fs::write(folder.log(&id("later")), later.replace(&format!("{header}\n"), &line(&newer))).unwrap();
    let log = folder.log(&id("unreadable"));
    let len = fs::metadata(&log).unwrap().len();
    let summary = fs::read_to_string(folder.summary(&id("unreadable"))).unwrap();
    let (known, empty) = (format!("\"log\":{len}"), "\"log\":0");
    assert!(summary.contains(&known), "{summary}");
    fs::write(folder.summary(&id("unreadable")), summary.replace(&known, empty)).unwrap();
    fs::remove_file(&log).unwrap();
    // A read of this file at an unmapped address fails with an input/output error.
    std::os::unix::fs::symlink("/proc/self/mem", &log).unwrap();
    for name in ["unreadable", "later"] {
        assert!(store.summary(&id(name)).await.unwrap().in_flight, "{name}: the log was not read");
        assert!(store.load(&id(name)).await.is_err(), "{name}");
    }
    let turns = store.turns(Turns::All, &Filter::default(), Page::default()).await.unwrap();
    assert_eq!(turns.iter().map(|turn| turn.id.as_str()).collect::<Vec<_>>(), ["sound"]);
}

/// Only regular files are conversations. If the store opened other kinds of files, some of them would block it forever.
#[cfg(unix)]
#[tokio::test]
async fn operations_on_other_kinds_of_files_leave_them_unchanged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = create(&store, &id("a")).await;
    fs::create_dir(folder.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(folder.path().join("elsewhere"), folder.log(&id("link"))).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(folder.log(&id("socket"))).unwrap();
    fs::remove_file(folder.summary(&id("a"))).unwrap();
    for pipe in [folder.log(&id("pipe")), folder.summary(&id("a"))] {
        assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());
    }

    let listed = store.list(Page::default()).await.unwrap();
    assert_eq!(listed.iter().map(|summary| summary.id.as_str()).collect::<Vec<_>>(), ["a"]);
    let write = Write::on(version);
    for name in ["link", "socket", "pipe"] {
        assert!(!store.exists(&id(name)).await.unwrap(), "{name}");
        let refused = [
            store.load(&id(name)).await.map(drop),
            store.summary(&id(name)).await.map(drop),
            store.commit(&id(name), &write, &says(1, "Hi")).await.map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{name}: {refused:?}");
        }
        let created = store.create(&id(name), write.id, &StoredState::default()).await;
        assert!(matches!(created, Err(StoreError::Failed { .. })), "{name}: {created:?}");
        store.delete(&id(name)).await.unwrap();
        assert!(fs::symlink_metadata(folder.log(&id(name))).is_ok(), "{name} does not belong to the store");
    }
    store.commit(&id("a"), &write, &says(1, "Hi")).await.unwrap();
    assert_eq!(store.list(Page::default()).await.unwrap()[0].version, version.next());
}

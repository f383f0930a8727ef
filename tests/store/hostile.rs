//! Content that neither a crash nor a store produces: handmade logs, and unexpected kinds of files.

use std::fs;

use omni_agent::{
    message::{Content, Message, Text, Timestamp, ToolUse},
    store::{
        Filter, Labels, Listing, Store, StoreError,
        custom::{Change, Commit, StoredState, TurnRecord, Turns, Version, Write, WriteId},
    },
    tree::{Node, NodeId},
};
use serde_json::json;

use crate::support::{Folder, create, id, line, node, says};

/// Returns the members of a record after its change.
fn stamp(version: u64) -> String {
    let id = WriteId::generate();
    format!(
        r#""version":{version},"write":"{id}","time":7,"entry":{{"format":10,"id":"a","created":7,"updated":7}}"#
    )
}

fn write(version: u64, change: &str) -> String {
    line(&format!(r#"{{"change":{change},{}}}"#, stamp(version)))
}

/// Records with a correct checksum and invalid content. The error must name the line of the record.
#[tokio::test]
async fn log_with_invalid_records_is_damaged_in_their_line() {
    let deep = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"create":{{"title":"x","options":{{"extra":{{"a":{open}{close}}}}}}}}}"#)
    };
    let begun = || write(5, r#"{"create":{}}"#);
    let commit = |nodes: &str| format!(r#"{{"commit":{{"head":1,"nodes":[{nodes}]}}}}"#);
    let title = r#"{"state":{"title":null}}"#;
    let with = |from: &str, to: &str| {
        let record = format!(r#"{{"change":{title},{}}}"#, stamp(6));
        assert!(record.contains(from), "{record}");
        begun() + &line(&record.replace(from, to))
    };
    let logs = [
        (write(5, &deep(100_000)), 1),
        (write(5, title), 1),
        (write(5, r#"{"mark":"0000000000000007.1"}"#), 1),
        (begun() + &write(6, r#"{"create":{}}"#), 2),
        (begun() + &write(6, r#"{"later":{}}"#), 2),
        (begun() + &write(6, r#"{"mark":7}"#), 2),
        (begun() + &write(6, r#"{"erase":{"nodes":[],"head":null,"next":0,"state":{}}}"#), 2),
        (begun() + &write(6, r#"{"erase":{"nodes":[],"head":null,"next":1}}"#), 2),
        (begun() + &write(6, &commit(r#"{"id":0}"#)), 2),
        (begun() + &write(6, &commit(r#"{"id":18446744073709551616}"#)), 2),
        (begun() + &write(6, &commit(r#"{"id":1e300}"#)), 2),
        (begun() + &write(7, title), 2),
        (begun() + &write(0, title), 2),
        (begun() + &write(5, title), 2),
        (begun() + &write(u64::MAX, title), 2),
        (begun() + &line("null"), 2),
        (begun() + &line("7"), 2),
        (begun() + &line(r#"{"version":6}"#), 2),
        (begun() + &line(r#"{,"version":"#), 2),
        (with(r#""version":6"#, r#""version":-6"#), 2),
        (with(r#""version":6"#, r#""version":99999999999999999999"#), 2),
        (with(r#""version":6"#, r#""version":6,"version":6"#), 2),
        (with(r#""time":7"#, r#""time":7,"more":1"#), 2),
        (with(r#""updated":7"#, r#""updated":7,"more":1"#), 2),
        (with(r#""updated":7"#, r#""updated":7,"turn":-1"#), 2),
        (with(r#""updated":7"#, r#""updated":7,"labels":[["","x"]]"#), 2),
        (with(r#""updated":7"#, r#""updated":7,"labels":{"a":"x"}"#), 2),
        (with(r#"{"change":"#, r#"{"time":7,"change":"#), 2),
        (with("7}}", "7}},"), 2),
        (with(r#""id":"a""#, r#""id":"b""#), 2),
        (begun() + "{\"sum\":\"00000000\",\"len\":9999999999,\"record\":{}}\n", 2),
        (begun() + "\n", 2),
        (write(u64::MAX, r#"{"create":{}}"#) + &write(u64::MAX, title), 2),
        (line(r#"{"format":"another"}"#), 1),
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
        // A write reads only the end of the log. If it is valid, the write fails only because of its conflict.
        let written = store.write(&id("a"), &Write::on(Version::new(1)), &Change::Commit(says(1, ""))).await;
        assert!(
            matches!(written, Err(StoreError::Conflict { .. } | StoreError::Damaged { .. })),
            "{shown}: {written:?}"
        );
        assert_eq!(store.list(&Listing::default()).await.unwrap().len(), 1, "{shown}");
        assert_eq!(
            fs::read_to_string(folder.log(&id("a"))).unwrap(),
            log,
            "a damaged log must not be changed"
        );
        store.delete(&id("a"), None).await.unwrap();
    }
}

#[tokio::test]
async fn log_that_is_not_text_is_damaged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut log = write(5, r#"{"create":{"title":"xx"}}"#).into_bytes();
    let at = log.windows(2).position(|two| two == b"xx").unwrap();
    log[at] = 0xff;
    // The checksum is computed again from the changed bytes, so that only the text is invalid.
    let record = 44..log.len() - 2;
    let sum = format!("{:08x}", crc32fast::hash(&log[record]));
    log[8..16].copy_from_slice(sum.as_bytes());
    fs::write(folder.log(&id("a")), log).unwrap();
    let loaded = store.load(&id("a")).await;
    assert!(
        matches!(&loaded, Err(StoreError::Damaged { place, problem }) if place.ends_with("line 1") && problem.contains("utf-8")),
        "{loaded:?}"
    );
}

#[tokio::test]
async fn write_after_the_last_version_is_rejected() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    fs::write(folder.log(&id("a")), write(u64::MAX, r#"{"create":{}}"#)).unwrap();
    let version = store.load(&id("a")).await.unwrap().version;
    let written = store.write(&id("a"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await;
    assert!(matches!(written, Err(StoreError::Unstorable { .. })), "{written:?}");
    assert_eq!(store.load(&id("a")).await.unwrap().nodes.len(), 0);
}

/// The content of a line can't pass for the entry behind it, or for another line.
#[tokio::test]
async fn inputs_and_texts_that_imitate_an_entry_change_nothing() {
    let forged = format!(
        r#"{{"a":1,{}}}"#,
        stamp(99).replace(r#""updated":7"#, r#""updated":99,"title":"forged","turn":9"#)
    );
    let input: serde_json::Value = serde_json::from_str(&forged).unwrap();
    assert!(input.to_string().contains(r#","version":99,"write":"#), "{input}");
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let state = StoredState::default().with_title("true");
    let mut version = store.write(&id("a"), &Write::first(), &Change::create(state)).await.unwrap();
    let whole = write(99, r#"{"create":{}}"#);
    let message = |number: u64| {
        let tool_use = ToolUse::new(number.to_string(), "send", input.clone());
        let padding = "x".repeat(usize::try_from(number).unwrap() * 1000);
        Message::assistant(vec![
            Content::from(Text::new(padding)),
            Text::new(whole.clone()).into(),
            tool_use.into(),
        ])
    };
    for number in 1..40 {
        let forging = Node::new(node(number), NodeId::new(number - 1), message(number));
        let commit = Commit::new(Some(node(number))).with_nodes([forging]);
        let write = Write::on(version);
        version = store.write(&id("a"), &write, &Change::Commit(commit.clone())).await.unwrap();
        assert_eq!(store.write(&id("a"), &write, &Change::Commit(commit)).await.unwrap(), version);
        let log = fs::read(folder.log(&id("a"))).unwrap();
        // In a torn line, the imitation may be the last that was written.
        let at = log.windows(forged.len()).rposition(|bytes| bytes == forged.as_bytes()).unwrap();
        for end in [None, Some(at + forged.len())] {
            if let Some(end) = end {
                fs::write(folder.log(&id("a")), &log[..end]).unwrap();
            }
            let listed = store.list(&Listing::default()).await.unwrap().remove(0);
            let stored = store.load(&id("a")).await.unwrap();
            assert_eq!(
                (listed.title.as_deref(), listed.in_flight, listed.damage),
                (Some("true"), false, None)
            );
            assert_eq!((listed.version, listed.updated), (stored.version, stored.updated));
            assert_eq!(stored.nodes.len() as u64, if end.is_some() { number - 1 } else { number });
        }
        fs::write(folder.log(&id("a")), log).unwrap();
    }
    for node in store.load(&id("a")).await.unwrap().nodes {
        assert_eq!(**node.message(), message(node.id().get()).with_timestamp(node.message().timestamp));
    }
}

/// A later or an earlier version of the crate has written the log.
#[tokio::test]
async fn log_of_another_format_version_is_refused_and_stays() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let header = |version: u64| {
        line(&format!(
            r#"{{"format":"omni-agent conversation","format_version":{version},"id":"a","created":7,"compactions":0}}"#
        ))
    };
    let old = line(&format!(
        r#"{{"version":5,"write":"{}","time":7,"state_version":5,"change":{{"create":{{}}}}}}"#,
        WriteId::generate()
    ));
    let later = |record: String| line(&record.replace(r#""format":10"#, r#""format":11"#));
    let logs = [
        (header(1) + &old, 1),
        (header(2) + &old, 2),
        (header(2), 2),
        (later(format!(r#"{{"change":{{"create":{{}}}},{}}}"#, stamp(5))), 11),
        (later(format!(r#"{{"content":[],{}}}"#, stamp(5).replace("time", "at"))), 11),
    ];
    for (log, version) in logs {
        fs::write(folder.log(&id("a")), &log).unwrap();
        let refused = [
            store.load(&id("a")).await.map(drop),
            store
                .write(&id("a"), &Write::on(Version::new(5)), &Change::Commit(says(1, "Hi")))
                .await
                .map(drop),
            store.write(&id("a"), &Write::first(), &Change::create(StoredState::default())).await.map(drop),
            store.used(&Filter::default(), Timestamp(0)..Timestamp(9)).await.map(drop),
            store
                .used(&Labels::new([("a", "b")]).unwrap().into(), Timestamp(0)..Timestamp(9))
                .await
                .map(drop),
        ];
        for refused in refused {
            assert!(
                matches!(&refused, Err(StoreError::UnknownFormat { found, known: 10, .. }) if *found == version),
                "{log}: {refused:?}"
            );
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(&format!("format version {version}")) && text.contains("10"), "{text}");
        }
        let listed = store.list(&Listing::default()).await.unwrap().remove(0);
        assert!(listed.damage.is_some_and(|damage| damage.contains(&format!("format version {version}"))));
        assert_eq!(fs::read_to_string(folder.log(&id("a"))).unwrap(), log);
    }
}

#[tokio::test]
async fn create_of_an_unstorable_state_leaves_nothing_behind() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let deep = (0..500).fold(json!({}), |inner, _| json!({ "a": inner }));
    let options = omni_agent::provider::Options::default().with_extra([("deep", deep)]);
    let state = StoredState::default().with_options(options);
    let created = store.write(&id("a"), &Write::first(), &Change::create(state)).await;
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

    let created = store.write(&id("CASE"), &Write::first(), &Change::create(StoredState::default())).await;
    assert!(matches!(created, Err(StoreError::AlreadyExists { .. })), "{created:?}");
    let written = store.write(&id("CASE"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await;
    assert!(matches!(written, Err(StoreError::NotFound { .. })), "{written:?}");
    assert!(matches!(store.load(&id("CASE")).await, Err(StoreError::NotFound { .. })));
    assert!(store.summary(&id("CASE")).await.is_err());
    store.delete(&id("CASE"), None).await.unwrap();
    assert!(folder.log(&id("CASE")).exists(), "it is the log of `case`");
    assert_eq!(store.load(&id("case")).await.unwrap(), stored);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn list_with_an_unreadable_log_reports_it_and_shows_the_others() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    create(&store, &id("sound")).await;
    // This symbolic link points to itself.
    std::os::unix::fs::symlink(folder.log(&id("loop")), folder.log(&id("loop"))).unwrap();
    fs::create_dir(folder.log(&id("folder"))).unwrap();
    let listed = store.list(&Listing::default()).await.unwrap();
    let damage = |name: &str| {
        let listed = listed.iter().find(|summary| summary.id == id(name));
        listed.map(|summary| summary.damage.clone())
    };
    assert_eq!(damage("sound"), Some(None));
    let problem = damage("loop").unwrap().expect("the damage is reported");
    assert!(problem.contains("loop.jsonl") && problem.contains("error"), "{problem}");
    assert_eq!(damage("folder"), None, "a folder is not a log");
    assert!(store.load(&id("loop")).await.is_err());
}

/// A list checks only the last line, so it shows a turn in a log that can't be read.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn turns_with_a_damaged_log_lists_the_others() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for name in ["sound", "damaged", "unreadable"] {
        let version = create(&store, &id(name)).await;
        let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
        let commit = Commit::new(None).with_turn(TurnRecord::new(1, turn, "{}"));
        store.write(&id(name), &Write::on(version), &Change::Commit(commit)).await.unwrap();
    }
    let mut log = fs::read(folder.log(&id("damaged"))).unwrap();
    log[50] ^= 1;
    fs::write(folder.log(&id("damaged")), log).unwrap();
    assert!(store.summary(&id("damaged")).await.unwrap().in_flight);
    // This symbolic link points to itself.
    fs::remove_file(folder.log(&id("unreadable"))).unwrap();
    std::os::unix::fs::symlink(folder.log(&id("unreadable")), folder.log(&id("unreadable"))).unwrap();
    for name in ["unreadable", "damaged"] {
        assert!(store.load(&id(name)).await.is_err(), "{name}");
    }
    let turns = store.turns(Turns::All, &Listing::default()).await.unwrap();
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
    let pipe = folder.log(&id("pipe"));
    assert!(std::process::Command::new("mkfifo").arg(pipe).status().unwrap().success());

    let listed = store.list(&Listing::default()).await.unwrap();
    assert_eq!(listed.iter().map(|summary| summary.id.as_str()).collect::<Vec<_>>(), ["a"]);
    let write = Write::on(version);
    for name in ["link", "socket", "pipe"] {
        assert!(store.summary(&id(name)).await.is_err(), "{name}");
        let refused = [
            store.load(&id(name)).await.map(drop),
            store.summary(&id(name)).await.map(drop),
            store.write(&id(name), &write, &Change::Commit(says(1, "Hi"))).await.map(drop),
        ];
        for refused in refused {
            assert!(matches!(refused, Err(StoreError::NotFound { .. })), "{name}: {refused:?}");
        }
        let created = store
            .write(&id(name), &Write::first().with_id(write.id), &Change::create(StoredState::default()))
            .await;
        assert!(matches!(created, Err(StoreError::Failed { .. })), "{name}: {created:?}");
        store.delete(&id(name), None).await.unwrap();
        assert!(fs::symlink_metadata(folder.log(&id(name))).is_ok(), "{name} does not belong to the store");
    }
    store.write(&id("a"), &write, &Change::Commit(says(1, "Hi"))).await.unwrap();
    assert_eq!(store.list(&Listing::default()).await.unwrap()[0].version, version.next());
}

//! Files in the state in which a crash or a defective disk leaves them.

use std::{collections::BTreeMap, fs};

use omni_agent::{
    manager::Manager,
    message::{ToolUse, TurnId},
    run::PendingUse,
    store::{
        Filter, Listing, Page, SqliteStore, Store, StoreError,
        custom::{Change, Commit, TurnRecord, Write},
    },
};
use serde_json::json;

use super::{file, quick, raw};
use crate::{
    corrupt::{Effect, NUMBERS, TEXTS, Victim},
    support::{Folder, commit, create, id, says},
};

#[tokio::test]
async fn open_with_a_torn_log_drops_the_last_write_entirely() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let first = create(&store, &id("a")).await;
    let second = commit(&store, &id("a"), first, 1, "whole").await;
    let write = Write::on(second);
    store.write(&id("a"), &write, &Change::Commit(says(2, "torn"))).await.unwrap();

    // Copy the files in the state in which a crash of the machine would leave them: the database file and a part of its
    // log, but not the index of the log.
    let left = Folder::new();
    let log = |folder: &Folder| folder.path().join("conversations.sqlite-wal");
    fs::copy(file(&folder), file(&left)).unwrap();
    let whole = fs::read(log(&folder)).unwrap();
    fs::write(log(&left), &whole[..whole.len() - 1000]).unwrap();
    let found = SqliteStore::open(file(&left)).await.unwrap();
    let stored = found.load(&id("a")).await.unwrap();
    assert_eq!((stored.version, stored.nodes.len()), (second, 1));
    // When the torn write is repeated, it is written again.
    assert_eq!(found.write(&id("a"), &write, &Change::Commit(says(2, "torn"))).await.unwrap(), second.next());
    assert_eq!(found.load(&id("a")).await.unwrap().nodes.len(), 2);
}

#[tokio::test]
async fn load_from_a_damaged_file_names_it() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, &"x".repeat(200_000)).await;
    raw(&folder).query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(store);

    let mut bytes = fs::read(file(&folder)).unwrap();
    // The first two pages contain the schema. All other pages are lost.
    bytes[2 * 4096..].fill(0xa5);
    fs::write(file(&folder), &bytes).unwrap();
    let found = match SqliteStore::open(file(&folder)).await {
        Ok(store) => store.load(&id("a")).await.map(drop),
        Err(error) => Err(error),
    };
    match found {
        Err(error @ StoreError::Damaged { .. }) => {
            assert!(error.to_string().contains("conversations.sqlite"), "{error}");
            assert!(!error.is_transient());
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn load_with_an_invalid_node_id_names_its_place() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    for (damage, repair, what) in [
        ("UPDATE nodes SET parent = 0", "UPDATE nodes SET parent = NULL", "node 1"),
        ("UPDATE conversations SET head = 0", "UPDATE conversations SET head = NULL", "the head"),
    ] {
        raw(&folder).execute(damage, []).unwrap();
        let error = store.load(&id("a")).await.unwrap_err();
        let place_start = format!("{what} of conversation a");
        assert!(
            matches!(&error, StoreError::Damaged { place, .. } if place.starts_with(&place_start)),
            "{error:?}"
        );
        raw(&folder).execute(repair, []).unwrap();
    }
    store.load(&id("a")).await.unwrap();
}

#[tokio::test]
async fn load_of_a_row_of_another_type_is_damaged() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let version = create(&store, &id("a")).await;
    commit(&store, &id("a"), version, 1, "Hi").await;
    let other = raw(&folder);
    let text = "PRAGMA writable_schema = ON;
                UPDATE sqlite_schema SET sql = replace(replace(sql, 'STRICT, ', ''), 'STRICT', '');
                PRAGMA writable_schema = RESET;
                UPDATE nodes SET id = x'00'";
    other.execute_batch(text).unwrap();
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { place, .. } if place.starts_with("conversation a in")),
        "{error:?}"
    );
}

#[tokio::test]
async fn list_with_an_invalid_title_reports_it_and_shows_the_others() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    create(&store, &id("a")).await;
    create(&store, &id("b")).await;
    let bytes =
        "UPDATE conversations SET title = CAST(x'ff' AS TEXT), owner = CAST(x'fe' AS TEXT) WHERE id = 'a'";
    raw(&folder).execute(bytes, []).unwrap();
    let list = store.list(&Listing::default()).await.unwrap();
    let damage: BTreeMap<_, _> =
        list.iter().map(|listed| (listed.id.as_str(), listed.damage.is_some())).collect();
    assert_eq!(damage, BTreeMap::from([("a", true), ("b", false)]));
    let error = store.load(&id("a")).await.unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { place, .. } if place.contains("title")), "{error:?}");
}

#[tokio::test]
async fn changed_row_of_a_turn_affects_only_its_conversation() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    let victim = Victim::new(&store).await;
    let connection = raw(&folder);
    let execute = async |sql: &str| connection.execute(&sql.replace("{schema}", ""), []).unwrap() as u64;
    let deep = format!("'{}'", "[".repeat(1000));
    for (table, row, columns, effect) in TEXTS {
        for column in columns {
            for value in ["''", "'no JSON'", "'{'", "'[7]x'", "x'ff'", &deep] {
                let set = format!("{column} = CAST({value} AS TEXT)");
                victim.check(table, row, &set, effect, execute).await;
            }
        }
    }
    let times = [
        ("turns", "true", &["since", "recorded", "waits"][..], Effect::Accepted),
        ("approvals", "place = 0", &["since", "expires", "survives"], Effect::Accepted),
    ];
    for (table, row, columns, effect) in NUMBERS.into_iter().chain(times) {
        for column in columns {
            for value in [i64::MIN, -2, 0, 2, i64::MAX] {
                victim.check(table, row, &format!("{column} = {value}"), effect, execute).await;
            }
        }
    }
}

#[tokio::test]
async fn pending_approvals_after_a_page_of_unreadable_turns_are_listed() {
    let folder = Folder::new();
    let store = quick(&folder).await;
    for name in ["a", "b", "c"] {
        let version = create(&store, &id(name)).await;
        let waiting = PendingUse::new(TurnId::default(), ToolUse::new("use", "lookup", json!({})));
        let turn = "00112233445566778899aabbccddeeff".parse().unwrap();
        let record = TurnRecord::new(1, turn, "{}").with_waiting(vec![waiting]);
        store
            .write(&id(name), &Write::on(version), &Change::Commit(Commit::new(None).with_turn(record)))
            .await
            .unwrap();
    }
    raw(&folder)
        .execute_batch(
            "UPDATE approvals SET since = conversation;
             UPDATE approvals SET content = '{' WHERE conversation < (SELECT max(conversation) FROM approvals)",
        )
        .unwrap();
    let manager = Manager::builder(store).build();
    for size in [1, 2, 3, 4] {
        let listed = manager.pending_approvals(&Filter::default(), Page::first(size)).await.unwrap();
        let found: Vec<_> = listed.iter().map(|approval| approval.id.conversation.as_str()).collect();
        assert_eq!(found, ["c"], "pages of {size}");
    }
    let listed = manager.pending_approvals(&Filter::default(), Page::first(1)).await.unwrap();
    let rest = Page::first(1).after(&listed[0]);
    assert!(manager.pending_approvals(&Filter::default(), rest).await.unwrap().is_empty());
}

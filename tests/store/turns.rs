//! Turns in flight in the files of the file-system store.

use std::{fs, time::Duration};

use omni_agent::{
    message::{Timestamp, ToolUse, TurnId},
    run::PendingUse,
    store::{
        FileSystemStore, Listing, Store, StoreError,
        custom::{Change, Commit, StateChange, TurnRecord, Turns, Version, Write},
    },
};
use serde_json::json;

use crate::support::{Folder, commit, create, id, line, node, says};

fn record(core: &str) -> TurnRecord {
    TurnRecord::new(1, "00112233445566778899aabbccddeeff".parse().unwrap(), core).with_head(node(1))
}

fn recorded(record: TurnRecord) -> Commit {
    Commit::new(Some(node(1))).with_usage([]).with_turn(record)
}

async fn write(store: &dyn Store, version: Version, commit: &Commit) -> Version {
    store.write(&id("a"), &Write::on(version), &Change::Commit(commit.clone())).await.unwrap()
}

async fn begun(store: &dyn Store) -> Version {
    let version = create(store, &id("a")).await;
    commit(store, &id("a"), version, 1, "Hi").await
}

#[tokio::test]
async fn exclusive_store_excludes_another_until_it_is_dropped() {
    let folder = Folder::new();
    let exclusive =
        || FileSystemStore::builder(folder.path()).exclusive().lock_wait(Duration::from_millis(20)).open();
    let first = exclusive().await.unwrap();
    assert!(first.traits().turns);
    let error = exclusive().await.unwrap_err();
    assert!(matches!(error, StoreError::Busy { .. }), "{error:?}");
    let shared = folder.store().await;
    assert!(!shared.traits().turns, "files know no owner");
    drop(first);
    assert!(exclusive().await.unwrap().traits().turns);
}

#[tokio::test]
async fn record_after_the_clock_was_set_back_has_the_time_of_the_clock() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = begun(&store).await;
    // Shift the last write by an hour, as if the clock had been ahead.
    let lines = fs::read_to_string(folder.log(&id("a"))).unwrap();
    let last = lines.lines().last().unwrap().to_owned();
    let (_, text) = last.split_once("\"record\":").unwrap();
    let updated = store.summary(&id("a")).await.unwrap().updated;
    let ahead = Timestamp(updated.0 + 3_600_000);
    let text = text[..text.len() - 1].replace(&updated.0.to_string(), &ahead.0.to_string());
    fs::write(folder.log(&id("a")), lines.replace(&format!("{last}\n"), &line(&text))).unwrap();
    assert_eq!(store.summary(&id("a")).await.unwrap().updated, ahead);

    let version = write(&store, version, &recorded(record("{}"))).await;
    let turn = store.load(&id("a")).await.unwrap().turn.unwrap();
    assert!(turn.recorded <= Timestamp::now() && turn.since <= Timestamp::now(), "{turn:?}");
    write(&store, version, &says(2, "Go on")).await;
    assert_eq!(
        store.summary(&id("a")).await.unwrap().updated,
        ahead,
        "the place in lists does not move back"
    );
}

#[tokio::test]
async fn record_of_a_later_version_leaves_the_rest_of_the_conversation_readable() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = begun(&store).await;
    let tool_use = ToolUse::new("1", "send", json!({}));
    let version = write(
        &store,
        version,
        &recorded(record("{}").with_waiting(vec![PendingUse::new(TurnId::default(), tool_use)])),
    )
    .await;
    // Replace the decision in the record with an unknown one, as a later version of the crate might write it.
    let lines = fs::read_to_string(folder.log(&id("a"))).unwrap();
    let last = lines.lines().last().unwrap().to_owned();
    let (_, text) = last.split_once("\"record\":").unwrap();
    let mut changed: serde_json::Value = serde_json::from_str(&text[..text.len() - 1]).unwrap();
    changed["change"]["commit"]["turn"]["record"]["waiting"][0]["on_expiry"] = json!("ask_again");
    let text = changed.to_string();
    let lines = lines.replace(&format!("{last}\n"), &line(&text));
    fs::write(folder.log(&id("a")), lines).unwrap();

    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.version), (1, version));
    let turn = stored.turn.unwrap();
    assert!(turn.damage.as_ref().is_some_and(|damage| damage.contains("ask_again")), "{turn:?}");
    assert_eq!((turn.record.turn, turn.record.format), (record("").turn, 1));
    let left = store.turns(Turns::Left, &Listing::default()).await.unwrap();
    assert!(left[0].damage.is_some(), "{left:?}");
    let version = write(&store, version, &says(2, "Go on")).await;
    let stored = store.load(&id("a")).await.unwrap();
    assert_eq!((stored.nodes.len(), stored.version, stored.turn), (2, version, None));
}

#[tokio::test]
async fn turns_are_listed_as_loaded() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = begun(&store).await;
    let waiting = |id: &str| PendingUse::new(TurnId::default(), ToolUse::new(id, "send", json!({})));
    let first = record("{}").with_waiting(vec![waiting("1")]);
    let version = write(&store, version, &recorded(first)).await;
    let second = record("{}").with_waiting(vec![waiting("1"), waiting("2")]);
    let version = write(&store, version, &recorded(second)).await;
    store.write(&id("a"), &Write::on(version), &Change::State(StateChange::title("A"))).await.unwrap();
    let list = async || store.turns(Turns::Waiting, &Listing::default()).await.unwrap();
    let listed = list().await;
    assert_eq!(listed[0].approvals.len(), 2);
    assert_eq!(store.summary(&id("a")).await.unwrap().waiting, 2);
    assert_eq!(store.load(&id("a")).await.unwrap().turn.unwrap().approvals(), listed[0].approvals);
}

#[tokio::test]
async fn commits_without_a_turn_have_lines_without_members_of_turns() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    begun(&store).await;
    let text = fs::read_to_string(folder.log(&id("a"))).unwrap();
    assert!(!text.contains("\"turn\""), "{text}");
}

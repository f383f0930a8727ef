//! Erased text remains in no file of the folder.

use std::fs;

use omni_agent::{
    message::{Message, RequestEnd, Timestamp, TurnId, Usage, UsageRow},
    run::{KnownPrompt, PromptState, RunEnd, RunOutcome},
    store::{
        Filter, Labels, Listing, MemoryStore, Page, Store, StoreError,
        custom::{Change, Commit, StateChange, Stored, StoredState, TurnRecord, Version, Write},
    },
    tree::{Erased, Node, Tree},
};

use crate::support::{Folder, create, id, node, says};

const SECRET: &str = "the secret of this test";

/// Returns the files of the folder that contain the secret.
pub(crate) fn found(folder: &Folder) -> Vec<String> {
    let contains = |name: &String| {
        let content = fs::read(folder.path().join(name)).unwrap();
        content.windows(SECRET.len()).any(|bytes| bytes == SECRET.as_bytes())
    };
    folder.names().into_iter().filter(contains).collect()
}

fn row(input: u64) -> UsageRow {
    UsageRow::new(RequestEnd::Answered, Usage::default().with_input(input)).with_at(Timestamp(7))
}

/// Creates a conversation of eight nodes on one path. The nodes from the fourth on and the end of a run contain the
/// secret. Other writes take place between the commits of the nodes. Returns the last version.
pub(crate) async fn conversation(store: &dyn Store) -> Version {
    let state = StoredState::default().with_title("A talk");
    let mut version = store.write(&id("a"), &Write::first(), &Change::create(state)).await.unwrap();
    let text = |number: u64| if number > 3 { format!("{number} {SECRET}") } else { format!("{number}") };
    let says = |number: u64| {
        let message =
            if number % 2 == 1 { Message::user(text(number)) } else { Message::assistant(text(number)) };
        Node::new(node(number), (number > 1).then(|| node(number - 1)), message)
            .with_usage(Usage::default().with_input(number))
    };
    let failed = serde_json::json!({"outcome": "cancelled", "unanswered": [Message::user(SECRET)]});
    let failed = serde_json::from_value(failed).unwrap();
    let commits = [
        // The commit contains no rows for the usage ledger, so the store adds a row for each node.
        Commit::new(Some(node(4))).with_nodes((1..5).map(says)),
        Commit::new(Some(node(4))).with_usage([row(100)]).with_run_end(failed),
        Commit::new(Some(node(6))).with_nodes((5..7).map(says)).with_cursors([(node(5), node(6))]),
        Commit::new(Some(node(2))).with_cursors([(node(2), node(3)), (node(3), node(4))]),
        Commit::new(Some(node(8))).with_nodes((7..9).map(says)).with_usage([row(200)]),
    ];
    for commit in commits {
        version = store.write(&id("a"), &Write::on(version), &Change::Commit(commit.clone())).await.unwrap();
        let title = StateChange::title(format!("A talk in version {version}"));
        version = store.write(&id("a"), &Write::on(version), &Change::State(title)).await.unwrap();
    }
    version
}

/// Returns the erasure of node 4 and of the nodes below it. No other node contains the secret.
pub(crate) fn without_secret(stored: &Stored) -> Erased {
    let tree = Tree::hydrate(stored.nodes.clone(), stored.head, stored.cursors.clone());
    tree.unwrap().erase(node(4)).unwrap()
}

pub(crate) async fn ledger(store: &dyn Store) -> (Vec<UsageRow>, u64) {
    let rows = store.usage(&id("a"), &Page::first(100)).await.unwrap();
    let used = store.used(&Filter::default(), Timestamp(0)..Timestamp(u64::MAX)).await.unwrap();
    (rows, used.iter().map(|sum| sum.usage.input).sum())
}

#[tokio::test]
async fn erase_leaves_no_text_in_the_folder_and_keeps_the_rest() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = conversation(&store).await;
    let mut expected = store.load(&id("a")).await.unwrap();
    let before = ledger(&store).await;
    assert_eq!(before.1, (1..=6).sum::<u64>() + 300);
    fs::write(folder.path().join("a.jsonl.new"), format!("{SECRET}, left by a crash")).unwrap();
    assert_eq!(found(&folder), ["a.jsonl", "a.jsonl.new"]);

    let erased = without_secret(&expected);
    let erased_at = store.write(&id("a"), &Write::on(version), &Change::Erase(erased.clone())).await.unwrap();
    assert_eq!(erased_at, version.next());
    assert_eq!(found(&folder), [""; 0]);
    assert_eq!(folder.names(), ["a.jsonl"]);

    expected.erase(&erased);
    for _ in 0..2 {
        let store = folder.quick_store().await;
        let stored = store.load(&id("a")).await.unwrap();
        (expected.version, expected.updated) = (erased_at, stored.updated);
        assert_eq!(stored, expected);
        assert_eq!(ledger(&store).await, before, "the ledger keeps its rows");
        let summary = store.list(&Listing::default()).await.unwrap().remove(0);
        assert_eq!((&summary.title, summary.version), (&expected.state.title, erased_at));
    }
}

#[tokio::test]
async fn repeated_erasures_bring_nothing_back() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut expected = {
        conversation(&store).await;
        store.load(&id("a")).await.unwrap()
    };
    let used = ledger(&store).await;
    let mut writes = Vec::new();
    for erased in [7, 5, 4, 2, 1] {
        let mut tree =
            Tree::hydrate(expected.nodes.clone(), expected.head, expected.cursors.clone()).unwrap();
        let mut erased = tree.erase(node(erased)).unwrap();
        erased.next = node(9);
        let write = Write::on(expected.version);
        expected.version = store.write(&id("a"), &write, &Change::Erase(erased.clone())).await.unwrap();
        writes.push((write, expected.version));
        expected.erase(&erased);
        let stored = store.load(&id("a")).await.unwrap();
        expected.updated = stored.updated;
        assert_eq!(stored, expected);
        let title = StateChange::title("after the erasure");
        expected.version =
            store.write(&id("a"), &Write::on(expected.version), &Change::State(title)).await.unwrap();
        expected = store.load(&id("a")).await.unwrap();
        assert_eq!(ledger(&store).await, used);
        for (write, version) in &writes {
            let repeated = store.write(&id("a"), write, &Change::Erase(erased.clone())).await.unwrap();
            assert_eq!(repeated, *version, "erasures are known as writes");
        }
    }
    assert!(expected.nodes.is_empty() && found(&folder).is_empty());
}

#[tokio::test]
async fn erase_by_two_handles_at_once_is_done_by_one() {
    let folder = Folder::new();
    let (store, other) = (folder.store().await, folder.store().await);
    let version = conversation(&store).await;
    let erased = without_secret(&store.load(&id("a")).await.unwrap());
    let (a, b) = (Write::on(version), Write::on(version));
    let (conversation, erase) = (id("a"), Change::Erase(erased));
    let done = tokio::join!(store.write(&conversation, &a, &erase), other.write(&conversation, &b, &erase));
    let (won, lost) = if done.0.is_ok() { done } else { (done.1, done.0) };
    assert_eq!(won.unwrap(), version.next());
    assert!(matches!(lost, Err(StoreError::Conflict { .. })), "{lost:?}");
}

/// A reader that has opened the old log sees the conversation as it was before the erasure, or after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn load_during_erasures_returns_a_whole_conversation() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let mut version = conversation(&store).await;
    let reading = tokio::spawn({
        let store = folder.quick_store().await;
        async move {
            loop {
                let stored = store.load(&id("a")).await.unwrap();
                Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap();
            }
        }
    });
    for number in 10..200_u64 {
        let turn = Commit::new(Some(node(number))).with_nodes([Node::new(
            node(number),
            Some(node(2)),
            Message::assistant("x"),
        )]);
        version = store.write(&id("a"), &Write::on(version), &Change::Commit(turn)).await.unwrap();
        let stored = store.load(&id("a")).await.unwrap();
        let mut tree = Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap();
        let erased = tree.erase(node(number)).unwrap();
        version = store.write(&id("a"), &Write::on(version), &Change::Erase(erased)).await.unwrap();
    }
    assert!(!reading.is_finished(), "the reader has failed");
    reading.abort();
}

#[tokio::test]
async fn erase_that_cannot_write_a_new_log_changes_nothing() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let version = conversation(&store).await;
    let before = (fs::read(folder.log(&id("a"))).unwrap(), store.load(&id("a")).await.unwrap());
    let (write, erased) = (Write::on(version), without_secret(&before.1));
    fs::create_dir(folder.path().join("a.jsonl.new")).unwrap();
    let failed = store.write(&id("a"), &write, &Change::Erase(erased.clone())).await;
    assert!(
        matches!(&failed, Err(error @ StoreError::Failed { .. }) if error.to_string().contains("a.jsonl")),
        "{failed:?}"
    );
    assert_eq!(fs::read(folder.log(&id("a"))).unwrap(), before.0);
    assert_eq!(store.load(&id("a")).await.unwrap(), before.1);
    fs::remove_dir(folder.path().join("a.jsonl.new")).unwrap();
    store.write(&id("a"), &write, &Change::Erase(erased)).await.unwrap();
    assert_eq!(found(&folder), [""; 0]);
}

/// An erasure may remove a message whose words an earlier title, label or system prompt repeats.
#[tokio::test]
async fn erase_removes_replaced_states_and_records_of_turns() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    let of_state = |text: &str| {
        let labels = Labels::new([("topic", text)]).unwrap();
        StoredState::default().with_title(text).with_system(text).with_labels(labels)
    };
    let version = store.write(&id("a"), &Write::first(), &Change::create(of_state(SECRET))).await.unwrap();
    let first = Commit::new(Some(node(1))).with_nodes([Node::new(node(1), None, Message::user("Hi"))]);
    let version = store
        .write(&id("a"), &Write::on(version), &Change::Commit(first.with_state(of_state(SECRET))))
        .await
        .unwrap();
    let mut version = version;
    for change in [StateChange::title(SECRET), StateChange::whole(of_state(SECRET))] {
        version = store.write(&id("a"), &Write::on(version), &Change::State(change.clone())).await.unwrap();
    }
    let state = of_state("another");
    let change = StateChange::whole(state.clone());
    version = store.write(&id("a"), &Write::on(version), &Change::State(change)).await.unwrap();
    let turn = TurnRecord::new(1, "00112233445566778899aabbccddeeff".parse().unwrap(), SECRET)
        .with_head(node(1))
        .with_append(vec![Message::user(SECRET).into()]);
    let recorded = Commit::new(Some(node(1))).with_usage([row(5)]).with_turn(turn);
    let write = Write::on(version);
    version = store.write(&id("a"), &write, &Change::Commit(recorded.clone())).await.unwrap();
    assert_eq!(found(&folder), ["a.jsonl"]);
    let before = store.load(&id("a")).await.unwrap();
    let mut tree = Tree::hydrate(before.nodes.clone(), before.head, before.cursors.clone()).unwrap();
    let erased = tree.erase(node(1)).unwrap();
    store.write(&id("a"), &Write::on(version), &Change::Erase(erased)).await.unwrap();
    assert_eq!(found(&folder), [""; 0]);
    let after = store.load(&id("a")).await.unwrap();
    assert_eq!((after.state, after.turn, after.used), (state, None, before.used));
    assert!(!store.summary(&id("a")).await.unwrap().in_flight);
    assert_eq!(
        store.write(&id("a"), &write, &Change::Commit(recorded)).await.unwrap(),
        version,
        "the write is known"
    );
}

/// An erasure keeps the outcomes of prompts of the last end of a run only.
#[tokio::test]
async fn erase_keeps_what_a_memory_store_keeps_of_ends_of_runs() {
    let prompt = || vec![KnownPrompt::new("p", PromptState::InFlight { turn: TurnId::default() })];
    let end = || RunEnd::new(RunOutcome::Cancelled).with_unanswered(vec![Message::user(SECRET).into()]);
    let ends = [vec![end()], vec![end().with_prompts(prompt())], vec![end().with_prompts(prompt()), end()]];
    for ends in ends {
        let folder = Folder::new();
        let (files, memory) = (folder.quick_store().await, MemoryStore::new());
        let mut last = Vec::new();
        for store in [&files as &dyn Store, &memory] {
            let mut version = create(store, &id("a")).await;
            version =
                store.write(&id("a"), &Write::on(version), &Change::Commit(says(1, "Hi"))).await.unwrap();
            for end in &ends {
                let ended = Commit::new(Some(node(1))).with_usage([]).with_run_end(end.clone());
                version = store.write(&id("a"), &Write::on(version), &Change::Commit(ended)).await.unwrap();
            }
            let erased = serde_json::from_str::<omni_agent::tree::Erased>(
                r#"{"nodes": [1], "head": null, "next": 2}"#,
            )
            .unwrap();
            store.write(&id("a"), &Write::on(version), &Change::Erase(erased)).await.unwrap();
            last.push(store.load(&id("a")).await.unwrap().last_run);
        }
        assert_eq!(last[0], last[1]);
        assert_eq!(found(&folder), [""; 0]);
    }
}

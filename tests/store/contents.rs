//! Stored content is loaded unchanged. The tests use arbitrary trees, and JSON up to the maximum depth.

use std::time::Duration;

use omni_agent::{
    message::{Content, Message, ToolUse, Usage},
    store::{
        MemoryStore, Store, StoreError,
        custom::{Change, Commit, StoredState, Version, Write},
    },
    tree::{Node, NodeId, Tree},
};
use proptest::prelude::*;
use serde_json::{Value, from_value, json, to_value};

use crate::support::{Folder, create, id, node};

/// A change to a tree between two commits.
#[derive(Clone, Debug)]
enum Step {
    Turn(String, bool),
    Navigate(prop::sample::Index),
    Clear,
    Commit,
    Reload,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => ("\\PC{0,12}|[\\x00\\n\"]{0,3}", any::<bool>()).prop_map(|(text, usage)| Step::Turn(text, usage)),
        3 => any::<prop::sample::Index>().prop_map(Step::Navigate),
        1 => Just(Step::Clear),
        4 => Just(Step::Commit),
        1 => Just(Step::Reload),
    ]
}

async fn saved(store: &dyn Store, tree: &Tree, stored: &mut Tree, version: &mut Version) {
    let changes = tree.changes_since(stored).unwrap();
    if !changes.is_empty() {
        *version = store
            .write(&id("tree"), &Write::on(*version), &Change::Commit(Commit::from(changes)))
            .await
            .unwrap();
        *stored = tree.clone();
    }
}

async fn loaded(store: &dyn Store) -> Tree {
    let stored = store.load(&id("tree")).await.unwrap();
    Tree::hydrate(stored.nodes, stored.head, stored.cursors).unwrap()
}

async fn any_commits_make_the_same_tree(store: &dyn Store, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut version = create(store, &id("tree")).await;
    let (mut tree, mut stored) = (Tree::new(), Tree::new());
    for step in steps {
        match step {
            Step::Turn(text, usage) => {
                let messages = [Message::user(text.as_str()), Message::assistant("Yes.")];
                if *usage {
                    tree.push_turn(messages, Usage::default().with_input(7).with_cost(0.1));
                } else {
                    for message in messages {
                        tree.push(message);
                    }
                }
            }
            Step::Navigate(index) => {
                let ids: Vec<NodeId> = tree.nodes().map(Node::id).collect();
                if !ids.is_empty() {
                    tree.navigate(*index.get(&ids)).unwrap();
                    tree.extend();
                }
            }
            Step::Clear => tree.clear(),
            Step::Commit => saved(store, &tree, &mut stored, &mut version).await,
            Step::Reload => {
                saved(store, &tree, &mut stored, &mut version).await;
                tree = loaded(store).await;
                prop_assert_eq!(&tree, &stored);
                stored = tree.clone();
            }
        }
    }
    saved(store, &tree, &mut stored, &mut version).await;
    let again = loaded(store).await;
    prop_assert_eq!(again.usage(), tree.usage());
    prop_assert_eq!(again, tree);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn load_after_any_commits_gives_the_same_tree(steps in prop::collection::vec(step(), 0..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            any_commits_make_the_same_tree(&MemoryStore::new(), &steps).await?;
            let folder = Folder::new();
            any_commits_make_the_same_tree(&folder.quick_store().await, &steps).await
        })?;
    }
}

/// Returns a commit of a message with a tool input. The input has this many levels.
fn nested(levels: usize) -> Commit {
    let input = (1..levels).fold(json!({}), |inner, _| json!({"a": inner}));
    let message = Message::assistant(vec![Content::from(ToolUse::new("toolu_1", "deep", input))]);
    Commit::new(Some(node(1))).with_nodes([Node::new(node(1), None, message)])
}

#[tokio::test]
async fn commit_of_json_as_deep_as_services_send_is_loaded_unchanged() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    // A service sends the arguments as text. The text is parsed separately, so it may have up to 127 levels.
    let input: Value = serde_json::from_str(&("[".repeat(127) + &"]".repeat(127))).unwrap();
    assert!(serde_json::from_str::<Value>(&("[".repeat(128) + &"]".repeat(128))).is_err());
    let commit = nested(127);
    let mut version = create(&store, &id("a")).await;
    version = store.write(&id("a"), &Write::on(version), &Change::Commit(commit.clone())).await.unwrap();
    let message = Message::assistant(vec![Content::from(ToolUse::new("toolu_2", "deep", input))]);
    let lists = Commit::new(Some(node(2))).with_nodes([Node::new(node(2), Some(node(1)), message)]);
    store.write(&id("a"), &Write::on(version), &Change::Commit(lists.clone())).await.unwrap();
    let nodes = store.load(&id("a")).await.unwrap().nodes;
    assert_eq!(nodes, [commit.nodes, lists.nodes].concat());
}

#[tokio::test]
async fn commit_of_json_too_deep_to_read_again_is_rejected() {
    let folder = Folder::new();
    let store = folder.quick_store().await;
    for levels in 200..300 {
        let version = create(&store, &id("a")).await;
        let commit = nested(levels);
        match store.write(&id("a"), &Write::on(version), &Change::Commit(commit.clone())).await {
            Ok(_) => assert_eq!(store.load(&id("a")).await.unwrap().nodes, commit.nodes, "{levels} levels"),
            Err(error) => {
                assert!(
                    matches!(&error, StoreError::Unstorable { .. }) && levels > 240,
                    "{levels} levels: {error}"
                );
                assert!(!error.is_transient());
                assert_eq!(store.load(&id("a")).await.unwrap().version, version, "nothing was written");
                return;
            }
        }
        store.delete(&id("a"), None).await.unwrap();
    }
    panic!("every depth was accepted");
}

#[test]
fn state_of_an_older_or_a_later_version_is_read() {
    let older = json!({ "model": "openai:gpt-5", "options": { "max_tokens": 5 } });
    let state: StoredState = from_value(older.clone()).unwrap();
    assert_eq!((state.settings.max_steps, state.settings.turn_timeout), (None, None));
    assert_eq!(to_value(&state).unwrap(), older, "unset fields are not written");

    let limited = state.with_max_steps(3).with_turn_timeout(Duration::from_millis(1_500));
    let mut later = to_value(&limited).unwrap();
    assert_eq!(later["turn_timeout"], json!({ "secs": 1, "nanos": 500_000_000 }));
    later["unknown"] = json!(true);
    assert_eq!(from_value::<StoredState>(later).unwrap(), limited);
}

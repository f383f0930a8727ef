//! Unanswered prompts that a session adds to a tree.

use std::{collections::BTreeMap, sync::Arc};

use proptest::{collection::vec, prelude::*, sample::Index};
use serde_json::json;

use super::{MAX_UNANSWERED, Node, NodeId, Tree};
use crate::message::{
    Compaction, CompactionTrigger, Content, Message, Timestamp, ToolResult, ToolUse, Usage,
};

fn timeless(message: Message) -> Arc<Message> {
    Arc::new(message.with_timestamp(Timestamp(0)))
}

fn user(text: &str) -> Arc<Message> {
    timeless(Message::user(text))
}

fn turn(tree: &mut Tree, question: &str) -> NodeId {
    tree.push_turn([user(question), timeless(Message::assistant("Yes."))], Usage::default())[1]
}

fn ids<'a>(nodes: impl Iterator<Item = &'a Node>) -> Vec<u64> {
    nodes.map(|node| node.id().get()).collect()
}

#[test]
fn graft_keeps_the_path_and_the_cursor() {
    let mut tree = Tree::new();
    let end = turn(&mut tree, "a");
    turn(&mut tree, "b");
    let (head, history) = (tree.head(), tree.history().clone());
    tree.graft(Some(end), user("failed")).unwrap();
    tree.graft(None, user("failed, too")).unwrap();
    assert_eq!((tree.head(), tree.history(), tree.cursor(end)), (head, &history, NodeId::new(3)));
    assert_eq!((ids(tree.unanswered(Some(end))), ids(tree.unanswered(None))), (vec![5], vec![6]));
    tree.navigate(end).unwrap();
    assert_eq!(tree.extend(), head);
}

/// An answer that followed the compaction was erased.
#[test]
fn prompt_with_only_a_compaction_below_it_is_unanswered() {
    let mut tree = Tree::new();
    let end = turn(&mut tree, "a");
    let prompt = tree.push(user("b"));
    let summary = Message::compaction("Nothing.", Compaction::new(CompactionTrigger::Size));
    tree.push(timeless(summary));
    let answer = tree.push(timeless(Message::assistant("Yes.")));
    assert_eq!(tree.unanswered(Some(end)).count(), 0);

    tree.erase(answer).unwrap();
    assert_eq!(ids(tree.unanswered(Some(end))), [prompt.get()]);
    assert_eq!((tree.head(), tree.extend()), (Some(end), Some(end)));
}

#[test]
fn graft_of_more_unanswered_prompts_than_the_limit_adds_nothing() {
    let mut tree = Tree::new();
    let end = turn(&mut tree, "a");
    for parent in [None, Some(end)] {
        let mut added = 0;
        while tree.graft(parent, user("failed")).is_some() {
            added += 1;
        }
        assert_eq!((added, tree.unanswered(parent).count()), (MAX_UNANSWERED, MAX_UNANSWERED));
    }
    tree.navigate(NodeId::new(3).unwrap()).unwrap();
    tree.push(timeless(Message::assistant("Now.")));
    assert!(tree.graft(None, user("failed")).is_some(), "an answered prompt does not count");
    assert_eq!(tree.graft(NodeId::new(1000), user("failed")), None);
}

#[test]
fn extend_ends_at_open_tool_uses_above_a_failed_prompt_with_their_results() {
    let tool_use = ToolUse::new("t1", "look", json!({}));
    let mut tree = Tree::new();
    let uses = timeless(Message::assistant([Content::from(tool_use.clone())]));
    let end = tree.push_turn([user("a"), uses], Usage::default())[1];
    let results = timeless(Message::user([Content::from(ToolResult::ok(&tool_use, "seen"))]));
    let leaf = tree.graft(Some(end), results).unwrap();
    tree.navigate(NodeId::new(1).unwrap()).unwrap();
    assert_eq!(tree.extend(), Some(end));
    assert!(tree.is_unanswered(tree.node(leaf).unwrap()) && tree.node(end).unwrap().left_open());
    // Without the mark, the results are those of the turn's own tools.
    let node = |id| tree.node(id).unwrap().clone();
    let mut ended =
        Tree::hydrate([node(NodeId::new(1).unwrap()), node(end).with_left_open(false), node(leaf)], None, []);
    ended.as_mut().unwrap().navigate(end).unwrap();
    assert_eq!(ended.unwrap().extend(), Some(leaf));
}

#[test]
fn tail_has_the_unanswered_prompts_below_its_messages() {
    let mut tree = Tree::new();
    let first = turn(&mut tree, "a");
    let second = turn(&mut tree, "b");
    let (old, new) =
        (tree.graft(Some(first), user("old")).unwrap(), tree.graft(Some(second), user("new")).unwrap());
    let root = tree.graft(None, user("root")).unwrap();
    let whole = |tree: &Tree| ids(tree.nodes().filter(|node| !node.is_outline()));
    let short = tree.tail(2);
    assert_eq!(
        (whole(&short), ids(short.unanswered(Some(second)))),
        (vec![3, 4, new.get()], vec![new.get()])
    );
    assert_eq!(
        (short.unanswered(Some(first)).count(), short.unanswered(None).count()),
        (0, 0),
        "only outlines"
    );
    let copy: Tree = serde_json::from_value(serde_json::to_value(&short).unwrap()).unwrap();
    assert_eq!((copy.history(), copy == short), (short.history(), true));
    assert_eq!(whole(&tree.tail(4)), [1, 2, 3, 4, old.get(), new.get(), root.get()]);
}

#[derive(Clone, Debug)]
enum Step {
    Turn,
    Graft(Option<Index>),
    Again(Index),
    Navigate(Index),
    Clear,
    Erase(Index),
    Store,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Turn),
        5 => any::<Option<Index>>().prop_map(Step::Graft),
        2 => any::<Index>().prop_map(Step::Again),
        4 => any::<Index>().prop_map(Step::Navigate),
        1 => Just(Step::Clear),
        1 => any::<Index>().prop_map(Step::Erase),
        3 => Just(Step::Store),
    ]
}

/// The parts of a tree that a store has.
#[derive(Default)]
struct Stored {
    nodes: Vec<Node>,
    cursors: BTreeMap<NodeId, NodeId>,
    next: Option<NodeId>,
}

impl Stored {
    /// Stores the changes since `before`, and compares all forms of the tree.
    fn store(&mut self, tree: &Tree, before: &mut Tree, copy: &mut Tree) -> Result<(), TestCaseError> {
        let changes = tree.changes_since(before).unwrap();
        copy.apply(&changes).unwrap();
        self.nodes.extend(changes.nodes);
        self.cursors.extend(changes.cursors);
        let stored =
            Tree::restored(self.nodes.clone(), changes.head, self.cursors.clone(), self.next).unwrap();
        let read: Tree = serde_json::from_value(serde_json::to_value(tree).unwrap()).unwrap();
        for other in [&*copy, &stored, &read] {
            prop_assert_eq!((other, other.history()), (tree, tree.history()));
        }
        *before = tree.clone();
        Ok(())
    }
}

proptest! {
    /// A tree, its stored form, its deserialized copy, and a copy that applies the changes agree.
    #[test]
    fn forms_of_a_tree_with_unanswered_prompts_agree(steps in vec(step(), 0..60)) {
        let (mut tree, mut before, mut copy, mut stored) = (Tree::new(), Tree::new(), Tree::new(), Stored::default());
        for step in steps.into_iter().chain([Step::Store]) {
            let ends: Vec<NodeId> =
                tree.nodes().filter(|node| !tree.is_unanswered(node)).map(Node::id).collect();
            let leaves: Vec<NodeId> = tree.nodes().filter(|node| tree.is_unanswered(node)).map(Node::id).collect();
            let path: Vec<NodeId> = tree.iter().map(Node::id).collect();
            match step {
                Step::Turn => {
                    turn(&mut tree, "Well?");
                }
                Step::Graft(index) => {
                    // Prompts are sent below answers.
                    let parent = index.filter(|_| !ends.is_empty()).map(|index| *index.get(&ends));
                    let cursor = parent.and_then(|parent| tree.cursor(parent));
                    let is_full = tree.unanswered(parent).count() == MAX_UNANSWERED;
                    let added = tree.graft(parent, user("failed"));
                    prop_assert_eq!(added.is_none(), is_full);
                    let now = parent.and_then(|parent| tree.cursor(parent));
                    prop_assert_eq!(now, cursor.or(added.filter(|_| parent.is_some())));
                    prop_assert_eq!(path, tree.iter().map(Node::id).collect::<Vec<_>>());
                }
                Step::Again(index) if !leaves.is_empty() => {
                    tree.navigate(*index.get(&leaves)).unwrap();
                    tree.push(timeless(Message::assistant("At last.")));
                }
                Step::Navigate(index) if !ends.is_empty() => {
                    tree.navigate(*index.get(&ends)).unwrap();
                    tree.extend();
                    let head = tree.head().and_then(|head| tree.node(head)).unwrap();
                    prop_assert!(!tree.is_unanswered(head));
                }
                Step::Clear => tree.clear(),
                Step::Erase(index) if !tree.is_empty() => {
                    // A session erases when everything is stored.
                    stored.store(&tree, &mut before, &mut copy)?;
                    let all: Vec<NodeId> = tree.nodes().map(Node::id).collect();
                    let erased = tree.erase(*index.get(&all)).unwrap();
                    copy.apply_erased(&erased).unwrap();
                    let stays = |id: &NodeId| !erased.nodes.contains(id);
                    stored.nodes.retain(|node| stays(&node.id()));
                    stored.cursors.retain(|node, child| stays(node) && stays(child));
                    stored.next = Some(erased.next);
                    before = tree.clone();
                    stored.store(&tree, &mut before, &mut copy)?;
                }
                Step::Store => stored.store(&tree, &mut before, &mut copy)?,
                _ => {}
            }
        }
    }
}

//! The rules of the tree. Each test checks one rule.

use std::sync::Arc;

use omni_agent::{
    message::{History, Message, Role, ToolResult, ToolUse, Usage},
    tree::{Node, NodeId, Tree, TreeError},
};

use crate::support::{assistant, branching, hydrate, id, numbers, tokens, user};

#[test]
fn node_id_of_zero_is_none() {
    assert_eq!(NodeId::new(0), None);
    assert_eq!(id(7).get(), 7);
    assert_eq!(id(7).to_string(), "7");
}

#[test]
fn new_tree_has_nothing() {
    let tree = Tree::new();
    assert!(tree.is_empty());
    assert_eq!(tree.len(), 0);
    assert_eq!(tree.head(), None);
    assert!(tree.history().is_empty());
    assert_eq!(tree.usage(), Usage::default());
    assert_eq!(tree.iter().len(), 0);
    assert_eq!(tree.roots().count(), 0);
    assert_eq!(tree.to_string(), "");
}

#[test]
fn find_by_message_id_returns_the_oldest_node_of_any_branch() {
    let mut tree = Tree::new();
    let first = tree.push(Message::user("Hi").with_id("m-1"));
    tree.push(assistant("Ho"));
    tree.clear();
    let other = tree.push(Message::user("Hi").with_id("m-2"));
    tree.push(Message::assistant("Ho").with_id("m-1"));
    assert_eq!(tree.find(&"m-1".into()), Some(first));
    assert_eq!(tree.find(&"m-2".into()), Some(other));
    assert_eq!(tree.find(&"m-3".into()), None);
    let json = serde_json::to_string(&tree).unwrap();
    let read: Tree = serde_json::from_str(&json).unwrap();
    assert_eq!(read.find(&"m-2".into()), Some(other));
}

#[test]
fn push_numbers_nodes_from_one_and_moves_the_head() {
    let mut tree = Tree::new();
    let message = user("Hi");
    assert_eq!(tree.push(Arc::clone(&message)), id(1));
    assert_eq!(tree.push(assistant("Ho")), id(2));
    assert_eq!(tree.head(), Some(id(2)));
    assert_eq!(tree.len(), 2);
    assert_eq!(tree.node(id(1)).unwrap().parent(), None);
    assert_eq!(tree.node(id(2)).unwrap().parent(), Some(id(1)));
    assert!(Arc::ptr_eq(tree.node(id(1)).unwrap().message(), &message), "messages are shared");
    assert!(Arc::ptr_eq(tree.history().first().unwrap(), &message), "messages are shared");
}

#[test]
fn push_on_a_tree_with_gaps_continues_from_the_highest_id() {
    let mut tree = hydrate(&[(3, 0), (90, 3)], 3, &[]).unwrap();
    assert_eq!(tree.push(user("next")), id(91));
    assert_eq!(tree.node(id(91)).unwrap().parent(), Some(id(3)));
}

#[test]
fn push_after_clear_makes_another_root() {
    let mut tree = Tree::new();
    tree.push(user("a"));
    tree.clear();
    assert_eq!(tree.head(), None);
    assert!(tree.history().is_empty());
    let root = tree.push(user("b"));
    assert_eq!(tree.node(root).unwrap().parent(), None);
    assert_eq!(numbers(tree.roots()), [1, 2]);
    assert_eq!(numbers(&tree), [2]);
}

#[test]
fn push_pins_the_cursor_to_the_new_node() {
    let mut tree = branching();
    tree.navigate(id(2)).unwrap();
    tree.navigate(id(1)).unwrap();
    assert_eq!(tree.cursor(id(1)), Some(id(2)));
    let new = tree.push(user("new"));
    tree.clear();
    assert_eq!(tree.cursor(id(1)), Some(new));
}

#[test]
fn push_turn_records_usage_on_the_last_assistant_message() {
    let mut tree = Tree::new();
    let turn = [user("a"), assistant("b"), user("c"), assistant("d"), user("e")];
    assert_eq!(tree.push_turn(turn, tokens(3, 4)), [1, 2, 3, 4, 5].map(id));
    let usage: Vec<_> = tree.iter().map(|node| node.usage().copied()).collect();
    assert_eq!(usage, [None, None, None, Some(tokens(3, 4)), None]);
    assert_eq!(tree.head(), Some(id(5)));
}

#[test]
fn push_turn_without_an_assistant_message_records_usage_on_the_last_message() {
    let mut tree = Tree::new();
    tree.push_turn([user("a"), user("b")], tokens(3, 4));
    assert_eq!(tree.node(id(1)).unwrap().usage(), None);
    assert_eq!(tree.node(id(2)).unwrap().usage(), Some(&tokens(3, 4)));
}

#[test]
fn push_turn_without_messages_changes_nothing() {
    let mut tree = branching();
    let before = tree.clone();
    assert_eq!(tree.push_turn(Vec::<Message>::new(), tokens(3, 4)), []);
    assert_eq!(tree, before);
    assert_eq!(tree.usage(), Usage::default());
}

#[test]
fn usage_counts_all_branches() {
    let mut tree = Tree::new();
    let question = tree.push(user("a"));
    tree.push_turn([assistant("b")], tokens(1, 2).with_cost(0.5));
    tree.navigate(question).unwrap();
    tree.push_turn([assistant("c")], tokens(10, 20));
    tree.clear();
    assert_eq!(tree.usage(), tokens(11, 22).with_cost(0.5));
}

#[test]
fn navigate_moves_path_and_history() {
    let mut tree = branching();
    tree.navigate(id(7)).unwrap();
    assert_eq!(tree.head(), Some(id(7)));
    assert_eq!(numbers(&tree), [1, 5, 7]);
    assert_eq!(*tree.history(), History::from_iter(["1", "5", "7"].map(assistant)));
    assert_eq!(tree.len(), 9, "nothing is overwritten");
}

#[test]
fn navigate_does_not_extend() {
    let mut tree = branching();
    tree.navigate(id(1)).unwrap();
    assert_eq!(numbers(&tree), [1]);
}

#[test]
fn navigate_pins_cursors_along_the_path() {
    let mut tree = branching();
    assert_eq!([1, 5].map(|number| tree.cursor(id(number))), [Some(id(8)), Some(id(7))]);
    tree.navigate(id(6)).unwrap();
    assert_eq!([1, 5].map(|number| tree.cursor(id(number))), [Some(id(5)), Some(id(6))]);
    tree.navigate(id(3)).unwrap();
    let cursors = [1, 2, 3, 5].map(|number| tree.cursor(id(number)));
    assert_eq!(cursors, [Some(id(2)), Some(id(3)), Some(id(4)), Some(id(6))]);
}

#[test]
fn navigate_to_an_unknown_node_is_an_error_and_changes_nothing() {
    let mut tree = branching();
    tree.navigate(id(6)).unwrap();
    let before = tree.clone();
    for number in [10, 1 << 40, u64::MAX] {
        assert_eq!(tree.navigate(id(number)), Err(TreeError::UnknownNode { id: id(number) }));
    }
    assert_eq!(tree, before);
}

#[test]
fn extend_follows_cursors_to_a_leaf() {
    let mut tree = branching();
    tree.navigate(id(6)).unwrap();
    tree.navigate(id(8)).unwrap();
    tree.navigate(id(5)).unwrap();
    assert_eq!(tree.extend(), Some(id(6)));
    assert_eq!(numbers(&tree), [1, 5, 6]);
    assert_eq!(*tree.history(), History::from_iter(["1", "5", "6"].map(assistant)));
}

#[test]
fn extend_without_cursors_follows_the_newest_child() {
    let mut tree = hydrate(&[(1, 0), (2, 1), (3, 1), (4, 2), (5, 3), (6, 3)], 1, &[]).unwrap();
    assert_eq!(tree.extend(), Some(id(6)));
    assert_eq!(numbers(&tree), [1, 3, 6]);
}

#[test]
fn extend_ends_above_an_unanswered_prompt() {
    let mut tree = Tree::new();
    for message in [user("a"), assistant("b"), user("c")] {
        tree.push(message);
    }
    assert_eq!(numbers(tree.unanswered(Some(id(2)))), [3]);
    tree.navigate(id(1)).unwrap();
    assert_eq!(tree.extend(), Some(id(2)));
    tree.navigate(id(3)).unwrap();
    tree.push(assistant("d"));
    tree.navigate(id(1)).unwrap();
    assert_eq!((tree.extend(), tree.unanswered(Some(id(2))).count()), (Some(id(4)), 0));
}

#[test]
fn unanswered_of_an_unknown_node_or_of_roots_with_children_is_empty() {
    let mut tree = Tree::new();
    tree.push(user("a"));
    assert_eq!((numbers(tree.unanswered(None)), tree.unanswered(Some(id(9))).count()), (vec![1], 0));
    tree.push(assistant("b"));
    assert_eq!(tree.unanswered(None).count(), 0);
}

#[test]
fn extend_from_a_leaf_or_without_a_path_stays() {
    let mut tree = branching();
    assert_eq!(tree.extend(), None);
    tree.navigate(id(4)).unwrap();
    assert_eq!(tree.extend(), Some(id(4)));
    assert_eq!(numbers(&tree), [1, 2, 3, 4]);
}

#[test]
fn clear_keeps_nodes_and_cursors() {
    let mut tree = branching();
    tree.navigate(id(6)).unwrap();
    tree.clear();
    assert_eq!(tree.len(), 9);
    assert_eq!(tree.cursor(id(5)), Some(id(6)));
}

#[test]
fn children_siblings_and_roots_come_oldest_first() {
    let tree = branching();
    assert_eq!(numbers(tree.children(id(1)).unwrap()), [2, 5, 8]);
    assert_eq!(numbers(tree.children(id(5)).unwrap()), [6, 7]);
    assert_eq!(tree.children(id(4)).unwrap().count(), 0);
    assert_eq!(numbers(tree.siblings(id(5)).unwrap()), [2, 5, 8], "the node itself is included");
    assert_eq!(numbers(tree.siblings(id(3)).unwrap()), [3]);
    assert_eq!(numbers(tree.siblings(id(9)).unwrap()), [1, 9]);
    assert_eq!(numbers(tree.roots()), [1, 9]);
}

#[test]
fn path_to_a_node_does_not_need_it_to_be_active() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    assert_eq!(numbers(tree.path_to(id(7)).unwrap()), [1, 5, 7]);
    assert_eq!(numbers(tree.path_to(id(9)).unwrap()), [9]);
    assert_eq!(tree.head(), Some(id(4)));
}

#[test]
fn queries_for_unknown_nodes_return_none() {
    let tree = branching();
    for number in [10, u64::MAX] {
        let unknown = id(number);
        assert!(tree.node(unknown).is_none());
        assert!(tree.children(unknown).is_none());
        assert!(tree.siblings(unknown).is_none());
        assert!(tree.path_to(unknown).is_none());
        assert!(tree.cursor(unknown).is_none());
    }
}

#[test]
fn iter_runs_from_both_ends() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    assert_eq!(numbers(tree.iter().rev()), [4, 3, 2, 1]);
    let mut path = tree.iter();
    assert_eq!(path.len(), 4);
    assert_eq!(path.next().unwrap().id(), id(1));
    assert_eq!(path.next_back().unwrap().id(), id(4));
    assert_eq!(path.next().unwrap().id(), id(2));
    assert_eq!(path.len(), 1);
    assert_eq!(path.next_back().unwrap().id(), id(3));
    assert!(path.next().is_none());
    assert!(path.next_back().is_none());
    assert_eq!(path.len(), 0);
}

#[test]
fn clone_is_a_point_to_roll_back_to() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let point = tree.clone();
    let usage = tree.usage();

    tree.navigate(id(5)).unwrap();
    tree.push_turn([user("x"), assistant("y")], tokens(5, 5));
    assert_ne!(tree, point);

    tree = point;
    assert_eq!(numbers(&tree), [1, 2, 3, 4]);
    assert_eq!(tree.len(), 9);
    assert_eq!(numbers(tree.children(id(5)).unwrap()), [6, 7]);
    assert_eq!([1, 5].map(|number| tree.cursor(id(number))), [Some(id(2)), Some(id(7))]);
    assert_eq!(tree.usage(), usage);
    assert_eq!(tree.push(user("z")), id(10), "the ids are free again");
}

#[test]
fn equality_compares_nodes_head_and_cursors() {
    let tree = branching();
    assert_eq!(tree, branching(), "trees built separately");
    let mut head = tree.clone();
    head.navigate(id(8)).unwrap();
    assert_ne!(head, tree);
    head.clear();
    assert_eq!(head, tree, "the cursors existed before");
    let mut cursors = tree.clone();
    cursors.navigate(id(2)).unwrap();
    cursors.clear();
    assert_ne!(cursors, tree);
    let one = |text| hydrate(&[], 0, &[]).map(|mut tree| (tree.push(user(text)), tree)).unwrap();
    assert_ne!(one("a"), one("b"));
}

#[test]
fn push_turn_marks_a_turn_that_ends_with_open_tool_uses() {
    let tool_use = || ToolUse::new("a", "look", serde_json::json!({}));
    let uses = || Arc::new(Message::new(Role::Assistant, [tool_use()]));
    let answers = Arc::new(Message::new(Role::User, [ToolResult::ok(&tool_use(), "y")]));
    let mut tree = Tree::new();
    tree.push_turn([user("x"), uses()], tokens(1, 1));
    tree.push_turn([Arc::clone(&answers), uses(), answers, assistant("b")], tokens(1, 1));
    tree.push(uses());
    let marked: Vec<_> = tree.nodes().filter(|node| node.left_open()).map(Node::id).collect();
    assert_eq!(marked, [id(2)]);
    let json = serde_json::to_value(&tree).unwrap();
    assert_eq!((&json["nodes"][1]["left_open"], json["nodes"][0].get("left_open")), (&true.into(), None));
    assert_eq!(serde_json::from_value::<Tree>(json).unwrap(), tree);
}

#[test]
fn hydrate_and_apply_reject_a_mark_without_tool_uses() {
    for message in [user("x"), assistant("y")] {
        let node = Node::new(id(1), None, message).with_left_open(true);
        let error = TreeError::NoToolUses { id: id(1) };
        assert_eq!(Tree::hydrate([node.clone()], None, []).unwrap_err(), error);
        let mut changes = Tree::new().changes_since(&Tree::new()).unwrap();
        changes.nodes.push(node);
        assert_eq!(Tree::new().apply(&changes).unwrap_err(), error);
    }
}

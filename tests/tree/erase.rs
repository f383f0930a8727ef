//! Erasing nodes. The model in `model.rs` covers the general case.

use omni_agent::{
    message::{Content, Message, ToolResult, ToolUse},
    tree::{Tree, TreeError},
};
use serde_json::json;

use crate::support::{assistant, id, numbers, timeless, user};

#[test]
fn erase_moves_the_head_above_messages_at_which_no_turn_ends() {
    let mut tree = Tree::new();
    let tool_use = ToolUse::new("t1", "look", json!({}));
    for message in [
        user("Hello"),
        assistant("Hi"),
        user("Look!"),
        timeless(Message::assistant([Content::from(tool_use.clone())])),
        timeless(Message::user([Content::from(ToolResult::ok(&tool_use, "seen"))])),
        assistant("I have seen it"),
    ] {
        tree.push(message);
    }
    for top in [6, 5, 4, 3] {
        let mut shorter = tree.clone();
        let erased = shorter.erase(id(top)).unwrap();
        assert_eq!(erased.head, Some(id(2)), "after erasing {top}");
        assert_eq!(numbers(&shorter), [1, 2]);
    }
    for top in [2, 1] {
        assert_eq!(tree.clone().erase(id(top)).unwrap().head, None, "after erasing {top}");
    }
}

#[test]
fn erase_of_another_branch_keeps_the_path() {
    let mut tree = Tree::new();
    tree.push(user("Hello"));
    tree.push(assistant("Hi"));
    tree.navigate(id(1)).unwrap();
    tree.push(assistant("Good day"));
    let erased = tree.erase(id(2)).unwrap();
    assert_eq!((erased.head, tree.head()), (Some(id(3)), Some(id(3))));
    assert_eq!(tree.to_string(), "* 1 user: Hello\n> 3 assistant: Good day");
}

#[test]
fn erase_of_an_unknown_node_is_rejected() {
    let mut tree = Tree::new();
    assert_eq!(tree.erase(id(1)), Err(TreeError::UnknownNode { id: id(1) }));
}

#[test]
fn next_id_after_erasing_the_last_nodes_survives_serialization() {
    let mut tree = Tree::new();
    tree.push(user("a"));
    let without = serde_json::to_value(&tree).unwrap();
    tree.push(user("b"));
    tree.erase(id(2)).unwrap();
    let json = serde_json::to_value(&tree).unwrap();
    assert_eq!((&json["next"], without.get("next")), (&json!(3), None));
    let mut copy: Tree = serde_json::from_value(json).unwrap();
    assert_eq!(copy.push(user("c")), id(3));
    assert_eq!(numbers(copy.nodes()), [1, 3]);
}

#[test]
fn next_id_below_existing_ids_is_rejected() {
    let mut tree = Tree::new();
    tree.push(user("a"));
    assert_eq!(tree.clone().with_next_id(id(2)).unwrap(), tree);
    let error = tree.clone().with_next_id(id(1)).unwrap_err();
    assert_eq!(error, TreeError::NotNext { id: id(1), next: id(2) });
    let error = tree.with_next_id(id(u64::MAX)).unwrap_err();
    assert_eq!(error, TreeError::IdTooLarge { id: id(u64::MAX) });
}

//! The serialized form of a tree, and input that is rejected.

use omni_agent::{
    message::Usage,
    tree::{NodeId, Tree},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::support::{assistant, branching, id, numbers, user};

fn small() -> Tree {
    let mut tree = Tree::new();
    let usage = Usage::default().with_input(12).with_output(3);
    tree.push_turn([user("Hi"), assistant("Ho")], usage);
    tree.navigate(id(1)).unwrap();
    tree.push(assistant("Hello"));
    tree.navigate(id(2)).unwrap();
    tree
}

const SMALL: &str = r#"{"nodes":[{"id":1,"message":{"role":"user","content":[{"type":"text","text":"Hi"}],"timestamp":0}},{"id":2,"parent":1,"message":{"role":"assistant","content":[{"type":"text","text":"Ho"}],"timestamp":0},"usage":{"input":12,"cache_read":0,"cache_write":0,"output":3,"reasoning":0}},{"id":3,"parent":1,"message":{"role":"assistant","content":[{"type":"text","text":"Hello"}],"timestamp":0}}],"head":2,"cursors":[[1,2]]}"#;

#[test]
fn serialize_gives_nodes_head_and_cursors() {
    assert_eq!(serde_json::to_string(&small()).unwrap(), SMALL);
    assert_eq!(serde_json::to_string(&Tree::new()).unwrap(), r#"{"nodes":[],"head":null,"cursors":[]}"#);
}

#[test]
fn serialize_of_changes_gives_the_same_parts() {
    let changes = small().changes_since(&Tree::new()).unwrap();
    let tree: Value = serde_json::from_str(SMALL).unwrap();
    let expected = json!({ "nodes": tree["nodes"], "head": 2, "moved": true, "cursors": [[1, 2]] });
    assert_eq!(serde_json::to_string(&changes).unwrap(), expected.to_string());
}

#[test]
fn deserialize_gives_the_same_tree() {
    let tree: Tree = serde_json::from_str(SMALL).unwrap();
    assert_eq!(tree, small());
    assert_eq!(tree.usage(), small().usage());
    let mut branching = branching();
    branching.navigate(id(6)).unwrap();
    let value = serde_json::to_value(&branching).unwrap();
    assert_eq!(serde_json::from_value::<Tree>(value).unwrap(), branching);
}

#[test]
fn deserialize_inside_a_tagged_enum_works() {
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "type")]
    enum Event {
        Tree { tree: Tree },
    }
    let json = serde_json::to_string(&Event::Tree { tree: small() }).unwrap();
    let Event::Tree { tree } = serde_json::from_str(&json).unwrap();
    assert_eq!(tree, small());
}

#[test]
fn deserialize_without_head_and_cursors_has_no_path() {
    let tree: Tree =
        serde_json::from_value(json!({ "nodes": [stored(1, None), stored(5, Some(1))] })).unwrap();
    assert_eq!(tree.head(), None);
    assert_eq!(numbers(tree.nodes()), [1, 5]);
}

fn stored(id: u64, parent: Option<u64>) -> Value {
    json!({ "id": id, "parent": parent, "message": { "role": "user", "content": [] } })
}

#[test]
fn deserialize_of_an_invalid_tree_is_an_error_that_names_the_node() {
    let two = [stored(1, None), stored(2, Some(1))];
    let cases = [
        (json!({ "nodes": [stored(0, None)] }), "integer `0`"),
        (json!({ "nodes": [stored(1, Some(0))] }), "integer `0`"),
        (json!({ "nodes": [stored(1, Some(2))] }), "the parent of node 1 is node 2"),
        (json!({ "nodes": [stored(1, Some(2)), stored(2, Some(1))] }), "node 1 is its own ancestor"),
        (json!({ "nodes": [stored(1, None), stored(1, None)] }), "two nodes have the id 1"),
        (json!({ "nodes": [stored(u64::MAX, None)] }), "the id 18446744073709551615 is too large"),
        (json!({ "nodes": two, "head": 3 }), "the head is node 3"),
        (json!({ "nodes": two, "cursors": [[2, 1]] }), "the cursor of node 2 points to node 1"),
        (json!({ "nodes": two, "cursors": [[3, 1]] }), "no node 3"),
        (json!({ "nodes": [{ "id": 1, "message": null }], "head": null }), "node 1 has neither"),
        (json!({ "head": null }), "nodes"),
    ];
    for (json, names) in cases {
        let error = serde_json::from_str::<Tree>(&json.to_string()).unwrap_err().to_string();
        assert!(error.contains(names), "{error}: {names}");
    }
}

#[test]
fn tree_with_outlines_has_the_path_after_the_last_outline() {
    let stored = |number: u64| json!({ "id": number, "parent": number - 1, "message": { "role": "user", "content": [], "timestamp": 1 } });
    let outline = |number: u64, parent: Option<u64>| match parent {
        Some(parent) => json!({ "id": number, "parent": parent, "role": "assistant" }),
        None => json!({ "id": number, "role": "user" }),
    };
    let nodes = [outline(1, None), outline(2, Some(1)), stored(3), stored(4), outline(5, Some(3))];
    for (head, path) in [(4, vec![3, 4]), (5, vec![]), (1, vec![])] {
        let json = json!({ "nodes": nodes, "head": head, "cursors": if head == 4 { json!([[3, 4]]) } else { json!([]) } });
        let mut tree: Tree = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(tree.iter().map(|node| node.id().get()).collect::<Vec<_>>(), path);
        assert_eq!((tree.history().len(), tree.head()), (path.len(), Some(id(head))));
        assert_eq!(tree.nodes().filter(|node| node.is_outline()).count(), 3);
        assert_eq!(serde_json::to_value(&tree).unwrap(), json);
        tree.push(omni_agent::message::Message::user("Next"));
        assert_eq!(tree.iter().len(), path.len() + 1);
        assert_eq!(tree.iter().last().unwrap().parent(), Some(id(head)));
    }
}

#[test]
fn node_id_is_serialized_as_its_number() {
    assert_eq!(serde_json::to_string(&id(7)).unwrap(), "7");
    assert_eq!(serde_json::from_str::<NodeId>("7").unwrap(), id(7));
    assert!(serde_json::from_str::<NodeId>("0").is_err());
    assert!(serde_json::from_str::<NodeId>("-1").is_err());
}

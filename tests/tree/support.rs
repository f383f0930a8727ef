//! Helpers that build trees.

use std::sync::Arc;

use omni_agent::{
    message::{Message, Timestamp, Usage},
    tree::{Node, NodeId, Tree, TreeError},
};

pub(crate) fn id(number: u64) -> NodeId {
    NodeId::new(number).unwrap()
}

/// Returns the message with timestamp 0. Messages with equal content are then equal.
pub(crate) fn timeless(mut message: Message) -> Arc<Message> {
    message.timestamp = Timestamp(0);
    Arc::new(message)
}

pub(crate) fn user(text: &str) -> Arc<Message> {
    timeless(Message::user(text))
}

pub(crate) fn assistant(text: &str) -> Arc<Message> {
    timeless(Message::assistant(text))
}

pub(crate) fn tokens(input: u64, output: u64) -> Usage {
    Usage::default().with_input(input).with_output(output)
}

/// Returns a node with an assistant message, for use with `hydrate`.
pub(crate) fn node(number: u64, parent: u64) -> Node {
    Node::new(id(number), NodeId::new(parent), assistant(&number.to_string()))
}

pub(crate) fn numbers<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Vec<u64> {
    nodes.into_iter().map(|node| node.id().get()).collect()
}

/// Returns a tree of assistant messages. Each pair contains the id of a node and the id of its parent, or 0 if there is no
/// parent. A `head` of 0 means an empty path.
pub(crate) fn hydrate(pairs: &[(u64, u64)], head: u64, cursors: &[(u64, u64)]) -> Result<Tree, TreeError> {
    let nodes = pairs.iter().map(|(number, parent)| node(*number, *parent));
    let cursors = cursors.iter().map(|(parent, child)| (id(*parent), id(*child)));
    Tree::hydrate(nodes, NodeId::new(head), cursors)
}

/// Returns this tree of assistant messages with an empty path. Node 9 is a second root.
///
/// ```text
/// 1 ─┬─ 2 ── 3 ── 4
///    ├─ 5 ─┬─ 6
///    │     └─ 7
///    └─ 8
/// 9
/// ```
pub(crate) fn branching() -> Tree {
    let mut tree = Tree::new();
    for (parent, count) in [(0, 1), (1, 3), (1, 1), (5, 1), (5, 1), (1, 1), (0, 1)] {
        match NodeId::new(parent) {
            Some(parent) => tree.navigate(parent).unwrap(),
            None => tree.clear(),
        }
        for _ in 0..count {
            tree.push(assistant(&(tree.len() + 1).to_string()));
        }
    }
    tree.clear();
    tree
}

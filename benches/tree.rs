//! The cost of a tree with a million nodes. The benchmark measures pushes, moves from branch to branch along paths of
//! 10,000 nodes, and snapshots.
//!
//! The figures are CPU time of the whole process on one thread. In the measurement of pushes, all nodes share one
//! message, so that only the cost of the tree is measured. In the measurement of paths, each node has a separate
//! message, because the history counts references. The million nodes are a root and 100 branches of 10,000 nodes. In
//! one tree, the branches follow one another, as in a tree that a conversation creates. In the other tree, the nodes of
//! the branches alternate, so that the nodes of a path are scattered over the memory. The path moves from branch to
//! branch in two ways: directly to a leaf, or to the first node of the branch and then along the cursors to the leaf.
//! Both ways visit 10,000 nodes and rebuild the history. The figures are medians of several rounds.
//!
//! If the nodes of branches alternate, a move takes up to 1.7 ms, because the messages of the path are scattered in
//! memory.
#![allow(clippy::print_stdout, missing_docs, clippy::cast_precision_loss)]

#[allow(dead_code)]
mod support;

use std::{hint::black_box, sync::Arc};

use omni_agent::{
    message::{Message, Usage},
    tree::{Node, NodeId, Tree},
};
use support::{cpu_each, head, median, resident, row, size};

/// The number of branches of the large tree.
const BRANCHES: usize = 100;

fn main() {
    let nodes = size(1_000_000, 2_000);
    let rounds = size(15, 2);
    let message = hello();

    // Measure the memory first, because later allocations would reuse freed memory.
    head("memory of the tree, messages apart");
    let before = resident();
    let tree = grow(nodes, &message);
    let each = resident().saturating_sub(before) as f64 / nodes as f64;
    row(&format!("a node of {nodes}"), format!("{each:.0} bytes"), "");

    head(&format!("pushes, CPU of one, median of {rounds} rounds"));
    pushes(nodes, rounds, &message);

    let depth = nodes / BRANCHES;
    let goal = "≤ 1000 µs";
    for (layout, goal, make) in [("in a row", goal, in_a_row as fn(usize) -> Tree), ("mixed", "", mixed)] {
        let tree = make(depth);
        head(&format!("a path of {depth} in {} nodes, branches {layout}", tree.len()));
        paths(tree, depth, rounds, goal);
    }

    let small = grow(10, &message);
    head(&format!("CPU with 10 nodes, and with {nodes}"));
    compare("a clone", &small, &tree, |tree| drop(black_box(tree.clone())));
    compare("a node by its id", &small, &tree, |tree| {
        black_box(tree.node(id(black_box(7))));
    });
    let commit = |tree: &mut Tree| {
        let stored = tree.clone();
        tree.push_turn([Arc::clone(&message), Arc::clone(&message)], Usage::default());
        black_box(tree.changes_since(&stored).expect("the tree has changed"));
    };
    compare("a turn of two: a point, pushes, changes since", &small, &tree, commit);
    let roll_back = |tree: &mut Tree| {
        let point = tree.clone();
        tree.push_turn([Arc::clone(&message), Arc::clone(&message)], Usage::default());
        *tree = point;
    };
    compare("a turn of two, rolled back", &small, &tree, roll_back);
}

fn id(number: usize) -> NodeId {
    NodeId::new(number as u64).expect("ids begin at 1")
}

/// Returns a tree without branches.
fn grow(nodes: usize, message: &Arc<Message>) -> Tree {
    let mut tree = Tree::new();
    for _ in 0..nodes {
        tree.push(Arc::clone(message));
    }
    tree
}

fn pushes(nodes: usize, rounds: usize, message: &Arc<Message>) {
    let (mut plain, mut watched) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        plain.push(cpu_each(nodes, || drop(black_box(grow(nodes, message)))));
        let mut tree = Tree::new();
        let mut snapshot = tree.clone();
        watched.push(cpu_each(nodes, || {
            for _ in 0..nodes {
                tree.push(Arc::clone(message));
                snapshot = tree.clone();
            }
        }));
        drop(black_box((tree, snapshot)));
    }
    row(&format!("{nodes} pushes, and dropping the tree"), format!("{:.3} µs", median(plain)), "≤ 1 µs");
    row("the same, a snapshot taken after each", format!("{:.3} µs", median(watched)), "≤ 1 µs");
}

fn hello() -> Arc<Message> {
    Arc::new(Message::assistant("Hello!"))
}

/// Returns a tree whose branches follow one another.
fn in_a_row(depth: usize) -> Tree {
    let mut tree = Tree::new();
    tree.push(hello());
    for _ in 0..BRANCHES {
        tree.navigate(id(1)).expect("the root exists");
        for _ in 0..depth {
            tree.push(hello());
        }
    }
    tree
}

/// Returns a tree with the same branches as [`in_a_row`], but the nodes were added to the branches in turn.
fn mixed(depth: usize) -> Tree {
    let parent = |number: usize| match number {
        1 => None,
        _ => Some(id(number.saturating_sub(BRANCHES).max(1))),
    };
    let nodes = (1..=1 + BRANCHES * depth).map(|number| Node::new(id(number), parent(number), hello()));
    Tree::hydrate(nodes, Some(id(1)), []).expect("the tree is valid")
}

fn paths(mut tree: Tree, depth: usize, rounds: usize, goal: &str) {
    let firsts: Vec<NodeId> = tree.children(id(1)).expect("the root exists").map(Node::id).collect();
    let leaf = |first: &NodeId| {
        let mut tree = tree.clone();
        tree.navigate(*first).expect("the child exists");
        tree.extend().expect("the path is not empty")
    };
    let leaves: Vec<NodeId> = firsts.iter().map(leaf).collect();
    let (mut to_leaf, mut extended, mut shared) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        to_leaf.push(cpu_each(BRANCHES, || {
            for leaf in &leaves {
                tree.navigate(*leaf).expect("the leaf exists");
                assert_eq!(tree.history().len(), depth + 1);
            }
        }));
        extended.push(cpu_each(BRANCHES, || {
            for first in &firsts {
                tree.navigate(*first).expect("the child exists");
                tree.extend();
                assert_eq!(tree.history().len(), depth + 1);
            }
        }));
        shared.push(cpu_each(BRANCHES, || {
            for leaf in &leaves {
                let point = tree.clone();
                tree.navigate(*leaf).expect("the leaf exists");
                black_box(tree.changes_since(&point).expect("the tree has changed"));
            }
        }));
    }
    row("navigate to a leaf", format!("{:.0} µs", median(to_leaf)), goal);
    row("navigate to the branch's first node, extend", format!("{:.0} µs", median(extended)), goal);
    row("a point, navigate to a leaf, changes since", format!("{:.0} µs", median(shared)), goal);
}

/// Measures `work` alternately on a small and on a large tree.
fn compare(what: &str, small: &Tree, large: &Tree, mut work: impl FnMut(&mut Tree)) {
    const TIMES: usize = 1_000;
    let (mut on_small, mut on_large) = (Vec::new(), Vec::new());
    for _ in 0..size(51, 2) {
        for (tree, figures) in [(small, &mut on_small), (large, &mut on_large)] {
            let mut tree = tree.clone();
            figures.push(cpu_each(TIMES, || (0..TIMES).for_each(|_| work(&mut tree))));
        }
    }
    let (small, large) = (median(on_small), median(on_large));
    row(what, format!("{:.0}, {:.0} ns", small * 1e3, large * 1e3), "");
}

//! Building trees from stored parts. The parts are valid or invalid.

use omni_agent::tree::{Node, NodeId, Tree, TreeError};

use crate::support::{assistant, branching, hydrate, id, node, numbers, tokens, user};

#[test]
fn hydrate_of_the_parts_of_a_tree_gives_the_same_tree() {
    let mut tree = branching();
    tree.navigate(id(6)).unwrap();
    tree.navigate(id(3)).unwrap();
    let copy = Tree::hydrate(tree.nodes().cloned(), tree.head(), tree.cursors()).unwrap();
    assert_eq!(copy, tree);
    assert_eq!(copy.history(), tree.history());
    assert_eq!(copy.to_string(), tree.to_string());
}

#[test]
fn cursors_to_the_newest_child_are_omitted() {
    let mut tree = branching();
    assert_eq!(tree.cursors().count(), 0);
    tree.navigate(id(6)).unwrap();
    assert_eq!(tree.cursors().collect::<Vec<_>>(), [(id(1), id(5)), (id(5), id(6))]);
    tree.navigate(id(8)).unwrap();
    assert_eq!(tree.cursors().collect::<Vec<_>>(), [(id(5), id(6))]);
}

#[test]
fn hydrate_accepts_nodes_in_any_order() {
    let ordered = hydrate(&[(1, 0), (2, 1), (3, 1), (4, 0)], 2, &[]).unwrap();
    let shuffled = hydrate(&[(3, 1), (4, 0), (1, 0), (2, 1)], 2, &[]).unwrap();
    assert_eq!(ordered, shuffled);
    assert_eq!(numbers(shuffled.children(id(1)).unwrap()), [2, 3]);
    assert_eq!(numbers(shuffled.roots()), [1, 4]);
}

#[test]
fn hydrate_accepts_parents_with_higher_ids() {
    let tree = hydrate(&[(1, 3), (2, 3), (3, 5), (5, 0)], 1, &[]).unwrap();
    assert_eq!(numbers(&tree), [5, 3, 1]);
    assert_eq!(numbers(tree.children(id(3)).unwrap()), [1, 2]);
    assert_eq!(numbers(tree.roots()), [5]);
}

#[test]
fn hydrate_accepts_gaps_of_any_size() {
    let far = 1 << 62;
    let pairs = [(3, 0), (4, 3), (70, 4), (far, 4), (far + 1, far)];
    let mut tree = hydrate(&pairs, far + 1, &[]).unwrap();
    assert_eq!(numbers(&tree), [3, 4, far, far + 1]);
    assert_eq!(numbers(tree.children(id(4)).unwrap()), [70, far]);
    for (number, parent) in pairs {
        assert_eq!(*tree.node(id(number)).unwrap(), node(number, parent));
    }
    for number in [1, 2, 5, 69, 71, far - 1, far + 2, u64::MAX] {
        assert!(tree.node(id(number)).is_none(), "{number} is a gap");
    }
    assert_eq!(tree.push(user("next")), id(far + 2));
    assert!(tree.node(id(far + 2)).is_some());
}

#[test]
fn hydrate_counts_usage() {
    let nodes = [node(1, 0), node(2, 1).with_usage(tokens(1, 2)), node(3, 1).with_usage(tokens(3, 4))];
    assert_eq!(Tree::hydrate(nodes, None, []).unwrap().usage(), tokens(4, 6));
}

#[test]
fn hydrate_without_a_head_has_no_path() {
    let tree = hydrate(&[(1, 0), (2, 1)], 0, &[]).unwrap();
    assert_eq!(tree.head(), None);
    assert!(tree.history().is_empty());
}

#[test]
fn hydrate_with_several_cursors_for_a_node_uses_the_last() {
    let tree = hydrate(&[(1, 0), (2, 1), (3, 1), (4, 1)], 0, &[(1, 2), (1, 4), (1, 3)]).unwrap();
    assert_eq!(tree.cursor(id(1)), Some(id(3)));
}

#[test]
fn hydrate_with_cursors_that_contradict_the_path_follows_the_path() {
    let mut tree = hydrate(&[(1, 0), (2, 1), (3, 1), (4, 2)], 4, &[(1, 3)]).unwrap();
    assert_eq!(tree.cursor(id(1)), Some(id(2)));
    assert_eq!(numbers(&tree), [1, 2, 4]);
    tree.navigate(id(1)).unwrap();
    assert_eq!(tree.extend(), Some(id(4)));
}

#[test]
fn hydrate_with_an_unknown_parent_is_an_error() {
    let error = hydrate(&[(1, 0), (2, 7)], 0, &[]).unwrap_err();
    assert_eq!(error, TreeError::UnknownParent { id: id(2), parent: id(7) });
    assert_eq!(error.to_string(), "the parent of node 2 is node 7, which does not exist");
}

#[test]
fn hydrate_with_a_duplicate_id_is_an_error() {
    let duplicate = Err(TreeError::DuplicateId { id: id(2) });
    assert_eq!(hydrate(&[(1, 0), (2, 1), (2, 1)], 0, &[]), duplicate);
    assert_eq!(
        hydrate(&[(2, 0), (1, 0), (3, 1), (2, 1)], 0, &[]),
        duplicate,
        "the duplicates need not be adjacent"
    );
}

#[test]
fn hydrate_with_a_cycle_is_an_error_that_names_a_node_on_it() {
    let cycle = |pairs: &[(u64, u64)]| match hydrate(pairs, 0, &[]) {
        Err(TreeError::Cycle { id }) => id.get(),
        other => panic!("expected a cycle, got {other:?}"),
    };
    assert_eq!(cycle(&[(1, 1)]), 1);
    assert_eq!(cycle(&[(1, 0), (2, 2)]), 2);
    assert!([1, 2].contains(&cycle(&[(1, 2), (2, 1)])));
    assert!(
        [4, 5, 6].contains(&cycle(&[(1, 0), (2, 1), (3, 4), (4, 6), (5, 4), (6, 5)])),
        "node 3 leads to the cycle, but is not on it"
    );
}

#[test]
fn hydrate_with_an_unknown_head_is_an_error() {
    for head in [3, u64::MAX] {
        assert_eq!(hydrate(&[(1, 0), (2, 1)], head, &[]), Err(TreeError::UnknownHead { id: id(head) }));
    }
    assert_eq!(hydrate(&[], 1, &[]), Err(TreeError::UnknownHead { id: id(1) }));
}

#[test]
fn hydrate_with_a_cursor_to_a_node_that_is_not_a_child_is_an_error() {
    let with = |parent, child| hydrate(&[(1, 0), (2, 1), (3, 2)], 0, &[(parent, child)]);
    let no_child = |parent, child| Err(TreeError::NotAChild { id: id(parent), child: id(child) });
    assert_eq!(with(1, 3), no_child(1, 3));
    assert_eq!(with(1, 1), no_child(1, 1));
    assert_eq!(with(2, 1), no_child(2, 1));
    assert_eq!(with(3, 9), no_child(3, 9));
    assert_eq!(with(9, 1), Err(TreeError::UnknownNode { id: id(9) }));
}

#[test]
fn hydrate_with_an_id_too_large_is_an_error() {
    for number in [u64::MAX, i64::MAX as u64] {
        assert_eq!(hydrate(&[(1, 0), (number, 1)], 0, &[]), Err(TreeError::IdTooLarge { id: id(number) }));
    }
}

/// Returns a chain of nodes that share one message. `parent` returns the parent of each node.
fn chain(depth: u64, parent: impl Fn(u64) -> u64) -> impl Iterator<Item = Node> {
    let message = assistant("deep");
    (1..=depth).map(move |number| Node::new(id(number), NodeId::new(parent(number)), message.clone()))
}

#[test]
fn hydrate_of_a_deep_chain_needs_no_stack() {
    const DEPTH: u64 = 1_000_000;
    let mut tree = Tree::hydrate(chain(DEPTH, |number| number - 1), Some(id(1)), []).unwrap();
    assert_eq!(tree.extend(), Some(id(DEPTH)));
    assert_eq!(tree.history().len(), 1_000_000);
    assert_eq!(tree.path_to(id(DEPTH)).unwrap().len(), 1_000_000);
    assert_eq!(tree.to_string().lines().count(), 1_000_000);
}

#[test]
fn hydrate_of_a_deep_chain_upside_down_needs_no_stack() {
    const DEPTH: u64 = 200_000;
    let tree = Tree::hydrate(chain(DEPTH, |number| (number + 1) % (DEPTH + 1)), Some(id(1)), []).unwrap();
    assert_eq!(tree.history().len(), 200_000);
    let ring = Tree::hydrate(chain(DEPTH, |number| number % DEPTH + 1), Some(id(1)), []);
    assert!(matches!(ring, Err(TreeError::Cycle { .. })));
}

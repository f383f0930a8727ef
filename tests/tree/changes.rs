//! How the changes of a tree since an earlier state are found, and how they are applied to a copy.

use omni_agent::{
    message::Usage,
    tree::{Changes, Node, Tree, TreeError},
};
use proptest::prelude::*;

use crate::support::{assistant, branching, id, node, numbers, tokens, user};

#[test]
fn changes_since_an_ordinary_turn_are_its_nodes_and_the_head() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let point = tree.clone();
    tree.push_turn([user("a"), assistant("b")], tokens(1, 1));
    let changes = tree.changes_since(&point).unwrap();
    assert_eq!(numbers(&changes.nodes), [10, 11]);
    assert_eq!(changes.nodes[1].usage(), Some(&tokens(1, 1)));
    assert_eq!((changes.head, changes.moved), (Some(id(11)), true));
    assert_eq!(changes.cursors, [], "a first child needs no cursor");
}

#[test]
fn changes_since_an_unchanged_tree_are_empty() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let changes = tree.changes_since(&tree.clone()).unwrap();
    assert!(changes.is_empty());
    assert_eq!(changes.head, Some(id(4)));
    assert!(Tree::new().changes_since(&Tree::new()).unwrap().is_empty());
}

#[test]
fn changes_since_a_navigation_are_cursors_and_the_head() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let point = tree.clone();
    tree.navigate(id(6)).unwrap();
    let changes = tree.changes_since(&point).unwrap();
    assert!(changes.nodes.is_empty());
    assert_eq!((changes.head, changes.moved), (Some(id(6)), true));
    assert_eq!(changes.cursors, [(id(1), id(5)), (id(5), id(6))]);
    assert!(!changes.is_empty());
}

#[test]
fn changes_since_a_cleared_path_are_the_head() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let point = tree.clone();
    tree.clear();
    let changes = tree.changes_since(&point).unwrap();
    assert_eq!((changes.head, changes.moved), (None, true));
    assert!(!changes.is_empty());
    assert!(changes.cursors.is_empty());
}

#[test]
fn changes_since_a_second_child_have_the_cursor_even_if_it_went_back() {
    let mut tree = Tree::new();
    tree.push(user("a"));
    tree.push(assistant("b"));
    let point = tree.clone();
    tree.navigate(id(1)).unwrap();
    tree.push(assistant("c"));
    assert_eq!(tree.changes_since(&point).unwrap().cursors, [(id(1), id(3))]);
    tree.navigate(id(2)).unwrap();
    let changes = tree.changes_since(&point).unwrap();
    assert_eq!(changes.cursors, [(id(1), id(2))], "without a cursor, a copy would follow the newest child");
    assert!(!changes.moved);
}

#[test]
fn changes_since_an_abandoned_state_are_none() {
    let mut tree = branching();
    let point = tree.clone();
    tree.push(user("a"));
    let abandoned = tree.clone();
    tree = point.clone();
    assert_eq!(tree.changes_since(&abandoned), None, "shorter");
    tree.push(user("b"));
    assert_eq!(tree.changes_since(&abandoned), None, "the same length, with another node");
    tree.push(user("c"));
    assert_eq!(tree.changes_since(&abandoned), None, "longer");
    assert_eq!(numbers(tree.changes_since(&point).unwrap().nodes.iter()), [10, 11]);
}

#[test]
fn changes_since_an_empty_tree_are_the_whole_tree() {
    let mut tree = branching();
    tree.navigate(id(2)).unwrap();
    let changes = tree.changes_since(&Tree::new()).unwrap();
    let mut copy = Tree::new();
    copy.apply(&changes).unwrap();
    assert_eq!(copy, tree);
}

#[test]
fn apply_of_changes_gives_the_same_tree() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let mut copy = tree.clone();
    tree.navigate(id(5)).unwrap();
    tree.push_turn([user("a"), assistant("b")], tokens(1, 2));
    tree.navigate(id(7)).unwrap();
    let changes = tree.changes_since(&copy).unwrap();
    let sent: Changes = serde_json::from_str(&serde_json::to_string(&changes).unwrap()).unwrap();
    assert_eq!(sent, changes);
    copy.apply(&sent).unwrap();
    assert_eq!(copy, tree);
    assert_eq!(copy.history(), tree.history());
    assert_eq!(copy.usage(), tree.usage());
}

#[test]
fn apply_of_changes_that_do_not_fit_is_an_error_and_changes_nothing() {
    let mut tree = branching();
    tree.navigate(id(4)).unwrap();
    let before = tree.clone();
    let sound = || {
        let mut changes = Changes::default();
        (changes.nodes, changes.head) = (vec![node(10, 4)], Some(id(10)));
        changes
    };
    let with_nodes = |nodes| {
        let mut changes = sound();
        changes.nodes = nodes;
        changes
    };
    let with_cursor = |cursor| {
        let mut changes = sound();
        changes.cursors = vec![cursor];
        changes
    };
    let mut unknown_head = sound();
    unknown_head.head = Some(id(11));
    let cases = [
        (with_nodes(vec![node(10, 4), node(12, 10)]), TreeError::NotNext { id: id(12), next: id(11) }),
        (with_nodes(vec![node(9, 4)]), TreeError::NotNext { id: id(9), next: id(10) }),
        (with_nodes(vec![node(10, 10)]), TreeError::UnknownParent { id: id(10), parent: id(10) }),
        (unknown_head, TreeError::UnknownHead { id: id(11) }),
        (with_cursor((id(1), id(3))), TreeError::NotAChild { id: id(1), child: id(3) }),
        (with_cursor((id(11), id(3))), TreeError::UnknownNode { id: id(11) }),
    ];
    for (changes, error) in cases {
        assert_eq!(tree.apply(&changes), Err(error));
        assert_eq!(tree, before);
        assert_eq!(tree.len(), 9);
    }
    tree.apply(&sound()).unwrap();
    assert_eq!(tree.head(), Some(id(10)));
}

proptest! {
    /// A cost such as NaN is not equal to itself. Such a cost must not make two states of one tree look unrelated.
    #[test]
    fn changes_since_a_turn_with_any_cost_are_found(costs in proptest::collection::vec(proptest::option::of(proptest::num::f64::ANY), 1..6)) {
        let mut tree = Tree::new();
        for &cost in &costs {
            let before = tree.clone();
            tree.push_turn([user("a"), assistant("b")], Usage::default().with_cost(cost));
            prop_assert_eq!(tree.changes_since(&before).map(|changes| changes.nodes.len()), Some(2));
            prop_assert!(tree.changes_since(&tree.clone()).is_some_and(|changes| changes.nodes.is_empty()));
        }
        prop_assert!(tree.usage().cost.is_none_or(f64::is_finite));
        let nodes: Vec<Node> = tree.nodes().cloned().collect();
        let hydrated = Tree::hydrate(nodes, tree.head(), tree.cursors()).unwrap();
        prop_assert_eq!(&hydrated, &tree);
        prop_assert!(tree.changes_since(&hydrated).is_some());
    }
}

//! The tree is compared with a naive model, which searches all nodes for every query.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use omni_agent::{
    message::{History, Message, Role, Usage},
    tree::{Changes, Node, NodeId, Tree},
};
use proptest::{collection::vec, prelude::*};

use crate::support::{assistant, id, numbers, tokens, user};

/// A model that follows the documented rules of the tree. It records every cursor.
#[derive(Clone, Debug, Default)]
struct Model {
    nodes: Vec<Entry>,
    path: Vec<u64>,
    cursors: BTreeMap<u64, u64>,
    /// The highest id that was ever used.
    highest: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    id: u64,
    parent: Option<u64>,
    message: Arc<Message>,
    usage: Option<Usage>,
}

impl Model {
    fn entry(&self, id: u64) -> &Entry {
        self.nodes.iter().find(|entry| entry.id == id).unwrap()
    }

    fn push(&mut self, message: Arc<Message>, usage: Option<Usage>) {
        self.highest += 1;
        let id = self.highest;
        let parent = self.path.last().copied();
        if let Some(parent) = parent {
            self.cursors.insert(parent, id);
        }
        self.nodes.push(Entry { id, parent, message, usage });
        self.path.push(id);
    }

    fn path_to(&self, id: u64) -> Vec<u64> {
        let mut path = vec![id];
        while let Some(parent) = self.entry(path[0]).parent {
            path.insert(0, parent);
        }
        path
    }

    fn children(&self, parent: Option<u64>) -> Vec<u64> {
        self.nodes.iter().filter(|entry| entry.parent == parent).map(|entry| entry.id).collect()
    }

    fn navigate(&mut self, id: u64) {
        self.path = self.path_to(id);
        self.cursors.extend(self.path.windows(2).map(|pair| (pair[0], pair[1])));
    }

    fn active_child(&self, id: u64) -> Option<u64> {
        let newest = self.children(Some(id)).into_iter().max();
        self.cursors.get(&id).copied().or(newest)
    }

    fn extend(&mut self) {
        while let Some(below) = self.path.last().and_then(|head| self.active_child(*head)) {
            if self.entry(below).message.role == Role::User && self.children(Some(below)).is_empty() {
                break;
            }
            self.path.push(below);
        }
    }

    /// Adds a prompt that is not on the path.
    fn graft(&mut self, parent: Option<u64>, message: Arc<Message>) {
        self.highest += 1;
        if let Some(parent) = parent {
            let active = self.active_child(parent).unwrap_or(self.highest);
            self.cursors.insert(parent, active);
        }
        self.nodes.push(Entry { id: self.highest, parent, message, usage: None });
    }

    /// Adds `by` to each id that is at least `from`.
    fn renumber(&mut self, from: u64, by: u64) {
        let renumbered = |id: u64| if id >= from { id + by } else { id };
        self.highest = renumbered(self.highest);
        for entry in &mut self.nodes {
            entry.id = renumbered(entry.id);
            entry.parent = entry.parent.map(renumbered);
        }
        self.path.iter_mut().for_each(|id| *id = renumbered(*id));
        self.cursors = self.cursors.iter().map(|(k, v)| (renumbered(*k), renumbered(*v))).collect();
    }

    /// Removes a node and all nodes below it. Returns the ids of the removed nodes.
    fn erase(&mut self, id: u64) -> Vec<u64> {
        let all: Vec<u64> = self.nodes.iter().map(|entry| entry.id).collect();
        let gone: Vec<u64> = all.into_iter().filter(|other| self.path_to(*other).contains(&id)).collect();
        if self.path.contains(&id) {
            self.path.truncate(self.path.iter().position(|other| *other == id).unwrap());
            while self.path.last().is_some_and(|head| self.entry(*head).message.role == Role::User) {
                self.path.pop();
            }
        }
        self.nodes.retain(|entry| !gone.contains(&entry.id));
        self.cursors.retain(|node, child| !gone.contains(node) && !gone.contains(child));
        gone
    }

    fn stored(&self) -> Stored {
        let node = |entry: &Entry| {
            let node = Node::new(id(entry.id), entry.parent.map(id), Arc::clone(&entry.message));
            entry.usage.into_iter().fold(node, Node::with_usage)
        };
        Stored {
            nodes: self.nodes.iter().map(node).collect(),
            head: self.path.last().copied().map(id),
            cursors: self.cursors.iter().map(|(parent, child)| (id(*parent), id(*child))).collect(),
            next: self.highest + 1,
        }
    }
}

/// The content of a store.
#[derive(Clone, Debug)]
struct Stored {
    nodes: Vec<Node>,
    head: Option<NodeId>,
    cursors: Vec<(NodeId, NodeId)>,
    next: u64,
}

impl Stored {
    fn load(&self) -> Tree {
        let tree =
            Tree::hydrate(self.nodes.iter().cloned(), self.head, self.cursors.iter().copied()).unwrap();
        tree.with_next_id(id(self.next)).unwrap()
    }

    fn commit(&mut self, tree: &Tree, since: &Tree) {
        let changes = tree.changes_since(since).unwrap();
        self.nodes.extend(changes.nodes);
        self.head = changes.head;
        self.cursors.extend(changes.cursors);
        self.next = tree.next_id().get();
    }
}

/// Compares the results of all queries on the tree with those on the model.
fn assert_agrees(tree: &Tree, model: &Model) {
    assert_eq!(tree.len(), model.nodes.len());
    assert_eq!(tree.head(), model.path.last().copied().map(id));
    assert_eq!(tree.next_id(), id(model.highest + 1));
    assert_eq!(numbers(tree), model.path);
    assert_eq!(tree.iter().len(), model.path.len());
    let mut backwards = numbers(tree.iter().rev());
    backwards.reverse();
    assert_eq!(backwards, model.path);
    let history: History = model.path.iter().map(|id| Arc::clone(&model.entry(*id).message)).collect();
    assert_eq!(*tree.history(), history);
    assert_eq!(tree.usage(), model.nodes.iter().filter_map(|entry| entry.usage).sum());
    assert_eq!(numbers(tree.roots()), model.children(None));
    assert_eq!(numbers(tree.nodes()), model.nodes.iter().map(|entry| entry.id).collect::<Vec<_>>());
    assert_eq!(tree.to_string().lines().count(), model.nodes.len());
    for entry in &model.nodes {
        let id = id(entry.id);
        let node = tree.node(id).unwrap();
        assert_eq!((node.id(), node.parent().map(NodeId::get)), (id, entry.parent));
        assert!(Arc::ptr_eq(node.message(), &entry.message));
        assert_eq!(node.usage(), entry.usage.as_ref());
        assert_eq!(numbers(tree.children(id).unwrap()), model.children(Some(entry.id)));
        assert_eq!(numbers(tree.siblings(id).unwrap()), model.children(entry.parent));
        assert_eq!(tree.cursor(id).map(NodeId::get), model.active_child(entry.id));
        assert_eq!(numbers(tree.path_to(id).unwrap()), model.path_to(entry.id));
    }
    let known: BTreeSet<u64> = model.nodes.iter().map(|entry| entry.id).collect();
    let beside = known.iter().flat_map(|id| [id - 1, id + 1]).filter(|id| *id > 0 && !known.contains(id));
    assert!(beside.into_iter().all(|unknown| tree.node(id(unknown)).is_none()));
}

#[derive(Clone, Debug)]
enum Step {
    Push,
    Turn(u8),
    /// Applies changes that add an unanswered prompt and keep the head and the cursor.
    Graft(Option<prop::sample::Index>),
    Navigate(prop::sample::Index),
    Extend,
    Clear,
    /// Adds a point to which the test can return, and stores the changes since the last point.
    Mark,
    /// Returns to an earlier point, and forgets all later points.
    Return(prop::sample::Index),
    /// Continues with a tree that is loaded from the model's data.
    Hydrate,
    /// Continues with a tree that is loaded without the stored cursors. Only the cursors that the path implies remain.
    Forget,
    /// Serializes the tree to JSON, and reads it from that JSON again.
    Serde,
    /// Applies the changes since the last point to the clone of the tree at that point.
    Apply,
    /// Erases a node with all nodes below it.
    Erase(prop::sample::Index),
    /// Inserts a gap between two ids.
    Renumber(prop::sample::Index, u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Push),
        3 => (0u8..6).prop_map(Step::Turn),
        3 => any::<Option<prop::sample::Index>>().prop_map(Step::Graft),
        8 => any::<prop::sample::Index>().prop_map(Step::Navigate),
        4 => Just(Step::Extend),
        1 => Just(Step::Clear),
        3 => Just(Step::Mark),
        2 => any::<prop::sample::Index>().prop_map(Step::Return),
        1 => Just(Step::Hydrate),
        1 => Just(Step::Forget),
        1 => Just(Step::Serde),
        2 => Just(Step::Apply),
        2 => any::<prop::sample::Index>().prop_map(Step::Erase),
        1 => (any::<prop::sample::Index>(), prop_oneof![1u64..5, Just(1 << 50)])
            .prop_map(|(at, by)| Step::Renumber(at, by)),
    ]
}

/// A point: the tree and the model at that time, and the content of a store that received all changes up to the point.
type Point = (Tree, Model, Stored);

struct World {
    tree: Tree,
    model: Model,
    points: Vec<Point>,
}

/// Applies changes that add an unanswered prompt and keep the head and the cursor.
fn graft(tree: &mut Tree, model: &mut Model, index: Option<prop::sample::Index>) {
    let parent = index.filter(|_| !model.nodes.is_empty()).map(|index| index.get(&model.nodes).id);
    let prompt = user(&format!("failed {}", model.nodes.len()));
    let mut changes = Changes::default();
    changes.nodes = vec![Node::new(tree.next_id(), parent.map(id), Arc::clone(&prompt))];
    changes.head = tree.head();
    let cursor = parent.and_then(|parent| Some((id(parent), tree.cursor(id(parent))?)));
    changes.cursors.extend(cursor);
    tree.apply(&changes).unwrap();
    model.graft(parent, prompt);
}

impl World {
    fn new() -> Self {
        let start = (Tree::new(), Model::default(), Model::default().stored());
        Self { tree: Tree::new(), model: Model::default(), points: vec![start] }
    }

    /// Continues with a tree that shares no data with the old tree.
    fn restart(&mut self, tree: Tree) {
        self.tree = tree;
        self.points = vec![(self.tree.clone(), self.model.clone(), self.model.stored())];
    }

    fn step(&mut self, step: &Step) {
        let Self { tree, model, points } = self;
        match step {
            Step::Push => {
                let message = user(&model.nodes.len().to_string());
                tree.push(Arc::clone(&message));
                model.push(message, None);
            }
            Step::Turn(len) => {
                let usage = tokens(u64::from(*len), 1).with_cost(0.25);
                let turn: Vec<_> =
                    (0..*len).map(|i| if i % 3 == 1 { assistant("a") } else { user("u") }).collect();
                let noted = turn.iter().rposition(|message| *message == assistant("a"));
                let noted = noted.or(turn.len().checked_sub(1));
                let ids = tree.push_turn(turn.clone(), usage);
                for (index, message) in turn.into_iter().enumerate() {
                    model.push(message, (Some(index) == noted).then_some(usage));
                }
                let pushed = model.path[model.path.len() - usize::from(*len)..].iter().copied();
                assert_eq!(ids, pushed.map(id).collect::<Vec<_>>());
            }
            Step::Graft(index) => graft(tree, model, *index),
            Step::Navigate(index) if !model.nodes.is_empty() => {
                let target = index.get(&model.nodes).id;
                tree.navigate(id(target)).unwrap();
                model.navigate(target);
            }
            Step::Extend => {
                model.extend();
                assert_eq!(tree.extend(), model.path.last().copied().map(id));
            }
            Step::Clear => {
                tree.clear();
                model.path.clear();
            }
            Step::Mark => {
                let (last, _, stored) = points.last().unwrap();
                let mut stored = stored.clone();
                stored.commit(tree, last);
                points.push((tree.clone(), model.clone(), stored));
            }
            Step::Return(index) => {
                points.truncate(index.index(points.len()) + 1);
                (*tree, *model, _) = points.last().unwrap().clone();
            }
            Step::Hydrate => {
                let tree = model.stored().load();
                self.restart(tree);
            }
            Step::Forget => {
                model.cursors = model.path.windows(2).map(|pair| (pair[0], pair[1])).collect();
                let mut stored = model.stored();
                stored.cursors.clear();
                stored.nodes.reverse();
                self.restart(stored.load());
            }
            Step::Serde => {
                let json = serde_json::to_string(tree).unwrap();
                let copy: Tree = serde_json::from_str(&json).unwrap();
                assert_eq!(copy, *tree);
                assert_eq!(copy.usage(), tree.usage());
                assert_eq!(serde_json::to_string(&copy).unwrap(), json);
            }
            Step::Apply => {
                let (last, ..) = points.last().unwrap();
                let mut copy = last.clone();
                copy.apply(&tree.changes_since(last).unwrap()).unwrap();
                assert_eq!(copy, *tree);
                *tree = copy;
            }
            Step::Renumber(index, by) if !model.nodes.is_empty() => {
                // If the ids are already this large, another gap would leave no room for more ids.
                if model.nodes.last().unwrap().id < 1 << 60 {
                    model.renumber(index.get(&model.nodes).id, *by);
                    let tree = model.stored().load();
                    self.restart(tree);
                }
            }
            Step::Erase(index) if !model.nodes.is_empty() => {
                let (earlier, model_before) = (tree.clone(), model.clone());
                let top = index.get(&model.nodes).id;
                let gone = model.erase(top);
                let erased = tree.erase(id(top)).unwrap();
                assert_eq!(erased.nodes.iter().map(|id| id.get()).collect::<Vec<_>>(), gone);
                assert_eq!((erased.head, erased.next), (tree.head(), tree.next_id()));
                assert_agrees(&earlier, &model_before);
                assert_eq!(tree.changes_since(&earlier), None);
                let mut copy = earlier.clone();
                copy.apply_erased(&erased).unwrap();
                assert_eq!(copy, *tree);
                assert!(copy.apply_erased(&erased).is_err());
                assert_eq!(copy, *tree);
                let tree = tree.clone();
                self.restart(tree);
            }
            Step::Navigate(_) | Step::Erase(_) | Step::Renumber(..) => {}
        }
    }

    /// Checks the tree and all points. The points must be unchanged, no matter what happened since they were added.
    fn check(&self) {
        assert_agrees(&self.tree, &self.model);
        for (tree, model, stored) in &self.points {
            assert_agrees(tree, model);
            assert_eq!(stored.load(), *tree, "the store has the tree of all commits");
        }
        let (last, _, stored) = self.points.last().unwrap();
        let mut stored = stored.clone();
        stored.commit(&self.tree, last);
        assert_eq!(stored.load(), self.tree);
    }
}

proptest! {
    #[test]
    fn tree_agrees_with_the_model(steps in vec(step(), 0..60)) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            assert_agrees(&world.tree, &world.model);
        }
        world.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// These trees have more nodes than fit into one leaf or one branch of their data structure.
    #[test]
    fn tree_of_thousands_of_nodes_agrees_with_the_model(
        bursts in vec((0usize..700, any::<prop::sample::Index>(), step()), 1..6),
    ) {
        let mut world = World::new();
        for (count, index, step) in bursts {
            for _ in 0..count {
                world.step(&Step::Push);
            }
            world.step(&Step::Mark);
            world.step(&Step::Navigate(index));
            world.step(&step);
        }
        prop_assert_eq!(&world.model.stored().load(), &world.tree);
        for (tree, model, stored) in &world.points {
            prop_assert_eq!(&stored.load(), tree);
            prop_assert_eq!(numbers(tree), model.path.clone());
            prop_assert_eq!(tree.len(), model.nodes.len());
        }
    }
}

/// This tree has enough nodes for leaves, branches, and branches of branches in its data structure. The snapshots of
/// all stages must stay unchanged.
#[test]
fn tree_of_forty_thousand_nodes_keeps_its_snapshots() {
    let mut tree = Tree::new();
    let mut snapshots = Vec::new();
    for number in 1..=40_000_u64 {
        if number % 1_000 == 0 {
            snapshots.push((number, tree.clone()));
            tree.navigate(id(number / 2)).unwrap();
        }
        assert_eq!(tree.push(user("")), id(number));
    }
    for (number, snapshot) in snapshots {
        assert_eq!(snapshot.len() as u64, number - 1);
        assert!(snapshot.node(id(number)).is_none());
        let last = snapshot.nodes().last().unwrap().id();
        assert_eq!(last, id(number - 1));
        let count = |tree: &Tree| tree.children(id(number / 2)).unwrap().count();
        assert_eq!(count(&snapshot), 1, "{number}");
        assert_eq!(count(&tree), 2);
        let changes = tree.changes_since(&snapshot).unwrap();
        assert_eq!(changes.nodes.len() as u64, 40_001 - number);
        assert_eq!(changes.nodes[0].id(), id(number));
        let mut copy = snapshot.clone();
        copy.apply(&changes).unwrap();
        assert_eq!(copy, tree);
    }
}

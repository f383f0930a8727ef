//! A branching conversation: pure data, indexed, with nothing overwritten.
//!
//! A [`Tree`] holds every message of a conversation as a [`Node`]. Its *path* runs from a root to the *head*;
//! the messages on it are the conversation as it stands. A push appends at the head; navigating moves the
//! head, so that the next push makes a branch. A *cursor* remembers which child of a node was active last.
//!
//! ```
//! use omni_agent::message::{Message, Usage};
//! use omni_agent::tree::Tree;
//!
//! let mut tree = Tree::new();
//! let usage = Usage { input: 12, output: 30, ..Usage::default() };
//! let question = Message::user("Name three mountains.");
//! let turn = tree.push_turn([question, Message::assistant("Everest, K2, Lhotse.")], usage);
//! tree.push_turn([Message::user("Higher!"), Message::assistant("There are none.")], usage);
//!
//! // Another answer to the question, and on from there.
//! tree.navigate(turn[0])?;
//! tree.push_turn([Message::assistant("Fuji, Etna, Teide.")], usage);
//! tree.push_turn([Message::user("And rivers?"), Message::assistant("Nile, Amazon, Yangtze.")], usage);
//! // Another first message.
//! tree.clear();
//! tree.push(Message::user("Hello?"));
//! // Back to the branch before.
//! tree.navigate(turn[0])?;
//! tree.extend();
//!
//! assert_eq!(tree.history().len(), 4);
//! assert_eq!(tree.to_string(), "\
//! * ├─ 1 user: Name three mountains.
//!   │  ├─ 2 assistant: Everest, K2, Lhotse.
//!   │  │  3 user: Higher!
//!   │  │  4 assistant: There are none.
//! * │  └─ 5 assistant: Fuji, Etna, Teide.
//! * │     6 user: And rivers?
//! > │     7 assistant: Nile, Amazon, Yangtze.
//!   └─ 8 user: Hello?");
//! # Ok::<(), omni_agent::tree::TreeError>(())
//! ```
//!
//! # Snapshots and rolling back
//!
//! A clone of a tree costs the same whatever the tree's size: it shares everything. A change after it copies
//! the few dozen links and nodes around the place of the change, never a message. So a clone is a snapshot for
//! others; it is a point to roll back to, by assigning it back; and [`Tree::changes_since`] tells what was
//! done since, at the price of what was done.

mod changes;
mod chunks;
mod error;
mod hydrate;
mod iter;
mod links;
mod node;
mod outline;

pub use changes::Changes;
pub use error::TreeError;
pub use iter::{Children, Path};
pub use node::{Node, NodeId};

use std::{fmt, sync::Arc};

use crate::message::{History, Message, Role, Usage};
use chunks::Chunks;
use links::{Ids, Links, Slot};

/// A branching conversation, with the path that is active. See the [module](self) for an example.
///
/// Of `n` nodes, `d` on the path: a push is amortised O(1), [`navigate`](Self::navigate) O(d), a lookup by id
/// O(1) (O(log gaps) in a tree whose ids have gaps), a clone O(1).
///
/// Serialised as its nodes in the order of their ids, the head, and those cursors that don't point to the
/// newest child. What is deserialised is checked as by [`Tree::hydrate`].
#[derive(Clone)]
pub struct Tree {
    nodes: Chunks<Node>,
    links: Chunks<Links>,
    ids: Ids,
    newest_root: Option<Slot>,
    path: Option<Ends>,
    /// The messages of the path.
    history: History,
    usage: Usage,
}

/// The ends of the path. What lies between is where the cursors lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ends {
    root: Slot,
    head: Slot,
}

impl Tree {
    /// A tree without nodes.
    pub const fn new() -> Self {
        Self {
            nodes: Chunks::new(),
            links: Chunks::new(),
            ids: Ids::new(),
            newest_root: None,
            path: None,
            history: History::new(),
            usage: Usage { input: 0, cache_read: 0, cache_write: 0, output: 0, reasoning: 0, cost: None },
        }
    }

    /// How many nodes there are, on all branches. O(1).
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node. O(1).
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The node at the end of the path; `None` while the path is empty. O(1).
    pub fn head(&self) -> Option<NodeId> {
        self.path.map(|path| self.at(path.head).id())
    }

    /// The messages of the path. O(1): they are kept in step with it, and shared.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// What all turns on all branches took together. O(1).
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// The node with this id. O(1), O(log gaps) in a tree whose ids have gaps.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(self.ids.index(id, self.len())?)
    }

    /// All nodes, in the order of their ids. O(1) each.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter()
    }

    /// The nodes of the path, from its root to the head. O(1) each.
    pub fn iter(&self) -> Path<'_> {
        Path::new(self, self.path.map(|path| (path.root, path.head)), self.history.len())
    }

    /// The roots, oldest first. O(1) each.
    pub fn roots(&self) -> Children<'_> {
        Children::new(self, self.newest_root)
    }

    /// The children of a node, oldest first; `None` if there is no such node. O(1) each.
    pub fn children(&self, id: NodeId) -> Option<Children<'_>> {
        Some(Children::new(self, self.links(self.slot(id)?).newest))
    }

    /// The children of a node's parent, or the roots for a root, oldest first: the node is among them. `None`
    /// if there is no such node. O(1) each.
    pub fn siblings(&self, id: NodeId) -> Option<Children<'_>> {
        Some(Children::new(self, self.newest_beside(self.slot(id)?)))
    }

    /// The child of a node that was active last, which [`extend`](Self::extend) follows; `None` for a leaf and
    /// an unknown node. O(1).
    pub fn cursor(&self, id: NodeId) -> Option<NodeId> {
        let cursor = self.links(self.slot(id)?).cursor?;
        Some(self.at(cursor).id())
    }

    /// The cursors, each a node and its child, that don't point to the newest child: with the nodes and the
    /// head, all that [`hydrate`](Self::hydrate) needs to make the same tree. In the order of ids. O(n).
    pub fn cursors(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.nodes.iter().zip(self.links.iter()).filter_map(|(node, links)| {
            let cursor = links.cursor.filter(|_| links.cursor != links.newest)?;
            Some((node.id(), self.at(cursor).id()))
        })
    }

    /// The nodes from the root to this one, it included, whatever path is active; `None` if there is no such
    /// node. O(its depth).
    pub fn path_to(&self, id: NodeId) -> Option<Vec<&Node>> {
        let mut slot = self.slot(id)?;
        let mut path = vec![self.at(slot)];
        while let Some(parent) = self.links(slot).parent {
            path.push(self.at(parent));
            slot = parent;
        }
        path.reverse();
        Some(path)
    }

    /// Appends a message at the head, which it becomes; a root if the path is empty. Amortised O(1).
    ///
    /// # Panics
    ///
    /// With 2^32 - 1 nodes in the tree.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) -> NodeId {
        self.push_node(message.into(), None)
    }

    /// Appends the messages of a turn one after another, and notes on its last assistant message what the turn
    /// took (on its last message, if there is none from an assistant). Gives the new ids. O(messages).
    ///
    /// # Panics
    ///
    /// As [`push`](Self::push).
    pub fn push_turn<M: Into<Arc<Message>>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
        usage: Usage,
    ) -> Vec<NodeId> {
        let messages: Vec<Arc<Message>> = messages.into_iter().map(Into::into).collect();
        let answer = messages.iter().rposition(|message| message.role == Role::Assistant);
        let noted = answer.or(messages.len().checked_sub(1));
        let push = |(index, message)| self.push_node(message, (Some(index) == noted).then_some(usage));
        messages.into_iter().enumerate().map(push).collect()
    }

    /// Moves the path: it ends in this node, with or without children, and the cursors along it point to it.
    /// O(depth); to a node below the head, O(their distance).
    ///
    /// # Errors
    ///
    /// [`TreeError::UnknownNode`].
    pub fn navigate(&mut self, id: NodeId) -> Result<(), TreeError> {
        let slot = self.slot(id).ok_or(TreeError::UnknownNode { id })?;
        self.move_to(slot);
        Ok(())
    }

    /// Goes on from the head to a leaf, always to the child that was active last. Gives the new head; without
    /// a path there is none. O(distance).
    pub fn extend(&mut self) -> Option<NodeId> {
        while self.step_down() {}
        self.head()
    }

    /// Makes the path empty, so that the next push makes a root. O(1).
    pub fn clear(&mut self) {
        self.path = None;
        self.history = History::new();
    }

    /// The id that the next push gives.
    fn next_id(&self) -> NodeId {
        NodeId::after(self.nodes.last().map(Node::id))
    }

    fn slot(&self, id: NodeId) -> Option<Slot> {
        self.ids.index(id, self.len()).map(Slot::new)
    }

    fn at(&self, slot: Slot) -> &Node {
        self.nodes.get(slot.index()).expect("a slot is made for a node, and nodes stay")
    }

    fn links(&self, slot: Slot) -> &Links {
        self.links.get(slot.index()).expect("every node has its links")
    }

    fn links_mut(&mut self, slot: Slot) -> &mut Links {
        self.links.get_mut(slot.index()).expect("every node has its links")
    }

    /// The youngest among the siblings of a node, itself included.
    fn newest_beside(&self, slot: Slot) -> Option<Slot> {
        match self.links(slot).parent {
            Some(parent) => self.links(parent).newest,
            None => self.newest_root,
        }
    }

    fn push_node(&mut self, message: Arc<Message>, usage: Option<Usage>) -> NodeId {
        let head = self.path.map(|path| path.head);
        let id = self.next_id();
        let node = Node::new(id, head.map(|head| self.at(head).id()), message);
        let slot = self.add(usage.into_iter().fold(node, Node::with_usage), head);
        self.step_onto(slot);
        id
    }

    /// Adds a node whose id follows the highest, and points the cursor of its parent to it. The path stays.
    fn add(&mut self, node: Node, parent: Option<Slot>) -> Slot {
        let slot = Slot::new(self.len());
        self.usage += node.usage().copied().unwrap_or_default();
        self.nodes.push(node);
        self.links.push(Links::alone(slot, parent));
        self.adopt(slot);
        slot
    }

    /// Makes a node the newest child of the parent that it is linked to, and the active one.
    fn adopt(&mut self, slot: Slot) {
        let newest = match self.links(slot).parent {
            Some(parent) => {
                let parent = self.links_mut(parent);
                parent.cursor = Some(slot);
                parent.newest.replace(slot)
            }
            None => self.newest_root.replace(slot),
        };
        if let Some(newest) = newest {
            let oldest = std::mem::replace(&mut self.links_mut(newest).next, slot);
            self.links_mut(slot).next = oldest;
        }
    }

    /// Makes a child of the head, or a root if the path is empty, the head.
    fn step_onto(&mut self, slot: Slot) {
        self.history.push(Arc::clone(self.at(slot).message()));
        let root = self.path.map_or(slot, |path| path.root);
        self.path = Some(Ends { root, head: slot });
    }

    /// Goes to the child of the head that was active last, if there is one.
    fn step_down(&mut self) -> bool {
        let below = self.path.and_then(|path| self.links(path.head).cursor);
        below.map(|slot| self.step_onto(slot)).is_some()
    }

    /// Makes the path end here: first up to where it starts or to the old head, pinning cursors, then down.
    fn move_to(&mut self, target: Slot) {
        let head = self.path.map(|path| path.head);
        let mut steps = Vec::new();
        let mut top = target;
        while Some(top) != head {
            steps.push(top);
            let Some(parent) = self.links(top).parent else {
                self.clear();
                break;
            };
            // A look first: writing copies what a snapshot shares.
            if self.links(parent).cursor != Some(top) {
                self.links_mut(parent).cursor = Some(top);
            }
            top = parent;
        }
        for slot in steps.into_iter().rev() {
            self.step_onto(slot);
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Tree {
    /// Whether nodes, head and cursors are the same. What both share is not looked at.
    fn eq(&self, other: &Self) -> bool {
        // Nodes stand in the order of their ids, so equal nodes have equal slots.
        self.path == other.path && self.links == other.links && self.nodes == other.nodes
    }
}

impl fmt::Debug for Tree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree")
            .field("nodes", &self.nodes().collect::<Vec<_>>())
            .field("head", &self.head())
            .field("cursors", &self.cursors().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl<'a> IntoIterator for &'a Tree {
    type Item = &'a Node;
    type IntoIter = Path<'a>;

    fn into_iter(self) -> Path<'a> {
        self.iter()
    }
}

//! A conversation with branches, as plain data. No message is ever overwritten, and none is removed unless it is
//! [erased](Tree::erase).
//!
//! A [`Tree`] contains every message of a conversation as a [`Node`] with a [`NodeId`]. Its *path* leads from a root to
//! the *head*. The messages on the path are the current conversation ([`Tree::history`]). A push appends a node at the
//! head. [`Tree::navigate`] moves the head, so the next push starts a branch. Each node with children has a *cursor*,
//! which records the child that was active last. [`Tree::extend`] follows the cursors.
//!
//! A tree can be stored and restored. [`Tree::changes_since`] returns the [`Changes`] that a store has to write.
//! [`Tree::hydrate`] checks the stored nodes and builds a tree from them. [`TreeError`] describes a problem.
//!
//! ```
//! use omni_agent::message::{Message, Usage};
//! use omni_agent::tree::Tree;
//!
//! let mut tree = Tree::new();
//! let usage = Usage::default().with_input(12).with_output(30);
//! let question = Message::user("Name three mountains.");
//! let turn = tree.push_turn([question, Message::assistant("Everest, K2, Lhotse.")], usage);
//! tree.push_turn([Message::user("Higher!"), Message::assistant("There are none.")], usage);
//!
//! // Branch off: another answer to the question, and a conversation that continues from it.
//! tree.navigate(turn[0])?;
//! tree.push_turn([Message::assistant("Fuji, Etna, Teide.")], usage);
//! tree.push_turn([Message::user("And rivers?"), Message::assistant("Nile, Amazon, Yangtze.")], usage);
//! // Start again with a different first message.
//! tree.clear();
//! tree.push(Message::user("Hello?"));
//! // Return to the branch before.
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
//! Cloning a tree takes the same time for every size, because the clone shares everything with the original. A later
//! change copies a few dozen links and nodes near the change, and never a message. A clone can therefore be used as a
//! snapshot for readers. It can also be used to roll back the tree: assign the clone to the tree.
//! [`Tree::changes_since`] returns the changes since a clone, in time proportional to the number of changes.

mod changes;
mod hydrate;
mod links;
mod outline;
mod tail;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use links::{Children, NodeIdIndex, NodeLinks, NodePosition, Path};
use serde::{Deserialize, Serialize};

use crate::{
    chunks::ChunkedList,
    message::{History, Message, MessageId, Role, Usage, check_step},
    run::{Error, ErrorKind},
};

pub use crate::message::id::NodeId;
pub use changes::{Changes, Erased};

/// The maximum number of unanswered prompts of failed runs below a node, or as roots.
const MAX_UNANSWERED: usize = 16;

/// A conversation with branches. One of its paths is active.
///
/// For a tree with `n` nodes and a path of `d` nodes, a push is amortized O(1), and [`navigate`](Self::navigate) is
/// O(d). A lookup by id is O(1), or O(log gaps) if the ids have gaps. A clone is O(1).
///
/// In the snapshot of a [tail](crate::session::Session::subscribe_tail), most nodes are [outlines](Node::is_outline). The
/// path and the history of such a tree begin after the last outline before the head.
///
/// The serialized form of a tree contains its nodes in the order of their ids, its head, and the cursors that don't
/// point to the newest child. If the newest nodes were erased, it also contains the id of the next node. A deserialized
/// tree is checked in the same way as by [`Tree::hydrate`].
///
/// ```
/// use omni_agent::message::Message;
/// use omni_agent::tree::Tree;
///
/// let mut tree = Tree::new();
/// let question = tree.push(Message::user("Name a mountain."));
/// let everest = tree.push(Message::assistant("Everest."));
/// tree.navigate(question)?;
/// let k2 = tree.push(Message::assistant("K2."));
///
/// assert_eq!(tree.head(), Some(k2));
/// let answers: Vec<_> = tree.children(question).unwrap().map(|node| node.id()).collect();
/// assert_eq!(answers, [everest, k2]);
/// # Ok::<(), omni_agent::tree::TreeError>(())
/// ```
///
/// The [module](self) has a longer example.
#[derive(Clone)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        with = "hydrate::SerializedTree",
        description = "A conversation with branches. One of its paths, from a root to the head, is active."
    )
)]
pub struct Tree {
    nodes: ChunkedList<Node>,
    links: ChunkedList<NodeLinks>,
    ids: NodeIdIndex,
    newest_root: Option<NodePosition>,
    path: Option<PathRootAndHead>,
    /// The messages of the path.
    history: History,
    usage: Usage,
}

/// The two ends of the path. The nodes between them are found by following the cursors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PathRootAndHead {
    root: NodePosition,
    head: NodePosition,
}

impl Tree {
    /// Returns a tree without nodes.
    pub const fn new() -> Self {
        Self {
            nodes: ChunkedList::new(),
            links: ChunkedList::new(),
            ids: NodeIdIndex::new(),
            newest_root: None,
            path: None,
            history: History::new(),
            usage: Usage { input: 0, cache_read: 0, cache_write: 0, output: 0, reasoning: 0, cost: None },
        }
    }

    /// Returns the number of nodes on all branches. O(1).
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns whether the tree has no nodes. O(1).
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the node at the end of the path, or `None` if the path is empty. O(1).
    pub fn head(&self) -> Option<NodeId> {
        self.path.map(|path| self.at(path.head).id())
    }

    /// Returns the messages of the path. O(1), because the tree keeps this history up to date and the messages are
    /// shared.
    pub const fn history(&self) -> &History {
        &self.history
    }

    /// Returns the total usage of all turns on all branches. O(1).
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the node with this id. O(1), or O(log gaps) in a tree whose ids have gaps.
    pub fn node(&self, id: NodeId) -> Option<&Node> {
        self.nodes.get(self.ids.index(id, self.len())?)
    }

    /// Returns the same tree with some messages replaced. `replacement` returns `None` for a message that stays. O(n).
    #[cfg(feature = "web")]
    pub(crate) fn with_messages(&self, replacement: impl Fn(&Message) -> Option<Message>) -> Self {
        let mut tree = self.clone();
        let nodes = self.nodes().map(|node| match replacement(node.message()) {
            Some(message) => node.with_message(message),
            None => node.clone(),
        });
        tree.nodes = nodes.collect();
        tree.history = tree.iter().map(|node| Arc::clone(node.message())).collect();
        tree
    }

    /// Returns the node whose message has this id. If there are several, the oldest is returned. O(n).
    ///
    /// ```
    /// use omni_agent::message::Message;
    /// use omni_agent::tree::Tree;
    ///
    /// let mut tree = Tree::new();
    /// let node = tree.push(Message::user("Name a mountain.").with_id("question-1"));
    /// assert_eq!(tree.find(&"question-1".into()), Some(node));
    /// assert_eq!(tree.find(&"question-2".into()), None);
    /// ```
    pub fn find(&self, message: &MessageId) -> Option<NodeId> {
        self.nodes().find(|node| node.message().id.as_ref() == Some(message)).map(Node::id)
    }

    /// Iterates over all nodes in the order of their ids. O(1) each.
    pub fn nodes(&self) -> impl Iterator<Item = &Node> + Clone {
        self.nodes.iter()
    }

    /// Iterates over the nodes of the path, from its root to the head. O(1) each.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Node> + ExactSizeIterator + Clone + fmt::Debug {
        self.into_iter()
    }

    /// Iterates over the roots, oldest first. O(1) each.
    pub fn roots(&self) -> impl Iterator<Item = &Node> + Clone + fmt::Debug {
        Children::new(self, self.newest_root)
    }

    /// Iterates over the children of a node, oldest first. Returns `None` if the node does not exist. O(1) each.
    pub fn children(&self, id: NodeId) -> Option<impl Iterator<Item = &Node> + Clone + fmt::Debug> {
        Some(Children::new(self, self.links(self.slot(id)?).newest))
    }

    /// Iterates over the siblings of a node, oldest first, including the node itself. These are the children of the
    /// node's parent or, for a root, all roots. Returns `None` if the node does not exist. O(1) each.
    pub fn siblings(&self, id: NodeId) -> Option<impl Iterator<Item = &Node> + Clone + fmt::Debug> {
        Some(Children::new(self, self.newest_beside(self.slot(id)?)))
    }

    /// Iterates over the unanswered prompts below a node, or over those that are roots, oldest first. An unanswered
    /// prompt is a prompt without children, apart from compactions. A session adds the prompts of a run that has failed in
    /// this form, and such a prompt gets an answer by a run [`again`](crate::session::Session::again). O(1) for each
    /// child.
    ///
    /// ```
    /// use omni_agent::message::Message;
    /// use omni_agent::tree::Tree;
    ///
    /// let mut tree = Tree::new();
    /// let greeting = tree.push(Message::assistant("How can I help?"));
    /// let question = tree.push(Message::user("Name a mountain."));
    /// let unanswered: Vec<_> = tree.unanswered(Some(greeting)).map(|node| node.id()).collect();
    /// assert_eq!(unanswered, [question]);
    /// ```
    pub fn unanswered(&self, parent: Option<NodeId>) -> impl Iterator<Item = &Node> + Clone {
        let newest = match parent {
            Some(parent) => self.slot(parent).and_then(|slot| self.links(slot).newest),
            None => self.newest_root,
        };
        Children::new(self, newest).filter(move |node| self.is_unanswered(node))
    }

    /// Returns whether a node of this tree is a prompt without children, apart from compactions. A message with tool
    /// results is a prompt if its parent was [left open](Node::left_open).
    pub(crate) fn is_unanswered(&self, node: &Node) -> bool {
        let is_left_open = |parent| self.node(parent).is_some_and(Node::left_open);
        let is_prompt =
            || node.message.tool_results().next().is_none() || node.parent.is_some_and(is_left_open);
        let is_user = node.message.role == Role::User && node.message.compaction.is_none();
        is_user && !node.is_outline && self.is_bare(node.id) && is_prompt()
    }

    /// Returns whether nothing but compactions stands below a node.
    fn is_bare(&self, id: NodeId) -> bool {
        let (mut next, mut compactions) = (Some(id), Vec::new());
        while let Some(id) = next {
            for child in self.children(id).into_iter().flatten() {
                if child.message.compaction.is_none() {
                    return false;
                }
                compactions.push(child.id);
            }
            next = compactions.pop();
        }
        true
    }

    /// Returns the child of a node that was active last. [`extend`](Self::extend) follows this cursor. Returns `None`
    /// for a leaf and for an unknown node. O(1).
    pub fn cursor(&self, id: NodeId) -> Option<NodeId> {
        let cursor = self.links(self.slot(id)?).cursor?;
        Some(self.at(cursor).id())
    }

    /// Iterates over the cursors that don't point to the newest child, each as a node and its child, in the order of
    /// the nodes' ids. [`hydrate`](Self::hydrate) can build the same tree from these cursors, the nodes and the head.
    /// O(n).
    pub fn cursors(&self) -> impl Iterator<Item = (NodeId, NodeId)> {
        self.nodes.iter().zip(self.links.iter()).filter_map(|(node, links)| {
            let cursor = links.cursor.filter(|_| links.cursor != links.newest)?;
            Some((node.id(), self.at(cursor).id()))
        })
    }

    /// Returns the nodes from the root to this node, including this node. The active path does not matter. Returns
    /// `None` if the node does not exist. O(depth of the node).
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

    /// Appends a message at the head. The new node becomes the head. If the path is empty, the new node becomes a root.
    /// Amortized O(1).
    ///
    /// # Panics
    ///
    /// Panics if the tree has 2^32 - 1 nodes.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) -> NodeId {
        self.push_node(message.into(), None, false)
    }

    /// Appends the messages of a turn in order, and returns their ids. O(messages).
    ///
    /// The usage of the turn is recorded on the turn's last assistant message. If the turn has no assistant message,
    /// the usage is recorded on its last message. If the turn ends with an assistant message that has tool uses, its node
    /// is marked as [left open](Node::left_open).
    ///
    /// # Panics
    ///
    /// Panics as [`push`](Self::push) does.
    pub fn push_turn<M: Into<Arc<Message>>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
        usage: Usage,
    ) -> Vec<NodeId> {
        let messages: Vec<Arc<Message>> = messages.into_iter().map(Into::into).collect();
        let answer = messages.iter().rposition(|message| message.role == Role::Assistant);
        let noted = answer.or(messages.len().checked_sub(1));
        let last = messages.len().saturating_sub(1);
        let push = |(index, message)| {
            self.push_node(message, (Some(index) == noted).then_some(usage), index == last)
        };
        messages.into_iter().enumerate().map(push).collect()
    }

    /// Adds an unanswered prompt below a node, or as a root. The path stays, and so does the cursor of the node if it has
    /// children. Returns `None` if the node does not exist or has [`MAX_UNANSWERED`] unanswered prompts already, or if the
    /// prompt can't follow the node, as one that has joined a turn and answers no open tool uses.
    pub(crate) fn graft(&mut self, parent: Option<NodeId>, prompt: Arc<Message>) -> Option<NodeId> {
        let slot = parent.map(|parent| self.slot(parent).ok_or(())).transpose().ok()?;
        let before = slot.map(|slot| &**self.at(slot).message());
        if self.unanswered(parent).count() >= MAX_UNANSWERED || check_step(before, &prompt, 0).is_err() {
            return None;
        }
        let cursor = slot.and_then(|slot| self.links(slot).cursor);
        let id = self.next_id();
        self.add(Node::new(id, parent, prompt), slot);
        if let (Some(slot), Some(_)) = (slot, cursor) {
            self.links_mut(slot).cursor = cursor;
        }
        Some(id)
    }

    /// Moves the path so that it ends at this node, which may have children. The cursors along the path are set to
    /// follow the path. O(depth), or O(distance) for a node below the head.
    ///
    /// # Errors
    ///
    /// Fails with [`TreeError::UnknownNode`] if the node does not exist.
    pub fn navigate(&mut self, id: NodeId) -> Result<(), TreeError> {
        let slot = self.slot(id).ok_or(TreeError::UnknownNode { id })?;
        self.move_to(slot);
        Ok(())
    }

    /// Extends the path from the head to a leaf, at each node to the child that was active last. The path ends above an
    /// [unanswered prompt](Self::unanswered). Returns the new head, or `None` if the path is empty. O(distance).
    pub fn extend(&mut self) -> Option<NodeId> {
        while self.step_down() {}
        self.head()
    }

    /// Makes the path empty, so that the next push adds a root. O(1).
    pub fn clear(&mut self) {
        self.path = None;
        self.history = History::new();
    }

    /// Returns the id that the next push assigns. O(1).
    pub fn next_id(&self) -> NodeId {
        self.ids.next(self.len()).unwrap_or_else(|| NodeId::after(self.nodes.last().map(Node::id)))
    }

    /// Returns the last node of the path that is not a compaction.
    pub(crate) fn last_message(&self) -> Option<&Node> {
        self.iter().rev().find(|node| node.message.compaction.is_none())
    }

    fn slot(&self, id: NodeId) -> Option<NodePosition> {
        self.ids.index(id, self.len()).map(NodePosition::new)
    }

    fn at(&self, slot: NodePosition) -> &Node {
        self.nodes.get(slot.index()).expect("a slot is made for a node, and nodes stay")
    }

    fn links(&self, slot: NodePosition) -> &NodeLinks {
        self.links.get(slot.index()).expect("every node has its links")
    }

    fn links_mut(&mut self, slot: NodePosition) -> &mut NodeLinks {
        self.links.get_mut(slot.index()).expect("every node has its links")
    }

    /// Returns the newest node among a node and its siblings.
    fn newest_beside(&self, slot: NodePosition) -> Option<NodePosition> {
        match self.links(slot).parent {
            Some(parent) => self.links(parent).newest,
            None => self.newest_root,
        }
    }

    fn push_node(&mut self, message: Arc<Message>, usage: Option<Usage>, ends_turn: bool) -> NodeId {
        let head = self.path.map(|path| path.head);
        let id = self.next_id();
        let node = Node::new(id, head.map(|head| self.at(head).id()), message);
        let left_open = ends_turn && node.uses_tools();
        let node = usage.into_iter().fold(node, Node::with_usage).with_left_open(left_open);
        let slot = self.add(node, head);
        self.step_onto(slot);
        id
    }

    /// Adds a node whose id is the next free id, and sets the cursor of its parent to the new node. The path does not
    /// change.
    fn add(&mut self, node: Node, parent: Option<NodePosition>) -> NodePosition {
        let slot = NodePosition::new(self.len());
        self.usage += node.usage().copied().unwrap_or_default();
        self.nodes.push(node);
        self.links.push(NodeLinks::alone(slot, parent));
        self.adopt(slot);
        slot
    }

    /// Makes a node the newest and active child of its parent or, if it has no parent, the newest root.
    fn adopt(&mut self, slot: NodePosition) {
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

    /// Makes a child of the head the new head. If the path is empty, makes a root the head.
    fn step_onto(&mut self, slot: NodePosition) {
        if self.at(slot).is_outline {
            // The history begins after the last outline.
            self.history = History::new();
            self.path = Some(PathRootAndHead { root: slot, head: slot });
            return;
        }
        let root = self.path.filter(|_| !self.history.is_empty()).map_or(slot, |path| path.root);
        self.history.push(Arc::clone(self.at(slot).message()));
        self.path = Some(PathRootAndHead { root, head: slot });
    }

    /// Moves to the child of the head that was active last. Returns `false` if there is no such child, or if it is an
    /// unanswered prompt.
    fn step_down(&mut self) -> bool {
        let below = self.path.and_then(|path| self.links(path.head).cursor);
        let below = below.filter(|slot| !self.is_unanswered(self.at(*slot)));
        below.map(|slot| self.step_onto(slot)).is_some()
    }

    /// Makes the path end at `target`. First walks up from `target` to a root or to the old head and sets cursors. Then
    /// walks down again and extends the path.
    fn move_to(&mut self, target: NodePosition) {
        let head = self.path.map(|path| path.head);
        let mut steps = Vec::new();
        let mut top = target;
        while Some(top) != head {
            steps.push(top);
            let Some(parent) = self.links(top).parent else {
                self.clear();
                break;
            };
            // Compare before writing, because a write copies data that is shared with snapshots.
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
    /// Compares nodes, head, cursors and the id of the next node. If parts are shared, their contents are not compared.
    fn eq(&self, other: &Self) -> bool {
        // Nodes are stored in the order of their ids, so equal nodes have equal slots.
        self.path == other.path
            && self.next_id() == other.next_id()
            && self.links == other.links
            && self.nodes == other.nodes
    }
}

crate::debug::impl_debug! { Tree(self) {
    nodes: self.nodes().collect::<Vec<_>>(), head: self.head(), cursors: self.cursors().collect::<Vec<_>>(),
    ..
} }

impl<'a> IntoIterator for &'a Tree {
    type Item = &'a Node;
    type IntoIter = Path<'a>;

    fn into_iter(self) -> Path<'a> {
        let path = self.path.filter(|_| !self.history.is_empty());
        Path::new(self, path.map(|path| (path.root, path.head)), self.history.len())
    }
}

/// A message at its position in a [`Tree`]. Cheap to clone, because the message and the usage are shared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "A message at its position in a tree.")
)]
pub struct Node {
    /// The node's id.
    id: NodeId,
    /// The id of the node that this node follows. `None` for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<NodeId>,
    /// The node's message.
    message: Arc<Message>,
    /// The usage of the turn, on the last assistant node of each turn.
    // Wrapped in an `Arc`, because few nodes have a usage, and a usage is larger than the rest of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Arc<Usage>>,
    /// Whether a turn ended with this assistant message and left its tool uses open, so that the next prompt answers them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_open: bool,
    /// Whether the message is not present.
    #[serde(skip)]
    is_outline: bool,
}

impl Node {
    /// Returns a node without usage, for [`Tree::hydrate`](Tree::hydrate). To add a message to a tree, use
    /// [`Tree::push`](Tree::push).
    pub fn new(id: NodeId, parent: Option<NodeId>, message: impl Into<Arc<Message>>) -> Self {
        Self { id, parent, message: message.into(), usage: None, left_open: false, is_outline: false }
    }

    /// Returns the same node with the usage of the turn that the node ends. If the cost is not a finite number, it is
    /// removed.
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(Arc::new(usage.with_finite_cost()));
        self
    }

    /// Returns the same node, marked as the end of a turn that left the tool uses of the message open.
    pub const fn with_left_open(mut self, left_open: bool) -> Self {
        self.left_open = left_open;
        self
    }

    /// Returns the same node with another message.
    #[cfg(feature = "web")]
    pub(crate) fn with_message(&self, message: Message) -> Self {
        Self { message: Arc::new(message), ..self.clone() }
    }

    /// Returns the node's id.
    pub const fn id(&self) -> NodeId {
        self.id
    }

    /// Returns the id of the node that this node follows, or `None` for a root.
    pub const fn parent(&self) -> Option<NodeId> {
        self.parent
    }

    /// Returns the node's message.
    pub const fn message(&self) -> &Arc<Message> {
        &self.message
    }

    /// Returns the usage of the turn. It is recorded on the last assistant node of each turn, or on the last node of a
    /// turn without an assistant node.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_deref()
    }

    /// Returns whether a turn ended with this assistant message and left its tool uses open. The children of such a node
    /// are prompts that answer the tool uses. They are not part of the turn.
    pub const fn left_open(&self) -> bool {
        self.left_open
    }

    /// Returns whether the node is an outline: its message is not present, and [`message`](Self::message) returns an empty
    /// message with the same role. Only trees in the snapshots of [tails](crate::session::Session::subscribe_tail) have
    /// outlines. Such a tree is for display, and cannot be stored.
    pub const fn is_outline(&self) -> bool {
        self.is_outline
    }

    /// Returns whether the message is an assistant's and has tool uses.
    pub(crate) fn uses_tools(&self) -> bool {
        self.message.role == Role::Assistant && self.message.tool_uses().next().is_some()
    }

    fn check(&self) -> Result<(), TreeError> {
        if self.left_open && !self.uses_tools() { Err(TreeError::NoToolUses { id: self.id }) } else { Ok(()) }
    }
}

/// An operation on a [`Tree`] is impossible. The tree is unchanged.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// No node has this id.
    #[error("the tree has no node {id}")]
    UnknownNode {
        /// The unknown id.
        id: NodeId,
    },
    /// Two nodes have the same id.
    #[error("two nodes have the id {id}")]
    DuplicateId {
        /// The shared id.
        id: NodeId,
    },
    /// An id is so large that no valid ids remain for later nodes.
    #[error("the id {id} is too large; assign ids in ascending order, from 1 on")]
    IdTooLarge {
        /// The id.
        id: NodeId,
    },
    /// A new node does not have the next free id.
    #[error("node {id} can't be added here; the next node must be node {next}")]
    NotNext {
        /// The id of the node.
        id: NodeId,
        /// The next free id.
        next: NodeId,
    },
    /// The parent of a node does not exist.
    #[error("the parent of node {id} is node {parent}, which does not exist")]
    UnknownParent {
        /// The id of the node.
        id: NodeId,
        /// The id of its parent.
        parent: NodeId,
    },
    /// A node is its own ancestor.
    #[error("node {id} is its own ancestor")]
    Cycle {
        /// The id of a node on the cycle.
        id: NodeId,
    },
    /// The head does not exist.
    #[error("the head is node {id}, which does not exist")]
    UnknownHead {
        /// The id of the head.
        id: NodeId,
    },
    /// A cursor points to a node that is not a child of the cursor's node.
    #[error("the cursor of node {id} points to node {child}, which is not its child")]
    NotAChild {
        /// The id of the node with the cursor.
        id: NodeId,
        /// The id of the node to which the cursor points.
        child: NodeId,
    },
    /// A node is marked as the end of a turn that left tool uses open, but its message has no tool uses.
    #[error("node {id} is marked as left open, but its message has no tool uses")]
    NoToolUses {
        /// The id of the node.
        id: NodeId,
    },
}

crate::error::debug_as_chain!(TreeError);

impl From<TreeError> for Error {
    fn from(error: TreeError) -> Self {
        Self::new(ErrorKind::Damaged, format!("the stored conversation is not a valid tree: {error}"))
            .with_source(error)
    }
}

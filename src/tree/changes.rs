//! The changes of a tree since an earlier state, and the removal of nodes.
//!
//! The tree remembers the id of its next node, so that the ids of erased nodes are not used again.

use serde::{Deserialize, Serialize};

use super::{
    Node, NodeId, Tree, TreeError,
    links::{NodeLinks, NodePosition},
};
use crate::message::{Message, Role};

/// The changes of a tree since an earlier state of the tree.
///
/// [`Tree::changes_since`] returns the changes. A store writes them. A copy elsewhere is kept up to date by passing
/// them to [`Tree::apply`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "The changes of a tree since an earlier state of the tree.")
)]
#[non_exhaustive]
pub struct Changes {
    /// The new nodes, in the order of their ids.
    pub nodes: Vec<Node>,
    /// The current head.
    pub head: Option<NodeId>,
    /// Whether the head differs from the earlier head.
    pub moved: bool,
    /// The cursors that changed, each as a node and its child. A node that had no child before is listed only if its
    /// cursor does not point to its newest child, so this list is empty after an ordinary turn.
    pub cursors: Vec<(NodeId, NodeId)>,
}

impl Changes {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && !self.moved && self.cursors.is_empty()
    }
}

impl Tree {
    /// Returns the changes since `earlier`, which is an earlier clone of this tree. Returns `None` if this tree did not
    /// grow from `earlier`, for example if this tree was reset to a state before `earlier`, or if a new node is an
    /// [outline](Node::is_outline). O(changes).
    ///
    /// To restore this tree, combine the stored nodes, the head of the changes, and the cursors. Each changed cursor
    /// replaces the stored cursor of the same node.
    ///
    /// ```
    /// use omni_agent::message::Message;
    /// use omni_agent::tree::Tree;
    ///
    /// let mut tree = Tree::new();
    /// let question = tree.push(Message::user("Name a mountain."));
    /// tree.push(Message::assistant("Everest."));
    ///
    /// let stored = tree.clone();
    /// tree.navigate(question)?;
    /// let answer = tree.push(Message::assistant("K2."));
    ///
    /// let changes = tree.changes_since(&stored).expect("the tree grew from what is stored");
    /// assert_eq!(changes.nodes.len(), 1);
    /// assert_eq!(changes.head, Some(answer));
    /// assert_eq!(changes.cursors, [(question, answer)]);
    /// # Ok::<(), omni_agent::tree::TreeError>(())
    /// ```
    pub fn changes_since(&self, earlier: &Self) -> Option<Changes> {
        if let Some(last) = earlier.nodes.last()
            && self.nodes.get(earlier.len() - 1) != Some(last)
        {
            return None;
        }
        if self.nodes.iter_from(earlier.len()).any(Node::is_outline) {
            return None;
        }
        let mut cursors = Vec::new();
        let mut tell = |index: usize, links: &NodeLinks| {
            let id = self.at(NodePosition::new(index)).id();
            cursors.extend(links.cursor.map(|cursor| (id, self.at(cursor).id())));
        };
        self.links.differing(&earlier.links, &mut |first, now, before| {
            for (index, (now, before)) in now.iter().zip(before).enumerate() {
                // If the node already had children, a cursor may be stored for it, which a new child does not replace.
                // So list the cursor of such a node whenever the cursor or the newest child has changed.
                let unlike = (now.cursor, now.newest) != (before.cursor, before.newest);
                if unlike && (before.newest.is_some() || now.cursor != now.newest) {
                    tell(first + index, now);
                }
            }
        });
        for (index, links) in self.links.iter_from(earlier.len()).enumerate() {
            if links.cursor != links.newest {
                tell(earlier.len() + index, links);
            }
        }
        Some(Changes {
            nodes: self.nodes.iter_from(earlier.len()).cloned().collect(),
            head: self.head(),
            moved: self.head() != earlier.head(),
            cursors,
        })
    }

    /// Applies changes that [`changes_since`](Self::changes_since) returned for another copy of this tree. O(changes),
    /// or O(depth) if the path moved to another branch.
    ///
    /// # Errors
    ///
    /// Fails with `NotNext`, `UnknownParent`, `UnknownNode`, `NotAChild`, `UnknownHead` or `NoToolUses` if the changes do
    /// not fit this tree or are not consistent. If it fails, the tree is unchanged.
    pub fn apply(&mut self, changes: &Changes) -> Result<(), TreeError> {
        let mut next = self.clone();
        for node in &changes.nodes {
            let (id, expected) = (node.id(), next.next_id());
            if id != expected {
                return Err(TreeError::NotNext { id, next: expected });
            }
            node.check()?;
            let parent = next.parent_slot(node)?;
            next.add(node.clone(), parent);
        }
        next.settle(changes.head, changes.cursors.iter().copied())?;
        *self = next;
        Ok(())
    }
}

/// The result of [`Tree::erase`]: the changes that a store has to write, and that another copy of the tree
/// [applies](Tree::apply_erased).
///
/// All cursors from and to the erased nodes are removed with them. A remaining node whose cursor is removed gets a
/// cursor to its newest remaining child.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(description = "The removal of nodes from a tree, with all cursors from and to them.")
)]
#[non_exhaustive]
pub struct Erased {
    /// The ids of the erased nodes, in ascending order.
    pub nodes: Vec<NodeId>,
    /// The new last node of the path. `None` if the path is empty.
    pub head: Option<NodeId>,
    /// The id of the next node. Erased ids are not used again.
    pub next: NodeId,
    /// Whether the title of the conversation is removed too if it was made from the messages. Such a title may quote an
    /// erased message.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub title: bool,
}

impl Tree {
    /// Removes a node and all nodes below it. O(n).
    ///
    /// If the head is removed, the path ends at the nearest remaining assistant message without tool uses, or is empty:
    /// no path ends with a prompt that has no answer. A cursor to a removed node moves to the newest remaining child.
    /// [`usage`](Self::usage) no longer contains the usage of the removed nodes. Clones of the tree still contain the
    /// nodes.
    ///
    /// ```
    /// use omni_agent::message::Message;
    /// use omni_agent::tree::Tree;
    ///
    /// let mut tree = Tree::new();
    /// tree.push(Message::user("Hi"));
    /// let answer = tree.push(Message::assistant("Hello!"));
    /// let secret = tree.push(Message::user("My password is …"));
    /// tree.push(Message::assistant("Better keep it to yourself."));
    ///
    /// let erased = tree.erase(secret)?;
    /// assert_eq!(erased.nodes.len(), 2);
    /// assert_eq!((tree.len(), tree.head()), (2, Some(answer)));
    /// let next = tree.push(Message::user("Thanks"));
    /// assert_eq!(next.get(), 5);
    /// # Ok::<(), omni_agent::tree::TreeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with [`TreeError::UnknownNode`] if the node does not exist.
    pub fn erase(&mut self, id: NodeId) -> Result<Erased, TreeError> {
        let top = self.node(id).ok_or(TreeError::UnknownNode { id })?;
        let mut nodes = vec![id];
        let mut found = 0;
        while let Some(parent) = nodes.get(found) {
            nodes.extend(self.children(*parent).into_iter().flatten().map(super::Node::id));
            found += 1;
        }
        nodes.sort_unstable();
        let mut head = self.head();
        if head.is_some_and(|head| nodes.binary_search(&head).is_ok()) {
            head = top.parent();
            while let Some(node) = head.and_then(|head| self.node(head))
                && !is_resting_place(node.message())
            {
                head = node.parent();
            }
        }
        let erased = Erased { nodes, head, next: self.next_id(), title: true };
        self.apply_erased(&erased)?;
        Ok(erased)
    }

    /// Removes the nodes that [`erase`](Self::erase) removed from another copy of this tree. O(n).
    ///
    /// # Errors
    ///
    /// Fails if the changes do not fit this tree. If it fails, the tree is unchanged.
    pub fn apply_erased(&mut self, erased: &Erased) -> Result<(), TreeError> {
        if let Some(id) = erased.nodes.iter().find(|id| self.node(**id).is_none()) {
            return Err(TreeError::UnknownNode { id: *id });
        }
        let stays = |id: &NodeId| erased.nodes.binary_search(id).is_err();
        let nodes = self.nodes().filter(|node| stays(&node.id())).cloned();
        let cursors = self.cursors().filter(|(node, child)| stays(node) && stays(child));
        let tree = Self::hydrate(nodes, erased.head, cursors)?;
        *self = tree.at_next_id(erased.next)?;
        Ok(())
    }

    /// Restores a tree from its stored parts, as [`hydrate`](Self::hydrate) does, with `next` as the id of the next
    /// node if `next` is given.
    pub(crate) fn restored(
        nodes: Vec<super::Node>,
        head: Option<NodeId>,
        cursors: impl IntoIterator<Item = (NodeId, NodeId)>,
        next: Option<NodeId>,
    ) -> Result<Self, TreeError> {
        let tree = Self::hydrate(nodes, head, cursors)?;
        match next {
            // If nodes were added after the erasure, the tree's next id may already be higher.
            Some(next) if next > tree.next_id() => tree.with_next_id(next),
            _ => Ok(tree),
        }
    }

    /// Returns the same tree with this id for the next node. A stored tree whose last nodes were erased needs this when
    /// it is restored, so that the erased ids are not used again.
    ///
    /// # Errors
    ///
    /// Fails with [`TreeError::NotNext`] if a node already has this id or a higher one, and with
    /// [`TreeError::IdTooLarge`].
    pub fn with_next_id(self, next: NodeId) -> Result<Self, TreeError> {
        super::hydrate::check_id(next)?;
        self.at_next_id(next)
    }

    fn at_next_id(mut self, next: NodeId) -> Result<Self, TreeError> {
        let least = NodeId::after(self.nodes.last().map(super::Node::id));
        if next < least {
            return Err(TreeError::NotNext { id: next, next: least });
        }
        self.ids = self.ids.with_next(next, least, self.len());
        Ok(self)
    }
}

/// Returns whether the path may end at this message after an erasure.
fn is_resting_place(message: &Message) -> bool {
    message.role == Role::Assistant && message.tool_uses().next().is_none()
}

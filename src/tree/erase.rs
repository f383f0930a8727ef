//! The removal of nodes.
//!
//! The tree remembers the id of its next node, so that the ids of erased nodes are not used again.

use serde::{Deserialize, Serialize};

use super::{NodeId, Tree, TreeError};
use crate::message::{Message, Role};

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
        let erased = Erased { nodes, head, next: self.next_id() };
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

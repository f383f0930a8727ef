use serde::{Deserialize, Serialize};

use super::{
    Node, NodeId, Tree, TreeError,
    links::{Links, Slot},
};

/// What was done to a tree since an earlier state of it, as [`Tree::changes_since`] tells: what a store has to
/// write, and what a copy elsewhere needs to follow, by [`Tree::apply`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Changes {
    /// The new nodes, in the order of their ids.
    pub nodes: Vec<Node>,
    /// The head as it is now.
    pub head: Option<NodeId>,
    /// Whether the head was another node before, or none.
    pub moved: bool,
    /// Cursors that are others now, each a node and its child. Those that follow from the new nodes are left
    /// out: a node without a cursor follows its newest child, so an ordinary turn changes none.
    pub cursors: Vec<(NodeId, NodeId)>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && !self.moved && self.cursors.is_empty()
    }
}

impl Tree {
    /// What was done since `earlier`, a clone of this tree from then; `None` if this tree has not grown from
    /// that one, as after a return to a state before it. O(changes).
    ///
    /// Stored nodes, the head, and stored cursors with the changed ones put over them make the same tree.
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
        let mut cursors = Vec::new();
        let mut tell = |index: usize, links: &Links| {
            let id = self.at(Slot::new(index)).id();
            cursors.extend(links.cursor.map(|cursor| (id, self.at(cursor).id())));
        };
        self.links.differing(&earlier.links, &mut |first, now, before| {
            for (index, (now, before)) in now.iter().zip(before).enumerate() {
                // Where there were children, a cursor may be stored that a new child does not replace.
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

    /// Does to this tree what was done to the tree that `changes` is from. O(changes), O(depth) if the path
    /// moved to another branch.
    ///
    /// # Errors
    ///
    /// The changes do not fit this tree, or are none of a tree: `NotNext`, `UnknownParent`, `UnknownNode`,
    /// `NotAChild`, `UnknownHead`. The tree is as it was.
    pub fn apply(&mut self, changes: &Changes) -> Result<(), TreeError> {
        let mut next = self.clone();
        for node in &changes.nodes {
            let (id, expected) = (node.id(), next.next_id());
            if id != expected {
                return Err(TreeError::NotNext { id, next: expected });
            }
            let parent = next.parent_slot(node)?;
            next.add(node.clone(), parent);
        }
        next.settle(changes.head, changes.cursors.iter().copied())?;
        *self = next;
        Ok(())
    }
}

use serde::{Deserialize, Serialize};

use super::{
    Node, NodeId, Tree, TreeError,
    links::{Links, Slot},
};

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
    /// grow from `earlier`, for example if this tree was reset to a state before `earlier`. O(changes).
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
        let mut cursors = Vec::new();
        let mut tell = |index: usize, links: &Links| {
            let id = self.at(Slot::new(index)).id();
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
    /// Fails with `NotNext`, `UnknownParent`, `UnknownNode`, `NotAChild` or `UnknownHead` if the changes do not fit
    /// this tree or are not consistent. If it fails, the tree is unchanged.
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

//! Builds a tree from its stored parts and checks these parts. Defines the serialized form of a tree.

use serde::{Deserialize, Deserializer, Serialize, Serializer, ser::SerializeStruct};

use super::{
    Node, NodeId, Tree, TreeError,
    links::{NodeIdIndex, NodeLinks, NodePosition},
    tail::SerializedNode,
};

/// The largest id that is accepted from outside. All ids that pushes can add above this id still fit into a signed
/// 64-bit integer, the largest integer type that databases have.
const HIGHEST: u64 = (i64::MAX as u64) - (u32::MAX as u64);

/// Checks that the ids above this id suffice for all later nodes.
pub(super) fn check_id(id: NodeId) -> Result<(), TreeError> {
    if id.get() > HIGHEST { Err(TreeError::IdTooLarge { id }) } else { Ok(()) }
}

impl Tree {
    /// Builds a tree with the given nodes, which may be in any order, and the given head.
    ///
    /// Each cursor is a node and its child. If several cursors belong to the same node, the last of them counts, so a
    /// log of changes can be passed unchanged. A node without a cursor gets a cursor to its newest child. On the path
    /// to the head, the cursors are set along the path. Ids may have gaps, and a child may have a lower id than its
    /// parent.
    ///
    /// O(n) for nodes in the order of their ids, otherwise O(n log n).
    ///
    /// ```
    /// use omni_agent::message::Message;
    /// use omni_agent::tree::{Node, NodeId, Tree, TreeError};
    ///
    /// let id = |number| NodeId::new(number).unwrap();
    /// let nodes = [Node::new(id(1), None, Message::user("Hi")), Node::new(id(4), Some(id(2)), Message::user("Ho"))];
    /// let error = Tree::hydrate(nodes, Some(id(4)), []).unwrap_err();
    /// assert_eq!(error, TreeError::UnknownParent { id: id(4), parent: id(2) });
    /// ```
    ///
    /// # Errors
    ///
    /// Fails with any [`TreeError`] except `NotNext`. The error names the node.
    pub fn hydrate(
        nodes: impl IntoIterator<Item = Node>,
        head: Option<NodeId>,
        cursors: impl IntoIterator<Item = (NodeId, NodeId)>,
    ) -> Result<Self, TreeError> {
        let mut nodes: Vec<Node> = nodes.into_iter().collect();
        if !nodes.is_sorted_by_key(Node::id) {
            nodes.sort_by_key(Node::id);
        }
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].id() == pair[1].id()) {
            return Err(TreeError::DuplicateId { id: pair[0].id() });
        }
        if let Some(last) = nodes.last() {
            check_id(last.id())?;
        }
        nodes.iter().try_for_each(Node::check)?;

        let mut tree = Self { ids: NodeIdIndex::of(nodes.iter().map(Node::id)), ..Self::new() };
        tree.usage = nodes.iter().filter_map(Node::usage).copied().sum();
        tree.nodes = nodes.into_iter().collect();
        for index in 0..tree.len() {
            let node = tree.at(NodePosition::new(index));
            let parent = tree.parent_slot(node)?;
            tree.links.push(NodeLinks::alone(NodePosition::new(index), parent));
        }
        if let Some(slot) = tree.find_cycle() {
            return Err(TreeError::Cycle { id: tree.at(slot).id() });
        }
        for index in 0..tree.len() {
            tree.adopt(NodePosition::new(index));
        }
        tree.settle(head, cursors)?;
        Ok(tree)
    }

    /// Returns the slot of the parent of `node`.
    pub(super) fn parent_slot(&self, node: &Node) -> Result<Option<NodePosition>, TreeError> {
        let unknown = |parent| TreeError::UnknownParent { id: node.id(), parent };
        node.parent().map(|parent| self.slot(parent).ok_or_else(|| unknown(parent))).transpose()
    }

    /// Sets these cursors in order, and then the head.
    pub(super) fn settle(
        &mut self,
        head: Option<NodeId>,
        cursors: impl IntoIterator<Item = (NodeId, NodeId)>,
    ) -> Result<(), TreeError> {
        for (id, child) in cursors {
            let parent = self.slot(id).ok_or(TreeError::UnknownNode { id })?;
            let cursor = self.slot(child).filter(|child| self.links(*child).parent == Some(parent));
            if cursor.is_none() {
                return Err(TreeError::NotAChild { id, child });
            }
            if self.links(parent).cursor != cursor {
                self.links_mut(parent).cursor = cursor;
            }
        }
        match head {
            None => self.clear(),
            Some(id) => self.move_to(self.slot(id).ok_or(TreeError::UnknownHead { id })?),
        }
        Ok(())
    }

    /// Returns a node that is its own ancestor, if there is one. O(n). Uses no recursion, so the depth of the tree does
    /// not matter.
    fn find_cycle(&self) -> Option<NodePosition> {
        let parent = |slot: NodePosition| self.links(slot).parent;
        let slots = || (0..self.len()).map(NodePosition::new);
        if slots().all(|slot| parent(slot).is_none_or(|parent| parent.index() < slot.index())) {
            // In every tree that was built by pushes, parents come before their children, so such a tree has no cycle.
            return None;
        }
        // For each node, the start of the first upward walk that reached the node.
        let mut met_from: Vec<Option<NodePosition>> = vec![None; self.len()];
        for start in slots() {
            let mut at = Some(start);
            while let Some(slot) = at {
                match met_from[slot.index()] {
                    None => met_from[slot.index()] = Some(start),
                    Some(from) if from == start => return Some(slot),
                    Some(_) => break,
                }
                at = parent(slot);
            }
        }
        None
    }
}

/// The serialized form of a tree.
#[derive(Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename = "Tree")]
pub(super) struct SerializedTree {
    /// The nodes, in the order of their ids.
    nodes: Vec<SerializedNode>,
    /// The last node of the path, or `None` if the path is empty.
    head: Option<NodeId>,
    /// The child that was last active, for each node where it is not the newest child. Each entry is a node and its
    /// child.
    // This is a list of pairs instead of a map because the keys of a JSON map are strings. Inside a tagged enum, these
    // strings would not be converted back to numbers.
    #[serde(default)]
    cursors: Vec<(NodeId, NodeId)>,
    /// The id of the next node. It is set only if nodes with higher ids than the last remaining node were erased.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    next: Option<NodeId>,
}

impl Serialize for Tree {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct SerializedNodes<'a>(&'a Tree);

        impl Serialize for SerializedNodes<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.nodes().map(SerializedNode::from))
            }
        }

        struct SerializedCursors<'a>(&'a Tree);

        impl Serialize for SerializedCursors<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_seq(self.0.cursors())
            }
        }

        let next = self.ids.next(self.len());
        let mut fields = serializer.serialize_struct("Tree", 3 + usize::from(next.is_some()))?;
        fields.serialize_field("nodes", &SerializedNodes(self))?;
        fields.serialize_field("head", &self.head())?;
        fields.serialize_field("cursors", &SerializedCursors(self))?;
        match next {
            Some(next) => fields.serialize_field("next", &next)?,
            None => fields.skip_field("next")?,
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let SerializedTree { nodes, head, cursors, next } = SerializedTree::deserialize(deserializer)?;
        let nodes = nodes.into_iter().map(|node| node.try_into().map_err(serde::de::Error::custom));
        let nodes = nodes.collect::<Result<Vec<Node>, D::Error>>()?;
        let tree = Self::hydrate(nodes, head, cursors).map_err(serde::de::Error::custom)?;
        next.map_or(Ok(tree.clone()), |next| tree.with_next_id(next)).map_err(serde::de::Error::custom)
    }
}

use super::NodeId;

/// Why a tree can't be what it is asked to be. The tree is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// No node has this id.
    #[error("the tree has no node {id}")]
    UnknownNode {
        /// The id.
        id: NodeId,
    },
    /// Two nodes share an id.
    #[error("two nodes have the id {id}")]
    DuplicateId {
        /// The shared id.
        id: NodeId,
    },
    /// An id leaves no room for those of nodes to come.
    #[error("the id {id} is too large; ids are given in ascending order, from 1 on")]
    IdTooLarge {
        /// The id.
        id: NodeId,
    },
    /// A new node has not the id that is next.
    #[error("node {id} can't be added here, where the next node is {next}")]
    NotNext {
        /// The node's id.
        id: NodeId,
        /// The id that it must have.
        next: NodeId,
    },
    /// A node follows one that is not there.
    #[error("node {id} follows node {parent}, which does not exist")]
    UnknownParent {
        /// The node.
        id: NodeId,
        /// What it names as its parent.
        parent: NodeId,
    },
    /// A node is its own ancestor.
    #[error("node {id} is its own ancestor")]
    Cycle {
        /// A node on the cycle.
        id: NodeId,
    },
    /// The path is to end in a node that is not there.
    #[error("the head is node {id}, which does not exist")]
    UnknownHead {
        /// The head's id.
        id: NodeId,
    },
    /// A cursor is to point from a node to one that is not its child.
    #[error("the cursor of node {id} points to node {child}, which is no child of it")]
    NotAChild {
        /// Whose cursor it is.
        id: NodeId,
        /// Where it points to.
        child: NodeId,
    },
}

use super::NodeId;
use crate::run::{Error, ErrorKind};

/// An operation on a [`Tree`](super::Tree) is impossible. The tree is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
}

impl From<TreeError> for Error {
    fn from(error: TreeError) -> Self {
        Self::new(ErrorKind::Damaged, format!("the stored conversation is not a valid tree: {error}"))
            .with_source(error)
    }
}

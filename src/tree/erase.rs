//! The removal of nodes.

use serde::{Deserialize, Serialize};

use super::NodeId;

/// The result of [`Tree::erase`](super::Tree::erase): the changes that a store has to write.
///
/// All cursors from and to the erased nodes are removed with them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Erased {
    /// The ids of the erased nodes, in ascending order.
    pub nodes: Vec<NodeId>,
    /// The new last node of the path.
    pub head: Option<NodeId>,
    /// The id of the next node. Erased ids are not used again.
    pub next: NodeId,
}

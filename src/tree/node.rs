use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::message::id::NodeId;
use crate::message::{Message, Usage};

/// A message at its position in a [`Tree`](super::Tree). Cheap to clone, because the message and the usage are shared.
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
}

impl Node {
    /// Returns a node without usage, for [`Tree::hydrate`](super::Tree::hydrate). To add a message to a tree, use
    /// [`Tree::push`](super::Tree::push).
    pub fn new(id: NodeId, parent: Option<NodeId>, message: impl Into<Arc<Message>>) -> Self {
        Self { id, parent, message: message.into(), usage: None }
    }

    /// Returns the same node with the usage of the turn that the node ends. If the cost is not a finite number, it is
    /// removed.
    pub fn with_usage(mut self, usage: Usage) -> Self {
        self.usage = Some(Arc::new(usage.with_finite_cost()));
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
}

use std::{
    fmt,
    num::{NonZeroU64, ParseIntError},
    str::FromStr,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::message::{Message, Usage};

/// The id of a node in a [`Tree`](super::Tree): 1, 2, 3… in the order of the pushes. It is serialized as this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(
        description = "The id of a node in a tree: 1, 2, 3… in the order in which the nodes were added."
    )
)]
#[serde(transparent)]
pub struct NodeId(NonZeroU64);

impl NodeId {
    /// Returns the id with this number, or `None` for 0, which is not a valid id.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns the id's number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the id of the node that is pushed next if `highest` is the highest id so far.
    pub(super) fn after(highest: Option<Self>) -> Self {
        let number = highest.map_or(Some(NonZeroU64::MIN), |highest| highest.0.checked_add(1));
        Self(number.expect("hydration leaves room above the highest id"))
    }
}

impl FromStr for NodeId {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        text.parse().map(Self)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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

    /// Returns the usage of the turn. It is recorded on the last assistant node of each turn.
    pub fn usage(&self) -> Option<&Usage> {
        self.usage.as_deref()
    }
}

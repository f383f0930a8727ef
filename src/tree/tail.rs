//! Trees in which only the last messages of the path, and the unanswered prompts below them, are present. All other nodes
//! are outlines, without a message.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Node, NodeId, PathRootAndHead, Tree};
use crate::message::{Content, Message, Role, Timestamp, Usage};

impl Tree {
    /// Returns the same tree with the last `limit` nodes of the path and the unanswered prompts below them. If the whole
    /// path is kept, also with the unanswered roots. All other nodes become outlines. O(n).
    pub(crate) fn tail(&self, limit: usize) -> Self {
        let mut kept: Vec<NodeId> = self.iter().rev().take(limit).map(Node::id).collect();
        let first = kept.last().and_then(|first| self.slot(*first));
        let skipped = self.history.len() - kept.len();
        let parents = kept.iter().copied().map(Some).chain((skipped == 0).then_some(None));
        let unanswered: Vec<NodeId> =
            parents.flat_map(|parent| self.unanswered(parent)).map(Node::id).collect();
        kept.extend(unanswered);
        kept.sort_unstable();
        let empty = [Role::User, Role::Assistant].map(|role| Arc::new(empty(role)));
        let seen = |node: &Node| {
            if kept.binary_search(&node.id).is_ok() {
                return node.clone();
            }
            let empty = Arc::clone(&empty[usize::from(node.message.role == Role::Assistant)]);
            Node { is_outline: true, ..Node::new(node.id, node.parent, empty) }
        };
        Self {
            nodes: self.nodes().map(seen).collect(),
            path: self.path.map(|path| PathRootAndHead { root: first.unwrap_or(path.head), ..path }),
            history: self.history.iter().skip(skipped).cloned().collect(),
            usage: kept.iter().filter_map(|id| self.node(*id)?.usage()).copied().sum(),
            ..self.clone()
        }
    }
}

fn empty(role: Role) -> Message {
    Message::new(role, Vec::<Content>::new()).with_timestamp(Timestamp(0))
}

/// A node of a serialized tree: a message at its position, or an outline, which has only the role of its message.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "TreeNode"))]
pub(super) struct SerializedNode {
    /// The node's id.
    id: NodeId,
    /// The id of the node that this node follows. `None` for a root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parent: Option<NodeId>,
    /// The node's message. Absent in an outline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<Arc<Message>>,
    /// The author of the message. Present in an outline only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    role: Option<Role>,
    /// The usage of the turn, on the last assistant node of each turn. Absent in an outline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Arc<Usage>>,
    /// Whether a turn ended with this assistant message and left its tool uses open, so that the next prompt answers them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    left_open: bool,
}

impl From<&Node> for SerializedNode {
    fn from(node: &Node) -> Self {
        let Node { id, parent, ref message, ref usage, left_open, is_outline } = *node;
        let (message, role) =
            if is_outline { (None, Some(message.role)) } else { (Some(Arc::clone(message)), None) };
        Self { id, parent, message, role, usage: usage.clone(), left_open }
    }
}

impl TryFrom<SerializedNode> for Node {
    type Error = String;

    fn try_from(node: SerializedNode) -> Result<Self, String> {
        let SerializedNode { id, parent, message, role, usage, left_open } = node;
        let is_outline = message.is_none();
        let message = message.or_else(|| Some(Arc::new(empty(role?))));
        let message = message
            .ok_or_else(|| format!("node {id} has neither a `message` nor the `role` of an outline"))?;
        Ok(Self { id, parent, message, usage, left_open, is_outline })
    }
}

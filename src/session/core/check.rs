//! The invariants of a session's core. Debug builds and the simulation check them.

use super::Core;
use crate::{
    agent::Status,
    message::{Content, Role},
};

impl Core {
    /// Returns an error if an invariant is broken.
    pub(in crate::session) fn check(&self) -> Result<(), String> {
        if self.branch.is_some() && self.status == Status::Idle && self.moving.is_some() {
            return Err("a move is in progress during a branch".into());
        }
        let stable = self.stable();
        let head = stable.head().and_then(|head| stable.node(head));
        let bare = head.is_some_and(|node| {
            let message = node.message();
            let has_results = message.content.iter().any(|c| matches!(c, Content::ToolResult(_)));
            message.role == Role::User && !has_results || stable.is_unanswered(node)
        });
        if bare {
            return Err("the head to store is a prompt without a response".into());
        }
        self.saver.check(stable)
    }
}

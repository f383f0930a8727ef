//! The invariants of a session's core. Debug builds and the simulation check them.

use super::SessionCore;
use crate::{agent::Status, tree::Node};

impl SessionCore {
    /// Returns an error if an invariant is broken.
    pub(in crate::session) fn check(&self) -> Result<(), String> {
        if self.branch.is_some() && self.status == Status::Idle && self.moving.is_some() {
            return Err("a move is in progress during a branch".into());
        }
        let stable = self.stable();
        let is_bare = |node: &Node| node.message().is_prompt() || stable.is_unanswered(node);
        if stable.last_message().is_some_and(is_bare) {
            return Err("the head to store is a prompt without a response".into());
        }
        self.saver.check(stable)
    }
}

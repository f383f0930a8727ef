//! Finds the nodes at which a run may start, for runs that start at another node than the head.

use std::sync::Arc;

use super::{Base, Core, Move};
use crate::{
    agent::{FirstMessage, Prompt},
    message::{History, Role},
    session::{Regenerate, SessionError, command::RunStart},
    tree::{Node, NodeId},
};

impl Core {
    /// Returns the place in the tree where a run starts, and the message that starts the run.
    ///
    /// # Errors
    ///
    /// Fails if the node is unknown, or if this kind of run can't start there.
    pub(in crate::session) fn begin(&self, start: RunStart) -> Result<(Base, FirstMessage), SessionError> {
        match start {
            RunStart::Regenerate(Regenerate { user, settings }) => {
                let node = self.prompt(user)?;
                let message = Arc::clone(node.message());
                let settings = self.settings_of(user).overlaid(settings);
                Ok((self.beside(node, Some(user)), FirstMessage::Message(message, settings)))
            }
            RunStart::Edit(user, prompt) => {
                Ok((self.beside(self.prompt(user)?, None), FirstMessage::Prompt(prompt)))
            }
            RunStart::Branch(answer, prompt) => Ok((self.below(answer)?, FirstMessage::Prompt(prompt))),
        }
    }

    fn below(&self, answer: Option<NodeId>) -> Result<Base, SessionError> {
        if let Some(id) = answer {
            let node = self.node(id)?;
            if node.message().role != Role::Assistant {
                return Err(SessionError::NotAssistant { node: id });
            }
            if node.message().tool_uses().next().is_some() && !self.is_left_open(node) {
                return Err(SessionError::OpenToolUses { node: id });
            }
        }
        Ok(self.base(answer, None))
    }

    /// Returns the user message with this id. Fails unless this message started a turn.
    fn prompt(&self, id: NodeId) -> Result<&Node, SessionError> {
        let node = self.node(id)?;
        if node.message().role != Role::User {
            return Err(SessionError::NotUser { node: id });
        }
        let answers_open_uses = || {
            let parent = node.parent().and_then(|parent| self.tree.node(parent));
            parent.is_some_and(|parent| self.is_left_open(parent))
        };
        if node.message().tool_results().next().is_some() && !answers_open_uses() {
            return Err(SessionError::ToolResults { node: id });
        }
        Ok(node)
    }

    /// Returns whether a turn ended with this assistant message and left its tool uses open.
    ///
    /// If the tool uses were answered within their turn, there are two cases. Either the turn continued from the
    /// results, so this message is not the last response of the turn. Or the turn ended with the results, so no
    /// assistant message follows the results.
    fn is_left_open(&self, node: &Node) -> bool {
        let answers = |id| self.tree.children(id).into_iter().flatten();
        let is_answered =
            |node: &Node| answers(node.id()).any(|child| child.message().role == Role::Assistant);
        node.usage().is_some()
            && node.message().tool_uses().next().is_some()
            && answers(node.id()).all(is_answered)
    }

    /// Returns the settings with which a user message was sent, or the default if they are unknown.
    fn settings_of(&self, user: NodeId) -> Prompt {
        self.settings.get(&user).map(|settings| Prompt::clone(settings)).unwrap_or_default()
    }

    /// Returns a branch that starts at the parent of `node`. `answers` is the user message that gets another response,
    /// if there is one.
    fn beside(&self, node: &Node, answers: Option<NodeId>) -> Base {
        self.base(node.parent(), answers)
    }

    fn base(&self, base: Option<NodeId>, answers: Option<NodeId>) -> Base {
        let history = base.map_or_else(History::new, |base| self.history_to(base));
        Base { history, then: Move::Branch { base, answers } }
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&Node, SessionError> {
        self.tree.node(id).ok_or(SessionError::UnknownNode { node: id })
    }

    fn history_to(&self, id: NodeId) -> History {
        let mut tree = self.tree.clone();
        // A clone of the tree is navigated, so that its history shares messages with the current history.
        tree.navigate(id).expect("the node was looked up");
        tree.history().clone()
    }
}

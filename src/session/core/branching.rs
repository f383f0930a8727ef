//! Runs that leave the path: the nodes where they may start.

use std::sync::Arc;

use super::{Base, Core, Move};
use crate::{
    agent::{Opening, Prompt},
    message::{History, Role},
    session::{Regenerate, SessionError, command::RunStart},
    tree::{Node, NodeId},
};

impl Core {
    /// Returns the base of a run and the message that starts it.
    ///
    /// # Errors
    ///
    /// The node is unknown, or such a run can't start there.
    pub(in crate::session) fn begin(&self, start: RunStart) -> Result<(Base, Opening), SessionError> {
        match start {
            RunStart::Regenerate(Regenerate { user, settings }) => {
                let node = self.prompt(user)?;
                let message = Arc::clone(node.message());
                let settings = self.settings_of(user).overlaid(settings);
                Ok((self.beside(node, Some(user)), Opening::Message(message, settings)))
            }
            RunStart::Edit(user, prompt) => {
                Ok((self.beside(self.prompt(user)?, None), Opening::Prompt(prompt)))
            }
            RunStart::Branch(answer, prompt) => Ok((self.below(answer)?, Opening::Prompt(prompt))),
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

    /// Returns the user message that started a turn.
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
    /// If it did not leave them open, its own turn has closed them. The results are then in a message that the turn
    /// continued from, so this message is not the last response of the turn, or in the last message of the turn, which
    /// no assistant message follows.
    fn is_left_open(&self, node: &Node) -> bool {
        let answers = |id| self.tree.children(id).into_iter().flatten();
        let is_answered =
            |node: &Node| answers(node.id()).any(|child| child.message().role == Role::Assistant);
        node.usage().is_some()
            && node.message().tool_uses().next().is_some()
            && answers(node.id()).all(is_answered)
    }

    /// Returns the settings that a user message was sent with, as far as they are known.
    fn settings_of(&self, user: NodeId) -> Prompt {
        self.settings.get(&user).map(|settings| Prompt::clone(settings)).unwrap_or_default()
    }

    /// Returns a branch from the parent of `node`.
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
        // For a node on the path, the history shares most of its messages with the history in use.
        tree.navigate(id).expect("the node was looked up");
        tree.history().clone()
    }
}

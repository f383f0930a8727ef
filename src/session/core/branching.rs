//! Branches and moves of the path: the nodes at which they may start, and the changes of the tree.

use std::sync::Arc;

use super::{Effects, SessionCore};
use crate::{
    agent::FirstMessageOfRun,
    message::{History, Message, Role, share},
    run::{Error, ErrorKind, Prompt, RunAt},
    session::error::unknown_node,
    subscription::EventId,
    tree::{Node, NodeId, Tree},
};

/// The change of the path that follows when the session has replaced the agent's history.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::session) enum PathMove {
    /// The path ends at this node, or is empty.
    To(Option<NodeId>),
    /// A branch starts below this node, or as a new root.
    Branch {
        base: Option<NodeId>,
        /// The user node that gets another response. If it is `None`, the branch starts with a new user message.
        answers: Option<NodeId>,
    },
}

/// A branch that has no committed messages yet.
#[derive(Debug)]
pub(super) struct UncommittedBranch {
    /// The tree as it was before the branch.
    pub(super) before: Tree,
    pub(super) answers: Option<NodeId>,
}

/// The starting point of a branch or a move, and the change of the path that follows.
#[derive(Debug, PartialEq)]
pub(in crate::session) struct HistoryReplacement {
    /// The messages on the path to the starting point.
    pub(in crate::session) history: History,
    /// The change of the path that follows.
    pub(in crate::session) then: PathMove,
}

/// Returns the error for a node at which a run can't start, or the path can't end.
pub(super) fn unfit(kind: ErrorKind, node: NodeId, text: &str) -> Error {
    Error::new(kind, format!("node {node} {text}")).with_member("node", node)
}

/// Checks that a history may end at this node.
pub(crate) fn check_end(tree: &Tree, id: NodeId) -> Result<(), Error> {
    let mut end = Some(tree.node(id).ok_or_else(|| unknown_node(id))?);
    // A run continues from a compaction as from the message before it.
    while let Some(compaction) = end.filter(|node| node.message().compaction.is_some()) {
        end = compaction.parent().and_then(|parent| tree.node(parent));
    }
    let Some(node) = end else { return Ok(()) };
    if node.message().role != Role::Assistant && !is_end_with_results(tree, node) {
        let text = "is a user message; give the assistant message to continue from, or regenerate this one";
        return Err(unfit(ErrorKind::NotAnAnswer, id, text));
    }
    if node.message().tool_uses().next().is_some() && !node.left_open() {
        let text = "has open tool uses; give an assistant message without open tool uses";
        return Err(unfit(ErrorKind::OpenToolUses, id, text));
    }
    Ok(())
}

/// Returns whether a turn ended with this user message, which has the results of the turn's own tools. The usage of a
/// turn is at its last assistant message.
fn is_end_with_results(tree: &Tree, node: &Node) -> bool {
    let answer = node.parent().and_then(|parent| tree.node(parent));
    let is_last = |answer: &Node| answer.usage().is_some() && !answer.left_open();
    node.message().tool_results().next().is_some() && answer.is_some_and(is_last)
}

impl SessionCore {
    /// Returns the place in the tree where a run starts, and the message that starts the run.
    ///
    /// # Errors
    ///
    /// Fails if the node is unknown, or if this kind of run can't start there.
    pub(in crate::session) fn begin(
        &self,
        at: RunAt,
        mut prompt: Prompt,
    ) -> Result<(HistoryReplacement, FirstMessageOfRun), Error> {
        let base = match at {
            RunAt::Again(user) => {
                let node = self.prompt(user)?;
                if prompt.id.is_some() || prompt.app_data.is_some() || !prompt.content.0.is_empty() {
                    let text = "a message that gets another response keeps its content, id and data; send only settings";
                    return Err(Error::new(ErrorKind::InvalidPrompt, text));
                }
                let settings = self.settings.get(&user).map(|sent| sent.overlaid(prompt.clone()));
                let message =
                    FirstMessageOfRun::Message(Arc::clone(node.message()), settings.unwrap_or(prompt));
                return Ok((self.base(node.parent(), Some(user)), message));
            }
            RunAt::Instead(user) => self.base(self.prompt(user)?.parent(), None),
            RunAt::Below(end) => self.below(end)?,
            RunAt::Head => self.below(self.tree.head())?,
        };
        // The prompt's files share their bytes with equal files in the tree.
        share(&mut prompt.content.0, Self::contents(&self.tree));
        Ok((base, FirstMessageOfRun::Prompt(prompt)))
    }

    /// Returns the base of a branch below a node at which a history may end.
    fn below(&self, end: Option<NodeId>) -> Result<HistoryReplacement, Error> {
        end.map_or(Ok(()), |end| check_end(&self.tree, end))?;
        Ok(self.base(end, None))
    }

    /// Returns the user message with this id. Fails unless this message started a turn.
    fn prompt(&self, id: NodeId) -> Result<&Node, Error> {
        let node = self.node(id)?;
        if node.message().role != Role::User {
            let text = "is an assistant message; give the user message to respond to again";
            return Err(unfit(ErrorKind::NotAPrompt, id, text));
        }
        if node.message().compaction.is_some() {
            let text = "is a compaction; give the user message to respond to again";
            return Err(unfit(ErrorKind::NotAPrompt, id, text));
        }
        let answers_open_uses = || {
            let parent = node.parent().and_then(|parent| self.tree.node(parent));
            parent.is_some_and(Node::left_open)
        };
        if node.message().tool_results().next().is_some() && !answers_open_uses() {
            let text = "has tool results; give the user message that started the turn";
            return Err(unfit(ErrorKind::NotAPrompt, id, text));
        }
        Ok(node)
    }

    /// Returns a branch that starts at the node `base`. `answers` is the user message that gets another response, if
    /// there is one.
    fn base(&self, base: Option<NodeId>, answers: Option<NodeId>) -> HistoryReplacement {
        let history = base.map_or_else(History::new, |base| self.history_to(base));
        HistoryReplacement { history, then: PathMove::Branch { base, answers } }
    }

    pub(super) fn node(&self, id: NodeId) -> Result<&Node, Error> {
        self.tree.node(id).ok_or_else(|| unknown_node(id))
    }

    fn history_to(&self, id: NodeId) -> History {
        let mut tree = self.tree.clone();
        // A clone of the tree is navigated, so that its history shares messages with the current history.
        tree.navigate(id).expect("the node was looked up");
        tree.history().clone()
    }

    /// Returns the path through `node` to a leaf, or `None` if that path is already the current path.
    ///
    /// # Errors
    ///
    /// Fails if the node is unknown, or if the path would end at a prompt without an answer.
    pub(in crate::session) fn navigate(
        &self,
        node: Option<NodeId>,
    ) -> Result<Option<HistoryReplacement>, Error> {
        let mut tree = self.tree.clone();
        match node {
            Some(id) => {
                self.node(id)?;
                tree.navigate(id).map_err(|_| unknown_node(id))?;
                tree.extend();
            }
            None => tree.clear(),
        }
        let last = tree.last_message();
        if let Some(node) = last.filter(|last| last.message().is_prompt() || tree.is_unanswered(last)) {
            let text = "is a prompt without an answer; regenerate it, or navigate to another node";
            return Err(unfit(ErrorKind::Unanswered, node.id(), text));
        }
        if tree.head() == self.tree.head() {
            return Ok(None);
        }
        let then = PathMove::To(tree.head());
        Ok(Some(HistoryReplacement { history: tree.history().clone(), then }))
    }

    /// Records that the agent's history was replaced. `with` is the `state` event of this change, which the session has
    /// not processed yet.
    pub(in crate::session) fn moved(&mut self, with: EventId, then: PathMove) {
        self.moving = Some((with, then));
    }

    /// Removes the branch of a run that ended without a commit. `unanswered` are the prompts of a run that has failed. They
    /// stay in the tree, as leaves below the node below which they were sent.
    pub(super) fn roll_back(&mut self, unanswered: &[Arc<Message>], effects: &mut Effects) {
        let (before, base) = (self.tree.clone(), self.tree.head());
        let mut settings = self.prompted.take();
        let (mut moved, mut prompts) = (false, unanswered.iter());
        if let Some(branch) = self.branch.take() {
            (self.tree, moved) = (branch.before, true);
            if branch.answers.is_some() {
                // The first prompt is already in the tree, and its settings are already known.
                prompts.next();
                settings = None;
            }
        }
        let stable = self.tree.clone();
        let added = prompts.map_while(|prompt| Some((self.tree.graft(base, Arc::clone(prompt))?, prompt)));
        let (added, prompts): (Vec<NodeId>, Vec<&Arc<Message>>) = added.unzip();
        if let Some(first) = added.first() {
            self.settings.extend(settings.map(|settings| (*first, settings)));
            self.saver.about_to_change(&stable);
            self.saver.tree_changed(&self.tree, Self::added_bytes(prompts.into_iter(), &stable));
        }
        if moved || !added.is_empty() {
            self.emit_tree(&before, effects);
        }
    }

    /// Changes the tree's path, after the agent has got the history of the new path.
    pub(super) fn follow(&mut self, then: &PathMove, effects: &mut Effects) {
        let before = self.tree.clone();
        match *then {
            PathMove::To(node) => {
                self.saver.about_to_change(&before);
                self.go(node);
                self.saver.tree_changed(&self.tree, 0);
            }
            PathMove::Branch { base, answers } => {
                self.go(base);
                self.branch = Some(UncommittedBranch { before: before.clone(), answers });
            }
        }
        self.emit_tree(&before, effects);
    }

    pub(super) fn go(&mut self, node: Option<NodeId>) {
        match node {
            Some(node) => {
                self.tree.navigate(node).expect("an erasure does not come between a move and its end");
            }
            None => self.tree.clear(),
        }
    }
}

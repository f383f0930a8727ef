//! What a session decides: a pure state machine. Each method takes one input — an event of the agent, a command,
//! the outcome of a write — and appends effects for the shell to perform, in order. No tokio, no clock, no
//! store in here.
//!
//! The path of the tree is the agent's committed history at every moment. A move begins at the agent, which fires a
//! `state` event with the history that it moved to; the tree follows when the session comes to that event.

mod branching;
#[cfg(any(test, debug_assertions))]
mod check;
mod saving;
#[cfg(test)]
mod simulation;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use saving::Saver;
pub(super) use saving::{Found, Job, saved};

use super::{SessionError, SessionEvent, StoreReport};
use crate::{
    agent::{Config, Event, Prompt, Response, Status},
    message::History,
    store::{StoredState, Version, WriteId},
    subscription::EventId,
    tree::{NodeId, Tree},
};

/// What the core may know of the world.
pub(super) struct Env<'a> {
    /// A fresh id, should a write be made.
    pub(super) write_id: &'a dyn Fn() -> WriteId,
    /// Bytes that may be unsaved before new prompts are refused.
    pub(super) unsaved_limit: usize,
    /// The time left until the nearest deadline of an end or a flush, if one is in progress.
    pub(super) left: Option<Duration>,
}

/// What the shell is to do.
#[derive(Debug)]
pub(super) enum Effect {
    /// Emit this event to subscribers.
    Emit(SessionEvent),
    /// Perform this write. Its outcome comes back. If the same write is under way, begin another attempt and keep the first.
    Write(Arc<Job>),
    /// Come back to [`Core::retry`] when this long has passed, unless something is written before.
    RetryIn(Duration),
    /// Whether new prompts are refused has changed.
    Behind(bool),
    /// The agent has become idle.
    Idle,
}

type Effects = Vec<Effect>;

/// Where the path goes, once the agent has moved.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    /// It ends in this node from now on, or is empty.
    To(Option<NodeId>),
    /// A branch begins below this node, or as a new root.
    Branch {
        base: Option<NodeId>,
        /// The user node that is answered again; the others bring a user message of their own.
        answers: Option<NodeId>,
    },
}

/// A branch of which nothing is committed yet.
#[derive(Debug)]
struct Branch {
    /// The tree before it.
    before: Tree,
    answers: Option<NodeId>,
}

/// What a branch begins from.
#[derive(Debug, PartialEq)]
pub(super) struct Base {
    /// The messages above it.
    pub(super) history: History,
    /// What happens to the tree then.
    pub(super) then: Move,
}

/// The state machine of one session.
#[derive(Debug)]
pub(super) struct Core {
    /// As everybody sees it.
    tree: Tree,
    title: Option<Arc<str>>,
    /// Whether a program has made the title, and nobody has set one since.
    is_title_generated: bool,
    /// The agent's configuration, as of the last commit or `state` event.
    config: Arc<Config>,
    status: Status,
    /// The last event of the agent that was taken.
    seen: EventId,
    /// The move that the agent has made, and the event with which it did.
    moving: Option<Box<(EventId, Move)>>,
    branch: Option<Box<Branch>>,
    /// The settings of the prompt in flight, if it has any.
    prompted: Option<Arc<Prompt>>,
    /// The settings that user messages were sent with, where they had any.
    settings: BTreeMap<NodeId, Arc<Prompt>>,
    saver: Saver,
    /// Whether the event about a fallback for the saved model was emitted.
    is_fallback_reported: bool,
}

impl Core {
    /// A session whose conversation is not in the store yet.
    pub(super) fn new(title: Option<Arc<str>>, config: Arc<Config>, seen: EventId) -> Self {
        Self {
            tree: Tree::new(),
            title,
            is_title_generated: false,
            config,
            status: Status::Idle,
            seen,
            moving: None,
            branch: None,
            prompted: None,
            settings: BTreeMap::new(),
            saver: Saver::new(),
            is_fallback_reported: false,
        }
    }

    /// A session whose conversation is in the store: at this version, with this tree and state.
    pub(super) fn loaded(
        tree: Tree,
        state: &StoredState,
        version: Version,
        config: Arc<Config>,
        seen: EventId,
    ) -> Self {
        let mut core = Self::new(state.title.as_deref().map(Arc::from), config, seen);
        core.tree = tree;
        core.saver = Saver::at(version, state, &core.config, core.title.as_ref());
        core
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(super) fn title(&self) -> Option<&Arc<str>> {
        self.title.as_ref()
    }

    pub(super) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    /// The last event of the agent that was taken.
    pub(super) fn seen(&self) -> EventId {
        self.seen
    }

    /// The tree that is to be stored: without a branch of which nothing is committed yet.
    fn stable(&self) -> &Tree {
        self.branch.as_ref().map_or(&self.tree, |branch| &branch.before)
    }

    // ---- events of the agent ----

    /// The message in the event that follows belongs to a prompt with these settings.
    pub(super) fn prompted(&mut self, settings: &Prompt) {
        if self.prompted.is_none() {
            self.prompted = Some(Arc::new(settings.settings()));
        }
    }

    /// Takes the agent's next event. `config` is the configuration in force with it.
    pub(super) fn event(
        &mut self,
        id: EventId,
        event: &Arc<Event>,
        config: &Arc<Config>,
        env: &Env<'_>,
        effects: &mut Effects,
    ) {
        self.seen = id;
        if matches!(**event, Event::State(_))
            && let Some(moving) = self.moving.take_if(|moving| moving.0 == id)
        {
            self.follow(&moving.1, effects);
        }
        effects.push(Effect::Emit(SessionEvent::Agent(Arc::clone(event))));
        match &**event {
            Event::Turn(outcome) => {
                self.commit(outcome.response(), effects);
                self.take_config(config, env, effects);
            }
            Event::State(_) => self.take_config(config, env, effects),
            Event::Cancelled { .. } | Event::Error { .. } => self.roll_back(effects),
            Event::Status { status } => {
                self.status = *status;
                if *status == Status::Idle {
                    effects.push(Effect::Idle);
                }
            }
            _ => {}
        }
    }

    /// A turn is committed: its messages join the tree.
    fn commit(&mut self, response: &Response, effects: &mut Effects) {
        let before = self.tree.clone();
        let mut messages = response.messages.iter();
        let mut settings = self.prompted.take();
        if let Some(branch) = self.branch.take() {
            if let Some(user) = branch.answers {
                // Its first message is in the tree already, and so are the settings that it was sent with.
                messages.next();
                settings = None;
                self.go(Some(user));
            }
            self.saver.about_to_change(&branch.before);
        } else {
            self.saver.about_to_change(&before);
        }
        let bytes = messages.clone().map(|message| NODE_WEIGHT + message.weight()).sum();
        let added = self.tree.push_turn(messages.cloned(), response.usage);
        self.settings.extend(added.first().copied().zip(settings));
        self.saver.tree_changed(&self.tree, bytes);
        self.tell_tree(&before, effects);
    }

    /// A run ended without a commit: a branch that it began is as if it never was.
    fn roll_back(&mut self, effects: &mut Effects) {
        self.prompted = None;
        if let Some(branch) = self.branch.take() {
            let before = std::mem::replace(&mut self.tree, branch.before);
            self.tell_tree(&before, effects);
        }
    }

    /// The agent has moved: so does the path.
    fn follow(&mut self, then: &Move, effects: &mut Effects) {
        let before = self.tree.clone();
        match *then {
            Move::To(node) => {
                self.saver.about_to_change(&before);
                self.go(node);
                self.saver.tree_changed(&self.tree, 0);
            }
            Move::Branch { base, answers } => {
                self.go(base);
                self.branch = Some(Box::new(Branch { before: before.clone(), answers }));
            }
        }
        self.tell_tree(&before, effects);
    }

    fn go(&mut self, node: Option<NodeId>) {
        match node {
            Some(node) => self.tree.navigate(node).expect("a move was checked, and nodes stay"),
            None => self.tree.clear(),
        }
    }

    fn tell_tree(&self, before: &Tree, effects: &mut Effects) {
        let changes = self.tree.changes_since(before).expect("both have the same older nodes");
        effects.push(Effect::Emit(SessionEvent::Tree(Arc::new(changes))));
    }

    /// What is unsaved is to be saved, the configuration included.
    fn take_config(&mut self, config: &Arc<Config>, env: &Env<'_>, effects: &mut Effects) {
        if !Arc::ptr_eq(&self.config, config) {
            self.config = Arc::clone(config);
        }
        self.saver.state_changed(&self.config, self.title.as_ref());
        self.save(env, effects);
    }

    /// The agent ended, with no word of what became of the run.
    pub(super) fn agent_ended(&mut self, effects: &mut Effects) {
        self.moving = None;
        self.roll_back(effects);
        self.status = Status::Idle;
    }

    // ---- commands ----

    /// Where the path leads by way of `node` to a leaf; `None` if it does already.
    ///
    /// # Errors
    ///
    /// An unknown node.
    pub(super) fn navigate(&self, node: Option<NodeId>) -> Result<Option<Base>, SessionError> {
        let mut tree = self.tree.clone();
        match node {
            Some(id) => {
                self.node(id)?;
                tree.navigate(id).map_err(|_| SessionError::UnknownNode { node: id })?;
                tree.extend();
            }
            None => tree.clear(),
        }
        if tree.head() == self.tree.head() {
            return Ok(None);
        }
        let then = Move::To(tree.head());
        Ok(Some(Base { history: tree.history().clone(), then }))
    }

    /// The agent has moved, with this event, which the session has not come to yet.
    pub(super) fn moved(&mut self, with: EventId, then: Move) {
        self.moving = Some(Box::new((with, then)));
    }

    /// Gives the conversation a title, or none.
    pub(super) fn set_title(&mut self, title: Option<Arc<str>>, env: &Env<'_>, effects: &mut Effects) {
        self.is_title_generated = false;
        if self.title == title {
            return;
        }
        self.title.clone_from(&title);
        effects.push(Effect::Emit(SessionEvent::Title { title }));
        self.saver.state_changed(&self.config, self.title.as_ref());
        self.save(env, effects);
    }

    /// Gives the conversation a title that a program has made, if it has none. Returns whether it did.
    pub(super) fn suggest_title(&mut self, title: Arc<str>, env: &Env<'_>, effects: &mut Effects) -> bool {
        let is_untitled = self.title.is_none();
        if is_untitled {
            self.set_title(Some(title), env, effects);
            self.is_title_generated = true;
        }
        is_untitled
    }

    /// Takes note of a new subscriber. For the first one, the use of a fallback for the saved model is emitted.
    pub(super) fn joined(&mut self, effects: &mut Effects) {
        let model = &self.config.model;
        if let Some(saved) = model.fallback_for()
            && !std::mem::replace(&mut self.is_fallback_reported, true)
        {
            let (saved, fallback) = (saved.into(), model.name().into());
            effects.push(Effect::Emit(SessionEvent::ModelFallback { saved, fallback }));
        }
    }

    // ---- snapshots ----

    /// The nodes that are not in the store yet.
    pub(super) fn unsaved(&self) -> Vec<NodeId> {
        self.saver.unsaved(self.stable())
    }

    /// What saving last failed with, if it fails.
    pub(super) fn report(&self) -> Option<&StoreReport> {
        self.saver.report()
    }
}

/// What a node weighs beside its message.
const NODE_WEIGHT: usize = 128;

//! The pure state machine of a session. Each method takes one input: an event of the agent, a command or the outcome of
//! a write. It appends effects, and the session's task performs these effects in order. This module uses no tokio, no
//! clock and no store.
//!
//! The path of the tree always equals the agent's committed history. To move the path, the session first replaces the
//! agent's history, and the agent emits a `state` event with the new history. The tree changes when the session
//! processes that event.
//!
//! While a branch is in flight, the path ends where the branch begins. For a regenerated answer, it ends at the parent
//! of the user message, because that message is pending in the agent. So a snapshot shows each message once.
//!
//! There are three versions of the tree, which share their nodes: the visible one, the base (without the branch in
//! flight), and the stored one. A write contains the difference between the stored and the base tree. If the run of a
//! branch ends without a commit, the base becomes visible again.
//!
//! If a run fails and keeps nothing, its unanswered prompts become leaves of the base. The path does not change, so the
//! next prompt does not build on them.
//!
//! The settings with which prompts were sent are kept in memory only, for regenerated answers. The options of a message
//! that was imported or copied must not take effect.

mod branching;
#[cfg(any(test, debug_assertions))]
mod check;
mod flight;
mod prompts;
mod saving;
#[cfg(test)]
mod simulation;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use branching::UncommittedBranch;
pub(crate) use branching::check_end;
pub(super) use branching::{HistoryReplacement, PathMove};
use flight::TurnRecordTracker;
use prompts::PromptStateTracker;
use saving::SaveTracker;
pub(super) use saving::{ConversationAfterConflict, StoredTurnFingerprint, WriteJob};

use super::{SessionEvent, StoreReport};
use crate::{
    agent::{Config, Event, RecordToStore, Status},
    message::{Content, Message, Usage, UsageRow, shared},
    run::{Prompt, PromptState, Response, RunEnd, RunOutcome},
    store::{Labels, StoredState, TitleBy, Version, WriteId},
    subscription::{EventId, Numbered},
    tree::{Node, NodeId, Tree},
};

/// The values from outside that the core may read.
pub(super) struct SessionCoreEnv<'a> {
    /// Generates an id for a write.
    pub(super) write_id: &'a dyn Fn() -> WriteId,
    /// The limit of unsaved messages, in bytes. Above it, new prompts are refused.
    pub(super) unsaved_limit: usize,
    /// The time left until the nearest deadline of an end or a flush, if one is in progress.
    pub(super) left: Option<Duration>,
}

/// An instruction from the core to the session's task.
#[derive(Debug)]
pub(super) enum SessionEffect {
    /// Emit this event to subscribers.
    Emit(SessionEvent),
    /// Perform this write and return its outcome. If the same write is already in flight, start another attempt without
    /// ending the first.
    Write(Arc<WriteJob>),
    /// Call [`SessionCore::retry`] after this time, unless another write starts before then.
    RetryIn(Duration),
    /// Start to refuse new prompts (`true`), or accept them again (`false`).
    Behind(bool),
    /// Consider an idle shutdown, because the agent has become idle, or waits for decisions about a recorded turn.
    AtRest,
    /// Report to the agent that all its records up to this number are stored.
    Written(u64),
    /// A turn or a prompt has ended, or a staged prompt was withdrawn. Answer the callers that wait for outcomes of prompts.
    PromptsSettled,
}

type Effects = Vec<SessionEffect>;

/// The state machine of one session.
#[derive(Debug)]
pub(super) struct SessionCore {
    /// The tree as users of the session see it, including an uncommitted branch.
    tree: Tree,
    title: Option<Arc<str>>,
    labels: Labels,
    title_by: TitleBy,
    /// The agent's configuration at the last commit, `state` event or record of the turn in flight.
    config: Arc<Config>,
    status: Status,
    /// The id of the last processed event of the agent.
    seen: EventId,
    /// The change of the path that waits for the `state` event with this id. The agent already has the new history.
    moving: Option<(EventId, PathMove)>,
    branch: Option<UncommittedBranch>,
    /// The settings of the prompt in flight, if it has any.
    prompted: Option<Arc<Prompt>>,
    /// The settings with which user messages were sent, if they had any.
    settings: BTreeMap<NodeId, Arc<Prompt>>,
    saver: SaveTracker,
    /// The recorded turn in flight, if the agent records its turns.
    flight: Option<Box<TurnRecordTracker>>,
    prompts: PromptStateTracker,
    /// Whether the store keeps a usage ledger.
    keeps_usage: bool,
    /// The usage rows of the turn in flight. They become part of the record when the turn in flight is recorded or ends.
    rows: Vec<UsageRow>,
    /// The usage of all requests that were made for the conversation.
    used: Usage,
    /// Whether the event about the fallback model has been emitted.
    is_fallback_reported: bool,
}

impl SessionCore {
    /// Creates the core of a session whose conversation is not in the store yet.
    pub(super) fn new(
        title: Option<Arc<str>>,
        labels: Labels,
        keeps_usage: bool,
        config: Arc<Config>,
        seen: EventId,
    ) -> Self {
        Self {
            tree: Tree::new(),
            title_by: title.as_ref().map_or(TitleBy::Derived, |_| TitleBy::Person),
            title,
            labels,
            config,
            status: Status::Idle,
            seen,
            moving: None,
            branch: None,
            prompted: None,
            settings: BTreeMap::new(),
            saver: SaveTracker::new(),
            flight: None,
            prompts: PromptStateTracker::default(),
            keeps_usage,
            rows: Vec::new(),
            used: Usage::default(),
            is_fallback_reported: false,
        }
    }

    /// Creates the core of a session whose conversation is in the store with this version, tree and state.
    pub(super) fn loaded(
        tree: Tree,
        state: StoredState,
        version: Version,
        keeps_usage: bool,
        config: Arc<Config>,
        seen: EventId,
    ) -> Self {
        let title = state.title.as_deref().map(Arc::from);
        let mut core = Self::new(title, state.labels.clone(), keeps_usage, config, seen);
        (core.tree, core.title_by) = (tree, state.title_by);
        core.saver = SaveTracker::at(version, state);
        core
    }

    /// Notes the usage of all requests that were made for a loaded conversation.
    pub(super) fn loaded_usage(&mut self, used: Usage) {
        // A store without a ledger knows only the usage of the messages.
        self.used += if self.keeps_usage { used } else { self.tree.usage() };
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.tree
    }

    pub(super) fn title(&self) -> Option<&Arc<str>> {
        self.title.as_ref()
    }

    pub(super) fn labels(&self) -> &Labels {
        &self.labels
    }

    pub(super) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub(super) fn status(&self) -> Status {
        self.status
    }

    /// Returns the id of the last processed event of the agent.
    pub(super) fn seen(&self) -> EventId {
        self.seen
    }

    /// Returns the tree that has to be stored. A branch without committed messages is not part of it.
    fn stable(&self) -> &Tree {
        self.branch.as_ref().map_or(&self.tree, |branch| &branch.before)
    }

    // ---- events of the agent ----

    /// Notes the settings of the prompt to which the next event's message belongs. If the turn already has settings,
    /// they stay.
    pub(super) fn prompted(&mut self, settings: &Prompt) {
        if self.prompted.is_none() {
            self.prompted = Some(Arc::new(settings.settings()));
        }
    }

    /// Processes the agent's next event, or a record without an event. `config` is the configuration at that event, and
    /// `record` is the turn in flight after that event, if the turn has to be stored.
    pub(super) fn delivered(
        &mut self,
        event: Option<&Numbered<Event>>,
        record: Option<&RecordToStore>,
        config: &Arc<Config>,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) {
        let mut is_due = record.is_some();
        if let Some(Numbered { id, event }) = event {
            let continues = record.is_some_and(|record| record.turn.is_some());
            is_due |= self.event(*id, event, continues, config, effects);
        }
        if let Some(record) = record {
            self.recorded(record, config);
        }
        if let Some(Event::Prompt { state: PromptState::InFlight { .. }, .. }) =
            event.map(|event| &*event.event)
        {
            self.settle_late(record.is_some(), effects);
        }
        if is_due {
            // The change by an event, and the record of the turn after this event, go into one write.
            self.save(env, effects);
        }
    }

    /// Processes an event. Returns whether something may have to be saved. `continues` states whether a record of the
    /// turn in flight after the event is to be stored.
    fn event(
        &mut self,
        id: EventId,
        event: &Arc<Event>,
        continues: bool,
        config: &Arc<Config>,
        effects: &mut Effects,
    ) -> bool {
        self.seen = id;
        if matches!(**event, Event::State(_))
            && let Some(moving) = self.moving.take_if(|moving| moving.0 == id)
        {
            self.follow(&moving.1, effects);
        }
        effects.push(SessionEffect::Emit(SessionEvent::Agent(Arc::clone(event))));
        match &**event {
            Event::Step(response) => self.spent_by_step(response),
            Event::Usage(row) => self.spent_by_request(row),
            Event::Turn { .. } | Event::Error { committed: true, .. } => {
                if let Some(response) = event.committed() {
                    self.commit(response, effects);
                }
                self.turn_ended(event, self.tree.last_message().map(Node::id), continues, effects);
                self.adopt(config);
                return true;
            }
            Event::State(_) => {
                self.adopt(config);
                return true;
            }
            Event::Cancelled { .. } | Event::Error { .. } => {
                let failed = RunEnd::of(event).filter(|end| matches!(end.outcome, RunOutcome::Failed { .. }));
                self.roll_back(&failed.map_or_else(Vec::new, |end| end.unanswered), effects);
                self.turn_ended(event, None, continues, effects);
                self.state_changed();
                return true;
            }
            Event::Prompt { id, state, prompt } => self.prompt_changed(id, state, prompt.as_ref(), effects),
            Event::Status { status, .. } => {
                self.status = *status;
                if self.is_at_rest() {
                    effects.push(SessionEffect::AtRest);
                }
            }
            _ => {}
        }
        false
    }

    /// Adds the messages of a committed turn to the tree.
    fn commit(&mut self, response: &Response, effects: &mut Effects) {
        let before = self.tree.clone();
        let mut messages = response.messages.iter();
        let mut settings = self.prompted.take();
        if let Some(branch) = self.branch.take() {
            if let Some(user) = branch.answers {
                // The first message of the branch is already in the tree, and its settings are already known.
                messages.next();
                settings = None;
                self.go(Some(user));
            }
            self.saver.about_to_change(&branch.before);
        } else {
            self.saver.about_to_change(&before);
        }
        let bytes = Self::added_bytes(messages.clone(), &before);
        // A compaction may stand before the prompt.
        let prompt = messages.clone().position(|message| message.compaction.is_none());
        let added = self.tree.push_turn(messages.cloned(), response.usage);
        self.settings.extend(prompt.and_then(|prompt| added.get(prompt).copied()).zip(settings));
        self.saver.tree_changed(&self.tree, bytes);
        self.emit_tree(&before, effects);
    }

    /// Returns the approximate size in bytes of messages that are added to a tree. Equal files share their bytes, so only
    /// the first of them counts.
    fn added_bytes<'a>(messages: impl Iterator<Item = &'a Arc<Message>> + Clone, tree: &Tree) -> usize {
        let bytes: usize = messages.clone().map(|message| NODE_WEIGHT + message.weight()).sum();
        bytes - shared(messages.map(|message| &message.content[..]), &Self::contents(tree))
    }

    /// Iterates over the content of all messages of the tree.
    fn contents(tree: &Tree) -> impl Iterator<Item = &[Content]> + Clone {
        tree.nodes().map(|node| &node.message().content[..])
    }

    fn emit_tree(&self, before: &Tree, effects: &mut Effects) {
        let changes = self.tree.changes_since(before).expect("both have the same older nodes");
        effects.push(SessionEffect::Emit(SessionEvent::Tree(Arc::new(changes))));
    }

    /// Adopts the agent's configuration, which has to be saved.
    fn adopt(&mut self, config: &Arc<Config>) {
        if !Arc::ptr_eq(&self.config, config) {
            self.config = Arc::clone(config);
        }
        self.state_changed();
    }

    /// Processes the end of the agent, which may have emitted no event about the outcome of its last run. If the turn
    /// is recorded, it stays in flight, with its branch.
    pub(super) fn agent_ended(&mut self, effects: &mut Effects) {
        self.moving = None;
        if !self.is_recorded() {
            self.roll_back(&[], effects);
        }
    }

    // ---- commands ----

    /// Sets or removes the title.
    pub(super) fn set_title(
        &mut self,
        title: Option<Arc<str>>,
        by: TitleBy,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) {
        let by = title.as_ref().map_or(TitleBy::Derived, |_| by);
        if (&self.title, self.title_by) != (&title, by) {
            self.replace_title(title, by, effects);
            self.state_changed();
            self.save(env, effects);
        }
    }

    /// Replaces the title, and emits an event if its text changes.
    fn replace_title(&mut self, title: Option<Arc<str>>, by: TitleBy, effects: &mut Effects) {
        self.title_by = by;
        if self.title != title {
            self.title.clone_from(&title);
            effects.push(SessionEffect::Emit(SessionEvent::Title { title }));
        }
    }

    /// Sets the labels of a conversation before it is created.
    pub(super) fn created_with(&mut self, labels: Labels) {
        self.labels = labels;
    }

    /// Replaces the labels.
    pub(super) fn set_labels(&mut self, labels: Labels, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        if self.labels == labels {
            return;
        }
        self.labels.clone_from(&labels);
        effects.push(SessionEffect::Emit(SessionEvent::Labels { labels }));
        self.state_changed();
        self.save(env, effects);
    }

    /// Stores the conversation, if the store does not have it.
    pub(super) fn store(&mut self, env: &SessionCoreEnv<'_>, effects: &mut Effects) {
        self.state_changed();
        self.save(env, effects);
    }

    /// Sets a title that was made from the path to the node `of`, if the conversation has no title and no message of this
    /// path was erased. Returns whether the title was set.
    pub(super) fn suggest_title(
        &mut self,
        title: Arc<str>,
        of: Option<NodeId>,
        env: &SessionCoreEnv<'_>,
        effects: &mut Effects,
    ) -> bool {
        // The erasure of a node erases all nodes below it, and ids are not used again.
        let is_free = self.title.is_none() && of.is_none_or(|of| self.tree.node(of).is_some());
        if is_free {
            self.set_title(Some(title), TitleBy::Derived, env, effects);
        }
        is_free
    }

    /// Processes a new subscriber. For the first subscriber, emits an event if a fallback model is in use.
    pub(super) fn joined(&mut self, effects: &mut Effects) {
        let model = &self.config.model;
        if let Some(saved) = model.fallback_for()
            && !std::mem::replace(&mut self.is_fallback_reported, true)
        {
            let (saved, fallback) = (saved.into(), model.name().into());
            effects.push(SessionEffect::Emit(SessionEvent::ModelFallback { saved, fallback }));
        }
    }

    // ---- snapshots ----

    /// Returns the nodes that are not in the store yet.
    pub(super) fn unsaved(&self) -> Vec<NodeId> {
        self.saver.unsaved(self.stable())
    }

    /// Returns the last report about saving, if it reports a failure.
    pub(super) fn report(&self) -> Option<&StoreReport> {
        self.saver.report()
    }
}

/// The approximate size of a node in bytes, without its message.
const NODE_WEIGHT: usize = 128;

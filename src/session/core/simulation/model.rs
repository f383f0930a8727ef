//! A model of a session: the visible state that the contract demands after each input.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use super::{
    Check, ensure,
    vault::{Books, Title, title},
};
use crate::{
    agent::{Config, Event, FirstMessageOfRun, Status},
    message::{History, Message, RequestEnd, Role, Usage, UsageRow},
    provider::Options,
    run::{Error, ErrorKind, Prompt, RunEnd, RunOutcome},
    session::core::{HistoryReplacement, PathMove, SessionCore, branching::unfit},
    store::{Labels, StoredState, TitleBy},
    subscription::EventId,
    tree::{Node, NodeId, Tree},
};

/// A kind of event. Each input must emit certain kinds in a certain order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Agent,
    Tree,
    Title,
    Labels,
    Erased,
    Usage,
    Saved,
    Failed,
    Lost,
    Fallback,
}

pub(super) struct Model {
    pub(super) shown: Tree,
    /// Set while a branch has no commit: the tree before the branch, and the node of the user message that gets another
    /// response, if there is one.
    branch: Option<(Tree, Option<NodeId>)>,
    /// The agent's committed history, derived from its events alone.
    committed: History,
    /// The agent's committed history before the branch.
    before: Option<History>,
    /// The messages of the turn in flight.
    pub(super) pending: Vec<Arc<Message>>,
    pub(super) moving: Option<(EventId, PathMove)>,
    /// The settings of the prompt in flight.
    prompted: Option<Prompt>,
    /// The settings with which each user message was sent.
    settings: BTreeMap<NodeId, Prompt>,
    /// The assistant messages that ended a turn and left tool uses open.
    left_open: HashSet<NodeId>,
    /// The prompts of runs that failed and kept nothing, each with its node and the node below which it was sent.
    failed: Vec<(NodeId, Option<NodeId>, Arc<Message>)>,
    pub(super) title: Title,
    pub(super) labels: Labels,
    /// The sum of the usage ledger and the end of the last run, as the store must contain them.
    pub(super) books: Books,
    /// The rows that the usage ledger must contain, in order.
    pub(super) rows: Vec<UsageRow>,
    /// The rows of the usage ledger for the turn in flight.
    in_flight: Vec<UsageRow>,
    pub(super) config: Arc<Config>,
    status: Status,
    seen: EventId,
    is_fallback_reported: bool,
}

impl Model {
    pub(super) fn new(
        tree: Tree,
        state: &StoredState,
        books: Books,
        config: Arc<Config>,
        seen: EventId,
    ) -> Self {
        Self {
            labels: state.labels.clone(),
            books,
            rows: Vec::new(),
            in_flight: Vec::new(),
            committed: tree.history().clone(),
            branch: None,
            before: None,
            pending: Vec::new(),
            moving: None,
            prompted: None,
            settings: BTreeMap::new(),
            left_open: tree.nodes().filter(|node| node.left_open()).map(Node::id).collect(),
            failed: Vec::new(),
            title: title(state),
            config,
            status: Status::Idle,
            seen,
            is_fallback_reported: false,
            shown: tree,
        }
    }

    /// Returns the tree that has to be stored. If a branch ends without a commit, the session returns to this tree.
    pub(super) fn stable(&self) -> &Tree {
        self.branch.as_ref().map_or(&self.shown, |(before, _)| before)
    }

    /// Returns the state that has to be stored with the tree.
    pub(super) fn state(&self) -> StoredState {
        let model = &self.config.model;
        let mut state = StoredState::default().with_model(model.fallback_for().unwrap_or(model.name()));
        state.settings.max_steps = self.config.settings.max_steps;
        state.settings.system.clone_from(&self.config.settings.system);
        if let Some((title, by)) = &self.title {
            (state.title, state.title_by) = (Some(title.to_string()), *by);
        }
        state.labels = self.labels.clone();
        if let Some(max_tokens) = self.config.settings.options.max_tokens() {
            state.settings.options = Options::default().with_max_tokens(max_tokens);
        }
        state
    }

    /// Processes an event of the agent. Returns the kinds of events to emit, and whether the event may require a save.
    pub(super) fn event(&mut self, id: EventId, event: &Event, config: &Arc<Config>) -> (Vec<Kind>, bool) {
        self.seen = id;
        match event {
            Event::Step(response) => {
                let row = UsageRow::new(RequestEnd::Answered, response.usage);
                let row =
                    row.with_turn(response.turn).with_step(response.step).with_model(response.model.clone());
                self.in_flight.extend((response.usage.total() > 0).then_some(row));
                (vec![Kind::Agent], false)
            }
            Event::Usage(row) => {
                self.in_flight.push(UsageRow::clone(row));
                (vec![Kind::Agent], false)
            }
            Event::Turn { .. } | Event::Error { committed: true, .. } => {
                self.spend();
                let response = match event {
                    // A compaction that has failed adds no node, which would remove the end of an earlier run.
                    Event::Turn { response, continues } if response.messages.is_empty() => {
                        if !continues {
                            self.books.last_run = RunEnd::of(event);
                        }
                        response
                    }
                    Event::Turn { response, .. } => {
                        self.books.last_run = None;
                        response
                    }
                    Event::Error { response, failure, .. } => {
                        // The end is stored with the messages, so it does not return the prompts.
                        let end = RunEnd::new(RunOutcome::Failed { failure: failure.clone() });
                        self.books.last_run = Some(RunEnd { turn: response.turn, ..end });
                        response
                    }
                    _ => unreachable!("matched above"),
                };
                self.pending.clear();
                self.before = None;
                self.committed.extend(response.messages.iter().cloned());
                let mut new = response.messages.as_slice();
                let mut prompted = self.prompted.take();
                if let Some((before, answers)) = self.branch.take() {
                    let base = self.shown.head();
                    self.shown = before;
                    if answers.is_some() {
                        new = &new[1..];
                        prompted = None;
                    }
                    go(&mut self.shown, answers.or(base));
                }
                let added = self.shown.push_turn(new.iter().cloned(), response.usage);
                let last = new.last().filter(|last| last.tool_uses().next().is_some());
                self.left_open.extend(added.last().filter(|_| last.is_some()));
                // A compaction may stand before the prompt, or be a turn alone.
                let prompt = new.iter().position(|message| message.compaction.is_none());
                if let (Some(prompted), Some(place)) = (prompted, prompt) {
                    self.settings.insert(added[place], prompted);
                }
                self.config = Arc::clone(config);
                (vec![Kind::Agent, Kind::Tree], true)
            }
            Event::State(view) => {
                self.config = Arc::clone(config);
                let Some((_, then)) = self.moving.take_if(|moving| moving.0 == id) else {
                    self.committed = view.history.clone();
                    return (vec![Kind::Agent], true);
                };
                let former = std::mem::replace(&mut self.committed, view.history.clone());
                match then {
                    PathMove::To(node) => go(&mut self.shown, node),
                    PathMove::Branch { base, answers } => {
                        self.before = Some(former);
                        self.branch = Some((self.shown.clone(), answers));
                        go(&mut self.shown, base);
                    }
                }
                (vec![Kind::Tree, Kind::Agent], true)
            }
            Event::Cancelled { .. } | Event::Error { .. } => {
                self.spend();
                self.books.last_run = RunEnd::of(event);
                let mut kinds = vec![Kind::Agent];
                kinds.extend(self.roll_back(matches!(event, Event::Error { .. })));
                (kinds, true)
            }
            Event::Message { message, .. } => {
                self.pending.push(Arc::clone(message));
                (vec![Kind::Agent], false)
            }
            Event::CompactionEnd { message: Some(message), at, .. } => {
                self.pending.insert(*at, Arc::clone(message));
                (vec![Kind::Agent], false)
            }
            Event::Status { status, .. } => {
                self.status = *status;
                (vec![Kind::Agent], false)
            }
            _ => (vec![Kind::Agent], false),
        }
    }

    /// Adds the usage of a turn to the usage ledger: one row for each request whose usage is known.
    fn spend(&mut self) {
        for row in std::mem::take(&mut self.in_flight) {
            self.spent(row);
        }
    }

    /// Adds a row to the usage ledger.
    pub(super) fn spent(&mut self, row: UsageRow) {
        self.books.used.add(1, row.usage);
        self.rows.push(row);
    }

    /// Erases a node with all nodes below it, and a derived title. Returns also whether there was one.
    pub(super) fn erase(&mut self, id: NodeId) -> (crate::tree::Erased, bool) {
        let erased = self.shown.erase(id).expect("the node exists");
        self.settings.retain(|node, _| !erased.nodes.contains(node));
        self.left_open.retain(|node| self.shown.node(*node).is_some());
        self.failed.retain(|(node, ..)| self.shown.node(*node).is_some());
        self.committed = self.shown.history().clone();
        self.books.last_run = None;
        let title = self.title.take_if(|(_, by)| *by == TitleBy::Derived);
        (erased, title.is_some())
    }

    /// Processes a usage ledger that another writer has stored in place of the `known` one.
    ///
    /// `removes_end` states whether a turn or an erasure that is not stored yet will remove the stored end of the run.
    pub(super) fn take_books(&mut self, known: &Books, stored: Books, removes_end: bool) {
        let (now, before) = (stored.used.usage, known.used.usage);
        let usage =
            Usage::default().with_input(now.input - before.input).with_output(now.output - before.output);
        self.books.used.add(stored.used.requests - known.used.requests, usage);
        if self.books.last_run == known.last_run && !removes_end {
            self.books.last_run = stored.last_run;
        }
    }

    /// Processes labels that another writer has stored in place of the `known` labels.
    pub(super) fn take_labels(&mut self, known: &Labels, stored: Labels) -> Option<Kind> {
        if self.labels != *known || self.labels == stored {
            return None;
        }
        self.labels = stored;
        Some(Kind::Labels)
    }

    /// Sets a title by hand, or as a suggestion that was made from the path to the node `of`. Returns whether anything
    /// changed, and whether the text changed.
    pub(super) fn set_title(
        &mut self,
        title: Option<Arc<str>>,
        by: TitleBy,
        of: Option<NodeId>,
    ) -> (bool, bool) {
        let is_lost = of.is_some_and(|of| self.shown.node(of).is_none());
        if by == TitleBy::Derived && (self.title.is_some() || is_lost) {
            return (false, false);
        }
        let title = title.map(|title| (title, by));
        let before = std::mem::replace(&mut self.title, title);
        (before != self.title, text(&before) != text(&self.title))
    }

    /// Processes a title that another writer has stored in place of the `known` title. The session adopts the stored
    /// title, unless a title was set by hand and is not stored yet.
    pub(super) fn take_title(&mut self, known: &Title, stored: Title) -> Option<Kind> {
        let is_derived = matches!(self.title, Some((_, TitleBy::Derived)));
        if self.title != *known && !(is_derived && stored.is_some()) {
            return None;
        }
        let before = std::mem::replace(&mut self.title, stored);
        (text(&before) != text(&self.title)).then_some(Kind::Title)
    }

    /// Notes the settings of the prompt to which the next message belongs. Keys are not kept.
    pub(super) fn prompted(&mut self, settings: &Prompt) {
        let mut settings = settings.clone();
        settings.options.set_api_key(None);
        self.prompted.get_or_insert(settings);
    }

    /// Returns to the tree before the branch. If the run has failed, its prompts become leaves where they were sent, unless
    /// there are too many already.
    fn roll_back(&mut self, has_failed: bool) -> Option<Kind> {
        let (pending, prompted) = (std::mem::take(&mut self.pending), self.prompted.take());
        let base = self.shown.head();
        if let Some(before) = self.before.take() {
            self.committed = before;
        }
        let (mut changes, mut is_known) = (false, false);
        if let Some((before, answers)) = self.branch.take() {
            (self.shown, changes, is_known) = (before, true, answers.is_some());
        }
        // A compaction is removed with the run. It does not belong to the prompts.
        let own = pending.into_iter().filter(|message| message.compaction.is_none());
        for (place, message) in own.enumerate().filter(|_| has_failed) {
            let is_prompt =
                message.role == Role::User && (place == 0 || message.tool_results().next().is_none());
            let siblings = self.shown.nodes().filter(|node| node.parent() == base);
            let is_full = siblings.filter(|node| self.is_unanswered(node.id())).count() >= 16;
            // A prompt that has joined a turn answers no open tool uses.
            let asks = base
                .and_then(|base| self.shown.node(base))
                .is_some_and(|base| base.message().tool_uses().next().is_some());
            let fits = !asks || message.tool_results().next().is_some();
            if !is_prompt || is_full || !fits || place == 0 && is_known {
                continue;
            }
            let node = self.shown.graft(base, Arc::clone(&message)).expect("the limit is not reached");
            if let Some(prompted) = prompted.clone().filter(|_| place == 0) {
                self.settings.insert(node, prompted);
            }
            self.failed.push((node, base, message));
            changes = true;
        }
        changes.then_some(Kind::Tree)
    }

    /// Returns whether a node is a prompt without an answer. Only compactions may stand below it. Results of tools are a
    /// prompt if a turn has left the tools to the application.
    fn is_unanswered(&self, id: NodeId) -> bool {
        let Some(node) = self.shown.node(id) else { return false };
        let has_results = node.message().tool_results().next().is_some();
        node.message().role == Role::User
            && node.message().compaction.is_none()
            && self.is_bare(id)
            && (!has_results || self.above(node.parent()).is_some_and(|parent| self.is_left_open(parent)))
    }

    /// Returns whether nothing but compactions stands below a node.
    fn is_bare(&self, id: NodeId) -> bool {
        let mut below = self.shown.nodes().filter(|other| other.parent() == Some(id));
        below.all(|other| other.message().compaction.is_some() && self.is_bare(other.id()))
    }

    /// Returns the newest prompt without an answer below the end of the path. Compactions at the end of the path do not
    /// hide it.
    pub(super) fn unanswered(&self) -> Option<NodeId> {
        let (mut place, end) = (self.shown.head(), self.above(self.shown.head()));
        loop {
            let below = self.shown.nodes().filter(|node| node.parent() == place).map(Node::id);
            let newest = below.filter(|id| self.is_unanswered(*id)).last();
            if newest.is_some() || place == end {
                return newest;
            }
            place = place.and_then(|place| self.shown.node(place)?.parent());
        }
    }

    /// Returns the nearest node at or above this one that is not a compaction.
    fn above(&self, id: Option<NodeId>) -> Option<NodeId> {
        let node = self.shown.node(id?)?;
        if node.message().compaction.is_some() { self.above(node.parent()) } else { id }
    }

    /// Processes a new subscriber. The event about the fallback model is emitted only once per session.
    pub(super) fn joined(&mut self) -> Vec<Kind> {
        let is_told = self.config.model.fallback_for().is_some() && !self.is_fallback_reported;
        self.is_fallback_reported |= is_told;
        Vec::from_iter(is_told.then_some(Kind::Fallback))
    }

    pub(super) fn agent_ended(&mut self) -> Vec<Kind> {
        self.moving = None;
        self.roll_back(false).into_iter().collect()
    }

    // ---- moves ----

    pub(super) fn branch_below(&self, node: Option<NodeId>) -> Result<HistoryReplacement, Error> {
        if let Some(id) = node {
            self.message(id)?;
        }
        // A run continues from a compaction as from the message before it.
        if let (Some(id), Some(end)) = (node, self.above(node)) {
            let message = self.message(end)?;
            let parent = self.shown.node(end).and_then(crate::tree::Node::parent);
            let usage = parent.and_then(|parent| self.shown.node(parent)?.usage());
            let ends_turn = usage.is_some() && !parent.is_some_and(|parent| self.is_left_open(parent));
            if message.role == Role::User && !(ends_turn && message.tool_results().next().is_some()) {
                return Err(unfit(ErrorKind::NotAnAnswer, id, ""));
            }
            if message.tool_uses().next().is_some() && !self.is_left_open(end) {
                return Err(unfit(ErrorKind::OpenToolUses, id, ""));
            }
        }
        let then = PathMove::Branch { base: node, answers: None };
        Ok(HistoryReplacement { history: self.messages_to(node), then })
    }

    pub(super) fn regenerate(
        &self,
        id: NodeId,
        again: &Prompt,
    ) -> Result<(HistoryReplacement, FirstMessageOfRun), Error> {
        let (base, message) = self.prompt_at(id)?;
        let then = PathMove::Branch { base, answers: Some(id) };
        let sent = self.settings.get(&id).cloned().unwrap_or_default();
        let mut settings = again.clone();
        settings.max_steps = settings.max_steps.or(sent.max_steps);
        if let (None, Some(tokens)) = (settings.options.max_tokens(), sent.options.max_tokens()) {
            settings.options.set_max_tokens(Some(tokens));
        }
        Ok((
            HistoryReplacement { history: self.messages_to(base), then },
            FirstMessageOfRun::Message(message, settings),
        ))
    }

    pub(super) fn edit(&self, id: NodeId) -> Result<HistoryReplacement, Error> {
        let (base, _) = self.prompt_at(id)?;
        let then = PathMove::Branch { base, answers: None };
        Ok(HistoryReplacement { history: self.messages_to(base), then })
    }

    /// Returns a message that started a turn, and the parent of its node.
    fn prompt_at(&self, id: NodeId) -> Result<(Option<NodeId>, Arc<Message>), Error> {
        let message = self.message(id)?;
        if message.role == Role::Assistant || message.compaction.is_some() {
            return Err(unfit(ErrorKind::NotAPrompt, id, ""));
        }
        let base = self.shown.node(id).and_then(crate::tree::Node::parent);
        let holds_results = message.tool_results().next().is_some();
        if holds_results && !base.is_some_and(|base| self.is_left_open(base)) {
            return Err(unfit(ErrorKind::NotAPrompt, id, ""));
        }
        Ok((base, message))
    }

    /// Returns whether a turn ended with this assistant message and left its tool uses open.
    fn is_left_open(&self, id: NodeId) -> bool {
        self.left_open.contains(&id)
    }

    pub(super) fn navigate(&self, node: Option<NodeId>) -> Result<Option<HistoryReplacement>, Error> {
        let mut leaf = node;
        if let Some(id) = node {
            self.message(id)?;
            let below = |id| self.shown.cursor(id).filter(|below| !self.is_unanswered(*below));
            while let Some(below) = leaf.and_then(below) {
                leaf = Some(below);
            }
        }
        if let Some(end) = self.above(leaf) {
            let message = self.message(end)?;
            let is_bare = message.role == Role::User && message.tool_results().next().is_none();
            if is_bare || self.is_unanswered(end) {
                return Err(unfit(ErrorKind::Unanswered, end, ""));
            }
        }
        let base = HistoryReplacement { history: self.messages_to(leaf), then: PathMove::To(leaf) };
        Ok((leaf != self.shown.head()).then_some(base))
    }

    fn message(&self, id: NodeId) -> Result<Arc<Message>, Error> {
        let node = self.shown.node(id).ok_or_else(|| unfit(ErrorKind::UnknownNode, id, ""))?;
        Ok(Arc::clone(node.message()))
    }

    fn messages_to(&self, node: Option<NodeId>) -> History {
        let path = node.map(|id| self.shown.path_to(id).expect("the node was looked up"));
        path.into_iter().flatten().map(|node| Arc::clone(node.message())).collect()
    }

    // ---- checks ----

    pub(super) fn check(&self, core: &SessionCore) -> Check {
        core.check()?;
        let end = self.above(core.tree().head()).filter(|end| self.is_unanswered(*end));
        ensure!(end.is_none(), "the path ends at an unanswered prompt:\n{}", core.tree());
        let is_prompt = |id: &NodeId| core.tree().node(*id).is_some_and(|node| is_prompt(node.message()));
        ensure!(core.settings.keys().all(is_prompt), "settings without a prompt: {:?}", core.settings);
        let returned = self.books.last_run.iter().flat_map(|end| &end.unanswered);
        let compaction = returned.clone().find(|message| message.compaction.is_some());
        ensure!(compaction.is_none(), "a failed run returns the compaction {compaction:?}");
        for (node, parent, message) in &self.failed {
            let found =
                core.tree().node(*node).map(|node| (node.parent(), Arc::ptr_eq(node.message(), message)));
            ensure!(
                found == Some((*parent, true)),
                "the failed prompt {node} is not below {parent:?}: {found:?}"
            );
        }
        ensure!(*core.tree() == self.shown, "the tree is\n{}\nnot\n{}", core.tree(), self.shown);
        let marked: HashSet<_> = core.tree().nodes().filter(|node| node.left_open()).map(Node::id).collect();
        ensure!(marked == self.left_open, "left open are {marked:?}, not {:?}", self.left_open);
        ensure!(core.tree().usage() == self.shown.usage(), "the tree's usage differs from the turns' usage");
        ensure!(*core.labels() == self.labels, "the labels are {:?}, not {:?}", core.labels(), self.labels);
        ensure!(core.title() == text(&self.title), "the title is {:?}, not {:?}", core.title(), self.title);
        ensure!(Arc::ptr_eq(core.config(), &self.config), "the configuration is not the agent's");
        ensure!(core.status() == self.status, "the status is {:?}, not {:?}", core.status(), self.status);
        ensure!(core.seen() == self.seen, "the last event is {}, not {}", core.seen(), self.seen);
        same_messages(core.tree().history(), &self.committed)
            .map_err(|words| format!("the path is not the agent's history: {words}"))
    }
}

/// Returns whether a message is a prompt, or results of tools that a turn has left to the application.
fn is_prompt(message: &Message) -> bool {
    message.role == Role::User && message.compaction.is_none()
}

/// Returns the text of a title.
fn text(title: &Title) -> Option<&Arc<str>> {
    title.as_ref().map(|(text, _)| text)
}

fn go(tree: &mut Tree, node: Option<NodeId>) {
    match node {
        Some(node) => tree.navigate(node).expect("the node is part of the tree"),
        None => tree.clear(),
    }
}

/// Checks that both sequences contain identical messages.
pub(super) fn same_messages<'a>(
    one: impl IntoIterator<Item = &'a Arc<Message>>,
    other: impl IntoIterator<Item = &'a Arc<Message>>,
) -> Check {
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    for place in 0.. {
        match (one.next(), other.next()) {
            (None, None) => break,
            (Some(one), Some(other)) if Arc::ptr_eq(one, other) => {}
            (one, other) => return Err(format!("message {place} is {one:?}, not {other:?}")),
        }
    }
    Ok(())
}

//! The content that is written to a store and read back.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::{ConversationId, Labels, Owner, ScheduleChange, StoredTurn, TurnChange, Version};
use crate::{
    message::{RequestEnd, Timestamp, UsageRow, UsageSum},
    provider::Options,
    run::{KnownPrompt, PromptState, RunEnd, Settings},
    setters::setters,
    subscription::EventId,
    tree::{Changes, Erased, Node, NodeId},
};

/// The settings and the title of a conversation, as they are stored.
///
/// A stored state never contains a secret: the API key and headers of the options are removed before it is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StoredState {
    /// The model's name, such as `provider:id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The system prompt, the options and the limits.
    #[serde(flatten)]
    pub settings: Settings,
    /// The conversation's title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Who set the title.
    #[serde(skip_serializing_if = "TitleBy::is_derived")]
    pub title_by: TitleBy,
    /// The conversation's labels.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
}

setters!(StoredState: with_model(model: some String), with_labels(labels: Labels));

impl StoredState {
    setters! {
        /// Returns the same state with this title, set by a person.
        pub fn with_title(self, title: impl Into<String>) {
            (self.title, self.title_by) = (Some(title.into()), TitleBy::Person);
        }

        /// Returns the same state with this system prompt.
        pub fn with_system(self, system: impl Into<Arc<str>>) { self.settings.system = Some(system.into()) }

        /// Returns the same state with these options, without their secrets.
        pub fn with_options(self, options: Options) { self.settings.options = options.without_secrets() }

        /// Returns the same state with this limit on the requests of one prompt.
        pub fn with_max_steps(self, max_steps: u32) { self.settings.max_steps = Some(max_steps) }

        /// Returns the same state with this limit on the duration of a turn.
        pub fn with_turn_timeout(self, limit: Duration) { self.settings.turn_timeout = Some(limit) }
    }

    /// Returns the same state without secrets, ready to be stored.
    pub fn without_secrets(mut self) -> Self {
        self.settings.options = self.settings.options.without_secrets();
        self
    }

    /// Removes the title if an erasure removes derived titles and the title is one.
    pub(crate) fn erase(&mut self, erased: &Erased) {
        if erased.title && self.title_by.is_derived() {
            self.title = None;
        }
    }

    /// Returns whether both states are equal apart from their titles and labels.
    pub(crate) fn configures_as(&self, other: &Self) -> bool {
        (&self.model, &self.settings) == (&other.model, &other.settings)
    }
}

/// Who set the title of a conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TitleBy {
    /// The title was made from the messages, so it may quote them. An erasure of messages removes it.
    #[default]
    Derived,
    /// A person or the application set the title. An erasure of messages keeps it.
    Person,
}

impl TitleBy {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    pub(crate) fn is_derived(&self) -> bool {
        *self == Self::Derived
    }
}

/// A change to the [`StoredState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StateChange {
    /// Replaces the whole state.
    Whole(Box<StoredState>),
    /// Replaces the title, or removes it. The rest of the state does not change.
    Title {
        /// The new title. `None` removes the title.
        title: Option<String>,
        /// Who set the title.
        #[serde(default, skip_serializing_if = "TitleBy::is_derived")]
        by: TitleBy,
    },
    /// Replaces all labels. The rest of the state does not change.
    Labels(Labels),
}

impl StateChange {
    /// Returns a change that replaces the whole state.
    pub fn whole(state: StoredState) -> Self {
        Self::Whole(Box::new(state))
    }

    /// Returns a change that replaces the title with one that a person has set.
    pub fn title(title: impl Into<String>) -> Self {
        Self::Title { title: Some(title.into()), by: TitleBy::Person }
    }
}

/// A change to a conversation, as one write.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Change {
    /// Creates the conversation with this state and no nodes.
    // Boxed, because changes are moved and few of them create a conversation.
    Create(Box<StoredState>),
    /// Adds the changes of one turn, or of one move in the tree.
    Commit(Commit),
    /// Replaces the whole state, only the title, or only the labels.
    State(StateChange),
    /// Removes nodes, and moves the head and cursors. Not all stores [support](super::StoreTraits::erase) it.
    ///
    /// After the write is acknowledged, the store no longer contains the messages of the removed nodes, as far as it
    /// controls the medium. The store's documentation states what may remain. The usage ledger keeps its rows.
    ///
    /// The write also removes the turn in flight and the messages in the [end of the last run](Stored::last_run), which
    /// may be erased ones. It keeps the outcomes of prompts, as [`Stored::erase`] shows. If [`Erased::title`] is set, the
    /// write also removes a title that was [derived](TitleBy::Derived) from the messages.
    Erase(Erased),
    /// Sets, replaces or removes a schedule. Not all stores [support](super::StoreTraits::schedules) it.
    ///
    /// The base and the epoch of the write are ignored, and the version does not change, so the conversation's owner can
    /// continue to write. If the change [replaces](ScheduleChange::was) a schedule that is not the stored one, the write
    /// fails with [`Conflict`](super::StoreError::Conflict). It is not recognized if it is repeated, so a repetition
    /// takes effect again, or fails with this error.
    // Boxed, because changes are moved and few of them concern a schedule.
    Schedule(Box<ScheduleChange>),
}

impl Change {
    /// Returns a change to a schedule.
    pub fn schedule(change: ScheduleChange) -> Self {
        Self::Schedule(Box::new(change))
    }

    /// Returns the creation of a conversation with this state.
    pub fn create(state: StoredState) -> Self {
        Self::Create(Box::new(state))
    }
}

/// The changes that one turn, or one move in the tree, makes to a conversation. A store writes all of them or none.
///
/// Later versions of this crate may add parts to a commit, and a store must keep these parts too. The JSON form of a
/// commit contains all parts, so a store that keeps this form does not need to know them.
///
/// ```
/// use omni_agent::{message::Message, store::custom::Commit, tree::Tree};
///
/// let mut tree = Tree::new();
/// let stored = tree.clone();
/// tree.push(Message::user("Hello"));
/// let commit: Commit = tree.changes_since(&stored).expect("the tree only grew").into();
///
/// let json = serde_json::to_string(&commit)?;
/// assert_eq!(serde_json::from_str::<Commit>(&json)?, commit);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Commit {
    /// The new last node of the path.
    pub head: Option<NodeId>,
    /// The cursors that changed. Each pair contains a node and its child that was last active.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cursors: Vec<(NodeId, NodeId)>,
    /// The new state, if it changed with this commit.
    // Boxed, because commits are moved often and few of them have a state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<StoredState>>,
    /// The new nodes, parents before their children. Their ids are higher than all earlier ids.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
    /// The usage of requests that ended since the previous commit, in their order. `None` if the writer does not record
    /// usage itself. Then the store adds a row to the ledger for each new node with usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Vec<UsageRow>>,
    /// A record of the turn in flight, or the end of a run that left a prompt without an answer, or was cancelled or
    /// failed. If this is `None`, a commit that adds nodes or moves the head ends the recorded turn in flight. Any
    /// other commit leaves the turn as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Box<TurnChange>>,
}

impl Commit {
    /// Returns a commit that makes this node the head and adds nothing.
    pub fn new(head: Option<NodeId>) -> Self {
        Self { head, ..Self::default() }
    }

    setters! {
        /// Returns the same commit with these nodes added.
        pub fn with_nodes(self, nodes: impl IntoIterator<Item = Node>) { self.nodes.extend(nodes) }

        /// Returns the same commit with these cursor changes added.
        pub fn with_cursors(self, cursors: impl IntoIterator<Item = (NodeId, NodeId)>) {
            self.cursors.extend(cursors);
        }

        /// Returns the same commit with these rows added to the usage ledger.
        pub fn with_usage(self, rows: impl IntoIterator<Item = UsageRow>) {
            self.usage.get_or_insert_default().extend(rows);
        }
    }

    /// Returns the rows that this commit adds to the usage ledger.
    ///
    /// If [`usage`](Self::usage) is `None`, these are rows without a model for the new nodes with usage.
    pub fn usage_rows(&self) -> Vec<UsageRow> {
        self.usage.clone().unwrap_or_else(|| self.nodes.iter().filter_map(usage_of).collect())
    }

    /// Returns whether the commit changes the time of the last write. A commit does not change this time if it only
    /// records usage, the turn in flight or the end of a run, and keeps `head` as the head.
    pub fn is_update(&self, head: Option<NodeId>) -> bool {
        let Self { head: new, cursors, state, nodes, usage, turn } = self;
        let records = turn.is_some() || usage.as_ref().is_some_and(|rows| !rows.is_empty());
        !records || *new != head || !cursors.is_empty() || state.is_some() || !nodes.is_empty()
    }

    /// Returns the same commit with this state as the new state.
    pub fn with_state(mut self, state: StoredState) -> Self {
        self.state = Some(Box::new(state));
        self
    }
}

impl From<Changes> for Commit {
    fn from(changes: Changes) -> Self {
        let Changes { nodes, head, cursors, .. } = changes;
        Self { head, cursors, nodes, ..Self::default() }
    }
}

/// A whole conversation, as a store returns it.
///
/// To get its tree, call `Tree::hydrate(stored.nodes, stored.head, stored.cursors)`.
///
/// A store that keeps a list of writes can use this type to load a conversation. The store starts with [`Stored::new`]
/// and applies the writes in order.
///
/// ```
/// use omni_agent::{
///     message::Timestamp,
///     store::custom::{StateChange, Stored, StoredState, Version},
/// };
///
/// let mut stored = Stored::new(Version::first(), Timestamp::now(), StoredState::default());
/// stored.change_state(StateChange::title("A talk"));
/// assert_eq!(stored.state.title.as_deref(), Some("A talk"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stored {
    /// The version that the next write builds on.
    pub version: Version,
    /// The time at which the conversation was created, by the store's clock.
    pub created: Timestamp,
    /// The time of the last write, by the store's clock.
    pub updated: Timestamp,
    /// The settings and the title of the conversation.
    pub state: StoredState,
    /// The last node of the path.
    pub head: Option<NodeId>,
    /// The child that was last active, for each node for which a commit recorded it.
    pub cursors: BTreeMap<NodeId, NodeId>,
    /// All nodes, in the order in which they were committed.
    pub nodes: Vec<Node>,
    /// The id of the next node, if nodes with higher ids than the last remaining node were erased. Otherwise `None`,
    /// because the next id is one more than the last node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<NodeId>,
    /// The sum of the usage ledger.
    #[serde(default)]
    pub used: UsageSum,
    /// The end of the last run, if the last write of a turn or of a run's end has stored it. It is stored in these cases:
    ///
    /// - The run was cancelled, has failed, or was abandoned or discarded.
    /// - The run is complete, but it has left staged prompts unused.
    /// - Outcomes of prompts with ids are stored with it. Then the run can be complete, with the outcome `Stopped`.
    /// - The run continues with another turn, and outcomes of prompts are stored. Then this is the end that applies if
    ///   the process ends before the next turn is committed or recorded: `Stopped`, with prompts that are in flight.
    ///
    /// A commit of nodes without an end removes it. An erasure keeps the outcome and the [`prompts`](RunEnd::prompts)
    /// without the erased nodes, and removes the rest. An erasure removes an end without prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_run: Option<RunEnd>,
    /// The turn in flight, if it is recorded.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "StoredTurn::deserialize_any"
    )]
    pub turn: Option<Box<StoredTurn>>,
    /// The last event of the session's feed that changed anything, if the last write or the
    /// [release](super::Store::release) of the conversation recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<EventId>,
}

impl Stored {
    /// Returns a new conversation without nodes.
    pub fn new(version: Version, created: Timestamp, state: StoredState) -> Self {
        Self {
            version,
            created,
            updated: created,
            state: state.without_secrets(),
            head: None,
            cursors: BTreeMap::new(),
            nodes: Vec::new(),
            next: None,
            used: UsageSum::default(),
            last_run: None,
            turn: None,
            mark: None,
        }
    }

    /// Applies a commit that was written at the time [`updated`](Self::updated). Stores that keep records of turns use
    /// [`commit_at`](Self::commit_at).
    pub fn commit(&mut self, commit: Commit) {
        self.commit_at(commit, self.updated);
    }

    /// Applies a commit that was written at this time, by the store's clock. If the commit records the turn in flight,
    /// the new approvals in this record count as waiting since `now`. The version and the time of the last write do not
    /// change, because the store itself [advances](Self::advance) them.
    pub fn commit_at(&mut self, commit: Commit, now: Timestamp) {
        match &commit.usage {
            Some(rows) => rows.iter().for_each(|row| self.used.add(1, row.usage)),
            None => commit.nodes.iter().filter_map(Node::usage).for_each(|usage| self.used.add(1, *usage)),
        }
        self.mark = None;
        if commit.ends_turn(self.head) {
            self.turn = None;
        }
        let Commit { head, cursors, state, nodes, usage: _, turn } = commit;
        if !nodes.is_empty() {
            self.last_run = None;
        }
        match turn.map(|turn| *turn) {
            Some(TurnChange::End(mut end)) => {
                self.mark = end.mark.take();
                self.last_run = Some(end);
            }
            Some(TurnChange::Record(record)) => {
                self.mark = record.mark;
                if record.head == head {
                    let earlier = self.turn.take().filter(|turn| turn.is_on(head)).map(|turn| *turn);
                    self.turn = Some(Box::new(StoredTurn::fold(earlier, record, now, self.version)));
                }
            }
            None => {}
        }
        self.head = head;
        self.cursors.extend(cursors);
        if let Some(state) = state {
            self.state = state.without_secrets();
        }
        self.nodes.extend(nodes);
    }

    /// Returns the entry of this conversation in a list, without an owner.
    pub fn summary(&self, id: &ConversationId) -> Summary {
        Summary {
            title: self.state.title.clone(),
            labels: self.state.labels.clone(),
            updated: self.updated,
            in_flight: self.turn.is_some(),
            waiting: self.turn.as_ref().map_or(0, |turn| turn.record.waiting_count()),
            ..Summary::new(id.clone(), self.version, self.created)
        }
    }

    /// Returns the same conversation, read at this time by the store's clock.
    pub fn read_at(mut self, now: Timestamp) -> Self {
        if let Some(turn) = &mut self.turn {
            turn.now = now;
        }
        self
    }

    /// Sets the version after a write, and the time of the last write.
    pub fn advance(&mut self, version: Version, updated: Timestamp) {
        (self.version, self.updated) = (version, updated);
        if let Some(turn) = &mut self.turn {
            turn.version = version;
        }
    }

    /// Applies a change of the state. The version and the time do not change, because the store itself advances them.
    pub fn change_state(&mut self, change: StateChange) {
        self.mark = None;
        match change {
            StateChange::Whole(state) => self.state = state.without_secrets(),
            StateChange::Title { title, by } => (self.state.title, self.state.title_by) = (title, by),
            StateChange::Labels(labels) => self.state.labels = labels,
        }
    }

    /// Removes nodes, with the cursors from and to them, and the title if it is derived. The version and the time do not change, because the store
    /// itself advances them.
    pub fn erase(&mut self, erased: &Erased) {
        let is_gone = |node: &NodeId| erased.nodes.binary_search(node).is_ok();
        self.nodes.retain(|node| !is_gone(&node.id()));
        self.cursors.retain(|node, child| !is_gone(node) && !is_gone(child));
        (self.head, self.next) = (erased.head, Some(erased.next));
        self.last_run = self.last_run.take().and_then(|end| without_messages(end, erased));
        // The turn in flight may contain an erased message.
        (self.turn, self.mark) = (None, None);
        self.state.erase(erased);
    }
}

/// Returns the part of the end of a run that stays after an erasure: the outcome and the prompts. The messages may be
/// erased ones. Returns `None` if the end has no prompts.
pub(in crate::store) fn without_messages(end: RunEnd, erased: &Erased) -> Option<RunEnd> {
    let RunEnd { mut outcome, mut prompts, .. } = end;
    outcome.erase_texts();
    for prompt in &mut prompts {
        erase_content(prompt, erased);
    }
    (!prompts.is_empty()).then(|| RunEnd::new(outcome).with_prompts(prompts))
}

/// Removes the erased node of a known prompt, and the texts of a failure, which may quote an erased message.
pub(crate) fn erase_content(prompt: &mut KnownPrompt, erased: &Erased) {
    prompt.through.take_if(|node| erased.nodes.binary_search(node).is_ok());
    if let PromptState::Ended { outcome } = &mut prompt.state {
        outcome.erase_texts();
    }
}

/// Returns the ledger's row for a node of a commit whose [`usage`](Commit::usage) is `None`. Returns `None` if the node
/// has no usage.
fn usage_of(node: &Node) -> Option<UsageRow> {
    let usage = *node.usage()?;
    Some(UsageRow::new(RequestEnd::Answered, usage).with_at(node.message().timestamp))
}

/// The entry of a conversation in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Summary {
    /// The conversation's id.
    pub id: ConversationId,
    /// The conversation's title.
    pub title: Option<String>,
    /// The conversation's labels.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// The time at which the conversation was created, by the store's clock.
    pub created: Timestamp,
    /// The time of the last write, by the store's clock.
    pub updated: Timestamp,
    /// The current version, which the next write builds on.
    pub version: Version,
    /// The current owner, if the store supports ownership.
    pub owner: Option<Owner>,
    /// The reason why the conversation can't be loaded, if damage was found when the list was made.
    pub damage: Option<String>,
    /// Whether a turn in flight is recorded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_flight: bool,
    /// The number of tool uses of the turn in flight that wait for a decision.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub waiting: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Summary {
    /// Returns a summary of a new conversation, without title, labels, owner and damage.
    pub const fn new(id: ConversationId, version: Version, created: Timestamp) -> Self {
        Self {
            id,
            title: None,
            labels: Labels::NONE,
            created,
            updated: created,
            version,
            owner: None,
            damage: None,
            in_flight: false,
            waiting: 0,
        }
    }
}

/// The position of a conversation in a list.
///
/// Positions are ordered like lists of conversations: by the last write, newest first, then by id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Position {
    /// The time of the conversation's last write. In a list of turns in flight, the time by which the list is sorted.
    pub updated: Timestamp,
    /// The conversation's id.
    pub id: ConversationId,
}

impl Ord for Position {
    fn cmp(&self, other: &Self) -> Ordering {
        other.updated.cmp(&self.updated).then_with(|| self.id.cmp(&other.id))
    }
}

impl PartialOrd for Position {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl From<&Summary> for Position {
    fn from(summary: &Summary) -> Self {
        Self { updated: summary.updated, id: summary.id.clone() }
    }
}

/// A part of a list of conversations.
///
/// Pages by [`offset`](Page::from) shift while others write, and the store has to skip all conversations before the
/// page. Pages [`after`](Page::after) a conversation avoid both problems: each conversation that is not written to in
/// the meantime is on exactly one of these pages.
///
/// ```
/// use omni_agent::store::{Listing, MemoryStore, Page, Store};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let store = MemoryStore::new();
///
/// let mut page = Page::first(100);
/// loop {
///     let listed = store.list(&Listing::from(page.clone())).await?;
///     let Some(last) = listed.last() else { break };
///     page = page.after(last);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Page {
    /// The maximum number of entries on the page, such as conversations.
    pub limit: usize,
    /// The number of entries to skip, counted from the beginning or from [`after`](Self::after).
    pub offset: usize,
    /// The position after which the page begins. It does not have to be the position of an existing conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Position>,
}

impl Page {
    /// Returns a page with the first `limit` conversations.
    pub const fn first(limit: usize) -> Self {
        Self { limit, offset: 0, after: None }
    }

    /// Returns the same page without the first `offset` conversations.
    #[must_use]
    pub const fn from(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// Returns a page of the same size that begins after this position. The position can be the last [`Summary`] on the
    /// previous page. Sets the offset to 0.
    #[must_use]
    pub fn after(self, position: impl Into<Position>) -> Self {
        Self { offset: 0, after: Some(position.into()), ..self }
    }

    /// Returns the page after this page, by increasing the offset.
    #[must_use]
    pub const fn next(mut self) -> Self {
        self.offset = self.offset.saturating_add(self.limit);
        self
    }

    /// Sorts these conversations and returns those that are on this page.
    pub(super) fn cut<T>(self, mut all: Vec<(Timestamp, &ConversationId, T)>) -> Vec<T> {
        type Item<'a, T> = (Timestamp, &'a ConversationId, T);

        let order = |(a_time, a, _): &Item<'_, T>, (b_time, b, _): &Item<'_, T>| {
            b_time.cmp(a_time).then_with(|| a.cmp(b))
        };
        if let Some(after) = &self.after {
            all.retain(|(updated, id, _)| {
                *updated < after.updated || *updated == after.updated && **id > after.id
            });
        }
        // Conversations after the page do not need to be sorted.
        let end = self.offset.saturating_add(self.limit);
        if end < all.len() {
            all.select_nth_unstable_by(end, order);
            all.truncate(end);
        }
        all.sort_unstable_by(order);
        all.into_iter().skip(self.offset).map(|(_, _, item)| item).collect()
    }
}

impl Default for Page {
    /// Returns the first 50 conversations.
    fn default() -> Self {
        Self::first(50)
    }
}

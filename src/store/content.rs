//! What is written to a store and read back.

use std::{cmp::Ordering, collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{ConversationId, Owner, Version};
use crate::{
    message::Timestamp,
    provider::Options,
    tree::{Changes, Node, NodeId},
};

/// What belongs to a conversation beside its messages. It never holds a secret: the options' API key and
/// headers are taken off on the way in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct StoredState {
    /// The model's name, `provider:id`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The system prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// How to answer.
    #[serde(skip_serializing_if = "Options::is_empty")]
    pub options: Options,
    /// The most requests that one prompt may cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// The longest that one turn may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn_timeout: Option<Duration>,
    /// What people call the conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

impl StoredState {
    /// The same state with this model's name.
    pub fn with_model(mut self, name: impl Into<String>) -> Self {
        self.model = Some(name.into());
        self
    }

    /// The same state with this system prompt.
    pub fn with_system(mut self, system: impl Into<String>) -> Self {
        self.system = Some(system.into());
        self
    }

    /// The same state with these options, without their secrets.
    pub fn with_options(mut self, options: Options) -> Self {
        self.options = options;
        self.without_secrets()
    }

    /// The same state with this limit of requests for each prompt.
    pub fn with_max_steps(mut self, max_steps: u32) -> Self {
        self.max_steps = Some(max_steps);
        self
    }

    /// The same state with this time limit for each turn.
    pub fn with_turn_timeout(mut self, limit: Duration) -> Self {
        self.turn_timeout = Some(limit);
        self
    }

    /// The same state with this title.
    pub fn with_title(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The same state, as it may be stored.
    pub fn without_secrets(mut self) -> Self {
        self.options.api_key = None;
        self.options.headers = None;
        self
    }
}

/// A change of the [`StoredState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StateChange {
    /// This in place of all that was there.
    Whole(Box<StoredState>),
    /// This title, or none; the rest stays.
    Title(Option<String>),
}

impl StateChange {
    /// This state in place of all that was there.
    pub fn whole(state: StoredState) -> Self {
        Self::Whole(Box::new(state))
    }

    /// This title; the rest stays.
    pub fn title(title: impl Into<String>) -> Self {
        Self::Title(Some(title.into()))
    }
}

/// What one turn, or one move in the tree, adds to a conversation. A store writes all of it or nothing.
///
/// A commit grows with the crate: what later versions put into it must be stored too. Its JSON form holds all
/// of it, so a store that keeps that need not know the parts.
///
/// ```
/// use omni_agent::{message::Message, store::Commit, tree::Tree};
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
    /// The last node of the path, from now on.
    pub head: Option<NodeId>,
    /// The cursors that changed: a node, and the child that is now its last active one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cursors: Vec<(NodeId, NodeId)>,
    /// The state, if it changed with this commit.
    // Boxed: commits are moved about, and few have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Box<StoredState>>,
    /// New nodes, parents before their children. Their ids are higher than all before.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Node>,
}

impl Commit {
    /// A commit that makes this node the head and adds nothing.
    pub fn new(head: Option<NodeId>) -> Self {
        Self { head, ..Self::default() }
    }

    /// The same commit with these nodes added.
    pub fn with_nodes(mut self, nodes: impl IntoIterator<Item = Node>) -> Self {
        self.nodes.extend(nodes);
        self
    }

    /// The same commit with these cursors changed too.
    pub fn with_cursors(mut self, cursors: impl IntoIterator<Item = (NodeId, NodeId)>) -> Self {
        self.cursors.extend(cursors);
        self
    }

    /// The same commit with the state replaced too.
    pub fn with_state(mut self, state: StoredState) -> Self {
        self.state = Some(Box::new(state.without_secrets()));
        self
    }
}

impl From<Changes> for Commit {
    fn from(changes: Changes) -> Self {
        let Changes { nodes, head, cursors, .. } = changes;
        Self { head, cursors, state: None, nodes }
    }
}

/// A whole conversation, as a store gives it back.
///
/// `Tree::hydrate(stored.nodes, stored.head, stored.cursors)` makes the tree of it.
///
/// It can also be folded from what was written, which is all that a store has to do to load one that it
/// keeps as a list of writes.
///
/// ```
/// use omni_agent::{message::Timestamp, store::{StateChange, Stored, StoredState, Version}};
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
    /// When the conversation was created, by the store's clock.
    pub created: Timestamp,
    /// When it was last written to, by the store's clock.
    pub updated: Timestamp,
    /// What belongs to it beside its messages.
    pub state: StoredState,
    /// The last node of the path.
    pub head: Option<NodeId>,
    /// For nodes with children, the child that was last active, as far as commits told.
    pub cursors: BTreeMap<NodeId, NodeId>,
    /// All nodes, in the order in which they were committed.
    pub nodes: Vec<Node>,
}

impl Stored {
    /// A conversation that was just created.
    pub fn new(version: Version, created: Timestamp, state: StoredState) -> Self {
        Self {
            version,
            created,
            updated: created,
            state: state.without_secrets(),
            head: None,
            cursors: BTreeMap::new(),
            nodes: Vec::new(),
        }
    }

    /// Takes in what a commit holds. Version and time are the store's to advance.
    pub fn commit(&mut self, commit: Commit) {
        let Commit { head, cursors, state, nodes } = commit;
        self.head = head;
        self.cursors.extend(cursors);
        if let Some(state) = state {
            self.state = state.without_secrets();
        }
        self.nodes.extend(nodes);
    }

    /// Takes in a change of the state. Version and time are the store's to advance.
    pub fn change_state(&mut self, change: StateChange) {
        match change {
            StateChange::Whole(state) => self.state = state.without_secrets(),
            StateChange::Title(title) => self.state.title = title,
        }
    }
}

/// A conversation in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// The conversation's id.
    pub id: ConversationId,
    /// What people call it.
    pub title: Option<String>,
    /// When it was created, by the store's clock.
    pub created: Timestamp,
    /// When it was last written to, by the store's clock.
    pub updated: Timestamp,
    /// The version that a write would build on.
    pub version: Version,
    /// Who has it open, where the store knows.
    pub owner: Option<Owner>,
    /// Why it can't be loaded, where listing it brought that to light.
    pub damage: Option<String>,
}

impl Summary {
    /// A summary without a title, an owner or damage, of a conversation that was just created.
    pub const fn new(id: ConversationId, version: Version, created: Timestamp) -> Self {
        Self { id, title: None, created, updated: created, version, owner: None, damage: None }
    }
}

/// A conversation's place in a list. Positions are ordered as lists are: by the last write, newest first, then by id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Position {
    /// The time of the conversation's last write.
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

/// A part of a list.
///
/// Pages by [`offset`](Page::from) shift while others write, and the store passes over all conversations before them. Pages
/// [`after`](Page::after) a conversation do neither: each conversation that nobody writes to is on exactly one of them.
///
/// ```
/// use omni_agent::store::{MemoryStore, Page, Store};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let store = MemoryStore::new();
///
/// let mut page = Page::first(100);
/// loop {
///     let listed = store.list(page.clone()).await?;
///     let Some(last) = listed.last() else { break };
///     page = page.after(last);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Page {
    /// The largest number of conversations.
    pub limit: usize,
    /// How many to leave out at the beginning, or after [`after`](Self::after) if that is set.
    pub offset: usize,
    /// The page has only conversations behind this position. No conversation needs to be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Position>,
}

impl Page {
    /// The first `limit` conversations.
    pub const fn first(limit: usize) -> Self {
        Self { limit, offset: 0, after: None }
    }

    /// As many, without the first `offset`.
    #[must_use]
    pub const fn from(mut self, offset: usize) -> Self {
        self.offset = offset;
        self
    }

    /// As many, from the one behind this position, such as that of a [`Summary`] in the last page. Sets the offset to 0.
    #[must_use]
    pub fn after(self, position: impl Into<Position>) -> Self {
        Self { offset: 0, after: Some(position.into()), ..self }
    }

    /// The page after this one, by its offset.
    #[must_use]
    pub const fn next(mut self) -> Self {
        self.offset = self.offset.saturating_add(self.limit);
        self
    }

    /// The page's part of a list of these conversations.
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
        // What comes after the page need not be in order.
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
    /// The first 50.
    fn default() -> Self {
        Self::first(50)
    }
}

//! Sub-agents as sessions of the manager that has the session of their parent.
//!
//! # Owners
//!
//! ```text
//!  the parent's session ── ManagerSessionWatcher: `SubAgentSessionOpener` ◄── a call finds it through its delegations
//!  the call ── RunningSubAgent ──► the session of the child: followed as a controller
//!            └── SubAgentSessionCloser ──► SubAgentCallGuard ──► SubAgentCalls: child, parent, a token to wait for
//! ```
//!
//! The conversation of a child is `sub-` and the key of its call. Its labels are those of its root, with the ids of the
//! root, the parent and the tool use. So a call that is repeated after a restart finds its child, and lists can leave
//! children out. The manager holds the sessions. A child knows its call, and nothing of its parent.
//!
//! The prompt of a call has the call's key as its id. A recorded turn in which this prompt is in flight is the turn of the
//! call, which only the call continues. Every other turn of a child is an ordinary one.
//!
//! # States of a call
//!
//! `entered` → `open` → `closing` → `left`. The entry is made before the child, so that a close or a delete of the parent
//! finds each call. It is removed when the child is closed. An entry needs an open parent, and a parent that is closing
//! first ends its session, so no call enters after the wait for them. If a call leaves after its parent was deleted, it
//! deletes the child.
//!
//! # Attacks and answers
//!
//! - The call is dropped at any await: `SubAgentSessionCloser` exists before the opening begins. A task waits for an opening that is in
//!   progress, and then closes the child. Until then, the flag of the call keeps the child from starting anything.
//! - The opening or the close never returns: the entry stays, and those who wait for it have the close timeout. The manager
//!   gives both up after twice this time.
//! - The child's session ends before its run: a recorded turn is continued in another session. Otherwise, the result is an
//!   error.
//! - The manager shuts down: the sessions of running calls are left to the calls, which end with their parents. A new call
//!   does not return. It is dropped with its parent's turn.
//! - Another caller creates the conversation first: a new call creates its conversation, so the id must not exist.
//!   A repeated call accepts only a conversation with its labels. Neither closes the session of the other caller.
//! - The labels of the root change while the child is created: the child reads them between its `init` and its creation in
//!   the store. The call compares them afterwards, and if it was dropped before, the task that closes the child does.
//!   `Manager::set_labels` waits for all of this, so if the process ends before, the change is not acknowledged, and its
//!   caller repeats it. It does not wait for an `init`, which can be slow, and can itself set labels. If the child is
//!   stored already, the call, or its repetition after a crash, then gives it the labels.
//! - Two children of one call: each has another number in its key.
//! - Too many calls: a new one gets an error. A repeated one waits, because its child may have had effects.
//! - A call waits for its ancestor, whose place does not become free before the call returns: a repeated call below a
//!   child with a place enters beyond the limit. The others wait until any call leaves.
//! - A person continues a child at rest, and the process ends: the turn is not that of the call, so it is neither
//!   discarded nor left to the root. A sweep, a decision or the next opening continues it.
//! - The child is deleted while its call may be repeated: this is refused, because the repeated call would do the task
//!   again. The root can be deleted.
//! - The process ends between the records of a parent and its child: before a repeated call opens its child, it reads what
//!   the child and those below it have stored, and its parent counts this sum. Until the call has opened the child, nobody
//!   else can add to the sum.
//! - The parent loses its lease: another process repeats the call, so the turn of the child is left to it.

use std::{
    collections::{HashMap, HashSet},
    future::ready,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    runtime::Handle,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::{
    Activity, ManagerShared, OpenOptions, OpenSession,
    closing::TitleOrLabels,
    event::ManagerSessionWatcher,
    opening::{NewOrStoredConversation, OpenedBy, shut_down},
    recovery::only_waits,
    registry::{SessionLifeKey, SessionRegistry},
};
use crate::{
    agent::{
        AgentStopTurnPolicy, Durable, NewSubAgent, ParentCall, RunningSubAgent, SubAgentSessionOpener,
        SubAgentTerminator,
    },
    error::InvalidId,
    message::{MessageId, ToolUseId, TurnId, UsageSum},
    run::{Error, ErrorKind, PromptState, RunEnd, RunOutcome},
    session::{Session, SessionSnapshot, closed},
    store::{
        Commit, ConversationId, Filter, Labels, Owner, Page, Position, StoreError, StoredTurn, Summary,
        digest::ContentHasher,
    },
    time::scaled,
};

/// The number of conversations that are listed at once.
const PAGE: usize = 64;
/// The longest delay before another attempt to open a conversation that another process still owns.
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// The tenant of a session, in the extensions of its agent, so that its sub-agents have the same one.
pub(super) struct InheritedTenant(pub(super) Arc<str>);

/// The calls whose sub-agents are sessions, by the conversations of the sub-agents.
pub(super) struct SubAgentCalls {
    calls: HashMap<ConversationId, SubAgentCallState>,
    max: usize,
    /// The number of calls that have entered.
    entered: u64,
    /// Cancelled when any call leaves, and then replaced.
    one_left: CancellationToken,
}

struct SubAgentCallState {
    parent: ConversationId,
    /// The id of the root.
    root: String,
    /// Cancelled when the sub-agent is closed.
    left: CancellationToken,
    /// Cancelled when the labels of the sub-agent were compared with those of the root, or the sub-agent is closed.
    labelled: CancellationToken,
    /// Whether the sub-agent is being prepared, for example by its `init`. Until it is stored or opened, it gets the
    /// labels that its root has then.
    is_prepared: bool,
}

impl SubAgentCalls {
    pub(super) fn new(max: usize) -> Self {
        Self { calls: HashMap::new(), max, entered: 0, one_left: CancellationToken::new() }
    }

    /// Returns a number that is the same later if no call has entered in the meantime.
    pub(super) fn entered(&self) -> u64 {
        self.entered
    }

    /// Returns whether a call of this conversation, or of one of these sub-agents, is at work.
    pub(super) fn are_at_work(&self, parent: &ConversationId, below: &[Summary]) -> bool {
        let is_meant = |id: &ConversationId| id == parent || below.iter().any(|child| child.id == *id);
        self.calls.values().any(|call| is_meant(&call.parent))
    }

    /// Returns whether the call of this sub-agent has not left.
    pub(super) fn has(&self, child: &ConversationId) -> bool {
        self.calls.contains_key(child)
    }

    /// Removes a call whose sub-agent is closed, and wakes those who wait for it or for any call.
    fn leave(&mut self, child: &ConversationId) {
        if let Some(SubAgentCallState { left, .. }) = self.calls.remove(child) {
            left.cancel();
            std::mem::take(&mut self.one_left).cancel();
        }
    }

    /// Called when a call has compared the labels of its sub-agent with those of the root.
    fn labelled(&self, child: &ConversationId) {
        if let Some(call) = self.calls.get(child) {
            call.labelled.cancel();
        }
    }

    /// Notes whether the labels of this sub-agent will still be read.
    fn set_prepared(&mut self, child: &ConversationId, is_prepared: bool) {
        if let Some(call) = self.calls.get_mut(child) {
            call.is_prepared = is_prepared;
        }
    }

    /// Returns whether the labels of this sub-agent will still be read, by its call.
    fn is_prepared(&self, child: &ConversationId) -> bool {
        self.calls.get(child).is_some_and(|call| call.is_prepared)
    }

    /// Returns the tokens of the calls below this root that may still store a sub-agent with earlier labels.
    fn unlabelled(&self, root: &ConversationId) -> Vec<CancellationToken> {
        let below = self.calls.values().filter(|call| call.root == root.as_str() && !call.is_prepared);
        below.map(|call| call.labelled.clone()).collect()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = CancellationToken> {
        self.calls.values().map(|call| call.left.clone())
    }

    /// Returns the token of a call of this parent that does not belong to the turn `except`.
    fn one_of(&self, parent: &ConversationId, except: Option<TurnId>) -> Option<CancellationToken> {
        let is_meant = |child| except.is_none() || turn_of(child) != except;
        let mut calls = self.calls.iter().filter(|(child, call)| call.parent == *parent && is_meant(child));
        calls.next().map(|(_, call)| call.left.clone())
    }
}

impl SessionRegistry {
    /// Enters a call of an open session. If this call `waits`, and the limit is reached or its sub-agent is not closed yet,
    /// returns the token that is cancelled before the next attempt makes sense. A call that waits enters beyond the limit
    /// if its parent is a sub-agent with a place, because this place does not become free before the call returns.
    fn enter_call(
        &mut self,
        child: &ConversationId,
        parent: (&ConversationId, SessionLifeKey),
        waits: bool,
    ) -> Result<Option<CancellationToken>, Error> {
        let above = self.open_session(parent.0).filter(|_| self.is_open(parent.0, parent.1));
        let Some(OpenSession { labels: above, .. }) = above else {
            return Err(Error::new(ErrorKind::Ended, "the session of the call has ended"));
        };
        let root = above.get(Labels::PARENT).and_then(|_| above.get(Labels::ROOT));
        let root = root.unwrap_or(parent.0.as_str()).to_owned();
        let SubAgentCalls { calls, max, one_left, entered } = &mut self.calls;
        // The last call that has left was the last to wake those who wait.
        let enters = waits && (calls.is_empty() || calls.contains_key(parent.0));
        let is_full = calls.len() >= *max && !enters;
        match calls.get(child) {
            Some(same) if waits => return Ok(Some(same.left.clone())),
            None if !is_full => {}
            None if waits => return Ok(Some(one_left.clone())),
            _ => {
                let text = format!("{max} sub-agents run already; do the task yourself, or try again later");
                return Err(Error::new(ErrorKind::NoRoom, text));
            }
        }
        *entered += 1;
        let (parent, left) = (parent.0.clone(), CancellationToken::new());
        let labelled = left.child_token();
        calls.insert(child.clone(), SubAgentCallState { parent, root, left, labelled, is_prepared: true });
        Ok(None)
    }
}

/// The entry of a call in the registry. The call leaves when this is dropped.
struct SubAgentCallGuard {
    /// Weak, because the manager has the session whose tool has this entry.
    inner: Weak<ManagerShared>,
    child: ConversationId,
}

impl Drop for SubAgentCallGuard {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            inner.registry().calls.leave(&self.child);
        }
    }
}

/// Closes the session of a sub-agent when its call ends.
struct SubAgentSessionCloser {
    entry: Option<SubAgentCallGuard>,
    call: Arc<ParentCall>,
    /// The conversation of the call.
    parent: ConversationId,
    /// Whether the call has compared the labels of its child with those of the root.
    is_labelled: bool,
}

impl SubAgentSessionCloser {
    /// Starts to close the session, in a task, because a drop can't wait. Without a manager, the session ends with its
    /// last handle, which the call has.
    fn close(&mut self, is_left: bool) -> Option<JoinHandle<()>> {
        let entry = self.entry.take()?;
        let inner = entry.inner.upgrade()?;
        let parent = self.parent.clone();
        let in_flight = if is_left || self.call.is_left() {
            AgentStopTurnPolicy::Leave
        } else {
            AgentStopTurnPolicy::Keep
        };
        let (was_parked, is_labelled) = (self.call.is_parked(), self.is_labelled);
        let closing = async move {
            let child = &entry.child;
            // An opening that has begun continues without its caller.
            inner.registered(child).await;
            let open = inner.registry().open_session(child);
            if open.is_some_and(|open| open.labels.get(Labels::PARENT) != Some(parent.as_str())) {
                // Somebody else has a conversation with this id.
                return;
            }
            if let Err(error) = inner.close(child, in_flight).await {
                tracing::warn!(%child, %error, "a sub-agent was not closed completely");
            }
            if in_flight == AgentStopTurnPolicy::Leave && was_parked {
                // A decision can have come after the root had agreed to end.
                inner.continue_decided(child);
            }
            inner.registry().calls.set_prepared(child, false);
            if !is_labelled && let Err(error) = inner.label_late(child).await {
                tracing::warn!(%child, %error, "a sub-agent did not get the labels of its root");
            }
            if in_flight != AgentStopTurnPolicy::Leave
                && let Err(error) = inner.delete_without_parent(child, &parent).await
            {
                tracing::warn!(%child, %error, "a sub-agent was not deleted with its parent");
            }
        };
        Some(Handle::try_current().ok()?.spawn(closing.in_current_span()))
    }
}

#[async_trait]
impl SubAgentTerminator for SubAgentSessionCloser {
    async fn end(mut self: Box<Self>, is_left: bool) {
        if let Some(closing) = self.close(is_left) {
            // An error means that the runtime ends.
            let _ = closing.await;
        }
    }
}

impl Drop for SubAgentSessionCloser {
    fn drop(&mut self) {
        self.close(false);
    }
}

#[async_trait]
impl SubAgentSessionOpener for ManagerSessionWatcher {
    async fn open(&self, child: NewSubAgent<'_>) -> Result<RunningSubAgent, Error> {
        let id = child_id(child.call.key());
        let id = id.map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
        // A call that waits does not keep the manager.
        let manager = || self.inner.upgrade().ok_or_else(shut_down);
        // A recorded turn can repeat its calls before its session is registered.
        manager()?.registered(&self.id).await;
        while let Some(other) =
            { manager()?.registry().enter_call(&id, (&self.id, self.key), child.is_known)? }
        {
            other.cancelled().await;
        }
        let entry = SubAgentCallGuard { inner: Weak::clone(&self.inner), child: id.clone() };
        let (entry, call, parent) = (Some(entry), Arc::clone(&child.call), self.id.clone());
        let mut end = Box::new(SubAgentSessionCloser { entry, call, parent, is_labelled: false });
        let mut delay = Duration::from_millis(10);
        loop {
            let inner = manager()?;
            let error = match self.open_once(&inner, &child, &id).await {
                Ok(Some((session, is_recorded))) => {
                    end.is_labelled = true;
                    inner.registry().calls.labelled(&id);
                    let (target, conversation) = (Box::new(session), Some(id.as_str().into()));
                    return Ok(RunningSubAgent { target, conversation, is_recorded, end });
                }
                Ok(None) => continue,
                Err(error) => error,
            };
            inner.registry().calls.set_prepared(&id, true);
            drop(inner);
            match error.kind() {
                // The call is dropped with its parent's turn.
                ErrorKind::ShutDown => std::future::pending().await,
                // The lease of an earlier process ends soon. A store that fails must not cost what the sub-agent has done.
                ErrorKind::OpenElsewhere
                | ErrorKind::LeaseLost
                | ErrorKind::Conflict
                | ErrorKind::StoreUnreachable
                | ErrorKind::StoreFailed
                    if child.is_known =>
                {
                    sleep(scaled(delay, rand::random_range(0.75..=1.25))).await;
                    if delay < LONGEST_DELAY && delay * 2 >= LONGEST_DELAY {
                        tracing::warn!(%id, %error, "the sub-agent of a repeated call can't be opened yet");
                    }
                    delay = (delay * 2).min(LONGEST_DELAY);
                }
                _ => return Err(error),
            }
        }
    }
}

impl ManagerSessionWatcher {
    /// Opens the session of a sub-agent, and returns it with whether it records its turns. Returns `None` if another
    /// attempt has to follow.
    async fn open_once(
        &self,
        inner: &Arc<ManagerShared>,
        child: &NewSubAgent<'_>,
        id: &ConversationId,
    ) -> Result<Option<(Session, bool)>, Error> {
        let is_recorded = child.call.is_recorded()
            || inner.registry().get(&self.id).is_some_and(|parent| parent.durable() > Durable::Turns);
        let labels = self.labels(inner, &child.call).await?;
        let options = Self::options(child, labels.clone(), is_recorded);
        let is_own = |own: &Labels| {
            [Labels::PARENT, Labels::CALL].into_iter().all(|name| own.get(name) == labels.get(name))
        };
        if child.is_known {
            match inner.own_labels(id).await {
                Ok(own) if !is_own(&own) => return Err(not_own(id)),
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if child.call.is_restarted() {
                child.call.begin_with(inner.stored_usage(id).await?);
            }
        }
        if !child.is_known
            && let Some(parent) = { inner.registry().get(&self.id) }
        {
            // Without its root in the store, a sub-agent that a crash has left could not be deleted.
            parent.store().await?;
        }
        let from =
            if child.is_known { NewOrStoredConversation::Either } else { NewOrStoredConversation::Named };
        let opened = inner.open(id.clone(), options, from, OpenedBy::Call).await?;
        if !opened.started {
            // A user has opened the conversation at rest, with another agent.
            drop(opened);
            inner.close(id, AgentStopTurnPolicy::Leave).await?;
            return Ok(None);
        }
        let session = opened.session;
        inner.registry().calls.set_prepared(id, false);
        let mut own = session.labels().await?;
        if !is_own(&own) {
            inner.close(id, AgentStopTurnPolicy::Leave).await?;
            return Err(not_own(id));
        }
        // The labels of the root may have changed in the meantime.
        loop {
            let labels = self.labels(inner, &child.call).await?;
            if own == labels {
                return Ok(Some((session, is_recorded)));
            }
            session.relabel(labels.clone()).await?;
            own = labels;
        }
    }

    /// Returns the options for the session of a sub-agent.
    fn options(child: &NewSubAgent<'_>, labels: Labels, is_recorded: bool) -> OpenOptions {
        let mut options = OpenOptions::new((child.agent)())
            .title(Arc::clone(&child.name))
            .labels(labels)
            // The parent can be recorded at any moment, and then repeats the call.
            .durable(if is_recorded { Durable::InFlight } else { Durable::Turns })
            .idle_shutdown(None)
            .subscribe(None);
        if let Some(InheritedTenant(tenant)) = child.call.context().extensions().get() {
            options = options.tenant(Arc::clone(tenant));
        }
        options
    }

    /// Returns the labels of a sub-agent: those of the root, and the places of both. Those of the parent can be older.
    async fn labels(&self, inner: &ManagerShared, call: &ParentCall) -> Result<Labels, Error> {
        let parent = inner.registry().open_session(&self.id).map(|parent| parent.labels);
        let Some(parent) = parent else {
            return Err(Error::new(ErrorKind::Ended, "the session of the call has ended"));
        };
        let (root, of_root) = match parent.get(Labels::PARENT).and_then(|_| parent.get(Labels::ROOT)) {
            Some(root) => {
                let of_root = inner.root_labels(root).await?;
                (root.to_owned(), of_root.unwrap_or_else(|| parent.clone()))
            }
            None => (self.id.to_string(), parent),
        };
        let own = [
            (Labels::ROOT, root),
            (Labels::PARENT, self.id.to_string()),
            (Labels::CALL, call_label(call.context().tool_use_id())),
        ];
        of_root.of_sub_agent(own.iter().map(|(name, value)| (*name, value.as_str())))
    }
}

/// Returns the state of a session, which may have ended.
async fn last_snapshot(session: &Session) -> Result<SessionSnapshot, Error> {
    match session.snapshot().await {
        Err(error) if error.kind() == ErrorKind::Ended => {
            session.ended().await.snapshot.map(Arc::unwrap_or_clone).ok_or(error)
        }
        snapshot => snapshot,
    }
}

/// Returns the id of the conversation of a sub-agent with this key.
fn child_id(key: &str) -> Result<ConversationId, InvalidId> {
    ConversationId::new(format!("{}{key}", ConversationId::SUB_AGENT))
}

/// Returns the turn of the call of a sub-agent, which is the beginning of the call's key.
fn turn_of(child: &ConversationId) -> Option<TurnId> {
    child.as_str().strip_prefix(ConversationId::SUB_AGENT)?.split('-').next()?.parse().ok()
}

/// Returns whether the turn in flight of a sub-agent is that of its call. The prompt of the call has the key of the call as
/// its id. In a later turn of a person, this prompt has ended.
pub(super) fn is_of_call(child: &ConversationId, turn: &StoredTurn) -> bool {
    let key = child.as_str().strip_prefix(ConversationId::SUB_AGENT);
    turn.record.prompts.iter().any(|known| {
        Some(known.id.as_str()) == key
            && matches!(known.state, PromptState::Staged | PromptState::InFlight { .. })
    })
}

/// Returns the error of a call whose conversation belongs to somebody else.
fn not_own(id: &ConversationId) -> Error {
    let text = format!("conversation {id} exists, and is not that of this call");
    Error::new(ErrorKind::AlreadyExists, text).with_member("conversation", id)
}

/// Returns the error for an operation that has to wait for the agents above a sub-agent. `todo` is an alternative.
fn at_work(id: &ConversationId, labels: &Labels, todo: &str) -> Error {
    let parent = labels.get(Labels::PARENT);
    let text = format!(
        "conversation {id} belongs to a sub-agent of {}, whose call is at work or may be repeated; {todo}",
        parent.unwrap_or_default()
    );
    let error = Error::new(ErrorKind::SubAgent, text).with_member("conversation", id);
    error.with_member("parent", parent).with_member("root", labels.get(Labels::ROOT))
}

/// Returns the value of the label for a tool use.
fn call_label(tool_use: &ToolUseId) -> String {
    let id = tool_use.as_str();
    if (1..=128).contains(&id.len()) && !id.chars().any(char::is_control) {
        return id.to_owned();
    }
    let mut digest = ContentHasher::default();
    digest.part(id.as_bytes());
    format!("{:032x}", digest.value())
}

impl ManagerShared {
    /// Waits until the registry knows the session of a conversation that is being opened.
    pub(super) async fn registered(&self, id: &ConversationId) {
        while let Some(Err(busy)) = { self.registry().look(id) } {
            busy.cancelled().await;
        }
    }

    /// Waits until the calls of a conversation have left, except those of the turn in flight, at most for this time.
    pub(super) async fn calls_left(
        &self,
        parent: &ConversationId,
        in_flight: Option<TurnId>,
        limit: Duration,
    ) {
        let left = async {
            while let Some(call) = { self.registry().calls.one_of(parent, in_flight) } {
                call.cancelled().await;
            }
        };
        if timeout(limit, left).await.is_err() {
            tracing::warn!(%parent, ?limit, "the sub-agents of a conversation are not closed yet");
        }
    }

    /// Waits until the store has all sub-agents that calls may have created with the labels that their root had before, at
    /// most for the close timeout. If the process ended earlier, the labels of such a sub-agent would remain.
    pub(super) async fn calls_labelled(&self, root: &ConversationId) {
        let calls = self.registry().calls.unlabelled(root);
        let labelled = async {
            for call in calls {
                call.cancelled().await;
            }
        };
        if timeout(self.close_timeout, labelled).await.is_err() {
            tracing::warn!(%root, "sub-agents that are being created can get the former labels of their root");
        }
    }
}

// ---- children of a conversation ----

impl ManagerShared {
    /// Returns the stored conversations of all sub-agents below a conversation, parents first.
    pub(super) async fn descendants(&self, id: &ConversationId) -> Result<Vec<Summary>, StoreError> {
        let mut found: Vec<Summary> = Vec::new();
        if !self.store.traits().labels {
            return Ok(found);
        }
        // All sub-agents below a root name it, so one list has them. Those below a sub-agent are listed by their parents.
        let is_root = !id.is_of_sub_agent();
        let mut below: HashMap<_, Vec<_>> = HashMap::new();
        if is_root {
            for child in self.labelled(Labels::ROOT, id).await? {
                below.entry(child.labels.get(Labels::PARENT).map(str::to_owned)).or_default().push(child);
            }
        }
        let (mut parent, mut next, mut known) = (id.clone(), 0, HashSet::from([id.clone()]));
        loop {
            let children = if is_root {
                below.remove(&Some(parent.to_string())).unwrap_or_default()
            } else {
                self.labelled(Labels::PARENT, &parent).await?
            };
            // Labels that form a circle must not keep this from ending.
            found.extend(children.into_iter().filter(|child| known.insert(child.id.clone())));
            let Some(following) = found.get(next) else { return Ok(found) };
            (parent, next) = (following.id.clone(), next + 1);
        }
    }

    /// Returns the sum of what a sub-agent and all sub-agents below it have stored.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OpenElsewhere`] while another process can add to it.
    async fn stored_usage(&self, child: &ConversationId) -> Result<UsageSum, Error> {
        let mut sum = UsageSum::default();
        let own = match self.store.summary(child).await {
            Err(StoreError::NotFound { .. }) => return Ok(sum),
            own => own?,
        };
        let all: Vec<_> = std::iter::once(own).chain(self.descendants(child).await?).collect();
        for Summary { id, owner, .. } in &all {
            // The processes of earlier lives end parents before children. An earlier life of this process has ended, but a
            // call of this one may still be closing its session.
            let can_add = |owner: &&Owner| {
                owner.name != self.owner.name || id != child && self.registry().calls.has(id)
            };
            if let Some(owner) = owner.as_ref().filter(can_add)
                && (id == child || self.call_turn(id).await?.is_some())
            {
                return Err(StoreError::Owned { id: id.clone(), owner: owner.clone() }.into());
            }
        }
        for Summary { id, .. } in all {
            match self.store.load(&id).await {
                Ok(stored) => sum.add(stored.used.requests, stored.used.usage),
                // Neither can have a turn that continues.
                Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sum)
    }

    /// Returns the stored conversations of the sub-agents whose label with this name has this conversation's id.
    async fn labelled(&self, name: &str, id: &ConversationId) -> Result<Vec<Summary>, StoreError> {
        let filter = Filter::with(Labels::place(name, id));
        let (mut found, mut page) = (Vec::new(), Page::first(PAGE));
        loop {
            let stored = match self.store.list(&(filter.clone(), page).into()).await {
                // Without lists by labels, nothing can be found.
                Err(StoreError::Unsupported { .. }) => return Ok(found),
                stored => stored?,
            };
            let last = stored.last().filter(|_| stored.len() >= PAGE).map(Position::from);
            found.extend(stored);
            match last {
                Some(last) => page = Page::first(PAGE).after(last),
                None => return Ok(found),
            }
        }
    }

    /// Gives all sub-agents below a root its labels. Continues after an error, and returns the first one.
    pub(super) async fn label_descendants(self: &Arc<Self>, root: &ConversationId) -> Result<(), Error> {
        let mut given = HashMap::new();
        loop {
            let (mut is_changed, mut failed) = (false, None);
            for child in self.descendants(root).await? {
                let Some(labels) = self.root_labels(root.as_str()).await? else { return Ok(()) };
                let labels = labels.of_sub_agent(child.labels.iter())?;
                // A call that still prepares this sub-agent reads the labels afterwards. It can even wait for this.
                if labels == child.labels || self.registry().calls.is_prepared(&child.id) {
                    continue;
                }
                let change = TitleOrLabels::Labels(labels.clone());
                match self.describe_one(&child.id, change, || ready(Ok(()))).await {
                    // The session of another process can set others again and again.
                    Ok(()) => is_changed |= given.insert(child.id, labels.clone()) != Some(labels),
                    // It was deleted in the meantime.
                    Err(error) if error.is_not_found() => {}
                    Err(error) => failed = failed.or(Some(error)),
                }
            }
            // A list misses a sub-agent that is stored while the pages of the list are read.
            if !is_changed {
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    /// Returns the labels with which the conversation of a session is created. Those of a sub-agent may have changed since
    /// its call has read them.
    pub(super) async fn labels_at_creation(
        &self,
        child: &ConversationId,
        own: Labels,
    ) -> Result<Labels, Error> {
        let Some(root) = own.get(Labels::PARENT).and_then(|_| own.get(Labels::ROOT)) else { return Ok(own) };
        {
            let mut registry = self.registry();
            if !registry.calls.has(child) {
                return Ok(own);
            }
            // From here on, `set_labels` waits for the call.
            registry.calls.set_prepared(child, false);
        }
        match self.root_labels(root).await? {
            Some(labels) => labels.of_sub_agent(own.iter()),
            None => Ok(own),
        }
    }

    /// Gives the labels of its root to a sub-agent whose call was dropped before it could compare them.
    async fn label_late(self: &Arc<Self>, child: &ConversationId) -> Result<(), Error> {
        let labels = match self.own_labels(child).await {
            Ok(labels) => labels,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match labels.get(Labels::ROOT).and_then(|root| ConversationId::new(root).ok()) {
            Some(root) if self.store.traits().labels => self.label_descendants(&root).await,
            _ => Ok(()),
        }
    }

    /// Deletes the sub-agent of a call that has ended, if the conversation of the call was deleted in the meantime.
    async fn delete_without_parent(
        self: &Arc<Self>,
        child: &ConversationId,
        parent: &ConversationId,
    ) -> Result<(), Error> {
        // An open conversation can be without a stored one until its first turn ends.
        let is_open = self.registry().get(parent).is_some();
        if is_open || !self.store.traits().labels {
            return Ok(());
        }
        match self.store.summary(parent).await {
            Err(StoreError::NotFound { .. }) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        self.delete_child(child, parent.as_str()).await
    }

    /// Deletes a sub-agent of this parent. Does nothing if it is deleted already.
    pub(super) async fn delete_child(
        self: &Arc<Self>,
        child: &ConversationId,
        parent: &str,
    ) -> Result<(), Error> {
        let check = async {
            // Somebody else can have a conversation with this id.
            let is_own = self.own_labels(child).await?.get(Labels::PARENT) == Some(parent);
            if is_own { Ok(()) } else { Err(StoreError::NotFound { id: child.clone() }.into()) }
        };
        match Box::pin(self.delete(child, check)).await {
            Err(error) if error.is_not_found() => Ok(()),
            deleted => deleted,
        }
    }

    /// Deletes the sub-agents of a turn that was discarded, when its end is stored. If it is not, another process can have
    /// completed the turn.
    pub(super) async fn delete_children_of(
        self: &Arc<Self>,
        turn: TurnId,
        session: &Session,
    ) -> Result<(), Error> {
        if !self.store.traits().labels {
            return Ok(());
        }
        let in_flight = last_snapshot(session).await?.agent.turn;
        self.calls_left(session.id(), in_flight, self.close_timeout).await;
        let mut children = self.labelled(Labels::PARENT, session.id()).await?;
        children.retain(|child| turn_of(&child.id) == Some(turn));
        if children.is_empty() || !self.is_flushed(session).await? {
            return Ok(());
        }
        for child in children {
            self.delete_child(&child.id, session.id().as_str()).await?;
        }
        Ok(())
    }

    /// Deletes the sub-agents whose tool use is not in the conversation, because it was erased.
    pub(super) async fn delete_erased(self: &Arc<Self>, session: &Session) -> Result<(), Error> {
        if !self.store.traits().labels {
            return Ok(());
        }
        // A call of an earlier turn may still be closing its session.
        let in_flight = session.snapshot().await?.agent.turn;
        self.calls_left(session.id(), in_flight, self.close_timeout).await;
        let children = self.labelled(Labels::PARENT, session.id()).await?;
        if children.is_empty() {
            return Ok(());
        }
        let snapshot = session.snapshot().await?;
        let uses = snapshot.tree.nodes().flat_map(|node| {
            let turn = node.message().id.as_ref().and_then(MessageId::turn);
            node.message().tool_uses().filter_map(move |own| Some((turn?, call_label(&own.id))))
        });
        let uses: HashSet<_> = uses.collect();
        for Summary { id: child, labels, .. } in children {
            let Some(turn) = turn_of(&child).filter(|turn| snapshot.agent.turn != Some(*turn)) else {
                continue;
            };
            let call = labels.get(Labels::CALL).unwrap_or_default();
            if !uses.contains(&(turn, call.to_owned())) {
                self.delete_child(&child, session.id().as_str()).await?;
            }
        }
        Ok(())
    }

    /// Checks whether a user may open the conversation of a sub-agent, which the caller has claimed. If the turn of its
    /// call is in flight, and no call continues it any more, discards the turn.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SubAgent`] if a call is at work, or may be repeated.
    pub(super) async fn check_opening(&self, id: &ConversationId) -> Result<(), Error> {
        self.check_uncalled(id).await?;
        self.discard_claimed(id).await
    }

    /// Checks whether no call continues the conversation of a sub-agent, and none can be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SubAgent`] if a call is at work, or may be repeated.
    pub(super) async fn check_uncalled(&self, id: &ConversationId) -> Result<(), Error> {
        let labels = match self.store.summary(id).await {
            Ok(summary) => summary.labels,
            Err(StoreError::NotFound { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        if labels.get(Labels::PARENT).is_none() {
            return Ok(());
        }
        if self.registry().calls.has(id) || self.is_called(id, &labels).await? {
            let todo =
                "watch it while its parent has it open, or open it when the turns of its parents have ended";
            return Err(at_work(id, &labels, todo));
        }
        Ok(())
    }

    /// Checks whether a user may delete the conversation of a sub-agent alone. If its call is repeated, the call must find the
    /// conversation, because otherwise everything runs again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::SubAgent`] if a call is at work, or may be repeated.
    pub(super) async fn check_deletion(&self, id: &ConversationId) -> Result<(), Error> {
        if !id.is_of_sub_agent() {
            return Ok(());
        }
        let labels = match self.own_labels(id).await {
            Ok(labels) => labels,
            // A damaged conversation can be deleted.
            Err(StoreError::NotFound { .. } | StoreError::Damaged { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let is_opening = {
            let registry = self.registry();
            registry.calls.has(id) && registry.get(id).is_none()
        };
        if is_opening || self.is_called(id, &labels).await? {
            let todo = "delete the conversation of the root, or delete this one when the turns of its parents have ended";
            return Err(at_work(id, &labels, todo));
        }
        Ok(())
    }

    /// Returns whether an agent above a sub-agent with these labels may repeat its call: it has a turn in flight, here or
    /// in the store. If the turn of the call is recorded, an agent that another process has open counts, too.
    pub(super) async fn is_called(&self, child: &ConversationId, labels: &Labels) -> Result<bool, Error> {
        let mut above = labels.get(Labels::PARENT).map(str::to_owned);
        // The parent repeats the call only in the turn of the call.
        let mut of_call = turn_of(child);
        for _ in 0..=u8::MAX {
            let Some(id) = above.and_then(|id| ConversationId::new(id).ok()) else { return Ok(false) };
            let (open, session) = {
                let registry = self.registry();
                (registry.open_session(&id), registry.get(&id))
            };
            let of_call = of_call.take();
            let is_meant = |turn| of_call.is_none_or(|of_call| of_call == turn);
            let labels = match open {
                Some(open) => {
                    if open.activity != Activity::Idle
                        && let Some(session) = session
                    {
                        // A session that is not idle and has no state was killed, so its recorded turn counts.
                        let turn = last_snapshot(&session).await.map(|snapshot| snapshot.agent.turn);
                        if turn.is_ok_and(|turn| turn.is_none_or(is_meant)) {
                            return Ok(true);
                        }
                    }
                    open.labels
                }
                None => match self.store.summary(&id).await {
                    Ok(summary) => {
                        let is_elsewhere =
                            summary.owner.as_ref().is_some_and(|owner| owner.name != self.owner.name);
                        if is_elsewhere && self.call_turn(child).await?.is_some() {
                            return Ok(true);
                        }
                        summary.labels
                    }
                    Err(StoreError::NotFound { .. }) => return Ok(false),
                    Err(error) => return Err(error.into()),
                },
            };
            if self.recorded(&id).await?.is_some_and(|turn| is_meant(turn.record.turn)) {
                return Ok(true);
            }
            above = labels.get(Labels::PARENT).map(str::to_owned);
        }
        Ok(true)
    }

    /// Returns whether the turn in flight of a conversation needs nothing but decisions about tools of its sub-agents, and
    /// no time limit for them has passed.
    pub(super) async fn waits_below(&self, id: &ConversationId) -> Result<bool, StoreError> {
        if !self.store.traits().labels {
            return Ok(false);
        }
        let Some(turn) = self.recorded(id).await? else { return Ok(false) };
        let (mut turns, mut seen) = (vec![turn], HashSet::new());
        while let Some(turn) = turns.pop() {
            if only_waits(&turn) {
                if turn.approvals().iter().any(|approval| approval.has_expired(turn.now)) {
                    return Ok(false);
                }
                continue;
            }
            let Some(calls) = turn.record.delegated_calls() else { return Ok(false) };
            for key in calls {
                // A damaged record can name itself, or very many calls.
                if !seen.insert(key.clone()) || seen.len() > 1024 {
                    return Ok(false);
                }
                let before = turns.len();
                for number in 0..u32::from(u8::MAX) {
                    let Ok(child) = child_id(&ParentCall::child_key(&key, number)) else { return Ok(false) };
                    match self.store.turn(&child).await {
                        Ok(turn) => turns.extend(turn),
                        Err(StoreError::NotFound { .. }) => break,
                        Err(error) => return Err(error),
                    }
                }
                if turns.len() == before {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Returns the recorded turn of a conversation, if it exists and has one.
    pub(super) async fn recorded(&self, id: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        if !self.store.traits().turns {
            return Ok(None);
        }
        match self.store.turn(id).await {
            Err(StoreError::NotFound { .. }) => Ok(None),
            turn => turn,
        }
    }

    /// Returns the recorded turn of a sub-agent, if it is the turn of its call.
    pub(super) async fn call_turn(&self, child: &ConversationId) -> Result<Option<StoredTurn>, StoreError> {
        Ok(self.recorded(child).await?.filter(|turn| is_of_call(child, turn)))
    }

    /// Ends the turn of a sub-agent's call, if it is in flight and no session continues it.
    pub(super) async fn discard(self: &Arc<Self>, id: &ConversationId) -> Result<(), Error> {
        let (_claim, session) = self.claim(id).await;
        if session.is_some() || self.registry().is_shut {
            return Ok(());
        }
        self.discard_claimed(id).await
    }

    /// Ends the turn of a sub-agent's call, if it is in flight. The caller has the claim of the conversation.
    async fn discard_claimed(&self, id: &ConversationId) -> Result<(), Error> {
        let Some(turn) = self.call_turn(id).await? else { return Ok(()) };
        self.discard_turn(id, turn).await
    }

    /// Ends the recorded turn of a conversation that is about to be deleted, if it has one. Otherwise, a sweep would
    /// repeat the calls of sub-agents that are deleted already. The caller has the claim of the conversation.
    pub(super) async fn discard_deleted(&self, id: &ConversationId) -> Result<(), Error> {
        let Some(turn) = self.recorded(id).await? else { return Ok(()) };
        self.discard_turn(id, turn).await
    }

    async fn discard_turn(&self, id: &ConversationId, turn: StoredTurn) -> Result<(), Error> {
        let end = RunEnd::new(RunOutcome::Discarded).with_turn(turn.record.turn);
        let end = closed(end.with_prompts(turn.record.prompts.clone()));
        let commit = Commit::new(turn.record.head).with_usage([]).with_run_end(end);
        match self.commit(turn.version, id, commit).await {
            // Another process has opened the conversation, or has ended its turn.
            Ok(()) | Err(StoreError::Conflict { .. } | StoreError::Owned { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

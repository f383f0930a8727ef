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

mod stored;

use std::{
    collections::HashMap,
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
    ManagerShared, OpenOptions, OpenSession,
    event::ManagerSessionWatcher,
    opening::{NewOrStoredConversation, OpenedBy, shut_down},
    registry::{SessionLifeKey, SessionRegistry},
};
use crate::{
    agent::{
        AgentStopTurnPolicy, Durable, NewSubAgent, ParentCall, RunningSubAgent, SubAgentSessionOpener,
        SubAgentTerminator,
    },
    error::InvalidId,
    message::{ToolUseId, TurnId},
    run::{Error, ErrorKind, PromptState},
    session::{Session, SessionSnapshot},
    store::{ConversationId, Labels, StoreError, StoredTurn, Summary, digest::ContentHasher},
    time::scaled,
};

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

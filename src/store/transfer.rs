//! Copies conversations from one store to another.
//!
//! A copy contains the nodes, head, cursors, state and usage ledger of a conversation, the end of its last run, and the
//! id of its next node. If the options ask for it, a copy also contains the turn in flight. It contains neither the
//! history of writes nor the times, because the target store sets its own. It contains no mark either, because a mark
//! is an event of the original's feed.

use std::time::{Duration, Instant};

use super::{
    Change, Commit, ConversationId, Labels, Page, StateChange, Store, StoreError, Stored, StoredState, Write,
    WriteId, digest::ContentHasher,
};
use crate::{
    message::UsageRow,
    run::TurnRecord,
    tree::{Erased, Node, NodeId},
};

/// The maximum size of a commit that is part of a copy, in bytes of JSON. Only a commit with a single large message may
/// exceed it. Every store accepts commits of this size, and larger commits would not cost less per byte.
const PORTION: usize = 4 * 1024 * 1024;
/// The pause after which the next write has a later time in a list. Lists have times in whole milliseconds.
const TICK: Duration = Duration::from_micros(1100);

/// The result of [`copy`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Copied {
    /// The number of conversations that were written to the target.
    pub copied: usize,
    /// The number of conversations that an earlier call had already copied in their current state.
    pub unchanged: usize,
    /// The conversations that could not be copied, each with its error. Examples are a damaged conversation, a file
    /// without read permission, a different conversation with the same id in the target, or a conversation that has
    /// been written to after an earlier copy. All other conversations were copied.
    pub failed: Vec<(ConversationId, StoreError)>,
    /// The error that ended the copying early, such as an unreachable database. A new call of [`copy`] continues with
    /// the remaining conversations.
    pub stopped: Option<StoreError>,
}

impl Copied {
    /// Returns whether all conversations were copied.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.stopped.is_none()
    }
}

/// Options for copying conversations. The functions [`copy`], [`copy_one`] and
/// [`import_json_with_settings`](super::import_json_with_settings) use the default options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Whether to copy turns in flight. If not, they are left behind.
    ///
    /// Only one of the two conversations may be opened afterwards. Otherwise both continue the turn, and run its tools
    /// twice. In the copy, the waiting time of open approvals starts when the copy is made.
    pub turns: bool,
}

impl CopyOptions {
    /// Returns the same options with turns in flight copied or left behind.
    pub fn with_turns(mut self, turns: bool) -> Self {
        self.turns = turns;
        self
    }

    /// Copies all conversations in the same way as [`copy`], with these options.
    ///
    /// # Cancel safety
    ///
    /// See [`copy`].
    pub async fn copy(self, from: &dyn Store, to: &dyn Store, progress: impl FnMut(usize, usize)) -> Copied {
        copy_all(from, to, self, progress).await
    }

    /// Copies one conversation in the same way as [`copy_one`], with these options.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`copy_one`].
    ///
    /// # Cancel safety
    ///
    /// See [`copy`].
    pub async fn copy_one(
        self,
        from: &dyn Store,
        to: &dyn Store,
        id: &ConversationId,
    ) -> Result<bool, StoreError> {
        put(to, id, PortableConversation::of(from, id).await?, self).await
    }
}

/// Copies all conversations from one store to another.
///
/// A copy contains the usage ledger, if both stores keep one, and the end of the last run. Turns in flight are left
/// behind, because otherwise two processes could continue them, one in each store ([`CopyOptions`] changes that). The
/// sums of deleted conversations stay in the original store.
///
/// Conversations are copied one at a time, the oldest first, so that a list of the copies has the same order as a list
/// of the originals. Nothing is overwritten. A conversation that an earlier call has copied is skipped, so calling this
/// again completes an interrupted copy.
///
/// A long conversation is written in several commits of a few megabytes. Until the last commit is written, the copy has
/// messages but no head. If the copying is interrupted before that, copying again adds the rest.
///
/// `progress` is called after each conversation, with the number of finished conversations and the total number.
///
/// ```
/// use omni_agent::store::{
///     ConversationId, MemoryStore, Store, copy,
///     custom::{Change, StoredState, Write},
/// };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let (from, to) = (MemoryStore::new(), MemoryStore::new());
/// let id = ConversationId::new("first")?;
/// from.write(&id, &Write::first(), &Change::create(StoredState::default())).await?;
///
/// let copied = copy(&from, &to, |_, _| {}).await;
/// assert!(copied.is_complete() && copied.copied == 1);
/// assert!(to.summary(&id).await.is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancel safety
///
/// Conversations that were already copied remain in the target. The conversation that was being copied may have its
/// state and only some of its nodes. Copying again completes it.
pub async fn copy(from: &dyn Store, to: &dyn Store, progress: impl FnMut(usize, usize)) -> Copied {
    copy_all(from, to, CopyOptions::default(), progress).await
}

async fn copy_all(
    from: &dyn Store,
    to: &dyn Store,
    options: CopyOptions,
    mut progress: impl FnMut(usize, usize),
) -> Copied {
    let mut copied = Copied::default();
    let ids = match ids(from).await {
        Ok(ids) => ids,
        Err(error) => {
            copied.stopped = Some(error);
            return copied;
        }
    };
    let all = ids.len();
    let mut pace = CopyOrderPacer::default();
    for (id, done) in ids.into_iter().zip(1..) {
        match copy_after(from, to, &id, options, &mut pace).await {
            Ok(true) => copied.copied += 1,
            Ok(false) => copied.unchanged += 1,
            // A problem with one conversation must not prevent the copying of other conversations, as long as both
            // stores respond.
            Err(error) if error.is_transient() && !(answers(from).await && answers(to).await) => {
                copied.stopped = Some(error);
                break;
            }
            Err(error) => copied.failed.push((id, error)),
        }
        progress(done, all);
    }
    copied
}

/// Gives the copies the same order in lists as the originals. The conversations are copied from the end of the list to
/// its beginning, and each copy must get a later time than the previous one.
#[derive(Default)]
struct CopyOrderPacer(Option<(ConversationId, Instant)>);

impl CopyOrderPacer {
    /// Waits until the conversation `id`, if it were written now, would precede the previously copied conversation in a
    /// list.
    async fn wait(&self, id: &ConversationId) {
        if let Some((last, written)) = &self.0
            // Conversations with the same time are listed by id, so a smaller id needs no pause.
            && id > last
        {
            // No timer is used, because a store may run on a runtime without one.
            while written.elapsed() < TICK {
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn copy_after(
    from: &dyn Store,
    to: &dyn Store,
    id: &ConversationId,
    options: CopyOptions,
    pace: &mut CopyOrderPacer,
) -> Result<bool, StoreError> {
    let portable = PortableConversation::of(from, id).await?;
    pace.wait(id).await;
    let is_new = put(to, id, portable, options).await?;
    if is_new {
        pace.0 = Some((id.clone(), Instant::now()));
    }
    Ok(is_new)
}

async fn answers(store: &dyn Store) -> bool {
    store.list(&Page::first(1).into()).await.is_ok()
}

/// Returns all ids, the oldest first. All ids come from a single list. If the list were read in pages, deletions
/// between two pages would hide other conversations.
async fn ids(store: &dyn Store) -> Result<Vec<ConversationId>, StoreError> {
    let listed = store.list(&Page::first(usize::MAX).into()).await?;
    Ok(listed.into_iter().rev().map(|summary| summary.id).collect())
}

/// Copies one conversation in the same way as [`copy`].
///
/// Returns `false` if the target already has the conversation in the same state.
///
/// # Errors
///
/// Fails with [`StoreError::AlreadyExists`] if the target has a different conversation with this id. Fails with
/// [`StoreError::Conflict`] if the original or the copy was written to after an earlier copy. Also fails if one of the
/// stores can't be read or written to.
///
/// # Cancel safety
///
/// As for [`copy`].
pub async fn copy_one(from: &dyn Store, to: &dyn Store, id: &ConversationId) -> Result<bool, StoreError> {
    CopyOptions::default().copy_one(from, to, id).await
}

/// A conversation that can be written to another store.
pub(super) struct PortableConversation {
    pub(super) stored: Stored,
    /// The usage ledger, oldest row first. `None` if it consists of one row for each node with usage.
    pub(super) usage: Option<Vec<UsageRow>>,
}

impl PortableConversation {
    /// Reads a conversation.
    pub(super) async fn of(from: &dyn Store, id: &ConversationId) -> Result<Self, StoreError> {
        /// The number of attempts to read a conversation and a ledger that belong to the same version.
        const TRIES: usize = 5;

        let mut stored = from.load(id).await?;
        if !from.traits().usage {
            return Ok(Self { stored, usage: None });
        }
        for attempt in 1.. {
            let mut rows = from.usage(id, &Page::first(usize::MAX)).await?;
            rows.reverse();
            if attempt == TRIES || from.summary(id).await?.version == stored.version {
                let derived = Commit::new(None).with_nodes(stored.nodes.iter().cloned()).usage_rows();
                return Ok(Self { stored, usage: (rows != derived).then_some(rows) });
            }
            // Another write has changed the conversation between the two reads, so read both again.
            stored = from.load(id).await?;
        }
        unreachable!("the last attempt returns")
    }

    /// Returns the id of the next node, if the target can't derive it from the nodes.
    fn next(&self) -> Option<NodeId> {
        let last = self.stored.nodes.last().map_or(0, |node| node.id().get());
        self.stored.next.filter(|next| next.get() > last + 1)
    }

    /// Returns the record of the turn in flight, if the options ask for a copy of it and the record is not damaged.
    fn turn(&self, options: CopyOptions) -> Option<TurnRecord> {
        let turn = self.stored.turn.as_ref().filter(|turn| options.turns && turn.damage.is_none())?;
        Some(TurnRecord { mark: None, ..turn.record.clone() })
    }
}

/// Writes a conversation. Returns `false` if the store already has the conversation in the same state.
pub(super) async fn put(
    to: &dyn Store,
    id: &ConversationId,
    mut portable: PortableConversation,
    options: CopyOptions,
) -> Result<bool, StoreError> {
    if let Some(end) = &mut portable.stored.last_run {
        end.mark = None;
    }
    let (turn, next) = (portable.turn(options), portable.next().filter(|_| to.traits().erase));
    let ContentDerivedWriteIds { create, portions, last, more } =
        ContentDerivedWriteIds::of(id, &portable, turn.as_ref())?;
    let PortableConversation { stored: Stored { state, head, cursors, nodes, last_run, .. }, usage } =
        portable;
    let is_whole = usage.is_some() && to.traits().usage;
    let before = match to.summary(id).await {
        Ok(there) => Some(there.version),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut version = to.write(id, &Write::first().with_id(create), &Change::create(state.clone())).await?;
    let mut nodes = nodes.into_iter();
    for (len, write) in portions {
        // Commits before the last one set no head, because a path that ends with one of their nodes might be invalid.
        let mut commit = Commit::new(None).with_nodes(nodes.by_ref().take(len));
        if is_whole {
            commit = commit.with_usage([]);
        }
        version = to.write(id, &Write::on(version).with_id(write), &Change::Commit(commit)).await?;
    }
    let mut commit = Commit::new(head).with_nodes(nodes).with_cursors(cursors);
    if before.is_some() {
        // An earlier call may have created the conversation from an older state, without any nodes.
        commit = commit.with_state(state);
    }
    if let Some(usage) = usage.filter(|_| is_whole) {
        commit = commit.with_usage(usage);
    }
    let mut written = to.write(id, &Write::on(version).with_id(last), &Change::Commit(commit)).await?;
    let [erase, end, record] = more;
    if let Some(next) = next {
        let erased = Erased { nodes: Vec::new(), head, next, title: false };
        written = to.write(id, &Write::on(written).with_id(erase), &Change::Erase(erased)).await?;
    }
    if let Some(last_run) = last_run {
        let commit = Commit::new(head).with_run_end(last_run);
        written = to.write(id, &Write::on(written).with_id(end), &Change::Commit(commit)).await?;
    }
    if let Some(turn) = turn {
        let commit = Commit::new(head).with_turn(turn);
        written = to.write(id, &Write::on(written).with_id(record), &Change::Commit(commit)).await?;
    }
    match before {
        // The conversation was copied earlier, and the copy in the target has received further writes since then.
        Some(current) if current > written => Err(StoreError::Conflict { id: id.clone(), current }),
        before => Ok(before != Some(written)),
    }
}

/// Writes a conversation with the nodes and the state of `stored`, and without usage. Its labels and its title are part of
/// the last write, so no list of a tenant has a part of it. If a call was interrupted, the same call completes it.
pub(crate) async fn put_path(to: &dyn Store, id: &ConversationId, stored: Stored) -> Result<(), StoreError> {
    let state = stored.state.clone();
    let hidden = StoredState { labels: Labels::default(), title: None, ..state.clone() };
    let portable =
        PortableConversation { stored: Stored { state: hidden, ..stored }, usage: Some(Vec::new()) };
    match put(to, id, portable, CopyOptions::default()).await {
        Err(StoreError::Conflict { .. }) => return Err(StoreError::AlreadyExists { id: id.clone() }),
        put => put?,
    };
    let version = to.summary(id).await?.version;
    to.write(id, &Write::on(version), &Change::State(StateChange::whole(state))).await.map(drop)
}

/// The ids of the writes that make a copy. An id is derived from the copied content. So copying again repeats the same
/// writes, and the store recognizes the repetitions.
struct ContentDerivedWriteIds {
    create: WriteId,
    /// All commits except the last one, each with the number of its nodes and its id. An id depends only on the
    /// commit's own nodes and on the nodes before them, so the id stays the same when the conversation grows.
    portions: Vec<(usize, WriteId)>,
    last: WriteId,
    /// The writes after the last commit: the id of the next node, the end of the last run, and the turn in flight.
    more: [WriteId; 3],
}

impl ContentDerivedWriteIds {
    fn of(
        id: &ConversationId,
        portable: &PortableConversation,
        turn: Option<&TurnRecord>,
    ) -> Result<Self, StoreError> {
        let stored = &portable.stored;
        let failed =
            |error: serde_json::Error| StoreError::Unstorable { id: id.clone(), problem: error.to_string() };
        let mut digest = ContentHasher::default();
        digest.part(id.as_str().as_bytes());
        digest.part(&stored.created.0.to_be_bytes());
        let create = digest.write_id();
        let (mut portions, mut len, mut size) = (Vec::new(), 0, 0);
        for node in &stored.nodes {
            let before = digest;
            let node = digest.json::<Node>(node).map_err(failed)?;
            if len > 0 && size + node > PORTION {
                portions.push((len, before.write_id()));
                (len, size) = (0, 0);
            }
            len += 1;
            size += node;
        }
        // No node has the same JSON form as this tuple, so the id of the last commit differs from the ids of all
        // portions.
        digest.json(&(&stored.state, stored.head, &stored.cursors)).map_err(failed)?;
        // Earlier versions of the crate did not copy the parts in `rest`. If a conversation has none of them, its ids
        // are the same as those that earlier versions derived.
        let rest = (&portable.usage, portable.next(), &stored.last_run, turn);
        if !matches!(rest, (None, None, None, None)) {
            digest.json(&rest).map_err(failed)?;
        }
        let last = digest.write_id();
        let more = [(); 3].map(|()| {
            digest.part(b"more");
            digest.write_id()
        });
        Ok(Self { create, portions, last, more })
    }
}

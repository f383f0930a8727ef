//! Copies conversations from one store to another.
//!
//! A copy contains the nodes, head, cursors and state of a conversation. It contains neither the history of writes nor
//! the times, because the target store sets its own.

use std::{
    io,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{Commit, ConversationId, Page, Store, StoreError, Stored, Write, WriteId};
use crate::tree::Node;

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

/// Copies all conversations from one store to another.
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
/// use omni_agent::store::{ConversationId, MemoryStore, Store, StoredState, WriteId, copy};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let (from, to) = (MemoryStore::new(), MemoryStore::new());
/// let id = ConversationId::new("first")?;
/// from.create(&id, WriteId::generate(), &StoredState::default()).await?;
///
/// let copied = copy(&from, &to, |_, _| {}).await;
/// assert!(copied.is_complete() && copied.copied == 1);
/// assert!(to.exists(&id).await?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Cancel safety
///
/// Conversations that were already copied remain in the target. The conversation that was being copied may have its
/// state and only some of its nodes. Copying again completes it.
pub async fn copy(from: &dyn Store, to: &dyn Store, mut progress: impl FnMut(usize, usize)) -> Copied {
    let mut copied = Copied::default();
    let ids = match ids(from).await {
        Ok(ids) => ids,
        Err(error) => {
            copied.stopped = Some(error);
            return copied;
        }
    };
    let all = ids.len();
    let mut pace = Pace::default();
    for (id, done) in ids.into_iter().zip(1..) {
        match copy_after(from, to, &id, &mut pace).await {
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
struct Pace(Option<(ConversationId, Instant)>);

impl Pace {
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
    pace: &mut Pace,
) -> Result<bool, StoreError> {
    let stored = from.load(id).await?;
    pace.wait(id).await;
    let is_new = put(to, id, stored).await?;
    if is_new {
        pace.0 = Some((id.clone(), Instant::now()));
    }
    Ok(is_new)
}

async fn answers(store: &dyn Store) -> bool {
    store.list(Page::first(1)).await.is_ok()
}

/// Returns all ids, the oldest first. All ids come from a single list. If the list were read in pages, deletions
/// between two pages would hide other conversations.
async fn ids(store: &dyn Store) -> Result<Vec<ConversationId>, StoreError> {
    let listed = store.list(Page::first(usize::MAX)).await?;
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
    put(to, id, from.load(id).await?).await
}

/// Writes a conversation. Returns `false` if the store already has the conversation.
pub(super) async fn put(to: &dyn Store, id: &ConversationId, stored: Stored) -> Result<bool, StoreError> {
    let Writes { create, portions, last } = Writes::of(id, &stored)?;
    let Stored { state, head, cursors, nodes, .. } = stored;
    let before = match to.summary(id).await {
        Ok(there) => Some(there.version),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => return Err(error),
    };
    let mut version = to.create(id, create, &state).await?;
    let mut nodes = nodes.into_iter();
    for (len, write) in portions {
        // These commits set no head, because a path that ends with one of these nodes might be invalid.
        let commit = Commit::new(None).with_nodes(nodes.by_ref().take(len));
        version = to.commit(id, &Write::on(version).with_id(write), &commit).await?;
    }
    let mut commit = Commit::new(head).with_nodes(nodes).with_cursors(cursors);
    if before.is_some() {
        // An earlier call may have created the conversation from an older state, without any nodes.
        commit = commit.with_state(state);
    }
    let written = to.commit(id, &Write::on(version).with_id(last), &commit).await?;
    match before {
        // The conversation was copied earlier, and the copy has been continued since then.
        Some(current) if current > written => Err(StoreError::Conflict { id: id.clone(), current }),
        before => Ok(before != Some(written)),
    }
}

/// The ids of the writes that make a copy. They are derived from the copied content. So copying again repeats the same
/// writes, and the store recognizes the repetitions.
struct Writes {
    create: WriteId,
    /// All commits except the last one, each with the number of its nodes and its id. An id depends only on the
    /// commit's own nodes and on the nodes before them, so the id stays the same when the conversation grows.
    portions: Vec<(usize, WriteId)>,
    last: WriteId,
}

impl Writes {
    fn of(id: &ConversationId, stored: &Stored) -> Result<Self, StoreError> {
        let failed =
            |error: serde_json::Error| StoreError::Unstorable { id: id.clone(), problem: error.to_string() };
        let mut digest = Digest::default();
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
        Ok(Self { create, portions, last: digest.write_id() })
    }
}

/// A hash with 128 bits of the bytes written to it (FNV-1a: draft-eastlake-fnv, 2 and 5).
#[derive(Clone, Copy)]
struct Digest {
    hash: u128,
    /// The number of bytes that were added so far.
    len: usize,
}

impl Default for Digest {
    fn default() -> Self {
        Self { hash: 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, len: 0 }
    }
}

impl Digest {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash =
                (self.hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
        self.len += bytes.len();
    }

    fn part(&mut self, bytes: &[u8]) {
        self.add(bytes);
        // Neither an id nor JSON contains a zero byte, so a zero byte separates the parts.
        self.add(&[0]);
    }

    /// Adds the value's JSON text and returns the length of the text.
    fn json<T: Serialize>(&mut self, value: &T) -> Result<usize, serde_json::Error> {
        let before = self.len;
        serde_json::to_writer(&mut *self, value)?;
        let len = self.len - before;
        self.add(&[0]);
        Ok(len)
    }

    fn write_id(self) -> WriteId {
        WriteId::from_bytes(self.hash.to_be_bytes())
    }
}

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.add(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

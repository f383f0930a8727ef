//! Copies conversations from one store to another.
//!
//! A conversation is written with its nodes, head, cursors and state. Its history of writes and its times are not copied: the
//! other store has its own.

use std::{
    io,
    time::{Duration, Instant},
};

use serde::Serialize;

use super::{Commit, ConversationId, Page, Store, StoreError, Stored, Write, WriteId};
use crate::tree::Node;

/// Bytes of JSON that a commit of a copy has at most, unless one message has more. Every store takes commits of this size, and a
/// larger one would cost no less per byte.
const PORTION: usize = 4 * 1024 * 1024;
/// Times in lists are in whole milliseconds. After this pause, another write has a later time.
const TICK: Duration = Duration::from_micros(1100);

/// The outcome of [`copy`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Copied {
    /// Conversations that were written.
    pub copied: usize,
    /// Conversations that an earlier run had copied as they are.
    pub unchanged: usize,
    /// Conversations that could not be copied, each for a reason of its own: damage, a file that may not be read, another
    /// of this name there, or one that has been written to since it was copied. The others were copied all the same.
    pub failed: Vec<(ConversationId, StoreError)>,
    /// What ended the copying before its time, such as a database that can't be reached. Copying again goes on where this
    /// ended.
    pub stopped: Option<StoreError>,
}

impl Copied {
    /// Whether all is there.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.stopped.is_none()
    }
}

/// Copies all conversations from one store to another, one at a time and the oldest first, so that a list of the copies has the
/// same order. Nothing is overwritten. A conversation that an earlier run has copied stays as it is, so that copying again
/// completes an interrupted copy.
///
/// A long conversation is written in several commits of a few megabytes. Until the last of them is written, the copy has
/// messages but no head. Copying again adds the rest.
///
/// `progress` is called after each conversation with the number of finished conversations and the number of all.
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
/// Copied conversations stay. The one being copied may have its state and only some of its nodes. Copying again completes it.
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
            // What keeps one conversation from being copied is not to keep the others, if the stores answer.
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

/// Keeps the order of a list that is copied from its end.
#[derive(Default)]
struct Pace(Option<(ConversationId, Instant)>);

impl Pace {
    /// Waits until a write to `id` comes before the last one in a list.
    async fn wait(&self, id: &ConversationId) {
        if let Some((last, written)) = &self.0
            // Within a millisecond, lists are ordered by id.
            && id > last
        {
            // No timer: a store may be used on a runtime that has none.
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

/// All ids, the oldest first, from one list: of a list in pages, what is deleted between two of them hides others.
async fn ids(store: &dyn Store) -> Result<Vec<ConversationId>, StoreError> {
    let listed = store.list(Page::first(usize::MAX)).await?;
    Ok(listed.into_iter().rev().map(|summary| summary.id).collect())
}

/// Copies one conversation, as [`copy`] does with all. `false` if it is there already, as it is here.
///
/// # Errors
///
/// [`StoreError::AlreadyExists`] if there is another of this name, [`StoreError::Conflict`] if one of the two was written to since
/// it was copied, or that one of the stores can't be read or written to.
///
/// # Cancel safety
///
/// As for [`copy`].
pub async fn copy_one(from: &dyn Store, to: &dyn Store, id: &ConversationId) -> Result<bool, StoreError> {
    put(to, id, from.load(id).await?).await
}

/// Writes a conversation; `false` if it is there already.
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
        // Without a head: a path that ends somewhere in the middle might be one that can't be opened.
        let commit = Commit::new(None).with_nodes(nodes.by_ref().take(len));
        version = to.commit(id, &Write::on(version).with_id(write), &commit).await?;
    }
    let mut commit = Commit::new(head).with_nodes(nodes).with_cursors(cursors);
    if before.is_some() {
        // It may have been created from an earlier state, and no more.
        commit = commit.with_state(state);
    }
    let written = to.commit(id, &Write::on(version).with_id(last), &commit).await?;
    match before {
        // It was copied, and somebody has gone on with it.
        Some(current) if current > written => Err(StoreError::Conflict { id: id.clone(), current }),
        before => Ok(before != Some(written)),
    }
}

/// The ids of the writes that make a copy. They are derived from what is copied, so that copying again repeats the same writes,
/// and a store does nothing for those that it has.
struct Writes {
    create: WriteId,
    /// The commits before the last: how many nodes each has, and its id. They depend on their own nodes and those before
    /// alone, so that a conversation that has grown since still has them.
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
        // No node has this form, so that the last commit has another id than a portion.
        digest.json(&(&stored.state, stored.head, &stored.cursors)).map_err(failed)?;
        Ok(Self { create, portions, last: digest.write_id() })
    }
}

/// 128 bits that stand for what was written to it (FNV-1a: draft-eastlake-fnv, 2 and 5).
#[derive(Clone, Copy)]
struct Digest {
    hash: u128,
    /// Bytes so far.
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
        // No id and no JSON has a zero byte in it, so the parts can be told apart.
        self.add(&[0]);
    }

    /// Adds the value's JSON text and returns its length.
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

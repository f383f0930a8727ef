//! From one store to another, and to a file that people can read.
//!
//! A conversation is written as it stands: its nodes, head, cursors and state. Its history of writes and its times stay
//! behind: the other store has its own.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Commit, ConversationId, Page, Store, StoreError, Stored, Write, WriteId, json};
use crate::tree::Tree;

/// What copying came to.
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

/// Copies all conversations from one store to another, one at a time. Nothing is overwritten. What is there already from
/// an earlier run is left as it is, so that copying again completes what was interrupted.
///
/// `progress` is told how many of how many are done, after each.
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
/// Conversations copied so far stay, and of the one under way perhaps its state without its nodes. Copying again completes it.
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
    for (id, done) in ids.into_iter().zip(1..) {
        match copy_one(from, to, &id).await {
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

async fn answers(store: &dyn Store) -> bool {
    store.list(Page::first(1)).await.is_ok()
}

/// All ids, from one list: of a list in pages, what is deleted between two of them hides others.
async fn ids(store: &dyn Store) -> Result<BTreeSet<ConversationId>, StoreError> {
    let listed = store.list(Page::first(usize::MAX)).await?;
    Ok(listed.into_iter().map(|summary| summary.id).collect())
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
async fn put(to: &dyn Store, id: &ConversationId, stored: Stored) -> Result<bool, StoreError> {
    // Made of what is copied, so that doing it again is a repetition to the store, and does nothing.
    let create = write_id([id.as_str().as_bytes(), &stored.created.0.to_be_bytes()]);
    let content = write_id([content(id, &stored)?.as_bytes()]);
    let Stored { state, head, cursors, nodes, .. } = stored;
    let before = match to.summary(id).await {
        Ok(there) => Some(there.version),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => return Err(error),
    };
    let first = to.create(id, create, &state).await?;
    let mut commit = Commit::new(head).with_nodes(nodes).with_cursors(cursors);
    if before.is_some() {
        // It may have been created from an earlier state, and no more.
        commit = commit.with_state(state);
    }
    let written = to.commit(id, &Write::on(first).with_id(content), &commit).await?;
    match before {
        // It was copied, and somebody has gone on with it.
        Some(current) if current > written => Err(StoreError::Conflict { id: id.clone(), current }),
        before => Ok(before != Some(written)),
    }
}

/// All that is copied of a conversation.
fn content(id: &ConversationId, stored: &Stored) -> Result<String, StoreError> {
    let Stored { state, head, cursors, nodes, .. } = stored;
    serde_json::to_string(&(state, head, cursors, nodes))
        .map_err(|error| StoreError::Unstorable { id: id.clone(), problem: error.to_string() })
}

/// 128 bits that stand for these (FNV-1a: draft-eastlake-fnv, 2 and 5).
fn write_id<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> WriteId {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for part in parts {
        // No id has a zero byte in it: so where one part ends is told.
        for byte in part.iter().chain(&[0]) {
            hash = (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
    WriteId::from_bytes(hash.to_be_bytes())
}

/// The version of the file's format that this crate writes.
const FORMAT_VERSION: u64 = 1;
/// What the file says it is.
const FORMAT: &str = "omni-agent exported conversation";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    format_version: u64,
    id: ConversationId,
    conversation: Stored,
}

/// Enough of any version's document to tell which it is.
#[derive(Deserialize)]
struct AnyDocument {
    format: String,
    format_version: u64,
}

/// A conversation as a JSON document that a person can read: id, state, and all nodes with their messages.
///
/// # Errors
///
/// As for [`Store::load`], and [`StoreError::Unstorable`] if its messages are nested too deep.
pub async fn export_json(store: &dyn Store, id: &ConversationId) -> Result<String, StoreError> {
    let conversation = store.load(id).await?;
    let document =
        Document { format: FORMAT.to_owned(), format_version: FORMAT_VERSION, id: id.clone(), conversation };
    let problem =
        |error: serde_json::Error| StoreError::Unstorable { id: id.clone(), problem: error.to_string() };
    let text = serde_json::to_string_pretty(&document).map_err(problem)?;
    json::check_depth(id, text.as_bytes())?;
    Ok(text)
}

/// Writes a conversation from such a document, under the id that it has there, or another. Nothing is overwritten.
/// Importing the same document again does nothing, as long as nobody has gone on with the conversation.
///
/// ```
/// use omni_agent::store::{ConversationId, MemoryStore, Store, StoredState, WriteId, export_json, import_json};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let store = MemoryStore::new();
/// let id = ConversationId::new("first")?;
/// store.create(&id, WriteId::generate(), &StoredState::default().with_title("A talk")).await?;
///
/// let json = export_json(&store, &id).await?;
/// let second = import_json(&store, &json, Some(ConversationId::new("second")?)).await?;
/// assert_eq!(store.summary(&second).await?.title.as_deref(), Some("A talk"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`StoreError::Damaged`] if the text is no such document, or its nodes make no tree; [`StoreError::UnknownFormat`] if a later
/// version of the crate wrote it; [`StoreError::AlreadyExists`] if there is another of this id, be it an earlier or a later
/// state of the same; or that the store can't be written to.
///
/// # Cancel safety
///
/// As for [`copy`].
pub async fn import_json(
    store: &dyn Store,
    text: &str,
    id: Option<ConversationId>,
) -> Result<ConversationId, StoreError> {
    const PLACE: &str = "the exported conversation";

    let damaged = |problem: String| StoreError::damaged(PLACE, problem);
    let any: AnyDocument = json::parse(text).map_err(damaged)?;
    if any.format != FORMAT {
        return Err(damaged(format!("its format is {:?}, not {FORMAT:?}", any.format)));
    }
    if any.format_version > FORMAT_VERSION {
        let (found, known) = (any.format_version, FORMAT_VERSION);
        return Err(StoreError::UnknownFormat { place: PLACE.to_owned(), found, known });
    }
    let document: Document = json::parse(text).map_err(damaged)?;
    let stored = document.conversation;
    Tree::hydrate(stored.nodes.clone(), stored.head, stored.cursors.clone())
        .map_err(|error| damaged(error.to_string()))?;
    let id = id.unwrap_or(document.id);
    match put(store, &id, stored).await {
        Err(StoreError::Conflict { id, .. }) => Err(StoreError::AlreadyExists { id }),
        put => put.map(|_| id),
    }
}

//! A conversation as a JSON document that people can read.

use serde::{Deserialize, Serialize};

use super::{ConversationId, Store, StoreError, Stored, json, transfer::put};
use crate::tree::Tree;

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
/// As for [`copy`](super::copy).
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

//! A conversation as a JSON document that people can read.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{ConversationId, Store, StoreError, Stored, StoredState, json, transfer::put};
use crate::{
    message::{History, check_step},
    tree::Tree,
};

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

/// Imports the messages and the title of an exported conversation, under the id that it has there, or another.
///
/// The document may come from anybody. Its settings (model, system prompt, options with their extra members and backend
/// settings, limits) would take effect in the next request, so they are left out, and the conversation begins with the settings
/// that it is opened with. [`import_json_with_settings`] takes them too. Messages keep their provider data, such as signatures
/// and the name of a coding agent's session.
///
/// Nothing is overwritten. Importing the same document again does nothing, as long as nobody has continued the conversation.
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
/// [`StoreError::Damaged`] if the text is no such document, if its nodes make no tree, or if a path of the tree breaks the
/// history law (the error names the node); [`StoreError::UnknownFormat`] if a later version of the crate wrote it;
/// [`StoreError::AlreadyExists`] if there is another of this id, be it an earlier or a later state of the same; or that the
/// store can't be written to.
///
/// # Cancel safety
///
/// As for [`copy`](super::copy).
pub async fn import_json(
    store: &dyn Store,
    text: &str,
    id: Option<ConversationId>,
) -> Result<ConversationId, StoreError> {
    let mut document = read(text)?;
    let title = document.conversation.state.title.take();
    document.conversation.state = StoredState { title, ..StoredState::default() };
    write(store, document, id).await
}

/// Imports an exported conversation whole: with its model, system prompt, options and limits too.
///
/// For documents that you trust, such as your own backups: the options reach the service with the next request, and settings of
/// a backend may name a folder or allow tools.
///
/// # Errors
///
/// As for [`import_json`].
///
/// # Cancel safety
///
/// As for [`copy`](super::copy).
pub async fn import_json_with_settings(
    store: &dyn Store,
    text: &str,
    id: Option<ConversationId>,
) -> Result<ConversationId, StoreError> {
    write(store, read(text)?, id).await
}

/// The place of damage, in errors.
const PLACE: &str = "the exported conversation";

fn damaged(problem: String) -> StoreError {
    StoreError::damaged(PLACE, problem)
}

fn read(text: &str) -> Result<Document, StoreError> {
    let any: AnyDocument = json::parse(text).map_err(damaged)?;
    if any.format != FORMAT {
        return Err(damaged(format!("its format is {:?}, not {FORMAT:?}", any.format)));
    }
    if any.format_version > FORMAT_VERSION {
        let (found, known) = (any.format_version, FORMAT_VERSION);
        return Err(StoreError::UnknownFormat { place: PLACE.to_owned(), found, known });
    }
    let document: Document = json::parse(text).map_err(damaged)?;
    let Stored { nodes, head, cursors, .. } = &document.conversation;
    let tree =
        Tree::hydrate(nodes.clone(), *head, cursors.clone()).map_err(|error| damaged(error.to_string()))?;
    check_law(&tree).map_err(damaged)?;
    Ok(document)
}

/// Checks that each path of a tree obeys the history law, and that the active path may be opened.
fn check_law(tree: &Tree) -> Result<(), String> {
    for node in tree.nodes() {
        let parent = node.parent().and_then(|parent| tree.node(parent));
        if check_step(parent.map(|parent| &**parent.message()), node.message(), 0).is_err() {
            // Once more from the root, for the number of the message.
            let path = tree.path_to(node.id()).unwrap_or_default();
            let history: History = path.into_iter().map(|node| Arc::clone(node.message())).collect();
            let problem = history.check_pairs().err().map(|error| error.to_string()).unwrap_or_default();
            return Err(format!("node {}, on the path to it: {problem}", node.id()));
        }
    }
    match (tree.history().check(), tree.head()) {
        (Err(error), Some(head)) => Err(format!("node {head}, where the active path ends: {error}")),
        _ => Ok(()),
    }
}

async fn write(
    store: &dyn Store,
    document: Document,
    id: Option<ConversationId>,
) -> Result<ConversationId, StoreError> {
    let id = id.unwrap_or(document.id);
    match put(store, &id, document.conversation).await {
        Err(StoreError::Conflict { id, .. }) => Err(StoreError::AlreadyExists { id }),
        put => put.map(|_| id),
    }
}

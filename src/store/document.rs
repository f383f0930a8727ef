//! Exports a conversation to a readable JSON document, and imports such documents.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{
    ConversationId, CopyOptions, Store, StoreError, Stored, StoredState, json,
    transfer::{PortableConversation, put},
};
use crate::{
    message::{HistoryError, PathCheck, UsageRow},
    run::Prompt,
    tree::{Node, NodeId, Tree},
};

/// The latest version of the document format. Version 2 added the usage ledger. A document without a usage ledger has
/// version 1, so that earlier versions of the crate can read it.
const FORMAT_VERSION: u64 = 2;
/// The name of the format, which every document contains.
const FORMAT: &str = "omni-agent exported conversation";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConversationDocument {
    format: String,
    format_version: u64,
    id: ConversationId,
    conversation: Stored,
    /// The usage ledger, oldest row first. `None` if it consists of one row for each node with usage, because the nodes
    /// then contain all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    usage: Option<Vec<UsageRow>>,
}

/// The members that identify the format version of any document.
#[derive(Deserialize)]
struct DocumentFormatHeader {
    format: String,
    format_version: u64,
}

/// Exports a conversation to a JSON document that a person can read: its id, state, all nodes with their messages, its
/// usage ledger, the end of its last run, and its turn in flight.
///
/// # Errors
///
/// Fails in the same cases as [`Store::load`], and with [`StoreError::Unstorable`] if messages are nested too deeply.
pub async fn export_json(store: &dyn Store, id: &ConversationId) -> Result<String, StoreError> {
    let PortableConversation { stored, usage } = PortableConversation::of(store, id).await?;
    let document = ConversationDocument {
        format: FORMAT.to_owned(),
        format_version: if usage.is_some() { FORMAT_VERSION } else { 1 },
        id: id.clone(),
        conversation: stored,
        usage,
    };
    let problem =
        |error: serde_json::Error| StoreError::Unstorable { id: id.clone(), problem: error.to_string() };
    let text = serde_json::to_string_pretty(&document).map_err(problem)?;
    json::check_depth(id, text.as_bytes())?;
    Ok(text)
}

/// Imports the messages and the title of an exported conversation, under its original id or another id.
///
/// The document may come from an untrusted source. Its settings (model, system prompt, options with their extra members
/// and the settings of a coding agent, limits) would take effect in the next request, so they are ignored. Instead, the
/// conversation has the settings with which it is opened. The last run may have left staged prompts that it did not
/// use. The settings of these prompts are ignored too. [`import_json_with_settings`] imports all settings. Messages
/// keep their provider data, such as signatures and the session id of a coding agent.
///
/// The usage ledger and the end of the last run are imported, with the ids of its known prompts. So a prompt that the
/// original has accepted is known in the copy too. A turn in flight is not imported, nor is the last event of the feed,
/// because the events belong to the sessions of the original.
///
/// The import overwrites nothing. If the conversation has not been continued, importing the same document again does
/// nothing.
///
/// ```
/// use omni_agent::store::{
///     ConversationId, MemoryStore, Store,
///     custom::{Change, StoredState, Write},
///     export_json, import_json,
/// };
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///
/// let store = MemoryStore::new();
/// let id = ConversationId::new("first")?;
/// store.write(&id, &Write::first(), &Change::create(StoredState::default().with_title("A talk"))).await?;
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
/// Fails with [`StoreError::Damaged`] if the text is not an exported conversation, if its nodes do not form a tree, or
/// if a path of the tree is not a valid [`History`](crate::message::History), for example because a tool use has no
/// result (the error names the node). Fails with [`StoreError::UnknownFormat`] if a later version of this crate wrote
/// the document. Fails with [`StoreError::AlreadyExists`] if the store has a different conversation with this id, or an
/// earlier or later state of the same conversation. Also fails if the store can't be written to.
///
/// # Cancel safety
///
/// See [`copy`](super::copy).
pub async fn import_json(
    store: &dyn Store,
    text: &str,
    id: Option<ConversationId>,
) -> Result<ConversationId, StoreError> {
    let mut document = read(text)?;
    let StoredState { title, title_by, .. } = document.conversation.state;
    document.conversation.state = StoredState { title, title_by, ..StoredState::default() };
    for prompt in document.conversation.last_run.iter_mut().flat_map(|end| &mut end.staged) {
        let Prompt { id, content, next, app_data, .. } = (**prompt).clone();
        *prompt = Arc::new(Prompt { id, content, next, app_data, ..Prompt::default() });
    }
    write(store, document, id, CopyOptions::default()).await
}

/// Imports a whole exported conversation, with its model, system prompt, options and limits.
///
/// Use this for documents that you trust, such as your own backups. The options are sent to the service with the next
/// request. If the model is a coding agent, its settings in the options may name a folder or allow tools. A turn in
/// flight is not imported. To import it, use [`CopyOptions::import_json_with_settings`].
///
/// # Errors
///
/// Fails in the same cases as [`import_json`].
///
/// # Cancel safety
///
/// See [`copy`](super::copy).
pub async fn import_json_with_settings(
    store: &dyn Store,
    text: &str,
    id: Option<ConversationId>,
) -> Result<ConversationId, StoreError> {
    CopyOptions::default().import_json_with_settings(store, text, id).await
}

impl CopyOptions {
    /// Imports a whole exported conversation in the same way as [`import_json_with_settings`], with these options.
    ///
    /// # Errors
    ///
    /// Fails in the same cases as [`import_json`].
    ///
    /// # Cancel safety
    ///
    /// See [`copy`](super::copy).
    pub async fn import_json_with_settings(
        self,
        store: &dyn Store,
        text: &str,
        id: Option<ConversationId>,
    ) -> Result<ConversationId, StoreError> {
        write(store, read(text)?, id, self).await
    }
}

/// The name of the document in errors about damage.
const PLACE: &str = "the exported conversation";

fn damaged(problem: String) -> StoreError {
    StoreError::damaged(PLACE, problem)
}

fn read(text: &str) -> Result<ConversationDocument, StoreError> {
    let any: DocumentFormatHeader = json::parse(text).map_err(damaged)?;
    if any.format != FORMAT {
        return Err(damaged(format!("its format is {:?}, not {FORMAT:?}", any.format)));
    }
    if any.format_version > FORMAT_VERSION {
        let (found, known) = (any.format_version, FORMAT_VERSION);
        return Err(StoreError::UnknownFormat { place: PLACE.to_owned(), found, known });
    }
    let mut document: ConversationDocument = json::parse(text).map_err(damaged)?;
    let Stored { nodes, head, cursors, next, .. } = &document.conversation;
    let (nodes, head, cursors) = (nodes.clone(), *head, cursors.clone());
    let tree = Tree::restored(nodes, head, cursors, *next).map_err(|error| damaged(error.to_string()))?;
    check_law(&tree).map_err(damaged)?;
    // A document of another program has no marks. Its paths may end with tool uses that the next prompt answers.
    let is_end = |node: &Node| tree.children(node.id()).is_none_or(|mut below| below.next().is_none());
    for node in &mut document.conversation.nodes {
        if is_end(node) && node.uses_tools() {
            *node = node.clone().with_left_open(true);
        }
    }
    Ok(document)
}

/// Checks that in each path of a tree, the tool uses and the tool results match. Also checks that a conversation with
/// the active path can be opened.
fn check_law(tree: &Tree) -> Result<(), String> {
    let mut path = PathCheck::default();
    let mut broken: Option<(NodeId, HistoryError)> = None;
    let mut next: Vec<(&Node, usize)> = tree.roots().map(|root| (root, 0)).collect();
    while let Some((node, depth)) = next.pop() {
        path.truncate(depth);
        match path.push(node.message()) {
            Ok(()) => {
                let below = tree.children(node.id()).into_iter().flatten();
                next.extend(below.map(|child| (child, depth + 1)));
            }
            // The first node in the document is reported.
            Err(problem) if broken.as_ref().is_none_or(|(id, _)| node.id() < *id) => {
                broken = Some((node.id(), problem));
            }
            Err(_) => {}
        }
    }
    if let Some((id, problem)) = broken {
        return Err(format!("node {id}, on the path to it: {problem}"));
    }
    match (tree.history().check(), tree.head()) {
        (Err(error), Some(head)) => Err(format!("node {head}, where the active path ends: {error}")),
        _ => Ok(()),
    }
}

async fn write(
    store: &dyn Store,
    document: ConversationDocument,
    id: Option<ConversationId>,
    options: CopyOptions,
) -> Result<ConversationId, StoreError> {
    let id = id.unwrap_or(document.id);
    let portable = PortableConversation { stored: document.conversation, usage: document.usage };
    match put(store, &id, portable, options).await {
        Err(StoreError::Conflict { id, .. }) => Err(StoreError::AlreadyExists { id }),
        put => put.map(|_| id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{CHECKED, Compaction, CompactionTrigger, Message};

    /// Otherwise, a document with many compactions at the end of a long path would keep the import busy for hours.
    #[test]
    fn check_of_a_tree_with_many_compactions_visits_each_node_a_few_times() {
        const MANY: usize = 2_000;

        let mut tree = Tree::new();
        for _ in 0..MANY / 2 {
            tree.push(Message::user("Hi"));
            tree.push(Message::assistant("Hello."));
        }
        let end = tree.head().expect("a trunk");
        for _ in 0..MANY {
            tree.navigate(end).expect("the end of the trunk");
            tree.push(Message::compaction("They met.", Compaction::new(CompactionTrigger::Request)));
        }
        let before = CHECKED.get();
        check_law(&tree).expect("a lawful tree");
        let visits = CHECKED.get() - before;
        assert!(visits <= 4 * MANY, "{visits} visits of {} nodes", tree.len());
    }
}

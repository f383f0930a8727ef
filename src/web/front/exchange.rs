//! The messages of a conversation, grouped as a chat shows them: a prompt, and all messages up to the next prompt.

use std::{borrow::Cow, fmt::Display, sync::Arc};

use serde_json::{Value, json};

use crate::{
    message::{Content, Message, MessageId, Role},
    run::{Failure, MAX_ID},
    session::SessionSnapshot,
    store::digest::ContentHasher,
    tree::{Node, NodeId, Tree},
};

/// A message of the path or of the turn in flight.
#[derive(Clone, Copy)]
pub(in crate::web) struct ExchangeEntry<'a> {
    /// The node, if the message is part of the path.
    pub(in crate::web) node: Option<&'a Node>,
    pub(in crate::web) message: &'a Arc<Message>,
}

/// A prompt and the messages that respond to it.
pub(in crate::web) struct PromptExchange<'a> {
    /// The id of the prompt's message in the protocol. If the history does not begin with a prompt, this is the id of
    /// its first message.
    pub(in crate::web) id: String,
    /// The prompt.
    pub(in crate::web) prompt: Option<ExchangeEntry<'a>>,
    /// The messages after the prompt: answers, results of tools, and prompts that joined the turn.
    pub(in crate::web) rest: Vec<ExchangeEntry<'a>>,
}

impl PromptExchange<'_> {
    /// Returns the id of the assistant's message in the protocol, or `None` if there is no answer yet. The id has the turn
    /// of the first message of the answer, so each version of an answer has its own id. A message without a turn is
    /// named itself.
    pub(in crate::web) fn answer_id(&self) -> Option<String> {
        let first = self.rest.first()?;
        Some(match first.message.id.as_ref().and_then(MessageId::turn) {
            Some(turn) => answer_id(turn),
            None => answer_id(ui_id(first.message, first.node.map(Node::id))),
        })
    }

    /// Returns the last node of the exchange that is part of the path.
    pub(in crate::web) fn last_node(&self) -> Option<NodeId> {
        let mut entries = self.rest.iter().rev().chain(&self.prompt);
        entries.find_map(|entry| entry.node).map(Node::id)
    }
}

/// Returns the id of the assistant's message that belongs to this turn or message.
pub(in crate::web) fn answer_id(of: impl Display) -> String {
    format!("a-{of}")
}

/// The character between the client's id of a message and the mark of its version.
const VERSION: char = '~';

/// The greatest size of an id that has a mark of a version, without the mark, in bytes. The id of a prompt may have 64.
const MAX_BASE: usize = 36;

/// Returns the id under which a message with a client's id is stored. An id that is too long for a prompt becomes a
/// hash of 128 bits, because two long ids can have the same beginning.
pub(in crate::web) fn stored_id(id: &str) -> Cow<'_, str> {
    shortened(id, MAX_ID)
}

/// Returns the id that all versions of a message have in common. A long id is shortened, so that there is room for the
/// mark.
pub(in crate::web) fn stored_base(id: &str) -> Cow<'_, str> {
    match shortened(id, MAX_ID) {
        // The hash of a whole id has no mark.
        Cow::Owned(stored) => Cow::Owned(stored),
        Cow::Borrowed(id) => shortened(base_id(id), MAX_BASE),
    }
}

fn shortened(id: &str, limit: usize) -> Cow<'_, str> {
    if id.len() <= limit {
        return id.into();
    }
    let mut digest = ContentHasher::default();
    digest.part(id.as_bytes());
    format!("{:032x}", digest.value()).into()
}

/// Returns an id for a new version of a message. A client keeps the id of a message that its user edits. But the edited
/// message becomes a new prompt, whose id must never have been used. `mark` must be new for each version.
pub(in crate::web) fn version_id(id: &str, mark: &str) -> String {
    format!("{}{VERSION}{mark}", stored_base(id))
}

/// Returns the id that the client uses for all versions of a message.
pub(in crate::web) fn base_id(id: &str) -> &str {
    match id.rsplit_once(VERSION) {
        Some((base, mark)) if mark.parse::<crate::subscription::EventId>().is_ok() => base,
        _ => id,
    }
}

/// Returns the id of a message in the protocol.
pub(in crate::web) fn ui_id(message: &Message, node: Option<NodeId>) -> String {
    match (&message.id, node) {
        (Some(id), _) => base_id(&id.to_string()).to_owned(),
        (None, Some(node)) => format!("n-{node}"),
        (None, None) => "n-0".to_owned(),
    }
}

/// Returns whether a user message has content of its own, besides results of tools. Clients do not see compactions.
pub(in crate::web) fn has_own_content(message: &Message) -> bool {
    message.compaction.is_none()
        && message.content.iter().any(|block| !matches!(block, Content::ToolResult(_)))
}

/// Returns what a front end gets about a compaction that has begun, has ended, or has failed.
pub(in crate::web) fn compaction(message: Option<&Arc<Message>>, failure: Option<&Failure>) -> Value {
    match (message, failure) {
        (Some(message), _) => json!({ "state": "ended", "compaction": message.compaction }),
        (None, Some(failure)) => json!({ "state": "failed", "failure": failure.to_string() }),
        (None, None) => json!({ "state": "started" }),
    }
}

pub(in crate::web) fn has_results(message: &Message) -> bool {
    message.tool_results().next().is_some()
}

/// Returns the exchange in which a node lies. If the node is not on the path, the exchange continues with the children
/// that were active last.
pub(in crate::web) fn exchange_of(tree: &Tree, node: NodeId) -> Option<PromptExchange<'_>> {
    let mut path: Vec<_> = tree.iter().collect();
    if path.iter().all(|other| other.id() != node) {
        path = tree.path_to(node)?;
        let next = |path: &[&Node]| {
            tree.node(tree.cursor(path.last()?.id())?).filter(|next| !tree.is_unanswered(next))
        };
        while let Some(next) = next(&path) {
            path.push(next);
        }
    }
    let is_it = |entry: &ExchangeEntry<'_>| entry.node.is_some_and(|other| other.id() == node);
    let has_node = |exchange: &PromptExchange<'_>| exchange.rest.iter().chain(&exchange.prompt).any(is_it);
    grouped(path.into_iter(), &[]).into_iter().rfind(has_node)
}

/// Groups all messages of a snapshot.
pub(in crate::web) fn exchanges(snapshot: &SessionSnapshot) -> Vec<PromptExchange<'_>> {
    grouped(snapshot.tree.iter(), &snapshot.agent.pending)
}

fn grouped<'a>(path: impl Iterator<Item = &'a Node>, pending: &'a [Arc<Message>]) -> Vec<PromptExchange<'a>> {
    let committed = path.map(|node| ExchangeEntry { node: Some(node), message: node.message() });
    let in_flight = pending.iter().map(|message| ExchangeEntry { node: None, message });
    let entries: Vec<ExchangeEntry<'_>> = committed.chain(in_flight).collect();
    let first_pending = entries.len() - pending.len();

    let mut exchanges: Vec<PromptExchange<'_>> = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let is_other = |entry: &ExchangeEntry<'_>| entry.message.compaction.is_none();
        let joined = entries.get(first_pending..index).is_some_and(|before| before.iter().any(is_other))
            || has_joined(&entries, index);
        let is_prompt = entry.message.role == Role::User && has_own_content(entry.message) && !joined;
        let id = || ui_id(entry.message, entry.node.map(Node::id));
        match exchanges.last_mut() {
            // The results belong to the previous answer, and the rest of the message is a prompt.
            Some(exchange) if is_prompt && has_results(entry.message) => exchange.rest.push(*entry),
            Some(exchange) if !is_prompt => {
                exchange.rest.push(*entry);
                continue;
            }
            None if !is_other(entry) => continue,
            _ => {}
        }
        let (prompt, rest) = if is_prompt { (Some(*entry), vec![]) } else { (None, vec![*entry]) };
        exchanges.push(PromptExchange { id: id(), prompt, rest });
    }
    exchanges
}

/// Returns whether the message at `index` is a prompt that joined a turn. Such a prompt follows tool results, and the
/// next answer belongs to the turn of these results.
fn has_joined(entries: &[ExchangeEntry<'_>], index: usize) -> bool {
    let turn = |entry: &ExchangeEntry<'_>| entry.message.id.as_ref().and_then(MessageId::turn);
    let is_prompt =
        |entry: &ExchangeEntry<'_>| entry.message.role == Role::User && !has_results(entry.message);
    if !is_prompt(&entries[index]) {
        return false;
    }
    let before = entries[..index].iter().rev().find(|entry| !is_prompt(entry));
    let results = before.filter(|entry| entry.message.role == Role::User).and_then(turn);
    let after = entries[index..].iter().find(|entry| entry.message.role == Role::Assistant);
    results.is_some() && results == after.and_then(turn)
}

//! Histories, and the history law: every tool use is answered exactly once, in the next message, which must be a user
//! message. Every tool result answers a tool use.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    iter::FusedIterator,
    ops::Range,
    sync::Arc,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Blocks, Content, Message, Role, ToolResult, ToolUse, ToolUseId, compaction::check_compaction};
use crate::chunks::{ChunkedList, WIDTH};

/// A sequence of shared messages. Cloning it is O(1) and extending it is amortized O(1), regardless of its length and
/// of the number of clones.
///
/// Clones share all messages that they have in common. Iterators borrow the messages. To get a shorter history, collect
/// the wanted part of an iterator. The new history shares the messages with the original.
///
/// ```
/// use omni_agent::message::{History, Message};
///
/// let mut history = History::from_iter([Message::user("Hello")]);
/// let before = history.clone();
/// history.push(Message::assistant("Hi!"));
/// assert_eq!((before.len(), history.len()), (1, 2));
/// assert_eq!(history.last().map(|message| message.text()), Some("Hi!".to_owned()));
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "schema",
    derive(schemars::JsonSchema),
    schemars(with = "Vec<Message>", description = "The messages of a conversation, in order.")
)]
pub struct History(ChunkedList<Arc<Message>>);

impl History {
    /// Returns an empty history.
    pub const fn new() -> Self {
        Self(ChunkedList::new())
    }

    /// Returns the number of messages.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether the history has no messages.
    pub const fn is_empty(&self) -> bool {
        self.0.len() == 0
    }

    /// Appends a message.
    pub fn push(&mut self, message: impl Into<Arc<Message>>) {
        let message = message.into();
        if message.compaction.is_some() {
            // No history has more messages than a `u32` can count, because a tree has not.
            self.0.mark = u32::try_from(self.len() + 1).unwrap_or_default();
        }
        self.0.push(message);
    }

    /// Returns the message at `index`, counted from 0.
    pub fn get(&self, index: usize) -> Option<&Arc<Message>> {
        self.0.get(index)
    }

    /// Returns the first message.
    pub fn first(&self) -> Option<&Arc<Message>> {
        self.get(0)
    }

    /// Returns the last message.
    pub fn last(&self) -> Option<&Arc<Message>> {
        self.0.last()
    }

    /// Iterates over the messages in order.
    pub fn iter(
        &self,
    ) -> impl DoubleEndedIterator<Item = &Arc<Message>> + ExactSizeIterator + Clone + fmt::Debug {
        self.into_iter()
    }

    /// Returns the index of the last compaction.
    pub(super) fn compaction_index(&self) -> Option<usize> {
        (self.0.mark as usize).checked_sub(1)
    }

    /// Returns whether both histories are identical. Histories are identical if they are clones of the same history and
    /// nothing was pushed since. O(1). Equal histories that were built separately are not identical.
    pub fn same(&self, other: &Self) -> bool {
        self.0.same(&other.0)
    }
}

/// An iterator that borrows the messages of a [`History`].
#[derive(Clone)]
pub struct Iter<'a> {
    history: &'a History,
    /// The leaf of the sequence that contains the next message. If the leaf must be looked up first, this slice is
    /// empty.
    leaf: &'a [Arc<Message>],
    range: Range<usize>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Arc<Message>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.range.next()?;
        if index % WIDTH == 0 || self.leaf.is_empty() {
            self.leaf = self.history.0.leaf(index / WIDTH);
        }
        self.leaf.get(index % WIDTH)
    }

    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        self.leaf = &[];
        self.range.nth(n).and_then(|index| self.history.get(index))
    }

    fn last(mut self) -> Option<Self::Item> {
        self.next_back()
    }

    fn count(self) -> usize {
        self.len()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.range.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl FusedIterator for Iter<'_> {}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.range.next_back().and_then(|index| self.history.get(index))
    }

    fn nth_back(&mut self, n: usize) -> Option<Self::Item> {
        self.range.nth_back(n).and_then(|index| self.history.get(index))
    }
}

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<'a> IntoIterator for &'a History {
    type Item = &'a Arc<Message>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        Iter { history: self, leaf: &[], range: 0..self.len() }
    }
}

impl<M: Into<Arc<Message>>> FromIterator<M> for History {
    fn from_iter<I: IntoIterator<Item = M>>(messages: I) -> Self {
        let mut history = Self::new();
        history.extend(messages);
        history
    }
}

impl<M: Into<Arc<Message>>> Extend<M> for History {
    fn extend<I: IntoIterator<Item = M>>(&mut self, messages: I) {
        messages.into_iter().for_each(|message| self.push(message));
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self).finish()
    }
}

impl Serialize for History {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Arc::as_ref))
    }
}

impl<'de> Deserialize<'de> for History {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HistoryVisitor;

        impl<'de> serde::de::Visitor<'de> for HistoryVisitor {
            type Value = History;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<History, A::Error> {
                let mut history = History::new();
                while let Some(message) = seq.next_element::<Message>()? {
                    history.push(message);
                }
                Ok(history)
            }
        }

        deserializer.deserialize_seq(HistoryVisitor)
    }
}

/// A violation of the [history law](crate::message). Indices count messages from 0.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A tool use has no result in the next message.
    #[error(
        "message {index}: tool use {id:?} is not answered in the next message; answer it with a tool result, or use History::repair"
    )]
    Unanswered {
        /// The index of the assistant message.
        index: usize,
        /// The id of the open tool use.
        id: ToolUseId,
    },
    /// A tool result answers no open tool use, or it answers a tool use that already has a result.
    #[error(
        "message {index}: the tool result for {id:?} answers no open tool use of the message before it; remove it, or use History::repair"
    )]
    OrphanResult {
        /// The index of the message that contains the result.
        index: usize,
        /// The tool use id that the result contains.
        id: ToolUseId,
    },
    /// Two tool uses of one message have the same id.
    #[error("message {index}: two tool uses share the id {id:?}; remove one of them, or use History::repair")]
    DuplicateToolUse {
        /// The index of the assistant message.
        index: usize,
        /// The shared id.
        id: ToolUseId,
    },
    /// A user message contains a tool use, or an assistant message contains a tool result.
    #[error(
        "message {index}: a {block} is not allowed in a message with the role {role}; remove it, or use History::repair"
    )]
    Misplaced {
        /// The index of the message.
        index: usize,
        /// The role of the message.
        role: Role,
        /// The kind of the block.
        block: &'static str,
    },
    /// The history ends in a user message that the assistant has not answered. Such a message is a prompt and must not
    /// be committed.
    #[error(
        "message {index}: the history ends in a user prompt; end it with the answer, or send the prompt with `prompt`"
    )]
    EndsInPrompt {
        /// The index of the last message.
        index: usize,
    },
    /// A compaction can't stand where it is.
    #[error("message {index}: the compaction {problem}; remove it, or use History::repair")]
    Compaction {
        /// The index of the compaction.
        index: usize,
        /// The problem with the compaction.
        problem: &'static str,
    },
}

crate::error::debug_as_chain!(HistoryError);

impl History {
    /// Checks that this history may be committed. The history must obey the [history law](crate::message). Apart from
    /// compactions, it must be empty, end in an assistant message, or end in a user message that answers the open tool
    /// uses. If the last message is from the assistant, its tool uses may be open. O(n).
    ///
    /// # Errors
    ///
    /// Returns an error for the first violation, with its index.
    pub fn check(&self) -> Result<(), HistoryError> {
        self.check_pairs()?;
        match self.iter().enumerate().rev().find(|(_, message)| message.compaction.is_none()) {
            Some((index, last)) if last.is_prompt() => Err(HistoryError::EndsInPrompt { index }),
            _ => Ok(()),
        }
    }

    /// Checks that this history may be sent to a model. Every tool use must be answered exactly once, in the user
    /// message right after it, and every tool result must answer a tool use. O(n).
    ///
    /// # Errors
    ///
    /// Returns an error for the first violation, with its index.
    pub fn check_sendable(&self) -> Result<(), HistoryError> {
        self.check_pairs()?;
        match self.open_tool_uses().next() {
            Some(open) => Err(HistoryError::Unanswered { index: self.len() - 1, id: open.id.clone() }),
            None => Ok(()),
        }
    }

    /// Checks the history law. If the last message is from the assistant, its tool uses may be open.
    pub(crate) fn check_pairs(&self) -> Result<(), HistoryError> {
        let mut check = PathCheck::default();
        self.iter().try_for_each(|message| check.push(message))
    }

    /// Iterates over the open tool uses. These are the tool uses of the last message, if that message is from the
    /// assistant.
    pub fn open_tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.last().into_iter().filter(|last| last.role == Role::Assistant).flat_map(|last| last.tool_uses())
    }

    /// Returns the history that may be sent and that differs least from this history. O(n).
    ///
    /// Misplaced blocks, repeated tool uses and results that answer no tool use are removed. If a message becomes
    /// empty, it is removed too. If several user messages follow a tool use, results in the later user messages move
    /// into the first one. A tool use without a result gets the result that was [decided](ToolUse::decided) for it. If
    /// no result was decided, the tool use gets an error result, which states that no result was given. Everything else
    /// keeps its order, and messages that need no change are shared. A compaction that breaks the law is removed, and if
    /// anything else does, all compactions are.
    ///
    /// If a history may already be sent, it is returned unchanged. Repairing twice therefore has the same effect as
    /// repairing once.
    pub fn repair(&self) -> Self {
        if self.check_sendable().is_ok() {
            return self.clone();
        }
        let lawful = self.with_lawful_compactions();
        if lawful.check_sendable().is_ok() {
            return lawful;
        }
        // It is not certain any more which messages a compaction covers.
        let messages = self.iter().filter(|message| message.compaction.is_none());
        let placed: Vec<Arc<Message>> = messages.filter_map(without_misplaced).collect();
        let mut repaired = Self::new();
        let mut rest = placed.as_slice();
        while !rest.is_empty() {
            let users = rest.iter().position(|message| message.role == Role::Assistant);
            let (answers, after) = rest.split_at(users.unwrap_or(rest.len()));
            let asking = repaired.last().cloned();
            repaired.extend(pair(asking.as_deref(), answers));
            repaired.extend(after.first().cloned());
            rest = after.get(1..).unwrap_or_default();
        }
        let asking = repaired.last().cloned();
        repaired.extend(pair(asking.as_deref(), &[]));
        repaired
    }
}

/// Returns the kind of `block`, if a message of `role` can't contain it.
fn misplaced(role: Role, block: &Content) -> Option<&'static str> {
    match (role, block) {
        (Role::User, Content::ToolUse(_)) => Some("tool use"),
        (Role::Assistant, Content::ToolResult(_)) => Some("tool result"),
        _ => None,
    }
}

/// Returns `message` without the blocks that are invalid regardless of the other messages, or `None` if no block
/// remains.
fn without_misplaced(message: &Arc<Message>) -> Option<Arc<Message>> {
    let mut seen = HashSet::new();
    retain(message, |block| {
        let repeated = matches!(block, Content::ToolUse(tool_use) if !seen.insert(&tool_use.id));
        misplaced(message.role, block).is_none() && !repeated
    })
}

/// Returns `message` with only the blocks that `keep` accepts. If all blocks are accepted, the message itself is
/// returned. If no block is accepted, `None` is returned.
fn retain<'a>(message: &'a Arc<Message>, mut keep: impl FnMut(&'a Content) -> bool) -> Option<Arc<Message>> {
    let kept: Vec<&Content> = message.content.iter().filter(|block| keep(block)).collect();
    if kept.len() == message.content.len() {
        return Some(Arc::clone(message));
    }
    let content: Vec<Content> = kept.into_iter().cloned().collect();
    (!content.is_empty()).then(|| with_content(message, content))
}

fn with_content(message: &Message, content: Vec<Content>) -> Arc<Message> {
    Arc::new(Message {
        role: message.role,
        content,
        timestamp: message.timestamp,
        provider_data: message.provider_data.clone(),
        id: message.id.clone(),
        app_data: message.app_data.clone(),
        ended: message.ended.clone(),
        compaction: message.compaction.clone(),
        context_tokens: message.context_tokens,
    })
}

/// Rewrites the user messages `answers`, which follow `asking`. In the result, the first user message answers each tool
/// use of `asking`, and no user message contains any other results.
fn pair(asking: Option<&Message>, answers: &[Arc<Message>]) -> Vec<Arc<Message>> {
    let asked: Vec<&ToolUse> = asking
        .filter(|asking| asking.role == Role::Assistant)
        .into_iter()
        .flat_map(Message::tool_uses)
        .collect();
    let mut found: HashMap<&ToolUseId, Option<&ToolResult>> =
        asked.iter().map(|tool_use| (&tool_use.id, None)).collect();
    for result in answers.iter().flat_map(|message| message.tool_results()) {
        if let Some(slot @ None) = found.get_mut(&result.tool_use_id) {
            *slot = Some(result);
        }
    }
    let chosen = |result: &ToolResult| {
        found.get(&result.tool_use_id).copied().flatten().is_some_and(|chosen| std::ptr::eq(chosen, result))
    };
    let in_place: HashSet<&ToolUseId> = answers
        .first()
        .into_iter()
        .flat_map(|first| first.tool_results())
        .filter(|result| chosen(result))
        .map(|result| &result.tool_use_id)
        .collect();
    let mut front: Vec<Content> = asked
        .iter()
        .filter(|tool_use| !in_place.contains(&tool_use.id))
        .map(|tool_use| found[&tool_use.id].cloned().unwrap_or_else(|| tool_use.fallback_result()).into())
        .collect();

    let mut paired = Vec::with_capacity(answers.len().max(1));
    for (index, message) in answers.iter().enumerate() {
        let kept = retain(message, |block| match block {
            Content::ToolResult(result) => index == 0 && chosen(result),
            _ => true,
        });
        if index > 0 || front.is_empty() {
            paired.extend(kept);
        } else {
            front.extend(kept.iter().flat_map(|kept| &kept.content).cloned());
            paired.push(with_content(message, std::mem::take(&mut front)));
        }
    }
    if let (Some(asking), false) = (asking, front.is_empty()) {
        // No user message after `asking` could contain the results, so a new message contains them.
        let timestamp = asking.timestamp;
        paired.push(Arc::new(Message { timestamp, ..Message::user(front) }));
    }
    paired
}

/// Checks the history law for the messages of a path one after another. The tool uses of the last message may be open.
/// To check another branch, the last messages are taken back, so that each message of a tree is checked once.
#[derive(Default)]
pub(crate) struct PathCheck<'a> {
    path: Vec<&'a Message>,
    /// The indexes of the messages that are not compactions.
    shown: Vec<usize>,
}

impl<'a> PathCheck<'a> {
    /// Takes back all messages except the first `len`.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.path.truncate(len);
        self.shown.truncate(self.shown.partition_point(|index| *index < len));
    }

    /// Appends a message, if it obeys the law.
    pub(crate) fn push(&mut self, message: &'a Message) -> Result<(), HistoryError> {
        let index = self.path.len();
        check_step(self.path.last().copied(), message, index)?;
        if let Some(compaction) = message.compaction.as_deref() {
            let first_shown = |start| {
                let first = self.shown.get(self.shown.partition_point(|index| *index < start))?;
                self.path.get(*first).copied()
            };
            check_compaction(compaction, message, index, first_shown)?;
        } else {
            self.shown.push(index);
        }
        self.path.push(message);
        Ok(())
    }
}

#[cfg(test)]
thread_local! {
    /// The number of messages that this thread has checked.
    pub(crate) static CHECKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Checks the history law for the message at `index`, which follows the message `before`. The tool uses of the checked
/// message may be open.
pub(crate) fn check_step(
    before: Option<&Message>,
    message: &Message,
    index: usize,
) -> Result<(), HistoryError> {
    #[cfg(test)]
    CHECKED.set(CHECKED.get() + 1);
    let role = message.role;
    if let Some(block) = message.content.iter().find_map(|block| misplaced(role, block)) {
        return Err(HistoryError::Misplaced { index, role, block });
    }
    let asked = || before.into_iter().flat_map(Message::tool_uses).map(|tool_use| &tool_use.id);
    let mut open: HashSet<&ToolUseId> = asked().collect();
    for result in message.tool_results() {
        if !open.remove(&result.tool_use_id) {
            return Err(HistoryError::OrphanResult { index, id: result.tool_use_id.clone() });
        }
    }
    if let Some(unanswered) = asked().find(|id| open.contains(id)) {
        return Err(HistoryError::Unanswered { index: index.saturating_sub(1), id: unanswered.clone() });
    }
    for tool_use in message.tool_uses() {
        if !open.insert(&tool_use.id) {
            return Err(HistoryError::DuplicateToolUse { index, id: tool_use.id.clone() });
        }
    }
    Ok(())
}

/// Returns the content of a user message that follows `history`. It consists of a result for every open tool use, in
/// the order of the tool uses, and then the rest of `content`. A tool use for which a result was decided gets this
/// result, also if `content` contains another one. If there is neither, the tool use gets an error result.
///
/// # Errors
///
/// Fails if `content` contains a tool use, or a result that answers no open tool use.
pub(crate) fn answer_open_tool_uses(
    history: &History,
    content: Blocks,
) -> Result<Vec<Content>, HistoryError> {
    let is_plain = |block: &Content| !matches!(block, Content::ToolUse(_) | Content::ToolResult(_));
    if history.open_tool_uses().next().is_none()
        && content.0.iter().all(|block| is_plain(block) && misplaced(Role::User, block).is_none())
    {
        return Ok(content.0);
    }
    let index = history.len();
    let mut answers: HashMap<&ToolUseId, Option<ToolResult>> =
        history.open_tool_uses().map(|tool_use| (&tool_use.id, None)).collect();
    let mut rest = Vec::new();
    for block in content.0 {
        if let Some(block) = misplaced(Role::User, &block) {
            return Err(HistoryError::Misplaced { index, role: Role::User, block });
        }
        match block {
            Content::ToolResult(result) => match answers.get_mut(&result.tool_use_id) {
                // Only the agent states how a tool use was decided.
                Some(slot @ None) => *slot = Some(ToolResult { decision: None, ..result }),
                _ => return Err(HistoryError::OrphanResult { index, id: result.tool_use_id }),
            },
            other => rest.push(other),
        }
    }
    let results = history.open_tool_uses().map(|tool_use| {
        let given = answers.remove(&tool_use.id).flatten().filter(|_| tool_use.decided.is_none());
        given.unwrap_or_else(|| tool_use.fallback_result()).into()
    });
    Ok(results.chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};
    use serde_json::json;

    use super::*;

    fn asking(ids: &[&str]) -> History {
        let uses: Vec<ToolUse> = ids.iter().map(|id| ToolUse::new(*id, "tool", json!({}))).collect();
        History::from_iter([Message::assistant(uses)])
    }

    fn result(id: &str) -> Content {
        ToolResult::ok(&ToolUse::new(id, "tool", json!({})), "done").into()
    }

    #[test]
    fn answer_open_tool_uses_puts_results_in_front_in_their_order() {
        let blocks = Blocks::from(["and".into(), result("c"), result("a"), "so".into()]);
        let content = answer_open_tool_uses(&asking(&["a", "b", "c"]), blocks).unwrap();
        let missing = ToolUse::new("b", "tool", json!({})).fallback_result();
        assert!(missing.is_error);
        assert_eq!(content, [result("a"), missing.into(), result("c"), "and".into(), "so".into()]);
    }

    #[test]
    fn answer_open_tool_uses_without_open_ones_keeps_the_content() {
        let history = History::from_iter([Message::assistant("hi")]);
        assert_eq!(answer_open_tool_uses(&history, "ho".into()), Ok(vec!["ho".into()]));
        assert_eq!(answer_open_tool_uses(&History::new(), Blocks::default()), Ok(vec![]));
    }

    #[test]
    fn answer_open_tool_uses_rejects_content_that_breaks_the_law() {
        let history = asking(&["a"]);
        let orphan = |id: &str| Err(HistoryError::OrphanResult { index: 1, id: id.into() });
        assert_eq!(answer_open_tool_uses(&history, result("x").into()), orphan("x"));
        assert_eq!(answer_open_tool_uses(&history, [result("a"), result("a")].into()), orphan("a"));
        let misplaced = HistoryError::Misplaced { index: 1, role: Role::User, block: "tool use" };
        let tool_use = ToolUse::new("b", "tool", json!({}));
        assert_eq!(answer_open_tool_uses(&history, tool_use.into()), Err(misplaced));
    }

    #[test]
    fn repair_answers_an_open_tool_use_with_its_decided_result() {
        let mut tool_use = ToolUse::new("a", "tool", json!({}));
        tool_use.decided = Some(Box::new(ToolResult::error(&ToolUse::new("x", "y", json!({})), "No.")));
        let repaired = History::from_iter([Message::assistant(tool_use.clone())]).repair();
        let results: Vec<_> = repaired.get(1).unwrap().tool_results().cloned().collect();
        assert_eq!(results, [ToolResult::error(&tool_use, "No.")]);
    }

    #[test]
    fn answer_open_tool_uses_keeps_a_decided_result() {
        let mut tool_use = ToolUse::new("a", "tool", json!({}));
        tool_use.decided = Some(Box::new(ToolResult::error(&tool_use, "No.")));
        let decided = tool_use.fallback_result();
        let history = History::from_iter([Message::assistant(tool_use)]);
        assert_eq!(answer_open_tool_uses(&history, result("a").into()), Ok(vec![decided.into()]));
    }

    proptest! {
        #[test]
        fn answer_open_tool_uses_returns_a_sendable_history(
            count in 0usize..4,
            blocks in vec(proptest::option::of(0usize..5), 0..6),
        ) {
            const IDS: [&str; 5] = ["a", "b", "c", "d", "e"];
            let mut history = asking(&IDS[..count]);
            let blocks: Vec<Content> =
                blocks.iter().map(|id| id.map_or_else(|| "text".into(), |id| result(IDS[id]))).collect();
            let ids = |blocks: &[Content]| Message::user(blocks.to_vec())
                .tool_results().map(|result| result.tool_use_id.clone()).collect::<Vec<_>>();
            let given = ids(&blocks);
            let distinct: HashSet<_> = given.iter().collect();
            let lawful = distinct.len() == given.len()
                && given.iter().all(|id| IDS[..count].contains(&id.as_str()));
            let answer = answer_open_tool_uses(&history, blocks.into());
            prop_assert_eq!(answer.is_ok(), lawful);
            if let Ok(content) = answer {
                history.push(Message::user(content));
                prop_assert_eq!(history.check_sendable(), Ok(()));
            }
        }
    }
}

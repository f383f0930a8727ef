//! The history law: every tool use is answered exactly once, in the user message right after it, and no
//! tool result lacks its tool use.

use std::sync::Arc;

use super::{Blocks, Content, History, Message, Role, ToolResult, ToolUse, ToolUseId};

/// How a history breaks the law. Indices count messages from 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A tool use has no result in the message right after it.
    #[error(
        "message {index}: tool use {id} is not answered in the next message; answer it with a tool result, or use History::repair"
    )]
    Unanswered {
        /// The assistant message.
        index: usize,
        /// The open tool use.
        id: ToolUseId,
    },
    /// A tool result answers no open tool use, or one that is answered already.
    #[error("message {index}: the tool result for {id} answers no open tool use of the message before it")]
    OrphanResult {
        /// The message that holds the result.
        index: usize,
        /// The id that it names.
        id: ToolUseId,
    },
    /// Two tool uses of one message share an id.
    #[error("message {index}: two tool uses share the id {id}")]
    DuplicateToolUse {
        /// The assistant message.
        index: usize,
        /// The shared id.
        id: ToolUseId,
    },
    /// A tool use in a user message, or a tool result in an assistant message.
    #[error("message {index}: a {role:?} message can't hold a {block}")]
    Misplaced {
        /// The message.
        index: usize,
        /// Its role.
        role: Role,
        /// The kind of block.
        block: &'static str,
    },
    /// The history ends in a user message that no assistant answered: a prompt, not a commit.
    #[error(
        "message {index}: the history ends in a user prompt; end it with the answer, or send the prompt with `prompt`"
    )]
    EndsInPrompt {
        /// The last message.
        index: usize,
    },
}

impl History {
    /// Checks that this history may be committed: it obeys the law and is empty, or ends in an assistant
    /// message, or in a user message that closes the open tool uses. Tool uses of a last assistant message
    /// may be open. O(n).
    ///
    /// # Errors
    ///
    /// The first breach, with its place.
    pub fn check(&self) -> Result<(), HistoryError> {
        self.check_pairs()?;
        match self.last() {
            Some(last) if last.role == Role::User && last.tool_results().next().is_none() => {
                Err(HistoryError::EndsInPrompt { index: self.len() - 1 })
            }
            _ => Ok(()),
        }
    }

    /// Checks that this history may be sent to a model: every tool use is answered exactly once in the user
    /// message right after it, and no tool result lacks its tool use. O(n).
    ///
    /// # Errors
    ///
    /// The first breach, with its place.
    pub fn check_sendable(&self) -> Result<(), HistoryError> {
        self.check_pairs()?;
        match self.open_tool_uses().next() {
            Some(open) => Err(HistoryError::Unanswered { index: self.len() - 1, id: open.id.clone() }),
            None => Ok(()),
        }
    }

    /// The law for all but the tool uses of a last assistant message.
    pub(crate) fn check_pairs(&self) -> Result<(), HistoryError> {
        let mut open: Vec<&ToolUseId> = Vec::new();
        for (index, message) in self.iter().enumerate() {
            match message.role {
                Role::User => {
                    if message.tool_uses().next().is_some() {
                        return Err(HistoryError::Misplaced { index, role: Role::User, block: "tool use" });
                    }
                    for result in message.tool_results() {
                        let Some(answered) = open.iter().position(|id| **id == result.tool_use_id) else {
                            return Err(HistoryError::OrphanResult { index, id: result.tool_use_id.clone() });
                        };
                        open.remove(answered);
                    }
                }
                Role::Assistant => {
                    if message.tool_results().next().is_some() {
                        let role = Role::Assistant;
                        return Err(HistoryError::Misplaced { index, role, block: "tool result" });
                    }
                }
            }
            if let Some(id) = open.first() {
                return Err(HistoryError::Unanswered { index: index - 1, id: (*id).clone() });
            }
            for tool_use in message.tool_uses() {
                if open.contains(&&tool_use.id) {
                    return Err(HistoryError::DuplicateToolUse { index, id: tool_use.id.clone() });
                }
                open.push(&tool_use.id);
            }
        }
        Ok(())
    }

    /// The tool uses that wait for an answer: those of the last message, if the assistant wrote it.
    pub fn open_tool_uses(&self) -> impl Iterator<Item = &ToolUse> {
        self.last().into_iter().filter(|last| last.role == Role::Assistant).flat_map(|last| last.tool_uses())
    }

    /// The nearest sendable history: misplaced, duplicate and orphaned blocks are dropped, and tool uses
    /// without an answer get an error result that says so. A history that is sendable comes back as it is,
    /// sharing all its messages; running it twice changes nothing more. O(n).
    pub fn repair(&self) -> Self {
        if self.check_sendable().is_ok() {
            return self.clone();
        }
        let mut repaired = Self::new();
        let mut open: Vec<ToolUse> = Vec::new();
        for message in self {
            if message.role == Role::Assistant && !open.is_empty() {
                let results = fill(std::mem::take(&mut open), Vec::new());
                repaired.push(answer(results, message.timestamp));
            }
            let fixed = match message.role {
                Role::User => repair_user(message, &mut open),
                Role::Assistant => repair_assistant(message, &mut open),
            };
            if !fixed.content.is_empty() || message.content.is_empty() {
                repaired.push(if *fixed == **message { Arc::clone(message) } else { fixed });
            }
        }
        if !open.is_empty() {
            let timestamp = self.last().map(|last| last.timestamp).unwrap_or_default();
            repaired.push(answer(fill(open, Vec::new()), timestamp));
        }
        repaired
    }
}

fn repair_user(message: &Message, open: &mut Vec<ToolUse>) -> Arc<Message> {
    let mut given: Vec<ToolResult> = Vec::new();
    let mut rest = Vec::new();
    for block in &message.content {
        match block {
            Content::ToolUse(_) => {}
            Content::ToolResult(result) => {
                let known = open.iter().any(|tool_use| tool_use.id == result.tool_use_id);
                if known && !given.iter().any(|other| other.tool_use_id == result.tool_use_id) {
                    given.push(result.clone());
                }
            }
            other => rest.push(other.clone()),
        }
    }
    let mut content = fill(std::mem::take(open), given);
    content.append(&mut rest);
    Arc::new(Message { content, ..message.clone() })
}

fn repair_assistant(message: &Message, open: &mut Vec<ToolUse>) -> Arc<Message> {
    let mut content = Vec::with_capacity(message.content.len());
    for block in &message.content {
        match block {
            Content::ToolResult(_) => {}
            Content::ToolUse(tool_use) => {
                if !open.iter().any(|other| other.id == tool_use.id) {
                    open.push(tool_use.clone());
                    content.push(block.clone());
                }
            }
            other => content.push(other.clone()),
        }
    }
    Arc::new(Message { content, ..message.clone() })
}

fn answer(content: Vec<Content>, timestamp: super::Timestamp) -> Message {
    Message { timestamp, ..Message::user(content) }
}

/// One result for each of `open`, in their order: the one in `given`, else an error that says it is missing.
fn fill(open: Vec<ToolUse>, mut given: Vec<ToolResult>) -> Vec<Content> {
    open.into_iter()
        .map(|tool_use| {
            let found = given.iter().position(|result| result.tool_use_id == tool_use.id);
            let result = found.map(|index| given.swap_remove(index));
            result.unwrap_or_else(|| ToolResult::error(&tool_use, NO_RESULT)).into()
        })
        .collect()
}

const NO_RESULT: &str = "No result: the tool was not run and the application sent none.";

/// The content of a user message that follows `history`: `content`, with a result for every open tool use in
/// front, in their order; those that `content` does not answer become error results.
///
/// # Errors
///
/// `content` holds a tool use, or a result that answers nothing.
pub(crate) fn answer_open_tool_uses(
    history: &History,
    content: Blocks,
) -> Result<Vec<Content>, HistoryError> {
    let index = history.len();
    let mut open: Vec<ToolUse> = history.open_tool_uses().cloned().collect();
    let mut given = Vec::new();
    let mut rest = Vec::new();
    for block in content.0 {
        match block {
            Content::ToolUse(_) => {
                return Err(HistoryError::Misplaced { index, role: Role::User, block: "tool use" });
            }
            Content::ToolResult(result) => {
                let id = &result.tool_use_id;
                let known = open.iter().any(|tool_use| tool_use.id == *id);
                if !known || given.iter().any(|other: &ToolResult| other.tool_use_id == *id) {
                    return Err(HistoryError::OrphanResult { index, id: id.clone() });
                }
                given.push(result);
            }
            other => rest.push(other),
        }
    }
    let mut content = fill(std::mem::take(&mut open), given);
    content.append(&mut rest);
    Ok(content)
}

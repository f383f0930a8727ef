//! The blocks of the answer that is being streamed.

use std::collections::{BTreeMap, HashSet};

use super::{Frame, RunStream, block_id};
use crate::{
    agent::Event,
    message::{Content, MessageId, ToolUseId},
    text::start,
};

use super::super::{
    FILE,
    frame::ChatMessage,
    messages::{MAX_TEXT, Messages, arguments},
};

/// A block that is open on the client's side.
#[derive(Clone, Debug, PartialEq)]
enum Open {
    Text(String),
    Reasoning(String),
    ToolCall(String),
}

/// The blocks of an answer that the client has seen.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: BTreeMap<usize, Open>,
    /// The blocks whose content was sent, at least in part.
    sent: HashSet<usize>,
    /// The ids of the messages and tool calls that were sent.
    shown: HashSet<String>,
    /// The index of the last tool use, and the index of the first tool use in the uninterrupted series that ends with
    /// it.
    tools: Option<(usize, usize)>,
}

impl Blocks {
    /// Prepares for the next answer.
    pub(super) fn begin(&mut self) {
        *self = Self::default();
    }

    /// Returns whether the client has seen a part of the answer.
    pub(super) fn has_shown(&self) -> bool {
        !self.shown.is_empty()
    }

    /// Returns whether the client has seen exactly these messages of the answer.
    pub(super) fn are_of(&self, messages: &[ChatMessage]) -> bool {
        let ids = messages.iter().flat_map(ids).collect::<HashSet<_>>();
        ids.len() == self.shown.len() && ids.iter().all(|id| self.shown.contains(*id))
    }

    /// Returns whether the client has seen all of these messages of the answer.
    pub(super) fn include(&self, messages: &[ChatMessage]) -> bool {
        messages.iter().flat_map(ids).all(|id| self.shown.contains(id))
    }

    /// Closes all blocks.
    pub(super) fn close(&mut self, out: &mut Vec<Frame>) {
        for block in std::mem::take(&mut self.open).into_values() {
            end(block, out);
        }
    }

    fn close_one(&mut self, index: usize, out: &mut Vec<Frame>) {
        if let Some(block) = self.open.remove(&index) {
            end(block, out);
        }
    }

    /// Sends a piece of a block's text, or of a tool call's input. A text or reasoning block is opened before its first
    /// piece, and never opened without text.
    fn append(&mut self, index: usize, block: &Open, delta: &str, out: &mut Vec<Frame>) {
        if delta.is_empty() {
            return;
        }
        if !self.open.contains_key(&index) {
            self.open(index, block.clone(), out);
        }
        self.sent.insert(index);
        for piece in pieces(delta) {
            out.push(match block {
                Open::Text(id) => Frame::TextMessageContent { message_id: id.clone(), delta: piece },
                Open::Reasoning(id) => {
                    Frame::ReasoningMessageContent { message_id: id.clone(), delta: piece }
                }
                Open::ToolCall(id) => Frame::ToolCallArgs { tool_call_id: id.clone(), delta: piece },
            });
        }
    }

    fn open(&mut self, index: usize, block: Open, out: &mut Vec<Frame>) {
        match &block {
            Open::Text(id) => {
                self.shown.insert(id.clone());
                out.push(Frame::TextMessageStart { message_id: id.clone(), role: "assistant" });
            }
            Open::Reasoning(id) => {
                self.shown.insert(id.clone());
                out.push(Frame::ReasoningStart { message_id: id.clone() });
                out.push(Frame::ReasoningMessageStart { message_id: id.clone(), role: "reasoning" });
            }
            Open::ToolCall(_) => {}
        }
        self.open.insert(index, block);
    }

    fn open_tool_call(
        &mut self,
        answer: &MessageId,
        index: usize,
        id: &ToolUseId,
        name: &str,
        out: &mut Vec<Frame>,
    ) {
        let first = self.first_tool_use(index);
        let parent_message_id = block_id(answer, first);
        self.shown.insert(parent_message_id.clone());
        self.shown.insert(id.to_string());
        out.push(Frame::ToolCallStart {
            tool_call_id: id.to_string(),
            tool_call_name: name.to_owned(),
            parent_message_id,
        });
        self.open.insert(index, Open::ToolCall(id.to_string()));
    }

    /// Returns the index of the first tool use in the uninterrupted series that ends with the tool use at `index`.
    fn first_tool_use(&mut self, index: usize) -> usize {
        let first = match self.tools {
            Some((last, first)) if last + 1 == index => first,
            _ => index,
        };
        self.tools = Some((index, first));
        first
    }
}

fn ids(message: &ChatMessage) -> impl Iterator<Item = &str> {
    let calls = message.tool_calls().iter().map(|call| call.id.as_str());
    std::iter::once(message.id()).chain(calls)
}

fn end(block: Open, out: &mut Vec<Frame>) {
    match block {
        Open::Text(id) => out.push(Frame::TextMessageEnd { message_id: id }),
        Open::Reasoning(id) => {
            out.push(Frame::ReasoningMessageEnd { message_id: id.clone() });
            out.push(Frame::ReasoningEnd { message_id: id });
        }
        Open::ToolCall(id) => out.push(Frame::ToolCallEnd { tool_call_id: id }),
    }
}

/// Returns the text in pieces that fit into a frame.
fn pieces(mut text: &str) -> impl Iterator<Item = String> {
    std::iter::from_fn(move || {
        let piece = start(text, MAX_TEXT);
        text = &text[piece.len()..];
        (!piece.is_empty()).then(|| piece.to_owned())
    })
}

impl RunStream {
    /// Opens the step and the blocks that are being streamed, for a client that already has their content so far.
    pub(super) fn reopen(&mut self) {
        let agent = &self.view.agent;
        let Some(answer) = agent.answer.clone() else { return };
        let mut messages = Messages::new(self.run.level, &self.run.files);
        messages.push_partial(&answer, &agent.partial);
        self.blocks.shown = messages.into_list().iter().flat_map(ids).map(str::to_owned).collect();
        self.open_step(self.view.agent.step);
        for (index, block) in self.view.agent.partial.iter().enumerate() {
            let id = block_id(&answer, index);
            let has_content = match &block.content {
                Content::Text(text) => !text.text.is_empty(),
                Content::Thinking(thinking) => !thinking.text.is_empty(),
                Content::ToolUse(_) => !block.input.is_empty(),
                _ => continue,
            };
            if has_content || block.ended {
                self.blocks.sent.insert(index);
            }
            match &block.content {
                Content::ToolUse(_) if block.ended => {
                    self.blocks.first_tool_use(index);
                }
                Content::ToolUse(tool_use) => {
                    self.blocks.open_tool_call(&answer, index, &tool_use.id, &tool_use.name, &mut self.out);
                }
                _ if block.ended || !has_content => {}
                Content::Text(_) => self.blocks.open(index, Open::Text(id), &mut self.out),
                _ => self.blocks.open(index, Open::Reasoning(id), &mut self.out),
            }
        }
    }

    pub(super) fn block_event(&mut self, event: &Event) {
        let Some(answer) = &self.view.agent.answer else { return };
        let (blocks, out) = (&mut self.blocks, &mut self.out);
        let text = |index| Open::Text(block_id(answer, index));
        let reasoning = |index| Open::Reasoning(block_id(answer, index));
        match event {
            Event::TextDelta { index, delta } => blocks.append(*index, &text(*index), delta, out),
            Event::TextEnd { index, content } => {
                if !blocks.sent.contains(index) {
                    blocks.append(*index, &text(*index), &content.text, out);
                }
                blocks.close_one(*index, out);
            }
            Event::ThinkingDelta { index, delta } => blocks.append(*index, &reasoning(*index), delta, out),
            Event::ThinkingEnd { index, content } => {
                if !blocks.sent.contains(index) {
                    blocks.append(*index, &reasoning(*index), &content.text, out);
                }
                blocks.close_one(*index, out);
            }
            Event::ToolUseStart { index, id, name } => blocks.open_tool_call(answer, *index, id, name, out),
            Event::ToolUseDelta { index, delta } => {
                if let Some(block) = blocks.open.get(index).cloned() {
                    blocks.append(*index, &block, delta, out);
                }
            }
            Event::ToolUseEnd { index, content } => {
                if let Some(block) = blocks.open.get(index).cloned()
                    && !blocks.sent.contains(index)
                {
                    blocks.append(*index, &block, &arguments(content), out);
                }
                blocks.close_one(*index, out);
            }
            Event::Attachment { index, content } => {
                let message = answer.to_string();
                let message_id = block_id(&message, *index);
                blocks.shown.insert(message_id.clone());
                out.push(Frame::ActivitySnapshot {
                    message_id,
                    activity_type: FILE,
                    content: self.run.files.activity(content, &message, *index),
                    replace: true,
                });
            }
            _ => {}
        }
    }
}

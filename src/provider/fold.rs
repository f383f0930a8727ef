use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{BlockStart, Delta, ErrorKind, MessageDelta, Part, ProviderError, StopReason};
use crate::message::{Content, Message, Role, Text, Thinking, Timestamp, ToolUse, Usage};

/// Folds [`Delta`]s into a message. Pure, and used by everyone who reads an answer; each delta costs what it
/// carries, not what came before.
///
/// ```
/// use omni_agent::message::Timestamp;
/// use omni_agent::provider::{BlockStart, Delta, Fold, Part, StopReason};
///
/// let mut fold = Fold::default();
/// fold.apply(Delta::Start { index: 0, block: BlockStart::Text })?;
/// fold.apply(Delta::Extend { index: 0, part: Part::Text("Hel".into()) })?;
/// fold.apply(Delta::Extend { index: 0, part: Part::Text("lo".into()) })?;
/// fold.apply(Delta::stop(StopReason::Stop))?;
/// assert_eq!(fold.finish(Timestamp::now())?.message.text(), "Hello");
/// # Ok::<(), omni_agent::provider::ProviderError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Fold {
    blocks: Vec<PartialBlock>,
    message: MessageDelta,
    weight: usize,
}

/// A block that may still grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartialBlock {
    /// The block so far. A tool use's input is an empty object until the message is finished.
    pub content: Content,
    /// The JSON text of a tool use's input so far.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// Whether it is complete.
    pub ended: bool,
}

/// A whole answer.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Folded {
    /// The assistant message.
    pub message: Message,
    /// Why it ended.
    pub stop_reason: StopReason,
    /// What it used.
    pub usage: Usage,
    /// The model that answered, as the service names it.
    pub model: Option<String>,
    /// What was asked for and could not be honoured.
    pub warnings: Vec<String>,
}

impl Fold {
    /// Bytes that one message may grow to; an endless answer is an error, not memory.
    pub const LIMIT: usize = 64 * 1024 * 1024;
    /// Blocks that one message may have.
    pub const MAX_BLOCKS: usize = 4096;

    /// The blocks so far.
    pub fn blocks(&self) -> &[PartialBlock] {
        &self.blocks
    }

    /// The message data so far.
    pub fn message(&self) -> &MessageDelta {
        &self.message
    }

    /// The usage told so far.
    pub fn usage(&self) -> Usage {
        self.message.usage.unwrap_or_default()
    }

    /// Takes one delta in.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Decoding`] if the delta does not fit: a block out of order, a part for another kind of
    /// block or for one that has ended, or more than the limits allow. The fold is as it was before.
    pub fn apply(&mut self, delta: Delta) -> Result<(), ProviderError> {
        match delta {
            Delta::Start { index, block } => self.start(index, block),
            Delta::Extend { index, part } => self.extend(index, part),
            Delta::End { index } => {
                let block = self.open_block(index)?;
                block.ended = true;
                Ok(())
            }
            Delta::Message(data) => {
                self.merge(*data);
                Ok(())
            }
        }
    }

    fn start(&mut self, index: usize, block: BlockStart) -> Result<(), ProviderError> {
        if index != self.blocks.len() || index >= Self::MAX_BLOCKS {
            let blocks = self.blocks.len();
            return Err(bad(format!("block {index} started after {blocks} blocks")));
        }
        let ended = matches!(block, BlockStart::Attachment(_));
        let content: Content = match block {
            BlockStart::Text => Text::default().into(),
            BlockStart::Thinking => Thinking::default().into(),
            BlockStart::ToolUse { id, name } => ToolUse::new(id, name, Value::Object(Map::new())).into(),
            BlockStart::Attachment(attachment) => attachment.into(),
            BlockStart::ProviderItem(item) => item.into(),
        };
        self.grow(content.weight())?;
        self.blocks.push(PartialBlock { content, input: String::new(), ended });
        Ok(())
    }

    fn extend(&mut self, index: usize, part: Part) -> Result<(), ProviderError> {
        let size = match &part {
            Part::Text(text) | Part::Input(text) | Part::Signature(text) | Part::Redacted(text) => text.len(),
            Part::Item(data) => crate::message::value_weight(data),
        };
        self.grow(size)?;
        let block = self.open_block(index)?;
        match (&mut block.content, part) {
            (Content::Text(block), Part::Text(text)) => append(&mut block.text, text),
            (Content::Thinking(block), Part::Text(text)) => append(&mut block.text, text),
            (Content::ToolUse(_), Part::Input(text)) => append(&mut block.input, text),
            (Content::Text(Text { signature, .. }), Part::Signature(text))
            | (Content::Thinking(Thinking { signature, .. }), Part::Signature(text))
            | (Content::ToolUse(ToolUse { signature, .. }), Part::Signature(text)) => {
                append(signature.get_or_insert_default(), text);
            }
            (Content::Thinking(block), Part::Redacted(text)) => {
                append(block.redacted.get_or_insert_default(), text)
            }
            (Content::ProviderItem(item), Part::Item(data)) => item.data = data,
            (_, part) => return Err(bad(format!("block {index} can't take {part:?}"))),
        }
        Ok(())
    }

    fn open_block(&mut self, index: usize) -> Result<&mut PartialBlock, ProviderError> {
        match self.blocks.get_mut(index) {
            Some(block) if !block.ended => Ok(block),
            Some(_) => Err(bad(format!("block {index} has ended already"))),
            None => Err(bad(format!("block {index} has not started"))),
        }
    }

    fn merge(&mut self, data: MessageDelta) {
        let MessageDelta { model, stop_reason, usage, provider_data, warnings } = data;
        let message = &mut self.message;
        message.model = model.or(message.model.take());
        message.stop_reason = stop_reason.or(message.stop_reason.take());
        message.usage = usage.or(message.usage);
        message.provider_data.extend(provider_data);
        message.warnings.extend(warnings);
    }

    fn grow(&mut self, by: usize) -> Result<(), ProviderError> {
        let weight = self.weight.saturating_add(by);
        if weight > Self::LIMIT {
            return Err(bad(format!("the answer is longer than {} bytes", Self::LIMIT)));
        }
        self.weight = weight;
        Ok(())
    }

    /// The whole message, made at `now`.
    ///
    /// A tool use whose input is no JSON object gets an empty one, with the raw text beside it. Tool uses
    /// that share an id, or have none, get distinct ones.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Truncated`] if no stop reason was told.
    pub fn finish(self, now: Timestamp) -> Result<Folded, ProviderError> {
        let MessageDelta { model, stop_reason, usage, provider_data, warnings } = self.message;
        let Some(stop_reason) = stop_reason else {
            return Err(ProviderError::new(
                ErrorKind::Truncated,
                "the stream ended without saying why the answer ended",
            ));
        };
        let cut = matches!(stop_reason, StopReason::Length | StopReason::ContextLength);
        let last = self.blocks.len().saturating_sub(1);
        let mut content: Vec<Content> = Vec::with_capacity(self.blocks.len());
        for (index, block) in self.blocks.into_iter().enumerate() {
            let may_be_cut = cut && index == last && !block.ended;
            content.push(block.finish(may_be_cut));
        }
        separate_ids(&mut content);
        let message = Message { role: Role::Assistant, content, timestamp: now, provider_data };
        Ok(Folded { message, stop_reason, usage: usage.unwrap_or_default(), model, warnings })
    }

    /// The message as far as it came, cut off at `now`, for those who are told what was discarded.
    pub fn cut(self, now: Timestamp) -> Message {
        let content = self.blocks.into_iter().map(|block| block.finish(true)).collect();
        let provider_data = self.message.provider_data;
        Message { role: Role::Assistant, content, timestamp: now, provider_data }
    }

    /// What can be kept of an answer that was cut off at `now`: text, signed thinking, opaque items, and tool
    /// uses whose input is complete. `None` if nothing of it could stand as a message.
    pub fn salvage(self, now: Timestamp) -> Option<Message> {
        let mut content: Vec<Content> = self
            .blocks
            .into_iter()
            .filter(PartialBlock::can_be_kept)
            .map(|block| block.finish(false))
            .collect();
        separate_ids(&mut content);
        let stands = content.iter().any(|block| !matches!(block, Content::Thinking(_)));
        let provider_data = self.message.provider_data;
        stands.then_some(Message { role: Role::Assistant, content, timestamp: now, provider_data })
    }
}

impl PartialBlock {
    /// Whether the block can stand as it is, were the answer cut off here.
    pub(crate) fn can_be_kept(&self) -> bool {
        match &self.content {
            Content::Text(text) => !text.text.trim().is_empty(),
            Content::Thinking(thinking) => {
                thinking.is_signed() && (self.ended || thinking.redacted.is_some())
            }
            // Nothing can follow a whole JSON object, so one that parses is complete.
            Content::ToolUse(_) => {
                (self.ended && self.input.trim().is_empty())
                    || serde_json::from_str::<Map<String, Value>>(&self.input).is_ok()
            }
            _ => true,
        }
    }

    /// The block as it would be were it complete now.
    pub(crate) fn finish(self, may_be_cut: bool) -> Content {
        let Content::ToolUse(mut tool_use) = self.content else {
            return self.content;
        };
        if self.input.trim().is_empty() && !may_be_cut {
            return tool_use.into();
        }
        match serde_json::from_str::<Map<String, Value>>(&self.input) {
            Ok(input) => tool_use.input = Value::Object(input),
            Err(_) => tool_use.malformed = Some(self.input),
        }
        tool_use.into()
    }
}

/// Gives tool uses that share an id, or have none, ids of their own.
fn separate_ids(content: &mut [Content]) {
    for index in 0..content.len() {
        let (before, rest) = content.split_at_mut(index);
        let Some(Content::ToolUse(tool_use)) = rest.first_mut() else {
            continue;
        };
        let taken = |id: &str| {
            before.iter().any(|block| matches!(block, Content::ToolUse(other) if other.id.as_str() == id))
        };
        if tool_use.id.as_str().is_empty() || taken(tool_use.id.as_str()) {
            let stem = if tool_use.id.as_str().is_empty() { "call" } else { tool_use.id.as_str() };
            let free = (index..).map(|n| format!("{stem}_{n}")).find(|id| !taken(id));
            tool_use.id = free.unwrap_or_default().into();
        }
    }
}

/// Appends without a copy where there is nothing yet.
fn append(to: &mut String, text: String) {
    if to.is_empty() {
        *to = text;
    } else {
        to.push_str(&text);
    }
}

fn bad(message: String) -> ProviderError {
    ProviderError::new(ErrorKind::Decoding, message)
}

use std::{borrow::Borrow, collections::HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{BlockStart, Delta, MessageDelta, Part, ProviderError, ProviderErrorKind, StopReason};
use crate::{
    json::{MAX_LEVELS, is_shallow, parse_strictly},
    message::{
        Content, Message, Role, Text, Thinking, Timestamp, ToolUse, ToolUseId, Usage, member_weight,
        value_weight,
    },
};

/// Folds [`Delta`]s into a message, without I/O. The time to apply a delta depends only on the delta, and not on the
/// size of the message so far.
///
/// An unfinished fold can be stored and continued later.
///
/// ```
/// use omni_agent::message::Timestamp;
/// use omni_agent::provider::{
///     StopReason,
///     custom::{BlockStart, Delta, Part},
/// };
/// use omni_agent::testing::internals::Fold;
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
#[serde(from = "StoredFold")]
pub struct Fold {
    blocks: Vec<PartialBlock>,
    message: MessageDelta,
    /// The weight (the approximate size in bytes) of the blocks and the message data together.
    #[serde(skip)]
    weight: usize,
    /// The ids of the tool uses in `blocks`.
    #[serde(skip)]
    ids: HashSet<ToolUseId>,
}

/// The stored form of a fold. It does not contain the derived values.
#[derive(Deserialize)]
struct StoredFold {
    blocks: Vec<PartialBlock>,
    message: MessageDelta,
}

impl From<StoredFold> for Fold {
    fn from(StoredFold { blocks, message }: StoredFold) -> Self {
        let weight = blocks.iter().map(PartialBlock::weight).sum::<usize>() + message.weight();
        let ids = blocks.iter().filter_map(|block| match &block.content {
            Content::ToolUse(tool_use) => Some(tool_use.id.clone()),
            _ => None,
        });
        Self { ids: ids.collect(), blocks, message, weight }
    }
}

/// The complete response to a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Completion {
    /// The assistant message.
    pub message: Message,
    /// The reason why the response ended.
    pub stop_reason: StopReason,
    /// The tokens that the request used.
    pub usage: Usage,
    /// The model that responded, as the service names it.
    pub model: Option<String>,
    /// Warnings about parts of the request that could not be honoured.
    pub warnings: Vec<String>,
    /// Whether the service enforced the output schema.
    pub output_enforced: bool,
}

impl Fold {
    /// The maximum number of bytes of one message. This limit turns an endless response into an error before the
    /// response fills the memory.
    pub const LIMIT: usize = 64 * 1024 * 1024;
    /// The maximum number of blocks of one message.
    pub const MAX_BLOCKS: usize = 4096;
    /// The maximum nesting depth of JSON in a message. JSON readers have a depth limit, which is 128 in `serde_json`.
    /// Half of that limit leaves room for the document in which the message is stored.
    pub const MAX_DEPTH: usize = MAX_LEVELS;

    /// Returns the blocks so far.
    pub fn blocks(&self) -> &[PartialBlock] {
        &self.blocks
    }

    /// Returns the message data so far.
    pub fn message(&self) -> &MessageDelta {
        &self.message
    }

    /// Returns the usage reported so far and resets it, so that the usage of each attempt of a request is counted
    /// separately.
    pub(crate) fn take_usage(&mut self) -> Usage {
        self.message.usage.take().unwrap_or_default()
    }

    /// Returns the usage reported so far.
    pub fn usage(&self) -> Usage {
        self.message.usage.unwrap_or_default()
    }

    /// Applies one delta.
    ///
    /// A tool use whose id is missing or already used in the message gets a new unique id immediately. Read the id from
    /// [`blocks`](Fold::blocks).
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Decoding`] if the delta does not fit. A delta does not fit if a block is out of
    /// order, if a part belongs to another kind of block or to a block that has ended, or if a limit is exceeded. The
    /// fold stays unchanged.
    pub fn apply(&mut self, delta: impl Borrow<Delta>) -> Result<(), ProviderError> {
        match delta.borrow() {
            Delta::Start { index, block } => self.start(*index, block.clone()),
            Delta::Extend { index, part } => self.extend(*index, part),
            Delta::End { index } => {
                open_block(&mut self.blocks, *index)?.ended = true;
                Ok(())
            }
            Delta::Message(data) => self.merge(MessageDelta::clone(data)),
            Delta::Retry { .. } => {
                self.restart();
                Ok(())
            }
        }
    }

    /// Sets the input of a tool use, in place of the JSON text that has arrived, unless the message becomes too large.
    pub(crate) fn set_input(&mut self, index: usize, input: Value) {
        if let Some(PartialBlock { content: Content::ToolUse(tool_use), .. }) = self.blocks.get_mut(index)
            && let Ok(weight) = grown(self.weight, value_weight(&input), 0)
        {
            (tool_use.input, self.weight) = (input, weight);
        }
    }

    /// Discards the blocks so far. The message data is kept.
    pub(crate) fn restart(&mut self) {
        self.blocks.clear();
        self.ids.clear();
        self.weight = self.message.weight();
    }

    fn start(&mut self, index: usize, block: BlockStart) -> Result<(), ProviderError> {
        if index != self.blocks.len() {
            return Err(bad(format!("block {index} started after {} blocks", self.blocks.len())));
        }
        if index >= Self::MAX_BLOCKS {
            return Err(bad(format!("the answer has more than {} blocks", Self::MAX_BLOCKS)));
        }
        let content: Content = match block {
            BlockStart::Text => Text::default().into(),
            BlockStart::Thinking => Thinking::default().into(),
            BlockStart::ToolUse { id, name } => {
                ToolUse::new(self.distinct(id), name, Value::Object(Map::new())).into()
            }
            BlockStart::Attachment(attachment) => {
                attachment.metadata.values().try_for_each(check_depth)?;
                attachment.into()
            }
            BlockStart::ProviderItem(item) => {
                check_depth(&item.data)?;
                item.into()
            }
        };
        let block = PartialBlock::new(content);
        self.weight = grown(self.weight, block.weight(), 0)?;
        if let Content::ToolUse(tool_use) = &block.content {
            self.ids.insert(tool_use.id.clone());
        }
        self.blocks.push(block);
        Ok(())
    }

    /// Returns `id`. If it is empty or in use, returns a unique id that is derived from it.
    fn distinct(&self, id: ToolUseId) -> ToolUseId {
        if !id.as_str().is_empty() && !self.ids.contains(&id) {
            return id;
        }
        let stem = if id.as_str().is_empty() { "call" } else { id.as_str() };
        // The derived ids contain the block's number, so they differ between blocks. Only a service that itself sends
        // an id of this form can cause a clash.
        let index = self.blocks.len();
        let mut free = format!("{stem}_{index}");
        let mut tries = 0;
        while self.ids.contains(free.as_str()) {
            tries += 1;
            free = format!("{stem}_{index}_{tries}");
        }
        free.into()
    }

    fn extend(&mut self, index: usize, part: &Part) -> Result<(), ProviderError> {
        let block = open_block(&mut self.blocks, index)?;
        let (added, removed) = match (part, &block.content) {
            (Part::Text(text) | Part::Input(text) | Part::Signature(text) | Part::Redacted(text), _) => {
                (text.len(), 0)
            }
            (Part::Item(data), Content::ProviderItem(item)) => {
                check_depth(data)?;
                (value_weight(data), value_weight(&item.data))
            }
            (Part::Item(_), _) => (0, 0),
        };
        let weight = grown(self.weight, added, removed)?;
        match (&mut block.content, part) {
            (
                Content::Text(Text { text: to, .. }) | Content::Thinking(Thinking { text: to, .. }),
                Part::Text(text),
            ) => append(to, text),
            (Content::ToolUse(_), Part::Input(text)) => append(&mut block.input, text),
            (
                Content::Text(Text { signature: to, .. })
                | Content::Thinking(Thinking { signature: to, .. })
                | Content::ToolUse(ToolUse { signature: to, .. }),
                Part::Signature(text),
            )
            | (Content::Thinking(Thinking { redacted: to, .. }), Part::Redacted(text)) => {
                // An empty part must not turn a missing signature into an empty one.
                if !text.is_empty() {
                    append(to.get_or_insert_default(), text);
                }
            }
            (Content::ProviderItem(item), Part::Item(data)) => item.data = data.clone(),
            (content, part) => {
                let (content, part) = (content.kind(), part.kind());
                return Err(bad(format!("block {index} is {content} and can't take {part}")));
            }
        }
        self.weight = weight;
        Ok(())
    }

    fn merge(&mut self, data: MessageDelta) -> Result<(), ProviderError> {
        data.provider_data.values().try_for_each(check_depth)?;
        let message = &self.message;
        let kept = data.provider_data.keys().filter_map(|key| message.provider_data.get_key_value(key));
        let replaced = kept.map(|(key, value)| member_weight(key, value)).sum::<usize>()
            + data.model.as_ref().and(message.model.as_ref()).map_or(0, String::len)
            + data.stop_reason.as_ref().and(message.stop_reason.as_ref()).map_or(0, StopReason::weight);
        self.weight = grown(self.weight, data.weight(), replaced)?;

        let MessageDelta { model, stop_reason, usage, context, provider_data, warnings, output_enforced } =
            data;
        let message = &mut self.message;
        message.model = model.or(message.model.take());
        message.stop_reason = stop_reason.or(message.stop_reason.take());
        message.usage = usage.map(Usage::with_finite_cost).or(message.usage);
        message.context = context.or(message.context);
        message.provider_data.extend(provider_data);
        message.warnings.extend(warnings);
        message.output_enforced |= output_enforced;
        Ok(())
    }

    /// Returns the complete message, with `now` as its time.
    ///
    /// The input of a tool use is invalid if it is not a JSON object, repeats a key or is nested deeper than
    /// [`MAX_DEPTH`](Self::MAX_DEPTH). A JSON string that contains an object counts as this object, because some models
    /// encode it twice. A tool use with an invalid input gets an empty input, and the raw text is kept.
    /// If a tool use has no input at all, its input becomes an empty object, unless the response may have been
    /// truncated. In a truncated response, a missing input is invalid.
    ///
    /// # Errors
    ///
    /// Returns [`ProviderErrorKind::Truncated`] if there was no stop reason.
    pub fn finish(self, now: Timestamp) -> Result<Completion, ProviderError> {
        let MessageDelta { model, stop_reason, usage, context, provider_data, warnings, output_enforced } =
            self.message;
        let Some(stop_reason) = stop_reason else {
            return Err(ProviderError::new(
                ProviderErrorKind::Truncated,
                "the stream ended without saying why the answer ended",
            ));
        };
        let whole = matches!(stop_reason, StopReason::Stop | StopReason::ToolUse | StopReason::Pause);
        let count = self.blocks.len();
        let content = self.blocks.into_iter().enumerate().map(|(index, block)| {
            // Services also send an end for a truncated block, so the last block may be truncated although it has
            // ended.
            let cut = !whole && (index + 1 == count || !block.ended);
            block.finish(cut)
        });
        // A message may be kept for a long time, so its spare capacity is released.
        let mut content: Vec<Content> = content.collect();
        content.shrink_to_fit();
        let context_tokens = context;
        let message = Message { provider_data, context_tokens, ..Message::at(now, Role::Assistant, content) };
        let usage = usage.unwrap_or_default();
        Ok(Completion { message, stop_reason, usage, model, warnings, output_enforced })
    }

    /// Returns the message so far, with `now` as its time. This message is used to report discarded content.
    pub fn cut(self, now: Timestamp) -> Message {
        let content = self.blocks.into_iter().map(|block| block.finish(true)).collect();
        let provider_data = self.message.provider_data;
        Message { provider_data, ..Message::at(now, Role::Assistant, content) }
    }

    /// Returns the part of a truncated response that can be kept, with `now` as its time. This part consists of text,
    /// attachments, tool uses with complete input, and signed thinking and provider items that have ended. Returns
    /// `None` if nothing can be kept, or only thinking, which is not a valid message on its own.
    pub fn salvage(self, now: Timestamp) -> Option<Message> {
        let content: Vec<Content> = self.blocks.into_iter().filter_map(PartialBlock::salvage).collect();
        let stands = content.iter().any(|block| !matches!(block, Content::Thinking(_)));
        let provider_data = self.message.provider_data;
        stands.then_some(Message { provider_data, ..Message::at(now, Role::Assistant, content) })
    }
}

fn open_block(blocks: &mut [PartialBlock], index: usize) -> Result<&mut PartialBlock, ProviderError> {
    match blocks.get_mut(index) {
        Some(block) if !block.ended => Ok(block),
        Some(_) => Err(bad(format!("block {index} has ended already"))),
        None => Err(bad(format!("block {index} has not started"))),
    }
}

/// Returns the weight after `removed` has been replaced by `added`. Fails if the new weight exceeds the limit.
fn grown(weight: usize, added: usize, removed: usize) -> Result<usize, ProviderError> {
    let weight = weight.saturating_sub(removed).saturating_add(added);
    if weight > Fold::LIMIT {
        return Err(bad(format!("the answer is longer than {} bytes", Fold::LIMIT)));
    }
    Ok(weight)
}

fn check_depth(value: &Value) -> Result<(), ProviderError> {
    if is_shallow(value) {
        Ok(())
    } else {
        Err(bad(format!("the answer holds JSON of more than {} levels", Fold::MAX_DEPTH)))
    }
}

fn append(to: &mut String, text: &str) {
    to.push_str(text);
}

fn bad(message: String) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message)
}

/// A block that is not complete yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct PartialBlock {
    /// The block so far. The input of a tool use is an empty object until the message is finished.
    pub content: Content,
    /// The part of the JSON text of a tool use's input that has arrived so far.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub input: String,
    /// Whether a delta has ended the block.
    pub ended: bool,
}

impl PartialBlock {
    fn new(content: Content) -> Self {
        Self { content, input: String::new(), ended: false }
    }

    fn weight(&self) -> usize {
        self.content.weight() + self.input.len()
    }

    /// Returns the block of a response that has ended. If the response may have been truncated in this block, a missing
    /// input is not treated as an empty input.
    fn finish(self, cut: bool) -> Content {
        let mut tool_use = match self.content {
            Content::ToolUse(tool_use) => tool_use,
            mut other => {
                if let Content::Text(Text { text, .. }) | Content::Thinking(Thinking { text, .. }) =
                    &mut other
                {
                    text.shrink_to_fit();
                }
                return other;
            }
        };
        let is_set = tool_use.input.as_object().is_some_and(|input| !input.is_empty());
        if !is_set && (cut || !is_blank(&self.input)) {
            match parse_input(&self.input) {
                Some(input) => tool_use.input = input,
                None => tool_use.malformed = Some(self.input),
            }
        }
        tool_use.into()
    }

    /// Returns the final form of a block that the stream has ended.
    pub(crate) fn finished(self) -> Content {
        self.finish(false)
    }

    /// Returns the part of the block that can be kept if the stream breaks off here.
    pub(crate) fn salvage(mut self) -> Option<Content> {
        let ended = self.ended;
        let keep = match &mut self.content {
            Content::Text(text) => {
                if !ended {
                    // The signature may be incomplete, and services reject incomplete signatures. Text without a
                    // signature is valid.
                    text.signature = None;
                }
                !is_blank(&text.text)
            }
            Content::Thinking(thinking) => ended && thinking.is_signed(),
            // Nothing can follow a complete JSON object, so an input that can be parsed is complete.
            Content::ToolUse(tool_use) => {
                let signature_is_whole = ended || tool_use.signature.is_none();
                let no_input = ended && is_blank(&self.input);
                signature_is_whole && (no_input || parse_input(&self.input).is_some())
            }
            Content::ProviderItem(_) => ended,
            Content::Attachment(_) | Content::ToolResult(_) => true,
        };
        keep.then(|| self.finish(false))
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// Parses the input of a tool use, which is a JSON object. Some models send the object within a JSON string.
fn parse_input(json: &str) -> Option<Value> {
    let parse = parse_strictly::<Map<String, Value>>;
    parse(json).or_else(|| parse(&serde_json::from_str::<String>(json).ok()?))
}

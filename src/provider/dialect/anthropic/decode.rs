//! Decoding of the stream. Source of the rules: <https://platform.claude.com/docs/en/build-with-claude/streaming>, and
//! the event types of Anthropic's own clients.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};

use super::{
    NAME,
    event::{
        AnthropicDeltaContent, AnthropicEvent, AnthropicMessageProbe, AnthropicMessageStart,
        is_foreign_caller, is_known, is_unknown_delta, whole_input,
    },
};
use crate::{
    message::{ProviderItem, Usage, map_weight},
    provider::{
        BlockStart, CacheHint, Delta, Fold, MessageDelta, ModelInfo, Part, ProviderError, ProviderErrorKind,
        Request, StopReason,
        dialect::{
            Decoder, Frame,
            decoding::{DecodeResult, bad, may_be_own, parse, tamed},
            error,
            lenient::ReportedUsage,
        },
    },
};

/// The number of characters of an invalid event that an error message quotes.
const QUOTE: usize = 200;

/// Decodes one response: a stream of events, or one object.
///
/// Unknown events and unknown kinds of delta are skipped. All other events have to be valid: an event at the wrong
/// time, or for a block of another kind, is an error.
#[derive(Debug, Default)]
pub(super) struct AnthropicDecoder {
    phase: AnthropicDecoderPhase,
    /// The blocks so far, including void blocks. The position of a block, without the void blocks, is its index in the
    /// message.
    blocks: Vec<AnthropicDecoderBlock>,
    /// The number of blocks at the start that are void, because another model has taken over from the model that wrote
    /// them.
    void: usize,
    usage: Usage,
    /// The sum of the usage of the single iterations, with its cost. It replaces the totals in `usage`.
    sum: Option<Usage>,
    /// The usage at the start of the response, which is that of the first pass.
    opening: Usage,
    /// Whether the service has run a tool itself.
    has_server_tools: bool,
    /// The size of the conversation after the last iteration, if the service reports its iterations.
    last: Option<u32>,
    /// The number of tokens written to a cache that is kept for an hour, if the service reports it.
    long_writes: Option<u64>,
    /// The facts about the model, if they contain a price.
    priced: Option<Arc<ModelInfo>>,
    /// The request's cache hint, which determines the cost of cache writes without a reported lifetime.
    hint: Option<CacheHint>,
    /// Whether the warning about unreadable usage was emitted.
    usage_warned: bool,
    /// The provider data of the message. After each change, the complete data is emitted.
    data: Map<String, Value>,
    /// The last stop reason.
    stop_reason: Option<StopReason>,
    /// Whether a stop reason has arrived after the last block.
    has_ended: bool,
    /// The number of bytes collected for provider items.
    gathered: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AnthropicDecoderPhase {
    #[default]
    Before,
    Open,
    Done,
}

#[derive(Debug)]
struct AnthropicDecoderBlock {
    /// The index of the block on the wire. Indices may have gaps. `None` if the start of the message already contained
    /// the complete block.
    wire: Option<u64>,
    open: bool,
    kind: AnthropicDecoderBlockKind,
}

#[derive(Debug)]
enum AnthropicDecoderBlockKind {
    Text,
    /// Thinking, with the signature of the start event or of a thinking delta. This signature is used only if the block
    /// has no signature delta. `signed` is set if it has one.
    Thinking {
        held: Option<String>,
        signed: bool,
    },
    Redacted,
    /// A tool use, with the input of the start event. This input is used only if no delta has input.
    ToolUse(Option<String>),
    /// Data that only the service understands, including everything that its deltas added.
    Item(Box<AnthropicGrowingItem>),
}

impl Decoder for AnthropicDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let data = frame.data.trim_ascii();
        // Skip `[DONE]`, which ends the streams of another wire format. Some services that implement both wire formats
        // also send it in this one.
        if self.is_done() || data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        let name = frame.name();
        match parse::<AnthropicEvent<'_>>(data).ok() {
            Some(event) if !event.has_whole_input() => self.event(name, event, data, deltas),
            event => {
                let tame = tamed(data);
                match (tame.as_deref().and_then(|tame| Some((parse(tame).ok()?, tame))), event) {
                    (Some((event, tame)), _) => self.event(name, event, tame, deltas),
                    (None, Some(event)) => self.event(name, event, data, deltas),
                    (None, None) => self.odd(name, data),
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.phase == AnthropicDecoderPhase::Done
    }

    /// Some services omit the last event, and then perhaps keep the connection open with pings. Nothing is missing if a
    /// stop reason follows blocks that have all ended.
    fn is_complete(&self) -> bool {
        self.has_ended && self.blocks.iter().all(|block| !block.open)
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> DecodeResult {
        if self.is_done() {
            return Ok(());
        }
        if self.is_complete() {
            return self.message_stop("", deltas);
        }
        Err(ProviderError::new(
            ProviderErrorKind::Truncated,
            "the stream ended before its message_stop event",
        ))
    }
}

impl AnthropicDecoder {
    /// Creates a decoder for the response to `request`.
    pub(super) fn new(request: &Request) -> Self {
        let priced = request.model_info.clone().filter(|info| info.price.is_some());
        Self { priced, hint: request.options.cache(), ..Self::default() }
    }

    /// Decodes an event of a known shape. The data of the event names its kind. If the data names no kind, the name of
    /// the event is used.
    fn event(
        &mut self,
        name: &str,
        event: AnthropicEvent<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let kind = if event.kind.is_empty() { name } else { &*event.kind };
        let has_error = event.error.as_ref().is_some_and(error::is_error);
        match kind {
            "content_block_delta" => self.delta(event, data, deltas),
            "content_block_start" => self.block_start(&event, data, deltas),
            "content_block_stop" => {
                self.must_be_open(data)?;
                let Some(wire) = event.index else {
                    return Err(quoted("a block ends without an index", data));
                };
                // Some gateways send this event twice, or for a block that never started. Skipping it loses no data.
                if let Some(position) = self.last_block(wire).filter(|position| self.blocks[*position].open) {
                    self.end_block(position, deltas);
                }
                Ok(())
            }
            "message_start" => self.message_start(&event, data, deltas),
            "message_delta" => self.message_delta(&event, data, deltas),
            "message_stop" => self.message_stop(data, deltas),
            "ping" => Ok(()),
            "error" => Err(error::from_event(data)),
            // Some servers send an event named `error` whose data is the error object itself. Its `type` is then the
            // kind of the error.
            _ if name == "error" || has_error => Err(error::from_event(data)),
            "message" if self.phase == AnthropicDecoderPhase::Before => self.whole(data, deltas),
            // Other servers send the error object itself in an unnamed event instead of a response.
            _ if self.is_bare_error(kind) => Err(error::from_event(data)),
            _ => Ok(()),
        }
    }

    /// Decodes an event that is not JSON or has an unknown shape. Such an event may be an error or belong to another
    /// wire format.
    fn odd(&mut self, name: &str, data: &str) -> DecodeResult {
        let Ok(Value::Object(event)) = serde_json::from_str(data) else {
            return match name {
                "error" => Err(error::from_event(data)),
                // Null is not skipped, because every event of this format is an object, and `ping` is its keep-alive.
                _ if data.starts_with(':') => Ok(()),
                name if name.is_empty() || is_known(name) || may_be_own(data) => {
                    Err(quoted("an event is not a JSON object", data))
                }
                _ => Ok(()),
            };
        };
        let kind = event.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty()).unwrap_or(name);
        let has_error = || name == "error" || event.get("error").is_some_and(error::is_error);
        if kind == "error" || (!is_known(kind) && (has_error() || self.is_bare_error(kind))) {
            return Err(error::from_event(data));
        }
        if !is_known(kind) || kind == "ping" {
            return Ok(());
        }
        let delta = event.get("delta").and_then(Value::as_object);
        if kind == "content_block_delta" && delta.is_some_and(is_unknown_delta) {
            let position = self.open_block(event.get("index").and_then(Value::as_u64), data)?;
            return self.unknown_delta(position, data);
        }
        Err(quoted(&format!("a {kind} event has an unknown shape"), data))
    }

    fn message_start(
        &mut self,
        event: &AnthropicEvent<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let first = self.phase == AnthropicDecoderPhase::Before;
        if !first && !self.repeats(event.message.as_ref()) {
            return Err(quoted("a second message_start event", data));
        }
        self.phase = AnthropicDecoderPhase::Open;
        let mut message = MessageDelta::default();
        if let Some(start) = &event.message {
            message.model = (!start.model.is_empty()).then(|| (*start.model).to_owned());
            if !start.id.is_empty() {
                self.data.insert("id".to_owned(), (*start.id).into());
            }
            let members = [("container", &start.container), ("stop_details", &start.stop_details)];
            message.stop_reason = self.ending(&start.stop_reason, members);
            if let Some(usage) = &start.usage {
                message.usage = self.count(usage, deltas);
                message.context = self.context();
                self.opening = if first { self.usage } else { self.opening };
            }
        }
        // The provider data is emitted even if it is empty, because it names the wire format of the message.
        message.provider_data = self.provider_data();
        deltas.push(Delta::Message(Box::new(message)));
        // If a response resumes inside a tool that the service runs, its start event may already contain the complete
        // message. In this case, read the blocks from the start event.
        let content = event.message.as_ref().filter(|_| first).and_then(|start| start.content.as_ref());
        for block in content.and_then(Value::as_array).into_iter().flatten() {
            let Value::Object(block) = block else {
                return Err(quoted("a block starts without its content", data));
            };
            let position = self.begin(None, block, data, deltas)?;
            self.end_block(position, deltas);
        }
        Ok(())
    }

    /// Decodes a message that arrives as one object, which is how services without streaming send it. The object is
    /// decoded as the start of a message that already contains all content.
    fn whole(&mut self, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        // An event that has the name `message` but contains no message is skipped, like every unknown event. The other
        // members are not decoded here, because a text may contain half of a character.
        if !serde_json::from_str::<AnthropicMessageProbe<'_>>(data)
            .is_ok_and(|message| &*message.role == "assistant")
        {
            return Ok(());
        }
        let start = format!("{{\"type\":\"message_start\",\"message\":{data}}}");
        self.decode(Frame { event: "", data: &start }, deltas)?;
        self.message_stop(data, deltas)
    }

    /// Returns whether the same message starts again. Some gateways send a start event themselves and then forward the
    /// start event of the service.
    fn repeats(&self, start: Option<&AnthropicMessageStart<'_>>) -> bool {
        let id = self.data.get("id").and_then(Value::as_str);
        start.is_some_and(|start| Some(&*start.id) == id)
    }

    fn block_start(
        &mut self,
        event: &AnthropicEvent<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        self.must_be_open(data)?;
        let wire = event.index.ok_or_else(|| quoted("a block starts without an index", data))?;
        if usize::try_from(wire).map_or(true, |wire| wire >= Fold::MAX_BLOCKS) {
            return Err(quoted("a block's index exceeds the limit", data));
        }
        // Anthropic itself reuses the index of a block that has ended, after results of its own tools.
        if self.blocks.iter().any(|block| block.open && block.wire == Some(wire)) {
            return Err(quoted("a block starts a second time", data));
        }
        let Some(Value::Object(block)) = &event.content_block else {
            return Err(quoted("a block starts without its content", data));
        };
        self.begin(Some(wire), block, data, deltas).map(drop)
    }

    /// Starts a block with the content in `block`, and returns its position.
    fn begin(
        &mut self,
        wire: Option<u64>,
        block: &Map<String, Value>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> Result<usize, ProviderError> {
        let position = self.blocks.len();
        if position >= Fold::MAX_BLOCKS {
            return Err(quoted("a block's index exceeds the limit", data));
        }
        let text = |key: &str| match block.get(key) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(_) => Err(quoted(&format!("a block's {key} is not a string"), data)),
        };
        let mut parts = Vec::new();
        let (block, kind) = match &*text("type")? {
            "text" => {
                parts.push(Part::Text(text("text")?));
                let citations = block.get("citations").and_then(Value::as_array);
                parts.extend(citations.into_iter().flatten().map(citation));
                (BlockStart::Text, AnthropicDecoderBlockKind::Text)
            }
            "thinking" => {
                parts.push(Part::Text(text("thinking")?));
                let held = Some(text("signature")?).filter(|signature| !signature.is_empty());
                (BlockStart::Thinking, AnthropicDecoderBlockKind::Thinking { held, signed: false })
            }
            "redacted_thinking" => {
                parts.push(Part::Redacted(text("data")?));
                (BlockStart::Thinking, AnthropicDecoderBlockKind::Redacted)
            }
            "tool_use" => {
                let caller = block.get("caller").filter(|caller| is_foreign_caller(caller));
                parts.extend(caller.map(|caller| Part::Signature(caller.to_string())));
                let start = BlockStart::ToolUse { id: text("id")?.into(), name: text("name")? };
                (start, AnthropicDecoderBlockKind::ToolUse(whole_input(block.get("input"))))
            }
            "" => return Err(quoted("a block starts without a type", data)),
            kind => {
                if kind == "fallback" {
                    self.take_over(block, deltas);
                }
                self.has_server_tools |= kind.ends_with("_tool_use") || kind.ends_with("_tool_result");
                self.gather(map_weight(block), data)?;
                let item = ProviderItem { format: NAME.to_owned(), data: Value::Object(block.clone()) };
                (
                    BlockStart::ProviderItem(item),
                    AnthropicDecoderBlockKind::Item(Box::new(AnthropicGrowingItem::new(block.clone()))),
                )
            }
        };
        self.has_ended = false;
        self.blocks.push(AnthropicDecoderBlock { wire, open: true, kind });
        let index = position - self.void;
        deltas.push(Delta::Start { index, block });
        parts.retain(|part| !matches!(part, Part::Text(text) | Part::Redacted(text) if text.is_empty()));
        deltas.extend(parts.into_iter().map(|part| Delta::Extend { index, part }));
        Ok(position)
    }

    /// Called when another model takes over from a model that declined. The blocks so far are void: the application must
    /// neither act on them nor send them back. Source:
    /// <https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback>.
    fn take_over(&mut self, block: &Map<String, Value>, deltas: &mut Vec<Delta>) {
        let model = block.get("to").and_then(|to| Some(to.get("model")?.as_str()?.to_owned()));
        if self.blocks.len() > self.void {
            self.void = self.blocks.len();
            let next = model.as_deref().unwrap_or("another model");
            let message = format!("the model declined to continue its answer; {next} answers in its place");
            let error = Box::new(ProviderError::new(ProviderErrorKind::InvalidRequest, message));
            deltas.push(Delta::Retry { error, delay: Duration::ZERO });
        }
        deltas.push(Delta::Message(Box::new(MessageDelta { model, ..MessageDelta::default() })));
    }

    fn message_delta(
        &mut self,
        event: &AnthropicEvent<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        self.must_be_open(data)?;
        let mut message = MessageDelta::default();
        if let Some(delta) = &event.delta {
            let members = [("container", &delta.container), ("stop_details", &delta.stop_details)];
            message.stop_reason = self.ending(&delta.stop_reason, members);
            self.has_ended |= message.stop_reason.is_some();
            if members.iter().any(|(_, value)| value.is_some()) {
                message.provider_data = self.provider_data();
            }
        }
        if let Some(usage) = &event.usage {
            message.usage = self.count(usage, deltas);
            message.context = self.context();
        }
        deltas.push(Delta::Message(Box::new(message)));
        Ok(())
    }

    /// Stores these members as provider data of the message. Returns the reason for which the response has ended, if
    /// `word` names one.
    fn ending(&mut self, word: &str, members: [(&str, &Option<Value>); 2]) -> Option<StopReason> {
        for (key, value) in members {
            self.data.extend(value.clone().map(|value| (key.to_owned(), value)));
        }
        let reason = (!word.is_empty()).then(|| stop_reason(word));
        self.stop_reason = reason.clone().or_else(|| self.stop_reason.take());
        reason
    }

    fn message_stop(&mut self, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        self.must_be_open(data)?;
        for position in self.void..self.blocks.len() {
            self.complete(position, deltas);
        }
        if self.stop_reason == Some(StopReason::ToolUse) && self.blocks.len() == self.void {
            let message = "the response announces a tool use, but has no content";
            return Err(ProviderError::new(ProviderErrorKind::Service, message).with_body(data));
        }
        if self.stop_reason.is_none() {
            // This is the last event, so the response is complete. Some services send no stop reason, so derive one
            // from the blocks.
            let counting = &self.blocks[self.void..];
            let uses_tools =
                counting.iter().any(|block| matches!(block.kind, AnthropicDecoderBlockKind::ToolUse(_)));
            deltas.push(Delta::stop(if uses_tools { StopReason::ToolUse } else { StopReason::Stop }));
        }
        self.phase = AnthropicDecoderPhase::Done;
        self.blocks = Vec::new();
        Ok(())
    }

    fn delta(&mut self, event: AnthropicEvent<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        let position = self.open_block(event.index, data)?;
        let Some(mut delta) = event.delta else {
            return Err(quoted("a content_block_delta event without a delta", data));
        };
        // Some services send the signature in a delta of the thinking itself.
        let signature =
            (&*delta.kind == "thinking_delta").then(|| String::from(std::mem::take(&mut delta.signature)));
        let (kind, body) = delta.into_parts();
        if matches!(body, AnthropicDeltaContent::Unknown)
            || matches!(self.blocks[position].kind, AnthropicDecoderBlockKind::Item(_))
        {
            if kind.is_empty() {
                return Err(quoted("a delta without a type", data));
            }
            return self.unknown_delta(position, data);
        }
        if let AnthropicDecoderBlockKind::Thinking { held, signed: false } = &mut self.blocks[position].kind
            && let Some(signature) = signature.filter(|signature| !signature.is_empty())
        {
            *held = Some(signature);
        }
        // An empty delta adds nothing, so it need not fit its block. Some gateways begin each block with an empty text.
        if let AnthropicDeltaContent::Text(text)
        | AnthropicDeltaContent::Thinking(text)
        | AnthropicDeltaContent::Signature(text)
        | AnthropicDeltaContent::Input(text) = &body
            && text.is_empty()
        {
            return Ok(());
        }
        let part = match (&mut self.blocks[position].kind, body) {
            (AnthropicDecoderBlockKind::Text, AnthropicDeltaContent::Text(text))
            | (AnthropicDecoderBlockKind::Thinking { .. }, AnthropicDeltaContent::Thinking(text)) => {
                Part::Text(text.into())
            }
            (AnthropicDecoderBlockKind::Text, AnthropicDeltaContent::Citation(value)) => citation(&value),
            (
                AnthropicDecoderBlockKind::Thinking { held, signed },
                AnthropicDeltaContent::Signature(text),
            ) => {
                (*held, *signed) = (None, true);
                Part::Signature(text.into())
            }
            (AnthropicDecoderBlockKind::ToolUse(whole), AnthropicDeltaContent::Input(text)) => {
                *whole = None;
                Part::Input(text.into())
            }
            // SGLang sends a line feed after the input of a tool use.
            (AnthropicDecoderBlockKind::ToolUse(_), AnthropicDeltaContent::Text(text))
                if text.trim().is_empty() =>
            {
                return Ok(());
            }
            _ => return Err(quoted(&format!("a {} for a block of another kind", &*kind), data)),
        };
        deltas.extend(self.extension(position, part));
        Ok(())
    }

    /// Returns the delta that extends a block, unless the block is void.
    fn extension(&self, position: usize, part: Part) -> Option<Delta> {
        let index = position.checked_sub(self.void)?;
        Some(Delta::Extend { index, part })
    }

    fn end_block(&mut self, position: usize, deltas: &mut Vec<Delta>) {
        self.complete(position, deltas);
        self.blocks[position].open = false;
        deltas.extend(position.checked_sub(self.void).map(|index| Delta::End { index }));
    }

    /// Decodes a delta whose own kind is unknown, or whose block is a provider item. A provider item collects its
    /// deltas. Other blocks ignore unknown deltas.
    fn unknown_delta(&mut self, position: usize, data: &str) -> DecodeResult {
        if !matches!(self.blocks[position].kind, AnthropicDecoderBlockKind::Item(_)) {
            return Ok(());
        }
        self.gather(data.len(), data)?;
        let mut event: Map<String, Value> = serde_json::from_str(data)
            .map_err(|cause| quoted("an event is not a JSON object", data).with_source(cause))?;
        if let (AnthropicDecoderBlockKind::Item(item), Some(Value::Object(delta))) =
            (&mut self.blocks[position].kind, event.remove("delta"))
        {
            item.extend(delta);
        }
        Ok(())
    }

    /// Emits the data that a block holds back until its end.
    fn complete(&mut self, position: usize, deltas: &mut Vec<Delta>) {
        let part = match &mut self.blocks[position].kind {
            AnthropicDecoderBlockKind::Thinking { held, .. } => held.take().map(Part::Signature),
            AnthropicDecoderBlockKind::ToolUse(whole) => whole.take().map(Part::Input),
            AnthropicDecoderBlockKind::Item(item) => item.take().map(Part::Item),
            AnthropicDecoderBlockKind::Text | AnthropicDecoderBlockKind::Redacted => None,
        };
        deltas.extend(part.and_then(|part| self.extension(position, part)));
    }

    /// Returns whether an event of this unknown kind is an error object that was sent instead of a response.
    fn is_bare_error(&self, kind: &str) -> bool {
        self.phase == AnthropicDecoderPhase::Before && kind.ends_with("error")
    }

    fn must_be_open(&self, data: &str) -> DecodeResult {
        match self.phase {
            AnthropicDecoderPhase::Before => Err(quoted("an event before message_start", data)),
            AnthropicDecoderPhase::Open | AnthropicDecoderPhase::Done => Ok(()),
        }
    }

    /// Returns the position of the open block with this index on the wire.
    fn open_block(&self, wire: Option<u64>, data: &str) -> Result<usize, ProviderError> {
        self.must_be_open(data)?;
        match wire.and_then(|wire| self.last_block(wire)) {
            Some(index) if self.blocks[index].open => Ok(index),
            Some(_) => Err(quoted("an event for a block that has ended", data)),
            None => Err(quoted("an event for a block that has not started", data)),
        }
    }

    /// Returns the position of the last block with this index on the wire. The growing block is nearly always the last
    /// one.
    fn last_block(&self, wire: u64) -> Option<usize> {
        self.blocks.iter().rposition(|block| block.wire == Some(wire))
    }

    /// Counts the bytes kept for provider items, so that an endless item causes an error and does not exhaust memory.
    fn gather(&mut self, bytes: usize, data: &str) -> DecodeResult {
        self.gathered = self.gathered.saturating_add(bytes);
        if self.gathered > Fold::LIMIT {
            return Err(quoted("the response exceeds the size limit", data));
        }
        Ok(())
    }

    /// Reads a usage report. The counts of a report are totals. A count that the report omits stays the same. Once the
    /// service has reported its iterations, a report without them changes nothing.
    fn count(&mut self, report: &Value, deltas: &mut Vec<Delta>) -> Option<Usage> {
        let mut counts = ReportedUsage::of("usage", "", report);
        read_counts(&mut counts, &mut self.usage, &mut self.long_writes);
        let is_report = !counts.is_empty();
        counts.warn(&mut self.usage_warned, deltas);
        self.count_iterations(report, deltas);
        let priced = self.priced.as_ref().and_then(|info| info.price.as_ref());
        // Without a report of the lifetimes, the cost is computed from the request's cache hint.
        self.usage.cost =
            priced.zip(self.long_writes).and_then(|(price, long)| price.cost_of(&self.usage, long));
        is_report.then(|| self.sum.unwrap_or(self.usage))
    }

    /// Reads the usage of the single iterations of a response, if the service reports it. The totals of the report lack
    /// compactions, and attempts of a model from which another model took over:
    /// <https://platform.claude.com/docs/en/build-with-claude/compaction-threshold>,
    /// <https://platform.claude.com/docs/en/build-with-claude/refusals-and-fallback>. Attempts without output are not
    /// billed. Each iteration has its own prompt, which selects its rates.
    fn count_iterations(&mut self, report: &Value, deltas: &mut Vec<Delta>) {
        let price = self.priced.as_ref().and_then(|info| info.price.as_ref());
        let mut sum: Option<Usage> = None;
        for iteration in report.get("iterations").and_then(Value::as_array).into_iter().flatten() {
            let mut counts = ReportedUsage::of("usage.iterations", "", iteration);
            let (mut usage, mut long) = (Usage::default(), None);
            read_counts(&mut counts, &mut usage, &mut long);
            counts.warn(&mut self.usage_warned, deltas);
            if usage.output > 0 {
                if matches!(iteration["type"].as_str(), Some("message" | "fallback_message")) {
                    self.last = usage.context_tokens();
                }
                usage.cost = price.and_then(|price| match long.or(self.long_writes) {
                    Some(long) => price.cost_of(&usage, long),
                    None => price.cost(&usage, self.hint),
                });
                sum = Some(sum.map_or(usage, |sum| sum + usage));
            }
        }
        if let Some(mut sum) = sum {
            sum.reasoning = sum.reasoning.max(self.usage.reasoning);
            self.sum = Some(sum);
        }
    }

    /// Returns the size of the conversation after a response for which the service ran tools. The usage is the sum of all
    /// passes, each of which reads the earlier ones from the cache. `None` if the usage itself shows the size.
    fn context(&self) -> Option<u32> {
        let opening = &self.opening;
        let has_passes = opening.prompt() > 0 && self.has_server_tools;
        let cache_read = self.usage.cache_read.min(opening.cache_read);
        self.last.or_else(|| Usage { cache_read, ..self.usage }.context_tokens().filter(|_| has_passes))
    }

    fn provider_data(&self) -> Map<String, Value> {
        Map::from_iter([(NAME.to_owned(), Value::Object(self.data.clone()))])
    }
}

/// Reads the counts of a response or of one iteration. `long_writes` is the number of tokens written to a cache that is
/// kept for an hour. A count that the report omits stays the same. So does a count that is 0 in the report, because some
/// services report the prompt only at the start of a response, and then send zeros.
fn read_counts(counts: &mut ReportedUsage<'_>, usage: &mut Usage, long_writes: &mut Option<u64>) {
    let Usage { input, cache_read, cache_write, output, reasoning, .. } = usage;
    let members: [(&mut u64, &[&str]); 5] = [
        (input, &["input_tokens"]),
        (cache_read, &["cache_read_input_tokens"]),
        (cache_write, &["cache_creation_input_tokens"]),
        (output, &["output_tokens"]),
        (reasoning, &["output_tokens_details", "thinking_tokens"]),
    ];
    for (total, path) in members {
        *total = counts.count(path).filter(|count| *count > 0).unwrap_or(*total);
    }
    let long = counts.count(&["cache_creation", "ephemeral_1h_input_tokens"]);
    *long_writes = long.filter(|count| *count > 0).or(*long_writes).or(long);
}

/// Encodes a citation as one line of JSON for the signature of its text.
fn citation(citation: &Value) -> Part {
    Part::Signature(format!("{citation}\n"))
}

fn stop_reason(word: &str) -> StopReason {
    match word {
        "end_turn" => StopReason::Stop,
        "stop_sequence" => StopReason::StopSequence,
        "max_tokens" => StopReason::Length,
        "model_context_window_exceeded" => StopReason::ContextLength,
        "tool_use" => StopReason::ToolUse,
        "pause_turn" | "compaction" => StopReason::Pause,
        "refusal" => StopReason::Refusal,
        other => StopReason::Other(other.to_owned()),
    }
}

fn quoted(what: &str, data: &str) -> ProviderError {
    let quote: String = data.chars().take(QUOTE).collect();
    let cut = if quote.len() < data.len() { "…" } else { "" };
    bad(&format!("{what}: {quote}{cut}"), data)
}

/// A growing provider item: its start, and everything that its deltas added.
#[derive(Debug)]
struct AnthropicGrowingItem {
    data: Map<String, Value>,
    /// The JSON text of the item's input so far.
    input: String,
    changed: bool,
}

impl AnthropicGrowingItem {
    fn new(data: Map<String, Value>) -> Self {
        Self { data, input: String::new(), changed: false }
    }

    /// Adds a delta. Input and citations are added to the members `input` and `citations`. Every other value is added
    /// to the member of the same name: texts and lists grow, other values are replaced.
    fn extend(&mut self, delta: Map<String, Value>) {
        for (key, value) in delta {
            match (key.as_str(), value) {
                ("type", _) | (_, Value::Null) => {}
                ("partial_json", Value::String(json)) => self.input.push_str(&json),
                ("citation", citation) => self.grow("citations", Value::Array(vec![citation])),
                (key, value) => self.grow(key, value),
            }
        }
    }

    fn grow(&mut self, key: &str, value: Value) {
        self.changed = true;
        match (self.data.get_mut(key), value) {
            (Some(Value::String(before)), Value::String(more)) => before.push_str(&more),
            (Some(Value::Array(before)), Value::Array(more)) => before.extend(more),
            (_, value) => {
                self.data.insert(key.to_owned(), value);
            }
        }
    }

    /// Returns the whole item if it changed after its start. Afterwards, this value is empty.
    fn take(&mut self) -> Option<Value> {
        if let Ok(input) = serde_json::from_str(&self.input) {
            self.changed = true;
            self.data.insert("input".to_owned(), input);
        }
        self.input = String::new();
        let data = std::mem::take(&mut self.data);
        std::mem::take(&mut self.changed).then_some(Value::Object(data))
    }
}

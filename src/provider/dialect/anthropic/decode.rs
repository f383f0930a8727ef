//! Decoding of the stream. Source of the rules: <https://platform.claude.com/docs/en/build-with-claude/streaming>, and
//! the event types of Anthropic's own clients.

mod item;
mod start;
mod wire;

use std::sync::Arc;

use item::Item;
use serde_json::{Map, Value};
use wire::{Body, Event};

use super::NAME;
use crate::{
    message::Usage,
    provider::{
        CacheHint, Delta, Fold, MessageDelta, ModelInfo, Part, ProviderError, ProviderErrorKind, Request,
        StopReason,
        dialect::{Decoder, Frame, counts::Counts, error, strays, tame::tamed},
    },
};

/// The number of characters of an invalid event that an error message quotes.
const QUOTE: usize = 200;

type Decoded = Result<(), ProviderError>;

/// Decodes one response: a stream of events, or one object.
///
/// Unknown events and unknown kinds of delta are skipped. All other events have to be valid: an event at the wrong
/// time, or for a block of another kind, is an error.
#[derive(Debug, Default)]
pub(super) struct MessagesDecoder {
    phase: Phase,
    /// The blocks so far, including void blocks. The position of a block, without the void blocks, is its index in the
    /// message.
    blocks: Vec<Block>,
    /// The number of blocks at the start that are void, because another model has taken over from the model that wrote
    /// them.
    void: usize,
    usage: Usage,
    /// The sum of the usage of the single iterations, with its cost. It replaces the totals in `usage`.
    sum: Option<Usage>,
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
    has_stop_reason: bool,
    /// The number of bytes collected for provider items.
    gathered: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Before,
    Open,
    Done,
}

#[derive(Debug)]
struct Block {
    /// The index of the block on the wire. Indices may have gaps. `None` if the start of the message already contained
    /// the complete block.
    wire: Option<u64>,
    open: bool,
    kind: OpenKind,
}

#[derive(Debug)]
enum OpenKind {
    Text,
    /// Thinking, with the signature of the start event. This signature is used only if no delta has a signature.
    Thinking(Option<String>),
    Redacted,
    /// A tool use, with the input of the start event. This input is used only if no delta has input.
    ToolUse(Option<String>),
    /// Data that only the service understands, including everything that its deltas added.
    Item(Box<Item>),
}

impl Decoder for MessagesDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Decoded {
        let data = frame.data.trim_ascii();
        // Skip `[DONE]`, which ends the streams of another wire format. Some services that implement both wire formats
        // also send it in this one.
        if self.is_done() || data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        let name = frame.name();
        match wire::parse(data) {
            Some(event) if !event.has_whole_input() => self.event(name, event, data, deltas),
            event => {
                let tame = tamed(data);
                match (tame.as_deref().and_then(|tame| Some((wire::parse(tame)?, tame))), event) {
                    (Some((event, tame)), _) => self.event(name, event, tame, deltas),
                    (None, Some(event)) => self.event(name, event, data, deltas),
                    (None, None) => self.odd(name, data),
                }
            }
        }
    }

    fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    fn end(&mut self, _deltas: &mut Vec<Delta>) -> Decoded {
        if self.is_done() {
            return Ok(());
        }
        Err(ProviderError::new(
            ProviderErrorKind::Truncated,
            "the stream ended before its message_stop event",
        ))
    }
}

impl MessagesDecoder {
    /// Creates a decoder for the response to `request`.
    pub(super) fn new(request: &Request) -> Self {
        let priced = request.model_info.clone().filter(|info| info.price.is_some());
        Self { priced, hint: request.options.cache(), ..Self::default() }
    }

    /// Decodes an event of a known shape. The data of the event names its kind. If the data names no kind, the name of
    /// the event is used.
    fn event(&mut self, name: &str, event: Event<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        let kind = if event.kind.is_empty() { name } else { &*event.kind };
        let has_error = event.error.as_ref().is_some_and(error::is_error);
        match kind {
            "content_block_delta" => self.delta(event, data, deltas),
            "content_block_start" => self.block_start(&event, data, deltas),
            "content_block_stop" => {
                let position = self.open_block(event.index, data)?;
                self.end_block(position, deltas);
                Ok(())
            }
            "message_start" => self.message_start(&event, data, deltas),
            "message_delta" => self.message_delta(&event, data, deltas),
            "message_stop" => self.message_stop(data, deltas),
            "ping" => Ok(()),
            "error" => Err(service_error(data)),
            // Some servers send an event named `error` whose data is the error object itself. Its `type` is then the
            // kind of the error.
            _ if name == "error" || has_error => Err(service_error(data)),
            "message" if self.phase == Phase::Before => self.whole(data, deltas),
            // Other servers send the error object itself in an unnamed event instead of a response.
            _ if self.is_bare_error(kind) => Err(service_error(data)),
            _ => Ok(()),
        }
    }

    /// Decodes an event that is not JSON or has an unknown shape. Such an event may be an error or belong to another
    /// wire format.
    fn odd(&mut self, name: &str, data: &str) -> Decoded {
        let Ok(Value::Object(event)) = serde_json::from_str(data) else {
            return match name {
                "error" => Err(service_error(data)),
                name if name.is_empty() || wire::is_known(name) || strays::may_be_own(data) => {
                    Err(bad("an event is not a JSON object", data))
                }
                _ => Ok(()),
            };
        };
        let kind = event.get("type").and_then(Value::as_str).filter(|kind| !kind.is_empty()).unwrap_or(name);
        let has_error = || name == "error" || event.get("error").is_some_and(error::is_error);
        if kind == "error" || (!wire::is_known(kind) && (has_error() || self.is_bare_error(kind))) {
            return Err(service_error(data));
        }
        if !wire::is_known(kind) || kind == "ping" {
            return Ok(());
        }
        let delta = event.get("delta").and_then(Value::as_object);
        if kind == "content_block_delta" && delta.is_some_and(wire::is_unknown_delta) {
            let position = self.open_block(event.get("index").and_then(Value::as_u64), data)?;
            return self.unknown_delta(position, data);
        }
        Err(bad(&format!("a {kind} event has an unknown shape"), data))
    }

    fn message_delta(&mut self, event: &Event<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        self.must_be_open(data)?;
        let mut message = MessageDelta::default();
        if let Some(delta) = &event.delta {
            let members = [("container", &delta.container), ("stop_details", &delta.stop_details)];
            message.stop_reason = self.ending(&delta.stop_reason, members);
            if members.iter().any(|(_, value)| value.is_some()) {
                message.provider_data = self.provider_data();
            }
        }
        if let Some(usage) = &event.usage {
            message.usage = self.count(usage, deltas);
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
        self.has_stop_reason |= !word.is_empty();
        (!word.is_empty()).then(|| stop_reason(word))
    }

    fn message_stop(&mut self, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        self.must_be_open(data)?;
        for position in self.void..self.blocks.len() {
            self.complete(position, deltas);
        }
        if !self.has_stop_reason {
            // This is the last event, so the response is complete. Some services send no stop reason, so derive one
            // from the blocks.
            let counting = &self.blocks[self.void..];
            let uses_tools = counting.iter().any(|block| matches!(block.kind, OpenKind::ToolUse(_)));
            deltas.push(Delta::stop(if uses_tools { StopReason::ToolUse } else { StopReason::Stop }));
        }
        self.phase = Phase::Done;
        self.blocks = Vec::new();
        Ok(())
    }

    fn delta(&mut self, event: Event<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        let position = self.open_block(event.index, data)?;
        let Some(delta) = event.delta else {
            return Err(bad("a content_block_delta event without a delta", data));
        };
        let (kind, body) = delta.into_parts();
        if matches!(body, Body::Unknown) || matches!(self.blocks[position].kind, OpenKind::Item(_)) {
            if kind.is_empty() {
                return Err(bad("a delta without a type", data));
            }
            return self.unknown_delta(position, data);
        }
        let part = match (&mut self.blocks[position].kind, body) {
            (OpenKind::Text, Body::Text(text)) | (OpenKind::Thinking(_), Body::Thinking(text)) => {
                Part::Text(text.into())
            }
            (OpenKind::Text, Body::Citation(value)) => citation(&value),
            (OpenKind::Thinking(whole), Body::Signature(text)) if !text.is_empty() => {
                *whole = None;
                Part::Signature(text.into())
            }
            (OpenKind::ToolUse(whole), Body::Input(text)) if !text.is_empty() => {
                *whole = None;
                Part::Input(text.into())
            }
            (OpenKind::Thinking(_), Body::Signature(_)) | (OpenKind::ToolUse(_), Body::Input(_)) => {
                return Ok(());
            }
            _ => return Err(bad(&format!("a {} for a block of another kind", &*kind), data)),
        };
        if !matches!(&part, Part::Text(text) if text.is_empty()) {
            deltas.extend(self.extension(position, part));
        }
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
    fn unknown_delta(&mut self, position: usize, data: &str) -> Decoded {
        if !matches!(self.blocks[position].kind, OpenKind::Item(_)) {
            return Ok(());
        }
        self.gather(data.len(), data)?;
        let mut event: Map<String, Value> = serde_json::from_str(data)
            .map_err(|cause| bad("an event is not a JSON object", data).with_source(cause))?;
        if let (OpenKind::Item(item), Some(Value::Object(delta))) =
            (&mut self.blocks[position].kind, event.remove("delta"))
        {
            item.extend(delta);
        }
        Ok(())
    }

    /// Emits the data that a block holds back until its end.
    fn complete(&mut self, position: usize, deltas: &mut Vec<Delta>) {
        let part = match &mut self.blocks[position].kind {
            OpenKind::Thinking(whole) => whole.take().map(Part::Signature),
            OpenKind::ToolUse(whole) => whole.take().map(Part::Input),
            OpenKind::Item(item) => item.take().map(Part::Item),
            OpenKind::Text | OpenKind::Redacted => None,
        };
        deltas.extend(part.and_then(|part| self.extension(position, part)));
    }

    /// Returns whether an event of this unknown kind is an error object that was sent instead of a response.
    fn is_bare_error(&self, kind: &str) -> bool {
        self.phase == Phase::Before && kind.ends_with("error")
    }

    fn must_be_open(&self, data: &str) -> Decoded {
        match self.phase {
            Phase::Before => Err(bad("an event before message_start", data)),
            Phase::Open | Phase::Done => Ok(()),
        }
    }

    /// Returns the position of the open block with this index on the wire.
    fn open_block(&self, wire: Option<u64>, data: &str) -> Result<usize, ProviderError> {
        self.must_be_open(data)?;
        // Search from the end, because the growing block is nearly always the last one.
        match self.blocks.iter().rposition(|block| wire.is_some() && block.wire == wire) {
            Some(index) if self.blocks[index].open => Ok(index),
            Some(_) => Err(bad("an event for a block that has ended", data)),
            None => Err(bad("an event for a block that has not started", data)),
        }
    }

    /// Counts the bytes kept for provider items, so that an endless item causes an error and does not exhaust memory.
    fn gather(&mut self, bytes: usize, data: &str) -> Decoded {
        self.gathered = self.gathered.saturating_add(bytes);
        if self.gathered > Fold::LIMIT {
            return Err(bad("the response exceeds the size limit", data));
        }
        Ok(())
    }

    /// Reads a usage report. The counts of a report are totals. A count that the report omits stays the same. Once the
    /// service has reported its iterations, a report without them changes nothing.
    fn count(&mut self, report: &Value, deltas: &mut Vec<Delta>) -> Option<Usage> {
        let mut counts = Counts::of("usage", report);
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
            let mut counts = Counts::of("usage.iterations", iteration);
            let (mut usage, mut long) = (Usage::default(), None);
            read_counts(&mut counts, &mut usage, &mut long);
            counts.warn(&mut self.usage_warned, deltas);
            if usage.output > 0 {
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

    fn provider_data(&self) -> Map<String, Value> {
        Map::from_iter([(NAME.to_owned(), Value::Object(self.data.clone()))])
    }
}

/// Reads the counts of a response or of one iteration. `long_writes` is the number of tokens written to a cache that is
/// kept for an hour. A count that the report omits stays the same.
fn read_counts(counts: &mut Counts<'_>, usage: &mut Usage, long_writes: &mut Option<u64>) {
    let Usage { input, cache_read, cache_write, output, reasoning, .. } = usage;
    let members: [(&mut u64, &[&str]); 5] = [
        (input, &["input_tokens"]),
        (cache_read, &["cache_read_input_tokens"]),
        (cache_write, &["cache_creation_input_tokens"]),
        (output, &["output_tokens"]),
        (reasoning, &["output_tokens_details", "thinking_tokens"]),
    ];
    for (total, path) in members {
        *total = counts.count(path).unwrap_or(*total);
    }
    *long_writes = counts.count(&["cache_creation", "ephemeral_1h_input_tokens"]).or(*long_writes);
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

fn service_error(data: &str) -> ProviderError {
    error::from_event(data)
}

fn bad(what: &str, data: &str) -> ProviderError {
    let quote: String = data.chars().take(QUOTE).collect();
    let cut = if quote.len() < data.len() { "…" } else { "" };
    ProviderError::new(ProviderErrorKind::Decoding, format!("{what}: {quote}{cut}")).with_body(data)
}

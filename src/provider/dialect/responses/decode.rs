//! Decoding of responses. Compatible servers omit members, set them to null or send values of another type. A value that
//! cannot be read is treated as absent.

use std::{borrow::Cow, collections::HashMap};

use serde::Deserialize;
use serde_json::Value;

use super::{
    NAME,
    item::{
        self, RepeatedTextMatch, ResponsesBlockEmitter, ResponsesFunctionCall, ResponsesItem,
        ResponsesItemContent, ResponsesItemKind, ResponsesReasoningItem, ResponsesReasoningKind, list, text,
    },
};
use crate::{
    message::{ProviderItem, Usage},
    provider::{
        BlockStart, Delta, Fold, Part, ProviderError, ProviderErrorKind, StopReason,
        dialect::{
            Decoder, Frame,
            decoding::{
                DIFFERS, DecodeResult, ResponseMetadata, bad, is_keep_alive, may_be_own, parse, tamed,
            },
            error::{self, is_error},
            lenient::{LatestUsage, LenientInteger, LenientText, ReportedUsage},
            names::hash,
        },
    },
};

/// An event of any kind, or a whole response that was not streamed, borrowed from the frame if possible. The struct has
/// the members of all kinds.
#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(rename = "type", borrow, default)]
    kind: LenientText<'a>,
    #[serde(borrow, default)]
    object: LenientText<'a>,
    #[serde(borrow, default)]
    item_id: LenientText<'a>,
    #[serde(default)]
    output_index: LenientInteger,
    #[serde(default)]
    content_index: LenientInteger,
    #[serde(default)]
    summary_index: LenientInteger,
    #[serde(borrow, default)]
    delta: LenientText<'a>,
    /// The complete text of a part, after its deltas.
    #[serde(borrow, default)]
    text: LenientText<'a>,
    #[serde(borrow, default)]
    refusal: LenientText<'a>,
    #[serde(borrow, default)]
    arguments: LenientText<'a>,
    #[serde(default)]
    item: Option<Box<Value>>,
    #[serde(default)]
    response: Option<Box<Value>>,
    #[serde(default)]
    error: Option<Box<Value>>,
}

impl ResponsesEvent<'_> {
    /// Returns whether the event contains, or may contain, the arguments of a call as a JSON object. Parsing such
    /// arguments into a map would lose repeated keys.
    fn has_whole_arguments(&self) -> bool {
        let has_arguments = |item: &Value| {
            text(item, "type") == "function_call" && item.get("arguments").is_some_and(Value::is_object)
        };
        let output = self.response.as_deref().map_or(&[][..], |response| list(response, "output"));
        self.item.as_deref().is_some_and(has_arguments)
            || output.iter().any(has_arguments)
            || self.object.as_str() == "response"
    }

    /// Returns the id and the index of the item that the event belongs to, as far as the event contains them.
    fn place(&self) -> ResponsesItemRef<'_> {
        ResponsesItemRef { id: self.item_id.as_str(), index: self.output_index.0 }
    }
}

/// Takes the string out of a text, without copying an owned string.
fn take(text: &mut LenientText<'_>) -> String {
    std::mem::take(text).into_text().map(Cow::into_owned).unwrap_or_default()
}

/// A reference to an item.
#[derive(Clone, Copy, Debug)]
struct ResponsesItemRef<'a> {
    /// The id of the item. Empty if the event has none.
    id: &'a str,
    /// The position of the item in the output.
    index: Option<u64>,
}

/// Returns whether the wire format does not define an event of this name.
fn is_foreign(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("response.")
}

/// Decodes one response: a stream of events, or one object.
///
/// The terminal event is `response.completed`, `response.incomplete`, `response.failed` or `response.cancelled`. It
/// repeats the whole response. Unknown events are skipped. Each item arrives complete at its own end or at the end of
/// the response. The complete item supplies the data that the item's deltas omitted. For example, llama.cpp sends
/// neither indices nor the end of arguments, and other servers send no deltas.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    answer: ResponsesItems,
    metadata: ResponseMetadata,
    done: bool,
}

impl Decoder for ResponsesDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let data = frame.data.trim_ascii();
        // Skip `[DONE]`, which ends the streams of another wire format. Services that implement both wire formats also
        // send it in this one.
        if self.done || data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        let event = match parse::<ResponsesEvent<'_>>(data) {
            Ok(event) if !event.has_whole_arguments() => Ok(event),
            event => {
                if let Some(tame) = tamed(data).as_deref()
                    && let Ok(event) = parse(tame)
                {
                    return self.event(frame.name(), event, tame, deltas);
                }
                event
            }
        };
        match event {
            Ok(event) => self.event(frame.name(), event, data, deltas),
            Err(_) if frame.event == "error" => Err(error::from_event(data)),
            Err(_) if is_keep_alive(data) || is_foreign(frame.name()) && !may_be_own(data) => Ok(()),
            Err(cause) => Err(bad("an event is not a JSON object", data).with_source(cause)),
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn end(&mut self, _deltas: &mut Vec<Delta>) -> DecodeResult {
        if self.done {
            return Ok(());
        }
        Err(ProviderError::new(ProviderErrorKind::Truncated, "the stream ended before its terminal event"))
    }
}

impl ResponsesDecoder {
    /// Decodes an event. The data of the event names its kind. If the data names no kind, the name of the event is
    /// used.
    fn event(
        &mut self,
        name: &str,
        mut event: ResponsesEvent<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let kind = std::mem::take(&mut event.kind);
        let kind = if kind.as_str().is_empty() { name } else { kind.as_str() };
        match kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.answer.refused |= kind == "response.refusal.delta";
                let more = take(&mut event.delta);
                self.answer.text(event.place(), event.content_index.0, more, deltas)
            }
            "response.function_call_arguments.delta" => {
                let more = take(&mut event.delta);
                self.answer.arguments(event.place(), more, deltas)
            }
            "response.reasoning_summary_text.delta" => {
                let (part, more) = (event.summary_index.0, event.delta.as_str());
                self.answer.reasoning(event.place(), ResponsesReasoningKind::Summary, part, more, deltas)
            }
            // `response.reasoning.delta` is the former name of `response.reasoning_text.delta`. Some servers still use
            // it.
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                let (part, more) = (event.content_index.0, event.delta.as_str());
                self.answer.reasoning(event.place(), ResponsesReasoningKind::Content, part, more, deltas)
            }
            "response.content_part.added" | "response.reasoning_part.added" => {
                self.answer.announce(event.place(), event.content_index.0)
            }
            "response.output_text.done" => {
                self.answer.whole_text(event.place(), event.content_index.0, event.text.as_str(), deltas)
            }
            "response.refusal.done" => {
                self.answer.refused = true;
                self.answer.whole_text(event.place(), event.content_index.0, event.refusal.as_str(), deltas)
            }
            "response.function_call_arguments.done" => {
                self.answer.whole_arguments(event.place(), event.arguments.as_str(), deltas)
            }
            "response.output_item.added" | "response.output_item.done" => {
                let Some(item) = event.item.filter(|item| item.is_object()) else {
                    return Err(bad("an event has no item", data));
                };
                if kind == "response.output_item.added" {
                    self.answer.add(&item, event.output_index.0, deltas)
                } else {
                    self.answer.complete(&item, event.output_index.0, deltas)
                }
            }
            "response.created" | "response.queued" | "response.in_progress" => {
                if let Some(response) = &event.response {
                    self.emit_metadata(response, deltas);
                }
                Ok(())
            }
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled"
            // `response.done` is a former name of `response.completed`.
            | "response.done" => {
                let Some(response) = event.response.filter(|response| response.is_object()) else {
                    return Err(bad("the terminal event has no response", data));
                };
                self.finish(kind, &response, data, deltas)
            }
            "error" | "response.error" => Err(error::from_event(data)),
            "" if event.object.as_str() == "response" => match serde_json::from_str(data) {
                Ok(response) => self.finish(kind, &response, data, deltas),
                Err(cause) => Err(bad("the response is not a JSON object", data).with_source(cause)),
            },
            // llama.cpp sends only the member `error`, without a `type`.
            _ if event.error.as_deref().is_some_and(is_error) => Err(error::from_event(data)),
            _ => Ok(()),
        }
    }

    fn emit_metadata(&mut self, response: &Value, deltas: &mut Vec<Delta>) {
        self.metadata.emit(NAME, "id", text(response, "id"), text(response, "model"), deltas);
    }

    fn finish(&mut self, kind: &str, response: &Value, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        self.emit_metadata(response, deltas);
        if let Some(report) = response.get("usage") {
            LatestUsage::default().report(ReportedUsage::of("usage", "", report), read_usage, deltas);
        }
        let status = match text(response, "status") {
            "" | "in_progress" | "queued" => kind.strip_prefix("response.").unwrap_or("completed"),
            status => status,
        };
        if kind.is_empty() && matches!(text(response, "status"), "in_progress" | "queued") {
            let message = "the response is not complete: the service still works on it in the background";
            return Err(ProviderError::new(ProviderErrorKind::Truncated, message).with_body(data));
        }
        let why = response.get("error").filter(|error| is_error(error));
        match (status, why) {
            (_, Some(error)) => return Err(error::from_value(error).with_body(data)),
            ("failed", None) => return Err(failed("the service failed without a reason", data)),
            ("cancelled", None) => return Err(failed("the service cancelled the response", data)),
            _ => {}
        }
        self.answer.finish(list(response, "output"), deltas)?;
        let reason = if status == "incomplete" {
            match response.pointer("/incomplete_details/reason").and_then(Value::as_str) {
                Some("max_output_tokens" | "max_tokens") => StopReason::Length,
                Some("content_filter") => StopReason::Refusal,
                Some(other) => StopReason::Other(other.to_owned()),
                None => StopReason::Other("incomplete".to_owned()),
            }
        } else if self.answer.refused {
            StopReason::Refusal
        } else if self.answer.has_calls() {
            StopReason::ToolUse
        } else {
            StopReason::Stop
        };
        deltas.push(Delta::stop(reason));
        self.done = true;
        self.answer = ResponsesItems::default();
        Ok(())
    }
}

fn failed(message: &str, data: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Service, message).with_body(data)
}

/// Returns the usage of a response. The service counts tokens that were read from or written to a cache as part of the
/// prompt, so they are subtracted.
fn read_usage(report: &mut ReportedUsage<'_>) -> Usage {
    let prompt = report.count(&["input_tokens"]).unwrap_or(0);
    let cache_read = report.count(&["input_tokens_details", "cached_tokens"]).unwrap_or(0).min(prompt);
    let written = report.cache_writes("input_tokens_details");
    let cache_write = written.unwrap_or(0).min(prompt - cache_read);
    let reasoning = report.count(&["output_tokens_details", "reasoning_tokens"]);
    let usage = Usage {
        input: prompt - cache_read - cache_write,
        cache_read,
        cache_write,
        output: report.count(&["output_tokens"]).unwrap_or(0),
        reasoning: 0,
        cost: report.cost(),
    };
    report.with_reasoning(usage, reasoning)
}

/// The items of one response. Finds the item that an event belongs to, and applies the event to that item.
#[derive(Debug, Default)]
struct ResponsesItems {
    items: Vec<ResponsesItem>,
    /// Maps the id of each item to its position.
    ids: HashMap<String, usize>,
    /// The number of blocks so far.
    blocks: usize,
    /// The number of bytes that are stored until the response ends.
    kept: usize,
    refused: bool,
    /// The items that nothing has answered so far: the id to which the answer refers, and the warning about the item.
    open: Vec<(String, String)>,
    /// Whether the warning about a differing text was emitted.
    warned: bool,
}

impl ResponsesItems {
    /// Returns whether the response contains a tool call whose block has started.
    fn has_calls(&self) -> bool {
        self.items
            .iter()
            .any(|item| matches!(&item.state, ResponsesItemContent::Call(call) if call.is_emitted()))
    }

    /// Begins an item. If the item is already known, and is a call whose block has not started, starts the block.
    fn add(&mut self, whole: &Value, index: Option<u64>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let place = ResponsesItemRef { id: text(whole, "id"), index };
        let known = match place.id {
            // If the service sends no id, the index identifies the item. Some services send no indices either.
            "" => self.items.iter().position(|item| {
                index.is_some()
                    && item.index == index
                    && item.kind() == ResponsesItemKind::of(whole)
                    && !item.done
            }),
            _ => self.named(whole),
        };
        let Some(at) = known else {
            return self.push(whole, place, deltas).map(drop);
        };
        // The arguments of a tool call may have arrived before the item of the call, so the block of the call may start
        // now.
        if let ResponsesItemContent::Call(call) = &mut self.items[at].state {
            call.start(whole, &mut ResponsesBlockEmitter { count: &mut self.blocks, deltas });
        }
        self.check_blocks()
    }

    fn push(
        &mut self,
        whole: &Value,
        place: ResponsesItemRef<'_>,
        deltas: &mut Vec<Delta>,
    ) -> Result<usize, ProviderError> {
        let at = self.items.len();
        if at >= Fold::MAX_BLOCKS {
            return Err(broken(format!("more than {} items in one response", Fold::MAX_BLOCKS)));
        }
        let mut blocks = ResponsesBlockEmitter { count: &mut self.blocks, deltas };
        let (mut kept, mut call_id) = (place.id.len(), "");
        let state = match ResponsesItemKind::of(whole) {
            ResponsesItemKind::Message => ResponsesItemContent::Message(Vec::new()),
            ResponsesItemKind::Reasoning => {
                ResponsesItemContent::Reasoning(ResponsesReasoningItem::default())
            }
            ResponsesItemKind::Call => {
                call_id = text(whole, "call_id");
                let mut call = ResponsesFunctionCall::holding(item::arguments(whole).unwrap_or_default());
                call.start(whole, &mut blocks);
                kept += call_id.len() + call.held();
                ResponsesItemContent::Call(call)
            }
            ResponsesItemKind::Opaque => {
                let item = ProviderItem::new(NAME, whole.clone());
                ResponsesItemContent::Opaque { block: blocks.start(BlockStart::ProviderItem(item)) }
            }
        };
        self.keep(kept)?;
        if !place.id.is_empty() {
            self.ids.insert(place.id.to_owned(), at);
        }
        let call_id = call_id.to_owned();
        self.items.push(ResponsesItem { index: place.index, alias: None, call_id, done: false, state });
        self.check_blocks()?;
        Ok(at)
    }

    /// Returns the item that content of this kind belongs to. If there is no such item, starts a new one. Returns
    /// `None` if the whole item was already emitted.
    fn open(
        &mut self,
        place: ResponsesItemRef<'_>,
        kind: ResponsesItemKind,
        deltas: &mut Vec<Delta>,
    ) -> Result<Option<usize>, ProviderError> {
        let at = self.ids.get(place.id).copied().or_else(|| self.unnamed(place, kind));
        match at {
            Some(at) if self.items[at].done => Ok(None),
            Some(at) if self.items[at].kind() == kind => {
                if !place.id.is_empty() && !self.ids.contains_key(place.id) {
                    self.items[at].alias = Some(hash(place.id));
                }
                Ok(Some(at))
            }
            Some(at) => {
                let is = self.items[at].kind().name();
                Err(broken(format!("a delta of {} for an item that is {is}", kind.name())))
            }
            None => {
                let stub = match kind {
                    ResponsesItemKind::Message => "message",
                    ResponsesItemKind::Reasoning => "reasoning",
                    ResponsesItemKind::Call | ResponsesItemKind::Opaque => "function_call",
                };
                self.push(&serde_json::json!({"type": stub}), place, deltas).map(Some)
            }
        }
    }

    /// Finds the item for an unknown id. Some services give an item another id in each event but always the same index.
    /// Other services send neither ids nor indices, or give all items the same index. vLLM may announce an item under
    /// one id and one index, but send the rest under another id, of which only the first event has the same index.
    fn unnamed(&self, place: ResponsesItemRef<'_>, kind: ResponsesItemKind) -> Option<usize> {
        let fits = |item: &ResponsesItem| item.kind() == kind && !item.done;
        let at_index = self.items.iter().rposition(|item| place.index.is_some() && item.index == place.index);
        at_index
            .filter(|at| place.id.is_empty() || fits(&self.items[*at]))
            .or_else(|| self.items.iter().rposition(fits).filter(|_| place.index.is_none()))
            .or_else(|| {
                let alias = Some(hash(place.id)).filter(|_| !place.id.is_empty());
                self.items.iter().rposition(|item| fits(item) && alias.is_some() && item.alias == alias)
            })
    }

    /// Announces a part of a message or of the readable reasoning.
    fn announce(&mut self, place: ResponsesItemRef<'_>, part: Option<u64>) -> DecodeResult {
        let at_index =
            || self.items.iter().rposition(|item| place.index.is_some() && item.index == place.index);
        let at = self.ids.get(place.id).copied().or_else(at_index);
        match (at.map(|at| &mut self.items[at].state), part) {
            (Some(ResponsesItemContent::Message(sections)), Some(part)) => {
                if sections.len() >= Fold::MAX_BLOCKS {
                    return Err(broken(format!("more than {} parts in one message", Fold::MAX_BLOCKS)));
                }
                item::announce_part(sections, part);
            }
            (Some(ResponsesItemContent::Reasoning(reasoning)), _) => reasoning.announced = part,
            _ => {}
        }
        Ok(())
    }

    /// Appends text to a message.
    fn text(
        &mut self,
        place: ResponsesItemRef<'_>,
        part: Option<u64>,
        more: String,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if more.is_empty() {
            return Ok(());
        }
        if let Some(at) = self.open(place, ResponsesItemKind::Message, deltas)?
            && let ResponsesItemContent::Message(sections) = &mut self.items[at].state
        {
            let mut blocks = ResponsesBlockEmitter { count: &mut self.blocks, deltas };
            item::grow_message(sections, part, more, &mut blocks);
        }
        self.check_blocks()
    }

    /// Completes the text of a part of a message.
    fn whole_text(
        &mut self,
        place: ResponsesItemRef<'_>,
        part: Option<u64>,
        whole: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ResponsesItemKind::Message, deltas)?
            && let ResponsesItemContent::Message(sections) = &mut self.items[at].state
        {
            let mut blocks = ResponsesBlockEmitter { count: &mut self.blocks, deltas };
            let repetition = item::complete_section(sections, part, whole, &mut blocks);
            self.warn_if_differs(repetition, deltas);
        }
        self.check_blocks()
    }

    /// Appends text to the readable reasoning.
    fn reasoning(
        &mut self,
        place: ResponsesItemRef<'_>,
        shown: ResponsesReasoningKind,
        part: Option<u64>,
        more: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ResponsesItemKind::Reasoning, deltas)?
            && let ResponsesItemContent::Reasoning(reasoning) = &mut self.items[at].state
        {
            reasoning.grow(shown, part, more, &mut ResponsesBlockEmitter { count: &mut self.blocks, deltas });
        }
        self.check_blocks()
    }

    /// Appends text to a tool call's arguments.
    fn arguments(
        &mut self,
        place: ResponsesItemRef<'_>,
        more: String,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ResponsesItemKind::Call, deltas)?
            && let ResponsesItemContent::Call(call) = &mut self.items[at].state
        {
            let held = call.held();
            call.grow(more, &mut ResponsesBlockEmitter { count: &mut self.blocks, deltas });
            self.kept = grown(self.kept, call.held() - held)?;
        }
        Ok(())
    }

    /// Completes a tool call's arguments.
    fn whole_arguments(
        &mut self,
        place: ResponsesItemRef<'_>,
        whole: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(at) = self.open(place, ResponsesItemKind::Call, deltas)?
            && let ResponsesItemContent::Call(call) = &mut self.items[at].state
        {
            if !call.is_emitted() {
                self.kept = grown(self.kept, whole.len())?;
            }
            call.complete_arguments(whole, &mut ResponsesBlockEmitter { count: &mut self.blocks, deltas });
        }
        Ok(())
    }

    /// Completes an item, and emits the data that was not emitted yet.
    fn complete(&mut self, whole: &Value, index: Option<u64>, deltas: &mut Vec<Delta>) -> DecodeResult {
        // vLLM sends the id of some items as `item_id`.
        let id = ["id", "item_id"].map(|key| text(whole, key)).into_iter().find(|id| !id.is_empty());
        let place = ResponsesItemRef { id: id.unwrap_or_default(), index };
        let kind = ResponsesItemKind::of(whole);
        // Some services give the complete call another item id. The call id then identifies it.
        let is_open = |item: &ResponsesItem| {
            !item.done && (index.is_none() || item.index.is_none() || item.index == index)
        };
        let by_call = || self.same(whole).filter(|at| is_open(&self.items[*at]));
        let named = self.named(whole).or_else(by_call).or_else(|| self.unnamed(place, kind));
        let at = named.filter(|at| self.items[*at].kind() == kind);
        let at = match at {
            Some(at) => at,
            None => self.push(whole, place, deltas)?,
        };
        if self.items[at].is_settled() { Ok(()) } else { self.fill(at, whole, deltas) }
    }

    /// Adds the data of a complete item to the known item at this position. If the item is the only message of the
    /// response, and has ended, only text that is still missing is added. With several messages, the text may be that of
    /// another one.
    fn fill(&mut self, at: usize, whole: &Value, deltas: &mut Vec<Delta>) -> DecodeResult {
        let is_message = |item: &&ResponsesItem| item.kind() == ResponsesItemKind::Message;
        let is_alone = is_message(&&self.items[at]) && self.items.iter().filter(is_message).nth(1).is_none();
        let item = &mut self.items[at];
        if item.is_settled() && !is_alone || item.kind() != ResponsesItemKind::of(whole) {
            return Ok(());
        }
        check_count("parts", list(whole, "content"))?;
        item.done = true;
        let mut blocks = ResponsesBlockEmitter { count: &mut self.blocks, deltas };
        match &mut item.state {
            ResponsesItemContent::Message(sections) => {
                self.refused |= item::is_refusal(whole);
                let repetition = item::complete_message(sections, whole, &mut blocks);
                self.warn_if_differs(repetition, deltas);
            }
            ResponsesItemContent::Reasoning(reasoning) => reasoning.complete(whole, &mut blocks),
            ResponsesItemContent::Call(call) => {
                call.complete(whole, &mut blocks);
                text(whole, "call_id").clone_into(&mut item.call_id);
            }
            ResponsesItemContent::Opaque { block } => {
                blocks.extend(*block, Part::Item(whole.clone()));
                blocks.end(*block);
                let answered = item::answered(whole);
                self.open.retain(|(id, _)| answered != Some(id));
                self.open.extend(item::asked(whole).map(|id| (id.to_owned(), open_warning(whole))));
            }
        }
        self.check_blocks()
    }

    /// Completes the response. Emits the data that was not emitted yet, and emits no data twice.
    fn finish(&mut self, output: &[Value], deltas: &mut Vec<Delta>) -> DecodeResult {
        check_count("items", output)?;
        let streamed = self.items.len();
        let mut claimed = vec![false; streamed];
        let mut nameless = Vec::new();
        for whole in output.iter().filter(|whole| whole.is_object()) {
            match self.same(whole) {
                Some(at) => {
                    claimed[at] = true;
                    self.fill(at, whole, deltas)?;
                }
                None => nameless.push(whole),
            }
        }
        // No final item in `nameless` was streamed under its id. If an unclaimed streamed item has the same kind, it is
        // taken to be the same item under another id. If there is none, the final item was not streamed, and is added.
        for whole in nameless {
            let kind = ResponsesItemKind::of(whole);
            let at = (0..streamed).find(|at| !claimed[*at] && self.items[*at].kind() == kind);
            let at = match at {
                Some(at) => at,
                None => self.push(whole, ResponsesItemRef { id: text(whole, "id"), index: None }, deltas)?,
            };
            if let Some(claimed) = claimed.get_mut(at) {
                *claimed = true;
            }
            self.fill(at, whole, deltas)?;
        }
        let mut blocks = ResponsesBlockEmitter { count: &mut self.blocks, deltas };
        for item in &mut self.items {
            if let ResponsesItemContent::Call(call) = &mut item.state {
                call.give_up(&mut blocks).map_err(broken)?;
            }
        }
        deltas.extend(self.open.drain(..).map(|(_, warning)| Delta::warning(warning)));
        Ok(())
    }

    /// Returns the streamed item with the same id. Two items with the same id but different kinds or call ids are
    /// different items.
    fn named(&self, whole: &Value) -> Option<usize> {
        let at = self.ids.get(text(whole, "id")).copied()?;
        let (known, given) = (self.items[at].call_id.as_str(), text(whole, "call_id"));
        let same = known.is_empty() || given.is_empty() || known == given;
        (same && self.items[at].kind() == ResponsesItemKind::of(whole)).then_some(at)
    }

    /// Returns the streamed item with the same item id or the same call id.
    fn same(&self, whole: &Value) -> Option<usize> {
        self.named(whole).or_else(|| {
            let call_id = text(whole, "call_id");
            let same = |item: &ResponsesItem| !call_id.is_empty() && item.call_id == call_id;
            self.items.iter().position(same)
        })
    }

    fn warn_if_differs(&mut self, repetition: RepeatedTextMatch, deltas: &mut Vec<Delta>) {
        if repetition == RepeatedTextMatch::Differs && !self.warned {
            self.warned = true;
            deltas.push(Delta::warning(DIFFERS));
        }
    }

    fn keep(&mut self, bytes: usize) -> DecodeResult {
        self.kept = grown(self.kept, bytes)?;
        Ok(())
    }

    /// Checks the limit of blocks in a message early, so that the deltas of an event cannot grow without end.
    fn check_blocks(&self) -> DecodeResult {
        if self.blocks > Fold::MAX_BLOCKS {
            return Err(broken(format!("more than {} blocks in one response", Fold::MAX_BLOCKS)));
        }
        Ok(())
    }
}

/// Rejects a list that exceeds the limit of blocks in a message. The check is made before the list is read.
fn check_count(what: &str, list: &[Value]) -> DecodeResult {
    if list.len() > Fold::MAX_BLOCKS {
        return Err(broken(format!("more than {} {what} in one response", Fold::MAX_BLOCKS)));
    }
    Ok(())
}

fn grown(kept: usize, more: usize) -> Result<usize, ProviderError> {
    let kept = kept.saturating_add(more);
    if kept > Fold::LIMIT {
        return Err(broken(format!("the response is longer than the limit of {} bytes", Fold::LIMIT)));
    }
    Ok(kept)
}

fn broken(message: impl Into<String>) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message)
}

/// Returns the warning about an item that nothing has answered at the end of a response.
fn open_warning(item: &Value) -> String {
    format!(
        "the response ends with an open item, {} `{}`, which this crate cannot answer: the item is omitted from later \
         requests, unless a user message answers it with a provider item",
        text(item, "type"),
        ["name", "call_id", "id"]
            .map(|key| text(item, key))
            .into_iter()
            .find(|name| !name.is_empty())
            .unwrap_or("")
    )
}

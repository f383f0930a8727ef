use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::{
    NAME,
    calls::{Calls, Fragment},
    details::{Annotations, Details},
    wire::{self, Choice, Chunk, Piece, PromptDetails, ToolCall, Usage as WireUsage},
};
use crate::{
    message::{Attachment, ProviderItem, Usage},
    provider::{
        BlockStart, Delta, MessageDelta, Part, ProviderError, ProviderErrorKind, StopReason,
        dialect::{
            Decoder, Frame,
            alternatives::Alternatives,
            blocks::{Blocks, Kind},
            counts::{LatestUsage, TypedCounts},
            error::{self, is_error},
            lenient::{Count, Reported},
            strays::{self, Strays},
            tame::tamed,
        },
    },
};

/// Decodes one response: a stream of chunks, or one object.
///
/// The terminal event is `[DONE]`. Many compatible servers omit it, so a stream that ends after a finish reason is
/// complete too. Conversely, `[DONE]` makes a response complete even if no chunk had a finish reason, unless the
/// response is empty.
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(super) struct ChatDecoder {
    keep_details: bool,
    alternatives: Alternatives,
    strays: Strays,
    blocks: Blocks,
    calls: Calls,
    details: Details,
    annotations: Annotations,
    /// The id of the response.
    id: String,
    emitted: Option<Facts>,
    usage: LatestUsage,
    stop: Option<StopReason>,
    refused: bool,
    has_audio: bool,
    done: bool,
}

/// The parts of the message's metadata that were already emitted.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Facts {
    id: bool,
    model: bool,
}

impl ChatDecoder {
    /// Creates a decoder. `keep_details` indicates whether the entries of `reasoning_details` become a provider item.
    /// `wants_usage` indicates whether the request asks for usage.
    pub(super) fn new(keep_details: bool, wants_usage: bool) -> Self {
        Self {
            keep_details,
            alternatives: Alternatives::default(),
            strays: Strays::default(),
            blocks: Blocks::default(),
            calls: Calls::default(),
            details: Details::default(),
            annotations: Annotations::default(),
            id: String::new(),
            emitted: None,
            usage: LatestUsage::new(wants_usage),
            stop: None,
            refused: false,
            has_audio: false,
            done: false,
        }
    }

    fn chunk(
        &mut self,
        mut chunk: Chunk<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> Result<(), ProviderError> {
        let mut groq = Reported::Nothing;
        let mut error = chunk.error.take();
        if let Reported::Value(own) = chunk.x_groq {
            error = error.or(own.error);
            groq = own.usage;
        }
        if let Some(error) = error.filter(|error| is_error(error)) {
            return Err(error::from_value(&error).with_body(data));
        }
        let usage = chunk.usage.or(groq);
        if chunk.choices.is_none() && usage == Reported::Nothing {
            return self.strays.skip(data);
        }
        self.emit_metadata(chunk.id.as_str(), chunk.model.as_str(), deltas);
        let choices = chunk.choices.unwrap_or_default();
        let choice = self.alternatives.pick(choices, |choice| choice.index, deltas);
        let Some(mut choice) = choice else {
            self.emit_usage(usage, deltas);
            return Ok(());
        };
        self.emit_usage(usage.or(std::mem::take(&mut choice.usage)), deltas);
        self.choice(choice, data, deltas)
    }

    fn choice(
        &mut self,
        choice: Choice<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> Result<(), ProviderError> {
        if let Some(error) = choice.error.filter(|error| is_error(error)) {
            return Err(error::from_value(&error).with_body(data));
        }
        let whole = choice.delta.is_none() && choice.message.is_some();
        if whole {
            self.usage.is_settled();
        }
        if let Some(mut piece) = choice.delta.or(choice.message) {
            if let Some(error) = piece.error.take().filter(|error| is_error(error)) {
                return Err(error::from_value(&error).with_body(data));
            }
            self.piece(*piece, deltas)?;
        }
        match finish_reason(choice.finish_reason.as_str()) {
            Ok(Some(reason)) => self.stop = Some(reason),
            // A response that arrives as a whole is complete, with or without a finish reason.
            Ok(None) if whole => self.stop = self.stop.take().or(Some(StopReason::Stop)),
            Ok(None) => {}
            Err(message) => {
                return Err(ProviderError::new(ProviderErrorKind::Service, message).with_body(data));
            }
        }
        Ok(())
    }

    fn piece(&mut self, piece: Piece<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        // Services that support both `reasoning_content` and `reasoning` send the same text in both members, so only
        // one of them is read.
        let reasoning = piece.reasoning_content.into_text().or(piece.reasoning.into_text());
        for thinking in
            [reasoning, piece.content.thinking.map(|text| Cow::Owned(text.into()))].into_iter().flatten()
        {
            self.extend(Kind::Thinking, thinking, deltas);
        }
        if let Some(details) = piece.reasoning_details.filter(|_| self.keep_details) {
            self.details.add(*details)?;
        }
        if let Some(annotations) = piece.annotations {
            self.annotations.add(*annotations)?;
        }
        let text = piece.content.text.into_text();
        // When other content begins, the reasoning details are complete. They are emitted at that moment, so that they
        // are kept if the response breaks off.
        let begins = |text: &Cow<'_, str>| !text.is_empty();
        if text.as_ref().is_some_and(begins)
            || piece.tool_calls.as_ref().is_some_and(|calls| !calls.is_empty())
        {
            self.emit_details(false, deltas);
        }
        if let Some(text) = text {
            self.extend(Kind::Text, text, deltas);
        }
        if let Some(refusal) = piece.refusal.into_text() {
            self.refused = true;
            self.extend(Kind::Text, refusal, deltas);
        }
        for image in piece.images.as_deref().and_then(Value::as_array).into_iter().flatten() {
            self.image(image, deltas);
        }
        if let Some(audio) = piece.audio {
            let member = |key| audio[key].as_str().unwrap_or_default();
            self.extend(Kind::Text, Cow::Borrowed(member("transcript")), deltas);
            if !member("data").is_empty() && !std::mem::replace(&mut self.has_audio, true) {
                deltas.push(Delta::warning("the audio of the response is not kept, only its transcript"));
            }
        }
        self.calls.next_chunk();
        let calls = piece.tool_calls.unwrap_or_default();
        let none = calls.iter().all(Option::is_none);
        // The fragments of one chunk are distinguished by their positions if nothing else distinguishes them.
        let several = calls.len() > 1;
        for (place, call) in calls.into_iter().enumerate() {
            if let Some(call) = call {
                self.call(call, several.then_some(place), deltas)?;
            }
        }
        match piece.function_call {
            Some(function) if none => {
                let index = Count(Some(0));
                self.call(ToolCall { index, function: Some(*function), ..ToolCall::default() }, None, deltas)
            }
            _ => Ok(()),
        }
    }

    fn call(
        &mut self,
        call: ToolCall<'_>,
        place: Option<usize>,
        deltas: &mut Vec<Delta>,
    ) -> Result<(), ProviderError> {
        if let Some(custom) = call.custom {
            // Only the first piece of a call has the name.
            let name = custom["name"].as_str().filter(|name| !name.is_empty());
            deltas.extend(name.map(|name| {
                Delta::warning(format!(
                    "the call of the custom tool `{name}` is not kept: this crate cannot answer it"
                ))
            }));
            return Ok(());
        }
        let function = call.function.unwrap_or_default();
        let extra = call.extra_content.filter(|extra| extra.as_object().is_some_and(|it| !it.is_empty()));
        let fragment = Fragment {
            index: call.index.0,
            place,
            id: call.id.into_text().unwrap_or_default(),
            name: function.name.into_text().unwrap_or_default(),
            arguments: function.arguments.into_text().unwrap_or_default(),
            extra,
        };
        let nothing = fragment.id.is_empty() && fragment.name.is_empty() && fragment.arguments.is_empty();
        if nothing && fragment.extra.is_none() {
            return Ok(());
        }
        self.calls.add(fragment, &self.id, &mut self.blocks, deltas)
    }

    fn extend(&mut self, kind: Kind, text: Cow<'_, str>, deltas: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        if !self.calls.is_empty() {
            self.calls.start_named(&self.id, &mut self.blocks, deltas);
        }
        let index = self.blocks.of(kind, deltas);
        deltas.push(Delta::Extend { index, part: Part::Text(text.into_owned()) });
    }

    /// Emits the id and the model as soon as they are known, and the name of the wire format at the first chunk.
    fn emit_metadata(&mut self, id: &str, model: &str, deltas: &mut Vec<Delta>) {
        if self.emitted == Some(Facts { id: true, model: true }) {
            return;
        }
        let emitted = self.emitted.unwrap_or(Facts { id: false, model: false });
        let now = Facts { id: emitted.id || !id.is_empty(), model: emitted.model || !model.is_empty() };
        if self.emitted == Some(now) {
            return;
        }
        let mut data = Map::new();
        if !emitted.id && now.id {
            id.clone_into(&mut self.id);
        }
        if now.id {
            data.insert("id".to_owned(), Value::from(&*self.id));
        }
        let message = MessageDelta {
            model: (!model.is_empty()).then(|| model.to_owned()),
            provider_data: Map::from_iter([(NAME.to_owned(), Value::Object(data))]),
            ..MessageDelta::default()
        };
        self.emitted = Some(now);
        deltas.push(Delta::Message(Box::new(message)));
    }

    /// Emits the usage. Each report covers the whole request so far, so the last report counts.
    fn emit_usage(&mut self, usage: Reported<Box<WireUsage>>, deltas: &mut Vec<Delta>) {
        if usage == Reported::Nothing {
            return;
        }
        let mut counts = TypedCounts::default();
        let usage = counts.read("usage", usage).map(|usage| read_usage(*usage, &mut counts));
        self.usage.report(usage, &counts, deltas);
    }

    /// Emits the entries of `reasoning_details` that arrived after the previous call, as a provider item.
    fn emit_details(&mut self, last: bool, deltas: &mut Vec<Delta>) {
        let Some(entries) = self.details.take(last) else {
            return;
        };
        self.emit_aside(json!({"reasoning_details": entries}), deltas);
    }

    /// Emits an image that the model made: a data URL or another URL, in `image_url`.
    fn image(&mut self, image: &Value, deltas: &mut Vec<Delta>) {
        let Some(url) = image["image_url"]["url"].as_str() else { return };
        let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
        let attachment = match data {
            Some((media_type, data)) => Attachment::base64(media_type, data),
            None => Attachment::url("image/png", url),
        };
        let index = self.blocks.item();
        deltas.push(Delta::Start { index, block: BlockStart::Attachment(attachment) });
        deltas.push(Delta::End { index });
    }

    /// Emits opaque members of the message as a provider item.
    fn emit_aside(&mut self, members: Value, deltas: &mut Vec<Delta>) {
        let item = ProviderItem { format: NAME.to_owned(), data: members };
        let index = self.blocks.aside();
        deltas.push(Delta::Start { index, block: BlockStart::ProviderItem(item) });
        deltas.push(Delta::End { index });
    }

    fn truncated(&self) -> ProviderError {
        self.strays.truncated(self.emitted.is_some(), "the stream ended before the response was complete")
    }

    fn finish(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let reason = self.stop.take();
        let cut = matches!(reason, Some(StopReason::Length | StopReason::ContextLength));
        self.calls.finish(cut, &self.id, &mut self.blocks, deltas)?;
        self.emit_details(true, deltas);
        if let Some(annotations) = self.annotations.take() {
            self.emit_aside(json!({"annotations": annotations}), deltas);
        }
        let wants_tools = !self.calls.is_empty();
        let reason = match reason {
            None if self.blocks.count == 0 => return Err(self.truncated()),
            None | Some(StopReason::Stop | StopReason::ToolUse) if self.refused => StopReason::Refusal,
            // Some servers send `stop` although the response contains calls, and some servers do the reverse.
            None | Some(StopReason::Stop | StopReason::ToolUse) if wants_tools => StopReason::ToolUse,
            None | Some(StopReason::Stop | StopReason::ToolUse) => StopReason::Stop,
            Some(other) => other,
        };
        deltas.push(Delta::stop(reason));
        Ok(())
    }
}

impl Decoder for ChatDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let data = frame.data.trim_ascii();
        if self.done || data.is_empty() {
            return Ok(());
        }
        if data == "[DONE]" {
            self.done = true;
            return self.finish(deltas);
        }
        if frame.event == "error" {
            return Err(error::from_event(data));
        }
        match wire::parse(data) {
            Ok(chunk) => self.chunk(chunk, data, deltas),
            Err(cause) => match tamed(data).as_deref().map(wire::parse) {
                Some(Ok(chunk)) => self.chunk(chunk, data, deltas),
                _ => strays::skip_unreadable(frame, "an event is not a chunk of a chat completion", cause),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_complete(&self) -> bool {
        self.stop.is_some()
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        if self.done {
            return Ok(());
        }
        if self.stop.is_none() {
            return Err(self.truncated());
        }
        self.done = true;
        self.finish(deltas)?;
        self.usage.end(deltas);
        Ok(())
    }
}

/// Returns the meaning of a finish reason, or the failure that it reports as an error.
fn finish_reason(word: &str) -> Result<Option<StopReason>, &'static str> {
    Ok(Some(match word.to_ascii_lowercase().as_str() {
        "" => return Ok(None),
        "stop" | "eos" | "end_turn" => StopReason::Stop,
        "stop_sequence" => StopReason::StopSequence,
        "length" | "max_tokens" => StopReason::Length,
        "model_context_window_exceeded" => StopReason::ContextLength,
        "tool_calls" | "tool_use" | "function_call" => StopReason::ToolUse,
        // `sensitive` is Z.ai's word.
        "content_filter" | "refusal" | "safety" | "sensitive" => StopReason::Refusal,
        "error" => return Err("the service ended the response with an unspecified error"),
        // DeepSeek's word for a response that DeepSeek broke off.
        "insufficient_system_resource" => return Err("the service ran out of resources"),
        // Z.ai's word for a failure at the service.
        "network_error" => return Err("the service lost its connection to the model"),
        _ => StopReason::Other(word.to_owned()),
    }))
}

fn read_usage(usage: WireUsage, counts: &mut TypedCounts) -> Usage {
    let prompt = counts.read("usage.prompt_tokens", usage.prompt_tokens).unwrap_or(0);
    let details = counts.read("usage.prompt_tokens_details", usage.prompt_tokens_details);
    let mut detail = |member, pick: fn(&PromptDetails) -> Reported<u64>| {
        details.as_deref().and_then(|details| counts.read(member, pick(details)))
    };
    let read = detail("usage.prompt_tokens_details.cached_tokens", |details| details.read);
    let written = detail("usage.prompt_tokens_details.cache_write_tokens", |details| details.written)
        .or_else(|| {
            detail("usage.prompt_tokens_details.cache_creation_input_tokens", |details| details.created)
        });
    let cached = read
        .or_else(|| counts.read("usage.prompt_cache_hit_tokens", usage.prompt_cache_hit_tokens))
        .or_else(|| counts.read("usage.cached_tokens", usage.cached_tokens));
    let cache_read = cached.unwrap_or(0).min(prompt);
    let cache_write = written.unwrap_or(0).min(prompt - cache_read);
    let details = counts.read("usage.completion_tokens_details", usage.completion_tokens_details);
    let reasoning = details.map_or(Reported::Nothing, |details| details.reasoning_tokens);
    let reasoning = counts.read("usage.completion_tokens_details.reasoning_tokens", reasoning).unwrap_or(0);
    let mut output = counts.read("usage.completion_tokens", usage.completion_tokens).unwrap_or(0);
    let total = counts.read("usage.total_tokens", usage.total_tokens);
    // xAI's count of completion tokens does not include reasoning tokens. Such a count is recognised by the total,
    // which is then the sum of the prompt, completion and reasoning tokens.
    if total.is_some() && total == prompt.checked_add(output).and_then(|sum| sum.checked_add(reasoning)) {
        output = output.saturating_add(reasoning);
    }
    Usage {
        input: prompt - cache_read - cache_write,
        cache_read,
        cache_write,
        output: output.max(reasoning),
        reasoning,
        cost: counts.read("usage.cost", usage.cost),
    }
}

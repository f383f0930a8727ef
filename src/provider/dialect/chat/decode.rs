//! Decoding of responses. Compatible servers omit members, set them to null or send values of another type. A value that
//! cannot be read is treated as absent, unless the response would lose its meaning without the value.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use super::{
    NAME,
    calls::{ChatCalls, ChatToolCallFragment},
};
use crate::{
    message::{Attachment, ProviderItem, Usage, value_weight},
    provider::{
        BlockStart, Delta, Fold, Part, ProviderError, ProviderErrorKind, StopReason,
        dialect::{
            Decoder, Frame,
            decoding::{
                DIFFERS, DecodeResult, ImplicitResponseBlocks, ReceivedTextDigest, ResponseAlternatives,
                ResponseMetadata, TextBlockKind, UnrelatedStreamEvents, continues, parse, skip_unreadable,
                tamed,
            },
            error::{self, is_error},
            lenient::{AnyJsonValue, LatestUsage, LenientInteger, LenientText, ReportedUsage, StrictText},
        },
    },
};

/// The maximum number of entries in one response. Only a broken server sends more.
const MAX_ENTRIES: usize = 512;

/// The maximum number of parts in which a response's entries are emitted before the end of the response. Without this
/// limit, a service that alternates between text and details with each token would cause a part for each token.
const MAX_TOLD: usize = 16;

/// A chunk of a stream, or a whole response. Rare members are boxed, because most of the time for decoding a chunk is
/// spent on moving these structs.
#[derive(Deserialize)]
struct ChatChunk<'a> {
    #[serde(borrow, default)]
    id: LenientText<'a>,
    #[serde(borrow, default)]
    model: LenientText<'a>,
    #[serde(borrow, default)]
    choices: Option<Vec<Option<ChatChoice<'a>>>>,
    #[serde(default)]
    usage: Option<Box<Value>>,
    /// Groq's additional member. It contains the usage even if the request did not ask for usage.
    #[serde(default)]
    x_groq: Option<Box<Value>>,
    #[serde(default)]
    error: Option<Box<Value>>,
    /// The text that some services, such as Venice, send instead of `error`.
    #[serde(default)]
    error_message: Option<Box<Value>>,
    /// The status that MiniMax sends instead of `error`.
    #[serde(default)]
    base_resp: Option<Box<Value>>,
}

#[derive(Deserialize)]
struct ChatChoice<'a> {
    #[serde(default)]
    index: LenientInteger,
    #[serde(borrow, default)]
    delta: Option<Box<ChatDelta<'a>>>,
    /// The message of a whole response, which has no `delta`. In a stream, some services repeat the response so far in
    /// this member.
    #[serde(borrow, default)]
    message: Option<Box<ChatDelta<'a>>>,
    #[serde(borrow, default)]
    finish_reason: LenientText<'a>,
    /// The finish reason of the service to which OpenRouter forwarded the request.
    #[serde(borrow, default)]
    native_finish_reason: LenientText<'a>,
    #[serde(default)]
    error: Option<Box<Value>>,
    /// The usage, which Moonshot reports inside the choice.
    #[serde(default)]
    usage: Option<Box<Value>>,
}

#[derive(Deserialize)]
struct ChatDelta<'a> {
    #[serde(borrow, default)]
    content: ChatTextOrParts<'a>,
    /// The reasoning. Envoy's gateway sends it with its signature, as an object.
    #[serde(borrow, default, deserialize_with = "text_of_parts")]
    reasoning_content: LenientText<'a>,
    #[serde(borrow, default)]
    reasoning: LenientText<'a>,
    /// GitHub Copilot's name for `reasoning`.
    #[serde(borrow, default)]
    reasoning_text: LenientText<'a>,
    #[serde(default)]
    reasoning_details: Option<Box<Value>>,
    /// The citations of the response, or the content that the service read from a file in the prompt.
    #[serde(default)]
    annotations: Option<Box<Value>>,
    #[serde(borrow, default)]
    refusal: LenientText<'a>,
    /// The images of the response, at OpenRouter and other gateways.
    #[serde(default)]
    images: Option<Box<Value>>,
    /// The audio of the response, with its transcript.
    #[serde(default)]
    audio: Option<Box<Value>>,
    #[serde(default)]
    error: Option<Box<Value>>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<Option<ChatToolCall<'a>>>>,
    /// The only call, in the older API without parallel calls.
    #[serde(borrow, default)]
    function_call: Option<Box<ChatFunction<'a>>>,
}

#[derive(Default, Deserialize)]
struct ChatToolCall<'a> {
    #[serde(default)]
    index: LenientInteger,
    #[serde(borrow, default)]
    id: LenientText<'a>,
    #[serde(borrow, default)]
    function: Option<ChatFunction<'a>>,
    /// The call of a custom tool, in place of `function`.
    #[serde(default)]
    custom: Option<Box<Value>>,
    /// Data that has to be sent back with the call. Google's compatible endpoint sends its thought signature in this
    /// member.
    #[serde(default)]
    extra_content: Option<Box<Value>>,
}

#[derive(Default, Deserialize)]
struct ChatFunction<'a> {
    #[serde(borrow, default)]
    name: LenientText<'a>,
    #[serde(borrow, default)]
    arguments: StrictText<'a>,
}

/// A text, or a list of parts that together form a text. Mistral sends such lists, with `text` and `thinking` parts. The
/// lists of gateways to image models also have images.
#[derive(Default)]
struct ChatTextOrParts<'a> {
    text: LenientText<'a>,
    thinking: Option<Box<str>>,
    images: Option<Box<Value>>,
}

fn text_of_parts<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<LenientText<'a>, D::Error> {
    ChatTextOrParts::deserialize(deserializer).map(|parts| parts.text)
}

impl<'de: 'a, 'a> Deserialize<'de> for ChatTextOrParts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match AnyJsonValue::<Value>::deserialize(deserializer)? {
            AnyJsonValue::Text(text) => Self { text: LenientText::from(text), ..Self::default() },
            AnyJsonValue::Structure(parts) => {
                let (mut text, mut thinking) = (String::new(), String::new());
                gather(&parts, false, &mut text, &mut thinking);
                let thinking = (!thinking.is_empty()).then(|| thinking.into_boxed_str());
                let is_image = |part: &&Value| part.get("image_url").is_some();
                let images = parts.as_array().filter(|parts| parts.iter().any(|part| is_image(&part)));
                let images = images.map(|parts| Box::new(parts.iter().filter(is_image).cloned().collect()));
                Self { text: LenientText::from(Cow::Owned(text)), thinking, images }
            }
            _ => Self::default(),
        })
    }
}

fn gather(part: &Value, in_thinking: bool, text: &mut String, thinking: &mut String) {
    match part {
        Value::String(words) if in_thinking => thinking.push_str(words),
        Value::String(words) => text.push_str(words),
        Value::Array(parts) => parts.iter().for_each(|part| gather(part, in_thinking, text, thinking)),
        Value::Object(part) => match (part.get("thinking"), part.get("text")) {
            (Some(inner), _) => gather(inner, true, text, thinking),
            (None, Some(words)) => gather(words, in_thinking, text, thinking),
            _ => {}
        },
        _ => {}
    }
}

/// Decodes one response: a stream of chunks, or one object.
///
/// The terminal event is `[DONE]`. Many compatible servers omit it, so a stream that ends after a finish reason is
/// complete too, unless content has followed the finish reason. Conversely, `[DONE]` makes a response complete even if no chunk had a finish reason, unless the
/// response is empty.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(super) struct ChatDecoder {
    keep_details: bool,
    alternatives: ResponseAlternatives,
    strays: UnrelatedStreamEvents,
    blocks: ImplicitResponseBlocks,
    calls: ChatCalls,
    details: ChatReasoningDetails,
    annotations: ChatAnnotations,
    metadata: ResponseMetadata,
    usage: LatestUsage,
    stop: Option<StopReason>,
    /// Whether more content has arrived after the last finish reason.
    continued: bool,
    /// The text and the reasoning so far, which a whole message at the end repeats.
    text: ReceivedTextDigest,
    thinking: ReceivedTextDigest,
    /// The number of images so far.
    images: usize,
    /// Whether a delta has arrived.
    streamed: bool,
    /// Whether the warning about a differing text was emitted.
    warned: bool,
    /// Whether text, an image or the call of a custom tool has arrived.
    answered: bool,
    refused: bool,
    has_audio: bool,
    done: bool,
}

impl ChatDecoder {
    /// Creates a decoder. `keep_details` indicates whether the entries of `reasoning_details` become a provider item.
    /// `wants_usage` indicates whether the request asks for usage.
    pub(super) fn new(keep_details: bool, wants_usage: bool) -> Self {
        Self { keep_details, usage: LatestUsage::new(wants_usage), ..Self::default() }
    }

    fn chunk(&mut self, mut chunk: ChatChunk<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        let mut groq = chunk.x_groq.unwrap_or_default();
        let mut groq = |key| groq.get_mut(key).map(|value| Box::new(value.take())).filter(|it| !it.is_null());
        if let Some(error) = chunk.error.take().or_else(|| groq("error")).filter(|error| is_error(error)) {
            return Err(error::from_value(&error).with_body(data));
        }
        if chunk.error_message.as_deref().is_some_and(is_error)
            && chunk.choices.as_ref().is_none_or(Vec::is_empty)
        {
            return Err(error::from_event(data));
        }
        if let Some(failure) = chunk.base_resp.as_deref().and_then(minimax_failure)
            && chunk.choices.is_none()
        {
            return Err(failure.with_body(data));
        }
        let usage = chunk.usage.or_else(|| groq("usage"));
        if chunk.choices.is_none() && usage.is_none() {
            return self.strays.skip(data);
        }
        self.metadata.emit(NAME, "id", chunk.id.as_str(), chunk.model.as_str(), deltas);
        let choices = chunk.choices.unwrap_or_default();
        let mut choices = self.alternatives.pick(choices, |choice| choice.index, deltas);
        let has_usage = usage.is_some();
        self.emit_usage(usage, deltas);
        choices.try_for_each(|mut choice| {
            self.emit_usage(choice.usage.take().filter(|_| !has_usage), deltas);
            self.choice(choice, data, deltas)
        })
    }

    fn choice(&mut self, choice: ChatChoice<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
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
            let repeats = whole && self.streamed;
            self.streamed |= !whole;
            if repeats {
                self.keep_rest(&mut piece, deltas);
            }
            let before = deltas.len();
            self.piece(*piece, repeats, deltas)?;
            self.continued |= self.stop.is_some() && continues(&deltas[before..]);
        }
        let reason = match finish_reason(choice.finish_reason.as_str()) {
            // OpenRouter reports some failures of the underlying service as an empty response.
            Ok(Some(StopReason::Stop)) if self.blocks.count == 0 && self.calls.is_empty() => {
                finish_reason(choice.native_finish_reason.as_str()).map(|_| Some(StopReason::Stop))
            }
            reason => reason,
        };
        self.stop = match reason {
            Ok(Some(reason)) => Some(reason),
            // A response that arrives as a whole is complete, with or without a finish reason.
            Ok(None) if whole => self.stop.take().or(Some(StopReason::Stop)),
            Ok(None) => return Ok(()),
            Err(message) => {
                return Err(ProviderError::new(ProviderErrorKind::Service, message).with_body(data));
            }
        };
        self.continued = false;
        Ok(())
    }

    /// Removes the content that was streamed from a message that repeats the whole response. MiniMax ends its streams
    /// with such a message. Images and tool calls are compared later.
    fn keep_rest(&mut self, whole: &mut ChatDelta<'_>, deltas: &mut Vec<Delta>) {
        let fields = [&mut whole.reasoning_content, &mut whole.reasoning, &mut whole.reasoning_text];
        let named = fields.map(std::mem::take).into_iter().find_map(LenientText::into_text);
        let parts = [named.as_deref(), whole.content.thinking.as_deref()];
        let (thinking, text) = (parts.map(Option::unwrap_or_default).concat(), whole.content.text.as_str());
        let rest = |received: &ReceivedTextDigest, whole: &str| {
            LenientText::from(Cow::Owned(received.rest(whole).unwrap_or_default().to_owned()))
        };
        let differs = self.text.differs(text) || self.thinking.differs(&thinking);
        let images = whole.content.images.take();
        whole.content = ChatTextOrParts { text: rest(&self.text, text), thinking: None, images };
        whole.reasoning = rest(&self.thinking, &thinking);
        if differs && !std::mem::replace(&mut self.warned, true) {
            deltas.push(Delta::warning(DIFFERS));
        }
        if self.refused {
            whole.refusal = LenientText::default();
        }
        whole.audio.take_if(|_| self.answered);
        whole.reasoning_details.take_if(|_| !self.details.is_empty());
    }

    /// Decodes a part of a message. `repeats` indicates whether its images and tool calls repeat those so far.
    fn piece(&mut self, piece: ChatDelta<'_>, repeats: bool, deltas: &mut Vec<Delta>) -> DecodeResult {
        // Services that support both `reasoning_content` and `reasoning` send the same text in both members, so only
        // one of them is read.
        let reasoning = piece.reasoning_content.into_text().or(piece.reasoning.into_text());
        let reasoning = reasoning.or(piece.reasoning_text.into_text());
        for thinking in
            [reasoning, piece.content.thinking.map(|text| Cow::Owned(text.into()))].into_iter().flatten()
        {
            self.extend(TextBlockKind::Thinking, thinking, deltas);
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
            self.extend(TextBlockKind::Text, text, deltas);
        }
        if let Some(refusal) = piece.refusal.into_text() {
            self.refused = true;
            self.extend(TextBlockKind::Text, refusal, deltas);
        }
        // Only one of the lists is read, because they may have the same images.
        let images = piece.images.or(piece.content.images);
        let images = images.as_deref().and_then(Value::as_array).into_iter().flatten();
        for image in images.skip(if repeats { self.images } else { 0 }) {
            self.image(image, deltas);
        }
        if let Some(audio) = piece.audio {
            let member = |key| audio[key].as_str().unwrap_or_default();
            self.extend(TextBlockKind::Text, Cow::Borrowed(member("transcript")), deltas);
            if !member("data").is_empty() && !std::mem::replace(&mut self.has_audio, true) {
                deltas.push(Delta::warning("the audio of the response is not kept, only its transcript"));
            }
        }
        self.calls.next_chunk();
        let calls = piece.tool_calls.unwrap_or_default();
        let none = calls.iter().all(Option::is_none);
        // If the ids of repeated calls are new, their positions identify them.
        let is_known = |call: &ChatToolCall<'_>| self.calls.has_id(call.id.as_str());
        let repeats =
            repeats.then(|| if calls.iter().flatten().any(is_known) { 0 } else { self.calls.len() });
        // The fragments of one chunk are distinguished by their positions if nothing else distinguishes them.
        let several = calls.len() > 1 || repeats.is_some();
        for (place, call) in calls.into_iter().enumerate() {
            if let Some(call) = call {
                self.call(call, several.then_some(place), repeats, deltas)?;
            }
        }
        match piece.function_call {
            Some(function) if none => {
                let index = LenientInteger(Some(0));
                let call = ChatToolCall { index, function: Some(*function), ..ChatToolCall::default() };
                self.call(call, repeats.and(Some(0)), repeats, deltas)
            }
            _ => Ok(()),
        }
    }

    /// Adds a fragment of a call. `repeats` is the number of calls that complete calls may repeat, if this is a complete
    /// call.
    fn call(
        &mut self,
        call: ChatToolCall<'_>,
        place: Option<usize>,
        repeats: Option<usize>,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        if let Some(custom) = call.custom {
            // Only the first piece of a call has the name.
            let name = custom["name"].as_str().filter(|name| !name.is_empty());
            self.answered = true;
            deltas.extend(name.map(|name| {
                Delta::warning(format!(
                    "the call of the custom tool `{name}` is not kept: this crate cannot answer it"
                ))
            }));
            return Ok(());
        }
        let function = call.function.unwrap_or_default();
        let extra = call.extra_content.filter(|extra| extra.as_object().is_some_and(|it| !it.is_empty()));
        let fragment = ChatToolCallFragment {
            index: call.index.0,
            place,
            id: call.id.into_text().unwrap_or_default(),
            name: function.name.into_text().unwrap_or_default(),
            arguments: function.arguments.0,
            extra,
        };
        let nothing = fragment.id.is_empty() && fragment.name.is_empty() && fragment.arguments.is_empty();
        if nothing && fragment.extra.is_none() {
            return Ok(());
        }
        match repeats {
            Some(known) => self.calls.repeat(fragment, known, &self.metadata.id, &mut self.blocks, deltas),
            None => self.calls.add(fragment, &self.metadata.id, &mut self.blocks, deltas),
        }
    }

    fn extend(&mut self, kind: TextBlockKind, text: Cow<'_, str>, deltas: &mut Vec<Delta>) {
        if text.is_empty() {
            return;
        }
        if !self.calls.is_empty() {
            self.calls.start_named(&self.metadata.id, &mut self.blocks, deltas);
        }
        self.answered |= kind == TextBlockKind::Text;
        match kind {
            TextBlockKind::Text => self.text.add(&text),
            TextBlockKind::Thinking => self.thinking.add(&text),
        }
        let index = self.blocks.of(kind, deltas);
        deltas.push(Delta::Extend { index, part: Part::Text(text.into_owned()) });
    }

    /// Emits the usage. Each report covers the whole request so far, so the last report counts.
    fn emit_usage(&mut self, usage: Option<Box<Value>>, deltas: &mut Vec<Delta>) {
        if let Some(usage) = usage {
            self.usage.report(ReportedUsage::of("usage", "usage.", &usage), read_usage, deltas);
        }
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
        self.answered = true;
        self.images += 1;
        self.blocks.whole(BlockStart::Attachment(attachment), deltas);
    }

    /// Emits opaque members of the message as a provider item.
    fn emit_aside(&mut self, members: Value, deltas: &mut Vec<Delta>) {
        let item = ProviderItem { format: NAME.to_owned(), data: members };
        let index = self.blocks.aside();
        deltas.push(Delta::Start { index, block: BlockStart::ProviderItem(item) });
        deltas.push(Delta::End { index });
    }

    fn truncated(&self) -> ProviderError {
        self.strays
            .truncated(self.metadata.data.is_some(), "the stream ended before the response was complete")
    }

    fn finish(&mut self, deltas: &mut Vec<Delta>) -> DecodeResult {
        let reason = self.stop.take();
        let cut = matches!(reason, Some(StopReason::Length | StopReason::ContextLength));
        self.calls.finish(cut, &self.metadata.id, &mut self.blocks, deltas)?;
        self.emit_details(true, deltas);
        if let Some(annotations) = self.annotations.take() {
            self.emit_aside(json!({"annotations": annotations}), deltas);
        }
        let wants_tools = !self.calls.is_empty();
        let reason = match reason {
            None if self.blocks.count == 0 => return Err(self.truncated()),
            None | Some(StopReason::Stop | StopReason::ToolUse) if self.refused => StopReason::Refusal,
            Some(StopReason::ToolUse) if self.blocks.count == 0 && !wants_tools && !self.answered => {
                let message = "the response announces a tool call, but has no content";
                return Err(ProviderError::new(ProviderErrorKind::Service, message));
            }
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
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> DecodeResult {
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
        match parse(data) {
            Ok(chunk) => self.chunk(chunk, data, deltas),
            Err(cause) => match tamed(data).as_deref().map(parse) {
                Some(Ok(chunk)) => self.chunk(chunk, data, deltas),
                _ => skip_unreadable(frame, "an event is not a chunk of a chat completion", cause),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_complete(&self) -> bool {
        match &self.stop {
            _ if self.continued => false,
            Some(StopReason::Stop | StopReason::ToolUse) => self.answered || !self.calls.is_empty(),
            stop => stop.is_some(),
        }
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> DecodeResult {
        if self.done {
            return Ok(());
        }
        if self.stop.is_none() || self.continued {
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
    let lower = word.to_ascii_lowercase();
    // Google's compatible endpoint adds its own word: `content_filter: RECITATION`.
    Ok(Some(match lower.split(':').next().unwrap_or_default().trim_end() {
        // KoboldCpp sends the word `null` until the response ends.
        "" | "null" | "none" => return Ok(None),
        "stop" | "eos" | "eos_token" | "end" | "end_turn" => StopReason::Stop,
        "stop_sequence" => StopReason::StopSequence,
        "length" | "max_tokens" | "model_length" => StopReason::Length,
        "model_context_window_exceeded" => StopReason::ContextLength,
        "tool_calls" | "tool_use" | "function_call" => StopReason::ToolUse,
        // `sensitive` is Z.ai's word.
        "content_filter" | "refusal" | "safety" | "sensitive" => StopReason::Refusal,
        // `error_finish` is Alibaba's word.
        "error" | "error_finish" => {
            return Err("the service ended the response with an unspecified error");
        }
        // The words of Google's models for an unreadable call or response. A retry gives a different response.
        "function_call_filter"
        | "malformed_function_call"
        | "malformed_response"
        | "unexpected_tool_call" => {
            return Err("the model wrote an unreadable call");
        }
        // The word of vLLM and Z.ai for a response that the server broke off.
        "abort" => return Err("the service broke off the response"),
        // DeepSeek's word for a response that DeepSeek broke off.
        "insufficient_system_resource" => return Err("the service ran out of resources"),
        // The words of Z.ai and of OpenCode for a failure at the service.
        "network_error" | "network-error" => return Err("the service lost its connection to the model"),
        _ => StopReason::Other(word.to_owned()),
    }))
}

/// Returns the failure that MiniMax reports in `base_resp`, with its own codes.
fn minimax_failure(report: &Value) -> Option<ProviderError> {
    let code = report["status_code"].as_u64().filter(|code| *code != 0)?;
    let status = match code {
        1002 | 1039 => 429,
        1004 | 2049 => 401,
        1008 => 402,
        1026 | 1027 | 1042 | 2013 => 400,
        _ => 500,
    };
    Some(error::from_value(&json!({"code": status, "message": report["status_msg"]})))
}

fn read_usage(report: &mut ReportedUsage<'_>) -> Usage {
    let prompt = report.count(&["prompt_tokens"]).unwrap_or(0);
    let read = report.count(&["prompt_tokens_details", "cached_tokens"]);
    let written = report.cache_writes("prompt_tokens_details");
    // The other two names for tokens that were read from the cache are those of DeepSeek and Moonshot.
    let cached = read
        .or_else(|| report.count(&["prompt_cache_hit_tokens"]))
        .or_else(|| report.count(&["cached_tokens"]));
    let cache_read = cached.unwrap_or(0).min(prompt);
    let cache_write = written.unwrap_or(0).min(prompt - cache_read);
    let reasoning = report.count(&["completion_tokens_details", "reasoning_tokens"]);
    let usage = Usage {
        input: prompt - cache_read - cache_write,
        cache_read,
        cache_write,
        output: report.count(&["completion_tokens"]).unwrap_or(0),
        reasoning: 0,
        cost: report.cost(),
    };
    report.with_reasoning(usage, reasoning)
}

/// The entries of `reasoning_details`, assembled from their fragments. They have to be sent back complete, unchanged
/// and in order: <https://openrouter.ai/docs/use-cases/reasoning-tokens#preserving-reasoning-blocks>.
///
/// The entries are emitted in parts, as soon as they are complete. A late fragment for an entry that was already
/// emitted begins the next part. The fragment is joined to its entry when the entries are sent back.
#[derive(Default)]
struct ChatReasoningDetails {
    entries: Vec<Value>,
    weight: usize,
    /// The number of entries that were emitted.
    emitted: usize,
    parts: usize,
}

impl ChatReasoningDetails {
    fn add(&mut self, fragments: Value) -> DecodeResult {
        self.weight += value_weight(&fragments);
        if self.weight > Fold::LIMIT {
            return Err(endless());
        }
        let Value::Array(fragments) = fragments else {
            return Ok(());
        };
        for fragment in fragments {
            let Value::Object(fragment) = fragment else { continue };
            if let Some(fragment) = continued(&mut self.entries, fragment) {
                if self.emitted + self.entries.len() == MAX_ENTRIES {
                    return Err(endless());
                }
                self.entries.push(Value::Object(fragment));
            }
        }
        Ok(())
    }

    /// Returns whether no entry has arrived.
    fn is_empty(&self) -> bool {
        self.emitted == 0 && self.entries.is_empty()
    }

    /// Returns the entries that were added after the previous call, if there are any. After [`MAX_TOLD`] parts, entries
    /// are returned only if `last` is true.
    fn take(&mut self, last: bool) -> Option<Vec<Value>> {
        if self.entries.is_empty() || self.parts == MAX_TOLD && !last {
            return None;
        }
        self.parts += 1;
        self.emitted += self.entries.len();
        Some(std::mem::take(&mut self.entries))
    }
}

/// The annotations of a response: its citations, and the content that the service read from files in the prompt. Each
/// annotation arrives complete, and may be repeated.
#[derive(Default)]
struct ChatAnnotations {
    list: Vec<Value>,
    weight: usize,
}

impl ChatAnnotations {
    fn add(&mut self, annotations: Value) -> DecodeResult {
        let Value::Array(annotations) = annotations else {
            return Ok(());
        };
        for annotation in annotations {
            if !annotation.is_object() || self.list.contains(&annotation) {
                continue;
            }
            self.weight += value_weight(&annotation);
            if self.weight > Fold::LIMIT || self.list.len() == MAX_ENTRIES {
                return Err(ProviderError::new(
                    ProviderErrorKind::Decoding,
                    "the annotations of the response exceed the size limit",
                ));
            }
            self.list.push(annotation);
        }
        Ok(())
    }

    /// Returns all annotations, if there are any.
    fn take(&mut self) -> Option<Vec<Value>> {
        (!self.list.is_empty()).then(|| std::mem::take(&mut self.list))
    }
}

/// Appends a later part of a response's entries to the entries of the earlier parts.
pub(super) fn append_details(entries: &mut Vec<Value>, part: &[Value]) {
    for entry in part {
        let rest = match entry {
            // Each entry requires a search through all others, so the number of joined entries is limited. A response
            // contains at most this many entries.
            Value::Object(entry) if entries.len() <= MAX_ENTRIES => {
                continued(entries, entry.clone()).map(Value::Object)
            }
            entry => Some(entry.clone()),
        };
        entries.extend(rest);
    }
}

/// Joins a fragment to the entry that the fragment continues. Returns the fragment if there is no such entry.
fn continued(entries: &mut [Value], fragment: Map<String, Value>) -> Option<Map<String, Value>> {
    let count = entries.len();
    let goes_on = |(at, entry): &(usize, &mut Value)| {
        entry.as_object().is_some_and(|entry| belongs(entry, &fragment, at + 1 == count))
    };
    match entries.iter_mut().enumerate().rev().find(goes_on) {
        Some((_, entry)) => {
            join(entry, fragment);
            None
        }
        None => Some(fragment),
    }
}

/// Returns whether a fragment belongs to an entry. The fragment and its entry have the same type, and the same index or
/// id. A fragment without an index and an id continues the last entry.
fn belongs(entry: &Map<String, Value>, fragment: &Map<String, Value>, is_last: bool) -> bool {
    // `None` if the entry or the fragment has no value for this key.
    let same = |key| value_of(entry, key).zip(value_of(fragment, key)).map(|(one, other)| one == other);
    let named = ["id", "index"].iter().any(|key| value_of(fragment, key).is_some());
    let together = match (same("id"), same("index")) {
        (Some(false), _) | (_, Some(false)) => false,
        (Some(true), _) | (_, Some(true)) => true,
        (None, None) => is_last && !named,
    };
    // An encrypted payload arrives complete. A repeated payload of the same entry is identical.
    let whole = |data| entry.get("data") == Some(data);
    same("type") == Some(true) && together && value_of(fragment, "data").is_none_or(whole)
}

fn value_of<'a>(part: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    part.get(key).filter(|value| !value.is_null())
}

fn join(entry: &mut Value, fragment: Map<String, Value>) {
    let Some(entry) = entry.as_object_mut() else {
        return;
    };
    for (key, value) in fragment {
        match (entry.get_mut(&key), value) {
            (Some(Value::String(text)), Value::String(more)) if key == "text" || key == "summary" => {
                text.push_str(&more);
            }
            (Some(_), Value::Null) => {}
            (_, value) => {
                entry.insert(key, value);
            }
        }
    }
}

fn endless() -> ProviderError {
    let message = "the reasoning details of the response exceed the size limit";
    ProviderError::new(ProviderErrorKind::Decoding, message)
}

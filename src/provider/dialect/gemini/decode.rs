//! Decoding of responses. A value that cannot be read is treated as absent, unless the response would lose its meaning
//! without the value.

use std::{fmt, marker::PhantomData};

use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, Visitor},
};
use serde_json::{Map, Value, json};

use super::{NAME, SOURCES, refined};
use crate::{
    message::{Attachment, ProviderItem, ToolUseId, Usage, value_weight},
    provider::{
        BlockStart, Delta, Fold, MessageDelta, Part, ProviderError, ProviderErrorKind, StopReason,
        dialect::{
            Decoder, Frame,
            decoding::{
                DecodeResult, ImplicitResponseBlocks, ResponseAlternatives, ResponseMetadata,
                ResponseToolCallIds, TextBlockKind, UnrelatedStreamEvents, bad, continues, skip_unreadable,
                tamed,
            },
            error::{self, is_error},
            lenient::{LatestUsage, LenientInteger, LenientText, ReportedUsage, ToolCallArguments},
        },
    },
};

/// The maximum number of names and indices in a path. Deeper JSON could not be parsed.
const MAX_STEPS: usize = 100;

/// A chunk of a stream, or a whole response.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiChunk<'a> {
    #[serde(borrow, default)]
    candidates: Option<Vec<Option<GeminiCandidate<'a>>>>,
    #[serde(default)]
    prompt_feedback: Option<Box<Value>>,
    #[serde(default)]
    usage_metadata: Option<Box<Value>>,
    #[serde(borrow, default)]
    model_version: LenientText<'a>,
    #[serde(borrow, default)]
    response_id: LenientText<'a>,
    #[serde(default)]
    error: Option<Box<Value>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiCandidate<'a> {
    #[serde(default)]
    index: LenientInteger,
    #[serde(borrow, default)]
    content: Option<GeminiContent<'a>>,
    #[serde(borrow, default)]
    finish_reason: LenientText<'a>,
    #[serde(borrow, default)]
    finish_message: LenientText<'a>,
    #[serde(default)]
    grounding_metadata: Option<Box<Value>>,
    #[serde(default)]
    citation_metadata: Option<Box<Value>>,
    #[serde(default)]
    url_context_metadata: Option<Box<Value>>,
}

#[derive(Deserialize)]
struct GeminiContent<'a> {
    #[serde(borrow, default)]
    parts: Option<Vec<Option<GeminiPart<'a>>>>,
}

/// A part: text, a call, a file, or data that only the service understands.
#[derive(Default)]
struct GeminiPart<'a> {
    text: Option<LenientText<'a>>,
    thought: bool,
    signature: LenientText<'a>,
    call: Option<GeminiCall<'a>>,
    data: Option<Box<GeminiBlob>>,
    /// All other members.
    other: Map<String, Value>,
}

#[derive(Deserialize)]
struct GeminiCall<'a> {
    #[serde(borrow, default)]
    id: LenientText<'a>,
    #[serde(borrow, default)]
    name: LenientText<'a>,
    #[serde(borrow, default)]
    args: ToolCallArguments<'a>,
    /// Parts of the arguments, if the request asks for them with `streamFunctionCallArguments`.
    #[serde(rename = "partialArgs", default)]
    partial_args: Option<Vec<Value>>,
    /// Whether more parts of the call follow.
    #[serde(rename = "willContinue", default)]
    will_continue: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeminiBlob {
    #[serde(default)]
    mime_type: String,
    #[serde(default)]
    data: String,
}

struct GeminiPartVisitor<'a>(PhantomData<&'a str>);

impl<'de: 'a, 'a> Visitor<'de> for GeminiPartVisitor<'a> {
    type Value = GeminiPart<'a>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a content")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<GeminiPart<'a>, M::Error> {
        let mut part = GeminiPart::default();
        while let Some(key) = map.next_key::<LenientText<'de>>()? {
            match key.as_str() {
                "text" => part.text = map.next_value()?,
                "thought" => part.thought = map.next_value::<Option<bool>>()?.unwrap_or(false),
                "thoughtSignature" => part.signature = map.next_value()?,
                "functionCall" => part.call = map.next_value()?,
                "inlineData" => part.data = map.next_value()?,
                "" => {
                    map.next_value::<IgnoredAny>()?;
                }
                other => {
                    let other = other.to_owned();
                    let value: Value = map.next_value()?;
                    if !value.is_null() {
                        part.other.insert(other, value);
                    }
                }
            }
        }
        Ok(part)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for GeminiPart<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(GeminiPartVisitor(PhantomData))
    }
}

/// Parses the chunks in a JSON text. The text is a single chunk or a list of chunks. The service sends a list if the
/// request did not ask for events.
fn parse_chunks(data: &str) -> Result<Vec<GeminiChunk<'_>>, serde_json::Error> {
    // Without this check, a list would be parsed as a struct without member names.
    match data.as_bytes() {
        [b'{', ..] => serde_json::from_str(data).map(|chunk| vec![chunk]),
        [b'[', rest @ ..] if matches!(rest.trim_ascii_start(), [b'{', ..]) => serde_json::from_str(data),
        _ => Err(de::Error::custom("a JSON object was expected")),
    }
}

/// Decodes one response. The response is a stream of chunks, a single chunk, or a list of chunks.
///
/// The wire format has no terminal event. A response is complete after a chunk with a finish reason or with the reason
/// why the prompt was blocked. A usage report may follow. If content follows, it needs another finish reason.
#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent facts")]
pub(super) struct GeminiDecoder {
    alternatives: ResponseAlternatives,
    strays: UnrelatedStreamEvents,
    blocks: ImplicitResponseBlocks,
    ids: ResponseToolCallIds,
    /// The call whose arguments are not complete yet.
    open_call: Option<GeminiOpenCall>,
    metadata: ResponseMetadata,
    /// Whether the provider data has members that are emitted only at the end of the response.
    has_more_data: bool,
    usage: LatestUsage,
    /// The sources of the response. The last value of each member counts.
    sources: Map<String, Value>,
    stop: Option<StopReason>,
    /// Whether more content has arrived after the last finish reason.
    continued: bool,
    /// Whether text, a call or a file has arrived after the last part of a tool that the service runs.
    answered: bool,
    done: bool,
}

impl GeminiDecoder {
    fn chunk(&mut self, chunk: GeminiChunk<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        if chunk.error.as_ref().is_some_and(|error| is_error(error)) {
            return Err(error_text(data));
        }
        let empty = chunk.candidates.is_none() && chunk.prompt_feedback.is_none();
        if empty && chunk.usage_metadata.is_none() && chunk.response_id.as_str().is_empty() {
            return self.strays.skip(data).map_err(|error| refined(error, data));
        }
        let (id, model) = (chunk.response_id.as_str(), chunk.model_version.as_str());
        self.metadata.emit(NAME, "responseId", id, model, deltas);
        // Each report covers the whole request so far, so the last report counts.
        if let Some(usage) = chunk.usage_metadata {
            let report = ReportedUsage::of("usageMetadata", "usageMetadata.", &usage);
            self.usage.report(report, read_usage, deltas);
        }
        if let Some(feedback) = chunk.prompt_feedback {
            let reason = feedback.get("blockReason").and_then(Value::as_str).unwrap_or_default();
            if !matches!(reason, "" | "BLOCK_REASON_UNSPECIFIED") {
                self.stop = Some(StopReason::Refusal);
                self.keep([("promptFeedback", *feedback)]);
            }
        }
        let candidates = chunk.candidates.unwrap_or_default();
        let mut candidates = self.alternatives.pick(candidates, |candidate| candidate.index, deltas);
        candidates.try_for_each(|candidate| self.candidate(candidate, data, deltas))
    }

    fn candidate(
        &mut self,
        candidate: GeminiCandidate<'_>,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let parts = candidate.content.and_then(|content| content.parts);
        let before = deltas.len();
        for part in parts.into_iter().flatten().flatten() {
            self.part(part, data, deltas)?;
        }
        self.continued |= self.stop.is_some() && continues(&deltas[before..]);
        let sources =
            [candidate.grounding_metadata, candidate.citation_metadata, candidate.url_context_metadata];
        for (key, value) in SOURCES.into_iter().zip(sources) {
            self.sources.extend(value.map(|value| (key.to_owned(), *value)));
        }
        let (word, why) = (candidate.finish_reason.as_str(), candidate.finish_message.as_str());
        match finish_reason(word) {
            Ok(None) => {}
            Ok(Some(reason)) => {
                if !matches!(reason, StopReason::Stop | StopReason::Length) {
                    let reasons = [("finishReason", word), ("finishMessage", why)];
                    let reasons = reasons.into_iter().filter(|(_, text)| !text.is_empty());
                    self.keep(reasons.map(|(key, text)| (key, Value::from(text))));
                }
                self.stop = Some(reason);
                self.continued = false;
            }
            Err(kind) => {
                let separator = if why.is_empty() { "" } else { ": " };
                let message = format!("the service ended the response with {word}{separator}{why}");
                return Err(ProviderError::new(kind, message).with_body(data));
            }
        }
        Ok(())
    }

    fn part(&mut self, part: GeminiPart<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        let GeminiPart { text, thought, signature, call, data: file, mut other } = part;
        // The service runs its own tools in rounds, each of which may have a finish reason.
        let is_tool = text.is_none() && call.is_none() && file.is_none() && !other.is_empty();
        let is_text = text.as_ref().is_some_and(|text| !text.as_str().is_empty());
        let answers = !thought && (is_text || call.is_some() || file.is_some());
        self.answered = !is_tool && (self.answered || answers);
        if let Some(call) = call {
            return self.call(&call, signature.as_str(), data, deltas);
        }
        if let Some(file) = file {
            self.file(*file, thought, signature.as_str(), deltas);
            return Ok(());
        }
        let is_text = text.is_some() || other.is_empty();
        if is_text {
            let text = text.as_ref().map(LenientText::as_str).unwrap_or_default();
            self.text(text, thought, signature.as_str(), deltas);
            return Ok(());
        }
        if thought {
            other.insert("thought".to_owned(), true.into());
        }
        if !signature.as_str().is_empty() {
            other.insert("thoughtSignature".to_owned(), signature.as_str().into());
        }
        self.item(other, deltas);
        Ok(())
    }

    /// Adds a text part. A signed part becomes a separate block, because it has to be sent back unchanged:
    /// <https://ai.google.dev/gemini-api/docs/thought-signatures>. All other text is appended to the current block of
    /// its kind.
    fn text(&mut self, text: &str, thought: bool, signature: &str, deltas: &mut Vec<Delta>) {
        let grow = |index| Delta::Extend { index, part: Part::Text(text.to_owned()) };
        if signature.is_empty() {
            if !text.is_empty() {
                let kind = if thought { TextBlockKind::Thinking } else { TextBlockKind::Text };
                let index = self.blocks.of(kind, deltas);
                deltas.push(grow(index));
            }
            return;
        }
        let block = if thought { BlockStart::Thinking } else { BlockStart::Text };
        let index = self.blocks.item();
        deltas.push(Delta::Start { index, block });
        if !text.is_empty() {
            deltas.push(grow(index));
        }
        deltas.push(Delta::Extend { index, part: Part::Signature(signature.to_owned()) });
        deltas.push(Delta::End { index });
    }

    fn call(
        &mut self,
        call: &GeminiCall<'_>,
        signature: &str,
        data: &str,
        deltas: &mut Vec<Delta>,
    ) -> DecodeResult {
        let name = call.name.as_str().to_owned();
        // Only the first part of a call has a name.
        let open = self.open_call.take_if(|_| name.is_empty());
        self.end_call(deltas);
        let mut open = match open {
            Some(open) => open,
            None if name.is_empty() => return Err(bad("a function call has no name", data)),
            None => {
                let id = ToolUseId::from(self.ids.next(call.id.as_str(), &self.metadata.id)?);
                let block = self.blocks.item();
                deltas.push(Delta::Start { index: block, block: BlockStart::ToolUse { id, name } });
                GeminiOpenCall { block, args: call.args.as_str().to_owned(), ..GeminiOpenCall::default() }
            }
        };
        call.partial_args
            .iter()
            .flatten()
            .try_for_each(|part| open.add(part))
            .map_err(|why| bad(why, data))?;
        if !signature.is_empty() {
            let part = Part::Signature(signature.to_owned());
            deltas.push(Delta::Extend { index: open.block, part });
        }
        self.open_call = Some(open);
        if call.will_continue != Some(true) {
            self.end_call(deltas);
        }
        Ok(())
    }

    fn end_call(&mut self, deltas: &mut Vec<Delta>) {
        if let Some(open) = self.open_call.take() {
            let index = open.block;
            deltas.push(Delta::Extend { index, part: Part::Input(open.input()) });
            deltas.push(Delta::End { index });
        }
    }

    /// Adds a file that the model created. A file in the model's thoughts becomes a provider item, because it is not
    /// meant for the user.
    fn file(&mut self, file: GeminiBlob, thought: bool, signature: &str, deltas: &mut Vec<Delta>) {
        let signed = (!signature.is_empty()).then(|| ("thoughtSignature".to_owned(), Value::from(signature)));
        let GeminiBlob { mime_type, data } = file;
        if thought {
            let blob = Map::from_iter([
                ("mimeType".to_owned(), Value::from(mime_type)),
                ("data".to_owned(), Value::from(data)),
            ]);
            let part = [("inlineData".to_owned(), Value::Object(blob)), ("thought".to_owned(), true.into())];
            return self.item(part.into_iter().chain(signed).collect(), deltas);
        }
        self.blocks.whole(BlockStart::Attachment(Attachment::base64(mime_type, data)), deltas);
        if let Some(signed) = signed {
            self.item(Map::from_iter([signed]), deltas);
        }
    }

    fn item(&mut self, data: Map<String, Value>, deltas: &mut Vec<Delta>) {
        self.blocks.whole(BlockStart::ProviderItem(ProviderItem::new(NAME, Value::Object(data))), deltas);
    }

    /// Stores details about the end of the response in the provider data, if there are any.
    fn keep<'k>(&mut self, members: impl IntoIterator<Item = (&'k str, Value)>) {
        let data = self.metadata.data.get_or_insert_default();
        data.extend(members.into_iter().map(|(key, value)| (key.to_owned(), value)));
        self.has_more_data = true;
    }

    fn truncated(&self, why: &str) -> ProviderError {
        let message = format!("the stream ended before the response was complete: {why}");
        self.strays.truncated(self.metadata.data.is_some(), &message)
    }

    fn finish(&mut self, deltas: &mut Vec<Delta>) -> DecodeResult {
        let Some(reason) = self.stop.take() else {
            return Err(self.truncated("no chunk had a finish reason"));
        };
        self.done = true;
        self.end_call(deltas);
        if reason == StopReason::Stop && self.blocks.count == 0 {
            deltas.push(Delta::warning("the response has the finish reason STOP, but no content"));
        }
        if let Some(data) = self.metadata.data.take().filter(|_| self.has_more_data) {
            let provider_data = Map::from_iter([(NAME.to_owned(), Value::Object(data))]);
            deltas.push(Delta::Message(Box::new(MessageDelta { provider_data, ..MessageDelta::default() })));
        }
        let sources = std::mem::take(&mut self.sources);
        if !sources.is_empty() {
            if sources.values().map(value_weight).sum::<usize>() > Fold::LIMIT {
                return Err(ProviderError::new(
                    ProviderErrorKind::Decoding,
                    "the sources of the response exceed the size limit",
                ));
            }
            self.item(sources, deltas);
        }
        deltas.push(Delta::stop(match reason {
            // Responses with calls have the finish reason STOP too.
            StopReason::Stop if !self.ids.is_empty() => StopReason::ToolUse,
            reason => reason,
        }));
        Ok(())
    }
}

impl Decoder for GeminiDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let data = frame.data.trim_ascii();
        if self.done || data.is_empty() {
            return Ok(());
        }
        // `[DONE]` ends the streams of another wire format. Some services that implement both wire formats also send
        // `[DONE]` in this one.
        if data == "[DONE]" {
            return self.finish(deltas);
        }
        if frame.event == "error" {
            return Err(error_text(data));
        }
        match parse_chunks(data) {
            Ok(chunks) => chunks.into_iter().try_for_each(|chunk| self.chunk(chunk, data, deltas)),
            Err(cause) => match tamed(data).as_deref().map(parse_chunks) {
                Some(Ok(chunks)) => chunks.into_iter().try_for_each(|chunk| self.chunk(chunk, data, deltas)),
                _ => skip_unreadable(frame, "an event is not part of a Gemini response", cause)
                    .map_err(|error| refined(error, data)),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_complete(&self) -> bool {
        match &self.stop {
            _ if self.continued => false,
            Some(StopReason::Stop) => self.answered,
            stop => stop.is_some(),
        }
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> DecodeResult {
        if self.done {
            return Ok(());
        }
        if self.continued {
            return Err(self.truncated("more content followed its finish reason"));
        }
        self.finish(deltas)
    }
}

/// Returns the stop reason for a finish reason. If the finish reason reports a failure, returns the kind of the failure
/// as an error. Source: `FinishReason` in <https://ai.google.dev/api/generate-content>.
fn finish_reason(word: &str) -> Result<Option<StopReason>, ProviderErrorKind> {
    Ok(Some(match word {
        "" => return Ok(None),
        "STOP" => StopReason::Stop,
        "MAX_TOKENS" => StopReason::Length,
        "SAFETY"
        | "RECITATION"
        | "LANGUAGE"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => StopReason::Refusal,
        // The model wrote an unreadable call or response. A retry gives a different response.
        "MALFORMED_FUNCTION_CALL" | "MALFORMED_RESPONSE" | "UNEXPECTED_TOOL_CALL" => {
            return Err(ProviderErrorKind::Service);
        }
        "MISSING_THOUGHT_SIGNATURE" => return Err(ProviderErrorKind::InvalidRequest),
        _ => StopReason::Other(word.to_owned()),
    }))
}

/// Reads the usage. The count of the prompt includes cached tokens. It includes neither thoughts nor the tokens that
/// the service's own tools add to the prompt. Both are counted separately.
fn read_usage(report: &mut ReportedUsage<'_>) -> Usage {
    let mut count = |member| report.count(&[member]).unwrap_or(0);
    let prompt = count("promptTokenCount");
    let prompt = prompt.saturating_add(count("toolUsePromptTokenCount"));
    let cache_read = count("cachedContentTokenCount").min(prompt);
    let reasoning = count("thoughtsTokenCount");
    let candidates = count("candidatesTokenCount");
    Usage {
        input: prompt - cache_read,
        cache_read,
        output: candidates.saturating_add(reasoning),
        reasoning,
        ..Usage::default()
    }
}

/// Returns the error that an event reports. The event may be a list.
fn error_text(data: &str) -> ProviderError {
    refined(error::from_event(data), data)
}

/// A function call that is not complete, because its arguments arrive in parts.
///
/// Source: `FunctionCall` and `PartialArg` in <https://googleapis.github.io/js-genai/release_docs/interfaces/>. The
/// path of a part has the form of RFC 9535, with only names and indices: `$.rooms[0]['a.b']`.
#[derive(Default)]
struct GeminiOpenCall {
    block: usize,
    /// The arguments that arrived complete.
    args: String,
    /// All arguments so far. `None` if no part has arrived.
    parts: Option<Value>,
    weight: usize,
}

impl GeminiOpenCall {
    /// Adds a part of the arguments. A text is appended to the text that has the same path.
    fn add(&mut self, part: &Value) -> Result<(), &'static str> {
        self.weight += value_weight(part);
        if self.weight > Fold::LIMIT {
            return Err("the arguments of a function call exceed the size limit");
        }
        let value = |key: &&str| part.get(*key).filter(|value| !value.is_null());
        let value = match ["stringValue", "numberValue", "boolValue"].iter().find_map(value) {
            Some(value) => value.clone(),
            None if part.get("nullValue").is_some() => Value::Null,
            // The last part of a text may have no value.
            None => return Ok(()),
        };
        let begin = || serde_json::from_str(&self.args).unwrap_or_else(|_| json!({}));
        let place =
            place(self.parts.get_or_insert_with(begin), part["jsonPath"].as_str().unwrap_or_default());
        match (place.ok_or("the path of an argument's part is invalid")?, value) {
            (Value::String(text), Value::String(more)) => text.push_str(&more),
            (place, value) => *place = value,
        }
        Ok(())
    }

    /// Returns the JSON text of the arguments.
    fn input(self) -> String {
        let whole = if self.args.is_empty() { "{}".to_owned() } else { self.args };
        self.parts.map_or(whole, |parts| parts.to_string())
    }
}

/// Returns the value at a path, which is created if it is missing. Returns `None` if the path is malformed, or if it
/// leads through a value of another type.
fn place<'v>(root: &'v mut Value, path: &str) -> Option<&'v mut Value> {
    let (mut place, mut rest) = (root, path.strip_prefix('$')?);
    for _ in 0..MAX_STEPS {
        let end = match rest.chars().next() {
            None => return Some(place),
            Some('.') => rest[1..].find(['.', '[']).map_or(rest.len(), |end| end + 1),
            Some(_) => rest.find(']')? + 1,
        };
        let step = rest[..end].trim_start_matches(['.', '[']).trim_end_matches(']');
        let index = if rest.starts_with('[') { step.parse().ok() } else { None };
        rest = &rest[end..];
        if place.is_null() {
            *place = if index.is_some() { json!([]) } else { json!({}) };
        }
        place = match (index, step.trim_matches(['\'', '"'])) {
            (Some(index), _) => {
                let list = place.as_array_mut()?;
                // Only the next element is created, so that a large index allocates nothing.
                list.extend((index == list.len()).then_some(Value::Null));
                list.get_mut::<usize>(index)?
            }
            (None, "") => return None,
            (None, name) => place.as_object_mut()?.entry(name).or_insert(Value::Null),
        };
    }
    None
}

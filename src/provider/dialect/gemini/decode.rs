use serde_json::{Map, Value};

use super::{
    NAME, SOURCES,
    partial::OpenCall,
    refined,
    wire::{self, Blob, Call, Candidate, Chunk, Part as WirePart, Usage as WireUsage},
};
use crate::{
    message::{Attachment, ProviderItem, ToolUseId, Usage, value_weight},
    provider::{
        BlockStart, Delta, Fold, MessageDelta, Part, ProviderError, ProviderErrorKind, StopReason,
        dialect::{
            Decoder, Frame,
            alternatives::Alternatives,
            blocks::{Blocks, Kind},
            counts::{LatestUsage, TypedCounts},
            error::{self, is_error},
            ids::CallIds,
            lenient::{Reported, Text},
            strays::{self, Strays},
            tame::tamed,
        },
    },
};

type Decoded = Result<(), ProviderError>;

/// Decodes one response. The response is a stream of chunks, a single chunk, or a list of chunks.
///
/// The wire format has no terminal event. A response is complete after a chunk with a finish reason or with the reason
/// why the prompt was blocked. A usage report may follow.
#[derive(Default)]
pub(super) struct GeminiDecoder {
    alternatives: Alternatives,
    strays: Strays,
    blocks: Blocks,
    ids: CallIds,
    /// The call whose arguments are not complete yet.
    open_call: Option<OpenCall>,
    /// The id of the response.
    id: String,
    /// The provider data of the message, which is always emitted as a whole. `None` before the first chunk.
    data: Option<Map<String, Value>>,
    /// Whether `data` has members that are emitted only at the end of the response.
    has_more_data: bool,
    has_model: bool,
    usage: LatestUsage,
    /// The sources of the response. The last value of each member counts.
    sources: Map<String, Value>,
    stop: Option<StopReason>,
    done: bool,
}

impl GeminiDecoder {
    fn chunk(&mut self, chunk: Chunk<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        if chunk.error.as_ref().is_some_and(|error| is_error(error)) {
            return Err(error_text(data));
        }
        let empty = chunk.candidates.is_none() && chunk.prompt_feedback.is_none();
        if empty && chunk.usage_metadata == Reported::Nothing && chunk.response_id.as_str().is_empty() {
            return self.strays.skip(data).map_err(|error| refined(error, data));
        }
        self.emit_metadata(&chunk, deltas);
        self.emit_usage(chunk.usage_metadata, deltas);
        if let Some(feedback) = chunk.prompt_feedback {
            let reason = feedback.get("blockReason").and_then(Value::as_str).unwrap_or_default();
            if !matches!(reason, "" | "BLOCK_REASON_UNSPECIFIED") {
                self.stop = Some(StopReason::Refusal);
                self.keep([("promptFeedback", *feedback)]);
            }
        }
        let candidates = chunk.candidates.unwrap_or_default();
        match self.alternatives.pick(candidates, |candidate| candidate.index, deltas) {
            Some(candidate) => self.candidate(candidate, data, deltas),
            None => Ok(()),
        }
    }

    fn candidate(&mut self, candidate: Candidate<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        let parts = candidate.content.and_then(|content| content.parts);
        for part in parts.into_iter().flatten().flatten() {
            self.part(part, data, deltas)?;
        }
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
            }
            Err(kind) => {
                let separator = if why.is_empty() { "" } else { ": " };
                let message = format!("the service ended the response with {word}{separator}{why}");
                return Err(ProviderError::new(kind, message).with_body(data));
            }
        }
        Ok(())
    }

    fn part(&mut self, part: WirePart<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        let WirePart { text, thought, signature, call, data: file, mut other } = part;
        if let Some(call) = call {
            return self.call(&call, signature.as_str(), data, deltas);
        }
        if let Some(file) = file {
            self.file(*file, thought, signature.as_str(), deltas);
            return Ok(());
        }
        let is_text = text.is_some() || other.is_empty();
        if is_text {
            let text = text.as_ref().map(Text::as_str).unwrap_or_default();
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
                let kind = if thought { Kind::Thinking } else { Kind::Text };
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

    fn call(&mut self, call: &Call<'_>, signature: &str, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        let name = call.name.as_str().to_owned();
        // Only the first part of a call has a name.
        let open = self.open_call.take_if(|_| name.is_empty());
        self.end_call(deltas);
        let mut open = match open {
            Some(open) => open,
            None if name.is_empty() => return Err(bad("a function call has no name", data)),
            None => {
                let id = ToolUseId::from(self.ids.next(call.id.as_str(), &self.id)?);
                let block = self.blocks.item();
                deltas.push(Delta::Start { index: block, block: BlockStart::ToolUse { id, name } });
                OpenCall { block, args: call.args.as_str().to_owned(), ..OpenCall::default() }
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
    fn file(&mut self, file: Blob, thought: bool, signature: &str, deltas: &mut Vec<Delta>) {
        let signed = (!signature.is_empty()).then(|| ("thoughtSignature".to_owned(), Value::from(signature)));
        let Blob { mime_type, data } = file;
        if thought {
            let blob = Map::from_iter([
                ("mimeType".to_owned(), Value::from(mime_type)),
                ("data".to_owned(), Value::from(data)),
            ]);
            let part = [("inlineData".to_owned(), Value::Object(blob)), ("thought".to_owned(), true.into())];
            return self.item(part.into_iter().chain(signed).collect(), deltas);
        }
        let index = self.blocks.item();
        let block = BlockStart::Attachment(Attachment::base64(mime_type, data));
        deltas.push(Delta::Start { index, block });
        deltas.push(Delta::End { index });
        if let Some(signed) = signed {
            self.item(Map::from_iter([signed]), deltas);
        }
    }

    fn item(&mut self, data: Map<String, Value>, deltas: &mut Vec<Delta>) {
        let index = self.blocks.item();
        let block = BlockStart::ProviderItem(ProviderItem::new(NAME, Value::Object(data)));
        deltas.push(Delta::Start { index, block });
        deltas.push(Delta::End { index });
    }

    /// Emits the id and the model as soon as they are known, and the name of the wire format at the first chunk.
    fn emit_metadata(&mut self, chunk: &Chunk<'_>, deltas: &mut Vec<Delta>) {
        let model = Some(chunk.model_version.as_str()).filter(|model| !self.has_model && !model.is_empty());
        let id = Some(chunk.response_id.as_str()).filter(|id| self.id.is_empty() && !id.is_empty());
        if self.data.is_some() && model.is_none() && id.is_none() {
            return;
        }
        self.has_model |= model.is_some();
        let data = self.data.get_or_insert_default();
        if let Some(id) = id {
            id.clone_into(&mut self.id);
            data.insert("responseId".to_owned(), id.into());
        }
        let message = MessageDelta {
            model: model.map(ToOwned::to_owned),
            provider_data: Map::from_iter([(NAME.to_owned(), Value::Object(data.clone()))]),
            ..MessageDelta::default()
        };
        deltas.push(Delta::Message(Box::new(message)));
    }

    /// Stores details about the end of the response in the provider data, if there are any.
    fn keep<'k>(&mut self, members: impl IntoIterator<Item = (&'k str, Value)>) {
        let data = self.data.get_or_insert_default();
        data.extend(members.into_iter().map(|(key, value)| (key.to_owned(), value)));
        self.has_more_data = true;
    }

    /// Emits the usage. Each report covers the whole request so far, so the last report counts.
    fn emit_usage(&mut self, usage: Reported<Box<WireUsage>>, deltas: &mut Vec<Delta>) {
        if usage == Reported::Nothing {
            return;
        }
        let mut counts = TypedCounts::default();
        let usage = counts.read("usageMetadata", usage).map(|usage| read_usage(&usage, &mut counts));
        self.usage.report(usage, &counts, deltas);
    }

    fn finish(&mut self, deltas: &mut Vec<Delta>) -> Decoded {
        let Some(reason) = self.stop.take() else {
            let message = "the stream ended before the response was complete: no chunk had a finish reason";
            return Err(self.strays.truncated(self.data.is_some(), message));
        };
        self.done = true;
        self.end_call(deltas);
        if reason == StopReason::Stop && self.blocks.count == 0 {
            deltas.push(Delta::warning("the response has the finish reason STOP, but no content"));
        }
        if let Some(data) = self.data.take().filter(|_| self.has_more_data) {
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
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Decoded {
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
        match wire::parse(data) {
            Ok(chunks) => chunks.into_iter().try_for_each(|chunk| self.chunk(chunk, data, deltas)),
            Err(cause) => match tamed(data).as_deref().map(wire::parse) {
                Some(Ok(chunks)) => chunks.into_iter().try_for_each(|chunk| self.chunk(chunk, data, deltas)),
                _ => strays::skip_unreadable(frame, "an event is not part of a Gemini response", cause)
                    .map_err(|error| refined(error, data)),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn is_complete(&self) -> bool {
        self.stop.is_some()
    }

    fn end(&mut self, deltas: &mut Vec<Delta>) -> Decoded {
        if self.done { Ok(()) } else { self.finish(deltas) }
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
fn read_usage(usage: &WireUsage, counts: &mut TypedCounts) -> Usage {
    let mut count = |member, reported| counts.read(member, reported).unwrap_or(0);
    let prompt = count("usageMetadata.promptTokenCount", usage.prompt);
    let prompt = prompt.saturating_add(count("usageMetadata.toolUsePromptTokenCount", usage.tool_use_prompt));
    let cache_read = count("usageMetadata.cachedContentTokenCount", usage.cached).min(prompt);
    let reasoning = count("usageMetadata.thoughtsTokenCount", usage.thoughts);
    let candidates = count("usageMetadata.candidatesTokenCount", usage.candidates);
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

fn bad(message: &str, data: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message).with_body(data)
}

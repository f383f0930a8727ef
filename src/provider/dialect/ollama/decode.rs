use std::borrow::Cow;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{NAME, refined};
use crate::{
    message::{ToolUseId, Usage},
    provider::{
        BlockStart, Delta, MessageDelta, Part, ProviderError, StopReason,
        dialect::{
            Decoder, Frame,
            decoding::{
                DecodeResult, ImplicitResponseBlocks, ResponseToolCallIds, TextBlockKind,
                UnrelatedStreamEvents, bad, parse, skip_unreadable, tamed,
            },
            error::{self, is_error},
            lenient::{LatestUsage, LenientText, ReportedUsage, ToolCallArguments},
        },
    },
};

/// A line of a stream, or a whole response.
#[derive(Deserialize)]
struct OllamaLine<'a> {
    #[serde(borrow, default)]
    model: LenientText<'a>,
    #[serde(borrow, default)]
    created_at: LenientText<'a>,
    #[serde(borrow, default)]
    message: Option<Box<OllamaMessage<'a>>>,
    #[serde(default)]
    done: Option<bool>,
    #[serde(borrow, default)]
    done_reason: LenientText<'a>,
    #[serde(default)]
    prompt_eval_count: Option<Value>,
    /// The number of tokens in `prompt_eval_count` that were read from a cache.
    #[serde(default)]
    prompt_eval_cached_count: Option<Value>,
    #[serde(default)]
    eval_count: Option<Value>,
    #[serde(default)]
    error: Option<Box<Value>>,
}

#[derive(Deserialize)]
struct OllamaMessage<'a> {
    #[serde(borrow, default)]
    content: LenientText<'a>,
    #[serde(borrow, default)]
    thinking: LenientText<'a>,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<Option<OllamaToolCall<'a>>>>,
}

/// A call. It always arrives complete.
#[derive(Deserialize)]
struct OllamaToolCall<'a> {
    #[serde(borrow, default)]
    id: LenientText<'a>,
    #[serde(borrow, default)]
    function: Option<OllamaFunction<'a>>,
}

#[derive(Deserialize)]
struct OllamaFunction<'a> {
    #[serde(borrow, default)]
    name: LenientText<'a>,
    #[serde(borrow, default)]
    arguments: ToolCallArguments<'a>,
}

/// Decodes one response. The response is a stream of lines up to the line with `done`, or one object.
#[derive(Default)]
pub(super) struct OllamaDecoder {
    strays: UnrelatedStreamEvents,
    blocks: ImplicitResponseBlocks,
    ids: ResponseToolCallIds,
    /// The time at which the response began, according to the server's clock. `None` before the first line of the
    /// response.
    began: Option<String>,
    done: bool,
}

impl OllamaDecoder {
    fn line(&mut self, line: OllamaLine<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        if line.error.as_ref().is_some_and(|error| is_error(error)) {
            return Err(error_text(data));
        }
        // Some servers omit `done` in the last line.
        let done = line.done.unwrap_or(!line.done_reason.as_str().is_empty());
        if line.message.is_none() && line.done.is_none() && !done {
            return self.strays.skip(data).map_err(refined);
        }
        if self.began.is_none() {
            self.began = Some(line.created_at.as_str().to_owned());
            let model = line.model.as_str();
            let message = MessageDelta {
                model: (!model.is_empty()).then(|| model.to_owned()),
                provider_data: Map::from_iter([(NAME.to_owned(), Value::Object(Map::new()))]),
                ..MessageDelta::default()
            };
            deltas.push(Delta::Message(Box::new(message)));
        }
        if let Some(piece) = line.message {
            self.piece(*piece, data, deltas)?;
        }
        if done {
            self.done = true;
            let report = json!({
                "prompt_eval_count": line.prompt_eval_count,
                "prompt_eval_cached_count": line.prompt_eval_cached_count,
                "eval_count": line.eval_count,
            });
            LatestUsage::default().report(ReportedUsage::of("", "", &report), read_usage, deltas);
            let stop_reason = Some(self.stop_reason(line.done_reason.as_str()));
            let message = MessageDelta { stop_reason, ..MessageDelta::default() };
            deltas.push(Delta::Message(Box::new(message)));
        }
        Ok(())
    }

    fn piece(&mut self, piece: OllamaMessage<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        for (kind, text) in [(TextBlockKind::Thinking, piece.thinking), (TextBlockKind::Text, piece.content)]
        {
            if let Some(text) = text.into_text() {
                let index = self.blocks.of(kind, deltas);
                deltas.push(Delta::Extend { index, part: Part::Text(text.into_owned()) });
            }
        }
        let calls = piece.tool_calls.into_iter().flatten().flatten();
        calls.into_iter().try_for_each(|call| self.call(call, data, deltas))
    }

    fn call(&mut self, call: OllamaToolCall<'_>, data: &str, deltas: &mut Vec<Delta>) -> DecodeResult {
        let Some(name) = call.function.as_ref().map(|function| function.name.as_str().to_owned()) else {
            return Ok(());
        };
        if name.is_empty() {
            return Err(bad("a tool call has no name", data));
        }
        let id = self.ids.next(call.id.as_str(), self.began.as_deref().unwrap_or_default())?;
        let index = self.blocks.item();
        deltas.push(Delta::Start { index, block: BlockStart::ToolUse { id: ToolUseId::from(id), name } });
        let arguments = call.function.and_then(|function| function.arguments.into_text());
        let input = arguments.unwrap_or(Cow::Borrowed("{}"));
        deltas.push(Delta::Extend { index, part: Part::Input(input.into_owned()) });
        deltas.push(Delta::End { index });
        Ok(())
    }

    fn stop_reason(&self, word: &str) -> StopReason {
        match word {
            // Responses with calls have the reason `stop` too, and servers before 0.3 send no reason. So the stop
            // reason depends on whether there are calls.
            "" | "stop" if !self.ids.is_empty() => StopReason::ToolUse,
            // With `load` or `unload`, the model was only loaded or unloaded, because the request had no prompt.
            "" | "stop" | "load" | "unload" => StopReason::Stop,
            "length" => StopReason::Length,
            other => StopReason::Other(other.to_owned()),
        }
    }
}

impl Decoder for OllamaDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> DecodeResult {
        let data = frame.data.trim_ascii();
        if self.done || data.is_empty() {
            return Ok(());
        }
        match parse(data) {
            Ok(line) => self.line(line, data, deltas),
            Err(cause) => match tamed(data).as_deref().map(parse) {
                Some(Ok(line)) => self.line(line, data, deltas),
                _ => skip_unreadable(frame, "a line is not part of a chat response", cause),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn end(&mut self, _deltas: &mut Vec<Delta>) -> DecodeResult {
        if self.done {
            return Ok(());
        }
        Err(self.strays.truncated(self.began.is_some(), "the stream ended before its line with `done`"))
    }
}

/// Returns the error that a line reports.
fn error_text(data: &str) -> ProviderError {
    refined(error::from_event(data))
}

fn read_usage(report: &mut ReportedUsage<'_>) -> Usage {
    let prompt = report.count(&["prompt_eval_count"]).unwrap_or(0);
    let cache_read = report.count(&["prompt_eval_cached_count"]).unwrap_or(0).min(prompt);
    let output = report.count(&["eval_count"]).unwrap_or(0);
    Usage { input: prompt - cache_read, cache_read, output, ..Usage::default() }
}

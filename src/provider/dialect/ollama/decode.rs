use std::borrow::Cow;

use serde_json::{Map, Value};

use super::{
    NAME, refined,
    wire::{self, Line, Piece, ToolCall},
};
use crate::{
    message::{ToolUseId, Usage},
    provider::{
        BlockStart, Delta, MessageDelta, Part, ProviderError, ProviderErrorKind, StopReason,
        dialect::{
            Decoder, Frame,
            blocks::{Blocks, Kind},
            counts::{LatestUsage, TypedCounts},
            error::{self, is_error},
            ids::CallIds,
            strays::{self, Strays},
            tame::tamed,
        },
    },
};

/// Decodes one response. The response is a stream of lines up to the line with `done`, or one object.
#[derive(Default)]
pub(super) struct OllamaDecoder {
    strays: Strays,
    blocks: Blocks,
    ids: CallIds,
    /// The time at which the response began, according to the server's clock. `None` before the first line of the
    /// response.
    began: Option<String>,
    done: bool,
}

impl OllamaDecoder {
    fn line(&mut self, line: Line<'_>, data: &str, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        if line.error.as_ref().is_some_and(|error| is_error(error)) {
            return Err(error_text(data));
        }
        if line.message.is_none() && line.done.is_none() {
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
        if line.done == Some(true) {
            self.done = true;
            let mut counts = TypedCounts::default();
            let mut count = |member, reported| counts.read(member, reported).unwrap_or(0);
            let prompt = count("prompt_eval_count", line.prompt_eval_count);
            let cache_read = count("prompt_eval_cached_count", line.prompt_eval_cached_count).min(prompt);
            let output = count("eval_count", line.eval_count);
            let usage = Usage { input: prompt - cache_read, cache_read, output, ..Usage::default() };
            LatestUsage::default().report(Some(usage), &counts, deltas);
            let stop_reason = Some(self.stop_reason(line.done_reason.as_str()));
            let message = MessageDelta { stop_reason, ..MessageDelta::default() };
            deltas.push(Delta::Message(Box::new(message)));
        }
        Ok(())
    }

    fn piece(&mut self, piece: Piece<'_>, data: &str, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        for (kind, text) in [(Kind::Thinking, piece.thinking), (Kind::Text, piece.content)] {
            if let Some(text) = text.into_text() {
                let index = self.blocks.of(kind, deltas);
                deltas.push(Delta::Extend { index, part: Part::Text(text.into_owned()) });
            }
        }
        let calls = piece.tool_calls.into_iter().flatten().flatten();
        calls.into_iter().try_for_each(|call| self.call(call, data, deltas))
    }

    fn call(&mut self, call: ToolCall<'_>, data: &str, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
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
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
        let data = frame.data.trim_ascii();
        if self.done || data.is_empty() {
            return Ok(());
        }
        match wire::parse(data) {
            Ok(line) => self.line(line, data, deltas),
            Err(cause) => match tamed(data).as_deref().map(wire::parse) {
                Some(Ok(line)) => self.line(line, data, deltas),
                _ => strays::skip_unreadable(frame, "a line is not part of a chat response", cause),
            },
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn end(&mut self, _deltas: &mut Vec<Delta>) -> Result<(), ProviderError> {
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

fn bad(message: &str, data: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message).with_body(data)
}

use serde_json::{Map, Value};

use super::{
    NAME,
    answer::ResponseItems,
    reasoning::Shown,
    wire::{self, Event, list, text},
};
use crate::provider::{
    Delta, MessageDelta, ProviderError, ProviderErrorKind, StopReason,
    dialect::{
        Decoder, Frame,
        counts::Counts,
        error::{self, is_error},
        strays,
        tame::tamed,
    },
};

type Decoded = Result<(), ProviderError>;

/// Decodes one response: a stream of events, or one object.
///
/// The terminal event is `response.completed`, `response.incomplete`, `response.failed` or `response.cancelled`. It
/// repeats the whole response. Unknown events are skipped. Each item arrives complete at its own end or at the end of
/// the response. The complete item supplies the data that the item's deltas omitted. For example, llama.cpp sends
/// neither indices nor the end of arguments, and other servers send no deltas.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    answer: ResponseItems,
    /// The id of the response.
    id: String,
    metadata_emitted: bool,
    model_emitted: bool,
    done: bool,
}

impl Decoder for ResponsesDecoder {
    fn decode(&mut self, frame: Frame<'_>, deltas: &mut Vec<Delta>) -> Decoded {
        let data = frame.data.trim_ascii();
        // Skip `[DONE]`, which ends the streams of another wire format. Services that implement both wire formats also
        // send it in this one.
        if self.done || data.is_empty() || data == "[DONE]" {
            return Ok(());
        }
        let event = match wire::parse(data) {
            Ok(event) if !event.has_whole_arguments() => Ok(event),
            event => match tamed(data).as_deref() {
                Some(tame) if let Ok(event) = wire::parse(tame) => {
                    return self.event(frame.name(), event, tame, deltas);
                }
                _ => event,
            },
        };
        match event {
            Ok(event) => self.event(frame.name(), event, data, deltas),
            Err(_) if frame.event == "error" => Err(service_error(data)),
            Err(_) if wire::is_foreign(frame.name()) && !strays::may_be_own(data) => Ok(()),
            Err(cause) => {
                Err(ProviderError::new(ProviderErrorKind::Decoding, "an event is not a JSON object")
                    .with_source(cause)
                    .with_body(data))
            }
        }
    }

    fn is_done(&self) -> bool {
        self.done
    }

    fn end(&mut self, _deltas: &mut Vec<Delta>) -> Decoded {
        if self.done {
            return Ok(());
        }
        Err(ProviderError::new(ProviderErrorKind::Truncated, "the stream ended before its terminal event"))
    }
}

impl ResponsesDecoder {
    /// Decodes an event. The data of the event names its kind. If the data names no kind, the name of the event is
    /// used.
    fn event(&mut self, name: &str, mut event: Event<'_>, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        let kind = std::mem::take(&mut event.kind);
        let kind = if kind.as_str().is_empty() { name } else { kind.as_str() };
        match kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.answer.refused |= kind == "response.refusal.delta";
                let more = wire::take(&mut event.delta);
                self.answer.text(event.place(), event.content_index.0, more, deltas)
            }
            "response.function_call_arguments.delta" => {
                let more = wire::take(&mut event.delta);
                self.answer.arguments(event.place(), more, deltas)
            }
            "response.reasoning_summary_text.delta" => {
                let (part, more) = (event.summary_index.0, event.delta.as_str());
                self.answer.reasoning(event.place(), Shown::Summary, part, more, deltas)
            }
            // `response.reasoning.delta` is the former name of `response.reasoning_text.delta`. Some servers still use
            // it.
            "response.reasoning_text.delta" | "response.reasoning.delta" => {
                let (part, more) = (event.content_index.0, event.delta.as_str());
                self.answer.reasoning(event.place(), Shown::Content, part, more, deltas)
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
            "error" => Err(service_error(data)),
            "" if event.object.as_str() == "response" => match serde_json::from_str(data) {
                Ok(response) => self.finish(kind, &response, data, deltas),
                Err(cause) => Err(bad("the response is not a JSON object", data).with_source(cause)),
            },
            // llama.cpp sends only the member `error`, without a `type`.
            _ if event.error.as_deref().is_some_and(is_error) => Err(service_error(data)),
            _ => Ok(()),
        }
    }

    /// Emits the id and the model as soon as they are known, and the name of the wire format at the first event.
    fn emit_metadata(&mut self, response: &Value, deltas: &mut Vec<Delta>) {
        let (id, model) = (text(response, "id"), text(response, "model"));
        let new_id = self.id.is_empty() && !id.is_empty();
        let new_model = !self.model_emitted && !model.is_empty();
        if self.metadata_emitted && !new_id && !new_model {
            return;
        }
        if new_id {
            id.clone_into(&mut self.id);
        }
        let mut data = Map::new();
        if !self.id.is_empty() {
            data.insert("id".to_owned(), Value::from(&*self.id));
        }
        self.metadata_emitted = true;
        self.model_emitted |= new_model;
        deltas.push(Delta::Message(Box::new(MessageDelta {
            model: new_model.then(|| model.to_owned()),
            provider_data: Map::from_iter([(NAME.to_owned(), Value::Object(data))]),
            ..MessageDelta::default()
        })));
    }

    fn finish(&mut self, kind: &str, response: &Value, data: &str, deltas: &mut Vec<Delta>) -> Decoded {
        self.emit_metadata(response, deltas);
        if let Some(report) = response.get("usage") {
            let mut counts = Counts::of("usage", report);
            if let Some(usage) = wire::usage(&mut counts) {
                let message = MessageDelta { usage: Some(usage), ..MessageDelta::default() };
                deltas.push(Delta::Message(Box::new(message)));
            }
            // Each response has only one usage report, so there is at most one warning.
            counts.warn(&mut false, deltas);
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
        self.answer = ResponseItems::default();
        Ok(())
    }
}

fn service_error(data: &str) -> ProviderError {
    error::from_event(data)
}

fn failed(message: &str, data: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Service, message).with_body(data)
}

fn bad(message: &str, data: &str) -> ProviderError {
    ProviderError::new(ProviderErrorKind::Decoding, message).with_body(data)
}

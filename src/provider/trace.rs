//! The telemetry of a request, collected from the stream of its response. Captured content is JSON, in the shapes of
//! OpenTelemetry's conventions.

use serde_json::{Value, json};
use tracing::Span;

use super::{
    Delta, Effort, Fold, Provider, ProviderError, ProviderErrorKind, Request, RequestContext, ThinkingMode,
};
use crate::{
    message::{Attachment, Content, History, ResultBlock, Role, Source, Timestamp},
    telemetry::{self, CapturedContent, RequestSpanFacts, RequestTrace},
    tool::ToolSet,
};

/// The type and the description of the failure if a provider panics.
pub(crate) const PROVIDER_PANICKED: (&str, &str) = ("provider_panicked", "the provider panicked");

/// The trace of one request, with the response so far if it is captured.
pub(super) struct StreamTrace {
    trace: Box<RequestTrace>,
    fold: Option<Fold>,
}

impl StreamTrace {
    /// Opens the trace of a request. Returns `None` if telemetry is off.
    #[inline]
    pub(super) fn begin(
        provider: &dyn Provider,
        request: &Request,
        context: &mut RequestContext,
    ) -> Option<Box<Self>> {
        if telemetry::is_on() { Self::open(provider, request, context) } else { None }
    }

    #[cold]
    fn open(provider: &dyn Provider, request: &Request, context: &mut RequestContext) -> Option<Box<Self>> {
        let options = &request.options;
        let facts = RequestSpanFacts {
            provider: provider.name(),
            model: &request.model,
            max_tokens: options.max_tokens(),
            temperature: options.temperature(),
            top_p: options.top_p(),
            stop_sequences: options.stop_sequences().map(Vec::as_slice),
            reasoning: options.thinking().and_then(level),
            is_json: options.output().is_some(),
        };
        let trace = RequestTrace::begin(&facts, context.open_scope())?;
        trace.capture(CapturedContent::SystemPrompt, || captured_system(request.system.as_deref()));
        trace.capture(CapturedContent::InputMessages, || captured_messages(&request.history));
        trace.capture(CapturedContent::ToolDefinitions, || captured_tools(&request.tools));
        let fold = telemetry::captures().wants(CapturedContent::OutputMessages).then(Fold::default);
        Some(Box::new(Self { trace, fold }))
    }

    pub(super) fn span(&self) -> &Span {
        self.trace.span()
    }

    /// Records an item of the stream, or the stream's end.
    pub(super) fn observe(&mut self, item: Option<&Result<Delta, ProviderError>>) {
        match item {
            Some(Ok(delta)) => self.delta(delta),
            Some(Err(error)) => {
                self.capture_output();
                self.trace.end(Some((&error_type(error.kind), &error.kind.to_string())));
            }
            None => {
                self.capture_output();
                let truncated = !self.trace.has_finish_reason();
                let kind = ProviderErrorKind::Truncated;
                let failure = truncated.then(|| (error_type(kind), kind.to_string()));
                self.trace.end(failure.as_ref().map(|(kind, words)| (&**kind, &**words)));
            }
        }
    }

    /// Records that the provider panicked.
    pub(super) fn panicked(mut self) {
        self.capture_output();
        self.trace.end(Some(PROVIDER_PANICKED));
    }

    fn delta(&mut self, delta: &Delta) {
        if let Some(fold) = &mut self.fold
            && fold.apply(delta.clone()).is_err()
        {
            // The stream violates its contract. The reader of the stream reports the violation, so the trace only stops
            // capturing the response.
            self.fold = None;
        }
        if delta.is_content() {
            return self.trace.chunk();
        }
        let Delta::Message(data) = delta else {
            return;
        };
        if let Some(model) = &data.model {
            self.trace.response_model(model);
        }
        if let Some(usage) = data.usage {
            self.trace.usage(usage);
        }
        if let Some(reason) = &data.stop_reason {
            self.trace.finish_reason(&reason.to_string());
        }
        if let Some(id) = data.provider_data.values().find_map(|format| format.get("id")?.as_str()) {
            self.trace.response_id(id);
        }
    }

    fn capture_output(&mut self) {
        if let Some(fold) = &self.fold {
            self.trace.capture(CapturedContent::OutputMessages, || captured_response(fold));
        }
    }
}

impl Drop for StreamTrace {
    fn drop(&mut self) {
        if !self.trace.is_over() {
            self.capture_output();
        }
    }
}

/// Returns the name of a kind of failure, as it is serialised.
pub(crate) fn error_type(kind: ProviderErrorKind) -> String {
    serde_json::to_value(kind).ok().and_then(|name| name.as_str().map(str::to_owned)).unwrap_or_default()
}

fn level(mode: ThinkingMode) -> Option<&'static str> {
    match mode {
        ThinkingMode::Off => Some("none"),
        ThinkingMode::Effort(effort) => Some(match effort {
            Effort::Minimal => "minimal",
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
            Effort::Max => "max",
        }),
        ThinkingMode::Budget(_) => None,
    }
}

fn captured_system(prompt: Option<&str>) -> String {
    Value::from_iter(prompt.map(|prompt| json!({ "type": "text", "content": prompt }))).to_string()
}

fn captured_messages(history: &History) -> String {
    let messages = history.iter().flat_map(|message| {
        // A message of the user may begin with the results of tools, which are a message of the tools here.
        let is_result = |block: &Content| matches!(block, Content::ToolResult(_));
        message.content.chunk_by(move |one, other| is_result(one) == is_result(other)).map(move |blocks| {
            let role = match message.role {
                Role::Assistant => "assistant",
                _ if blocks.first().is_some_and(is_result) => "tool",
                _ => "user",
            };
            json!({ "role": role, "parts": parts(blocks) })
        })
    });
    messages.collect::<Value>().to_string()
}

fn captured_response(fold: &Fold) -> String {
    // `finish` fails if the response is incomplete. `cut` returns the part so far.
    let (message, reason) = match fold.clone().finish(Timestamp::now()) {
        Ok(complete) => (complete.message, complete.stop_reason.to_string()),
        Err(_) => (fold.clone().cut(Timestamp::now()), "error".to_owned()),
    };
    let reason = telemetry::finish_reason(&reason);
    json!([{ "role": "assistant", "parts": parts(&message.content), "finish_reason": reason }]).to_string()
}

fn captured_tools(tools: &ToolSet) -> String {
    let tools = tools.iter().map(|tool| {
        json!({
            "type": "function",
            "name": tool.name(),
            "description": tool.description(),
            "parameters": tool.schema().as_value(),
        })
    });
    tools.collect::<Value>().to_string()
}

fn parts(content: &[Content]) -> Value {
    content.iter().map(part).collect()
}

fn part(content: &Content) -> Value {
    match content {
        Content::Text(text) => json!({ "type": "text", "content": text.text }),
        Content::Thinking(thinking) => json!({ "type": "reasoning", "content": thinking.text }),
        Content::Attachment(attachment) => attachment_of(attachment),
        Content::ToolUse(tool_use) => {
            // An input that is not a complete JSON object appears as its text.
            let raw = tool_use.malformed.as_ref();
            let arguments = raw.map_or_else(|| tool_use.input.clone(), |raw| raw.as_str().into());
            json!({ "type": "tool_call", "id": tool_use.id, "name": tool_use.name, "arguments": arguments })
        }
        Content::ToolResult(result) => {
            let blocks = result.content.iter().map(|block| match block {
                ResultBlock::Text(text) => json!({ "type": "text", "content": text.text }),
                ResultBlock::Attachment(attachment) => attachment_of(attachment),
            });
            json!({
                "type": "tool_call_response",
                "id": result.tool_use_id,
                "response": blocks.collect::<Value>(),
            })
        }
        Content::ProviderItem(item) => json!({ "type": item.format }),
    }
}

/// Returns an attachment without its data, because readers of traces can't use the data. The convention requires the
/// member for the data, so it is empty.
fn attachment_of(attachment: &Attachment) -> Value {
    let kind = &*attachment.media_type;
    let modality = match kind.split_once('/') {
        Some((modality @ ("image" | "audio" | "video"), _)) => modality,
        _ => "document",
    };
    match &attachment.source {
        Source::Url { url } => json!({ "type": "uri", "mime_type": kind, "modality": modality, "uri": url }),
        Source::Base64 { data } => json!({
            "type": "blob",
            "mime_type": kind,
            "modality": modality,
            "content": "",
            "omitted_bytes": data.len(),
        }),
    }
}

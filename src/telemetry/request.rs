//! The spans of a request and of its attempts.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::time::Instant;
use tracing::{Level, Span, field::Empty};

use super::{
    CapturedContent, RequestMetrics, TARGET, captures, count, end_now, fail, list, names,
    settings::{is_on, record, recorder, settings},
    spans::output_type,
};
use crate::message::Usage;

/// The attributes that are known when a request begins.
pub(crate) struct RequestSpanFacts<'a> {
    pub(crate) provider: &'a str,
    pub(crate) model: &'a str,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) stop_sequences: Option<&'a [String]>,
    pub(crate) reasoning: Option<&'a str>,
    /// Whether the response is a value instead of text.
    pub(crate) is_json: bool,
}

/// The data that an agent, a request and a provider share about one request.
#[derive(Debug, Default)]
pub(crate) struct SharedRequestTelemetry {
    conversation: Option<Box<str>>,
    server: OnceLock<(Box<str>, Option<u16>)>,
}

impl SharedRequestTelemetry {
    pub(crate) fn new(conversation: Option<&str>) -> Self {
        Self { conversation: conversation.map(Into::into), server: OnceLock::new() }
    }

    /// Sets the service to which the request is sent.
    #[cfg(feature = "http")]
    pub(crate) fn set_server(&self, address: &str, port: Option<u16>) {
        // Each attempt is sent to the same service, so only the first one sets it.
        let _ = self.server.set((address.into(), port));
    }
}

/// The trace of a request. If it is dropped before [`end`](Self::end), the request counts as cancelled.
pub(crate) struct RequestTrace {
    span: Span,
    started: Instant,
    provider: Box<str>,
    model: Box<str>,
    response_id: Option<Box<str>>,
    response_model: Option<Box<str>>,
    finish_reason: Option<Box<str>>,
    scope: Arc<SharedRequestTelemetry>,
    first_chunk: Option<Duration>,
    last_chunk: Instant,
    intervals: Vec<Duration>,
    usage: Usage,
    is_over: bool,
}

impl RequestTrace {
    /// Opens the span of a request. Returns `None` if neither spans nor metrics are wanted.
    pub(crate) fn begin(
        facts: &RequestSpanFacts<'_>,
        scope: Arc<SharedRequestTelemetry>,
    ) -> Option<Box<Self>> {
        if !is_on() {
            return None;
        }
        let provider = names::provider(facts.provider);
        let stop_sequences = facts.stop_sequences.map(|texts| list(texts.iter().map(String::as_str)));
        let span = tracing::span!(
            target: TARGET,
            Level::INFO,
            "chat",
            otel.name = format!("{} {}", names::CHAT, facts.model),
            otel.kind = "client",
            { names::STATUS_CODE } = Empty,
            { names::STATUS_DESCRIPTION } = Empty,
            { names::OPERATION } = names::CHAT,
            { names::PROVIDER } = provider,
            { names::CONVERSATION } = scope.conversation.as_deref(),
            { names::REQUEST_MODEL } = facts.model,
            { names::REQUEST_STREAM } = true,
            { names::MAX_TOKENS } = facts.max_tokens.map(i64::from),
            { names::TEMPERATURE } = facts.temperature,
            { names::TOP_P } = facts.top_p,
            { names::STOP_SEQUENCES } = stop_sequences,
            { names::REASONING_LEVEL } = facts.reasoning,
            { names::OUTPUT_TYPE } = output_type(facts.is_json),
            { names::RESPONSE_ID } = Empty,
            { names::RESPONSE_MODEL } = Empty,
            { names::FINISH_REASONS } = Empty,
            { names::TIME_TO_FIRST_CHUNK } = Empty,
            { names::INPUT_TOKENS } = Empty,
            { names::OUTPUT_TOKENS } = Empty,
            { names::CACHE_READ_TOKENS } = Empty,
            { names::CACHE_CREATION_TOKENS } = Empty,
            { names::CACHE_WRITE_TOKENS } = Empty,
            { names::REASONING_TOKENS } = Empty,
            { names::COST } = Empty,
            { names::SERVER_ADDRESS } = Empty,
            { names::SERVER_PORT } = Empty,
            { names::ERROR_TYPE } = Empty,
            { names::INPUT_MESSAGES } = Empty,
            { names::OUTPUT_MESSAGES } = Empty,
            { names::SYSTEM_INSTRUCTIONS } = Empty,
            { names::TOOL_DEFINITIONS } = Empty,
        );
        let now = Instant::now();
        Some(Box::new(Self {
            span,
            started: now,
            provider: provider.into(),
            model: facts.model.into(),
            response_id: None,
            response_model: None,
            finish_reason: None,
            scope,
            first_chunk: None,
            last_chunk: now,
            intervals: Vec::new(),
            usage: Usage::default(),
            is_over: false,
        }))
    }

    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Records content if it is captured. Only then, `text` is called to encode the content as JSON.
    pub(crate) fn capture(&self, content: CapturedContent, text: impl FnOnce() -> String) {
        if self.span.is_disabled() || !captures().wants(content) {
            return;
        }
        let name = match content {
            CapturedContent::InputMessages => names::INPUT_MESSAGES,
            CapturedContent::OutputMessages => names::OUTPUT_MESSAGES,
            CapturedContent::SystemPrompt => names::SYSTEM_INSTRUCTIONS,
            CapturedContent::ToolDefinitions => names::TOOL_DEFINITIONS,
            CapturedContent::ToolInput | CapturedContent::ToolOutput => return,
        };
        if let Some(text) = captures().prepare(content, text()) {
            self.span.record(name, text);
        }
    }

    /// Records the time at which a piece of content arrives.
    pub(crate) fn chunk(&mut self) {
        if self.first_chunk.is_none() {
            let elapsed = self.started.elapsed();
            self.span.record(names::TIME_TO_FIRST_CHUNK, elapsed.as_secs_f64());
            self.first_chunk = Some(elapsed);
            self.last_chunk = Instant::now();
        } else if recorder().is_some() {
            let now = Instant::now();
            self.intervals.push(now - self.last_chunk);
            self.last_chunk = now;
        }
    }

    // A response may contain each of the following values several times, and a field must be recorded once. Therefore,
    // the last values are recorded at the end.

    pub(crate) fn response_id(&mut self, id: &str) {
        self.response_id = Some(id.into());
    }

    pub(crate) fn response_model(&mut self, model: &str) {
        self.response_model = Some(model.into());
    }

    pub(crate) fn finish_reason(&mut self, reason: &str) {
        self.finish_reason = Some(names::finish_reason(reason).into());
    }

    pub(crate) fn has_finish_reason(&self) -> bool {
        self.finish_reason.is_some()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Sets the usage so far.
    pub(crate) fn usage(&mut self, usage: Usage) {
        self.usage = usage;
    }

    /// Records the end of the request, with the failure's type and description if it failed.
    pub(crate) fn end(&mut self, failure: Option<(&str, &str)>) {
        if self.is_over {
            return;
        }
        if let Some((kind, description)) = failure {
            fail(&self.span, kind, description);
        }
        self.close(failure.map(|(kind, _)| kind));
    }

    fn close(&mut self, error_type: Option<&str>) {
        self.is_over = true;
        let (usage, server) = (self.usage, self.scope.server.get());
        self.span.record(names::RESPONSE_ID, self.response_id.as_deref());
        self.span.record(names::RESPONSE_MODEL, self.response_model.as_deref());
        self.span.record(names::FINISH_REASONS, self.finish_reason.as_deref().map(|reason| list([reason])));
        self.span.record(names::SERVER_ADDRESS, server.map(|(address, _)| &**address));
        self.span.record(names::SERVER_PORT, server.and_then(|(_, port)| *port).map(i64::from));
        if usage != Usage::default() {
            self.span.record(names::INPUT_TOKENS, count(usage.prompt()));
            self.span.record(names::OUTPUT_TOKENS, count(usage.output));
            self.span.record(names::CACHE_READ_TOKENS, count(usage.cache_read));
            self.span.record(settings().convention().differences().cache_write, count(usage.cache_write));
            self.span.record(names::REASONING_TOKENS, count(usage.reasoning));
            self.span.record(names::COST, usage.cost);
        }
        record(|recorder| {
            recorder.request(&RequestMetrics {
                provider: &self.provider,
                model: &self.model,
                response_model: self.response_model.as_deref(),
                server_address: server.map(|(address, _)| &**address),
                server_port: server.and_then(|(_, port)| *port),
                duration: self.started.elapsed(),
                time_to_first_chunk: self.first_chunk,
                chunk_intervals: &self.intervals,
                usage,
                error_type,
            });
        });
        end_now(&self.span);
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.record(names::ERROR_TYPE, names::CANCELLED);
            self.close(Some(names::CANCELLED));
        }
    }
}

/// Opens the span of an attempt below a request's span. Attempts count from 1.
pub(crate) fn attempt(request: &Span, number: u32) -> Span {
    if request.is_disabled() {
        return Span::none();
    }
    tracing::span!(
        target: TARGET,
        parent: request,
        Level::DEBUG,
        "attempt",
        otel.kind = "internal",
        { names::STATUS_CODE } = Empty,
        { names::STATUS_DESCRIPTION } = Empty,
        { names::ATTEMPT } = i64::from(number),
        { names::RETRY_AFTER } = Empty,
        { names::HTTP_STATUS } = Empty,
        { names::ERROR_TYPE } = Empty,
    )
}

/// Records the failure of an attempt.
pub(crate) fn attempt_failed(
    attempt: &Span,
    (kind, description): (&str, &str),
    status: Option<u16>,
    retry_after: Option<Duration>,
) {
    fail(attempt, kind, description);
    attempt.record(names::HTTP_STATUS, status.map(i64::from));
    attempt.record(names::RETRY_AFTER, retry_after.map(|wait| wait.as_secs_f64()));
}

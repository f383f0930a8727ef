//! The span of a tool call.

use tokio::time::Instant;
use tracing::{Level, Span, field::Empty};

use super::{CapturedContent, TARGET, ToolMetrics, captures, fail, names, recorder::record, settings::is_on};

/// The trace of a tool call. If it is dropped before [`end`](Self::end), the call counts as cancelled.
pub(crate) struct ToolTrace {
    span: Span,
    started: Instant,
    name: Box<str>,
    is_over: bool,
}

impl ToolTrace {
    /// Opens the span of a call. Returns `None` if neither spans nor metrics are wanted.
    pub(crate) fn begin(
        name: &str,
        call: &str,
        description: impl FnOnce() -> Option<String>,
    ) -> Option<Box<Self>> {
        if !is_on() {
            return None;
        }
        let span = tracing::span!(
            target: TARGET,
            Level::INFO,
            "execute_tool",
            otel.name = format!("{} {name}", names::EXECUTE_TOOL),
            otel.kind = "internal",
            { names::STATUS_CODE } = Empty,
            { names::STATUS_DESCRIPTION } = Empty,
            { names::OPERATION } = names::EXECUTE_TOOL,
            { names::TOOL_NAME } = name,
            { names::TOOL_TYPE } = "function",
            { names::TOOL_CALL } = call,
            { names::TOOL_DESCRIPTION } = Empty,
            { names::ERROR_TYPE } = Empty,
            { names::TOOL_ARGUMENTS } = Empty,
            { names::TOOL_RESULT } = Empty,
        );
        if !span.is_disabled() {
            span.record(names::TOOL_DESCRIPTION, description());
        }
        Some(Box::new(Self { span, started: Instant::now(), name: name.into(), is_over: false }))
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
            CapturedContent::ToolInput => names::TOOL_ARGUMENTS,
            _ => names::TOOL_RESULT,
        };
        if let Some(text) = captures().prepare(content, text()) {
            self.span.record(name, text);
        }
    }

    /// Records the end of the call.
    pub(crate) fn end(mut self, is_error: bool) {
        const TOOL_ERROR: &str = "tool_error";
        if is_error {
            fail(&self.span, TOOL_ERROR, "the tool call returned an error");
        }
        self.close(is_error.then_some(TOOL_ERROR));
    }

    fn close(&mut self, error_type: Option<&str>) {
        self.is_over = true;
        record(|recorder| {
            recorder.tool(&ToolMetrics { name: &self.name, duration: self.started.elapsed(), error_type });
        });
    }
}

impl Drop for ToolTrace {
    fn drop(&mut self) {
        if !self.is_over {
            self.span.record(names::ERROR_TYPE, names::CANCELLED);
            self.close(Some(names::CANCELLED));
        }
    }
}

//! The span of a tool call.

use tokio::time::Instant;
use tracing::{Level, Span, field::Empty};

use super::{
    CapturedContent, TARGET, ToolMetrics, captures, end_now, fail, names, recorder::record, settings::is_on,
};

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
            { names::MCP_METHOD } = Empty,
            { names::MCP_VERSION } = Empty,
            { names::MCP_SESSION } = Empty,
            { names::RPC_REQUEST } = Empty,
            { names::NETWORK_TRANSPORT } = Empty,
            { names::SERVER_ADDRESS } = Empty,
            { names::SERVER_PORT } = Empty,
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
        end_now(&self.span);
    }
}

/// The facts about a call that an MCP server performs.
#[cfg(feature = "mcp")]
pub(crate) struct McpCall<'a> {
    pub(crate) method: &'a str,
    pub(crate) version: Option<&'a str>,
    /// The id of the protocol session, if the transport has sessions.
    pub(crate) session: Option<&'a str>,
    /// The id of the request.
    pub(crate) request: &'a str,
    /// The transport below the protocol: `pipe` or `tcp`.
    pub(crate) transport: &'a str,
    /// The host and the port of the server, if it has an address.
    pub(crate) address: Option<(&'a str, Option<u16>)>,
}

#[cfg(feature = "mcp")]
impl McpCall<'_> {
    /// Records the facts on the current span, which is that of the tool call. Call it once per tool call.
    pub(crate) fn record(&self) {
        let span = Span::current();
        span.record(names::MCP_METHOD, self.method);
        span.record(names::MCP_VERSION, self.version);
        span.record(names::MCP_SESSION, self.session);
        span.record(names::RPC_REQUEST, self.request);
        span.record(names::NETWORK_TRANSPORT, self.transport);
        if let Some((host, port)) = self.address {
            span.record(names::SERVER_ADDRESS, host);
            span.record(names::SERVER_PORT, port.map(i64::from));
        }
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

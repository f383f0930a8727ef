//! Telemetry: spans through [`tracing`], and metrics.
//!
//! The crate opens a span for each run, each request to a model, each attempt at a request, and each tool call. The
//! spans have the target [`TARGET`] and the attribute names of OpenTelemetry's conventions for generative AI. They are
//! part of every build. If no subscriber listens, they cost a few instructions.
//!
//! | span | level | duration |
//! | --- | --- | --- |
//! | `invoke_agent` | INFO | one run of an agent, from idle to idle, including its pauses |
//! | `chat` | INFO | one request to a model, including its retries, until the response ends |
//! | `attempt` | DEBUG | one attempt at a request |
//! | `execute_tool` | INFO | one tool call |
//! | `save` | INFO | from a turn's end until a session has saved it |
//! | `title` | INFO | the generation of a conversation's title |
//!
//! The run's span is a child of the span in which the caller sent the prompt. The spans `save` and `title` have no
//! parent, but links to the runs whose turns they contain. Pauses, decisions, retries and staged prompts are events on
//! the run's span. The field `otel.name` contains the full name, such as `chat claude-sonnet-4-6`, and the fields
//! `otel.kind`, `otel.status_code` and `otel.status_description` have the meanings that `tracing-opentelemetry` gives
//! them.
//!
//! Prompts, responses, tool inputs, tool outputs, keys and headers are not part of any span, unless the application
//! asks for content with [`Capture`].
//!
//! [`configure`] sets the [`TelemetrySettings`] of the process: the [`Convention`] for the names, the captured content, and the
//! [`Recorder`] that receives the metrics of each request, tool call and run.
//!
//! The [guide](crate::guides::telemetry) shows a complete setup.
//!
//! ```
//! use omni_agent::telemetry::{self, Capture, Convention, TelemetrySettings};
//!
//! // Once, at the start of the program.
//! telemetry::configure(
//!     TelemetrySettings::new()
//!         .with_convention(Convention::Latest)
//!         .with_capture(Capture::new().with_tools().with_redaction(|_, text| text.replace("4242", "****"))),
//! )?;
//! # Ok::<(), telemetry::AlreadyConfigured>(())
//! ```

mod names;
#[cfg(feature = "otel-metrics")]
mod otel;
mod request;
mod settings;
mod spans;

pub(crate) use names::finish_reason;
#[cfg(feature = "otel-metrics")]
pub use otel::OtelRecorder;
pub(crate) use request::{RequestSpanFacts, RequestTrace, SharedRequestTelemetry, attempt, attempt_failed};
pub use settings::{AlreadyConfigured, Capture, CapturedContent, Convention, TelemetrySettings, configure};
pub use settings::{Recorder, RequestMetrics, RunMetrics, ToolMetrics};
pub(crate) use settings::{captures, is_on};
#[cfg(feature = "mcp")]
pub(crate) use settings::{is_traced, traceparent};
#[cfg(feature = "mcp")]
pub(crate) use spans::McpCallSpanFacts;
pub(crate) use spans::{RunSpanFacts, RunTrace, SaveTraces, ToolTrace, title};

use tracing::Span;

/// The target of all spans and events of telemetry, for filters such as `omni_agent::telemetry=debug`.
pub const TARGET: &str = "omni_agent::telemetry";

/// The span of a caller: the span in which a command was sent, or the span of the run to which an event belongs. It
/// takes 8 bytes, because each command carries it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallerSpan(Option<Box<Span>>);

impl CallerSpan {
    /// Returns the current span, if spans of telemetry are enabled.
    pub(crate) fn current() -> Self {
        if !settings::is_traced() {
            return Self(None);
        }
        let span = Span::current();
        Self((!span.is_none()).then(|| Box::new(span)))
    }

    /// Returns a handle of this span, if it is enabled.
    pub(crate) fn of(span: &Span) -> Self {
        Self((!span.is_disabled()).then(|| Box::new(span.clone())))
    }

    /// Enters the span until the guard is dropped.
    pub(crate) fn enter(&self) -> Option<tracing::span::Entered<'_>> {
        self.0.as_deref().map(Span::enter)
    }

    /// Returns whether there is a span.
    pub(crate) fn is_known(&self) -> bool {
        self.0.is_some()
    }

    fn id(&self) -> Option<tracing::Id> {
        self.0.as_deref().and_then(Span::id)
    }
}

/// Records that the operation of `span` failed.
fn fail(span: &Span, kind: &str, description: &str) {
    span.record(names::ERROR_TYPE, kind);
    span.record(names::STATUS_CODE, "ERROR");
    span.record(names::STATUS_DESCRIPTION, description);
}

/// Sets the end of a span that is about to close. The bridge to OpenTelemetry takes the last exit from a span as its end,
/// which is too early for a span whose operation is dropped while it waits.
fn end_now(span: &Span) {
    span.in_scope(|| ());
}

/// Returns a count as a signed number. The bridge to OpenTelemetry turns unsigned numbers into text, because
/// OpenTelemetry has no unsigned numbers.
fn count(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a list as JSON text, because a field of a span can't be a list.
fn list<'a>(items: impl IntoIterator<Item = &'a str>) -> String {
    serde_json::Value::from_iter(items).to_string()
}

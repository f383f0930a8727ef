//! Metrics of requests, tool calls and runs.

use std::time::Duration;

use super::settings::recorder;
use crate::panics::contained;

/// Records metrics. An application implements it to send metrics to a system of its choice. With the feature
/// `otel-metrics`, [`OtelRecorder`](https://docs.rs/omni-agent/latest/omni_agent/telemetry/struct.OtelRecorder.html)
/// implements it for OpenTelemetry.
///
/// The methods are called at the end of each operation, on the task that performed it, so they must not block. If a
/// method panics, the panic is logged, and the operation continues.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use omni_agent::telemetry::{Recorder, RequestMetrics};
///
/// #[derive(Default)]
/// struct OutputTokens(AtomicU64);
///
/// impl Recorder for OutputTokens {
///     fn request(&self, request: &RequestMetrics<'_>) {
///         self.0.fetch_add(request.tokens.output, Ordering::Relaxed);
///     }
/// }
/// ```
pub trait Recorder: Send + Sync + 'static {
    /// Records a request to a model, after its retries.
    fn request(&self, request: &RequestMetrics<'_>) {
        let _ = request;
    }

    /// Records a tool call.
    fn tool(&self, tool: &ToolMetrics<'_>) {
        let _ = tool;
    }

    /// Records a run of an agent.
    fn run(&self, run: &RunMetrics<'_>) {
        let _ = run;
    }
}

/// The tokens of a request or of a run, and their cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Tokens {
    /// The number of input tokens, including those of both caches.
    pub input: u64,
    /// The number of input tokens that were read from the cache.
    pub cache_read: u64,
    /// The number of input tokens that were written to the cache.
    pub cache_write: u64,
    /// The number of output tokens, including reasoning.
    pub output: u64,
    /// The number of output tokens for reasoning.
    pub reasoning: u64,
    /// The cost in US dollars, if it is known.
    pub cost: Option<f64>,
}

impl Tokens {
    pub(super) fn add(&mut self, other: &Self) {
        self.input = self.input.saturating_add(other.input);
        self.cache_read = self.cache_read.saturating_add(other.cache_read);
        self.cache_write = self.cache_write.saturating_add(other.cache_write);
        self.output = self.output.saturating_add(other.output);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
        if let Some(cost) = other.cost {
            self.cost = Some(self.cost.unwrap_or(0.0) + cost);
        }
    }
}

/// The measurements of a request to a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RequestMetrics<'a> {
    /// The provider's well-known name in the convention.
    pub provider: &'a str,
    /// The requested model.
    pub model: &'a str,
    /// The model that responded, as the service names it.
    pub response_model: Option<&'a str>,
    /// The host of the service, if the request was sent to an HTTP endpoint.
    pub server_address: Option<&'a str>,
    /// The port of the service.
    pub server_port: Option<u16>,
    /// The time from the request to the end of the response, including retries.
    pub duration: Duration,
    /// The time from the request to the first content.
    pub time_to_first_chunk: Option<Duration>,
    /// The times between a piece of content and the next piece.
    pub chunk_intervals: &'a [Duration],
    /// The tokens and the cost.
    pub tokens: Tokens,
    /// The kind of the failure, or `cancelled` if the response was dropped before its end.
    pub error_type: Option<&'a str>,
}

/// The measurements of a tool call.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ToolMetrics<'a> {
    /// The tool's name.
    pub name: &'a str,
    /// The duration of the call.
    pub duration: Duration,
    /// `tool_error` if the result is an error, or `cancelled` if the call was dropped before its end.
    pub error_type: Option<&'a str>,
}

/// The measurements of a run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RunMetrics<'a> {
    /// The agent's name, if it has one.
    pub agent: Option<&'a str>,
    /// The well-known name of the provider with which the run began.
    pub provider: &'a str,
    /// The model with which the run began.
    pub model: &'a str,
    /// The duration of the run, including its pauses.
    pub duration: Duration,
    /// The number of requests to models.
    pub requests: u32,
    /// The number of tool calls.
    pub tool_calls: u32,
    /// The tokens of all requests, and their cost.
    pub tokens: Tokens,
    /// The kind of the failure, or `cancelled` if the run was cancelled.
    pub error_type: Option<&'a str>,
}

/// Calls the recorder, if there is one.
pub(super) fn record(record: impl FnOnce(&dyn Recorder)) {
    if let Some(recorder) = recorder()
        && let Err(words) = contained(|| record(recorder))
    {
        tracing::error!(words, "the recorder of metrics panicked");
    }
}

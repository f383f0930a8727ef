//! Metrics of requests, tool calls and runs.

use std::time::Duration;

use super::settings::recorder;
use crate::{message::Usage, panics::contained, setters::setters};

/// Records metrics. An application implements this trait to send metrics to a system of its choice. With the feature
/// `otel-metrics`, [`OtelRecorder`](https://docs.rs/omni-agent/latest/omni_agent/telemetry/struct.OtelRecorder.html)
/// implements the trait for OpenTelemetry.
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
///         self.0.fetch_add(request.usage.output, Ordering::Relaxed);
///     }
/// }
///
/// // A test of the recorder makes the measurements itself.
/// use std::time::Duration;
/// use omni_agent::message::Usage;
///
/// let recorder = OutputTokens::default();
/// let request = RequestMetrics::new("claude-sonnet-4-6", Duration::from_secs(2));
/// recorder.request(&request.with_provider("anthropic").with_usage(Usage::default().with_output(120)));
/// assert_eq!(recorder.0.into_inner(), 120);
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
    /// The time from each piece of content to the next one.
    pub chunk_intervals: &'a [Duration],
    /// The tokens and the cost.
    pub usage: Usage,
    /// The kind of the failure, or `cancelled` if the response was dropped before its end.
    pub error_type: Option<&'a str>,
}

impl<'a> RequestMetrics<'a> {
    /// Creates the measurements of a request to `model`, for tests of a [`Recorder`]. The provider is empty, and
    /// everything else is unset.
    pub fn new(model: &'a str, duration: Duration) -> Self {
        Self {
            provider: "",
            model,
            response_model: None,
            server_address: None,
            server_port: None,
            duration,
            time_to_first_chunk: None,
            chunk_intervals: &[],
            usage: Usage::default(),
            error_type: None,
        }
    }
}

setters! {
    RequestMetrics<'a>: with_provider(provider: &'a str), with_response_model(response_model: some &'a str),
    with_server_address(server_address: some &'a str), with_server_port(server_port: some u16),
    with_time_to_first_chunk(time_to_first_chunk: some Duration), with_chunk_intervals(chunk_intervals: &'a [Duration]),
    with_usage(usage: Usage), with_error_type(error_type: some &'a str)
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

impl<'a> ToolMetrics<'a> {
    /// Creates the measurements of a successful call of the tool `name`, for tests of a [`Recorder`].
    pub fn new(name: &'a str, duration: Duration) -> Self {
        Self { name, duration, error_type: None }
    }
}

setters! { ToolMetrics<'a>: with_error_type(error_type: some &'a str) }

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
    pub usage: Usage,
    /// The kind of the failure, or `cancelled` if the run was cancelled.
    pub error_type: Option<&'a str>,
}

impl<'a> RunMetrics<'a> {
    /// Creates the measurements of a run that began with `model`, for tests of a [`Recorder`]. The provider is empty,
    /// the counts are zero, and everything else is unset.
    pub fn new(model: &'a str, duration: Duration) -> Self {
        Self {
            agent: None,
            provider: "",
            model,
            duration,
            requests: 0,
            tool_calls: 0,
            usage: Usage::default(),
            error_type: None,
        }
    }
}

setters! {
    RunMetrics<'a>: with_agent(agent: some &'a str), with_provider(provider: &'a str), with_requests(requests: u32),
    with_tool_calls(tool_calls: u32), with_usage(usage: Usage), with_error_type(error_type: some &'a str)
}

/// Calls the recorder, if there is one.
pub(super) fn record(record: impl FnOnce(&dyn Recorder)) {
    if let Some(recorder) = recorder()
        && let Err(words) = contained(|| record(recorder))
    {
        tracing::error!(words, "the recorder of metrics panicked");
    }
}

//! The telemetry settings of the process, and the content that is captured.

use std::{
    env,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tracing::Level;

use super::TARGET;
use crate::{message::Usage, panics::contained, setters::setters, text::start};

static SETTINGS: OnceLock<TelemetrySettings> = OnceLock::new();

/// The variable with which OpenTelemetry selects conventions that are not stable yet.
const OPT_IN: &str = "OTEL_SEMCONV_STABILITY_OPT_IN";
/// The value of the variable that selects the latest convention for generative AI.
const LATEST: &str = "gen_ai_latest_experimental";

/// The version of OpenTelemetry's conventions for generative AI, which decides the names of attributes and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Convention {
    /// Version 1.41, the last version that was published with the general conventions.
    #[default]
    V1_41,
    /// Version 0.1.0 of the separate conventions for generative AI, their first release. The names may still change.
    Latest,
}

impl Convention {
    /// Returns the convention that the environment selects. The variable `OTEL_SEMCONV_STABILITY_OPT_IN` contains a
    /// list that is separated by commas. If the list contains `gen_ai_latest_experimental`, the result is
    /// [`Convention::Latest`].
    pub fn from_env() -> Self {
        match env::var(OPT_IN) {
            Ok(list) if list.split(',').any(|item| item.trim() == LATEST) => Self::Latest,
            _ => Self::default(),
        }
    }
}

/// The settings of telemetry, for [`configure`].
#[derive(Clone, Default)]
#[must_use = "settings apply after `configure`"]
pub struct TelemetrySettings {
    convention: Option<Convention>,
    capture: Capture,
    recorder: Option<Arc<dyn Recorder>>,
    traceparent: Option<Arc<TraceparentFn>>,
}

type TraceparentFn = dyn Fn() -> Option<String> + Send + Sync;

impl TelemetrySettings {
    /// Creates settings that capture no content and record no metrics, with the convention that the
    /// [environment](Convention::from_env) selects.
    pub fn new() -> Self {
        Self::default()
    }

    crate::setters::setters! {
        /// Sets the convention. It takes precedence over the environment.
        pub fn with_convention(self, convention: Convention) { self.convention = Some(convention) }

        /// Sets the content that is recorded in spans.
        pub fn with_capture(self, capture: Capture) { self.capture = capture }

        /// Sets the recorder of metrics.
        pub fn with_recorder(self, recorder: impl Recorder) { self.recorder = Some(Arc::new(recorder)) }

        /// Sets the function that returns the current span's context in the format of the W3C header `traceparent`.
        /// Calls of MCP servers carry this text in their metadata, so that the spans of a server join the trace. By
        /// default, calls carry no context, because `tracing` does not know the ids of a trace.
        ///
        /// The guide on [telemetry](crate::guides::telemetry) shows the function for `tracing-opentelemetry`.
        pub fn with_traceparent(self, current: impl Fn() -> Option<String> + Send + Sync + 'static) {
            self.traceparent = Some(Arc::new(current));
        }
    }

    pub(super) fn convention(&self) -> Convention {
        self.convention.unwrap_or_default()
    }

    pub(super) fn capture(&self) -> &Capture {
        &self.capture
    }
}

crate::debug::impl_debug! { TelemetrySettings(self) {
    convention: self.convention, capture: self.capture, recorder: self.recorder.is_some(),
    traceparent: self.traceparent.is_some()
} }

/// Telemetry was already configured, or spans were already opened with the default settings.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("telemetry is already configured: call `telemetry::configure` once, before the first run")]
pub struct AlreadyConfigured(());

crate::error::debug_as_chain!(AlreadyConfigured);

/// Configures telemetry for this process.
///
/// # Errors
///
/// Fails with [`AlreadyConfigured`] if settings are already in use. The settings can't be changed later, because the
/// spans of one trace would then have different names.
pub fn configure(settings: TelemetrySettings) -> Result<(), AlreadyConfigured> {
    let convention = settings.convention.unwrap_or_else(Convention::from_env);
    SETTINGS.set(settings.with_convention(convention)).map_err(|_| AlreadyConfigured(()))
}

/// Returns the settings in use. At the first call without [`configure`], the defaults take effect.
pub(super) fn settings() -> &'static TelemetrySettings {
    SETTINGS.get_or_init(|| TelemetrySettings::new().with_convention(Convention::from_env()))
}

/// Returns whether a subscriber listens to the spans.
#[inline]
pub(crate) fn is_traced() -> bool {
    tracing::span_enabled!(target: TARGET, Level::INFO)
}

/// Returns the context of the current span, if the application has set the function for it.
#[cfg(feature = "mcp")]
pub(crate) fn traceparent() -> Option<String> {
    (SETTINGS.get()?.traceparent.as_ref()?)()
}

/// Returns the recorder of metrics, if there is one.
#[inline]
pub(super) fn recorder() -> Option<&'static dyn Recorder> {
    SETTINGS.get()?.recorder.as_deref()
}

/// Returns whether spans or metrics are wanted.
#[inline]
pub(crate) fn is_on() -> bool {
    is_traced() || recorder().is_some()
}

/// Returns the content that is captured.
pub(crate) fn captures() -> &'static Capture {
    settings().capture()
}

/// The maximum size of a captured attribute in bytes.
const MAX: usize = 16 * 1024;

type RedactionFn = dyn Fn(CapturedContent, String) -> String + Send + Sync;

/// The content that spans record. By default, spans record no content.
///
/// Each attribute is JSON text. It is passed to the redaction function, and then cut at 16 KiB, so a long attribute is
/// not valid JSON.
#[derive(Clone, Default)]
pub struct Capture {
    messages: bool,
    tools: bool,
    system: bool,
    redaction: Option<Arc<RedactionFn>>,
}

/// The kind of a captured attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CapturedContent {
    /// The messages of a request.
    InputMessages,
    /// The response of a model.
    OutputMessages,
    /// The system prompt of a request.
    SystemPrompt,
    /// The declarations of a request's tools.
    ToolDefinitions,
    /// The input of a tool call.
    ToolInput,
    /// The output of a tool call.
    ToolOutput,
}

impl Capture {
    /// Creates settings that capture nothing.
    pub fn new() -> Self {
        Self::default()
    }

    crate::setters::setters! {
        /// Captures the messages of requests and responses. They contain tool inputs and outputs too.
        pub fn with_messages(self) { self.messages = true }

        /// Captures tool declarations, and the inputs and outputs of tool calls.
        pub fn with_tools(self) { self.tools = true }

        /// Captures the system prompt.
        pub fn with_system_prompt(self) { self.system = true }

        /// Sets the function that removes confidential parts from each captured text. If the function panics, the text
        /// is not recorded.
        pub fn with_redaction(
            self,
            redaction: impl Fn(CapturedContent, String) -> String + Send + Sync + 'static,
        ) {
            self.redaction = Some(Arc::new(redaction));
        }
    }

    /// Returns whether this content is captured.
    pub(crate) fn wants(&self, content: CapturedContent) -> bool {
        match content {
            CapturedContent::InputMessages | CapturedContent::OutputMessages => self.messages,
            CapturedContent::ToolDefinitions | CapturedContent::ToolInput | CapturedContent::ToolOutput => {
                self.tools
            }
            CapturedContent::SystemPrompt => self.system,
        }
    }

    /// Returns the text to record: redacted, and cut at the maximum size. Returns `None` if the redaction function
    /// panics.
    pub(super) fn prepare(&self, content: CapturedContent, text: String) -> Option<String> {
        let text = match &self.redaction {
            None => text,
            Some(redaction) => contained(|| redaction(content, text))
                .inspect_err(|words| tracing::error!(words, "the redaction function panicked"))
                .ok()?,
        };
        Some(if text.len() <= MAX { text } else { start(&text, MAX).to_owned() })
    }
}

crate::debug::impl_debug! { Capture(self) {
    messages: self.messages, tools: self.tools, system: self.system, redaction: self.redaction.is_some()
} }

// Metrics of requests, tool calls and runs.

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

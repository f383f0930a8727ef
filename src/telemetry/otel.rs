//! Metrics for OpenTelemetry.

use std::iter;

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Histogram, Meter},
};

use super::{
    Convention, Recorder, RequestMetrics, RunMetrics, ToolMetrics,
    names::{self, metrics},
};
use crate::message::Usage;

/// Records metrics with the instruments of OpenTelemetry's conventions for generative AI.
///
/// The crate `opentelemetry` must have the same version in the application. With another version, implement
/// [`Recorder`] instead.
///
/// | [`Convention::V1_41`] | [`Convention::Latest`] |
/// | --- | --- |
/// | `gen_ai.client.operation.duration` | `gen_ai.client.inference.duration` |
/// | `gen_ai.client.operation.time_to_first_chunk` | `gen_ai.client.inference.time_to_first_chunk` |
/// | `gen_ai.client.operation.time_per_output_chunk` | `gen_ai.client.inference.time_per_output_chunk` |
/// | `gen_ai.client.token.usage` | five counters: `gen_ai.client.inference.usage.input_tokens`, `….output_tokens`, `….cache_read.input_tokens`, `….cache_write.input_tokens`, `….reasoning.output_tokens` |
/// | | `gen_ai.invoke_agent.duration`, `….inference_calls`, `….tool_calls` |
/// | | `gen_ai.execute_tool.duration` |
///
/// ```
/// use omni_agent::telemetry::{self, Convention, OtelRecorder, TelemetrySettings};
///
/// // The global meter provider was set by the application.
/// let meter = opentelemetry::global::meter("my-service");
/// telemetry::configure(TelemetrySettings::new().with_recorder(OtelRecorder::new(&meter, Convention::from_env())))?;
/// # Ok::<(), telemetry::AlreadyConfigured>(())
/// ```
pub struct OtelRecorder {
    duration: Histogram<f64>,
    first_chunk: Histogram<f64>,
    per_chunk: Histogram<f64>,
    usage: UsageInstruments,
    /// The instruments that only the latest convention has.
    runs: Option<RunInstruments>,
}

/// The instruments for tokens.
enum UsageInstruments {
    ByType(Histogram<u64>),
    Counters {
        input: Counter<u64>,
        output: Counter<u64>,
        read: Counter<u64>,
        write: Counter<u64>,
        reasoning: Counter<u64>,
    },
}

struct RunInstruments {
    duration: Histogram<f64>,
    requests: Histogram<u64>,
    tool_calls: Histogram<u64>,
    tool_duration: Histogram<f64>,
}

impl OtelRecorder {
    /// Creates the instruments of `meter` with the names of `convention`.
    pub fn new(meter: &Meter, convention: Convention) -> Self {
        let names = convention.durations();
        let counter = |name| meter.u64_counter(name).with_unit("{token}").build();
        let calls = |name, unit| {
            meter.u64_histogram(name).with_unit(unit).with_boundaries(powers(1.0, 2.0, 8)).build()
        };
        Self {
            duration: seconds(meter, names.request, "The duration of a request to a model."),
            first_chunk: seconds(meter, names.first_chunk, "The time until the first content of a response."),
            per_chunk: seconds(meter, names.per_chunk, "The time between two pieces of a response."),
            usage: match convention {
                Convention::V1_41 => UsageInstruments::ByType(
                    meter
                        .u64_histogram(metrics::TOKEN_USAGE)
                        .with_unit("{token}")
                        .with_description("The number of input and output tokens of a request.")
                        .with_boundaries(powers(1.0, 4.0, 14))
                        .build(),
                ),
                Convention::Latest => UsageInstruments::Counters {
                    input: counter(metrics::INPUT_TOKENS),
                    output: counter(metrics::OUTPUT_TOKENS),
                    read: counter(metrics::CACHE_READ_TOKENS),
                    write: counter(metrics::CACHE_WRITE_TOKENS),
                    reasoning: counter(metrics::REASONING_TOKENS),
                },
            },
            runs: (convention == Convention::Latest).then(|| RunInstruments {
                duration: meter
                    .f64_histogram(metrics::RUN_DURATION)
                    .with_unit("s")
                    .with_description("The duration of a run of an agent.")
                    .with_boundaries(powers(0.1, 2.0, 13))
                    .build(),
                requests: calls(metrics::RUN_REQUESTS, "{inference_call}"),
                tool_calls: calls(metrics::RUN_TOOL_CALLS, "{tool_call}"),
                tool_duration: seconds(meter, metrics::TOOL_DURATION, "The duration of a tool call."),
            }),
        }
    }

    fn add_usage(&self, usage: &Usage, attributes: &[KeyValue]) {
        match &self.usage {
            UsageInstruments::ByType(histogram) => {
                for (kind, count) in [("input", usage.prompt()), ("output", usage.output)] {
                    let kind = iter::once(KeyValue::new(metrics::TOKEN_TYPE, kind));
                    histogram.record(count, &attributes.iter().cloned().chain(kind).collect::<Vec<_>>());
                }
            }
            UsageInstruments::Counters { input, output, read, write, reasoning } => {
                input.add(usage.prompt(), attributes);
                output.add(usage.output, attributes);
                read.add(usage.cache_read, attributes);
                write.add(usage.cache_write, attributes);
                reasoning.add(usage.reasoning, attributes);
            }
        }
    }
}

/// Creates a histogram of durations. Its bucket bounds start at 0.01 s and double up to 81.92 s.
fn seconds(meter: &Meter, name: &'static str, description: &'static str) -> Histogram<f64> {
    let histogram = meter.f64_histogram(name).with_unit("s").with_description(description);
    histogram.with_boundaries(powers(0.01, 2.0, 14)).build()
}

/// Returns `count` bucket bounds. The first is `first`, and each further bound is the previous bound times `factor`.
fn powers(first: f64, factor: f64, count: usize) -> Vec<f64> {
    iter::successors(Some(first), |bound| Some(bound * factor)).take(count).collect()
}

impl Recorder for OtelRecorder {
    fn request(&self, request: &RequestMetrics<'_>) {
        let mut attributes = vec![
            KeyValue::new(names::OPERATION, names::CHAT),
            KeyValue::new(names::PROVIDER, request.provider.to_owned()),
            KeyValue::new(names::REQUEST_MODEL, request.model.to_owned()),
        ];
        attributes.extend(
            request.response_model.map(|model| KeyValue::new(names::RESPONSE_MODEL, model.to_owned())),
        );
        attributes
            .extend(request.server_address.map(|host| KeyValue::new(names::SERVER_ADDRESS, host.to_owned())));
        attributes.extend(request.server_port.map(|port| KeyValue::new(names::SERVER_PORT, i64::from(port))));
        // Every measurement except the duration describes a response. Therefore, only the duration has an error type.
        if let Some(first) = request.time_to_first_chunk {
            self.first_chunk.record(first.as_secs_f64(), &attributes);
        }
        for interval in request.chunk_intervals {
            self.per_chunk.record(interval.as_secs_f64(), &attributes);
        }
        if request.usage != Usage::default() {
            self.add_usage(&request.usage, &attributes);
        }
        attributes.extend(error(request.error_type));
        self.duration.record(request.duration.as_secs_f64(), &attributes);
    }

    fn tool(&self, tool: &ToolMetrics<'_>) {
        let Some(runs) = &self.runs else { return };
        let mut attributes = vec![
            KeyValue::new(names::OPERATION, names::EXECUTE_TOOL),
            KeyValue::new(names::TOOL_NAME, tool.name.to_owned()),
        ];
        attributes.extend(error(tool.error_type));
        runs.tool_duration.record(tool.duration.as_secs_f64(), &attributes);
    }

    fn run(&self, run: &RunMetrics<'_>) {
        let Some(runs) = &self.runs else { return };
        let mut attributes = vec![
            KeyValue::new(names::OPERATION, names::INVOKE_AGENT),
            KeyValue::new(names::REQUEST_MODEL, run.model.to_owned()),
        ];
        attributes.extend(run.agent.map(|agent| KeyValue::new(names::AGENT_NAME, agent.to_owned())));
        runs.requests.record(run.requests.into(), &attributes);
        runs.tool_calls.record(run.tool_calls.into(), &attributes);
        attributes.extend(error(run.error_type));
        runs.duration.record(run.duration.as_secs_f64(), &attributes);
    }
}

fn error(kind: Option<&str>) -> Option<KeyValue> {
    kind.map(|kind| KeyValue::new(names::ERROR_TYPE, kind.to_owned()))
}

crate::debug::impl_debug!(OtelRecorder { .. });

//! The measurements that a `Recorder` gets, without and with OpenTelemetry.

use std::sync::{Arc, Mutex};

use omni_agent::telemetry::{self, Recorder, RequestMetrics, RunMetrics, TelemetrySettings, ToolMetrics};

use super::{
    alone::{alone, paused},
    scenario,
};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }
}

impl Recorder for Log {
    fn request(&self, request: &RequestMetrics<'_>) {
        let RequestMetrics {
            provider, model, response_model, duration, time_to_first_chunk, error_type, ..
        } = request;
        let (chunks, usage) = (request.chunk_intervals.len(), &request.usage);
        self.add(format!(
            "{provider} {model} {response_model:?} {duration:?} {time_to_first_chunk:?} {chunks} \
             {}/{}/{} {}/{} {:?} {error_type:?}",
            usage.prompt(),
            usage.cache_read,
            usage.cache_write,
            usage.output,
            usage.reasoning,
            usage.cost,
        ));
    }

    fn tool(&self, tool: &ToolMetrics<'_>) {
        self.add(format!("{} {:?} {:?}", tool.name, tool.duration, tool.error_type));
    }

    fn run(&self, run: &RunMetrics<'_>) {
        let RunMetrics { agent, duration, requests, tool_calls, usage, error_type, .. } = run;
        self.add(format!(
            "{agent:?} {duration:?} {requests} {tool_calls} {} {} {error_type:?}",
            usage.prompt(),
            usage.output
        ));
        panic!("a recorder fails");
    }
}

#[test]
fn recorder_without_a_subscriber_gets_each_request_tool_call_and_run() {
    const TEST: &str = "metrics::recorder_without_a_subscriber_gets_each_request_tool_call_and_run";
    alone(TEST, &[], || {
        let log = Log::default();
        telemetry::configure(TelemetrySettings::new().with_recorder(log.clone())).unwrap();
        paused(scenario::play());
        let lines = log.0.lock().unwrap().clone();
        assert_eq!(
            lines,
            [
                "gcp.gemini scripted Some(\"weather-1-20260101\") 250ms Some(250ms) 3 1100/1000/10 40/0 Some(0.5) None",
                "alarm 0ns Some(\"tool_error\")",
                "weather 1s None",
                "gcp.gemini scripted None 0ns Some(0ns) 1 150/0/0 7/3 Some(0.25) None",
                "gcp.gemini scripted None 0ns Some(0ns) 1 200/0/0 1/0 Some(0.125) Some(\"cancelled\")",
                "Some(\"forecaster\") 1.25s 3 2 1450 48 Some(\"cancelled\")",
            ]
        );
    });
}

#[cfg(feature = "otel-metrics")]
mod otel {
    use std::collections::BTreeMap;

    use omni_agent::telemetry::{Convention, OtelRecorder};
    use opentelemetry::metrics::MeterProvider;
    use opentelemetry_sdk::metrics::{
        InMemoryMetricExporter, PeriodicReader, SdkMeterProvider,
        data::{AggregatedMetrics, MetricData, ScopeMetrics},
    };

    use super::*;

    /// Plays the scenario, and returns for each instrument the count of its measurements and their sum.
    fn play(convention: Convention) -> BTreeMap<String, (u64, f64)> {
        let exporter = InMemoryMetricExporter::default();
        let reader = PeriodicReader::builder(exporter.clone()).build();
        let provider = SdkMeterProvider::builder().with_reader(reader).build();
        let recorder = OtelRecorder::new(&provider.meter("test"), convention);
        telemetry::configure(TelemetrySettings::new().with_recorder(recorder)).unwrap();
        paused(scenario::play());
        provider.force_flush().unwrap();
        let mut found = BTreeMap::new();
        for resource in exporter.get_finished_metrics().unwrap() {
            for metric in resource.scope_metrics().flat_map(ScopeMetrics::metrics) {
                check(metric.name(), metric.unit(), metric.data());
                found.insert(metric.name().to_owned(), sum(metric.data()));
            }
        }
        found
    }

    /// Checks the unit and the bucket bounds of an instrument against the convention.
    fn check(name: &str, unit: &str, data: &AggregatedMetrics) {
        let bounds: Vec<f64> = match data {
            AggregatedMetrics::F64(MetricData::Histogram(data)) => {
                data.data_points().next().unwrap().bounds().collect()
            }
            AggregatedMetrics::U64(MetricData::Histogram(data)) => {
                data.data_points().next().unwrap().bounds().collect()
            }
            _ => Vec::new(),
        };
        let series = |first, factor| std::iter::successors(Some(first), move |bound| Some(bound * factor));
        let (expected_unit, expected): (_, Vec<f64>) = match name {
            "gen_ai.client.token.usage" => ("{token}", series(1.0, 4.0).take(14).collect()),
            "gen_ai.invoke_agent.duration" => ("s", series(0.1, 2.0).take(13).collect()),
            "gen_ai.invoke_agent.inference_calls" => ("{inference_call}", series(1.0, 2.0).take(8).collect()),
            "gen_ai.invoke_agent.tool_calls" => ("{tool_call}", series(1.0, 2.0).take(8).collect()),
            counter if counter.starts_with("gen_ai.client.inference.usage.") => ("{token}", Vec::new()),
            _ => ("s", series(0.01, 2.0).take(14).collect()),
        };
        assert_eq!((unit, bounds), (expected_unit, expected), "{name}");
    }

    #[expect(clippy::cast_precision_loss, reason = "the counts are small")]
    fn sum(data: &AggregatedMetrics) -> (u64, f64) {
        match data {
            AggregatedMetrics::F64(MetricData::Histogram(histogram)) => histogram
                .data_points()
                .fold((0, 0.0), |(count, sum), point| (count + point.count(), sum + point.sum())),
            AggregatedMetrics::U64(MetricData::Histogram(histogram)) => histogram
                .data_points()
                .fold((0, 0.0), |(count, sum), point| (count + point.count(), sum + point.sum() as f64)),
            AggregatedMetrics::U64(MetricData::Sum(total)) => total
                .data_points()
                .fold((0, 0.0), |(count, sum), point| (count + 1, sum + point.value() as f64)),
            _ => panic!("no other kind of instrument is used"),
        }
    }

    fn expected(metrics: &[(&str, u64, f64)]) -> BTreeMap<String, (u64, f64)> {
        metrics.iter().map(|(name, count, sum)| ((*name).to_owned(), (*count, *sum))).collect()
    }

    #[test]
    fn otel_recorder_in_the_convention_v1_41_measures_the_scenario() {
        const TEST: &str = "metrics::otel::otel_recorder_in_the_convention_v1_41_measures_the_scenario";
        alone(TEST, &[], || {
            let metrics = expected(&[
                ("gen_ai.client.operation.duration", 3, 0.25),
                ("gen_ai.client.operation.time_to_first_chunk", 3, 0.25),
                ("gen_ai.client.operation.time_per_output_chunk", 5, 0.0),
                ("gen_ai.client.token.usage", 6, 1498.0),
            ]);
            assert_eq!(play(Convention::V1_41), metrics);
        });
    }

    #[test]
    fn otel_recorder_in_the_latest_convention_measures_runs_and_tools_too() {
        const TEST: &str =
            "metrics::otel::otel_recorder_in_the_latest_convention_measures_runs_and_tools_too";
        alone(TEST, &[], || {
            let metrics = expected(&[
                ("gen_ai.client.inference.duration", 3, 0.25),
                ("gen_ai.client.inference.time_to_first_chunk", 3, 0.25),
                ("gen_ai.client.inference.time_per_output_chunk", 5, 0.0),
                ("gen_ai.client.inference.usage.input_tokens", 2, 1450.0),
                ("gen_ai.client.inference.usage.output_tokens", 2, 48.0),
                ("gen_ai.client.inference.usage.cache_read.input_tokens", 2, 1000.0),
                ("gen_ai.client.inference.usage.cache_write.input_tokens", 2, 10.0),
                ("gen_ai.client.inference.usage.reasoning.output_tokens", 2, 3.0),
                ("gen_ai.invoke_agent.duration", 1, 1.25),
                ("gen_ai.invoke_agent.inference_calls", 1, 3.0),
                ("gen_ai.invoke_agent.tool_calls", 1, 2.0),
                ("gen_ai.execute_tool.duration", 2, 1.0),
            ]);
            assert_eq!(play(Convention::Latest), metrics);
        });
    }
}

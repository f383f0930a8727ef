//! Spans and metrics of an agent through the SDK of OpenTelemetry, printed to the standard output.
//!
//! ```sh
//! cargo run --example telemetry
//! cargo run --example telemetry --features otel-metrics           # also prints metrics
//! OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental cargo run --example telemetry
//! ```
//!
//! To send the spans to a collector, replace the exporter of `opentelemetry_stdout` by that of `opentelemetry-otlp`.
//!
//! The module `support` selects the model and prints the output. In your own crate, pass the model's name instead:
//! `Agent::builder().model("anthropic:claude-opus-5")`.

#[path = "support/support.rs"]
mod support;

use std::error::Error;

use omni_agent::{Agent, telemetry, tool_fn};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::Value;
use tracing::Instrument;
use tracing_subscriber::{filter::filter_fn, prelude::*};

const ABOUT: &str = "Spans and metrics of an agent through the SDK of OpenTelemetry.";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let picked = support::pick_model(ABOUT).await?;

    // The bridge converts spans of `tracing` to spans of OpenTelemetry.
    let spans = SdkTracerProvider::builder()
        .with_simple_exporter(opentelemetry_stdout::SpanExporter::default())
        .build();
    let bridge = tracing_opentelemetry::layer().with_tracer(spans.tracer("telemetry-example"));
    // Without this filter, the log messages of all crates would be recorded as events in the spans.
    let wanted = filter_fn(|metadata| matches!(metadata.target(), telemetry::TARGET | "telemetry"));
    tracing_subscriber::registry().with(bridge.with_filter(wanted)).init();

    #[cfg(feature = "otel-metrics")]
    let metrics = {
        use omni_agent::telemetry::{Convention, OtelRecorder, TelemetrySettings};
        use opentelemetry::metrics::MeterProvider;

        let metrics = opentelemetry_sdk::metrics::SdkMeterProvider::builder()
            .with_periodic_exporter(opentelemetry_stdout::MetricExporter::default())
            .build();
        let recorder = OtelRecorder::new(&metrics.meter("telemetry-example"), Convention::from_env());
        telemetry::configure(TelemetrySettings::new().with_recorder(recorder))?;
        metrics
    };

    let clock = tool_fn("clock", "Returns the time of day.", |_: Value, _| async { Ok("12:00") });
    let agent = Agent::builder().model(picked.model).name("clock-reader").tool(clock).start().await?;
    // The run's span becomes a child of this span. In a service, this is the span of a request.
    let request = tracing::info_span!("request");
    agent.ask("What time is it?").instrument(request).await?;

    spans.shutdown()?;
    #[cfg(feature = "otel-metrics")]
    metrics.shutdown()?;
    Ok(())
}

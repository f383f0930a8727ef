//! The spans that the SDK of OpenTelemetry exports.

use std::time::SystemTime;

use opentelemetry::{
    Value,
    trace::{SpanKind, Status, TracerProvider},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_subscriber::{filter::filter_fn, prelude::*};

use super::tree::{Attributes, Node};

/// Exports the spans of telemetry, and those with the target `test`, to memory.
pub struct Exporter(InMemorySpanExporter);

impl Exporter {
    /// Makes the bridge to an exporter the subscriber of this process.
    pub fn install() -> Self {
        let exporter = InMemorySpanExporter::default();
        let provider = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
        let layer = tracing_opentelemetry::layer()
            .with_tracer(provider.tracer("test"))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false)
            .with_level(false);
        let ours = filter_fn(|metadata| matches!(metadata.target(), omni_agent::telemetry::TARGET | "test"));
        tracing_subscriber::registry().with(layer.with_filter(ours)).init();
        Self(exporter)
    }

    /// Returns all spans that have ended, in order of their start.
    pub fn spans(&self) -> Vec<Node> {
        let mut spans = self.0.get_finished_spans().unwrap();
        spans.sort_by_key(|span| span.start_time);
        spans.iter().map(node).collect()
    }

    /// Returns the names and the ends of the spans that have ended since the last call.
    pub fn ends(&self) -> Vec<(String, SystemTime)> {
        let ends = self.0.get_finished_spans().unwrap();
        self.0.reset();
        ends.into_iter().map(|span| (span.name.to_string(), span.end_time)).collect()
    }
}

fn node(span: &SpanData) -> Node {
    let parent = span.parent_span_id.to_string();
    Node {
        id: span.span_context.span_id().to_string(),
        parent: (parent != "0000000000000000").then_some(parent),
        name: span.name.to_string(),
        kind: match span.span_kind {
            SpanKind::Client => "client",
            SpanKind::Internal => "internal",
            _ => "unexpected",
        }
        .to_owned(),
        error: match &span.status {
            Status::Error { description } => Some(description.to_string()),
            Status::Ok | Status::Unset => None,
        },
        attributes: attributes(&span.attributes),
        events: span
            .events
            .iter()
            .map(|event| {
                let mut attributes = attributes(&event.attributes);
                // The bridge to OpenTelemetry adds these two attributes to each event.
                attributes.remove("level");
                attributes.remove("target");
                (event.name.to_string(), attributes)
            })
            .collect(),
        links: span.links.iter().map(|link| link.span_context.span_id().to_string()).collect(),
    }
}

fn attributes(attributes: &[opentelemetry::KeyValue]) -> Attributes {
    let mut read = Attributes::new();
    for attribute in attributes {
        let value = match &attribute.value {
            Value::F64(number) => format!("{number:?}"),
            Value::String(text) => {
                assert!(text.as_str().parse::<f64>().is_err(), "{} is a number as text", attribute.key);
                text.to_string()
            }
            value => value.to_string(),
        };
        let before = read.insert(attribute.key.to_string(), value);
        assert!(before.is_none(), "{} was recorded twice", attribute.key);
    }
    read
}

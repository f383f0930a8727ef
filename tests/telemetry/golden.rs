//! The scenario's tree of spans, for both conventions, through `tracing` and through OpenTelemetry.

use std::{env, fs, path::Path};

use opentelemetry::{
    Value,
    trace::{SpanKind, Status, TracerProvider},
};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use tracing_subscriber::{filter::filter_fn, prelude::*};

use super::{
    alone::{alone, paused},
    collector::Collector,
    scenario::{self, SECRETS},
    tree::{Attributes, Node, render},
};

const LATEST: (&str, &str) = ("OTEL_SEMCONV_STABILITY_OPT_IN", "http, gen_ai_latest_experimental");

/// Compares a tree with its golden file. With `OMNI_WRITE_GOLDEN`, the file is written first.
fn assert_golden(name: &str, tree: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/telemetry/golden").join(name);
    if env::var_os("OMNI_WRITE_GOLDEN").is_some() {
        fs::write(&file, tree).unwrap();
    }
    let golden = fs::read_to_string(&file).unwrap();
    assert!(tree == golden, "the spans differ from {name}:\n{tree}");
}

fn through_tracing(golden: &str) {
    let collector = Collector::install();
    paused(async {
        scenario::play().await;
        // An aborted tool or a dropped stream closes its span when the runtime next runs.
        tokio::task::yield_now().await;
        assert_eq!(collector.open(), [""; 0]);
    });
    assert_golden(golden, &render(&collector.spans()));
    let recorded = collector.recorded();
    for secret in SECRETS {
        assert!(!recorded.contains(secret), "{secret} appears in:\n{recorded}");
    }
}

#[test]
fn scenario_through_tracing_has_the_spans_of_the_convention_v1_41_and_no_content() {
    const TEST: &str =
        "golden::scenario_through_tracing_has_the_spans_of_the_convention_v1_41_and_no_content";
    alone(TEST, &[], || through_tracing("v1_41.txt"));
}

#[test]
fn scenario_through_tracing_has_the_spans_of_the_latest_convention_and_no_content() {
    const TEST: &str =
        "golden::scenario_through_tracing_has_the_spans_of_the_latest_convention_and_no_content";
    alone(TEST, &[LATEST], || through_tracing("latest.txt"));
}

fn through_opentelemetry(golden: &str) {
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
    paused(async {
        scenario::play().await;
        tokio::task::yield_now().await;
    });
    let mut spans = exporter.get_finished_spans().unwrap();
    spans.sort_by_key(|span| span.start_time);
    let nodes: Vec<Node> = spans.iter().map(node).collect();
    assert_golden(golden, &render(&nodes));
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

#[test]
fn scenario_through_opentelemetry_has_the_same_spans_in_the_convention_v1_41() {
    const TEST: &str = "golden::scenario_through_opentelemetry_has_the_same_spans_in_the_convention_v1_41";
    alone(TEST, &[], || through_opentelemetry("v1_41.txt"));
}

#[test]
fn scenario_through_opentelemetry_has_the_same_spans_in_the_latest_convention() {
    const TEST: &str = "golden::scenario_through_opentelemetry_has_the_same_spans_in_the_latest_convention";
    alone(TEST, &[LATEST], || through_opentelemetry("latest.txt"));
}

//! The scenario's tree of spans, for both conventions, through `tracing` and through OpenTelemetry.

use std::{env, fs, path::Path};

use super::{
    alone::{alone, paused},
    collector::Collector,
    exporter::Exporter,
    scenario::{self, SECRETS},
    tree::render,
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
    let exporter = Exporter::install();
    paused(async {
        scenario::play().await;
        tokio::task::yield_now().await;
    });
    assert_golden(golden, &render(&exporter.spans()));
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

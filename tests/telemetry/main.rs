//! Spans and metrics. `tracing` has one subscriber per process, and telemetry is configured once per process, so each
//! test runs in a separate process.

#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod alone;
mod capture;
mod collector;
mod compaction;
#[cfg(feature = "http")]
mod endpoint;
mod exporter;
mod failures;
mod golden;
mod idle;
#[cfg(all(feature = "mcp", feature = "mcp-server", feature = "web"))]
mod mcp;
mod metrics;
mod mixing;
mod parents;
mod scenario;
#[cfg(feature = "http")]
#[path = "../support/server.rs"]
mod server;
mod spawns;
mod sub_agents;
mod tree;

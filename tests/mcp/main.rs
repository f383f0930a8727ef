//! The client of the Model Context Protocol, tested with official servers and with a server that misbehaves. Each
//! server is a separate process.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

#[cfg(all(feature = "mcp-auth", feature = "mcp-server", feature = "web"))]
mod auth;
mod calls;
#[cfg(all(feature = "mcp-auth", feature = "mcp-server", feature = "web"))]
mod conformance;
#[cfg(feature = "web")]
mod credentials;
mod durable;
mod endings;
mod generations;
mod hostile_http;
mod lists;
#[path = "../support/lives.rs"]
mod lives;
#[cfg(all(feature = "mcp-server", feature = "web"))]
#[path = "../support/nested.rs"]
mod nested;
#[path = "../support/npm.rs"]
mod npm;
mod official;
mod python;
mod questions;
mod raw;
mod raw_http;
#[cfg(feature = "mcp-server")]
mod serving;
#[path = "../support/skip.rs"]
mod skip;
mod support;
mod tasks;

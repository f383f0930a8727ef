//! A table of scenarios for all five wire formats. Agents run each scenario in each format against a strict server that
//! implements all formats. Other tests transfer conversations from each format to every other format, with and without
//! compactions.
//!
//! `cargo test --test formats table -- --nocapture` prints the table.

#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

mod compaction;
#[path = "../support/server.rs"]
mod http;
mod ids;
mod pairs;
mod rig;
mod scenarios;
mod script;
mod server;
mod splits;
mod strictness;

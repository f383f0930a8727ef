//! The Agent Client Protocol backend, tested with agents built on the official implementations and with faulty
//! programs. Each agent is a separate process.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

mod agent;
mod conformance;
mod conversations;
mod endings;
mod faults;
mod forms;
mod permissions;
mod sdk;
#[path = "../support/skip.rs"]
mod skip;
mod support;
mod turns;

//! The Agent Client Protocol: the backend, tested with agents built on the official implementations and with faulty
//! programs, and the agent that serves a manager, tested with the official clients. Each agent is a separate process.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "an unwrap is a failure of the test")]

#[macro_use]
#[path = "../support/forward.rs"]
mod forward;

mod agent;
mod conformance;
mod conversations;
mod endings;
mod faults;
mod forms;
#[path = "../support/lives.rs"]
mod lives;
#[path = "../support/nested.rs"]
mod nested;
#[path = "../support/npm.rs"]
mod npm;
mod permissions;
mod sdk;
mod serving;
#[path = "../support/skip.rs"]
mod skip;
mod support;
mod turns;

//! The agent layer through its public API.
#![cfg(feature = "test-util")]
#![allow(clippy::unwrap_used, reason = "a test's unwrap is its failure")]

mod ask;
mod configuration;
mod decisions;
mod errors;
mod hooks;
mod limits;
mod liveness;
mod notices;
mod open_uses;
mod questions;
mod rig;
mod staging;
mod start;
mod support;
mod testing;
mod tools;
mod turns;

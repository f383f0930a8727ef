//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod configuration;
mod flood;
mod liveness;
mod operations;
mod panics;
mod predicament;
mod rig;
mod support;
mod turns;

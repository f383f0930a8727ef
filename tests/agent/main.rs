//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod configuration;
mod cutting_short;
mod joining;
mod liveness;
mod operations;
mod panics;
mod predicament;
mod rig;
mod subscribing;
mod support;
mod turns;

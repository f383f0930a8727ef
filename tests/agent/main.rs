//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod liveness;
mod operations;
mod predicament;
mod rig;
mod support;
mod turns;

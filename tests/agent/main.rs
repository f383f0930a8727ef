//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod liveness;
mod rig;
mod support;
mod turns;

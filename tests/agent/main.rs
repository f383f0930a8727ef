//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod support;
mod turns;

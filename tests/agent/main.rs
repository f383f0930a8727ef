//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod ask;
mod configuration;
mod decisions;
mod errors;
mod hooks;
mod limits;
mod notices;
mod open_uses;
mod questions;
mod staging;
mod start;
mod support;
mod tools;
mod turns;

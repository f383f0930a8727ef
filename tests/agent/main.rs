//! The agent layer through its public API.
#![cfg(feature = "test-util")]

mod commit_channel;
mod configuration;
mod cutting_short;
mod ending;
mod event_data;
mod flood;
mod joining;
mod liveness;
mod operations;
mod panics;
mod predicament;
mod races;
mod rig;
mod subscribing;
mod support;
mod turns;
